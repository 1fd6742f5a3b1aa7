//! The free blocks of a shard by length.
//!
//! Bin `i < FINE` lists blocks of `4 i` to `4 i + 3` bytes; the bins after those are 1 KiB wide. A
//! bitmap marks the non-empty bins, and a summary word marks the non-zero words of the bitmap, so a
//! search takes a few instructions. The low bits of the length of each list's first block are
//! stored too, so an allocation does not wait for the block's own cache line.

use super::block::{BLOCK_MIN, Blocks, NIL, SEGMENT};

const FINE_STEP: u32 = 4;
const FINE: usize = 1028;
const FINE_END: u32 = FINE as u32 * FINE_STEP;
const COARSE_STEP: u32 = 1024;
const BINS: usize = FINE + 60;
const WORDS: usize = BINS / 64;
/// Bins per word of `rests`.
const RESTS: usize = 32;
const _: () = assert!(BINS.is_multiple_of(64) && FINE_END + 60 * COARSE_STEP >= SEGMENT);

#[derive(Debug)]
pub(super) struct Bins {
    heads: Box<[u32; BINS]>,
    /// `len % FINE_STEP` of each fine bin's head, two bits each.
    rests: [u64; FINE.div_ceil(RESTS)],
    words: [u64; WORDS],
    summary: u32,
}

fn bin_of(len: u32) -> usize {
    if len < FINE_END { (len / FINE_STEP) as usize } else { FINE + ((len - FINE_END) / COARSE_STEP) as usize }
}

impl Bins {
    /// Bytes of the list heads.
    pub(super) const BYTES: u64 = (BINS * 4) as u64;

    /// Creates empty bins, or returns `None` if there is no memory for them.
    pub(super) fn new() -> Option<Self> {
        let mut heads = Vec::new();
        heads.try_reserve_exact(BINS).ok()?;
        heads.resize(BINS, NIL);
        let heads = heads.into_boxed_slice().try_into().ok()?;
        Some(Self { heads, rests: [0; FINE.div_ceil(RESTS)], words: [0; WORDS], summary: 0 })
    }

    /// Makes `at` a free block of `len` bytes and lists it.
    pub(super) fn insert(&mut self, blocks: &Blocks, at: u32, len: u32) {
        let bin = bin_of(len);
        let next = self.heads[bin];
        blocks.put_free(at, len, next, NIL);
        if next != NIL {
            blocks.set_prev(next, at);
        }
        self.heads[bin] = at;
        self.note_head(bin, len);
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    /// Removes the free block `at` of `len` bytes from its list.
    pub(super) fn remove(&mut self, blocks: &Blocks, at: u32, len: u32) {
        let (next, prev) = (blocks.next(at), blocks.prev(at));
        if next != NIL {
            blocks.set_prev(next, prev);
        }
        if prev != NIL {
            blocks.set_next(prev, next);
            return;
        }
        let bin = bin_of(len);
        self.heads[bin] = next;
        if next != NIL {
            self.note_head(bin, blocks.len(next));
            return;
        }
        self.words[bin / 64] &= !(1 << (bin % 64));
        if self.words[bin / 64] == 0 {
            self.summary &= !(1 << (bin / 64));
        }
    }

    /// Records the length of the first block of a bin.
    fn note_head(&mut self, bin: usize, len: u32) {
        if let Some(rests) = self.rests.get_mut(bin / RESTS) {
            let shift = bin % RESTS * 2;
            *rests = *rests & !(3 << shift) | u64::from(len % FINE_STEP) << shift;
        }
    }

    /// Returns the first block of a bin, and its length if there is one.
    fn head(&self, blocks: &Blocks, bin: usize) -> (u32, u32) {
        let at = self.heads[bin];
        if bin >= FINE {
            return (at, blocks.len(at));
        }
        let rest = self.rests[bin / RESTS] >> (bin % RESTS * 2) & 3;
        (at, bin as u32 * FINE_STEP + rest as u32)
    }

    /// Returns a free block of at least `len` bytes (at most 4111) and its length. It is one of the
    /// shortest.
    pub(super) fn best_fit(&self, blocks: &Blocks, len: u32) -> Option<(u32, u32)> {
        let own = (len / FINE_STEP) as usize;
        let first = self.head(blocks, own);
        if first.0 != NIL && first.1 >= len {
            return Some(first);
        }
        self.first_from(own + 1).map(|bin| self.head(blocks, bin))
    }

    /// Returns a free block of at least `least` and less than `len` bytes (at most 4111), and its
    /// length. It is one of the longest.
    pub(super) fn longest_below(&self, blocks: &Blocks, len: u32, least: u32) -> Option<(u32, u32)> {
        let bin = self.last_below((len / FINE_STEP) as usize)?;
        (bin as u32 * FINE_STEP >= least.max(BLOCK_MIN)).then(|| self.head(blocks, bin))
    }

    fn first_from(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let bits = self.words.get(word)? & (u64::MAX << (bin % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let later = self.summary & (u32::MAX << word << 1);
        let word = (later != 0).then(|| later.trailing_zeros() as usize)?;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    fn last_below(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let bits = self.words.get(word)? & !(u64::MAX << (bin % 64));
        if bits != 0 {
            return Some(word * 64 + bits.ilog2() as usize);
        }
        let earlier = self.summary & !(u32::MAX << word);
        let word = (earlier != 0).then(|| earlier.ilog2() as usize)?;
        Some(word * 64 + self.words[word].ilog2() as usize)
    }

    /// Returns every listed block with its length, or the inconsistency found. For the checker.
    pub(super) fn listed(&self, blocks: &Blocks) -> Result<Vec<(u32, u32)>, String> {
        let mut all = Vec::new();
        for (bin, &head) in self.heads.iter().enumerate() {
            if head != NIL && self.head(blocks, bin).1 != blocks.len(head) {
                return Err(format!("bin {bin}: the recorded length of its first block is wrong"));
            }
            if (head != NIL) != (self.words[bin / 64] >> (bin % 64) & 1 == 1) {
                return Err(format!("bin {bin}: the bitmap is wrong about whether it is empty"));
            }
            let (mut at, mut prev) = (head, NIL);
            while at != NIL {
                let len = blocks.len(at);
                if bin_of(len) != bin || blocks.prev(at) != prev {
                    return Err(format!("bin {bin}: block {at} of {len} bytes is listed wrongly"));
                }
                all.push((at, len));
                (prev, at) = (at, blocks.next(at));
            }
        }
        for (word, &bits) in self.words.iter().enumerate() {
            if (bits != 0) != (self.summary >> word & 1 == 1) {
                return Err(format!("word {word} of the bitmap: the summary is wrong about whether it is zero"));
            }
        }
        Ok(all)
    }
}
