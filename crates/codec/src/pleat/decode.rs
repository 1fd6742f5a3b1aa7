//! An object to a page.

use std::hint::select_unpredictable;

use super::{
    PleatTables,
    bits::{LaneReader, Reader, Room},
    encode::{FOUR_LANES, RAW},
    format::{FIRST_REPS, TRIPLE_BITS, meaning},
    tables::{LITERAL_MAX, LiteralSet, SYMBOLS, TOKEN_ESCAPE, TOKEN_MAX, TokenSet},
    window::{PAGE_AT, Window},
};
use crate::{Corrupt, PAGE_SIZE, Page};

/// Where an object stands in its room: a stream read downwards may read 8 bytes before it.
const OBJECT_AT: usize = 8;
/// Literals, and room for wide copies.
const LITERALS: usize = 2 * PAGE_SIZE;

/// Working memory of a decoder.
pub(super) struct Scratch {
    object: Room,
    literals: [u8; LITERALS + 16],
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { object: [0; _], literals: [0; _] }
    }
}

/// Decodes `object` to the page of `window`, or directly to `page` if it is raw.
#[inline(always)]
pub(super) fn decode(
    tables: &PleatTables,
    object: &[u8],
    window: &mut Window,
    scratch: &mut Scratch,
    page: &mut Page,
) -> Result<(), Corrupt> {
    let (&head, mut rest) = object.split_first().ok_or(CUT_SHORT)?;
    if head == RAW {
        *page = *rest.as_array().ok_or(Corrupt { what: "raw pleat object of another length" })?;
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
        lanes_4(literal_set, &scratch.object, [OBJECT_AT, second_at, tokens_at], literals)?;
    } else {
        lanes_2(literal_set, &scratch.object, [OBJECT_AT, second_at], literals)?;
    }

    let mut state = State {
        tokens: Reader::new(tokens_at),
        extras: Reader::new(end),
        reps: FIRST_REPS.map(usize::from),
        at: PAGE_AT,
        literal: 0,
        literals_left: literal_count as isize,
        matches_left: (PAGE_SIZE - literal_count) as isize,
    };
    'page: while state.matches_left > 0 {
        state.tokens.refill(&scratch.object);
        for _ in 0..TOKENS_A_REFILL {
            state.sequence(tables, token_set, window, scratch)?;
            if state.matches_left <= 0 {
                break 'page;
            }
        }
    }
    if state.tokens.place() != state.extras.place() {
        return Err(Corrupt { what: "pleat tokens of another length" });
    }
    let State { mut at, mut literal, mut literals_left, .. } = state;
    while literals_left > 0 {
        window.set::<16>(at, wide(&scratch.literals, literal));
        at += 16;
        literal += 16;
        literals_left -= 16;
    }
    *page = *window.page();
    Ok(())
}

/// Tokens that one refill serves, if none is an escape.
const TOKENS_A_REFILL: usize = 4;

/// How far a page is decoded.
struct State {
    tokens: Reader<false>,
    extras: Reader<true>,
    reps: [usize; 3],
    /// Place in the window.
    at: usize,
    /// Next literal.
    literal: usize,
    /// Literals that no sequence has taken.
    literals_left: isize,
    /// Bytes that matches have yet to give.
    matches_left: isize,
}

impl State {
    /// Decodes one sequence. 12 bits of tokens must be ready.
    #[inline(always)]
    fn sequence(
        &mut self,
        tables: &PleatTables,
        set: &TokenSet,
        window: &mut Window,
        scratch: &Scratch,
    ) -> Result<(), Corrupt> {
        self.extras.refill(&scratch.object);
        let entry = set.decode[self.tokens.peek() as usize & ((1 << TOKEN_MAX) - 1)];
        self.tokens.skip(u32::from(entry & 15));
        let symbol = usize::from(entry >> 4) & (SYMBOLS - 1);
        let escaped;
        let meaning = if symbol == TOKEN_ESCAPE {
            self.tokens.refill(&scratch.object);
            let triple = self.tokens.peek() as u16 & ((1 << TRIPLE_BITS) - 1);
            self.tokens.skip(TRIPLE_BITS);
            self.tokens.refill(&scratch.object);
            escaped = meaning(triple).ok_or(Corrupt { what: "pleat token without meaning" })?;
            &escaped
        } else {
            &tables.meanings[symbol]
        };
        let extra = self.extras.peek();
        self.extras.skip(u32::from(meaning.all_bits));
        let offset = (usize::from(meaning.offset_base) + low(extra, meaning.offset_bits)) << (meaning.offset_shift & 3);
        let extra = extra >> (meaning.offset_bits & 63);
        let run = usize::from(meaning.run_base) + low(extra, meaning.run_bits);
        let extra = extra >> (meaning.run_bits & 63);
        let length = usize::from(meaning.length_base) + low(extra, meaning.length_bits);
        let rep = meaning.rep;
        let [newest, second, third] = self.reps;
        let offset = select_unpredictable(rep == 0, newest, offset);
        let offset = select_unpredictable(rep == 1, second, offset);
        let offset = select_unpredictable(rep == 2, third, offset);
        self.reps = [
            offset,
            select_unpredictable(rep >= 1, newest, second),
            select_unpredictable(rep >= 2, second, third),
        ];
        self.literals_left -= run as isize;
        self.matches_left -= length as isize;
        if (self.literals_left | self.matches_left) < 0 {
            return Err(Corrupt { what: "pleat sequences longer than a page" });
        }
        window.set::<16>(self.at, wide(&scratch.literals, self.literal));
        let mut done = 16;
        while done < run {
            window.set::<16>(self.at + done, wide(&scratch.literals, self.literal + done));
            done += 16;
        }
        self.literal += run;
        self.at += run;
        copy_match(window, self.at, offset, length);
        self.at += length;
        Ok(())
    }
}

/// Copies the match of `length` bytes at `at`, and up to 39 bytes more.
///
/// By words: a word whose source overlaps it is made of the bytes before, and all later words are copied over a
/// multiple of the offset that is no less than a word. That multiple is at most 7 more than the offset's own reach:
/// what it reads before the match repeats there.
#[inline(always)]
fn copy_match(window: &mut Window, at: usize, offset: usize, length: usize) {
    let short = offset.min(8);
    let word = (window.word(at - offset) & FIRST[short]).wrapping_mul(REPEAT[short]);
    let distance = offset.max(MULTIPLE[short]);
    window.set(at, word.to_le_bytes());
    let mut done = 8;
    loop {
        for _ in 0..3 {
            window.set(at + done, window.get::<8>(at + done - distance));
            done += 8;
        }
        if done >= length {
            return;
        }
    }
}

/// By offset: the bytes of a word that it holds before it repeats.
const FIRST: [u64; 9] = [0, 0xff, 0xffff, 0xff_ffff, 0xffff_ffff, 0xff_ffff_ffff, 0xffff_ffff_ffff, u64::MAX >> 8, u64::MAX];
/// By offset: what to multiply these bytes by to repeat them.
const REPEAT: [u64; 9] = [
    0,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0001_0000_0100_0001,
    0x0000_0001_0000_0001,
    0x0000_0100_0000_0001,
    0x0001_0000_0000_0001,
    0x0100_0000_0000_0001,
    1,
];
/// By offset: its least multiple that is 8 or more.
const MULTIPLE: [usize; 9] = [8, 8, 8, 9, 8, 10, 12, 14, 8];

/// The low `count` bits of `bits`.
#[inline(always)]
fn low(bits: u64, count: u8) -> usize {
    (bits & !(u64::MAX << (count & 63))) as usize
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

#[inline(always)]
fn wide(literals: &[u8; LITERALS + 16], at: usize) -> [u8; 16] {
    let at = at & (LITERALS - 1);
    literals[at..at + 16].try_into().unwrap_or([0; 16])
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
    reader: LaneReader<DOWN>,
    /// The entry of the literal before.
    entry: u16,
}

impl<const DOWN: bool> Lane<DOWN> {
    #[inline(always)]
    fn new(set: &LiteralSet, at: usize) -> Self {
        Self { reader: LaneReader::new(at), entry: u16::from(set.context_after[0]) << 12 }
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
fn lanes_2(set: &LiteralSet, room: &Room, bounds: [usize; 2], literals: &mut [u8]) -> Result<(), Corrupt> {
    let each = literals.len() / 2;
    let last = literals.len() - each;
    let mut a = Lane::<false>::new(set, bounds[0]);
    let mut b = Lane::<true>::new(set, bounds[1]);
    let mut rows = [[[0; STEP]; STEPS]; 2];
    let [row_a, row_b] = &mut rows;
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
fn lanes_4(set: &LiteralSet, room: &Room, bounds: [usize; 3], literals: &mut [u8]) -> Result<(), Corrupt> {
    let each = literals.len() / 4;
    let last = literals.len() - 3 * each;
    let mut a = Lane::<false>::new(set, bounds[0]);
    let mut b = Lane::<true>::new(set, bounds[1]);
    let mut c = Lane::<false>::new(set, bounds[1]);
    let mut d = Lane::<true>::new(set, bounds[2]);
    let mut rows = [[[0; STEP]; STEPS]; 4];
    let [row_a, row_b, row_c, row_d] = &mut rows;
    let (steps, room) = (each / STEP, &*room);
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
