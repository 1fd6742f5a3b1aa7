//! Finds the matches of a page.
//!
//! ```text
//! at each position not yet covered:
//!     look for a match: at the last three offsets (3 bytes or more), then where the hash of 5 bytes was seen last
//!     none: go on, faster the longer nothing was found
//!     unless it is at the newest offset: take the match at the next position instead if it is better
//!     extend it to the left over the literals before it; keep the sequence
//! ```

use super::{
    format::{FIRST_REPS, Sequence},
    window::{END, PAGE_AT, Window},
};

/// Entries of the hash table.
pub(super) const HASHES: usize = 1 << HASH_BITS;
const HASH_BITS: u32 = 12;

/// Where the bytes with each hash were seen last.
pub(super) type Seen = [u16; HASHES];

/// Most sequences of a page: each covers at least 3 bytes.
pub(super) const MAX_SEQUENCES: usize = 1366;

/// The entry for 5 bytes, the low ones of `word`.
#[inline(always)]
fn hash(word: u64) -> usize {
    ((word << 24).wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - HASH_BITS)) as usize
}

/// The table in which a page's search starts: the positions of the dictionary, `dictionary_len` bytes before the page
/// in `window`; later ones, which have smaller offsets, win. Where there is none, the position just before the page
/// stands, which any page may reach.
pub(super) fn seen_in_dictionary(window: &Window, dictionary_len: usize) -> Box<Seen> {
    let mut seen = Box::new([PAGE_AT as u16 - 8; HASHES]);
    for at in (PAGE_AT - dictionary_len..PAGE_AT).take(dictionary_len.saturating_sub(8)) {
        seen[hash(window.word(at))] = at as u16;
    }
    seen
}

struct Match {
    length: usize,
    offset: usize,
    rep: usize,
}

/// Finds the sequences of the page in `window`, writes them to the front of `sequences`, and gives their number. What
/// they leave of the page is literals. `seen` is changed.
#[inline(always)]
pub(super) fn parse(window: &Window, seen: &mut Seen, sequences: &mut [Sequence; MAX_SEQUENCES]) -> usize {
    let mut reps = FIRST_REPS.map(usize::from);
    let mut count = 0;
    let mut done = PAGE_AT;
    let mut at = PAGE_AT;
    while at < END - 8 {
        let Some(mut found) = find(window, seen, &reps, at) else {
            at += 1 + ((at - done) >> 6);
            continue;
        };
        if found.rep != 0
            && at + 1 < END - 8
            && let Some(next) = find(window, seen, &reps, at + 1)
            && worth(&next) > worth(&found) + 1
        {
            at += 1;
            found = next;
        }
        let Match { mut length, offset, mut rep } = found;
        if rep == 3 {
            while at > done && window.get::<1>(at - 1) == window.get::<1>(at - 1 - offset) {
                at -= 1;
                length += 1;
            }
            rep = reps.iter().position(|&rep| rep == offset).unwrap_or(3);
        }
        let Some(slot) = sequences.get_mut(count) else { break };
        *slot = Sequence { run: (at - done) as u16, length: length as u16, offset: offset as u16, rep: rep as u16 };
        count += 1;
        if rep > 1 {
            reps[2] = reps[1];
        }
        if rep > 0 {
            reps[1] = reps[0];
        }
        reps[0] = offset;
        seen[hash(window.word(at + 2))] = (at + 2) as u16;
        at += length;
        done = at;
        seen[hash(window.word(at - 2))] = (at - 2) as u16;
    }
    count
}

/// What a match saves, roughly, in bytes.
#[inline(always)]
fn worth(found: &Match) -> usize {
    found.length + if found.rep < 3 { 2 } else { 0 }
}

#[inline(always)]
fn find(window: &Window, seen: &mut Seen, reps: &[usize; 3], at: usize) -> Option<Match> {
    let word = window.word(at);
    let slot = &mut seen[hash(word)];
    let candidate = usize::from(*slot);
    *slot = at as u16;
    for (rep, &offset) in reps.iter().enumerate() {
        if (word ^ window.word(at - offset)) & 0xff_ffff == 0 {
            return Some(Match { length: window.common(at, at - offset), offset, rep });
        }
    }
    if (word ^ window.word(candidate)) & 0xff_ffff_ffff == 0 {
        return Some(Match { length: window.common(at, candidate), offset: at - candidate, rep: 3 });
    }
    None
}
