//! Refuses words that readers stumble over, in pages, comments, messages and help texts, and names what
//! to write instead.

mod project;

use std::{fs, ops::Range, path::Path};

use project::{paths, root};

/// A phrase in lower case, and what replaces it.
const AVOIDED: [(&str, &str); 13] = [
    ("anew", "\"again\""),
    ("as far as", "\"if\", \"where\", \"until\" or \"the part that\""),
    ("at once", "\"immediately\", \"simultaneously\", \"together\" or \"in one step\""),
    ("in turns", "\"alternately\" or \"take turns\""),
    ("in vain", "\"unnecessarily\", or what did not happen"),
    ("meanwhile", "the time that is meant: \"while it packs\", \"since\", \"until then\""),
    ("nobody", "who does not: \"no thread\", \"no client\", \"no program\""),
    ("so many", "the number"),
    ("tell", "\"say\", \"report\", \"notify\", \"log\" or \"distinguish\""),
    ("tells", "\"says\", \"reports\", \"notifies\", \"logs\" or \"distinguishes\""),
    ("told", "\"said\", \"reported\", \"notified\", \"logged\" or \"asked\""),
    ("what is said of", "the subject"),
    ("whoever", "the actor"),
];

/// The file that names the phrases.
const OWN: &str = "/crates/testing/tests/words.rs";

/// Returns the checked files whose names have this extension. There are more than `least`.
fn files(extension: &str, least: usize) -> Vec<String> {
    let found = |path: &String| path != OWN && Path::new(path).extension().is_some_and(|found| found == extension);
    let files: Vec<_> = paths().into_iter().filter(found).collect();
    assert!(files.len() > least, "{} files of {extension}", files.len());
    files
}

/// Returns where the comments and the string literals of a source file are.
fn prose_of_source(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let end_of = |from: usize, mark: &str| text[from..].find(mark).map_or(text.len(), |at| from + at + mark.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let is_in_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')).filter(|_| !is_in_word);
        let raw = raw.and_then(|raw| raw.split_once('"')).filter(|(marks, _)| marks.bytes().all(|mark| mark == b'#'));
        let end = if rest.starts_with("//") {
            end_of(at, "\n")
        } else if rest.starts_with("/*") {
            end_of(at, "*/")
        } else if let Some((marks, inside)) = raw {
            end_of(text.len() - inside.len(), &format!("\"{marks}"))
        } else if bytes[at] == b'"' {
            let mut end = at + 1;
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            (end + 1).min(text.len())
        } else {
            // A literal of a character may be a quotation mark; a lifetime has no second mark.
            at += match bytes[at..] {
                [b'\'', b'\\', _, ..] => end_of(at + 3, "'") - at,
                [b'\'', _, b'\'', ..] => 3,
                _ => rest.chars().next().map_or(1, char::len_utf8),
            };
            continue;
        };
        found.push(at..end);
        at = end;
    }
    found
}

/// Returns a text's words in lower case, separated by single spaces, with its place. Words between
/// backticks and braces are code. A phrase may go over to the next line.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut is_code = false;
    let mut depth = 0_usize;
    let mut start = None;
    for (at, character) in text.char_indices().chain([(text.len(), ' ')]) {
        if character.is_alphanumeric() || character == '_' || character == '-' {
            start = start.or(Some(at));
            continue;
        }
        if let Some(from) = start.take()
            && !is_code
            && depth == 0
        {
            words.push((from, text[from..at].to_lowercase()));
        }
        match character {
            '`' => is_code = !is_code,
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            '.' | ';' | ':' | ',' | '|' => words.push((at, character.to_string())),
            _ => {}
        }
    }
    words
}

/// Adds a line for each phrase that is to be replaced.
fn look(path: &str, text: &str, from: usize, prose: &str, found: &mut String) {
    let words = words(prose);
    for (phrase, instead) in AVOIDED {
        let wanted: Vec<_> = phrase.split(' ').collect();
        for window in words.windows(wanted.len()) {
            if window.iter().map(|(_, word)| word).eq(&wanted) {
                let line = 1 + text[..from + window[0].0].matches('\n').count();
                *found += &format!("{path}:{line}: \"{phrase}\": write {instead}\n");
            }
        }
    }
}

#[test]
fn prose_avoids_words_that_readers_stumble_over() {
    let mut found = String::new();
    for path in files("md", 100) {
        let text = fs::read_to_string(root().join(&path[1..])).expect("a page");
        // Code in a page is separate from its prose.
        let mut from = 0;
        for (number, part) in text.split("```").enumerate() {
            if number % 2 == 0 {
                look(&path, &text, from, part, &mut found);
            }
            from += part.len() + 3;
        }
    }
    for path in files("rs", 800) {
        let text = fs::read_to_string(root().join(&path[1..])).expect("a source file");
        // Comments of successive lines are one text.
        let mut texts: Vec<Range<usize>> = Vec::new();
        for range in prose_of_source(&text) {
            let is_comment = |range: &Range<usize>| text[range.clone()].starts_with("//");
            match texts.last_mut() {
                Some(last)
                    if is_comment(last) && is_comment(&range) && text[last.end..range.start].trim().is_empty() =>
                {
                    last.end = range.end;
                }
                _ => texts.push(range),
            }
        }
        texts.into_iter().for_each(|range| look(&path, &text, range.start, &text[range.clone()], &mut found));
        for (at, mark) in text.match_indices("#[test]") {
            let name = text[at..].split_once("fn ").and_then(|(_, rest)| Some(rest.split_once('(')?.0));
            look(&path, &text, at + mark.len(), &name.unwrap_or_default().replace('_', " "), &mut found);
        }
    }
    assert!(found.is_empty(), "words to replace:\n{found}");
}

#[test]
fn comments_and_literals_are_found() {
    let text = "let c = '\"'; // one\nlet x: &'a str = \"two \\\" three\"; /* four */ r#\"five \" six\"# x";
    let found: Vec<_> = prose_of_source(text).into_iter().map(|range| text[range].trim_end()).collect();
    assert_eq!(found, ["// one", "\"two \\\" three\"", "/* four */", "r#\"five \" six\"#"]);
}

#[test]
fn phrases_are_found_across_lines_but_not_in_code_or_across_sentences() {
    let text = "/// It ends at\n/// once. Look at `told` and {told}, and at: once.";
    let mut found = String::new();
    look("a", text, 0, text, &mut found);
    assert!(found.starts_with("a:1: \"at once\": write"), "{found}");
    assert_eq!(found.lines().count(), 1, "{found}");
}
