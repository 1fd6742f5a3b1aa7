//! A file's runs from front to back, with what the image says of where they lie.

use crate::error::{Error, Result};
use crate::file::{CHUNKS_READ, Data, File, Run};
use crate::format::DataLayout;
use crate::zmap::{Cursor, Place};

impl File {
    /// Tells `each` the file's runs in order; they cover it exactly, and two of a kind may follow
    /// each other. `each` returns false to hear no more.
    ///
    /// All that the image says of where content lies is read and must be possible; the content
    /// itself is not read.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where it is not: content that lies outside the image, or extents that do not cover the file.
    pub fn runs(&self, each: &mut dyn FnMut(Run) -> bool) -> Result<()> {
        let data = self.data();
        match data.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => data.flat_run(each),
            DataLayout::ChunkBased => data.chunk_runs(each),
            DataLayout::CompressedFull | DataLayout::CompressedCompact => data.extent_runs(each),
        }
    }
}

impl Data {
    fn flat_run(&self, each: &mut dyn FnMut(Run) -> bool) -> Result<()> {
        let inode = &self.inode;
        let inline = inode.layout == DataLayout::FlatInline;
        let tail_bytes = if inline { inode.size % self.block_bytes() } else { 0 };
        let in_blocks = inode.size - tail_bytes;
        if in_blocks > 0 && !inode.is_hole {
            self.image.check_spot(in_blocks, self.image.spot(0, self.block_offset(inode.raw)?)?)?;
        }
        self.image.check_range(tail_bytes, inode.xattr_end)?;
        if inode.size > 0 {
            each(Run { len: inode.size, hole: inode.is_hole });
        }
        Ok(())
    }

    fn chunk_runs(&self, each: &mut dyn FnMut(Run) -> bool) -> Result<()> {
        let (bits, ..) = self.chunk_format()?;
        let size = self.inode.size;
        let mut at = 0;
        while at < size {
            let count = (size - at).div_ceil(1 << bits).min(CHUNKS_READ);
            for spot in self.chunk_addresses(at >> bits, count)? {
                let len = (1u64 << bits).min(size - at);
                if let Some(spot) = spot {
                    self.image.check_spot(len, spot)?;
                }
                if !each(Run { len, hole: spot.is_none() }) {
                    return Ok(());
                }
                at += len;
            }
        }
        Ok(())
    }

    fn extent_runs(&self, each: &mut dyn FnMut(Run) -> bool) -> Result<()> {
        let Some(map) = &self.map else { return Err(Error::NotA("compressed file")) };
        let mut cursor = Cursor::default();
        let mut at = 0;
        while at < self.inode.size {
            let extent = map.extent_at(&self.image, &mut cursor, at)?;
            match extent.place {
                Place::Hole => {}
                Place::Fragment { offset } => self.check_fragment(offset, extent.len)?,
                Place::Plain { pa, .. } => self.image.check_spot(extent.len, self.image.spot(0, pa)?)?,
                Place::Encoded { pa, plen, .. } => self.image.check_spot(plen.into(), self.image.spot(0, pa)?)?,
            }
            if !each(Run { len: extent.end() - at, hole: extent.place == Place::Hole }) {
                return Ok(());
            }
            at = extent.end();
        }
        Ok(())
    }
}
