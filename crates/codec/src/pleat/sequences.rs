//! The sequences of an object: first all are read, then all are carried out. The hot loops of the
//! decoder.
//!
//! ```text
//! until the matches make up all bytes that are not literals:
//!     token: 10 bits looked up give a meaning and the code's length
//!     extra bits: scattered over the meaning's mask and added to its base, they give run, length, offset at once
//!     the offset, if it repeats one of the last three; the last three
//! for each sequence: copy the run of literals, then the match
//! ```
//!
//! For speed:
//! 1. The first loop has no branch that depends on what is read, but for its end. The second has
//!    them all (is a run or a match long? is an offset short?), and all they need lies ready: a
//!    branch guessed wrong does not wait for a token to be decoded.
//! 2. Tokens are in two streams, which are looked up side by side and need more bits only every
//!    fifth time; extra bits are read at a place that depends on earlier tokens only, not on
//!    earlier bits.
//! 3. What the sequences take is summed up and compared with what there is once, before anything is
//!    copied.
#![allow(unsafe_code)] // Copies within the window, checked once a page.

use std::ops::Range;

use super::{
    PleatTables,
    bits::{COUNT, Reader, Room, word},
    format::Sequence,
    isa::Isa,
    literals::Literals,
    parse::MAX_SEQUENCES,
    tables::{SYMBOLS, TOKEN_MAX, TokenSet},
    window::{PAGE_AT, Window},
};
use crate::{
    Corrupt, PAGE_SIZE,
    mem::{copy, load64, store64, wild_copy},
};

/// Tokens of each stream that one refill serves.
const ROUNDS: usize = 5;
const _: () = assert!(ROUNDS * TOKEN_MAX as usize <= 56);

/// A sequence, ready to be carried out.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(super) struct Step {
    pub(super) run: u16,
    pub(super) length: u16,
    pub(super) offset: u16,
    /// Without meaning: it makes a step a word, which is stored at once.
    pub(super) rest: u16,
}

impl Step {
    /// The four numbers, the first lowest.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn of(word: u64) -> Self {
        Self { run: word as u16, length: (word >> 16) as u16, offset: (word >> 32) as u16, rest: (word >> 48) as u16 }
    }
}

/// Room for the sequences of a page.
pub(super) type Steps = [Step; MAX_SEQUENCES.next_multiple_of(2 * ROUNDS)];

/// Where the tokens and the extra bits of an object are.
pub(super) struct Sections {
    /// The tokens, in two streams.
    pub(super) tokens: Range<usize>,
    /// Where the extra bits end that begin after them.
    pub(super) end: usize,
}

/// The sequences of a page that belong together: their matches and `literal_count` literals are a
/// page, and their runs take no more literals than that.
pub(super) struct Checked<'a> {
    steps: &'a [Step],
    /// Literals that the runs take; the others belong at the page's end.
    pub(super) taken: usize,
}

/// Reads the sequences of an object, whose page has `literal_count` literals, at most
/// [`PAGE_SIZE`]. Its tokens are in the section `tokens`, the extra bits after it up to `end`.
#[inline(always)]
pub(super) fn read<'a, I: Isa>(
    tables: &PleatTables,
    set: &TokenSet,
    object: &Room,
    Sections { tokens, end }: Sections,
    literal_count: usize,
    steps: &'a mut Steps,
) -> Result<Checked<'a>, Corrupt> {
    let mut first = Reader::<false>::new(tokens.start);
    let mut second = Reader::<true>::new(tokens.end);
    let mut extra_bits = 0;
    let mut recent = I::first();
    let mut left = (PAGE_SIZE - literal_count) as isize;
    let mut count = 0;
    if left > 0 {
        'page: for pairs in steps.as_chunks_mut::<{ 2 * ROUNDS }>().0 {
            first.refill(object);
            second.refill(object);
            for [a, b] in pairs.as_chunks_mut::<2>().0 {
                // (A closure would keep what it changes in memory.)
                macro_rules! read_one {
                    ($step:ident, $tokens:ident) => {
                        let entry = set.decode[$tokens.peek() as usize & ((1 << TOKEN_MAX) - 1)];
                        $tokens.skip(u32::from(entry));
                        let meaning = &tables.meanings[usize::from(entry >> COUNT) & (SYMBOLS - 1)];
                        let extra = word(object, tokens.end.wrapping_add(extra_bits >> 3)) >> (extra_bits & 7);
                        let sequence = Sequence(meaning.base.wrapping_add(I::scatter(extra, meaning.mask)));
                        extra_bits += (meaning.base >> 56) as usize;
                        (*$step, recent) = I::resolve(sequence, recent);
                        left -= sequence.length() as isize;
                        count += 1;
                        if left <= 0 {
                            break 'page;
                        }
                    };
                }
                read_one!(a, first);
                read_one!(b, second);
            }
        }
    }
    let steps = steps.get(..count).unwrap_or_default();
    let taken = steps.iter().map(|step| usize::from(step.run)).sum();
    if left != 0 || taken > literal_count {
        return Err(Corrupt { what: "pleat sequences longer than a page" });
    }
    if first.place() != second.place() || tokens.end + extra_bits.div_ceil(8) != end {
        return Err(Corrupt { what: "pleat tokens of another length" });
    }
    Ok(Checked { steps, taken })
}

/// Carries out `sequences`, taking from `literals`, in the window. The literals that are left
/// belong at the page's end, and are not put there.
#[inline(always)]
pub(super) fn carry_out(sequences: &Checked<'_>, literals: &Literals, window: &mut Window) {
    // SAFETY: the steps' runs and matches together are no longer than a page (see `Checked`), so
    // the literals taken end at most PAGE_SIZE into `literals`, which has 64 bytes more, and `to`
    // is at most END, from which the window has 128 bytes more. A run is copied at most 32 bytes
    // beyond its end, a match too. An offset has 16 bits, and 64 KiB before the page's start can be
    // read. The buffers do not overlap.
    unsafe {
        let mut literal = literals.as_ptr();
        let mut to = window.as_mut_ptr().add(PAGE_AT);
        for &Step { run, length, offset, .. } in sequences.steps {
            let (run, length, offset) = (usize::from(run), usize::from(length), usize::from(offset));
            copy::<32>(literal, to);
            if run > 32 {
                wild_copy::<32>(literal.add(32), to.add(32), run - 32);
            }
            literal = literal.add(run);
            to = to.add(run);
            copy_match(to, offset, length);
            to = to.add(length);
        }
    }
}

/// Copies the match of `length` bytes at `to`, and up to 32 bytes more.
///
/// A word that was just stored in two parts is slow to read. So if the offset is less than a word,
/// the first four words are made of the bytes before. All later bytes are copied over the least
/// multiple of the offset that is 32 or more: that reaches less than an offset before the match,
/// where the same bytes repeat.
///
/// An offset of 0 stands for 65,536, where the window has zeros whatever `to` is, and makes zeros:
/// the first four words are zeros then, and the others are copied over 32 bytes.
///
/// # Safety
/// The `offset` bytes before `to` can be read, and `length + 32` bytes from `to` on read and
/// written.
#[inline(always)]
unsafe fn copy_match(to: *mut u8, offset: usize, length: usize) {
    // SAFETY: reads begin at most `offset` bytes before `to`, and if it is 0 at `to`, or at what was
    // written since; the last 32 bytes start at 0 or before `length`, so that writes end at most 32 bytes
    // after it.
    unsafe {
        if offset < 8 {
            // The bytes that repeat, as they begin in each word.
            let mut period = load64(to.sub(offset)) & FIRST[offset];
            let turn = TURN[offset];
            for at in [0, 8, 16, 24] {
                store64(to.add(at), period.wrapping_mul(REPEAT[offset]));
                period = (period >> turn | period << (8 * offset as u32 - turn)) & FIRST[offset];
            }
        } else {
            let from = to.sub(offset);
            copy::<8>(from, to);
            copy::<8>(from.add(8), to.add(8));
            copy::<8>(from.add(16), to.add(16));
            copy::<8>(from.add(24), to.add(24));
        }
        if length > 32 {
            let from = to.sub(LONG_MULTIPLE.get(offset).copied().unwrap_or(offset));
            let mut done = 32;
            while done < length {
                copy::<32>(from.add(done), to.add(done));
                done += 32;
            }
        }
    }
}

/// By offset: the bytes of a word that it holds before it repeats.
const FIRST: [u64; 8] =
    [0, 0xff, 0xffff, 0xff_ffff, 0xffff_ffff, 0xff_ffff_ffff, 0xffff_ffff_ffff, 0xff_ffff_ffff_ffff];
/// By offset: what to multiply these bytes by to repeat them.
const REPEAT: [u64; 8] = [
    0,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0001_0000_0100_0001,
    0x0000_0001_0000_0001,
    0x0000_0100_0000_0001,
    0x0001_0000_0000_0001,
    0x0100_0000_0000_0001,
];
/// By offset: bits of the bytes that a word holds more than a multiple of it.
const TURN: [u32; 8] = [0, 0, 0, 16, 0, 24, 16, 8];
/// By offset: its least multiple that is 32 or more.
const LONG_MULTIPLE: [usize; 32] = {
    let mut multiples = [32; 32];
    let mut offset = 1;
    while offset < 32 {
        multiples[offset] = 32usize.next_multiple_of(offset);
        offset += 1;
    }
    multiples
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_repeat_what_lies_an_offset_before_them() {
        for offset in 0..80 {
            for length in 1..200 {
                let mut bytes: Vec<u8> = (0..400u32).map(|at| (at * at / 7) as u8 | 1).collect();
                let mut wanted = bytes.clone();
                for at in 100..100 + length {
                    wanted[at] = if offset == 0 { 0 } else { wanted[at - offset] };
                }
                // SAFETY: of 400 bytes, 100 are before the match and 300 from its start on.
                unsafe { copy_match(bytes.as_mut_ptr().add(100), offset, length) };
                assert!(bytes[..100 + length] == wanted[..100 + length], "{length} bytes over {offset}");
            }
        }
    }
}
