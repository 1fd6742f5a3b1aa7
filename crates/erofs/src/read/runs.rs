//! A file's runs in order, as the image maps them.

use std::ops::Range;

use super::content::{CHUNKS_READ, Data};
use super::file::File;
use super::zmap::CompressedMap;
use crate::error::Result;
use crate::format::{DataLayout, Place};

/// A run of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The length in bytes, at least 1.
    pub len: u64,
    /// Whether the run is not stored and reads as zeros.
    pub hole: bool,
}

impl File {
    /// Returns the run at `offset`, which must be less than the file's size, so that a reader can
    /// skip zeros.
    pub fn run_at(&self, offset: u64) -> Result<Run> {
        self.data().run_at(offset)
    }

    /// Calls `each` with the file's runs in order. They cover the file exactly; adjacent runs may
    /// be of the same kind. Stops when `each` returns false.
    ///
    /// Reads and validates the whole mapping, but not the content.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the mapping is invalid: content outside the image,
    /// or extents that do not cover the file.
    pub fn runs(&self, each: &mut dyn FnMut(Run) -> bool) -> Result<()> {
        let data = self.data();
        match data.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => data.flat_run(each),
            DataLayout::ChunkBased => data.chunk_runs(each),
            DataLayout::CompressedFull | DataLayout::CompressedCompact => data.extent_runs(each),
        }
    }

    /// Calls `each` with the ranges that are not holes, within `range` and in order; adjacent ones
    /// are joined. Reads nothing if the file cannot have holes.
    pub(crate) fn stored(&self, range: Range<u64>, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        let data = self.data();
        let range = range.start..range.end.min(data.inode.size);
        let mut joined: Option<Range<u64>> = None;
        let mut add = |part: Range<u64>, hole: bool| match &mut joined {
            _ if hole => {}
            Some(before) if before.end == part.start => before.end = part.end,
            before => {
                if let Some(before) = before.replace(part) {
                    each(before);
                }
            }
        };
        if data.map.as_ref().is_some_and(CompressedMap::may_have_holes) {
            for extent in data.extents(range.clone()) {
                let extent = extent?;
                let part = extent.start.max(range.start)..extent.end().min(range.end);
                add(part, extent.place == Place::Hole);
            }
        } else {
            let mut at = range.start;
            while at < range.end {
                let run = data.run_at(at)?;
                let end = (at + run.len).min(range.end);
                add(at..end, run.hole);
                at = end;
            }
        }
        joined.into_iter().for_each(each);
        Ok(())
    }
}

impl Data {
    /// As [`File::run_at`].
    fn run_at(&self, offset: u64) -> Result<Run> {
        let left = self.inode.size - offset;
        if self.inode.layout != DataLayout::ChunkBased {
            return match &self.map {
                Some(map) if map.may_have_holes() => {
                    let extent = self.extent_around(offset)?;
                    let hole = extent.place == Place::Hole;
                    Ok(Run { len: if hole { extent.end() - offset } else { left }, hole })
                }
                _ => Ok(Run { len: left, hole: self.inode.is_hole }),
            };
        }
        let (bits, ..) = self.chunk_format()?;
        let first = offset >> bits;
        let hole = self.chunk_addresses(first, 1)?[0].is_none();
        let mut end = first + 1;
        if hole {
            let count = (self.inode.size.div_ceil(1 << bits) - end).min(CHUNKS_READ);
            let others = self.chunk_addresses(end, count)?;
            end += others.iter().take_while(|spot| spot.is_none()).count() as u64;
        }
        Ok(Run { len: ((end << bits) - offset).min(left), hole })
    }

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
        for extent in self.extents(0..self.inode.size) {
            let extent = extent?;
            match extent.place {
                Place::Hole => {}
                Place::Fragment { offset } => self.check_fragment(offset, extent.len)?,
                Place::Plain { pa, .. } => self.image.check_spot(extent.len, self.image.spot(0, pa)?)?,
                Place::Encoded { pa, plen, .. } => self.image.check_spot(plen.into(), self.image.spot(0, pa)?)?,
            }
            if !each(Run { len: extent.len, hole: extent.place == Place::Hole }) {
                return Ok(());
            }
        }
        Ok(())
    }
}
