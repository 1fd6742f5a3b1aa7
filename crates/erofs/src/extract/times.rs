//! Times of extracted files.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Stat, Timespec, Timestamps, fstat, futimens, statat, utimensat};
use rustix::io::Result;

use super::report::LeftOut;
use crate::read::Inode;

/// The seconds that every file system can hold: FAT begins in 1980 of local time, and ext2 ends in
/// 2038.
const HELD_S: Range<i64> = 315_619_200..1 << 31;

/// FAT rounds times down to even seconds.
const COARSEST_S: u64 = 2;

/// Sets the times of an open file, and counts those that the file system has changed.
pub(super) fn set(inode: &Inode, file: BorrowedFd<'_>, left_out: &mut LeftOut) -> Result<()> {
    futimens(file, &times(inode))?;
    look(inode, left_out, || fstat(file));
    Ok(())
}

/// The same by name.
pub(super) fn set_at(inode: &Inode, directory: &OwnedFd, name: &[u8], left_out: &mut LeftOut) -> Result<()> {
    let (name, flags) = (OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW);
    utimensat(directory, name, &times(inode), flags)?;
    look(inode, left_out, || statat(directory, name, flags));
    Ok(())
}

/// Linux sets the nearest time that the file system can hold, without an error.
fn look(inode: &Inode, left_out: &mut LeftOut, stat: impl FnOnce() -> Result<Stat>) {
    if !HELD_S.contains(&inode.mtime_s) && stat().is_ok_and(|stat| stat.st_mtime.abs_diff(inode.mtime_s) >= COARSEST_S)
    {
        left_out.times += 1;
    }
}

fn times(inode: &Inode) -> Timestamps {
    let time = Timespec { tv_sec: inode.mtime_s, tv_nsec: i64::from(inode.mtime_nsec) };
    Timestamps { last_access: time, last_modification: time }
}
