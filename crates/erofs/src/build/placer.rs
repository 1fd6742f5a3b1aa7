//! Placement of metadata.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::format::SLOT;

/// The page size of most machines.
const PAGE: u64 = 4096;

/// The number of inodes that are placed together, the longest first, so that shorter ones fill the
/// gaps in blocks. Few enough that the inodes of a directory, which are read together, stay close
/// together.
const PLACED_TOGETHER: usize = 256;

/// Allocates ranges of the image, aligned to inode slots.
///
/// Invariants: `holes` are disjoint, before `frontier`, and do not cross block boundaries.
/// Allocated ranges are disjoint from them and from each other.
#[derive(Debug)]
pub(crate) struct Placer {
    block: u64,
    /// Free ranges, as (length, offset), for best fit.
    holes: BTreeSet<(u64, u64)>,
    frontier: u64,
}

impl Placer {
    /// Creates a placer whose space is one hole and everything from `frontier` on, a block
    /// boundary.
    pub(crate) fn new(block: u64, hole: std::ops::Range<u64>, frontier: u64) -> Self {
        let mut placer = Self { block, holes: BTreeSet::new(), frontier };
        placer.add_hole(hole.start, hole.end);
        placer
    }

    /// Returns the end of the allocated ranges.
    pub(crate) fn end(&self) -> u64 {
        self.frontier
    }

    fn add_hole(&mut self, start: u64, end: u64) {
        let start = start.next_multiple_of(SLOT);
        if start + SLOT <= end {
            self.holes.insert((end - start, start));
        }
    }

    /// Allocates the ranges of inodes, each with its length and its tail's, and calls `placed` with
    /// each one's offset and length.
    pub(crate) fn place_all<T>(&mut self, wants: &mut [(T, u64, u64)], mut placed: impl FnMut(&T, u64, u64)) {
        for near in wants.chunks_mut(PLACED_TOGETHER) {
            near.sort_by_key(|(_, len, _)| Reverse(*len));
            for (which, len, tail) in near {
                placed(which, self.place(*len, *tail), *len);
            }
        }
    }

    /// Allocates `len` bytes. If they fit into a block, they do not cross a block boundary;
    /// otherwise, the last `tail` bytes do not.
    pub(crate) fn place(&mut self, len: u64, tail: u64) -> u64 {
        if let Some(&(hole, start)) = self.holes.range((len, 0)..).next() {
            self.holes.remove(&(hole, start));
            self.add_hole(start + len, start + hole);
            return start;
        }
        let whole = if len <= self.block { len } else { tail };
        let mut start = self.frontier;
        let part = start + len - whole;
        if whole > 0 && part / self.block != (part + whole - 1) / self.block {
            // Skip ahead so that the part starts at a block boundary, or as close to it as slots
            // allow.
            let shift = self.block - part % self.block;
            start += shift.next_multiple_of(SLOT);
            let part = start + len - whole;
            if part / self.block != (part + whole - 1) / self.block {
                start += (self.block - part % self.block).next_multiple_of(SLOT);
            }
            let skipped = self.frontier;
            let block_end = skipped.next_multiple_of(self.block).min(start);
            self.add_hole(skipped, block_end);
        }
        // Linux 6.18 considers LZ4 data empty if its offset within a page equals the block size.
        if self.block < PAGE && tail > 0 && len > self.block && (start + len - tail).is_multiple_of(self.block) {
            start += SLOT;
        }
        self.frontier = (start + len).next_multiple_of(SLOT);
        start
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_disjoint_and_do_not_cross(
            wants in proptest::collection::vec((1u64..6000, 0u64..4000), 1..200),
        ) {
            let mut placer = Placer::new(4096, 1152..4096, 8192);
            let mut given: Vec<(u64, u64)> = Vec::new();
            for (len, tail) in wants {
                let tail = tail.min(len);
                let start = placer.place(len, tail);
                prop_assert_eq!(start % SLOT, 0);
                prop_assert!(start >= 8192 || (start >= 1152 && start + len <= 4096));
                let whole = if len <= 4096 { len } else { tail };
                if whole > 0 {
                    prop_assert_eq!((start + len - whole) / 4096, (start + len - 1) / 4096);
                }
                prop_assert!(start + len <= placer.end() || start < 4096);
                given.push((start, start + len));
            }
            given.sort_unstable();
            prop_assert!(given.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
    }
}
