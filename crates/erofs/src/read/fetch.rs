//! Fetches together what reads need from a distant source, so that they do not wait for one piece
//! after the other.
//!
//! ```text
//! ranges of a file   ->   the indexes of these ranges   ->   the clusters that they lead to
//!                         one wait                           one wait
//! ```
//!
//! This only saves time: reads fetch what is still missing.

use std::ops::Range;

use super::content::{CHUNKS_READ, Data};
use super::devices::Spot;
use super::image::Image;
use super::zmap::Cursor;
use crate::error::Result;
use crate::format::{DataLayout, IN_BOX, Place};

/// The maximum length of content that is fetched together.
const MOST_BYTES: u64 = 8 << 20;

/// A range of a device or the image, by its start and its length.
type Needed = (Spot, u64);

impl Image {
    /// Fetches ranges together, from each device.
    fn fetch(&self, mut needed: Vec<Needed>) {
        needed.retain(|(at, len)| at.offset < IN_BOX && self.check_spot(*len, *at).is_ok());
        needed.sort_unstable();
        for of_device in needed.chunk_by(|before, after| before.0.device == after.0.device) {
            let ranges: Vec<_> = of_device.iter().map(|(at, len)| at.offset..at.offset + len).collect();
            if let Some((at, _)) = of_device.first() {
                self.source_of(at.device).fetch(&ranges);
            }
        }
    }
}

impl Data {
    /// Fetches what reads of these ranges need, of what exists in the file.
    pub(super) fn fetch(&self, ranges: impl Iterator<Item = Range<u64>>) {
        if !self.image.is_far() {
            return;
        }
        let (mut left_bytes, mut clipped) = (MOST_BYTES, Vec::new());
        for Range { start, end } in ranges {
            let end = end.min(self.inode.size).min(start.saturating_add(left_bytes));
            if start < end {
                left_bytes -= end - start;
                clipped.push(start..end);
            }
        }
        let ranges = clipped;
        self.fetch_indexes(&ranges);
        // The read that meets a fault reports it.
        let mut needed = Vec::new();
        let mut of_packed = Vec::new();
        for range in &ranges {
            let _ = self.needed(range, &mut needed, &mut of_packed);
        }
        self.image.fetch(needed);
        if let Some(packed) = self.packed.as_ref().filter(|_| !of_packed.is_empty()) {
            packed.fetch(of_packed.into_iter());
        }
    }

    /// Fetches the indexes or chunk addresses of ranges, which exist in the file.
    pub(super) fn fetch_indexes(&self, ranges: &[Range<u64>]) {
        let places = ranges.iter().filter_map(|range| match &self.map {
            Some(map) => map.index_place(range),
            None if self.inode.layout == DataLayout::ChunkBased => {
                let (bits, unit, start) = self.chunk_format().ok()?;
                let place = |chunk: u64| chunk.checked_mul(unit)?.checked_add(start);
                Some(place(range.start >> bits)?..place(((range.end - 1) >> bits) + 1)?)
            }
            None => None,
        });
        let needed = |place: Range<u64>| (Spot { device: 0, offset: place.start }, place.end - place.start);
        self.image.fetch(places.map(needed).collect());
    }

    /// Adds the location of a range's content to `needed`, or to `of_packed` if it is in the packed
    /// inode.
    fn needed(&self, range: &Range<u64>, needed: &mut Vec<Needed>, of_packed: &mut Vec<Range<u64>>) -> Result<()> {
        let Some(map) = &self.map else {
            if self.inode.layout != DataLayout::ChunkBased {
                if !self.inode.is_hole {
                    let at = self.block_offset(self.inode.raw)?.saturating_add(range.start);
                    needed.push((self.image.spot(0, at)?, range.end - range.start));
                }
                return Ok(());
            }
            let (bits, ..) = self.chunk_format()?;
            let count = (((range.end - 1) >> bits) - (range.start >> bits) + 1).min(CHUNKS_READ);
            let spots = self.chunk_addresses(range.start >> bits, count)?;
            needed.extend((range.start >> bits..).zip(spots).filter_map(|(number, spot)| {
                let (spot, chunk) = (spot?, number << bits);
                let start = chunk.max(range.start);
                let end = chunk.saturating_add(1 << bits).min(range.end);
                Some((Spot { offset: spot.offset.saturating_add(start - chunk), ..spot }, end - start))
            }));
            return Ok(());
        };
        let (mut cursor, mut at) = (Cursor::default(), range.start);
        while at < range.end {
            let extent = map.extent_at(&self.image, &mut cursor, at)?;
            match extent.place {
                Place::Hole => {}
                Place::Fragment { offset } => {
                    let end = extent.end().min(range.end);
                    let start = offset.saturating_add(at - extent.start);
                    of_packed.push(start..start.saturating_add(end - at));
                }
                Place::Plain { pa, plen, .. } | Place::Encoded { pa, plen, .. } => {
                    needed.push((self.image.spot(0, pa)?, plen.into()));
                }
            }
            at = extent.end();
        }
        Ok(())
    }
}
