//! The literals of a page, coded in lanes: the hot loops for the bytes that matches do not cover.
//!
//! ```text
//! decode: 10 bits, looked up in the context that the previous literal selects, give one or two
//!         literals, or none: an escape
//! ```
//!
//! Speed:
//!
//! 1. A look-up gives two literals if its bits contain both codes. The lanes are independent, so
//!    the processor works on four in parallel; one refill serves five look-ups. See `sixteen` for more.
//! 2. No branch depends on a literal. An escape is a look-up like any other: it selects the context
//!    in which the next 8 bits are a literal.
//! 3. Lanes reach their ends side by side; masks keep a finished lane unchanged.
#![allow(unsafe_code)] // Stores of two bytes, checked once per few literals; unchecked codes.

use std::hint::cold_path;

use super::{
    bits::{Reader, Room, turn},
    isa::Generic,
    lanes::{self, Bounds, GROUP, PAIRS, SIXTEEN_FROM},
    tables::{CONTEXTS, LITERAL_MAX, LiteralSet, Lookup, Lookups},
};
use crate::{
    Corrupt, PAGE_SIZE,
    mem::{load32, store16, store32},
};

/// The literals of a page, and room for wide copies.
pub(super) type Literals = [u8; PAGE_SIZE + 64];

/// Look-ups that one refill serves.
const ROUNDS: usize = 5;
/// Maximum literals that these give.
const STEP: usize = 2 * ROUNDS;

/// A lane being written.
///
/// Its last bits are the highest of a word: a code shifts them down by its length and takes their
/// place. The bits below them in the word are stale.
struct Codes<'a> {
    room: &'a mut Room,
    at: usize,
    word: u64,
    /// In its low 6 bits, the number of bits of `word` that belong to the byte at `at` and later
    /// ones.
    count: u64,
}

impl Codes<'_> {
    /// Maximum bits in `word`: entries have their length below.
    const MOST: u64 = 58;

    /// Returns the number of bits after `entries` are appended.
    #[inline(always)]
    fn count_after(&self, entries: &[u64]) -> u64 {
        entries.iter().fold(self.count, |count, entry| count.wrapping_add(*entry))
    }

    /// Appends the codes of `entries` from [`LiteralSet::encode`], at least one of which is not 0.
    #[inline(always)]
    fn push_all(&mut self, entries: &[u64; GROUP]) {
        if self.count_after(entries) & 127 <= Self::MOST {
            self.push(entries);
        } else {
            // Escapes.
            cold_path();
            entries.iter().filter(|&&entry| entry > 0).for_each(|&entry| self.push(&[entry]));
        }
    }

    /// Appends the codes of `entries` from [`LiteralSet::encode`], at least one.
    #[inline(always)]
    fn push(&mut self, entries: &[u64]) {
        let count = self.count_after(entries) & 63;
        debug_assert!((1..=Self::MOST).contains(&count));
        self.word = entries.iter().fold(self.word, |word, entry| word >> (entry & 63) | entry);
        let at = self.at & (size_of::<Room>() - 9);
        self.room[at..at + 8].copy_from_slice(&(self.word >> ((64 - count) & 63)).to_le_bytes());
        self.at += (count >> 3) as usize;
        self.count = count & 7;
    }
}

/// Codes by `row | literal`, where the previous literal selects the row, a multiple of 256 below
/// `N`. In a literal set the row is the context, below [`CONTEXTS`], times 256; in a code for a
/// single page there is one row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, const N: usize> {
    row_after: &'a [u16; 256],
    codes: &'a [u64; N],
}

impl<'a> Rows<'a, { CONTEXTS << 8 }> {
    /// Returns the codes of `set`.
    #[inline(always)]
    pub(super) fn of(set: &'a LiteralSet) -> Self {
        Self { row_after: &set.row_after, codes: &set.encode }
    }
}

impl<'a> Rows<'a, 256> {
    /// Returns one row of `codes`.
    #[inline(always)]
    pub(super) fn one(codes: &'a [u64; 256]) -> Self {
        Self { row_after: &[0; 256], codes }
    }
}

/// Encodes `literals` in lanes to the front of the first of `rooms`, and returns the end of each
/// pair. The second room is working memory.
#[inline(always)]
pub(super) fn encode<const N: usize>(rows: Rows<'_, N>, literals: &[u8], rooms: &mut [Room; 2]) -> [usize; PAIRS] {
    let pairs = lanes::pairs(literals.len());
    let start = |lane| lanes::start(lane, 2 * pairs, literals.len());
    let [room, downs] = rooms;
    let (mut ends, mut down_ends) = ([0; PAIRS], [0; PAIRS]);
    let (mut at, mut down_at) = (0, 0);
    for pair in 0..pairs {
        let [first, second, next] = [0, 1, 2].map(|lane| start(2 * pair + lane));
        at = encode_lane(rows, &literals[first..second], room, at);
        let down_end = encode_lane(rows, &literals[second..next], downs, down_at);
        at += down_end - down_at;
        down_at = down_end;
        (ends[pair], down_ends[pair]) = (at, down_end);
    }
    // All at the end: bytes that have just been stored in other words are slow to load.
    down_at = 0;
    for (&end, &down_end) in ends.iter().zip(&down_ends).take(pairs) {
        // More than a room was encoded if there are no such places: the object is then too long.
        if let (Some(from), Some(to)) = (downs.get(down_at..down_end), room.get_mut(end - (down_end - down_at)..end)) {
            turn(from, to);
        }
        down_at = down_end;
    }
    ends
}

/// Encodes a lane to `room` from `start`, and returns its end.
#[inline(always)]
fn encode_lane<const N: usize>(rows: Rows<'_, N>, literals: &[u8], room: &mut Room, start: usize) -> usize {
    const { assert!(N == 256 || N == CONTEXTS << 8) };
    let mut codes = Codes { room, at: start, word: 0, count: 0 };
    let mut row = rows.row_after[0];
    let mut entry = |literal: u8| {
        let place = if N == 256 { u16::from(literal) } else { row | u16::from(literal) };
        // SAFETY: rows are multiples of 256 below `N` (see `Rows`), which is at least 256.
        let entry = unsafe { *rows.codes.get_unchecked(usize::from(place)) };
        row = rows.row_after[usize::from(literal)];
        entry
    };
    let (fives, rest) = literals.as_chunks::<GROUP>();
    for five in fives {
        codes.push_all(&five.map(&mut entry));
    }
    if !rest.is_empty() {
        let mut entries = [0; GROUP];
        for (slot, &literal) in entries.iter_mut().zip(rest) {
            *slot = entry(literal);
        }
        codes.push_all(&entries);
    }
    codes.at + usize::from(codes.count > 0)
}

/// A lane being decoded.
#[derive(Clone, Copy)]
struct Lane<const DOWN: bool> {
    reader: Reader<DOWN>,
    /// The result of the last look-up.
    last: Lookup,
    /// Where the next literal is written.
    at: *mut u8,
    /// Start of the next lane.
    end: *mut u8,
}

impl<const DOWN: bool> Lane<DOWN> {
    fn new(first: Lookup, bits_at: usize, start: *mut u8, end: *mut u8) -> Self {
        Self { reader: Reader::new(bits_at), last: first, at: start, end }
    }

    /// Returns the number of literals left.
    #[inline(always)]
    fn left(&self) -> usize {
        self.end.addr().saturating_sub(self.at.addr())
    }

    /// Decodes zero, one or two literals; [`LITERAL_MAX`] bits must be available.
    ///
    /// # Safety
    /// Two bytes can be written at `at`.
    #[inline(always)]
    unsafe fn look_up<const N: usize>(&mut self, lookups: &Lookups<N>) {
        let bits = self.reader.peek() as u32 & ((1 << LITERAL_MAX) - 1);
        let Lookup(entry) = lookups.0[(self.last.0 & Lookup::CONTEXT | bits) as usize & (N - 1)];
        // SAFETY: upheld by the caller.
        unsafe {
            store16(self.at, entry.rotate_right(14) as u16);
            self.at = self.at.add((entry >> 30) as usize);
        }
        self.reader.skip(entry);
        self.last = Lookup(entry);
    }

    /// Does the same as [`look_up`](Self::look_up), but leaves a finished lane unchanged, without a
    /// branch.
    ///
    /// # Safety
    /// Two bytes can be written at `at`.
    #[inline(always)]
    unsafe fn look_up_to_end<const N: usize>(&mut self, lookups: &Lookups<N>) {
        let bits = self.reader.peek() as u32 & ((1 << LITERAL_MAX) - 1);
        let Lookup(entry) = lookups.0[(self.last.0 & Lookup::CONTEXT | bits) as usize & (N - 1)];
        let open = u32::from(self.at < self.end).wrapping_neg();
        // SAFETY: upheld by the caller.
        unsafe {
            store16(self.at, (entry >> 14) as u16);
            self.at = self.at.add(((entry & open) >> 30) as usize);
        }
        self.reader.skip(entry & open);
        self.last = Lookup(entry);
    }
}

/// Maximum bytes that the last look-ups of a pair of lanes may consume beyond the lanes' meeting
/// point: less than a look-up's bits each.
pub(super) const OVERLAP_MAX: usize = 4;

pub(super) const BAD_LANES: Corrupt = Corrupt { what: "pleat lanes have the wrong length" };

fn meet(a: usize, b: usize) -> Result<(), Corrupt> {
    if a.wrapping_sub(b) <= OVERLAP_MAX { Ok(()) } else { Err(BAD_LANES) }
}

/// Minimum number of literals in a lane that is decoded in parallel with others: at least two steps then
/// precede the first lane's end.
const LEAST: usize = 2 * STEP;

/// Decodes lanes side by side: all in steps while each has literals for one, then each to its end.
/// Returns the places that their bits reach.
///
/// A finished lane continues to write at its end, at most three bytes of the next lane. Those were
/// decoded in the first two steps (ten look-ups give at least five literals), so they are saved and
/// restored. Lanes of fewer than [`LEAST`] literals are decoded one after another, and each
/// overwrites what the previous one spoilt.
macro_rules! decode_lanes {
    ($lookups:ident, $room:ident, $shortest:expr; $($lane:ident)*) => {{
        if $shortest >= LEAST {
            loop {
                let steps = [$($lane.left()),*].into_iter().fold(usize::MAX, usize::min) / STEP;
                if steps == 0 {
                    break;
                }
                for _ in 0..steps {
                    $($lane.reader.refill($room);)*
                    $($lane.look_up($lookups);)*
                    $($lane.look_up($lookups);)*
                    $($lane.look_up($lookups);)*
                    $($lane.look_up($lookups);)*
                    $($lane.look_up($lookups);)*
                }
            }
            let next = [$(load32($lane.end)),*];
            while [$($lane.left()),*].into_iter().any(|left| left > 0) {
                $($lane.reader.refill($room);)*
                for _ in 0..ROUNDS {
                    $($lane.look_up_to_end($lookups);)*
                }
            }
            for (end, next) in [$($lane.end),*].into_iter().zip(next) {
                store32(end, next);
            }
        } else {
            $(
                while $lane.left() > 0 {
                    $lane.reader.refill($room);
                    $lane.look_up_to_end($lookups);
                }
            )*
        }
        [$($lane.reader.place()),*]
    }};
}

/// How sixteen lanes are decoded: with gathers, or four at a time.
pub(super) trait Sixteen {
    /// Decodes the first `count` of `literals`, at least [`SIXTEEN_FROM`],
    /// from the sixteen lanes between the places `bounds`. May call `while_waiting` while it waits, any number of
    /// times.
    fn decode_16<const N: usize>(
        lookups: &Lookups<N>,
        first: Lookup,
        room: &Room,
        bounds: &Bounds,
        literals: &mut Literals,
        count: usize,
        while_waiting: impl FnMut(),
    ) -> Result<(), Corrupt>;
}

impl Sixteen for Generic {
    #[inline(always)]
    fn decode_16<const N: usize>(
        lookups: &Lookups<N>,
        first: Lookup,
        room: &Room,
        bounds: &Bounds,
        literals: &mut Literals,
        count: usize,
        _: impl FnMut(),
    ) -> Result<(), Corrupt> {
        decode_16(lookups, first, room, bounds, literals, count)
    }
}

/// Decodes the first `count` of `literals` from the pairs of lanes between the places `bounds`. May
/// call `while_waiting` while it waits, any number of times.
#[inline(always)]
pub(super) fn decode<S: Sixteen, const N: usize>(
    lookups: &Lookups<N>,
    first: Lookup,
    room: &Room,
    bounds: &Bounds,
    literals: &mut Literals,
    count: usize,
    while_waiting: impl FnMut(),
) -> Result<(), Corrupt> {
    let count = count.min(PAGE_SIZE);
    if count < SIXTEEN_FROM {
        decode_2(lookups, first, room, [bounds[0], bounds[1]], literals, count)
    } else {
        S::decode_16(lookups, first, room, bounds, literals, count, while_waiting)
    }
}

/// Decodes the first `count` of `literals` from sixteen lanes, four at a time.
#[inline(always)]
pub(super) fn decode_16<const N: usize>(
    lookups: &Lookups<N>,
    first: Lookup,
    room: &Room,
    bounds: &Bounds,
    literals: &mut Literals,
    count: usize,
) -> Result<(), Corrupt> {
    for group in 0..PAIRS / 2 {
        let starts = std::array::from_fn(|lane| lanes::start(4 * group + lane, 2 * PAIRS, count));
        let bounds = [bounds[2 * group], bounds[2 * group + 1], bounds[2 * group + 2]];
        decode_4(lookups, first, room, bounds, literals, starts)?;
    }
    Ok(())
}

/// Decodes the first `count` of `literals` from two lanes between the places `bounds`.
#[inline(always)]
pub(super) fn decode_2<const N: usize>(
    lookups: &Lookups<N>,
    first: Lookup,
    room: &Room,
    bounds: [usize; 2],
    literals: &mut Literals,
    count: usize,
) -> Result<(), Corrupt> {
    let count = count.min(PAGE_SIZE);
    let second = lanes::start(1, 2, count);
    let start = literals.as_mut_ptr();
    // SAFETY: lanes are in the first `count` bytes of `literals`, which has 64 more than PAGE_SIZE;
    // it is accessed only through `start` here. A step writes at most STEP bytes, and only as many
    // steps are made as fit in each lane. After these a lane writes only at places up to one beyond
    // its end, two bytes at a time.
    unsafe {
        let middle = start.add(second);
        let mut a = Lane::<false>::new(first, bounds[0], start, middle);
        let mut b = Lane::<true>::new(first, bounds[1], middle, start.add(count));
        let [a, b] = decode_lanes!(lookups, room, second.min(count - second); a b);
        meet(a, b)
    }
}

/// Decodes literals from four lanes between the places `bounds`. Each writes from one of `starts` to
/// the next.
#[inline(always)]
pub(super) fn decode_4<const N: usize>(
    lookups: &Lookups<N>,
    first: Lookup,
    room: &Room,
    bounds: [usize; 3],
    literals: &mut Literals,
    starts: [usize; 5],
) -> Result<(), Corrupt> {
    let starts = starts.map(|start| start.min(PAGE_SIZE));
    let shortest = (0..4).map(|lane| starts[lane + 1] - starts[lane]).fold(usize::MAX, usize::min);
    let start = literals.as_mut_ptr();
    // SAFETY: as in `decode_2`.
    unsafe {
        let [start, second, third, fourth, end] = starts.map(|at| start.add(at));
        let mut a = Lane::<false>::new(first, bounds[0], start, second);
        let mut b = Lane::<true>::new(first, bounds[1], second, third);
        let mut c = Lane::<false>::new(first, bounds[1], third, fourth);
        let mut d = Lane::<true>::new(first, bounds[2], fourth, end);
        let [a, b, c, d] = decode_lanes!(lookups, room, shortest; a b c d);
        meet(a, b)?;
        meet(c, d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PleatTables;

    /// Literals of `set`: `step` of every 256 are random, the others among the 16 cheapest.
    fn some(set: &LiteralSet, count: usize, step: usize) -> Vec<u8> {
        let mut common: Vec<u8> = (0..=255).collect();
        common.sort_by_key(|&literal| set.encode[usize::from(literal)] & 63);
        let bytes = (0..count).map(|at| (at as u32 + 1).wrapping_mul(0x9e37_79b1).to_le_bytes());
        bytes
            .map(|[_, which, any, rare]| if usize::from(rare) < step { any } else { common[usize::from(which % 16)] })
            .collect()
    }

    #[test]
    fn lanes_of_any_length_come_back() {
        let tables = PleatTables::builtin();
        for set in &tables.literals {
            for (count, step) in
                (0..300).chain([1000, 4095, 4096]).flat_map(|count| [(count, 0), (count, 40), (count, 256)])
            {
                let wanted = some(set, count, step);
                let mut rooms = [[0; size_of::<Room>()]; 2];
                let ends = encode(Rows::of(set), &wanted, &mut rooms);
                let mut room = [0; size_of::<Room>()];
                let len = ends.into_iter().fold(0, usize::max);
                room[8..8 + len].copy_from_slice(&rooms[0][..len]);
                let mut bounds = [8; PAIRS + 1];
                for pair in 0..PAIRS {
                    bounds[pair + 1] = if pair < lanes::pairs(count) { 8 + ends[pair] } else { bounds[pair] };
                }
                for decode in crate::pleat::builds::literal_decoders() {
                    let mut literals = [0xee; size_of::<Literals>()];
                    let decoded = decode(set, &room, &bounds, &mut literals, count);
                    assert_eq!(decoded, Ok(()), "{count} literals, {step} of 256 random");
                    assert!(literals[..count] == wanted, "{count} literals, {step} of 256 random");
                }
            }
        }
    }
}
