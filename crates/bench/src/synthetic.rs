//! Pages made from a seed: the same on every machine and in every run.

use pagefold_codec::{PAGE_SIZE, Page};

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): small, and seeded by any
/// number.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number under `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

/// Mean length of a segment.
const SEGMENT: usize = 64;
/// Bytes that a repeat costs LZ4 beside one among literals: token, offset, and what its hash misses at both ends.
const REPEAT_COST: f64 = 7.5;

/// `count` pages that LZ4 compresses to about `percent` of their size: segments of 32 to 96 bytes, each either new
/// random bytes or a copy of earlier ones of the page.
pub(crate) fn of_ratio(percent: usize, count: usize) -> Vec<Page> {
    let mut random = Random::new(percent as u64);
    let mean = SEGMENT as f64;
    let fresh = (percent as f64 / 100.0 * mean - REPEAT_COST) / (mean - REPEAT_COST);
    let fresh_of_65536 = (fresh.clamp(0.0, 1.0) * 65536.0) as usize;
    (0..count)
        .map(|_| {
            let mut page = [0; PAGE_SIZE];
            let mut at = 0;
            while at < PAGE_SIZE {
                let len = (SEGMENT / 2 + random.below(SEGMENT + 1)).min(PAGE_SIZE - at);
                if at < SEGMENT * 2 || random.below(65536) < fresh_of_65536 {
                    page[at..at + len].fill_with(|| random.next() as u8);
                } else {
                    let from = random.below(at - len + 1);
                    page.copy_within(from..from + len, at);
                }
                at += len;
            }
            page
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pagefold_codec::by_name;

    use super::*;

    #[test]
    fn pages_compress_to_the_ratio_asked_for() {
        for percent in [25, 50, 75] {
            let pages = of_ratio(percent, 256);
            let mut stream = by_name("lz4").unwrap().stream().unwrap();
            let mut out = [0; PAGE_SIZE];
            let bytes: usize = pages.iter().map(|page| stream.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum();
            let reached = bytes as f64 / (pages.len() * PAGE_SIZE) as f64 * 100.0;
            assert!((reached - percent as f64).abs() < 5.0, "asked for {percent} %, got {reached:.1} %");
        }
    }
}
