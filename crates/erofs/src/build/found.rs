//! The identity of files that a scan has found.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, fstatfs, makedev, openat, statx};
use rustix::io::Errno;

/// The flags for opening a file that another process may have replaced: links are not followed,
/// pipes are not waited for, and terminals do not take over the process.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// `f_type` of file systems that may number a file again when they read it again: FAT, exFAT, FUSE,
/// CIFS and SMB. Another file of the same file system is taken for the one that was found.
const RENUMBERING: [i64; 5] = [0x4d44, 0x2011_bab0, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42];
/// `f_type` of overlayfs, where a file's time of birth changes at its first write.
const OVERLAYFS: i64 = 0x794c_7630;

/// What identifies a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    device: u32,
    /// The lower bits of the nanosecond of its birth, or 0 if that is unknown: numbers of inodes are
    /// used again.
    born: u32,
    inode: u64,
}

impl Found {
    pub(crate) fn of(metadata: &Statx) -> Self {
        let is_born = StatxFlags::from_bits_retain(metadata.stx_mask).contains(StatxFlags::BTIME);
        let born = metadata.stx_btime;
        Self {
            device: device_of(metadata) as u32,
            born: if is_born { (born.tv_sec as u32).wrapping_mul(1_000_000_000).wrapping_add(born.tv_nsec) } else { 0 },
            inode: metadata.stx_ino,
        }
    }

    /// Opens the regular file at `path` below `directory` to read it, if it is this one.
    ///
    /// # Errors
    /// An error that [`is_replaced`] recognizes, if something else is there.
    pub(super) fn open(&self, directory: impl AsFd, path: &Path) -> io::Result<File> {
        let file = match openat(&directory, path, READ, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::LOOP | Errno::NXIO) => return Err(replaced()),
            // Another process holds a lease. To wait for it is safe after the file was identified.
            Err(Errno::AGAIN) => {
                let file = openat(&directory, path, READ | OFlags::PATH, Mode::empty())?;
                self.expect(&file, FileType::RegularFile)?;
                return File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            }
            Err(error) => return Err(error.into()),
        };
        self.expect(&file, FileType::RegularFile)?;
        Ok(file)
    }

    /// Checks that an open file is this one.
    pub(super) fn expect(&self, file: impl AsFd, kind: FileType) -> io::Result<()> {
        let metadata = metadata_at(&file, Path::new(""), AtFlags::EMPTY_PATH)?;
        let there = Self::of(&metadata);
        let is_kind = kind_of(&metadata) == kind;
        if is_kind && (there == *self || self.is_renamed(&there, &file)?) { Ok(()) } else { Err(replaced()) }
    }

    /// Returns whether the file system itself may have changed what identifies the file.
    fn is_renamed(&self, there: &Self, file: impl AsFd) -> io::Result<bool> {
        if there.device != self.device {
            return Ok(false);
        }
        let system = fstatfs(file)?.f_type as i64;
        Ok(RENUMBERING.contains(&system) || system == OVERLAYFS && there.inode == self.inode)
    }
}

/// Reads what identifies and describes a file.
pub(super) fn metadata_at(directory: impl AsFd, path: &Path, flags: AtFlags) -> io::Result<Statx> {
    Ok(statx(directory, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?)
}

/// Reads what identifies and describes the file to which a path leads.
pub(super) fn metadata(path: &Path) -> io::Result<Statx> {
    metadata_at(CWD, path, AtFlags::empty())
}

pub(super) fn device_of(metadata: &Statx) -> u64 {
    makedev(metadata.stx_dev_major, metadata.stx_dev_minor)
}

pub(super) fn kind_of(metadata: &Statx) -> FileType {
    FileType::from_raw_mode(metadata.stx_mode.into())
}

/// The error of a file that was replaced after the scan.
#[derive(Debug, thiserror::Error)]
#[error("was replaced while it was packed")]
struct Replaced;

fn replaced() -> io::Error {
    io::Error::other(Replaced)
}

pub(super) fn is_replaced(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Replaced>())
}
