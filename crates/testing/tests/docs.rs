//! Checks all pages of the project: their links have targets, and their prose fits the line length.

mod project;

use std::{collections::HashSet, fs, path::PathBuf};

use project::{paths, root};

/// Maximum columns of a line of prose. Tables, code and a single long word may be wider.
const COLUMNS: usize = 100;

/// Returns the pages: Markdown files, those of the crates included.
fn pages() -> Vec<PathBuf> {
    let pages: Vec<_> =
        paths().iter().filter(|path| path.ends_with(".md")).map(|path| root().join(&path[1..])).collect();
    assert!(pages.len() > 100, "{} pages", pages.len());
    pages
}

/// Returns the lines of a page outside code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code && !line.starts_with("    ")).then_some((at + 1, line))
    })
}

/// Returns the anchor of a heading: its letters and digits in lower case, spaces as hyphens.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> HashSet<String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| anchor(line)).collect()
}

/// Returns the targets of a line's links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = String::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for (line, link) in prose(&text).flat_map(|(at, line)| links(line).map(move |link| (at, link))) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let is_there = target.exists()
                && (heading.is_empty()
                    || fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(heading)));
            if !is_there {
                broken += &format!("{}:{line}: {link}\n", page.display());
            }
        }
    }
    assert!(broken.is_empty(), "links to nothing:\n{broken}");
}

#[test]
fn files_that_the_architecture_names_are_there() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let paths = paths();
    let mut seen = 0;
    for name in text.split('`').skip(1).step_by(2) {
        let name = name.trim_end_matches('/');
        if !name.contains('/') && !name.ends_with(".rs") || name.contains(['*', '{', ' ', '…', '<', ':']) {
            continue;
        }
        seen += 1;
        // The page omits folders that are clear from the context.
        let end = format!("/{name}");
        assert!(paths.iter().any(|path| path.ends_with(&end)), "ARCHITECTURE.md names {name}");
    }
    assert!(seen > 5, "{seen} paths");
}

#[test]
fn prose_fits_its_columns() {
    let mut long = String::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for (at, line) in prose(&text) {
            let is_table = line.trim_start().starts_with('|');
            if !is_table && line.chars().count() > COLUMNS && line.trim().contains(' ') {
                long += &format!("{}:{at}\n", page.display());
            }
        }
    }
    assert!(long.is_empty(), "more than {COLUMNS} columns:\n{long}");
}

/// Crates that are not released have no version to name: a path leads to them.
#[test]
fn examples_name_no_version_that_does_not_exist() {
    let is_released = !fs::read_to_string(root().join("CHANGELOG.md")).expect("the page").contains("(unreleased)");
    let mut promised = String::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let is_version =
            |line: &&str| line.starts_with("pagefold") && (line.contains("= \"") && !line.contains("path ="));
        text.lines().filter(is_version).for_each(|line| promised += &format!("{}: {line}\n", page.display()));
    }
    assert!(is_released || promised.is_empty(), "versions that are not released:\n{promised}");
}
