//! Finds the matches of a page.
//!
//! ```text
//! at each position not yet covered:
//!     look for a match: at the last two offsets (at least 3 bytes), then where the hash of 6 bytes
//!         was last seen in the page or, if unseen, where the dictionary has the next bytes
//!     none: advance by two, and by more the longer nothing is found
//!     if it is short and at a new offset: use the next position's match instead if that is better
//!     extend it to the left over the preceding literals; keep the sequence
//! ```
//!
//! Speed:
//!
//! 1. The position directly after a match is handled by separate code, because the last offset
//!    cannot match there.
//! 2. The bytes at the last two offsets are read through separate pointers.
//! 3. Beyond the first 8 bytes, matches are compared 32 bytes at a time.
//! 4. Whether the next position's match is better is one branch, rarely taken: only a match that is
//!    equal where this one ends can be better.
//! 5. The third of the last offsets is found only by its hash: trying it too makes objects 0.1 %
//!    smaller and costs 4 % of the time.
#![allow(unsafe_code)] // Unchecked access to positions that are known to be in the window.

use std::hint::select_unpredictable;

use super::{
    format::{FIRST_REPS, Sequence},
    places::{Before, NOWHERE},
    window::{END, PAGE_AT, Window},
};
use crate::{
    mem::{common_prefix_by, load64},
    reuse::product,
};

/// Number of entries in the hash table.
pub(super) const HASHES: usize = 1 << HASH_BITS;
const HASH_BITS: u32 = 12;

/// The last position in the page of the bytes with each hash: positions in the window, before the
/// one being searched for; [`NOWHERE`] for hashes not seen.
pub(super) type Seen = [u16; HASHES];

/// Maximum number of sequences in a page: each covers at least 3 bytes.
pub(super) const MAX_SEQUENCES: usize = 1366;

/// Matches start before this position.
const SEARCHED: usize = END - 9;
/// After this many bytes without a match, the step to the next position grows by one.
const GROWTH: usize = 32;
/// A match of at least this length is used without trying the next position.
const LONG: usize = 16;

/// Returns the entry for 6 bytes, those with the given [`product`].
#[inline(always)]
fn entry(product: u64) -> usize {
    (product << 16 >> (64 - HASH_BITS)) as usize
}

#[inline(always)]
fn three_are_equal(difference: u64) -> bool {
    difference as u32 & 0xff_ffff == 0
}

#[inline(always)]
fn six_are_equal(difference: u64) -> bool {
    difference << 16 == 0
}

/// The window, by pointer, possibly shifted back by an offset.
///
/// Every position passed to these functions, less the offset, is at most `END` and at least
/// `PAGE_AT` less the largest offset, so 64 bytes can be read from it.
#[derive(Clone, Copy)]
struct Bytes(*const u8);

impl Bytes {
    /// Returns the window shifted back by `offset` bytes.
    #[inline(always)]
    fn before(self, offset: usize) -> Self {
        Self(self.0.wrapping_sub(offset))
    }

    /// Returns the 8 bytes at `at`.
    #[inline(always)]
    fn word(self, at: usize) -> u64 {
        debug_assert!(at <= END + 16);
        // SAFETY: positions are at most END + 16 (see `Bytes`); the window has 64 + 64 bytes after
        // END.
        unsafe { load64(self.0.wrapping_add(at)) }
    }

    /// Returns the 8 bytes at `at` and the position where their hash was last seen.
    #[inline(always)]
    fn visit(self, seen: &mut Seen, before: &impl Before, at: usize) -> (u64, usize) {
        let word = self.word(at);
        let product = product(word);
        let slot = &mut seen[entry(product)];
        let seen_at = select_unpredictable(*slot == NOWHERE, before.place(product), *slot);
        *slot = at as u16;
        (word, usize::from(seen_at))
    }

    /// Returns how many bytes from `at` equal those of `other`; `difference` is the XOR of the
    /// first 8.
    #[inline(always)]
    fn common(self, other: Self, at: usize, difference: u64) -> usize {
        let length = if difference != 0 {
            difference.trailing_zeros() as usize / 8
        } else {
            let [from, other, end] =
                [self.0.wrapping_add(at + 8), other.0.wrapping_add(at + 8), self.0.wrapping_add(END + 32)];
            // SAFETY: `at` is at most END - 8, and the window has 64 + 64 bytes after END; `other`
            // is the window shifted back.
            8 + unsafe { common_prefix_by::<32>(from, other, end) }
        };
        length.min(END - at)
    }

    /// Returns how many bytes before `at`, at most `most`, equal those of `other`.
    #[inline(always)]
    fn common_before(self, other: Self, at: usize, most: usize) -> usize {
        let mut length = 0;
        loop {
            let difference = self.word(at - length - 8) ^ other.word(at - length - 8);
            length += difference.leading_zeros() as usize / 8;
            if difference != 0 || length >= most {
                return length.min(most);
            }
        }
    }
}

/// Finds the sequences of the page in `window`, writes them to the front of `sequences`, and
/// returns their number. The rest of the page is literals. `seen` is only working memory.
#[inline(always)]
pub(super) fn parse(
    window: &Window,
    before: &impl Before,
    seen: &mut Seen,
    sequences: &mut [Sequence; MAX_SEQUENCES],
) -> usize {
    seen.fill(NOWHERE);
    let bytes = Bytes(window.as_ptr());
    let mut reps = FIRST_REPS.map(usize::from);
    let mut count = 0;
    let mut done = PAGE_AT;
    let mut at = PAGE_AT;
    loop {
        let (last, second) = (bytes.before(reps[0]), bytes.before(reps[1]));
        let (mut offset, mut rep, difference) = 'found: {
            let new = |offset| if offset == reps[2] { 2 } else { 3 };
            if at >= SEARCHED {
                return count;
            }
            // After a match, the byte at the last offset differs: no need to test it.
            let (word, seen_at) = bytes.visit(seen, before, at);
            let at_second = word ^ second.word(at);
            if three_are_equal(at_second) {
                break 'found (reps[1], 1, at_second);
            }
            let at_seen = word ^ bytes.word(seen_at);
            if six_are_equal(at_seen) {
                break 'found (at - seen_at, new(at - seen_at), at_seen);
            }
            at += 2;
            loop {
                let grown = (at - done) / GROWTH;
                let stop = (done + GROWTH * (grown + 1)).min(SEARCHED);
                while at < stop {
                    let (word, seen_at) = bytes.visit(seen, before, at);
                    let at_last = word ^ last.word(at);
                    if three_are_equal(at_last) {
                        break 'found (reps[0], 0, at_last);
                    }
                    let at_second = word ^ second.word(at);
                    if three_are_equal(at_second) {
                        break 'found (reps[1], 1, at_second);
                    }
                    let at_seen = word ^ bytes.word(seen_at);
                    if six_are_equal(at_seen) {
                        break 'found (at - seen_at, new(at - seen_at), at_seen);
                    }
                    at += 2 + grown;
                }
                if at >= SEARCHED {
                    return count;
                }
            }
        };
        let mut length = bytes.common(bytes.before(offset), at, difference);
        if rep == 3 && length < LONG {
            // A match at the next position is only better if it ends no earlier, and then the bytes
            // there are equal.
            let next = at + 1;
            let end = at + length;
            let (word, seen_at) = bytes.visit(seen, before, next);
            let nearer = bytes.word(end - 5);
            let as_far = [
                nearer ^ last.word(end - 5),
                nearer ^ second.word(end - 5),
                bytes.word(end - 3) ^ bytes.before(next - seen_at).word(end - 3),
            ];
            if as_far.into_iter().fold(false, |any, difference| any | six_are_equal(difference)) {
                let candidates = [(reps[0], 0, 0), (reps[1], 1, 0), (next - seen_at, 3, 2)];
                for (next_offset, next_rep, more) in candidates {
                    let from = bytes.before(next_offset);
                    let next_length = bytes.common(from, next, word ^ from.word(next));
                    if next_length >= length + more {
                        (at, offset, rep, length) = (next, next_offset, next_rep, next_length);
                        break;
                    }
                }
            }
        }
        let back = bytes.common_before(bytes.before(offset), at, at - done);
        at -= back;
        length += back;
        let Some(sequence) = sequences.get_mut(count) else { return count };
        *sequence = Sequence::new(at - done, length, offset, rep);
        count += 1;
        reps = [offset, if rep > 0 { reps[0] } else { reps[1] }, if rep > 1 { reps[1] } else { reps[2] }];
        seen[entry(product(bytes.word(at + 2)))] = at as u16 + 2;
        at += length;
        done = at;
        seen[entry(product(bytes.word(at - 2)))] = at as u16 - 2;
    }
}
