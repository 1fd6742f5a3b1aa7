//! The disks that are read: ext4 with the files of a system that has Python, and one with many
//! files; raw, packed, and as peers store them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use pagefold_report::tool;

use crate::image::{builder::needs, data::copied};

/// Where the system's own Python is.
const PYTHON: &str = "/usr/bin/python3";

/// Files in a directory of the disk with many files.
const IN_A_DIRECTORY: usize = 100;

/// How and where disks are packed.
pub(super) struct Packing<'a> {
    pub(super) pagefold: &'a Path,
    pub(super) codec: &'a str,
    pub(super) folder: &'a Path,
}

/// A disk and the images of it.
pub(super) struct Disk {
    pub(super) raw: PathBuf,
    pub(super) packed: PathBuf,
}

impl Disk {
    /// Makes the disk of a tree, which is removed, and packs it.
    fn of(tree: &Path, name: &str, pack: &Packing<'_>) -> anyhow::Result<Self> {
        let folder = pack.folder;
        let disk = Self { raw: folder.join(format!("{name}.img")), packed: folder.join(format!("{name}.erofs")) };
        make_file_system(tree, &disk.raw)?;
        let mut command = Command::new(pack.pagefold);
        command.args(["pack", "--codec", pack.codec]);
        tool::run(command.arg(&disk.raw).arg("-o").arg(&disk.packed))?;
        Ok(disk)
    }

    /// Makes a disk with Python: of `root`, or of this system's files, about `mib` MiB of them.
    pub(super) fn with_python(root: Option<&Path>, mib: u64, pack: &Packing<'_>) -> anyhow::Result<Self> {
        if let Some(root) = root {
            ensure!(fs::symlink_metadata(root.join(&PYTHON[1..])).is_ok(), "{} has no {PYTHON}", root.display());
            return Self::of(root, "python", pack);
        }
        let tree = pack.folder.join("tree");
        gather_python(&tree)?;
        let (blocks, _) = needs(&tree)?;
        let rest = mib.saturating_sub(blocks >> 8);
        copied(
            ["/usr/share", "/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib"].map(Path::new),
            rest,
            &tree.join("rest"),
        )?;
        let disk = Self::of(&tree, "python", pack);
        fs::remove_dir_all(&tree)?;
        disk
    }

    /// Makes a disk with `files` small files.
    pub(super) fn with_files(files: usize, pack: &Packing<'_>) -> anyhow::Result<Self> {
        let tree = pack.folder.join("files");
        for number in 0..files {
            let directory = tree.join(format!("{:05}", number / IN_A_DIRECTORY));
            if number % IN_A_DIRECTORY == 0 {
                fs::create_dir_all(&directory)?;
            }
            fs::write(directory.join(format!("file-{number}.txt")), format!("{number}\n").repeat(1 + number % 300))?;
        }
        let disk = Self::of(&tree, "files", pack);
        fs::remove_dir_all(&tree)?;
        disk
    }

    /// Makes a compressed qcow2 image of the disk.
    pub(super) fn qcow2(&self, to: &Path) -> anyhow::Result<()> {
        let mut convert = Command::new(tool::find("qemu-img")?);
        convert.args(["convert", "-q", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd"]);
        tool::run(convert.arg(&self.raw).arg(to))
    }
}

fn make_file_system(tree: &Path, disk: &Path) -> anyhow::Result<()> {
    let (blocks, inodes) = needs(tree)?;
    let mut mkfs = Command::new(tool::find("mkfs.ext4")?);
    mkfs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-N"]).arg((inodes + 64).to_string());
    // A tenth more and 64 MiB for tables and the journal.
    tool::run(mkfs.arg("-d").arg(tree).arg(disk).arg((blocks * 11 / 10 + (64 << 8)).to_string()))
}

/// Copies Python, its library with the times that its compiled modules refer to, and the libraries
/// that it needs.
fn gather_python(tree: &Path) -> anyhow::Result<()> {
    ensure!(Path::new(PYTHON).exists(), "{PYTHON} is not installed; --data DIR names a system that has it");
    fs::create_dir_all(tree.join("usr"))?;
    for name in ["bin", "sbin", "lib", "lib64"] {
        let at = Path::new("/").join(name);
        if let Ok(target) = fs::read_link(&at) {
            fs::create_dir_all(tree.join(&target))?;
            std::os::unix::fs::symlink(target, tree.join(name))?;
        }
    }
    let said = Command::new(PYTHON).args(["-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]).output()?;
    let library = String::from_utf8(said.stdout).context("Python's library")?;
    let needed = Command::new("ldd").arg(PYTHON).output().context("cannot start ldd")?;
    let needed = String::from_utf8(needed.stdout).context("the libraries of Python")?;
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain([PYTHON]) {
        let to = tree.join(&file[1..]);
        fs::create_dir_all(to.parent().context("no folder")?)?;
        tool::run(Command::new("cp").args(["-L", "-p"]).arg(file).arg(to))?;
    }
    tool::run(Command::new("cp").args(["-a", "--parents", "-t"]).arg(tree).arg(library.trim()))
}
