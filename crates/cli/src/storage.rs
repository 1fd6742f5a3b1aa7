//! What users name where an image or a disk can be given: a file, or a URL.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use pagefold_storage::Storage;

/// Opens the storage of an image or a disk, for all commands.
pub(crate) fn open(name: &Path) -> io::Result<Arc<dyn Storage>> {
    pagefold_storage::open(name)
}

/// Returns paths that mean the same in all directories.
pub(crate) fn absolute_all(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let absolute = |path: &PathBuf| pagefold_storage::absolute(path).with_context(|| path.display().to_string());
    paths.iter().map(absolute).collect()
}
