// Words of web pages and of JavaScript in maps, trees and slices of structures, and parsed JSON.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"time"
)

type place struct {
	file   int32
	line   int32
	column uint16
}

type word struct {
	text   string
	places []place
	left   *word
	right  *word
}

type order struct {
	ID       int               `json:"id"`
	Customer string            `json:"customer"`
	At       time.Time         `json:"at"`
	Lines    []line            `json:"lines"`
	Notes    map[string]string `json:"notes,omitempty"`
}

type line struct {
	Article string  `json:"article"`
	Price   float64 `json:"price"`
	Count   int     `json:"count"`
}

func (of *word) find(text string) *word {
	for {
		switch {
		case text == of.text:
			return of
		case text < of.text:
			if of.left == nil {
				of.left = &word{text: strings.Clone(text)}
				return of.left
			}
			of = of.left
		default:
			if of.right == nil {
				of.right = &word{text: strings.Clone(text)}
				return of.right
			}
			of = of.right
		}
	}
}

func main() {
	var paths []string
	for _, root := range []string{"/usr/share/nodejs", "/usr/share/doc/installation-guide-amd64/en"} {
		filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && (strings.HasSuffix(path, ".js") || strings.HasSuffix(path, ".html")) {
				paths = append(paths, path)
			}
			return nil
		})
	}
	sort.Strings(paths)
	root := &word{text: "m"}
	counts := map[string]int{}
	var read int
	for number, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil || read > 6<<20 || len(content) > 1<<20 {
			continue
		}
		read += len(content)
		for at, text := range strings.Split(string(content), "\n") {
			for column, found := range strings.FieldsFunc(text, func(of rune) bool {
				return !('a' <= of && of <= 'z' || 'A' <= of && of <= 'Z' || of == '_' || of > 127)
			}) {
				if counts[found]++; counts[found] < 40 {
					entry := root.find(found)
					entry.places = append(entry.places, place{int32(number), int32(at), uint16(column)})
				}
			}
		}
	}
	state := uint32(99)
	random := func(end int) int {
		state = state*1664525 + 1013904223
		return int(state>>8) % end
	}
	var names []string
	for name := range counts {
		if len(name) > 4 {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	orders := map[int]*order{}
	for id := 0; id < 25000; id++ {
		made := &order{ID: id, Customer: names[random(len(names))], At: time.Unix(1.7e9+int64(id*37+random(30)), 0)}
		for lines := random(6); lines >= 0; lines-- {
			made.Lines = append(made.Lines, line{names[random(900)], float64(random(100000)) / 100, 1 + random(9)})
		}
		if random(5) == 0 {
			made.Notes = map[string]string{"by": names[random(50)], "says": names[random(len(names))] + " " + names[random(len(names))]}
		}
		orders[id] = made
	}
	text, _ := json.Marshal(orders)
	var parsed map[string]any
	if json.Unmarshal(text, &parsed) != nil {
		os.Exit(1)
	}
	fmt.Println("memory heap-go", os.Getpid())
	bufio.NewReader(os.Stdin).ReadString('\n')
	runtime.KeepAlive([]any{root, counts, orders, parsed, text})
}
