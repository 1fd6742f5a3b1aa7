//! A file's runs in order, as the image maps them: what is stored, and holes.

use std::ops::Range;

use super::content::{CHUNKS_READ, Data};
use super::file::File;
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

    /// Calls `each` with the runs of a range in order, the first and the last clipped to it. They cover
    /// the range up to the end of the file exactly, and no two adjacent ones are of the same kind.
    /// Stops when `each` returns false.
    ///
    /// Reads the mapping of the range if it can have holes, and nothing otherwise. The content is not
    /// read.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the mapping of the range is found to be invalid.
    pub fn runs(&self, range: Range<u64>, each: &mut dyn FnMut(Run) -> bool) -> Result<()> {
        let data = self.data();
        let range = range.start..range.end.min(data.inode.size);
        if range.is_empty() {
            return Ok(());
        }
        let mut joined = Run { len: 0, hole: false };
        let mut add = |run: Run| {
            if run.hole == joined.hole {
                joined.len += run.len;
                return true;
            }
            let before = std::mem::replace(&mut joined, run);
            before.len == 0 || each(before)
        };
        let goes_on = match &data.map {
            Some(map) if map.may_have_holes() => data.extent_runs(range, &mut add)?,
            None if data.inode.layout == DataLayout::ChunkBased => data.chunk_runs(range, &mut add)?,
            _ => add(Run { len: range.end - range.start, hole: data.inode.is_hole }),
        };
        if goes_on {
            each(joined);
        }
        Ok(())
    }

    /// Calls `each` with the ranges that are not holes, within `range` and in order; adjacent ones
    /// are joined. Reads nothing if the file cannot have holes.
    pub(crate) fn stored(&self, range: Range<u64>, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        let mut at = range.start;
        self.runs(range, &mut |run| {
            let end = at + run.len;
            if !run.hole {
                each(at..end);
            }
            at = end;
            true
        })
    }
}

impl Data {
    /// Like [`File::run_at`].
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

    /// Calls `add` with the runs of a range of chunks. Returns whether it always returned true.
    fn chunk_runs(&self, range: Range<u64>, add: &mut dyn FnMut(Run) -> bool) -> Result<bool> {
        let (bits, ..) = self.chunk_format()?;
        let mut at = range.start;
        while at < range.end {
            let count = (((range.end - 1) >> bits) - (at >> bits) + 1).min(CHUNKS_READ);
            for spot in self.chunk_addresses(at >> bits, count)? {
                let end = (at >> bits << bits).saturating_add(1 << bits).min(range.end);
                if !add(Run { len: end - at, hole: spot.is_none() }) {
                    return Ok(false);
                }
                at = end;
            }
        }
        Ok(true)
    }

    /// Like `chunk_runs`, for a range of extents.
    fn extent_runs(&self, range: Range<u64>, add: &mut dyn FnMut(Run) -> bool) -> Result<bool> {
        let mut at = range.start;
        for extent in self.extents(range.clone()) {
            let extent = extent?;
            let end = extent.end().min(range.end);
            if !add(Run { len: end - at, hole: extent.place == Place::Hole }) {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }
}
