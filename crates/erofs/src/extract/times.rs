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

/// Returns whether an existing file may have the time of `inode`: as it is, without nanoseconds, which
/// some file systems do not keep, or as the nearest time that the file system can hold.
pub(super) fn may_be_of(inode: &Inode, existing: &Stat) -> bool {
    let (found, nanoseconds) = (existing.st_mtime, existing.st_mtime_nsec);
    match found == inode.mtime_s {
        true => nanoseconds == 0 || nanoseconds == u64::from(inode.mtime_nsec),
        false => nanoseconds == 0 && may_be_nearest(found, inode.mtime_s),
    }
}

/// Returns whether a file system may have `found` as the nearest time to `wanted`.
fn may_be_nearest(found: i64, wanted: i64) -> bool {
    let before = wanted < HELD_S.start && (wanted..=HELD_S.start).contains(&found);
    let after = wanted >= HELD_S.end && (HELD_S.end - 1..=wanted).contains(&found);
    before || after
}

fn times(inode: &Inode) -> Timestamps {
    let time = Timespec { tv_sec: inode.mtime_s, tv_nsec: i64::from(inode.mtime_nsec) };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_what_file_systems_hold_are_nearest_to_times_beyond() {
        // ext2 and ext4; ext4 with longer inodes; XFS with long times; FAT begins.
        let (first, last) = (i64::from(i32::MIN), i64::from(i32::MAX));
        for (found, wanted) in [
            (first, first - 1),
            (0, -5),
            (315_532_800, 1000),
            (last, 1 << 31),
            (15_032_385_535, 1 << 40),
            (16_299_260_424, i64::MAX),
        ] {
            assert!(may_be_nearest(found, wanted) && !may_be_nearest(wanted, found), "{found} for {wanted}");
        }
        // What every file system holds is exact, and today is not nearest to another time.
        let today = 1_790_000_000;
        assert!([0, 1_780_000_000, 1 << 33].iter().all(|wanted| !may_be_nearest(today, *wanted)));
    }
}
