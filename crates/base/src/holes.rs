//! The holes of a file.

use std::ops::Range;

use pagefold_disk::Extent;

use crate::content::{data, hole};

/// The maximum number of holes recorded, 16 bytes each. If there are more, the shortest are
/// reported as data.
const MOST: usize = 1 << 16;

/// A file's holes.
///
/// Invariants: they are in order, none is empty, no two are adjacent; at most [`MOST`].
#[derive(Debug)]
pub(crate) struct Holes {
    holes: Vec<Range<u64>>,
    /// Shorter holes are not recorded.
    least_bytes: u64,
}

impl Holes {
    pub(crate) fn new() -> Self {
        Self { holes: Vec::new(), least_bytes: 1 }
    }

    /// Adds a hole that begins where the last one ends or later.
    pub(crate) fn add(&mut self, hole: Range<u64>) {
        match self.holes.last_mut() {
            Some(last) if last.end == hole.start => last.end = hole.end,
            _ => {
                self.make_room();
                self.holes.push(hole);
            }
        }
    }

    fn make_room(&mut self) {
        // The last hole could still grow until now, so its length is checked only here.
        let least_bytes = self.least_bytes;
        self.holes.pop_if(|last| last.end - last.start < least_bytes);
        while self.holes.len() >= MOST {
            self.least_bytes *= 2;
            let least_bytes = self.least_bytes;
            self.holes.retain(|hole| hole.end - hole.start >= least_bytes);
        }
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        (self.holes.capacity() * size_of::<Range<u64>>()) as u64
    }

    /// Reports the extents of a range to `each`.
    pub(crate) fn extents(&self, range: Range<u64>, each: &mut dyn FnMut(Extent) -> bool) {
        let first = self.holes.partition_point(|hole| hole.end <= range.start);
        let mut at = range.start;
        for Range { start, end } in &self.holes[first..] {
            if at >= range.end {
                return;
            }
            let (start, end) = ((*start).clamp(at, range.end), (*end).min(range.end));
            if (start > at && !each(data(start - at))) || (end > start && !each(hole(end - start))) {
                return;
            }
            at = end.max(start);
        }
        if at < range.end {
            each(data(range.end - at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(holes: &Holes, range: Range<u64>) -> Vec<(u64, bool)> {
        let mut reported = Vec::new();
        holes.extents(range, &mut |extent| {
            reported.push((extent.len_bytes, extent.hole));
            true
        });
        reported
    }

    #[test]
    fn holes_are_reported_where_they_are() {
        let mut holes = Holes::new();
        [10..20, 20..30, 50..60].into_iter().for_each(|hole| holes.add(hole));
        for (range, expected) in [
            (0..70, vec![(10, false), (20, true), (20, false), (10, true), (10, false)]),
            (10..60, vec![(20, true), (20, false), (10, true)]),
            (15..25, vec![(10, true)]),
            (30..50, vec![(20, false)]),
            (29..51, vec![(1, true), (20, false), (1, true)]),
            (60..61, vec![(1, false)]),
        ] {
            assert_eq!(reported(&holes, range.clone()), expected, "{range:?}");
        }
        let mut calls = 0;
        holes.extents(0..70, &mut |_| {
            calls += 1;
            calls < 3
        });
        assert_eq!(calls, 3);
    }

    #[test]
    fn of_too_many_the_longest_are_kept() {
        let mut holes = Holes::new();
        for number in 0..4 * MOST as u64 {
            holes.add(number * 100..number * 100 + 1 + number % 16);
        }
        assert!(holes.holes.len() <= MOST && holes.holes.len() > MOST / 8);
        assert!(holes.holes.iter().rev().skip(1).all(|hole| hole.end - hole.start >= holes.least_bytes));
        let all = reported(&holes, 0..400 * MOST as u64);
        assert_eq!(all.iter().map(|(len, _)| len).sum::<u64>(), 400 * MOST as u64);
    }
}
