//! The sequences of an object, decoded and carried out: the hot loop of the decoder.
//!
//! ```text
//! until the matches have given all bytes that are not literals:
//!     token: 12 bits looked up give a meaning and the code's length
//!     extra bits: scattered over the meaning's mask and added to its base, they give run, length, offset at once
//!     the offset, if it repeats one of the last three; the last three
//!     copy the run of literals, then the match
//! ```
//!
//! For speed: tokens are read upwards and need more bits only every fourth time; extra bits are read downwards at a
//! place that depends on earlier tokens only, not on earlier bits. No branch depends on the kind of the offset.
#![allow(unsafe_code)] // Copies within the window, checked once a sequence.

use std::{hint::select_unpredictable, ops::Range};

use super::{
    PleatTables,
    bits::{Reader, Room, word_before},
    format::{FIRST_REPS, Sequence, TRIPLE_BITS, meaning},
    isa::Isa,
    literals::Literals,
    tables::{SYMBOLS, TOKEN_ESCAPE, TOKEN_MAX, TokenSet},
    window::{PAGE_AT, Window},
};
use crate::{
    Corrupt, PAGE_SIZE,
    mem::{copy, load64, store64, wild_copy},
};

/// Where the decoder has what the sequences need.
#[derive(Clone, Copy)]
pub(super) struct Rooms<'a> {
    pub(super) object: &'a Room,
    pub(super) literals: &'a Literals,
}

/// Tokens that one refill serves, if none is an escape.
const TOKENS_A_REFILL: usize = 4;

/// What is left of literals (low half) and of bytes from matches (high half). Each half has its top bit set as long as
/// no more was taken than there was.
const LEFT: u32 = 0x8000_8000;

/// Carries out the sequences in `section` of the object, of which `literal_count` literals are decoded, in the window.
/// Gives the number of literals they took; the others belong at the page's end, and are not in the window.
#[inline(always)]
pub(super) fn decode<I: Isa>(
    tables: &PleatTables,
    set: &TokenSet,
    rooms: Rooms<'_>,
    section: Range<usize>,
    literal_count: usize,
    window: &mut Window,
) -> Result<usize, Corrupt> {
    let Rooms { object, literals } = rooms;
    let window = window.as_mut_ptr();
    let mut tokens = Reader::<false>::new(section.start);
    let mut extra_bits = 0;
    let [mut newest, mut second, mut third] = FIRST_REPS.map(usize::from);
    let mut at = PAGE_AT;
    let mut literal = 0;
    let mut left = (literal_count | (PAGE_SIZE - literal_count) << 16) as u32 | LEFT;
    'page: while left >> 16 != LEFT >> 16 {
        tokens.refill(object);
        for _ in 0..TOKENS_A_REFILL {
            let entry = set.decode[tokens.peek() as usize & ((1 << TOKEN_MAX) - 1)];
            tokens.skip(u32::from(entry & 15));
            let symbol = usize::from(entry >> 4) & (SYMBOLS - 1);
            let mut meaning = tables.meanings[symbol];
            if symbol == TOKEN_ESCAPE {
                (tokens, meaning) = escaped(tokens, object)?;
            }
            let extra = word_before(object, section.end.wrapping_sub(extra_bits >> 3)) >> (extra_bits & 7);
            let sequence = Sequence(meaning.base.wrapping_add(I::scatter(extra, meaning.mask)));
            extra_bits += (meaning.base >> 56) as usize;
            let (run, length, rep) = (sequence.run(), sequence.length(), sequence.rep());
            let mut offset = sequence.offset();
            offset = select_unpredictable(rep == 0, newest, offset);
            offset = select_unpredictable(rep == 1, second, offset);
            offset = select_unpredictable(rep == 2, third, offset);
            third = select_unpredictable(rep >= 2, second, third);
            second = select_unpredictable(rep >= 1, newest, second);
            newest = offset;
            left = left.wrapping_sub(sequence.0 as u32);
            if left & LEFT != LEFT {
                return Err(Corrupt { what: "pleat sequences longer than a page" });
            }
            // SAFETY: `left` shows that runs and matches so far, this sequence's included, are no more than
            // `literal_count` and the rest of the page. So `literal + run` is at most PAGE_SIZE, and `literals` has 64
            // bytes more; `at + run + length` is at most END, and the window has 128 bytes more. `wild_copy` goes at
            // most 16 bytes beyond, `copy_match` 32. An offset is at least 1 and at most MAX_OFFSET (a test shows it
            // for every meaning, and it holds for FIRST_REPS), which is less than PAGE_AT. The buffers do not overlap.
            unsafe {
                wild_copy::<16>(literals.as_ptr().add(literal), window.add(at), run);
                copy_match(window.add(at + run), offset, length);
            }
            literal += run;
            at += run + length;
            if left >> 16 == LEFT >> 16 {
                break 'page;
            }
        }
    }
    if tokens.place() != section.end.wrapping_sub(extra_bits.div_ceil(8)) {
        return Err(Corrupt { what: "pleat tokens of another length" });
    }
    Ok(literal)
}

/// The meaning after an escape.
#[cold]
#[inline(never)]
fn escaped(mut tokens: Reader<false>, object: &Room) -> Result<(Reader<false>, super::format::Meaning), Corrupt> {
    tokens.refill(object);
    let triple = tokens.peek() as u16 & ((1 << TRIPLE_BITS) - 1);
    tokens.skip(TRIPLE_BITS);
    tokens.refill(object);
    let meaning = meaning(triple).ok_or(Corrupt { what: "pleat token without meaning" })?;
    Ok((tokens, meaning))
}

/// Copies the match of `length` bytes at `to`, and up to 32 bytes more.
///
/// By words. If a word's source overlaps it, it is made of the bytes before, and all later words are copied over the
/// least multiple of the offset that is a word or more: that reaches less than an offset before the match, where the
/// same bytes repeat.
///
/// # Safety
/// `offset` is at least 1. The `offset` bytes before `to` can be read, and `length + 32` bytes from `to` on written.
#[inline(always)]
unsafe fn copy_match(to: *mut u8, offset: usize, length: usize) {
    // SAFETY: reads begin at least 1 and at most `offset` bytes before `to`, or at what was written since; the last
    // step starts before `length`, so that writes end at most 32 bytes after it.
    unsafe {
        let mut distance = offset;
        if offset < 8 {
            let word = (load64(to.sub(offset)) & FIRST[offset]).wrapping_mul(REPEAT[offset]);
            store64(to, word);
            distance = MULTIPLE[offset];
        } else {
            copy::<8>(to.sub(offset), to);
        }
        copy::<8>(to.add(8).sub(distance), to.add(8));
        let mut done = 16;
        while done < length {
            copy::<8>(to.add(done).sub(distance), to.add(done));
            copy::<8>(to.add(done + 8).sub(distance), to.add(done + 8));
            done += 16;
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
/// By offset: its least multiple that is 8 or more.
const MULTIPLE: [usize; 8] = [8, 8, 8, 9, 8, 10, 12, 14];
