//! Finds repeated content, so that clusters can begin and end with it.
//!
//! Only equal clusters are shared, and a cluster depends on where it begins. An insertion near the
//! start of a file shifts all later clusters, so none would equal those of the original file.
//! Therefore, before compression:
//!
//! ```text
//! 1. cut each segment into chunks where a rolling hash of the last 64 bytes says so: equal content
//!    is cut equally, wherever it is
//! 2. record for each chunk's hash which chunks preceded and followed it
//! 3. a run of repeated chunks begins where its predecessors differ and ends where its successors
//!    differ. Clusters are made to begin and end there if the run is long enough to pay off
//! ```
//!
//! A truncated cluster wastes half a block on average, at either end of each occurrence of a run. A
//! hash collision of chunks costs one such cut and nothing else, because clusters are compared
//! before they are shared.
//!
//! The rolling hash is the "gear" of Xia et al., *FastCDC: a Fast and Efficient Content-Defined
//! Chunking Approach for Data Deduplication* (USENIX ATC 2016), section 3.2.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::zeros::is_zeros;

/// The minimum size of a chunk in bytes: cuts before it are not looked for.
const LEAST_BYTES: usize = 2 << 10;
/// The maximum size of a chunk in bytes.
const MOST_BYTES: usize = 64 << 10;
/// A chunk ends where these bits of the hash are zero: on average, 8 KiB after the minimum. All of
/// the last 64 bytes contribute to these high bits.
const MASK: u64 = 0x1fff << 51;
/// The number of bytes that the hash depends on.
const WINDOW: usize = 64;

/// The minimum length of a run in blocks. Two occurrences of a run of `n` blocks save `n` times the
/// compression ratio and cost half a block at each of four ends.
const RUN_BLOCKS: u32 = 8;

/// A cut is not always possible: at most one extent begins in a block, and incompressible data
/// takes one extent per block. So a run is cut again this many bytes after its beginning, and then
/// at four times the previous distance each time, so that an occurrence that missed one cut can
/// join at a later one.
const FIRST_WITHIN: u32 = 64 << 10;

/// The hash of a chunk of zeros, which never belongs to a run: zeros are equal wherever they are
/// cut.
const ZEROS: u64 = 0;

/// A random number for each byte: the outputs of splitmix64 (Steele, Lea and Flood, *Fast
/// Splittable Pseudorandom Number Generators*, OOPSLA 2014).
const GEAR: [u64; 256] = {
    let mut gear = [0; 256];
    let mut state = 0u64;
    let mut at = 0;
    while at < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        gear[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    gear
};

/// A piece of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    sum: u64,
    /// Its end, relative to the start of the segment.
    pub(crate) end: u32,
}

/// Returns the minimum size of a segment that can contain a run.
pub(crate) fn least_bytes(block_bytes: u32) -> u64 {
    u64::from(RUN_BLOCKS * block_bytes)
}

/// Cuts a segment into chunks.
pub(crate) fn chunks(segment: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::with_capacity(segment.len() / (8 << 10) + 1);
    let mut start = 0;
    while start < segment.len() {
        let rest = &segment[start..];
        let rest = &rest[..rest.len().min(MOST_BYTES)];
        let len = chunk_len(rest);
        let sum = if is_zeros(&rest[..len]) { ZEROS } else { xxh3_64(&rest[..len]) };
        chunks.push(Chunk { sum, end: (start + len) as u32 });
        start += len;
    }
    chunks
}

fn chunk_len(rest: &[u8]) -> usize {
    let mut sum = 0u64;
    for (at, byte) in rest.iter().enumerate().skip(LEAST_BYTES - WINDOW) {
        sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if sum & MASK == 0 && at >= LEAST_BYTES {
            return at;
        }
    }
    rest.len()
}

/// The chunk seen on one side of another, by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side(u64);

impl Side {
    /// The start or end of the segment.
    const NONE: Self = Self(0);
    /// Different chunks.
    const SEVERAL: Self = Self(1);

    fn of(chunk: Option<&Chunk>) -> Self {
        chunk.map_or(Self::NONE, |chunk| Self(chunk.sum))
    }

    fn see(&mut self, side: Self) {
        if *self != side {
            *self = Self::SEVERAL;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    before: Side,
    behind: Side,
    repeated: bool,
}

/// The chunks of all segments: about 70 bytes per 10 KiB of content, including their hashes.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    seen: HashMap<u64, Seen>,
}

impl Repeats {
    /// Adds the chunks of one segment.
    pub(crate) fn add(&mut self, chunks: &[Chunk]) {
        for (at, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| chunk.sum != ZEROS) {
            let before = Side::of(at.checked_sub(1).map(|before| &chunks[before]));
            let behind = Side::of(chunks.get(at + 1));
            self.seen
                .entry(chunk.sum)
                .and_modify(|seen| {
                    seen.before.see(before);
                    seen.behind.see(behind);
                    seen.repeated = true;
                })
                .or_insert(Seen { before, behind, repeated: false });
        }
    }

    /// Returns where clusters should begin in a segment with these chunks, in ascending order: the
    /// ends of each long run of repeated content, and places within it.
    pub(crate) fn cuts(&self, chunks: &[Chunk], block_bytes: u32) -> Vec<u32> {
        let least = RUN_BLOCKS * block_bytes;
        let mut cuts = Vec::new();
        let mut end_run = |run: &[Chunk], begin: u32| {
            let end = run.last().map_or(begin, |chunk| chunk.end);
            if end - begin < least {
                return;
            }
            if cuts.last().map_or(begin > 0, |last| *last != begin) {
                cuts.push(begin);
            }
            // If all occurrences start a segment, none can miss the run's beginning.
            let moved = run.first().is_some_and(|chunk| self.seen[&chunk.sum].before == Side::SEVERAL);
            let mut next = if moved { begin + FIRST_WITHIN } else { u32::MAX };
            for chunk in run {
                if chunk.end >= next && end - chunk.end >= least {
                    cuts.push(chunk.end);
                    next = begin.saturating_add((chunk.end - begin).saturating_mul(4));
                }
            }
            cuts.push(end);
        };
        let start = |at: usize| at.checked_sub(1).map_or(0, |before| chunks[before].end);
        let mut first = None;
        for (at, chunk) in chunks.iter().enumerate() {
            let seen = self.seen.get(&chunk.sum).filter(|seen| seen.repeated);
            if seen.is_none_or(|seen| seen.before == Side::SEVERAL)
                && let Some(first) = first.take()
            {
                end_run(&chunks[first..at], start(first));
            }
            if let Some(seen) = seen {
                let begin = *first.get_or_insert(at);
                if seen.behind == Side::SEVERAL {
                    end_run(&chunks[begin..=at], start(begin));
                    first = None;
                }
            }
        }
        if let Some(first) = first {
            end_run(&chunks[first..], start(first));
        }
        cuts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(len)
        .collect()
    }

    fn cuts(segments: &[Vec<u8>]) -> Vec<Vec<u32>> {
        let chunks: Vec<_> = segments.iter().map(|segment| chunks(segment)).collect();
        let mut repeats = Repeats::default();
        chunks.iter().for_each(|chunks| repeats.add(chunks));
        chunks.iter().map(|chunks| repeats.cuts(chunks, 4096)).collect()
    }

    #[test]
    fn chunks_cover_a_segment_and_are_neither_short_nor_long() {
        for segment in [noise(1 << 20, 1), vec![0; 300_000], Vec::new(), noise(100, 2)] {
            let ends: Vec<_> = chunks(&segment).iter().map(|chunk| chunk.end as usize).collect();
            assert_eq!(ends.last().copied().unwrap_or(0), segment.len());
            let starts = std::iter::once(&0).chain(&ends);
            let lens: Vec<_> = starts.zip(&ends).map(|(start, end)| end - start).collect();
            assert!(lens.iter().all(|len| *len <= MOST_BYTES));
            assert!(lens.iter().rev().skip(1).all(|len| *len >= LEAST_BYTES), "{lens:?}");
        }
    }

    #[test]
    fn both_ends_of_moved_content_are_found() {
        let same = noise(200_000, 1);
        let moved = [noise(5_555, 2), same.clone(), noise(100_000, 3)].concat();
        let cuts = cuts(&[same.clone(), moved.clone()]);
        // Both occurrences are cut at the same places, which are near their ends.
        assert_eq!(cuts[0].iter().map(|cut| cut + 5_555).collect::<Vec<_>>(), cuts[1]);
        assert!(cuts[0][0] < MOST_BYTES as u32 && *cuts[0].last().unwrap() > 200_000 - MOST_BYTES as u32, "{cuts:?}");
    }

    #[test]
    fn content_that_occurs_once_is_not_cut() {
        assert_eq!(cuts(&[noise(300_000, 1), noise(300_000, 2)]), [vec![], vec![]]);
    }

    #[test]
    fn equal_segments_are_cut_at_their_end_alone() {
        let segment = noise(300_000, 1);
        assert_eq!(cuts(&[segment.clone(), segment]), [vec![300_000], vec![300_000]]);
    }

    #[test]
    fn short_runs_are_left_alone() {
        let same = noise(20_000, 1);
        let cuts = cuts(&[[noise(70_000, 2), same.clone()].concat(), [noise(80_000, 3), same].concat()]);
        assert_eq!(cuts, [vec![], vec![]]);
    }
}
