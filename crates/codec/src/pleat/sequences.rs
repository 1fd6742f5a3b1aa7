//! The sequences of an object: first all are read, then all are executed. The decoder's hot loops.
//!
//! ```text
//! until the matches make up all bytes that are not literals:
//!     token: looking up 10 bits gives a meaning and the code's length
//!     extra bits: scattered over the meaning's mask and added to its base, they give run, length
//!         and offset together
//!     resolve the offset if it repeats one of the last three; update those
//! for each sequence: copy the run of literals, then the match
//! ```
//!
//! Speed:
//!
//! 1. The first loop has no branch that depends on the data, except its end. The second has all of
//!    them (is a run or a match long? is an offset short?), with all inputs available: a
//!    mispredicted branch does not wait for a token to be decoded.
//! 2. Tokens are in two streams, which are looked up side by side and need a refill only every
//!    fifth time; while literals are decoded, every second. The place of extra bits depends only on earlier
//!    tokens, not on earlier bits.
//! 3. The sizes of the sequences are summed and checked once, before anything is copied.
#![allow(unsafe_code)] // Copies within the window, checked once per page.

use std::ops::Range;

use super::{
    PleatTables,
    bits::{COUNT, Reader, Room, word},
    format::{Meaning, Sequence, Step},
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

/// Maximum number of sequences that are read after one refill of both streams.
const MOST_TOGETHER: usize = 10;
const _: () = assert!(MOST_TOGETHER / 2 * TOKEN_MAX as usize <= 56);
/// Number of sequences that are read together while literals are decoded: few enough that the
/// processor has begun them before it waits for the next look-ups.
const FEW_TOGETHER: usize = 4;

/// Room for the sequences of a page.
pub(super) type Steps = [Step; MAX_SEQUENCES + MOST_TOGETHER];

/// The places of an object's tokens and extra bits.
pub(super) struct Sections {
    /// The tokens, in two streams.
    pub(super) tokens: Range<usize>,
    /// The end of the extra bits, which begin after the tokens.
    pub(super) end: usize,
}

/// The consistent sequences of a page: their matches and `literal_count` literals make exactly a
/// page, and their runs use no more literals than that.
pub(super) struct Checked<'a> {
    steps: &'a [Step],
    /// Literals that the runs use; the others belong at the page's end.
    pub(super) taken: usize,
}

/// The input from which sequences are read.
#[derive(Clone, Copy)]
struct Source<'a> {
    lookups: &'a [u16; 1 << TOKEN_MAX],
    meanings: &'a [Meaning; SYMBOLS],
    object: &'a Room,
    /// Where the extra bits begin.
    extra_at: usize,
}

/// How far sequences were read. Taken and returned by value, so that it stays in registers.
#[derive(Clone, Copy)]
struct State<Recent> {
    first: Reader<false>,
    second: Reader<true>,
    extra_bits: usize,
    recent: Recent,
    /// Bytes that more matches must give; below zero if they gave too many.
    left: isize,
    count: usize,
}

impl<Recent: Copy> State<Recent> {
    /// Reads the next `N` sequences, or all if fewer are left. `N` is even, at most [`MOST_TOGETHER`].
    #[inline(always)]
    fn after<const N: usize, I: Isa<Recent = Recent>>(mut self, source: Source<'_>, steps: &mut Steps) -> Self {
        if self.left <= 0 {
            return self;
        }
        let Some(steps) = steps.get_mut(self.count..self.count + N) else {
            // More than a page can have.
            return Self { left: -1, ..self };
        };
        self.first.refill(source.object);
        self.second.refill(source.object);
        for [a, b] in steps.as_chunks_mut::<2>().0 {
            // (A closure would keep the variables that it changes in memory.)
            macro_rules! read_one {
                ($step:ident, $tokens:ident) => {
                    let entry = source.lookups[self.$tokens.peek() as usize & ((1 << TOKEN_MAX) - 1)];
                    self.$tokens.skip(u32::from(entry));
                    let meaning = &source.meanings[usize::from(entry >> COUNT) & (SYMBOLS - 1)];
                    let extra_at = source.extra_at.wrapping_add(self.extra_bits >> 3);
                    let extra = word(source.object, extra_at) >> (self.extra_bits & 7);
                    let sequence = Sequence(meaning.base.wrapping_add(I::scatter(extra, meaning.mask)));
                    self.extra_bits += (meaning.base >> 56) as usize;
                    (*$step, self.recent) = I::resolve(sequence, self.recent);
                    self.left -= sequence.length() as isize;
                    self.count += 1;
                    if self.left <= 0 {
                        return self;
                    }
                };
            }
            read_one!(a, first);
            read_one!(b, second);
        }
        self
    }
}

/// The sequences of an object, being read.
pub(super) struct Reading<'a, I: Isa> {
    source: Source<'a>,
    state: State<I::Recent>,
    steps: &'a mut Steps,
    literal_count: usize,
    /// Where the extra bits must end.
    end: usize,
}

impl<'a, I: Isa> Reading<'a, I> {
    /// Begins to read the sequences of an object whose page has `literal_count` literals, at most
    /// [`PAGE_SIZE`].
    #[inline(always)]
    pub(super) fn new(
        tables: &'a PleatTables,
        set: &'a TokenSet,
        object: &'a Room,
        Sections { tokens, end }: Sections,
        literal_count: usize,
        steps: &'a mut Steps,
    ) -> Self {
        let source = Source { lookups: &set.decode, meanings: &tables.meanings, object, extra_at: tokens.end };
        let state = State {
            first: Reader::new(tokens.start),
            second: Reader::new(tokens.end),
            extra_bits: 0,
            recent: I::first(),
            left: (PAGE_SIZE - literal_count) as isize,
            count: 0,
        };
        Self { source, state, steps, literal_count, end }
    }

    /// Reads a few more.
    #[inline(always)]
    pub(super) fn some(&mut self) {
        self.state = self.state.after::<FEW_TOGETHER, I>(self.source, self.steps);
    }

    /// Reads all remaining sequences, and checks them.
    #[inline(always)]
    pub(super) fn finish(self) -> Result<Checked<'a>, Corrupt> {
        let Self { source, mut state, steps, literal_count, end } = self;
        while state.left > 0 {
            state = state.after::<MOST_TOGETHER, I>(source, steps);
        }
        let State { first, second, extra_bits, left, count, .. } = state;
        let steps = steps.get(..count).unwrap_or_default();
        let taken = steps.iter().map(|step| usize::from(step.run)).sum();
        if left != 0 || taken > literal_count {
            return Err(Corrupt { what: "pleat sequences do not fit the page" });
        }
        if first.place() != second.place() || source.extra_at + extra_bits.div_ceil(8) != end {
            return Err(Corrupt { what: "pleat token section has the wrong length" });
        }
        Ok(Checked { steps, taken })
    }
}

/// Executes `sequences` in the window with the literals from `literals`. The remaining literals
/// belong at the page's end and are not copied there.
#[inline(always)]
pub(super) fn carry_out(sequences: &Checked<'_>, literals: &Literals, window: &mut Window) {
    // SAFETY: the steps' runs and matches together are at most a page (see `Checked`), so the
    // literals used end at most PAGE_SIZE into `literals`, which has 64 more bytes, and `to` is at
    // most END, after which the window has 128 bytes. Runs and matches are copied at most 32 bytes
    // beyond their ends. An offset has 16 bits, and 64 KiB before the page's start can be read. The
    // buffers do not overlap.
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
/// Reading a word that was just stored in two parts is slow. So if the offset is less than a word,
/// the first four words are computed from the bytes before. All later bytes are copied from a
/// distance of the smallest multiple of the offset that is at least 32: that reaches less than an
/// offset before the match, where the same bytes repeat.
///
/// An offset of 0 means 65,536, where the window has zeros whatever `to` is, and gives zeros: the
/// first four words are zeros, and the others are copied from 32 bytes back.
///
/// # Safety
/// The `offset` bytes before `to` can be read, and `length + 32` bytes from `to` read and written.
#[inline(always)]
unsafe fn copy_match(to: *mut u8, offset: usize, length: usize) {
    // SAFETY: reads begin at most `offset` bytes before `to` or, if it is 0, at `to`, or in bytes
    // written since; the last 32 bytes start at 0 or before `length`, so writes end at most 32
    // bytes after it.
    unsafe {
        if offset < 8 {
            // The bytes that repeat, as each word begins with them.
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

/// By offset: mask of the bytes of a word before they repeat.
const FIRST: [u64; 8] =
    [0, 0xff, 0xffff, 0xff_ffff, 0xffff_ffff, 0xff_ffff_ffff, 0xffff_ffff_ffff, 0xff_ffff_ffff_ffff];
/// By offset: the factor that repeats these bytes.
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
/// By offset: bits of a word beyond a whole multiple of the offset.
const TURN: [u32; 8] = [0, 0, 0, 16, 0, 24, 16, 8];
/// By offset: its smallest multiple that is at least 32.
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
    fn matches_repeat_the_bytes_an_offset_before() {
        for offset in 0..80 {
            for length in 1..200 {
                let mut bytes: Vec<u8> = (0..400u32).map(|at| (at * at / 7) as u8 | 1).collect();
                let mut wanted = bytes.clone();
                for at in 100..100 + length {
                    wanted[at] = if offset == 0 { 0 } else { wanted[at - offset] };
                }
                // SAFETY: of 400 bytes, 100 are before the match and 300 from its start.
                unsafe { copy_match(bytes.as_mut_ptr().add(100), offset, length) };
                assert!(bytes[..100 + length] == wanted[..100 + length], "{length} bytes over {offset}");
            }
        }
    }
}
