//! An object to a page.

use super::{
    PleatTables,
    bits::{Reader, Room},
    encode::{FOUR_LANES, RAW},
    format::{FIRST_REPS, MIN_MATCH, TRIPLE_BITS, meaning},
    tables::{LITERAL_MAX, LiteralSet, TOKEN_ESCAPE, TOKEN_MAX},
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

    let room = &scratch.object;
    let mut tokens = Reader::<false>::new(tokens_at);
    let mut extras = Reader::<true>::new(end);
    let mut reps = FIRST_REPS.map(usize::from);
    let mut at = PAGE_AT;
    let mut literal = 0;
    let mut literals_left = literal_count as isize;
    let mut matches_left = (PAGE_SIZE - literal_count) as isize;
    while matches_left > 0 {
        tokens.refill(room);
        extras.refill(room);
        let entry = token_set.decode[tokens.peek() as usize & ((1 << TOKEN_MAX) - 1)];
        tokens.skip(u32::from(entry & 15));
        let symbol = usize::from(entry >> 4) & 1023;
        let meaning = if symbol == TOKEN_ESCAPE {
            let triple = tokens.peek() as u16 & ((1 << TRIPLE_BITS) - 1);
            tokens.skip(TRIPLE_BITS);
            meaning(triple).ok_or(Corrupt { what: "pleat token without meaning" })?
        } else {
            tables.meanings[symbol]
        };
        let bits = u32::from(meaning.bits);
        let mut take = |count: u32| {
            let low = extras.peek() & !(u64::MAX << count);
            extras.skip(count);
            low as usize
        };
        let offset = (usize::from(meaning.offset_base) + take(bits >> 8 & 15)) << (bits >> 12 & 3);
        let mut run = usize::from(meaning.run_base) + take(bits & 15);
        let mut length = usize::from(meaning.length_base) + take(bits >> 4 & 15);
        debug_assert!(length >= MIN_MATCH);
        let rep = bits >> 14;
        let offset = match rep {
            0 => reps[0],
            1 => reps[1],
            2 => reps[2],
            _ => offset,
        };
        reps[2] = if rep >= 2 { reps[1] } else { reps[2] };
        reps[1] = if rep >= 1 { reps[0] } else { reps[1] };
        reps[0] = offset;

        literals_left -= run as isize;
        matches_left -= length as isize;
        if (literals_left | matches_left) < 0 {
            return Err(Corrupt { what: "pleat sequences longer than a page" });
        }
        let mut to = at;
        let mut from = literal;
        at += run;
        literal += run;
        loop {
            window.set::<16>(to, wide(&scratch.literals, from));
            if run <= 16 {
                break;
            }
            run -= 16;
            to += 16;
            from += 16;
        }
        let mut to = at;
        at += length;
        if offset < 16 {
            // Sixteen bytes singly; from then on a multiple of the offset that is no less than 16 serves.
            for k in 0..length.min(16) {
                window.set(to + k, window.get::<1>(to + k - offset));
            }
            if length <= 16 {
                continue;
            }
            to += 16;
            length -= 16;
        }
        let distance = if offset < 16 { offset * 16usize.div_ceil(offset) } else { offset };
        loop {
            window.set(to, window.get::<16>(to - distance));
            if length <= 16 {
                break;
            }
            length -= 16;
            to += 16;
        }
    }
    if tokens.place() != extras.place() {
        return Err(Corrupt { what: "pleat tokens of another length" });
    }
    while literals_left > 0 {
        window.set::<16>(at, wide(&scratch.literals, literal));
        at += 16;
        literal += 16;
        literals_left -= 16;
    }
    *page = *window.page();
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

#[inline(always)]
fn wide(literals: &[u8; LITERALS + 16], at: usize) -> [u8; 16] {
    let at = at & (LITERALS - 1);
    literals[at..at + 16].try_into().unwrap_or([0; 16])
}

/// A lane of literals.
struct Lane<const DOWN: bool> {
    reader: Reader<DOWN>,
    /// The next literal's context, times the entries of one context's table.
    context: usize,
}

impl<const DOWN: bool> Lane<DOWN> {
    #[inline(always)]
    fn new(set: &LiteralSet, at: usize) -> Self {
        Self { reader: Reader::new(at), context: usize::from(set.context_after[0]) << LITERAL_MAX }
    }

    /// Decodes one literal. 10 bits must be ready; after an escape, 56 are.
    #[inline(always)]
    fn next(&mut self, set: &LiteralSet, room: &Room) -> u8 {
        let bits = self.reader.peek() as usize & ((1 << LITERAL_MAX) - 1);
        let entry = set.decode[(self.context | bits) & (set.decode.len() - 1)];
        self.reader.skip(u32::from(entry & 15));
        self.context = usize::from(entry & 0x7000) >> 12 << LITERAL_MAX;
        if entry >> 15 == 0 {
            return (entry >> 4) as u8;
        }
        self.reader.refill(room);
        let literal = self.reader.peek() as u8;
        self.reader.skip(8);
        self.reader.refill(room);
        self.context = usize::from(set.context_after[usize::from(literal)]) << LITERAL_MAX;
        literal
    }
}

/// Literals that one refill serves.
const STEP: usize = 5;

#[inline(always)]
fn lanes_2(set: &LiteralSet, room: &Room, bounds: [usize; 2], literals: &mut [u8]) -> Result<(), Corrupt> {
    let each = literals.len() / 2;
    let mut a = Lane::<false>::new(set, bounds[0]);
    let mut b = Lane::<true>::new(set, bounds[1]);
    let (to_a, to_b) = literals.split_at_mut(each);
    let (to_b, tail) = to_b.split_at_mut(each);
    let (steps_a, rest_a) = to_a.as_chunks_mut::<STEP>();
    let (steps_b, rest_b) = to_b.as_chunks_mut::<STEP>();
    for (to_a, to_b) in steps_a.iter_mut().zip(steps_b) {
        a.reader.refill(room);
        b.reader.refill(room);
        for k in 0..STEP {
            to_a[k] = a.next(set, room);
            to_b[k] = b.next(set, room);
        }
    }
    a.reader.refill(room);
    b.reader.refill(room);
    rest_a.iter_mut().for_each(|to| *to = a.next(set, room));
    rest_b.iter_mut().for_each(|to| *to = b.next(set, room));
    b.reader.refill(room);
    tail.iter_mut().for_each(|to| *to = b.next(set, room));
    if a.reader.place() == b.reader.place() { Ok(()) } else { Err(LANES) }
}

#[inline(always)]
fn lanes_4(set: &LiteralSet, room: &Room, bounds: [usize; 3], literals: &mut [u8]) -> Result<(), Corrupt> {
    let each = literals.len() / 4;
    let mut a = Lane::<false>::new(set, bounds[0]);
    let mut b = Lane::<true>::new(set, bounds[1]);
    let mut c = Lane::<false>::new(set, bounds[1]);
    let mut d = Lane::<true>::new(set, bounds[2]);
    let (to_a, rest) = literals.split_at_mut(each);
    let (to_b, rest) = rest.split_at_mut(each);
    let (to_c, rest) = rest.split_at_mut(each);
    let (to_d, tail) = rest.split_at_mut(each);
    let (steps_a, rest_a) = to_a.as_chunks_mut::<STEP>();
    let (steps_b, rest_b) = to_b.as_chunks_mut::<STEP>();
    let (steps_c, rest_c) = to_c.as_chunks_mut::<STEP>();
    let (steps_d, rest_d) = to_d.as_chunks_mut::<STEP>();
    for (((to_a, to_b), to_c), to_d) in steps_a.iter_mut().zip(steps_b).zip(steps_c).zip(steps_d) {
        a.reader.refill(room);
        b.reader.refill(room);
        c.reader.refill(room);
        d.reader.refill(room);
        for k in 0..STEP {
            to_a[k] = a.next(set, room);
            to_b[k] = b.next(set, room);
            to_c[k] = c.next(set, room);
            to_d[k] = d.next(set, room);
        }
    }
    a.reader.refill(room);
    b.reader.refill(room);
    c.reader.refill(room);
    d.reader.refill(room);
    rest_a.iter_mut().for_each(|to| *to = a.next(set, room));
    rest_b.iter_mut().for_each(|to| *to = b.next(set, room));
    rest_c.iter_mut().for_each(|to| *to = c.next(set, room));
    rest_d.iter_mut().for_each(|to| *to = d.next(set, room));
    d.reader.refill(room);
    tail.iter_mut().for_each(|to| *to = d.next(set, room));
    if a.reader.place() == b.reader.place() && c.reader.place() == d.reader.place() { Ok(()) } else { Err(LANES) }
}
