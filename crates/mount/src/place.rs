//! Where a file system is mounted.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::table::{Mounted, mounts_at};

/// A mount in the system's mount table.
#[derive(Clone, Debug)]
pub(crate) struct MountPoint {
    pub(crate) at: PathBuf,
    pub(crate) id: Option<u64>,
    /// The file system's device number.
    pub(crate) device: Option<String>,
}

impl MountPoint {
    /// Finds the mount of the file system `device` on `at`, without a request to it.
    pub(crate) fn find(at: &Path, device: &str) -> io::Result<Self> {
        let is_it = |mounted: &Mounted| mounted.is_fuse() && mounted.device == device;
        let Some(found) = mounts_at(at)?.into_iter().rfind(is_it) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "this process sees another file system there"));
        };
        Ok(Self { at: at.to_owned(), id: Some(found.id), device: Some(found.device) })
    }

    /// Opens the mount's directory as a path (`O_PATH`), without a request to the mount.
    ///
    /// # Errors
    /// Something else is mounted there, or on top of it.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let directory = open(&self.at, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let state = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd()))?;
        let id = state.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok());
        if id.is_none() || id != self.id {
            return Err(io::Error::new(io::ErrorKind::NotFound, "something else is mounted there"));
        }
        Ok(directory)
    }

    pub(crate) fn unmount(&self) -> io::Result<()> {
        let mounts = mounts_at(&self.at)?;
        if !mounts.iter().any(|mounted| Some(mounted.id) == self.id) {
            return Ok(());
        }
        if mounts.last().map(|mounted| mounted.id) != self.id {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "something else is mounted on top of it"));
        }
        unmount_topmost(&self.at)
    }
}

/// Unmounts the topmost mount on a directory, lazily if it is busy.
pub(crate) fn unmount_topmost(at: &Path) -> io::Result<()> {
    match unmount(at, UnmountFlags::empty()) {
        Err(Errno::BUSY) => Ok(unmount(at, UnmountFlags::DETACH)?),
        Err(Errno::PERM) => {
            let status = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(at).status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3: {status}"))) }
        }
        result => Ok(result?),
    }
}
