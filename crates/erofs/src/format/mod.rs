//! The complete on-disk format: structures, constants and the packing of compacted indexes, with
//! encoding and decoding side by side.
//!
//! Sources: the kernel's `Documentation/filesystems/erofs.rst` and the definitions in
//! `fs/erofs/erofs_fs.h`. All numbers are little-endian.
//!
//! ```text
//! | 1024 bytes | superblock | codec configurations | inodes, xattrs, directories, data, in any order ... |
//!
//! inode at 32 * nid + meta_blkaddr * block:
//! | inode (32 or 64) | xattrs | -> 8 | map header, indexes (compressed) or chunks | inline tail |
//! ```

mod devices;
mod directory;
mod extents;
mod indexes;
mod inode;
mod structs;
mod superblock;
mod xattrs;

pub use self::inode::DataLayout;
pub use self::xattrs::Xattr;
pub(crate) use self::{
    devices::*, directory::*, extents::*, indexes::*, inode::*, structs::*, superblock::*, xattrs::*,
};

pub(crate) const fn align(offset: u64, to: u64) -> u64 {
    offset.next_multiple_of(to)
}
