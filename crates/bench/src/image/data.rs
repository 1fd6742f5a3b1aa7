//! The data to pack: named by the user, or gathered from this machine.

use std::{
    fs, os,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use pagefold_kinds::files::{is_text, joined};

use super::{builder::needs, process, tools::Tools};

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
    copied(["/usr/share", "/usr/lib", "/usr/include"].map(Path::new), mib, &tree)?;
    let disk = disk(&tree, tools, scratch)?;
    let sets = [Some(text(mib, scratch)?), Some(Data { name: "tree".to_owned(), folder: tree }), disk];
    Ok(sets.into_iter().flatten().collect())
}

/// Copies about `mib` MiB and at most 20,000 files of `roots` to a new tree at `to`.
pub(crate) fn copied<'a>(roots: impl IntoIterator<Item = &'a Path>, mib: u64, to: &Path) -> anyhow::Result<()> {
    let mut budget = Allowance { bytes: mib << 20, files: 20_000 };
    for root in roots {
        copy(root, &to.join(root.strip_prefix("/").unwrap_or(root)), &mut budget)?;
    }
    Ok(())
}

/// Makes a disk image with an ext4 file system that contains the files of `tree`. It is twice as
/// large as they need; the rest are holes.
fn disk(tree: &Path, tools: &Tools, scratch: &TempDir) -> anyhow::Result<Option<Data>> {
    let Some(program) = tools.find("mkfs.ext4") else {
        eprintln!("SKIPPED: disk: mkfs.ext4 is not installed");
        return Ok(None);
    };
    let folder = scratch.path().join("disk");
    fs::create_dir(&folder)?;
    let (blocks, inodes) = needs(tree)?;
    let mut command = Command::new(program);
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N"]).arg((inodes + 64).to_string());
    command.arg("-d").arg(tree).arg(folder.join("disk.img")).arg((blocks * 2).to_string());
    process::run(&mut command, 1)?;
    Ok(Some(Data { name: "disk".to_owned(), folder }))
}

/// Gathers text of this machine as one file.
pub(super) fn text(mib: u64, scratch: &TempDir) -> anyhow::Result<Data> {
    let folder = scratch.path().join("text");
    fs::create_dir(&folder)?;
    let roots = ["/usr/include", "/usr/share", "/usr/lib"];
    let bytes = joined(&roots, (mib << 20) as usize, |_, content| is_text(content));
    ensure!(bytes.len() >= 1 << 20, "this machine has less than 1 MiB of text; name a file with --data");
    if (bytes.len() as u64) < mib << 20 {
        eprintln!("note: this machine has {} MiB of text", bytes.len() >> 20);
    }
    fs::write(folder.join("text"), bytes)?;
    Ok(Data { name: "text".to_owned(), folder })
}

struct Allowance {
    bytes: u64,
    files: u64,
}

/// Copies files and links in name order until the budget is spent. Skips files that cannot be read.
fn copy(from: &Path, to: &Path, budget: &mut Allowance) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to)?;
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if budget.bytes == 0 || budget.files == 0 {
            break;
        }
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            copy(&path, &target, budget)?;
        } else if metadata.is_symlink() {
            if let Ok(link) = fs::read_link(&path) {
                os::unix::fs::symlink(link, target)?;
            }
        } else if metadata.is_file() && metadata.len() <= budget.bytes && fs::copy(&path, &target).is_ok() {
            budget.bytes -= metadata.len();
            budget.files -= 1;
        }
    }
    Ok(())
}
