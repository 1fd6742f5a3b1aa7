//! Decodes an object to a page.

use super::{
    PleatTables,
    bits::Room,
    encode::{FOUR_LANES, OWN, OWN_BITS, PLAIN, PLAIN_ZEROS, RAW},
    isa::Isa,
    literals::{self, Literals},
    own,
    sequences::{self, Sections, Step, Steps},
    tables::Lookup,
    window::Window,
};
use crate::{Corrupt, PAGE_SIZE, Page};

/// Place of an object in its room: a stream read downwards may read 8 bytes before it.
const OBJECT_AT: usize = 8;

/// How the literals of an object are coded.
#[derive(Clone, Copy, PartialEq)]
enum Coding {
    /// One byte each.
    Plain,
    /// With this set of the tables.
    Shared(usize),
    /// With a code in the object.
    Own,
}

/// Working memory of a decoder.
pub(super) struct Scratch {
    object: Room,
    own: own::Lookups,
    literals: Literals,
    steps: Steps,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { object: [0; _], own: [Lookup::default(); _], literals: [0; _], steps: [Step::default(); _] }
    }
}

/// Decodes `object` to the page of `window` and to `page`, or only to `page` if it is raw.
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
        *page = rest.try_into().map_err(|_| Corrupt { what: "raw pleat object has the wrong length" })?;
        return Ok(());
    }
    let coding = match head & PLAIN {
        0 => Coding::Shared(usize::from(head & 7)),
        _ if head & OWN_BITS == OWN => Coding::Own,
        _ if head & PLAIN_ZEROS == 0 => Coding::Plain,
        _ => return Err(UNKNOWN),
    };
    if object.len() > PAGE_SIZE {
        return Err(UNKNOWN);
    }
    let token_set = tables.tokens.get(usize::from(head >> 3 & 7)).ok_or(NO_SET)?;
    let literal_count = number(&mut rest)?;
    let first_len = if coding == Coding::Plain { literal_count } else { number(&mut rest)? };
    let second_len = if head & FOUR_LANES != 0 { number(&mut rest)? } else { 0 };
    let tokens_len = number(&mut rest)?;
    if literal_count > PAGE_SIZE || first_len + second_len + tokens_len > rest.len() {
        return Err(NO_FIT);
    }
    scratch.object[OBJECT_AT..OBJECT_AT + rest.len()].copy_from_slice(rest);
    let end = OBJECT_AT + rest.len();
    let Scratch { object, own, literals, steps } = scratch;
    let first_at = match coding {
        Coding::Own => own::read(object, OBJECT_AT, own).ok_or(BAD_CODE)?,
        _ => OBJECT_AT,
    };
    let second_at = first_at + first_len;
    let tokens_at = second_at + second_len;
    let sections = Sections { tokens: tokens_at..tokens_at + tokens_len, end };
    if sections.tokens.end > end {
        return Err(NO_FIT);
    }

    let places = [first_at, second_at, tokens_at];
    let four = head & FOUR_LANES != 0;
    let literals: &Literals = match coding {
        Coding::Plain => object[OBJECT_AT..].first_chunk().ok_or(CUT_SHORT)?,
        Coding::Shared(set) => {
            let set = tables.literals.get(set).ok_or(NO_SET)?;
            literals::decode(&set.decode, set.first(), object, places, four, literals, literal_count)?;
            literals
        }
        Coding::Own => {
            literals::decode(own, Lookup::default(), object, places, four, literals, literal_count)?;
            literals
        }
    };

    let sequences = sequences::read::<I>(tables, token_set, object, sections, literal_count, steps)?;
    sequences::carry_out(&sequences, literals, window);
    let (at, rest) = (PAGE_SIZE - (literal_count - sequences.taken), &literals[sequences.taken..literal_count]);
    page[..at].copy_from_slice(&window.page()[..at]);
    page[at..].copy_from_slice(rest);
    Ok(())
}

const CUT_SHORT: Corrupt = Corrupt { what: "truncated pleat object" };
const UNKNOWN: Corrupt = Corrupt { what: "pleat object too long or of an unknown kind" };
const NO_FIT: Corrupt = Corrupt { what: "pleat sections exceed the object" };
const BAD_CODE: Corrupt = Corrupt { what: "pleat literal code lengths are not a valid code" };
const NO_SET: Corrupt = Corrupt { what: "pleat object uses a set that its tables lack" };

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
