# Arrays of integers: an inverted index of Go sources, the suffix array of a part of them, sizes and
# times of files.
import array, os, re, sys
out = os.path.join(sys.argv[1], "number-integer")
os.mkdir(out)


def keep(name, type_code, numbers):
    with open(os.path.join(out, name), "wb") as file:
        array.array(type_code, numbers).tofile(file)


texts, lengths, times, folders_of = [], [], [], []
for parent, folders, names in os.walk(os.path.realpath("/usr/lib/go/src")):
    folders.sort()
    for name in sorted(names):
        about = os.stat(os.path.join(parent, name))
        lengths.append(about.st_size)
        times.append(about.st_mtime_ns)
        if name.endswith(".go"):
            texts.append(open(os.path.join(parent, name), "rb").read())
index = {}
for number, text in enumerate(texts[:3000]):
    for place, word in enumerate(re.findall(rb"[A-Za-z_]\w+", text)):
        index.setdefault(word, []).append((number, place))
documents, places, counts = [], [], []
for word in sorted(index):
    if len(index[word]) > 3:
        counts.append(len(index[word]))
        documents += [number for number, _ in index[word]]
        places += [place for _, place in index[word]]
# As 32-bit words, like an index in memory; documents and places are cut to 2.8 MB each.
keep("documents", "I", documents[:700000])
keep("places", "I", places[:700000])
keep("counts", "I", counts)
keep("lengths", "q", lengths)
keep("times", "q", times)
joined = b"".join(texts)[:400000]
keep("suffixes", "I", sorted(range(len(joined)), key=lambda at: joined[at:at + 40]))
# As 16-bit words: the lengths of the sources' lines in bytes.
keep("widths", "H", [min(len(line), 65535) for text in texts for line in text.split(b"\n")][:1000000])
