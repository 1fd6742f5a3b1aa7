//! The literals of a page, coded in lanes: the hot loops for what matches do not give.
//!
//! ```text
//! decode: 10 bits, looked up in the context that the literal before makes, give one or two literals
//! ```
//!
//! For speed: a look-up gives two literals if its bits hold both codes; the lanes are independent, so the processor works
//! on all four at once; one refill serves five look-ups. No branch depends on a literal, but for escapes, which are rare.
#![allow(unsafe_code)] // Stores of four bytes, checked once a few literals.

use super::{
    bits::{Reader, Room, Writer},
    tables::{CONTEXTS, LITERAL_MAX, LiteralSet, Lookup},
};
use crate::{
    Corrupt, PAGE_SIZE,
    mem::{load16, store16},
};

/// The literals of a page, and room for wide copies.
pub(super) type Literals = [u8; PAGE_SIZE + 64];

/// Look-ups that one refill serves.
const LOOKUPS: usize = 5;
/// Most literals of these.
const STEP: usize = 2 * LOOKUPS;

type Decode = [Lookup; CONTEXTS << LITERAL_MAX];

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
    at: *mut u8,
    /// Where the next lane begins.
    end: *mut u8,
}

impl<const DOWN: bool> Lane<DOWN> {
    /// # Safety
    /// The pointers from `start` to `end` and the two bytes from there on are of one array that nothing else uses while
    /// there is a lane.
    #[inline(always)]
    unsafe fn new(set: &LiteralSet, bits_at: usize, start: *mut u8, end: *mut u8) -> Self {
        let last = Lookup(u32::from(set.context_after[0]) << LITERAL_MAX);
        Self { reader: Reader::new(bits_at), last, at: start, end }
    }

    /// How often [`STEP`] literals fit what is left.
    #[inline(always)]
    fn steps(&self) -> usize {
        (self.end.addr() - self.at.addr()) / STEP
    }

    /// Decodes one or two literals, or goes to an escape; [`LITERAL_MAX`] bits must be ready.
    ///
    /// # Safety
    /// `at` is at most `end`; if it is `end`, the next byte and the one after are of the array.
    #[inline(always)]
    unsafe fn look_up(&mut self, decode: &Decode) {
        let bits = self.reader.peek() as u32 & ((1 << LITERAL_MAX) - 1);
        let Lookup(entry) = decode[(self.last.0 & Lookup::CONTEXT | bits) as usize];
        // SAFETY: the caller's.
        unsafe {
            store16(self.at, (entry >> 14) as u16);
            self.at = self.at.add((entry >> 30) as usize);
        }
        self.reader.skip(entry);
        self.last = Lookup(entry);
    }

    /// If the last look-up went to an escape, takes the 8 bits after it, and makes 56 ready. (By value, so that the
    /// state of a lane stays in registers.)
    ///
    /// # Safety
    /// As of [`look_up`](Self::look_up).
    #[inline(always)]
    unsafe fn resolved(mut self, set: &LiteralSet, room: &Room) -> Self {
        if self.last.0 & Lookup::ESCAPED != 0 {
            self.reader.refill(room);
            let literal = self.reader.peek() as u8;
            self.reader.skip(8);
            self.reader.refill(room);
            // SAFETY: the caller's.
            unsafe {
                self.at.write(literal);
                self.at = self.at.add(1);
            }
            self.last = Lookup(u32::from(set.context_after[usize::from(literal)]) << LITERAL_MAX);
        }
        self
    }

    /// Decodes what is left of the lane, and gives the place that its bits reach, those of the last look-up included.
    ///
    /// # Safety
    /// The two bytes at `end` are of the array.
    #[inline(always)]
    unsafe fn finish(mut self, set: &LiteralSet, room: &Room) -> usize {
        // What the last look-up writes beyond the lane's end stands where the next lane begins.
        // SAFETY: the caller's.
        let next_lane = unsafe { load16(self.end) };
        'lane: while self.at < self.end {
            self.reader.refill(room);
            for _ in 0..LOOKUPS {
                // SAFETY: `at` is below `end`.
                unsafe {
                    self.look_up(&set.decode);
                    self = self.resolved(set, room);
                }
                if self.at >= self.end {
                    break 'lane;
                }
            }
        }
        // SAFETY: the caller's.
        unsafe { store16(self.end, next_lane) };
        self.reader.place()
    }
}

/// Two lanes, of which one or both may have come to an escape.
///
/// # Safety
/// As of [`Lane::resolved`].
#[cold]
#[inline(never)]
unsafe fn both(a: Lane<false>, b: Lane<true>, set: &LiteralSet, room: &Room) -> (Lane<false>, Lane<true>) {
    // SAFETY: the caller's.
    unsafe { (a.resolved(set, room), b.resolved(set, room)) }
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
    let start = literals.as_mut_ptr();
    let decode = &*set.decode;
    // SAFETY: lanes lie in the first `count` bytes of `literals`, which has 64 more than PAGE_SIZE; `start` is the only way to
    // it here. A step writes at most STEP bytes, those of the last look-up included, and `steps` of them fit each lane.
    unsafe {
        let middle = start.add(count / 2);
        let mut a = Lane::<false>::new(set, bounds[0], start, middle);
        let mut b = Lane::<true>::new(set, bounds[1], middle, start.add(count));
        loop {
            let steps = a.steps().min(b.steps());
            if steps == 0 {
                break;
            }
            for _ in 0..steps {
                a.reader.refill(room);
                b.reader.refill(room);
                macro_rules! rounds {
                    ($($number:literal)*) => { $(
                        let _: u8 = $number;
                        a.look_up(decode);
                        b.look_up(decode);
                        if (a.last.0 | b.last.0) & Lookup::ESCAPED != 0 {
                            (a, b) = both(a, b, set, room);
                        }
                    )* };
                }
                rounds!(0 1 2 3 4);
            }
        }
        let a = a.finish(set, room);
        let b = b.finish(set, room);
        meet(a, b)
    }
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
    let start = literals.as_mut_ptr();
    let decode = &*set.decode;
    // SAFETY: as in `decode_2`.
    unsafe {
        let [second, third, fourth] = [1, 2, 3].map(|lane| start.add(lane * (count / 4)));
        let mut a = Lane::<false>::new(set, bounds[0], start, second);
        let mut b = Lane::<true>::new(set, bounds[1], second, third);
        let mut c = Lane::<false>::new(set, bounds[1], third, fourth);
        let mut d = Lane::<true>::new(set, bounds[2], fourth, start.add(count));
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
                macro_rules! rounds {
                    ($($number:literal)*) => { $(
                        let _: u8 = $number;
                        a.look_up(decode);
                        b.look_up(decode);
                        c.look_up(decode);
                        d.look_up(decode);
                        if (a.last.0 | b.last.0 | c.last.0 | d.last.0) & Lookup::ESCAPED != 0 {
                            (a, b) = both(a, b, set, room);
                            (c, d) = both(c, d, set, room);
                        }
                    )* };
                }
                rounds!(0 1 2 3 4);
            }
        }
        let a = a.finish(set, room);
        let b = b.finish(set, room);
        let c = c.finish(set, room);
        let d = d.finish(set, room);
        meet(a, b)?;
        meet(c, d)
    }
}
