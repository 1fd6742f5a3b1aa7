//! An open file.

use std::ops::Range;
use std::sync::Arc;

use pagefold_codec::cluster::ClusterFormat;

use super::content::Data;
use super::image::Image;
use super::inode::Inode;
use crate::cache::{Buffers, Content, FileId, Segments, room_bytes};
use crate::error::Result;
use crate::format::{Extent, Place};
use crate::readahead::{Ahead, AheadFile};

/// An open file, directory or symbolic link of an [`Image`].
///
/// A file that is read from front to back is decoded ahead, by threads that the process has for it,
/// as long as a processor has nothing else to do.
///
/// A clone is the same file, and reads in order where the other left off.
#[derive(Clone)]
pub struct File {
    data: Arc<Data>,
    ahead: Arc<Ahead>,
}

impl File {
    pub(crate) fn open(image: &Image, inode: &Inode) -> Result<Self> {
        Ok(Self { data: Arc::new(Data::open(image, inode)?), ahead: Arc::default() })
    }

    pub(super) fn data(&self) -> &Data {
        &self.data
    }

    /// The image that the file is in.
    pub(crate) fn image(&self) -> &Image {
        &self.data.image
    }

    /// As [`read_at`](Self::read_at). Nothing is decoded ahead, and `buf` takes no more than what
    /// was read.
    pub(crate) fn read_apart(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.data.read_at(buf, offset)
    }

    /// The extents of a compressed file, from that which has the byte at `range.start` to that
    /// which has the last of `range` or of the file. None of a file that is not compressed.
    pub(crate) fn extents(&self, range: Range<u64>) -> impl Iterator<Item = Result<Extent>> {
        self.data.extents(range)
    }

    /// The file's inode.
    pub fn inode(&self) -> &Inode {
        &self.data.inode
    }

    /// Reads from `offset` into `buf` and returns how many bytes were read: all that fit, up to the
    /// end of the file; 0 from there on. What is behind them in `buf` may be overwritten: content
    /// is decoded in place if there is some room behind it. After an error `buf` holds unspecified
    /// bytes.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_into(buf, buf.len(), offset)
    }

    /// As [`read_at`](Self::read_at), at most `len` bytes. The last cluster too is decoded in place
    /// where `room` has [`room_bytes`](Self::room_bytes).
    pub fn read_into(&self, room: &mut [u8], len: usize, offset: u64) -> Result<usize> {
        let len = self.data.clip(len.min(room.len()), offset);
        if self.data.map.is_none() {
            return self.data.read_at(&mut room[..len], offset);
        }
        self.ahead.read(&self.data, room, len, offset)?;
        Ok(len)
    }

    /// Reads `len` bytes from `offset`, which the file has, to the front of `room`, which is
    /// longer. Nothing is decoded ahead.
    pub(crate) fn read_alone(&self, room: &mut [u8], len: usize, offset: u64) -> Result<()> {
        if self.data.map.is_some() {
            return self.data.read_compressed(room, len, offset, true);
        }
        self.data.read_at(&mut room[..len], offset).map(drop)
    }

    /// What room a read of `len` bytes takes at most.
    pub fn room_bytes(len: usize) -> usize {
        room_bytes(len)
    }

    /// A buffer of at least `len` bytes, which hold anything.
    pub(crate) fn buffer(&self, len: usize) -> Content {
        self.data.image.buffers().take(len)
    }

    /// Makes `bytes` the cluster of the extent of `len` bytes from `offset`. `None`: it is not
    /// compressed, or ends elsewhere.
    pub(crate) fn cluster_of(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> Result<Option<ClusterFormat>> {
        if self.data.map.is_none() {
            return Ok(None);
        }
        let extent = self.data.extent_around(offset)?;
        match extent.place {
            Place::Encoded { pa, plen, format, partial: false }
                if (extent.start, extent.len) == (offset, len as u64) =>
            {
                bytes.resize(plen as usize, 0);
                self.data.image.read_data(bytes, pa)?;
                Ok(Some(format))
            }
            _ => Ok(None),
        }
    }

    /// The bytes from `offset`, which the file has, to the end of the last extent that ends within
    /// `len` bytes of it. If none does, to the end of the one that starts there, at most `most`
    /// bytes; else `len`.
    pub(crate) fn whole_extents(&self, len: usize, most: usize, offset: u64) -> Result<usize> {
        let end = offset + len as u64;
        if self.data.map.is_none() || end >= self.data.inode.size {
            return Ok(len);
        }
        let last = self.data.extent_around(end - 1)?;
        Ok(match (last.start - offset.min(last.start)) as usize {
            0 if last.start == offset && last.len <= most as u64 => last.len as usize,
            before if last.end() > end && before > 0 => before,
            _ => len,
        })
    }
}

impl AheadFile for Data {
    fn id(&self) -> FileId {
        self.image.clusters().file(self.inode.nid)
    }

    fn size_bytes(&self) -> u64 {
        self.inode.size
    }

    fn segments(&self) -> &Segments {
        self.image.segments()
    }

    fn buffers(&self) -> &Buffers {
        self.image.buffers()
    }

    fn extent_around(&self, offset: u64) -> Result<Extent> {
        self.extent_around(offset)
    }

    fn decode(&self, room: &mut [u8], len: usize, offset: u64, forward: bool) -> Result<()> {
        self.read_compressed(room, len, offset, forward)
    }
}

impl Image {
    /// Opens a file, directory or symbolic link for reading.
    pub fn file(&self, inode: &Inode) -> Result<File> {
        File::open(self, inode)
    }
}
