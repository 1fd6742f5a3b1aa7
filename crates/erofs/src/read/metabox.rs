//! The metadata box: inodes and what follows them as the content of a file, which may be
//! compressed.
//!
//! ```text
//! offsets of the image:   0 ............................. its length
//! offsets of the box:     IN_BOX + 0 .................... IN_BOX + the file's size
//! ```
//!
//! Whatever reads metadata has offsets of either kind and gets its bytes from [`Image::read_meta`].
//! The file itself lies outside of the box and is read through an [`Image`] that has no box, so
//! that no image makes this recurse.

use super::content::Data;
use super::image::{Image, MetadataBox};
use super::inode::FileKind;
use crate::cache::{Cache, Content, Kept};
use crate::error::{Error, Result};
use crate::format::IN_BOX;

/// What is read at once, and kept.
const AREA_BYTES: u64 = 16 << 10;
/// Memory for areas, in bytes, and what one takes besides its own.
const CACHE_BYTES: usize = 4 << 20;
const KEPT_BYTES: usize = 128;
/// The longest box, in lengths of the image: what a walk takes is bounded by both.
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
    /// Opens the box whose file is `nid` of an image that is read without it.
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
                // Metadata near by will be wanted too, so that clusters are decoded whole and kept.
                self.data.read_compressed(room, len, start, true)?;
            } else if self.data.read_at(room, start)? != len {
                return Error::corrupt("metadata box ends before it is said to", self.data.inode.offset);
            }
            Ok(content)
        })
    }
}
