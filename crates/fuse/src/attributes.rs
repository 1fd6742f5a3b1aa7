//! Converts inodes of an image into FUSE attributes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use pagefold_erofs::{FileKind, Inode, Superblock};

/// Added to nids that FUSE reserves. No nid has this bit: bits 0 to 57 number 32-byte slots of a
/// 63-bit space, and bit 63 selects the space.
const MOVED: u64 = 1 << 62;

/// Returns the inode number for a nid. It is the nid itself, as in the kernel's EROFS, except for
/// the root, which must be 1 in FUSE, and for nids 0 (no such file, in FUSE) and 1.
pub(crate) fn number(root_nid: u64, nid: u64) -> INodeNo {
    INodeNo(match nid {
        root if root == root_nid => INodeNo::ROOT.0,
        0 | 1 => nid + MOVED,
        _ => nid,
    })
}

/// Returns the nid for an inode number.
pub(crate) fn nid(root_nid: u64, number: INodeNo) -> u64 {
    match number {
        INodeNo::ROOT => root_nid,
        INodeNo(moved) if moved & MOVED != 0 => moved - MOVED,
        INodeNo(nid) => nid,
    }
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Converts a time. Times that the system cannot express become the epoch.
fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn of(superblock: &Superblock, inode: &Inode) -> FileAttr {
    let mtime = time(inode.mtime_s, inode.mtime_nsec);
    FileAttr {
        ino: number(superblock.root_nid, inode.nid),
        size: inode.size,
        blocks: inode.stored_blocks(superblock).saturating_mul(superblock.block_bytes() / 512),
        atime: mtime,
        mtime,
        ctime: mtime,
        crtime: mtime,
        kind: file_type(inode.kind),
        perm: inode.permissions(),
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        // The 32-bit encoding of a device number in Linux.
        rdev: inode.device().map_or(0, |(major, minor)| minor & 0xff | major << 8 | (minor & 0xf_ff00) << 12),
        blksize: superblock.block_bytes() as u32,
        flags: 0,
    }
}

/// Returns placeholder attributes for a file whose inode cannot be read. They expire immediately,
/// so the file is listed, but a lookup fails.
pub(crate) fn unknown(root_nid: u64, nid: u64, kind: Option<FileKind>) -> FileAttr {
    FileAttr {
        ino: number(root_nid, nid),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind.unwrap_or(FileKind::Regular)),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 512,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_nids_are_one_to_one() {
        for root in [0, 1, 2, 36] {
            let nids = [0, 1, 2, 36, (1 << 58) - 1, 1 << 63, 1 << 63 | 1, u64::MAX >> 6 | 1 << 63];
            let numbers: Vec<_> = nids.iter().map(|nid| number(root, *nid)).collect();
            for (left, number) in numbers.iter().enumerate() {
                assert_eq!(nid(root, *number), nids[left]);
                assert_ne!(number.0, 0);
                assert!(numbers[..left].iter().all(|other| other != number));
            }
        }
    }

    #[test]
    fn times_before_1970_and_beyond_reason() {
        assert_eq!(time(-1, 250_000_000), UNIX_EPOCH - Duration::from_millis(750));
        assert_eq!(time(1, 5), UNIX_EPOCH + Duration::new(1, 5));
        for seconds in [i64::MIN, i64::MAX] {
            time(seconds, 999_999_999);
        }
    }
}
