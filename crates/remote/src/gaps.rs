//! What lies between chunks that are read: what was stored together is read together.
//!
//! ```text
//! read before:   #                 #
//! missing now:           #
//! fetched too:     . . .   . . . .      both gaps, if they are short and earlier ones were of use
//! ```

use std::{
    collections::{BTreeSet, HashSet},
    ops::Range,
};

/// The longest gap that is fetched: it takes little longer than a request to a server far away.
const MOST_GAP_BYTES: u64 = 768 << 10;

/// The most bytes of gaps that no reader has wanted yet, besides as many as some reader has.
const FREE_BYTES: u64 = 1 << 20;

/// Which chunks were read, and which were fetched because they lie between those.
#[derive(Default)]
pub(crate) struct Gaps {
    read: BTreeSet<usize>,
    /// Chunks of gaps that were not read yet.
    unread: HashSet<usize>,
    unread_bytes: u64,
    /// Bytes of such chunks that were read later.
    useful_bytes: u64,
}

impl Gaps {
    /// Notes that a chunk is read, which is `range` of the image.
    pub(crate) fn note(&mut self, chunk: usize, range: &Range<u64>) {
        if self.read.insert(chunk) && self.unread.remove(&chunk) {
            let len = range.end - range.start;
            self.unread_bytes -= len;
            self.useful_bytes += len;
        }
    }

    /// Returns the chunks to fetch with `missing` ones: those between them and chunks that were read
    /// before. `range` returns the range of a chunk, `lacks` whether it must be fetched.
    pub(crate) fn around(
        &mut self,
        missing: &[usize],
        range: impl Fn(usize) -> Range<u64>,
        lacks: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let mut found = Vec::new();
        for &chunk in missing {
            let before = self.read.range(..chunk).next_back().map(|before| before + 1..chunk);
            let after = self.read.range(chunk + 1..).next().map(|after| chunk + 1..*after);
            for gap in [before, after].into_iter().flatten().filter(|gap| !gap.is_empty()) {
                if range(gap.end - 1).end - range(gap.start).start > MOST_GAP_BYTES {
                    continue;
                }
                for chunk in gap.filter(|chunk| !missing.contains(chunk) && lacks(*chunk)) {
                    let len = range(chunk).end - range(chunk).start;
                    let has_room = self.unread_bytes + len <= FREE_BYTES + self.useful_bytes;
                    if has_room && self.unread.insert(chunk) {
                        self.unread_bytes += len;
                        found.push(chunk);
                    }
                }
            }
        }
        found.sort_unstable();
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNK: u64 = 48 << 10;

    fn range(chunk: usize) -> Range<u64> {
        chunk as u64 * CHUNK..(chunk as u64 + 1) * CHUNK
    }

    /// Reads chunks one by one. Returns how many waited, and how many were fetched without being read.
    fn scan(chunks: &[usize]) -> (usize, usize) {
        let (mut gaps, mut there, mut waits) = (Gaps::default(), HashSet::new(), 0);
        for chunk in chunks {
            if there.insert(*chunk) {
                waits += 1;
                let found = gaps.around(&[*chunk], range, |chunk| !there.contains(&chunk));
                assert!(found.iter().all(|found| !there.contains(found)));
                there.extend(found);
            }
            gaps.note(*chunk, &range(*chunk));
        }
        (waits, there.len() - chunks.iter().collect::<HashSet<_>>().len())
    }

    #[test]
    fn what_lies_between_comes_along() {
        // All of a part of the image, in leaps.
        let dense: Vec<_> = (0..300).map(|step| 1000 + step * 7 % 300).collect();
        let (waits, unread) = scan(&dense);
        assert!(waits <= 200 && unread == 0, "{waits} waits, {unread} unread");
        // In order, there are no gaps.
        assert_eq!(scan(&(0..500).collect::<Vec<_>>()), (500, 0));
        // Far from each other.
        assert_eq!(scan(&(0..500).map(|step| step * 20).collect::<Vec<_>>()), (500, 0));
    }

    proptest! {
        /// Whatever is read, at most 1 MiB more is fetched for nothing than was of use.
        #[test]
        fn few_bytes_are_not_read(chunks in proptest::collection::vec(0_usize..3000, 0..600)) {
            let read = chunks.iter().collect::<HashSet<_>>().len();
            let (waits, unread) = scan(&chunks);
            prop_assert!(waits <= read);
            prop_assert!(unread as u64 * CHUNK <= FREE_BYTES + (read - waits) as u64 * CHUNK);
        }
    }
}
