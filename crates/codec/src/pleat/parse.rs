//! Finds the matches of a page.
//!
//! ```text
//! at each position not yet covered:
//!     look for a match: at the last two offsets (3 bytes or more), then where the hash of 6 bytes was seen last
//!     none: go two on, and further the longer nothing was found
//!     if it is at a new offset and short: take that of the next position instead if it is better
//!     extend it to the left over the literals before it; keep the sequence
//! ```
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

/// No match starts this close to the page's end or closer.
const TAIL: usize = 9;
/// A match of this length is taken without looking at the next position.
const LONG: usize = 16;
/// How many of the last three offsets are tried before the hash. (A match at the third is found only by its hash: trying it too makes
/// objects 0.1 % smaller and takes 4 % of the time.)
const TRIED: usize = 2;

/// The entry for 6 bytes, the low ones of `word`.
#[inline(always)]
fn hash(word: u64) -> usize {
    ((word << 16).wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - HASH_BITS)) as usize
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

    /// How many bytes from `at` on, which differ from those `offset` before by `difference`, equal them.
    #[inline(always)]
    fn common(self, at: usize, offset: usize, difference: u64) -> usize {
        let mut difference = difference;
        let mut length = 0;
        while difference == 0 {
            length += 8;
            if at + length >= END {
                return END - at;
            }
            difference = self.word(at + length) ^ self.word(at + length - offset);
        }
        (length + difference.trailing_zeros() as usize / 8).min(END - at)
    }

    /// How many bytes before `at`, at most `most` of them, equal those `offset` before.
    #[inline(always)]
    fn common_before(self, at: usize, offset: usize, most: usize) -> usize {
        let mut length = 0;
        loop {
            let difference = self.word(at - length - 8) ^ self.word(at - length - 8 - offset);
            length += difference.leading_zeros() as usize / 8;
            if difference != 0 || length >= most {
                return length.min(most);
            }
        }
    }

    /// A match at `at`, if there is one.
    #[inline(always)]
    fn find(self, seen: &mut Seen, reps: &[usize; 3], at: usize) -> Option<Match> {
        let word = self.word(at);
        let slot = &mut seen[hash(word)];
        let seen_at = usize::from(*slot);
        *slot = at as u16;
        for (rep, &offset) in reps.iter().enumerate().take(TRIED) {
            let difference = word ^ self.word(at - offset);
            if difference as u32 & 0xff_ffff == 0 {
                return Some(Match { length: self.common(at, offset, difference), offset, rep });
            }
        }
        let difference = word ^ self.word(seen_at);
        let offset = at - seen_at;
        let rep = if offset == reps[TRIED] { TRIED } else { 3 };
        (difference << 16 == 0).then(|| Match { length: self.common(at, offset, difference), offset, rep })
    }
}

struct Match {
    length: usize,
    offset: usize,
    /// Which of the last three offsets it has; 3: none.
    rep: usize,
}

impl Match {
    /// What it saves, roughly, in bytes.
    #[inline(always)]
    fn worth(&self) -> usize {
        self.length + if self.rep < 3 { 2 } else { 0 }
    }
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
        let Some(mut found) = bytes.find(seen, &reps, at) else {
            at += 2 + ((at - done) >> 5);
            continue;
        };
        if found.rep == 3
            && found.length < LONG
            && let Some(next) = bytes.find(seen, &reps, at + 1)
            && next.worth() > found.worth() + 1
        {
            at += 1;
            found = next;
        }
        let Match { mut length, offset, rep } = found;
        let back = bytes.common_before(at, offset, at - done);
        at -= back;
        length += back;
        let Some(sequence) = sequences.get_mut(count) else { break };
        *sequence = Sequence::new(at - done, length, if rep == 3 { offset } else { 0 }, rep);
        count += 1;
        reps = [offset, if rep > 0 { reps[0] } else { reps[1] }, if rep > 1 { reps[1] } else { reps[2] }];
        seen[hash(bytes.word(at + 2))] = at as u16 + 2;
        at += length;
        done = at;
        seen[hash(bytes.word(at - 2))] = at as u16 - 2;
    }
    count
}
