//! The metadata box: inodes and the data that follows them, stored as the content of a file, which
//! may be compressed.
//!
//! ```text
//! offsets of the image:   0 ............................. its length
//! offsets of the box:     IN_BOX + 0 .................... IN_BOX + the file's size
//! ```
//!
//! Code that reads metadata passes offsets of either kind to [`Image::read_meta`]. The box's file
//! is outside the box and is read through an [`Image`] without one, so no image can make this
//! recurse.

use super::content::Data;
use super::image::{Image, MetadataBox};
use super::inode::FileKind;
use crate::cache::{Cache, Content, Kept};
use crate::error::{Error, Result};
use crate::format::IN_BOX;

/// The unit of reading and caching, in bytes.
const AREA_BYTES: u64 = 16 << 10;
/// Bytes of memory for cached areas, then the overhead of one area.
const CACHE_BYTES: usize = 4 << 20;
const KEPT_BYTES: usize = 128;
/// The maximum length of the box relative to the image. It bounds the work of a walk.
const MAX_RATIO: u64 = 64;

/// The box of an image.
pub(crate) struct Metabox {
    data: Data,
    areas: Cache<u64, Content>,
}

impl MetadataBox for Metabox {
    fn len_bytes(&self) -> u64 {
        self.data.inode.size
    }

    fn read(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        while !buf.is_empty() {
            let (number, from) = (at / AREA_BYTES, (at % AREA_BYTES) as usize);
            let area = self.area(number)?;
            let here = (area.len() - from).min(buf.len());
            let (part, rest) = buf.split_at_mut(here);
            part.copy_from_slice(&area[from..from + here]);
            at += here as u64;
            buf = rest;
        }
        Ok(())
    }
}

impl Metabox {
    /// Opens the box stored in file `nid` of an image that is read without a box.
    pub(crate) fn open(image: &Image, nid: u64) -> Result<Self> {
        let inode = image.inode(nid)?;
        if inode.kind != FileKind::Regular {
            return Error::corrupt("metadata box is not a regular file", inode.offset);
        }
        if inode.size > image.len_bytes().saturating_mul(MAX_RATIO).min(IN_BOX) {
            let what = format!("metadata box of {} bytes, {MAX_RATIO} times longer than the image", inode.size);
            return Err(Error::Unsupported(what));
        }
        Ok(Self { data: Data::open(image, &inode)?, areas: Cache::new(CACHE_BYTES) })
    }

    fn area(&self, number: u64) -> Result<Kept<Content>> {
        let start = number * AREA_BYTES;
        let len = (self.data.inode.size - start).min(AREA_BYTES) as usize;
        self.areas.get(number, len + KEPT_BYTES, || {
            let mut content = self.data.image.buffers().take_kept(len);
            let room = &mut content.room()[..len];
            if self.data.map.is_some() {
                // Nearby metadata will be needed too, so decode whole clusters and cache them.
                self.data.read_compressed(room, len, start, true)?;
            } else if self.data.read_at(room, start)? != len {
                return Error::corrupt("metadata box ends before its declared size", self.data.inode.offset);
            }
            Ok(content)
        })
    }
}
