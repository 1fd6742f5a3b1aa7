//! Images that are mounted while they are read.

use std::{ffi::OsStr, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use super::process;

/// A mounted image, unmounted on drop.
pub(crate) struct Mounted {
    at: TempDir,
    unmount: &'static [&'static str],
}

impl Mounted {
    /// Mounts a file read-only with the kernel's `file_system` over a loop device, which needs
    /// root.
    pub(crate) fn kernel(image: &Path, file_system: &str) -> anyhow::Result<Self> {
        Self::kernel_with(image, file_system, "loop,ro")
    }

    /// Mounts it writable.
    pub(crate) fn kernel_writable(image: &Path, file_system: &str) -> anyhow::Result<Self> {
        Self::kernel_with(image, file_system, "loop")
    }

    fn kernel_with(image: &Path, file_system: &str, options: &str) -> anyhow::Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "mounting needs root");
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        ensure!(known.split_whitespace().any(|name| name == file_system), "the kernel has no {file_system}");
        let at = TempDir::new()?;
        let mut command = Command::new("mount");
        command.args(["-t", file_system, "-o", options]).arg(image).arg(at.path());
        process::run(&mut command, 0)?;
        Ok(Self { at, unmount: &["umount"] })
    }

    /// Runs a program that mounts `image` over FUSE and moves to the background.
    pub(super) fn fuse(program: &Path, arguments: &[&str], image: &Path) -> anyhow::Result<Self> {
        let at = TempDir::new()?;
        let mut command = Command::new(program);
        process::run(command.args(arguments).arg(image).arg(at.path()), 0)?;
        let unmount: &[_] = if rustix::process::geteuid().is_root() { &["umount"] } else { &["fusermount3", "-u"] };
        let mounted = Self { at, unmount };
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("no list of mounts")?;
        let here = mounted.path().to_string_lossy().into_owned();
        let found = mounts.lines().any(|line| line.split(' ').nth(1).map(OsStr::new) == Some(OsStr::new(&here)));
        ensure!(found, "{} ended and nothing is mounted", program.display());
        Ok(mounted)
    }

    pub(crate) fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Another program may still use a fresh mount for a moment.
        for _ in 0..20 {
            let status = Command::new(self.unmount[0]).args(&self.unmount[1..]).arg(self.at.path()).status();
            if status.is_ok_and(|status| status.success()) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} could not be unmounted", self.at.path().display());
    }
}
