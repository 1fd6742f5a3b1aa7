//! The disks that are read, raw, packed and as peers store them: an ext4 disk with the files of a
//! system that has Python, and one with many files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::ensure;
use pagefold_kinds::trees;
use pagefold_report::tool;

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
        tool::run(&mut trees::ext4(&tool::find("mkfs.ext4")?, tree, &disk.raw, &[])?)?;
        let mut command = Command::new(pack.pagefold);
        command.args(["pack", "--codec", pack.codec]);
        tool::run(command.arg(&disk.raw).arg("-o").arg(&disk.packed))?;
        Ok(disk)
    }

    /// Makes a disk with Python: of `root`, or of this system's files, about `mib` MiB of them.
    pub(super) fn with_python(root: Option<&Path>, mib: u64, pack: &Packing<'_>) -> anyhow::Result<Self> {
        if let Some(root) = root {
            ensure!(
                fs::symlink_metadata(root.join(&trees::PYTHON[1..])).is_ok(),
                "{} has no {}",
                root.display(),
                trees::PYTHON
            );
            return Self::of(root, "python", pack);
        }
        let tree = pack.folder.join("tree");
        trees::python(&tree)?;
        let (blocks, _) = trees::needs(&tree)?;
        let rest = mib.saturating_sub(blocks >> 8);
        trees::copied(
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
        trees::many_files(files, &tree)?;
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
