//! The data to pack: named by the user, or gathered from this machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_kinds::trees;
use tempfile::TempDir;

use super::{process, tools::Tools};

/// A directory that is packed, with its name in cases.
pub(super) struct Data {
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

/// Returns a data set for `path`: the directory itself, or a new one that contains only the file.
pub(super) fn named(path: &Path, scratch: &TempDir) -> anyhow::Result<Data> {
    let name = path.file_name().context("the data has no name")?.to_string_lossy().into_owned();
    if fs::metadata(path).with_context(|| path.display().to_string())?.is_dir() {
        return Ok(Data { name, folder: path.to_owned() });
    }
    let folder = scratch.path().join("data");
    fs::create_dir(&folder)?;
    // A link keeps the file's holes; a copy does not.
    let original = fs::canonicalize(path)?;
    fs::hard_link(&original, folder.join(&name)).or_else(|_| fs::copy(&original, folder.join(&name)).map(drop))?;
    Ok(Data { name, folder })
}

/// Gathers text of this machine as one file, a tree of its files, each of about `mib` MiB, and a
/// disk with that tree.
pub(super) fn gathered(mib: u64, tools: &Tools, scratch: &TempDir) -> anyhow::Result<Vec<Data>> {
    let tree = scratch.path().join("tree");
    trees::copied(["/usr/share", "/usr/lib", "/usr/include"].map(Path::new), mib, &tree)?;
    let disk = disk(&tree, tools, scratch)?;
    let sets = [Some(text(mib, scratch)?), Some(Data { name: "tree".to_owned(), folder: tree }), disk];
    Ok(sets.into_iter().flatten().collect())
}

/// Gathers text of this machine as one file.
pub(super) fn text(mib: u64, scratch: &TempDir) -> anyhow::Result<Data> {
    let folder = scratch.path().join("text");
    fs::create_dir(&folder)?;
    trees::text(mib, &folder.join("text"))?;
    Ok(Data { name: "text".to_owned(), folder })
}

/// Makes a disk image with the files of `tree`.
fn disk(tree: &Path, tools: &Tools, scratch: &TempDir) -> anyhow::Result<Option<Data>> {
    let Some(program) = tools.find("mkfs.ext4") else {
        eprintln!("SKIPPED: disk: mkfs.ext4 is not installed");
        return Ok(None);
    };
    let folder = scratch.path().join("disk");
    fs::create_dir(&folder)?;
    process::run(&mut trees::ext4(&program, tree, &folder.join("disk.img"), &[])?, 1)?;
    Ok(Some(Data { name: "disk".to_owned(), folder }))
}
