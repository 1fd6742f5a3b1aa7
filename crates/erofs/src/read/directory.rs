//! Directories: blocks of sorted entries.

use std::ops::ControlFlow;

use super::image::Image;
use super::inode::{FileKind, Inode};
use crate::cache::{Content, Kept};
use crate::error::{Error, Result};
use crate::format::{Dirent, NAME_LEN, file_type};

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes, none of them `/` or NUL. `.` and `..` are entries too, wherever
    /// the image stores them.
    pub name: Vec<u8>,
    /// The inode that the entry refers to.
    pub nid: u64,
    /// The file type that the entry claims (`FT_*`); 0 is unknown.
    pub file_type: u8,
}

impl DirEntry {
    /// Returns the kind of file that the entry claims; `None` if the type is unspecified or
    /// unknown.
    pub fn kind(&self) -> Option<FileKind> {
        Some(match self.file_type {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::CharDevice,
            4 => FileKind::BlockDevice,
            5 => FileKind::Fifo,
            6 => FileKind::Socket,
            7 => FileKind::Symlink,
            _ => return None,
        })
    }
}

/// The overhead of a cached block, in bytes.
const KEPT_BYTES: usize = 128;

/// The low bits of a directory position number an entry in its block; the high bits number the
/// block.
const ENTRY_BITS: u32 = 16;

/// The entries of a directory block, checked as they are read.
pub(crate) struct DirBlock<'a> {
    bytes: &'a [u8],
    /// The offset that errors report.
    offset: u64,
    count: usize,
}

impl<'a> DirBlock<'a> {
    pub(crate) fn new(bytes: &'a [u8], offset: u64) -> Result<Self> {
        let Some(first) = bytes.first_chunk() else {
            return Error::corrupt("directory block is shorter than an entry", offset);
        };
        let first = usize::from(Dirent::decode(first).nameoff);
        if first < Dirent::SIZE || first > bytes.len() || first % Dirent::SIZE != 0 {
            return Error::corrupt("directory block has a bad first name", offset);
        }
        Ok(Self { bytes, offset, count: first / Dirent::SIZE })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    fn dirent(&self, index: usize) -> Option<Dirent> {
        self.bytes.get(index * Dirent::SIZE..)?.first_chunk().map(Dirent::decode)
    }

    pub(crate) fn entry(&self, index: usize) -> Result<(&'a [u8], Dirent)> {
        let at = self.offset + (index * Dirent::SIZE) as u64;
        let Some(dirent) = self.dirent(index) else {
            return Error::corrupt("directory entry lies outside its block", at);
        };
        let start = usize::from(dirent.nameoff);
        let last = index + 1 == self.count;
        let end =
            if last { self.bytes.len() } else { self.dirent(index + 1).map_or(0, |next| usize::from(next.nameoff)) };
        let Some(mut name) = self.bytes.get(start..end).filter(|_| start >= self.count * Dirent::SIZE) else {
            return Error::corrupt("file name lies outside its directory block", at);
        };
        if last {
            name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        }
        if name.is_empty() || name.len() > NAME_LEN || name.contains(&0) || name.contains(&b'/') {
            return Error::corrupt("file name is empty, too long, or holds a slash or NUL", at);
        }
        Ok((name, dirent))
    }
}

impl Image {
    /// Calls `each` with every entry of a directory in order, including `.` and `..`. Checks that
    /// the names ascend, so none occurs twice. If the image omits `.`, it comes last. Memory use is
    /// one block.
    pub fn for_each_entry(&self, directory: &Inode, mut each: impl FnMut(DirEntry) -> Result<()>) -> Result<()> {
        let mut failed = None;
        self.for_each_entry_from(directory, 0, |entry, _| match each(entry) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Calls `each` with every entry of a directory from `position` on and the position after it,
    /// until `each` breaks. The first position is 0. A position that no call returned is not an
    /// error: it is before some entry or after the last. Seeking costs one block read.
    pub fn for_each_entry_from(
        &self,
        directory: &Inode,
        position: u64,
        mut each: impl FnMut(DirEntry, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut last_name: Vec<u8> = Vec::new();
        let mut first = (position & ((1 << ENTRY_BITS) - 1)) as usize;
        let blocks = self.dir_blocks(directory)?;
        for number in position >> ENTRY_BITS..blocks {
            let offset = directory.offset;
            let block = self.dir_block(directory, number)?;
            let entries = DirBlock::new(&block, offset)?;
            for index in first..entries.count() {
                let (name, dirent) = entries.entry(index)?;
                if name <= last_name.as_slice() {
                    return Error::corrupt("directory entries are not in order", offset);
                }
                last_name.clear();
                last_name.extend_from_slice(name);
                let entry = DirEntry { name: name.to_vec(), nid: dirent.nid, file_type: dirent.file_type };
                if each(entry, number << ENTRY_BITS | (index + 1) as u64).is_break() {
                    return Ok(());
                }
            }
            first = 0;
        }
        let end = blocks << ENTRY_BITS;
        if directory.dot_omitted && position <= end {
            let file_type = file_type::from_mode(directory.mode);
            let _ = each(DirEntry { name: b".".to_vec(), nid: directory.nid, file_type }, end + 1);
        }
        Ok(())
    }

    /// Returns all entries of a directory except `.` and `..`, in order.
    pub fn read_dir(&self, directory: &Inode) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.for_each_entry(directory, |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push(entry);
            }
            Ok(())
        })?;
        Ok(entries)
    }

    /// Looks up `name` in a directory by binary search, first over the blocks, then within one.
    /// Returns its inode number.
    pub fn lookup(&self, directory: &Inode, name: &[u8]) -> Result<Option<u64>> {
        let offset = directory.offset;
        let (mut low, mut high) = (0, self.dir_blocks(directory)?);
        while low < high {
            let middle = low + (high - low) / 2;
            let block = self.dir_block(directory, middle)?;
            let entries = DirBlock::new(&block, offset)?;
            if name < entries.entry(0)?.0 {
                high = middle;
                continue;
            }
            if name > entries.entry(entries.count() - 1)?.0 {
                low = middle + 1;
                continue;
            }
            let (mut first, mut end) = (0, entries.count());
            while first < end {
                let middle = first + (end - first) / 2;
                let (candidate, dirent) = entries.entry(middle)?;
                match candidate.cmp(name) {
                    std::cmp::Ordering::Equal => return Ok(Some(dirent.nid)),
                    std::cmp::Ordering::Less => first = middle + 1,
                    std::cmp::Ordering::Greater => end = middle,
                }
            }
            break;
        }
        Ok((directory.dot_omitted && name == b".").then_some(directory.nid))
    }

    /// Reads a block of a directory through the cache.
    fn dir_block(&self, directory: &Inode, number: u64) -> Result<Kept<Content>> {
        let block_bytes = self.superblock().block_bytes();
        let at = number * block_bytes;
        let len = (directory.size - at).min(block_bytes) as usize;
        self.names().get((directory.nid, number), len + KEPT_BYTES, || {
            let mut content = self.buffers().take_kept(len);
            self.read_exact_at(directory, &mut content.room()[..len], at)?;
            Ok(content)
        })
    }

    fn dir_blocks(&self, directory: &Inode) -> Result<u64> {
        if directory.kind != FileKind::Directory {
            return Err(Error::NotA("directory"));
        }
        // Directory blocks are never holes, so the image's size bounds the directory's.
        if directory.size > self.len_bytes() {
            return Error::corrupt("directory is larger than the image", directory.offset);
        }
        Ok(directory.size.div_ceil(self.superblock().block_bytes()))
    }
}
