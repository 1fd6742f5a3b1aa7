//! The literals of a page, coded in lanes: the hot loops for what matches do not give.
//!
//! ```text
//! decode: 10 bits, looked up in the context that the literal before makes, give one or two literals
//! ```
//!
//! For speed: a look-up gives two literals if its bits hold both codes; the lanes are independent, so the processor works
//! on all four at once; one refill serves five look-ups. No branch depends on a literal, but for escapes, which are rare.
#![allow(unsafe_code)] // Stores of four bytes, checked once a few literals.

use std::ops::Range;

use super::{
    bits::{Reader, Room, Writer},
    tables::{LITERAL_MAX, LiteralSet, Lookup},
};
use crate::{
    Corrupt, PAGE_SIZE,
    mem::{copy, load32},
};

/// The literals of a page, and room for wide copies.
pub(super) type Literals = [u8; PAGE_SIZE + 64];

/// Look-ups that one refill serves.
const LOOKUPS: usize = 5;
/// Bytes that these may write: two literals each, and the last stores four bytes.
const STEP: usize = 2 * LOOKUPS + 2;

/// Encodes a lane to `room` and gives its length in bytes.
#[inline(always)]
pub(super) fn encode_lane(set: &LiteralSet, literals: &[u8], room: &mut Room) -> usize {
    let mut writer = Writer::new(room);
    let mut context = usize::from(set.context_after[0]);
    let mut put = |writer: &mut Writer, literal: u8| {
        let code = set.encode[(context << 8 | usize::from(literal)) & (set.encode.len() - 1)];
        writer.put(u64::from(code & 0x7ff_ffff), code >> 27);
        context = usize::from(set.context_after[usize::from(literal)]);
    };
    let (threes, rest) = literals.as_chunks::<3>();
    for &three in threes {
        for literal in three {
            put(&mut writer, literal);
        }
        writer.flush();
    }
    for &literal in rest {
        put(&mut writer, literal);
    }
    writer.finish()
}

/// A lane being decoded.
#[derive(Clone, Copy)]
struct Lane<const DOWN: bool> {
    reader: Reader<DOWN>,
    /// What the last look-up gave.
    last: Lookup,
    /// Where the next literal goes.
    at: usize,
    /// Where the next lane begins.
    end: usize,
}

impl<const DOWN: bool> Lane<DOWN> {
    #[inline(always)]
    fn new(set: &LiteralSet, at: usize, literals: Range<usize>) -> Self {
        let last = Lookup(u32::from(set.context_after[0]) << LITERAL_MAX);
        Self { reader: Reader::new(at), last, at: literals.start, end: literals.end }
    }

    /// How often [`STEP`] bytes fit what is left.
    #[inline(always)]
    fn steps(&self) -> usize {
        self.end.saturating_sub(self.at) / STEP
    }

    /// Decodes one or two literals, or goes to an escape; [`LITERAL_MAX`] bits must be ready.
    ///
    /// # Safety
    /// `at` is at most PAGE_SIZE + 60.
    #[inline(always)]
    unsafe fn look_up(&mut self, set: &LiteralSet, literals: &mut Literals) {
        let bits = self.reader.peek() as u32 & ((1 << LITERAL_MAX) - 1);
        let Lookup(entry) = set.decode[(self.last.0 & Lookup::CONTEXT | bits) as usize];
        // SAFETY: the caller's: the four bytes lie in the array.
        unsafe { copy::<4>((entry >> 16).to_le_bytes().as_ptr(), literals.as_mut_ptr().add(self.at)) };
        self.at += (entry >> 6 & 3) as usize;
        self.reader.skip(entry);
        self.last = Lookup(entry);
    }

    /// Whether the last look-up went to an escape.
    #[inline(always)]
    fn is_escaped(&self) -> bool {
        self.last.0 & 0xc0 == 0
    }

    /// If the last look-up went to an escape, takes the 8 bits after it, and makes 56 ready. (By value, so that the
    /// state of a lane stays in registers.)
    #[inline(always)]
    fn resolved(mut self, set: &LiteralSet, room: &Room, literals: &mut Literals) -> Self {
        if self.is_escaped() {
            self.reader.refill(room);
            let literal = self.reader.peek() as u8;
            self.reader.skip(8);
            self.reader.refill(room);
            literals[self.at] = literal;
            self.at += 1;
            self.last = Lookup(u32::from(set.context_after[usize::from(literal)]) << LITERAL_MAX);
        }
        self
    }

    /// Decodes what is left of the lane, and gives the place that its bits reach, those of the last look-up included.
    #[inline(always)]
    fn finish(mut self, set: &LiteralSet, room: &Room, literals: &mut Literals) -> usize {
        debug_assert!(self.end <= PAGE_SIZE);
        // What the last look-up writes beyond the lane's end stands where the next lane begins.
        // SAFETY: `end` is at most PAGE_SIZE; the array has 64 bytes more.
        let next_lane = unsafe { load32(literals.as_ptr().add(self.end)) }.to_le_bytes();
        'lane: while self.at < self.end {
            self.reader.refill(room);
            for _ in 0..LOOKUPS {
                // SAFETY: `at` is below `end`.
                unsafe { self.look_up(set, literals) };
                self = self.resolved(set, room, literals);
                if self.at >= self.end {
                    break 'lane;
                }
            }
        }
        // SAFETY: as above.
        unsafe { copy::<4>(next_lane.as_ptr(), literals.as_mut_ptr().add(self.end)) };
        self.reader.place()
    }
}

/// Two lanes, of which one or both may have come to an escape.
#[cold]
#[inline(never)]
fn both(
    a: Lane<false>,
    b: Lane<true>,
    set: &LiteralSet,
    room: &Room,
    literals: &mut Literals,
) -> (Lane<false>, Lane<true>) {
    (a.resolved(set, room, literals), b.resolved(set, room, literals))
}

/// Bytes that the last look-ups of a pair of lanes may take beyond where the lanes meet: less than a look-up's bits each.
const BEYOND: usize = 4;

fn meet(a: usize, b: usize) -> Result<(), Corrupt> {
    if a.wrapping_sub(b) <= BEYOND { Ok(()) } else { Err(Corrupt { what: "pleat lanes of another length" }) }
}

/// Decodes the first `count` of `literals` from two lanes between the places `bounds`.
#[inline(always)]
pub(super) fn decode_2(
    set: &LiteralSet,
    room: &Room,
    bounds: [usize; 2],
    literals: &mut Literals,
    count: usize,
) -> Result<(), Corrupt> {
    let count = count.min(PAGE_SIZE);
    let each = count / 2;
    let mut a = Lane::<false>::new(set, bounds[0], 0..each);
    let mut b = Lane::<true>::new(set, bounds[1], each..count);
    loop {
        let steps = a.steps().min(b.steps());
        if steps == 0 {
            break;
        }
        for _ in 0..steps {
            a.reader.refill(room);
            b.reader.refill(room);
            for _ in 0..LOOKUPS {
                // SAFETY: there is room for `steps` steps before the end of each lane, which is at most PAGE_SIZE.
                unsafe {
                    a.look_up(set, literals);
                    b.look_up(set, literals);
                }
                if a.is_escaped() | b.is_escaped() {
                    (a, b) = both(a, b, set, room, literals);
                }
            }
        }
    }
    let a = a.finish(set, room, literals);
    let b = b.finish(set, room, literals);
    meet(a, b)
}

/// Decodes the first `count` of `literals` from four lanes between the places `bounds`.
#[inline(always)]
pub(super) fn decode_4(
    set: &LiteralSet,
    room: &Room,
    bounds: [usize; 3],
    literals: &mut Literals,
    count: usize,
) -> Result<(), Corrupt> {
    let count = count.min(PAGE_SIZE);
    let each = count / 4;
    let mut a = Lane::<false>::new(set, bounds[0], 0..each);
    let mut b = Lane::<true>::new(set, bounds[1], each..2 * each);
    let mut c = Lane::<false>::new(set, bounds[1], 2 * each..3 * each);
    let mut d = Lane::<true>::new(set, bounds[2], 3 * each..count);
    loop {
        let steps = a.steps().min(b.steps()).min(c.steps()).min(d.steps());
        if steps == 0 {
            break;
        }
        for _ in 0..steps {
            a.reader.refill(room);
            b.reader.refill(room);
            c.reader.refill(room);
            d.reader.refill(room);
            for _ in 0..LOOKUPS {
                // SAFETY: there is room for `steps` steps before the end of each lane, which is at most PAGE_SIZE.
                unsafe {
                    a.look_up(set, literals);
                    b.look_up(set, literals);
                    c.look_up(set, literals);
                    d.look_up(set, literals);
                }
                if a.is_escaped() | b.is_escaped() | c.is_escaped() | d.is_escaped() {
                    (a, b) = both(a, b, set, room, literals);
                    (c, d) = both(c, d, set, room, literals);
                }
            }
        }
    }
    let a = a.finish(set, room, literals);
    let b = b.finish(set, room, literals);
    let c = c.finish(set, room, literals);
    let d = d.finish(set, room, literals);
    meet(a, b)?;
    meet(c, d)
}
