//! What a guest does with a disk that it gets over NBD: it mounts the file system and runs programs
//! from it. `nbdfuse` and a loop device without a cache stand for the guest's block device.

use std::{
    fs,
    io::Read,
    ops::Range,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};
use pagefold_report::tool;
use tempfile::TempDir;

use crate::{loop_device::LoopDevice, nbdfuse::DiskFile, server::Server};

/// The program that the guest runs.
const PROGRAM: [&str; 3] = ["/usr/bin/python3", "-c", "print('ready')"];

/// A mounted disk, unmounted on drop.
pub(super) struct Guest {
    root: TempDir,
    is_mounted: bool,
    /// Dropped after the mount, which uses it.
    device: LoopDevice,
    /// Dropped after the device, which uses it.
    _disk: DiskFile,
}

/// Checks whether this machine can be such a guest.
pub(super) fn is_possible() -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "mounting needs root");
    ensure!(Path::new("/dev/fuse").exists(), "this kernel has no FUSE");
    ensure!(Path::new("/dev/loop-control").exists(), "this kernel has no loop devices");
    ["nbdfuse", "fusermount3", "mkfs.ext4", "chroot"].iter().try_for_each(|program| tool::find(program).map(drop))
}

impl Guest {
    /// Mounts the ext4 file system of an export.
    pub(super) fn start(uri: &str) -> anyhow::Result<Self> {
        let disk = DiskFile::new(uri)?;
        let device = LoopDevice::new(&disk.path())?;
        let mut guest = Self { root: TempDir::new()?, is_mounted: false, device, _disk: disk };
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4"]).arg(guest.device.path()).arg(guest.root.path());
        tool::run(&mut mount)?;
        guest.is_mounted = true;
        Ok(guest)
    }

    /// Runs Python until its first output.
    pub(super) fn python(&self) -> anyhow::Result<()> {
        let mut chroot = Command::new(tool::find("chroot")?);
        chroot.arg(self.root.path()).args(PROGRAM).env_clear().stdout(Stdio::piped());
        let mut child = chroot.spawn()?;
        let mut first = [0; 5];
        let output = child.stdout.as_mut().context("no output")?.read_exact(&mut first);
        let status = child.wait()?;
        ensure!(output.is_ok() && first == *b"ready", "Python does not run in the guest: {status}");
        Ok(())
    }

    /// Reads all names and their metadata. Returns how many there are.
    pub(super) fn scan(&self) -> anyhow::Result<usize> {
        scan(self.root.path())
    }
}

fn scan(folder: &Path) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        count += 1;
        if entry.metadata()?.is_dir() {
            count += scan(&entry.path())?;
        }
    }
    Ok(count)
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The mount is busy for a moment if a program of the guest or of this machine still reads
        // it.
        if self.is_mounted {
            (0..100).any(|_| succeeds(Command::new("umount").arg(self.root.path())) || pause());
        }
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn pause() -> bool {
    thread::sleep(Duration::from_millis(50));
    false
}

/// Returns the parts of a raw disk that a guest reads, in order.
pub(super) fn reads(raw: &Path, work: impl FnOnce(&Guest) -> anyhow::Result<()>) -> anyhow::Result<Vec<Range<u64>>> {
    let folder = TempDir::new()?;
    let log: PathBuf = folder.path().join("log");
    let files = folder.path().join("files");
    fs::DirBuilder::new().mode(0o700).create(&files)?;
    let (file, logfile) = (format!("file={}", raw.display()), format!("logfile={}", log.display()));
    let args = ["--filter=log", "--filter=cow", "file", &file, &logfile];
    let server = Server::nbdkit(&tool::find("nbdkit")?, &args, &files)?;
    let guest = Guest::start(&server.uri(""))?;
    work(&guest)?;
    drop(guest);
    drop(server);
    let text = fs::read_to_string(&log).context("nbdkit wrote no log")?;
    let reads: Vec<_> = text.lines().filter_map(read_of).collect();
    ensure!(!reads.is_empty(), "nbdkit's log has no reads");
    Ok(reads)
}

/// Parses a line such as `… connection=1 Read id=5 offset=0x400 count=0x200 ...`.
fn read_of(line: &str) -> Option<Range<u64>> {
    let (_, rest) = line.split_once(" Read ")?;
    let number = |name: &str| {
        let word = rest.split_whitespace().find_map(|word| word.strip_prefix(name))?;
        u64::from_str_radix(word.trim_end_matches('.').strip_prefix("0x")?, 16).ok()
    };
    let (offset, count) = (number("offset=")?, number("count=")?);
    Some(offset..offset.checked_add(count)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_a_log() {
        let line = "2026-01-01 00:00:00.000000 connection=1 Read id=7 offset=0x1400 count=0x200 ...";
        assert_eq!(read_of(line), Some(0x1400..0x1600));
        assert_eq!(read_of("2026-01-01 00:00:00.000000 connection=1 ...Read id=7 return=0 (Success)"), None);
        assert_eq!(read_of("… Write id=1 offset=0x0 count=0x200 ..."), None);
    }
}
