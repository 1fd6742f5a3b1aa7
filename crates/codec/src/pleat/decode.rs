//! Decodes an object to a page.

use super::{
    PleatTables,
    bits::Room,
    encode::{CODING, OWN, PLAIN, RAW, SHARED},
    format::Step,
    isa::Isa,
    lanes::{self, PAIRS},
    literals::{self, Literals, Sixteen},
    own,
    sequences::{self, Reading, Sections, Steps},
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
        Self { object: [0; _], own: own::Lookups::new(), literals: [0; _], steps: [Step::default(); _] }
    }
}

/// Decodes `object` to the page of `window` and to `page`, or only to `page` if it is raw.
#[inline(always)]
pub(super) fn decode<I: Isa + Sixteen>(
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
    let set = head & 7;
    let coding = match head & CODING {
        SHARED => Coding::Shared(usize::from(set)),
        OWN if set == 0 => Coding::Own,
        PLAIN if set == 0 => Coding::Plain,
        _ => return Err(UNKNOWN),
    };
    if object.len() > PAGE_SIZE {
        return Err(UNKNOWN);
    }
    let token_set = tables.tokens.get(usize::from(head >> 3 & 7)).ok_or(NO_SET)?;
    let literal_count = number(&mut rest)?;
    let mut lens = [0; PAIRS];
    match coding {
        Coding::Plain => lens[0] = literal_count,
        _ => {
            let mut len = number(&mut rest)?;
            lens[0] = len;
            for other in &mut lens[1..lanes::pairs(literal_count)] {
                let more = number(&mut rest)?;
                len = len.wrapping_add(more >> 1 ^ (more & 1).wrapping_neg());
                *other = len;
            }
        }
    }
    let tokens_len = number(&mut rest)?;
    let fits = lens.iter().all(|&len| len <= PAGE_SIZE) && lens.iter().sum::<usize>() + tokens_len <= rest.len();
    if literal_count > PAGE_SIZE || !fits {
        return Err(NO_FIT);
    }
    scratch.object[OBJECT_AT..OBJECT_AT + rest.len()].copy_from_slice(rest);
    let end = OBJECT_AT + rest.len();
    let Scratch { object, own, literals, steps } = scratch;
    let mut bounds = [match coding {
        Coding::Own => own::read(object, OBJECT_AT, own).ok_or(BAD_CODE)?,
        _ => OBJECT_AT,
    }; PAIRS + 1];
    for (pair, len) in lens.iter().enumerate() {
        bounds[pair + 1] = bounds[pair] + len;
    }
    let tokens_at = bounds[PAIRS];
    let sections = Sections { tokens: tokens_at..tokens_at + tokens_len, end };
    if sections.tokens.end > end {
        return Err(NO_FIT);
    }

    let mut reading = Reading::<I>::new(tables, token_set, object, sections, literal_count, steps);
    let literals: &Literals = match coding {
        Coding::Plain => object[OBJECT_AT..].first_chunk().ok_or(CUT_SHORT)?,
        Coding::Shared(set) => {
            let set = tables.literals.get(set).ok_or(NO_SET)?;
            literals::decode::<I, _>(&set.decode, set.first(), object, &bounds, literals, literal_count, || {
                reading.some();
            })?;
            literals
        }
        Coding::Own => {
            literals::decode::<I, _>(own, Lookup::default(), object, &bounds, literals, literal_count, || {
                reading.some();
            })?;
            literals
        }
    };

    let sequences = reading.finish()?;
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
