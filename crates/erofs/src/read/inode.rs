//! An inode, checked.

use super::image::Image;
use super::superblock::Superblock;
use crate::error::{Error, Result};
use crate::format::{
    DataLayout, I_ALL, I_DOT_OMITTED, I_EXTENDED, I_NLINK_1, IN_BOX, InodeCompact, InodeExtended, NULL_ADDR,
    NULL_ADDR_48BIT, XattrHeader, mode,
};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// Returns the kind that the type bits of `mode` encode.
    pub fn from_mode(mode: u16) -> Option<Self> {
        Some(match u32::from(mode) & mode::FORMAT {
            mode::REGULAR => Self::Regular,
            mode::DIRECTORY => Self::Directory,
            mode::SYMLINK => Self::Symlink,
            mode::CHARACTER => Self::CharDevice,
            mode::BLOCK => Self::BlockDevice,
            mode::FIFO => Self::Fifo,
            mode::SOCKET => Self::Socket,
            _ => return None,
        })
    }
}

/// One inode of an [`Image`].
#[derive(Clone, Debug)]
pub struct Inode {
    /// Its number, which encodes its place in the image.
    pub nid: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    /// The link count.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size of the content in bytes.
    pub size: u64,
    /// Modification time: seconds since the epoch.
    pub mtime_s: i64,
    /// The nanoseconds of the modification time.
    pub mtime_nsec: u32,
    /// How its data is laid out.
    pub layout: DataLayout,
    /// The word whose meaning depends on the layout: a block address, a device number, a chunk
    /// format or a block count; at most 48 bits.
    pub(crate) raw: u64,
    /// No content is stored because all of it is zeros.
    pub(crate) is_hole: bool,
    /// A directory without an entry `.`.
    pub(crate) dot_omitted: bool,
    /// Offset in the image or in the metadata box.
    pub(crate) offset: u64,
    /// The end of its xattrs, or of the inode if it has none.
    pub(crate) xattr_end: u64,
    pub(crate) xattr_start: u64,
}

impl Image {
    /// Reads the inode `nid`.
    pub fn inode(&self, nid: u64) -> Result<Inode> {
        Inode::read(self, nid)
    }
}

impl Inode {
    pub(crate) fn read(image: &Image, nid: u64) -> Result<Self> {
        let offset = match image.superblock().inode_offset(nid) {
            Some(offset) if offset < image.end_around(offset) => offset,
            // The image may have been truncated.
            Some(offset) if offset < IN_BOX => return Err(image.ends_before(offset)),
            _ => return Error::corrupt("inode lies outside the image", image.superblock().meta_offset),
        };
        // One read covers both sizes. A compact inode may be at the very end of the image.
        let mut bytes = [0; InodeExtended::SIZE];
        let there = (image.end_around(offset) - offset).min(InodeExtended::SIZE as u64) as usize;
        image.read_meta(&mut bytes[..there], offset)?;
        let i_format = u16::from_le_bytes([bytes[0], bytes[1]]);
        if i_format & !I_ALL != 0 {
            return Err(Error::Unsupported(format!("inode format {i_format:#x} of nid {nid}")));
        }
        let Some(layout) = DataLayout::decode(i_format) else {
            return Err(Error::Unsupported(format!("data layout {} of nid {nid}", i_format >> 1)));
        };
        let extended = i_format & I_EXTENDED != 0;
        let size_on_disk = if extended { InodeExtended::SIZE } else { InodeCompact::SIZE };
        if there < size_on_disk {
            return Error::corrupt("inode ends after the image", offset);
        }
        let size_on_disk = size_on_disk as u64;
        let superblock = image.superblock();
        let kind_of =
            |mode| FileKind::from_mode(mode).map_or_else(|| Error::corrupt("inode has no known file type", offset), Ok);
        let xattr_bytes = |icount: u16| match icount {
            0 => 0,
            n => XattrHeader::SIZE as u64 + 4 * (u64::from(n) - 1),
        };
        let xattr_start = offset + size_on_disk;
        let with_high = |low: u32, high: u16| u64::from(high) << 32 | u64::from(low);
        let dot_omitted = |kind| kind == FileKind::Directory && i_format & I_DOT_OMITTED != 0;
        let is_hole = |word, null| layout == DataLayout::FlatPlain && word == null;
        let inode = if extended {
            let raw = InodeExtended::decode(&bytes);
            let kind = kind_of(raw.i_mode)?;
            let word = with_high(raw.i_u, raw.i_nb);
            Self {
                nid,
                kind,
                mode: raw.i_mode,
                nlink: raw.i_nlink,
                uid: raw.i_uid,
                gid: raw.i_gid,
                size: raw.i_size,
                mtime_s: raw.i_mtime.cast_signed(),
                mtime_nsec: raw.i_mtime_nsec,
                layout,
                raw: word,
                is_hole: is_hole(word, NULL_ADDR_48BIT),
                dot_omitted: dot_omitted(kind),
                offset,
                xattr_start,
                xattr_end: xattr_start + xattr_bytes(raw.i_xattr_icount),
            }
        } else {
            let mut short = [0; InodeCompact::SIZE];
            short.copy_from_slice(&bytes[..InodeCompact::SIZE]);
            let raw = InodeCompact::decode(&short);
            let kind = kind_of(raw.i_mode)?;
            let (nlink, high, null) = if kind != FileKind::Directory && i_format & I_NLINK_1 != 0 {
                (1, raw.i_nb, NULL_ADDR_48BIT)
            } else {
                (raw.i_nb, 0, u64::from(NULL_ADDR))
            };
            let word = with_high(raw.i_u, high);
            Self {
                nid,
                kind,
                mode: raw.i_mode,
                nlink: u32::from(nlink),
                uid: u32::from(raw.i_uid),
                gid: u32::from(raw.i_gid),
                size: u64::from(raw.i_size),
                mtime_s: superblock.epoch_s.wrapping_add(u64::from(raw.i_mtime)).cast_signed(),
                mtime_nsec: superblock.build_time_nsec,
                layout,
                raw: word,
                is_hole: is_hole(word, null),
                dot_omitted: dot_omitted(kind),
                offset,
                xattr_start,
                xattr_end: xattr_start + xattr_bytes(raw.i_xattr_icount),
            }
        };
        inode.check(image)?;
        Ok(inode)
    }

    fn check(&self, image: &Image) -> Result<()> {
        if self.xattr_end > image.end_around(self.offset) {
            return Error::corrupt("inode ends after the image", self.offset);
        }
        if self.mtime_nsec >= 1_000_000_000 {
            return Error::corrupt("modification time has too many nanoseconds", self.offset);
        }
        // `st_size` is signed.
        if self.size > i64::MAX as u64 {
            return Error::corrupt("file size exceeds the maximum", self.offset);
        }
        match (self.kind, self.layout) {
            (FileKind::Regular, _) => {}
            (FileKind::Directory | FileKind::Symlink, DataLayout::CompressedFull | DataLayout::CompressedCompact) => {
                return Error::corrupt("directory or symbolic link is compressed", self.offset);
            }
            (FileKind::Symlink, _) if self.size == 0 || self.size > 4095 => {
                return Error::corrupt("symbolic link is empty or longer than a path", self.offset);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the major and minor number of a device file.
    pub fn device(&self) -> Option<(u32, u32)> {
        let raw = self.raw as u32;
        matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice)
            .then_some(((raw & 0xfff00) >> 8, (raw & 0xff) | (raw >> 12 & 0xfff00)))
    }

    /// Returns the permission, set-id and sticky bits.
    pub fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// Returns the number of blocks that hold the content. For a compressed file, this is the
    /// inode's own count. An inline tail counts as a block, and so do holes.
    pub fn stored_blocks(&self, superblock: &Superblock) -> u64 {
        if self.is_compressed() { self.raw } else { self.size.div_ceil(superblock.block_bytes()) }
    }

    pub(crate) fn is_compressed(&self) -> bool {
        matches!(self.layout, DataLayout::CompressedFull | DataLayout::CompressedCompact)
    }
}
