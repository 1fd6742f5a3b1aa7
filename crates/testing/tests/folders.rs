//! The folders of `crates/erofs` depend in one direction, as ARCHITECTURE.md says.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Each folder, and the folders that it may use in addition to itself.
const MAY_USE: [(&str, &[&str]); 6] = [
    ("format", &[]),
    ("cache", &["format"]),
    ("readahead", &["format", "cache"]),
    ("read", &["format", "cache", "readahead"]),
    ("extract", &["format", "cache", "readahead", "read"]),
    ("build", &["format"]),
];

/// The Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
                files.push(entry.path());
            }
        }
    }
    assert!(!files.is_empty(), "{}", folder.display());
    files
}

/// Whether code (not a comment) names the module: `crate::NAME`, or `super::…::NAME` at the root.
fn names(line: &str, module: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["crate::", "super::super::", "crate::{"].iter().any(|before| {
        code.match_indices(&format!("{before}{module}")).any(|(at, found)| {
            let after = code[at + found.len()..].chars().next();
            !after.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
        })
    })
}

#[test]
fn erofs_folders_depend_in_one_direction() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../erofs/src");
    let mut wrong = String::new();
    for (folder, allowed) in MAY_USE {
        for file in files(&root.join(folder)) {
            let text = fs::read_to_string(&file).expect("source text");
            for (number, line) in text.lines().enumerate() {
                let others = MAY_USE.iter().map(|(other, _)| *other).chain(["compare", "reuse"]);
                for other in others.filter(|other| *other != folder && !allowed.contains(other)) {
                    if names(line, other) {
                        wrong += &format!("{}:{}: {folder} uses {other}\n", file.display(), number + 1);
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_use_is_seen_and_a_comment_is_not_one() {
    assert!(names("use crate::read::Image;", "read") && names("    crate::build::build(", "build"));
    assert!(!names("use crate::readahead::Workers;", "read") && !names("// crate::read", "read"));
}
