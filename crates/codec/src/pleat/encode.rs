//! Encodes a page to an object.
#![allow(unsafe_code)] // Unchecked copies of literals.

use super::{
    PleatTables,
    bits::{Room, Writer, turn},
    format::{Classes, Sequence},
    isa::Isa,
    lanes,
    literals::{self, Literals, Rows},
    own,
    parse::{MAX_SEQUENCES, Seen, parse},
    places::Nothing,
    tables::{LiteralSet, SETS, SYMBOLS},
    window::{END, PAGE_AT, Window},
};
use crate::{PAGE_SIZE, mem::wild_copy};

/// First byte of an object that contains the page uncompressed.
pub(super) const RAW: u8 = 0xff;
/// The bits of the first byte that say how literals are coded.
pub(super) const CODING: u8 = 3 << 6;
/// With a set of the tables.
pub(super) const SHARED: u8 = 0;
/// With a code in the object.
pub(super) const OWN: u8 = 1 << 6;
/// One byte each.
pub(super) const PLAIN: u8 = 2 << 6;
/// Literals stay plain unless codes save more than one byte in this many.
const PLAIN_SHARE: usize = 10;
/// Minimum number of literals for a separate code: with fewer, its description is too long.
const OWN_FROM: usize = 256;
/// If the cheapest set takes fewer eighths of a bit per literal than this, it fits well and no
/// separate code is tried.
const OWN_EIGHTHS: usize = 44;
/// A description is rarely shorter than this many bytes.
const OWN_LEAST: usize = 40;
/// A page gets a separate code only if that saves more than one byte in this many of the literals'
/// section, since its look-ups must be built before decoding.
const OWN_SHARE: usize = 6;
/// Maximum bytes of a compressed object; a longer one is stored raw, because decoding it would cost
/// more than the bytes are worth.
const OBJECT_MAX: usize = PAGE_SIZE - PAGE_SIZE / 64;

static CLASSES: Classes = Classes::NEW;

/// Working memory of an encoder.
pub(super) struct Scratch {
    sequences: [Sequence; MAX_SEQUENCES],
    symbols: [u16; MAX_SEQUENCES],
    literals: Literals,
    seen: Seen,
    own: OwnCode,
    lanes: [Room; 2],
    tokens: [Room; 2],
    extras: Room,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self {
            sequences: [Sequence::default(); _],
            symbols: [0; _],
            literals: [0; _],
            seen: [0; _],
            own: OwnCode { codes: [0; _], description: [0; _], description_len: 0 },
            lanes: [[0; _]; 2],
            tokens: [[0; _]; 2],
            extras: [0; _],
        }
    }
}

/// Compresses the page in `window` to the front of `out`; returns `None` if it does not fit.
#[inline(always)]
pub(super) fn encode<I: Isa>(
    tables: &PleatTables,
    window: &Window,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Option<usize> {
    let count = match &tables.places {
        Some(places) => parse(window, &**places, &mut scratch.seen, &mut scratch.sequences),
        None => parse(window, &Nothing, &mut scratch.seen, &mut scratch.sequences),
    };
    let sequences = &scratch.sequences[..count];

    // Computes the symbols, which do not depend on the token set.
    let mut literal_count = 0;
    let mut at = PAGE_AT;
    let mut costs = [0u16; SETS];
    for (&sequence, symbol) in sequences.iter().zip(&mut scratch.symbols) {
        let run = sequence.run();
        copy_literals(&mut scratch.literals, literal_count, window, at, run);
        literal_count += run;
        at += run + sequence.length();
        *symbol = tables.symbol_of[usize::from(CLASSES.triple(sequence))];
        add(&mut costs, &tables.token_costs[usize::from(*symbol) & (SYMBOLS - 1)]);
    }
    let tail = &window.page()[at - PAGE_AT..];
    scratch.literals[literal_count..][..tail.len()].copy_from_slice(tail);
    literal_count += tail.len();
    let literals = &scratch.literals[..literal_count];

    // Selects the cheapest sets.
    let token_set = cheapest(&costs, tables.tokens.len());
    let mut costs = [0u16; SETS];
    let step = literal_count / own::SAMPLED + 1;
    let mut sampled = 0;
    while let Some(&literal) = literals.get(sampled * step) {
        add(&mut costs, &tables.literal_costs[usize::from(literal)]);
        sampled += 1;
    }
    let literal_set = cheapest(&costs, tables.literals.len());
    let cost = usize::from(costs[literal_set]);
    let plain = cost >= sampled * (64 - 64 / PLAIN_SHARE);
    let set = &tables.literals[literal_set];
    let own = literal_count >= OWN_FROM
        && cost >= sampled * OWN_EIGHTHS
        && scratch.own.make(literals, step, if plain { None } else { Some((set, cost)) });

    let codes = &tables.tokens[token_set];
    let mut extras = Writer::new(&mut scratch.extras);
    let mut put = |tokens: &mut Writer, sequence: Sequence, symbol: u16| {
        let (symbol, code) = codes.code(usize::from(symbol));
        tokens.put(u64::from(code & 0x7ff_ffff), code >> 27);
        let meaning = &tables.meanings[symbol];
        let extra = (sequence.0 & Sequence::NUMBERS).wrapping_sub(meaning.base & Sequence::NUMBERS);
        extras.put(I::gather(extra, meaning.mask), (meaning.base >> 56) as u32);
        extras.flush();
    };
    // Four tokens of a stream fit in a word next to the remaining bits of a byte.
    let [first, second] = &mut scratch.tokens;
    let [mut first, mut second] = [Writer::new(first), Writer::new(second)];
    let (eights, rest) = sequences.as_chunks::<8>();
    let (eight_symbols, rest_symbols) = scratch.symbols[..count].as_chunks::<8>();
    for (eight, symbols) in eights.iter().zip(eight_symbols) {
        for (pair, symbols) in eight.as_chunks::<2>().0.iter().zip(symbols.as_chunks::<2>().0) {
            put(&mut first, pair[0], symbols[0]);
            put(&mut second, pair[1], symbols[1]);
        }
        first.flush();
        second.flush();
    }
    for (number, (&sequence, &symbol)) in rest.iter().zip(rest_symbols).enumerate() {
        put(if number % 2 == 0 { &mut first } else { &mut second }, sequence, symbol);
    }
    let token_lens = [first.finish(), second.finish()];
    let extras_len = extras.finish();

    let head = (token_set << 3) as u8;
    let mut object = Object { out, at: 0 };
    if plain && !own {
        object.byte(head | PLAIN);
        object.number(literal_count);
        object.number(token_lens[0] + token_lens[1]);
        object.bytes(literals);
    } else {
        let lanes = &mut scratch.lanes;
        let ends = if own {
            literals::encode(Rows::one(&scratch.own.codes), literals, lanes)
        } else {
            literals::encode(Rows::of(set), literals, lanes)
        };
        object.byte(head | if own { OWN } else { SHARED | literal_set as u8 });
        object.number(literal_count);
        // The first pair's length, then how much longer each is than the one before.
        let (mut end, mut len) = (ends[0], ends[0]);
        object.number(len);
        for &next in &ends[1..lanes::pairs(literal_count)] {
            object.number(zigzag((next - end) as isize - len as isize));
            (end, len) = (next, next - end);
        }
        object.number(token_lens[0] + token_lens[1]);
        if own {
            object.upwards(&scratch.own.description, scratch.own.description_len);
        }
        object.upwards(&scratch.lanes[0], end);
    }
    object.upwards(&scratch.tokens[0], token_lens[0]);
    object.downwards(&scratch.tokens[1], token_lens[1]);
    object.upwards(&scratch.extras, extras_len);
    if object.at > OBJECT_MAX {
        object.at = 0;
        object.byte(RAW);
        object.bytes(window.page());
    }
    (object.at <= object.out.len()).then_some(object.at)
}

/// A literal code for a single page.
struct OwnCode {
    codes: [u64; 256],
    description: Room,
    description_len: usize,
}

impl OwnCode {
    fn worth_it(own: usize, other: usize) -> bool {
        own + other / OWN_SHARE < other
    }

    /// Builds a code for `literals` alone and returns whether it is worth it. The alternative is a
    /// set that codes every `step`th literal in the given eighths of a bit, or plain literals. Each
    /// slower part runs only if the previous one says that the code may be worth it.
    #[inline(never)]
    fn make(&mut self, literals: &[u8], step: usize, set: Option<(&LiteralSet, usize)>) -> bool {
        let sample = own::Sample::of(literals, step);
        let least = sample.bytes() + OWN_LEAST;
        let other = match set {
            Some((set, cost)) if Self::worth_it(least, sample.scaled(cost)) => {
                // With contexts, literals take fewer bits than without.
                sample.scaled(8 * set.bits(literals, step))
            }
            Some(_) => return false,
            None => literals.len(),
        };
        if !Self::worth_it(least, other) {
            return false;
        }
        let Some((lengths, bits)) = own::lengths(&own::count(literals), literals.len()) else { return false };
        if !Self::worth_it(bits / 8 + OWN_LEAST, other) {
            return false;
        }
        self.description_len = own::describe(&lengths, &mut self.description);
        self.codes = own::codes(&lengths);
        Self::worth_it(bits / 8 + self.description_len, other)
    }
}

/// Copies the `run` bytes at `from` in the window, and some more, to `to` in `literals`.
#[inline(always)]
fn copy_literals(literals: &mut Literals, to: usize, window: &Window, from: usize, run: usize) {
    debug_assert!(to + run <= PAGE_SIZE && from + run <= END);
    // SAFETY: the sequences of a page cover at most the page, so `to + run` is at most its size and
    // `from + run` at most END. Up to 32 bytes more than `run` are copied; both buffers have 64
    // more.
    unsafe { wild_copy::<32>(window.as_ptr().add(from), literals.as_mut_ptr().add(to), run) };
}

/// Returns a number that is small if `number` is near zero: the sign in the lowest bit.
fn zigzag(number: isize) -> usize {
    (number << 1 ^ number >> (isize::BITS - 1)) as usize
}

#[inline(always)]
fn add(costs: &mut [u16; SETS], more: &[u16; SETS]) {
    for (cost, more) in costs.iter_mut().zip(more) {
        *cost = cost.saturating_add(*more);
    }
}

fn cheapest(costs: &[u16; SETS], sets: usize) -> usize {
    (0..sets).min_by_key(|&set| costs[set]).unwrap_or(0)
}

/// An object being written. If `at` passes the end of `out`, nothing more is written.
struct Object<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Object<'_> {
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = self.at;
        self.at += len;
        self.out.get_mut(at..self.at)
    }

    fn byte(&mut self, byte: u8) {
        self.bytes(&[byte]);
    }

    /// Writes a number below 16384: 7 bits, and a second byte if the first has its top bit set.
    fn number(&mut self, number: usize) {
        if number < 128 {
            self.byte(number as u8);
        } else {
            self.bytes(&[number as u8 | 128, (number >> 7) as u8]);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room(bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    fn upwards(&mut self, stream: &Room, len: usize) {
        self.bytes(stream.get(..len).unwrap_or(stream));
    }

    fn downwards(&mut self, stream: &Room, len: usize) {
        let stream = stream.get(..len).unwrap_or(stream);
        let Some(room) = self.room(stream.len()) else { return };
        turn(stream, room);
    }
}
