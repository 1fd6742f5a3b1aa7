//! Finds the matches of a page.
//!
//! ```text
//! at each position not yet covered:
//!     the candidates: the last three offsets (3 bytes must match), and where the hash of 5 bytes was seen last
//!     none matches: go on, in longer steps the longer nothing was found
//!     of these four, and of the four of the next position, take the best
//!     extend it; keep the sequence
//! ```
//!
//! For speed: once one candidate is known to match, all eight are measured without a branch, up to 16 bytes each; which
//! is the best cannot be foreseen, and a wrong guess costs as much as the measuring. All access is by pointer into the
//! window.
#![allow(unsafe_code)] // Positions that are known to lie in the window, without a check for each access.

use super::{
    format::{FIRST_REPS, Sequence},
    window::{END, PAGE_AT, Window},
};
use crate::mem::load64;

/// Entries of the hash table.
pub(super) const HASHES: usize = 1 << HASH_BITS;
const HASH_BITS: u32 = 12;

/// Where the bytes with each hash were seen last: positions in the window, before the one being searched for.
pub(super) type Seen = [u16; HASHES];

/// Most sequences of a page: each covers at least 3 bytes.
pub(super) const MAX_SEQUENCES: usize = 1366;

/// Shortest match at an offset that is not repeated.
const MIN_NEW: u32 = 5;
/// No match starts this close to the page's end or closer.
const TAIL: usize = 9;

/// The entry for 5 bytes, the low ones of `word`.
#[inline(always)]
fn hash(word: u64) -> usize {
    ((word << 24).wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - HASH_BITS)) as usize
}

/// The table in which a page's search starts: the positions of the dictionary, `dictionary_len` bytes before the page
/// in `window`; later ones, which have smaller offsets, win. Where there is none, a position just before the page
/// stands, which any page may reach.
pub(super) fn seen_in_dictionary(window: &Window, dictionary_len: usize) -> Box<Seen> {
    let mut seen = Box::new([PAGE_AT as u16 - 8; HASHES]);
    for at in (PAGE_AT - dictionary_len..PAGE_AT).take(dictionary_len.saturating_sub(8)) {
        seen[hash(window.word(at))] = at as u16;
    }
    seen
}

/// The window, by pointer.
///
/// Every position that these functions are given is at most `END` and at least `PAGE_AT` less the largest offset, so
/// that 64 bytes can be read from it.
#[derive(Clone, Copy)]
struct Bytes(*const u8);

impl Bytes {
    /// The 8 bytes at `at`.
    #[inline(always)]
    fn word(self, at: usize) -> u64 {
        debug_assert!(at <= END + 16);
        // SAFETY: positions are at most END + 16 (see `Bytes`); the window has 64 + 64 bytes from END on.
        unsafe { load64(self.0.add(at)) }
    }

    /// How many bytes from `a` on equal those from `b` on, at most 16.
    #[inline(always)]
    fn common16(self, a: usize, b: usize) -> u32 {
        let low = self.word(a) ^ self.word(b);
        let high = self.word(a + 8) ^ self.word(b + 8);
        let short = low.trailing_zeros() / 8;
        if low == 0 { 8 + high.trailing_zeros() / 8 } else { short }
    }

    /// The four candidates at `at`, the better ones with the greater numbers: [`key`].
    #[inline(always)]
    fn candidates(self, at: usize, reps: &[usize; 3], seen_at: usize) -> [u32; 4] {
        let rep = |which: u32| {
            let length = self.common16(at, at - reps[which as usize]);
            key(if length >= 3 { length + 2 } else { 0 }, which, length)
        };
        let length = self.common16(at, seen_at);
        let new = key(if length >= MIN_NEW { length } else { 0 }, 3, length);
        [rep(0), rep(1), rep(2), new]
    }
}

/// A candidate as one number, of which the greatest is the best: what the match saves, roughly, in bytes; then which
/// offset it has (3: a new one), the lower the better; its length.
#[inline(always)]
fn key(worth: u32, which: u32, length: u32) -> u32 {
    worth << 16 | (3 - which) << 8 | length
}

/// Finds the sequences of the page in `window`, writes them to the front of `sequences`, and gives their number. What
/// they leave of the page is literals. `seen` is changed.
#[inline(always)]
pub(super) fn parse(window: &Window, seen: &mut Seen, sequences: &mut [Sequence; MAX_SEQUENCES]) -> usize {
    let bytes = Bytes(window.as_ptr());
    let mut reps = FIRST_REPS.map(usize::from);
    let mut count = 0;
    let mut done = PAGE_AT;
    let mut at = PAGE_AT;
    while at < END - TAIL {
        let word = bytes.word(at);
        let slot = &mut seen[hash(word)];
        let seen_at = usize::from(*slot);
        *slot = at as u16;
        let near = |offset: usize| (word ^ bytes.word(at - offset)) as u32 & 0xff_ffff == 0;
        let far = (word ^ bytes.word(seen_at)) << 24 == 0;
        if !(near(reps[0]) || near(reps[1]) || near(reps[2]) || far) {
            at += 1 + ((at - done) >> 6);
            continue;
        }
        let slot = &mut seen[hash(bytes.word(at + 1))];
        let seen_next = usize::from(*slot);
        *slot = at as u16 + 1;
        let best = |keys: [u32; 4]| keys[0].max(keys[1]).max(keys[2].max(keys[3]));
        let here = best(bytes.candidates(at, &reps, seen_at));
        let next = best(bytes.candidates(at + 1, &reps, seen_next));
        let later = (next >> 16) > (here >> 16) + 1;
        let best = if later { next } else { here };
        at += usize::from(later);
        let which = 3 - (best >> 8 & 3) as usize;
        let offset = [reps[0], reps[1], reps[2], at - if later { seen_next } else { seen_at }][which];
        let mut length = (best & 0xff) as usize;
        if length == 16 {
            while at + length < END {
                let difference = bytes.word(at + length) ^ bytes.word(at + length - offset);
                length += difference.trailing_zeros() as usize / 8;
                if difference != 0 {
                    break;
                }
            }
        }
        length = length.min(END - at);
        let before = bytes.word(at - 8) ^ bytes.word(at - 8 - offset);
        let back = (before.leading_zeros() as usize / 8).min(at - done);
        at -= back;
        length += back;
        let Some(sequence) = sequences.get_mut(count) else { break };
        *sequence = Sequence::new(at - done, length, if which == 3 { offset } else { 0 }, which);
        count += 1;
        reps = [offset, if which > 0 { reps[0] } else { reps[1] }, if which > 1 { reps[1] } else { reps[2] }];
        seen[hash(bytes.word(at + 2))] = at as u16 + 2;
        at += length;
        done = at;
        seen[hash(bytes.word(at - 2))] = at as u16 - 2;
    }
    count
}
