//! The project's files, for the tests that read them all.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The project has more files and folders than this. With fewer, a walk has missed some.
const LEAST_PATHS: usize = 1_000;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Returns all files and folders of the project in order, with a leading `/`, except build output and
/// names that begin with a dot.
pub(crate) fn paths() -> Vec<String> {
    let mut paths = Vec::new();
    let mut folders = vec![(root(), String::new())];
    while let Some((folder, name)) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let file = entry.file_name().into_string().expect("UTF-8");
            if file.starts_with('.') || file == "target" {
                continue;
            }
            let name = format!("{name}/{file}");
            if entry.file_type().expect("a type").is_dir() {
                folders.push((entry.path(), name.clone()));
            }
            paths.push(name);
        }
    }
    assert!(paths.len() > LEAST_PATHS, "{} paths", paths.len());
    paths.sort();
    paths
}
