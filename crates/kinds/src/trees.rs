//! Trees of this machine's files, and disks with them.

use std::{
    fs, os,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::files::{is_text, joined};

/// The path of Python.
pub const PYTHON: &str = "/usr/bin/python3";

/// Files in a directory of [`many_files`].
const IN_A_DIRECTORY: usize = 100;

/// The bytes and files that may still be copied.
struct Allowance {
    bytes: u64,
    files: u64,
}

/// Copies about `mib` MiB and at most 20,000 files of `roots` to a new tree at `to`.
///
/// # Errors
/// The tree cannot be written.
pub fn copied<'a>(roots: impl IntoIterator<Item = &'a Path>, mib: u64, to: &Path) -> anyhow::Result<()> {
    let mut allowed = Allowance { bytes: mib << 20, files: 20_000 };
    for root in roots {
        copy(root, &to.join(root.strip_prefix("/").unwrap_or(root)), &mut allowed)?;
    }
    Ok(())
}

/// Copies files and links in name order until nothing more is allowed. Skips files that cannot be
/// read.
fn copy(from: &Path, to: &Path, allowed: &mut Allowance) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to)?;
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if allowed.bytes == 0 || allowed.files == 0 {
            break;
        }
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            copy(&path, &target, allowed)?;
        } else if metadata.is_symlink() {
            if let Ok(link) = fs::read_link(&path) {
                os::unix::fs::symlink(link, target)?;
            }
        } else if metadata.is_file() && metadata.len() <= allowed.bytes && fs::copy(&path, &target).is_ok() {
            allowed.bytes -= metadata.len();
            allowed.files -= 1;
        }
    }
    Ok(())
}

/// Gathers about `mib` MiB of this machine's text as one file.
///
/// # Errors
/// There is less than 1 MiB of it, or the file cannot be written.
pub fn text(mib: u64, to: &Path) -> anyhow::Result<()> {
    let bytes = joined(&["/usr/include", "/usr/share", "/usr/lib"], (mib << 20) as usize, |_, file| is_text(file));
    ensure!(bytes.len() >= 1 << 20, "this machine has less than 1 MiB of text; name a file with --data");
    if (bytes.len() as u64) < mib << 20 {
        eprintln!("note: this machine has {} MiB of text", bytes.len() >> 20);
    }
    fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))
}

/// Makes a tree of `count` small files.
///
/// # Errors
/// It cannot be written.
pub fn many_files(count: usize, tree: &Path) -> anyhow::Result<()> {
    for number in 0..count {
        let directory = tree.join(format!("{:05}", number / IN_A_DIRECTORY));
        if number % IN_A_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        fs::write(directory.join(format!("file-{number}.txt")), format!("{number}\n").repeat(1 + number % 300))?;
    }
    Ok(())
}

/// Makes a tree that Python starts from: Python, its library with the times that its compiled modules
/// refer to, and the libraries that it needs.
///
/// # Errors
/// Python is not installed, or the tree cannot be written.
pub fn python(tree: &Path) -> anyhow::Result<()> {
    ensure!(Path::new(PYTHON).exists(), "{PYTHON} is not installed; --data DIR names a system that has it");
    fs::create_dir_all(tree.join("usr"))?;
    for name in ["bin", "sbin", "lib", "lib64"] {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            fs::create_dir_all(tree.join(&target))?;
            os::unix::fs::symlink(target, tree.join(name))?;
        }
    }
    let output = |program: &str, args: &[&str]| -> anyhow::Result<String> {
        let output = Command::new(program).args(args).output().with_context(|| format!("cannot start {program}"))?;
        String::from_utf8(output.stdout).with_context(|| format!("{program} wrote no text"))
    };
    let library = output(PYTHON, &["-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"])?;
    let needed = output("ldd", &[PYTHON])?;
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
    let cp = |args: &[&str], from: &str, to: PathBuf| -> anyhow::Result<()> {
        let status = Command::new("cp").args(args).arg("-t").arg(to).arg(from).status().context("cannot start cp")?;
        ensure!(status.success(), "cp of {from} failed: {status}");
        Ok(())
    };
    for file in libraries.chain([PYTHON]) {
        let folder = tree.join(&file[1..]).parent().context("no folder")?.to_owned();
        fs::create_dir_all(&folder)?;
        cp(&["-L", "-p"], file, folder)?;
    }
    cp(&["-a", "--parents"], library.trim(), tree.to_owned())
}

/// Returns the number of 4096-byte blocks and of inodes that a tree needs.
///
/// # Errors
/// It cannot be read.
pub fn needs(folder: &Path) -> anyhow::Result<(u64, u64)> {
    let (mut blocks, mut inodes) = (1, 1);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        inodes += 1;
        blocks += metadata.len().div_ceil(4096);
        if metadata.is_dir() {
            let (below, nodes) = needs(&entry.path())?;
            blocks += below;
            inodes += nodes;
        }
    }
    Ok((blocks, inodes))
}

/// Returns the command that makes a disk image with the files of `tree` in ext4, and room for those
/// of `more`. The rest of the room is holes.
///
/// # Errors
/// A tree cannot be read.
pub fn ext4(mkfs: &Path, tree: &Path, image: &Path, more: &[&Path]) -> anyhow::Result<Command> {
    let (mut blocks, mut inodes) = needs(tree)?;
    for tree in more {
        let (more_blocks, more_inodes) = needs(tree)?;
        (blocks, inodes) = (blocks + more_blocks, inodes + more_inodes);
    }
    let mut command = Command::new(mkfs);
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-N"]).arg((inodes + 64).to_string());
    // A tenth more and 64 MiB for tables and the journal.
    command.arg("-d").arg(tree).arg(image).arg((blocks * 11 / 10 + (64 << 8)).to_string());
    Ok(command)
}
