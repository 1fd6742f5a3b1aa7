//! An object to a page.

use super::{
    PleatTables,
    bits::{Reader, Room},
    encode::{FOUR_LANES, RAW},
    isa::Isa,
    sequences,
    tables::{LITERAL_MAX, LiteralSet},
    window::Window,
};
use crate::{Corrupt, PAGE_SIZE, Page};

/// Where an object stands in its room: a stream read downwards may read 8 bytes before it.
const OBJECT_AT: usize = 8;
/// The literals of a page, and room for wide copies.
pub(super) type Literals = [u8; PAGE_SIZE + 64];

/// Working memory of a decoder.
pub(super) struct Scratch {
    object: Room,
    literals: Literals,
    rows: [Row; 4],
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { object: [0; _], literals: [0; _], rows: [[[0; STEP]; STEPS]; 4] }
    }
}

/// Decodes `object` to the page of `window`, or directly to `page` if it is raw.
#[inline(always)]
pub(super) fn decode<I: Isa>(
    tables: &PleatTables,
    object: &[u8],
    window: &mut Window,
    scratch: &mut Scratch,
    page: &mut Page,
) -> Result<(), Corrupt> {
    let (&head, mut rest) = object.split_first().ok_or(CUT_SHORT)?;
    if head == RAW {
        *page = rest.try_into().map_err(|_| Corrupt { what: "raw pleat object of another length" })?;
        return Ok(());
    }
    if object.len() > PAGE_SIZE || head >> 7 != 0 {
        return Err(Corrupt { what: "pleat object too long or of an unknown kind" });
    }
    let literal_set = tables.literals.get(usize::from(head & 7)).ok_or(NO_SET)?;
    let token_set = tables.tokens.get(usize::from(head >> 3 & 7)).ok_or(NO_SET)?;
    let literal_count = number(&mut rest)?;
    let first_len = number(&mut rest)?;
    let second_len = if head & FOUR_LANES != 0 { number(&mut rest)? } else { 0 };
    if literal_count > PAGE_SIZE || first_len + second_len > rest.len() {
        return Err(Corrupt { what: "pleat lanes that do not fit" });
    }
    scratch.object[OBJECT_AT..OBJECT_AT + rest.len()].copy_from_slice(rest);
    let second_at = OBJECT_AT + first_len;
    let tokens_at = second_at + second_len;
    let end = OBJECT_AT + rest.len();

    let literals = &mut scratch.literals[..literal_count];
    if head & FOUR_LANES != 0 {
        lanes_4(literal_set, &scratch.object, [OBJECT_AT, second_at, tokens_at], &mut scratch.rows, literals)?;
    } else {
        lanes_2(literal_set, &scratch.object, [OBJECT_AT, second_at], &mut scratch.rows, literals)?;
    }

    let rooms = sequences::Rooms { object: &scratch.object, literals: &scratch.literals };
    let copied = sequences::decode::<I>(tables, token_set, rooms, tokens_at..end, literal_count, window)?;
    let (at, rest) = (PAGE_SIZE - (literal_count - copied), &scratch.literals[copied..literal_count]);
    page[..at].copy_from_slice(&window.page()[..at]);
    page[at..].copy_from_slice(rest);
    Ok(())
}

const CUT_SHORT: Corrupt = Corrupt { what: "pleat object cut short" };
const NO_SET: Corrupt = Corrupt { what: "pleat object of a set that the tables lack" };
const LANES: Corrupt = Corrupt { what: "pleat lanes of another length" };

fn number(rest: &mut &[u8]) -> Result<usize, Corrupt> {
    match **rest {
        [low @ 0..128, ref tail @ ..] => {
            *rest = tail;
            Ok(usize::from(low))
        }
        [low, high @ 1..128, ref tail @ ..] => {
            *rest = tail;
            Ok(usize::from(low & 127) | usize::from(high) << 7)
        }
        _ => Err(CUT_SHORT),
    }
}

/// Literals that one refill serves.
const STEP: usize = 5;
/// Steps of the longest lane: a quarter of a page, and what is left over by the division.
const STEPS: usize = PAGE_SIZE / 4 / STEP + 2;

/// The literals of one lane. Lanes are decoded to rows at fixed places, which saves a register for each.
type Row = [[u8; STEP]; STEPS];

/// Bit of an entry: it is an escape.
const ESCAPED: u16 = 1 << 15;

/// A lane of literals.
#[derive(Clone, Copy)]
struct Lane<const DOWN: bool> {
    reader: Reader<DOWN>,
    /// The entry of the literal before.
    entry: u16,
}

impl<const DOWN: bool> Lane<DOWN> {
    #[inline(always)]
    fn new(set: &LiteralSet, at: usize) -> Self {
        Self { reader: Reader::new(at), entry: u16::from(set.context_after[0]) << 12 }
    }

    /// Goes one literal on: `entry` becomes its entry, or that of an escape. 10 bits must be ready.
    #[inline(always)]
    fn step(&mut self, set: &LiteralSet) {
        let context = usize::from(self.entry & 0x7000) >> (12 - LITERAL_MAX);
        let bits = self.reader.peek() as usize & ((1 << LITERAL_MAX) - 1);
        self.entry = set.decode[context | bits];
        self.reader.skip(u32::from(self.entry & 15));
    }

    /// The literal that the last step went to.
    #[inline(always)]
    fn literal(&self) -> u8 {
        (self.entry >> 4) as u8
    }

    /// If the last step went to an escape, takes the 8 bits after it, and makes 56 ready. (By value, so that the
    /// state of a lane stays in registers.)
    #[inline(always)]
    fn resolved(mut self, set: &LiteralSet, room: &Room) -> Self {
        if self.entry & ESCAPED != 0 {
            self.reader.refill(room);
            let literal = self.reader.peek() as u8;
            self.reader.skip(8);
            self.reader.refill(room);
            self.entry = u16::from(literal) << 4 | u16::from(set.context_after[usize::from(literal)]) << 12;
        }
        self
    }

    /// Decodes the literals of `row` from `from` to `to`.
    #[inline(always)]
    fn finish(mut self, set: &LiteralSet, room: &Room, row: &mut Row, from: usize, to: usize) -> usize {
        for (at, literal) in row.as_flattened_mut().iter_mut().enumerate().take(to).skip(from) {
            if at % STEP == 0 {
                self.reader.refill(room);
            }
            self.step(set);
            self = self.resolved(set, room);
            *literal = self.literal();
        }
        self.reader.place()
    }
}

/// Two lanes, of which one or both may have come to an escape.
#[cold]
#[inline(never)]
fn both(a: Lane<false>, b: Lane<true>, set: &LiteralSet, room: &Room) -> (Lane<false>, Lane<true>) {
    (a.resolved(set, room), b.resolved(set, room))
}

#[inline(always)]
fn lanes_2(
    set: &LiteralSet,
    room: &Room,
    bounds: [usize; 2],
    rows: &mut [Row; 4],
    literals: &mut [u8],
) -> Result<(), Corrupt> {
    let each = literals.len() / 2;
    let last = literals.len() - each;
    let mut a = Lane::<false>::new(set, bounds[0]);
    let mut b = Lane::<true>::new(set, bounds[1]);
    let [row_a, row_b, ..] = rows;
    if last > row_a.as_flattened().len() {
        return Err(LANES);
    }
    for (to_a, to_b) in row_a.iter_mut().zip(&mut *row_b).take(each / STEP) {
        a.reader.refill(room);
        b.reader.refill(room);
        macro_rules! round {
            ($($at:literal)*) => { $(
                a.step(set);
                b.step(set);
                if (a.entry | b.entry) & ESCAPED != 0 {
                    (a, b) = both(a, b, set, room);
                }
                to_a[$at] = a.literal();
                to_b[$at] = b.literal();
            )* };
        }
        round!(0 1 2 3 4);
    }
    let from = each / STEP * STEP;
    let a = a.finish(set, room, row_a, from, each);
    let b = b.finish(set, room, row_b, from, last);
    let (to_a, to_b) = literals.split_at_mut(each);
    to_a.copy_from_slice(&row_a.as_flattened()[..each]);
    to_b.copy_from_slice(&row_b.as_flattened()[..last]);
    if a == b { Ok(()) } else { Err(LANES) }
}

#[inline(always)]
fn lanes_4(
    set: &LiteralSet,
    room: &Room,
    bounds: [usize; 3],
    rows: &mut [Row; 4],
    literals: &mut [u8],
) -> Result<(), Corrupt> {
    let each = literals.len() / 4;
    let last = literals.len() - 3 * each;
    let mut a = Lane::<false>::new(set, bounds[0]);
    let mut b = Lane::<true>::new(set, bounds[1]);
    let mut c = Lane::<false>::new(set, bounds[1]);
    let mut d = Lane::<true>::new(set, bounds[2]);
    let [row_a, row_b, row_c, row_d] = rows;
    let steps = each / STEP;
    for step in 0..steps.min(STEPS) {
        a.reader.refill(room);
        b.reader.refill(room);
        c.reader.refill(room);
        d.reader.refill(room);
        macro_rules! round {
            ($($at:literal)*) => { $(
                a.step(set);
                b.step(set);
                c.step(set);
                d.step(set);
                if (a.entry | b.entry | c.entry | d.entry) & ESCAPED != 0 {
                    (a, b) = both(a, b, set, room);
                    (c, d) = both(c, d, set, room);
                }
                row_a[step][$at] = a.literal();
                row_b[step][$at] = b.literal();
                row_c[step][$at] = c.literal();
                row_d[step][$at] = d.literal();
            )* };
        }
        round!(0 1 2 3 4);
    }
    let from = steps * STEP;
    let a = a.finish(set, room, row_a, from, each);
    let b = b.finish(set, room, row_b, from, each);
    let c = c.finish(set, room, row_c, from, each);
    let d = d.finish(set, room, row_d, from, last);
    for (to, row) in literals.chunks_mut(each.max(1)).zip([&*row_a, row_b, row_c]) {
        to.copy_from_slice(&row.as_flattened()[..to.len()]);
    }
    literals[3 * each..].copy_from_slice(&row_d.as_flattened()[..last]);
    if a == b && c == d { Ok(()) } else { Err(LANES) }
}
