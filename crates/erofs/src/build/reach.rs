//! Paths longer than one system call accepts.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The part of a path to pass at a time, in bytes. The system accepts 4095, which leaves room for
/// the name of an open directory before it and a file name after it.
pub(super) const MOST_BYTES: usize = 3800;

/// The flags for opening directories on the way.
pub(super) const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A path through which a file and files next to it are reachable while this value exists.
pub(crate) struct Reached {
    path: PathBuf,
    _anchor: Option<Arc<OwnedFd>>,
    _directory: Option<Arc<OwnedFd>>,
}

impl AsRef<Path> for Reached {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Reached {
    /// Walks along a path in steps, keeping one directory open. The path is relative to the
    /// directory `anchor`, if that is given. The remaining path is relative to the last step.
    pub(super) fn new(anchor: Option<Arc<OwnedFd>>, path: &Path) -> io::Result<Self> {
        let mut directory: Option<OwnedFd> = None;
        let mut rest = path.as_os_str().as_bytes();
        let start = anchor.as_deref();
        while rest.len() > MOST_BYTES {
            let slash = rest[..MOST_BYTES].iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0);
            let (step, behind) = rest.split_at(slash.ok_or(rustix::io::Errno::NAMETOOLONG)?);
            directory = Some(match directory.as_ref().or(start) {
                Some(directory) => openat(directory, step, STEP, Mode::empty())?,
                None => openat(CWD, step, STEP, Mode::empty())?,
            });
            rest = &behind[behind.iter().take_while(|byte| **byte == b'/').count()..];
        }
        let mut path = directory
            .as_ref()
            .or(start)
            .map_or_else(PathBuf::new, |directory| PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())));
        if !rest.is_empty() {
            path.push(OsStr::from_bytes(rest));
        }
        Ok(Self { path, _anchor: anchor, _directory: directory.map(Arc::new) })
    }

    /// Returns an open directory.
    pub(super) fn directory(directory: Arc<OwnedFd>) -> Self {
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Self { path, _anchor: None, _directory: Some(directory) }
    }

    /// Opens the directory itself, to reach what is below it.
    pub(super) fn open_directory(&self) -> io::Result<OwnedFd> {
        Ok(openat(CWD, &self.path, STEP, Mode::empty())?)
    }
}
