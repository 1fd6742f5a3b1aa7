//! Paths that are longer than the system takes at once.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// What the system gets at a time. It takes 4095 bytes: there is room for the name of an open
/// directory before them, and for a file's name behind.
const MOST_BYTES: usize = 3800;

/// A path by which the system reaches a file, and its directory's files, while this value lives.
pub(crate) struct Reached {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl AsRef<Path> for Reached {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// A long path is gone along in steps, with one directory open; its end is then named from there.
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
