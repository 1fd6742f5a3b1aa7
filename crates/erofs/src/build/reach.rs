//! Paths longer than the system accepts at once.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The part of a path to pass at a time, in bytes. The system accepts 4095, which leaves room for
/// the name of an open directory before it and a file name after it.
const MOST_BYTES: usize = 3800;

/// A path through which a file and files next to it are reachable while this value exists.
pub(crate) struct Reached {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl AsRef<Path> for Reached {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Walks along a long path in steps, keeping one directory open. The remaining path is relative to
/// it.
pub(crate) fn reach(path: &Path) -> io::Result<Reached> {
    let mut directory: Option<OwnedFd> = None;
    let mut rest = path.as_os_str().as_bytes();
    while rest.len() > MOST_BYTES {
        let slash = rest[..MOST_BYTES].iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0);
        let (step, behind) = rest.split_at(slash.ok_or(rustix::io::Errno::NAMETOOLONG)?);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        directory = Some(match &directory {
            Some(directory) => openat(directory, step, flags, Mode::empty())?,
            None => openat(CWD, step, flags, Mode::empty())?,
        });
        rest = &behind[behind.iter().take_while(|byte| **byte == b'/').count()..];
    }
    let mut path = directory
        .as_ref()
        .map_or_else(PathBuf::new, |directory| PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())));
    path.push(OsStr::from_bytes(rest));
    Ok(Reached { path, _directory: directory })
}
