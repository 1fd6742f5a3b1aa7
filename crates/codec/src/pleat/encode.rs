//! A page to an object.
#![allow(unsafe_code)] // Copies of literals without a check for each.

use super::{
    PleatTables,
    bits::{Room, Writer},
    format::{Classes, Sequence, TRIPLE_BITS, meaning},
    isa::Isa,
    parse::{MAX_SEQUENCES, Seen, parse},
    tables::{LiteralSet, SETS, TOKEN_ESCAPE},
    window::{END, PAGE_AT, Window},
};
use crate::{PAGE_SIZE, mem::wild_copy};

/// First byte of an object that holds the page as it is.
pub(super) const RAW: u8 = 0xff;
/// Bit of the first byte: the literals are in four lanes instead of two.
pub(super) const FOUR_LANES: u8 = 1 << 6;
/// From this many literals on, a page has four lanes of them.
const FOUR_LANES_FROM: usize = 256;

static CLASSES: Classes = Classes::NEW;

/// The literals of a page, and room for wide copies.
type Literals = [u8; PAGE_SIZE + 64];

/// Working memory of an encoder.
pub(super) struct Scratch {
    sequences: [Sequence; MAX_SEQUENCES],
    triples: [u16; MAX_SEQUENCES],
    symbols: [u16; MAX_SEQUENCES],
    literals: Literals,
    seen: Seen,
    lanes: [Room; 4],
    tokens: Room,
    extras: Room,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self {
            sequences: [Sequence::default(); _],
            triples: [0; _],
            symbols: [0; _],
            literals: [0; _],
            seen: [0; _],
            lanes: [[0; _]; 4],
            tokens: [0; _],
            extras: [0; _],
        }
    }
}

/// Compresses the page in `window` to the front of `out`; `None` if it does not fit.
#[inline(always)]
pub(super) fn encode<I: Isa>(
    tables: &PleatTables,
    window: &Window,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Option<usize> {
    scratch.seen.copy_from_slice(&*tables.seen);
    let count = parse(window, &mut scratch.seen, &mut scratch.sequences);
    let sequences = &scratch.sequences[..count];

    // What the token sets have in common: symbols and extra bits.
    let mut extras = Writer::new(&mut scratch.extras);
    let mut literal_count = 0;
    let mut at = PAGE_AT;
    let mut costs = [0u16; SETS];
    for ((&sequence, triple), symbol) in sequences.iter().zip(&mut scratch.triples).zip(&mut scratch.symbols) {
        let run = sequence.run();
        copy_literals(&mut scratch.literals, literal_count, window, at, run);
        literal_count += run;
        at += run + sequence.length();
        let (any, word) = CLASSES.triples(sequence);
        let (as_any, as_word) = (tables.symbol_of[usize::from(any)], tables.symbol_of[usize::from(word)]);
        let is_word = usize::from(as_word) != TOKEN_ESCAPE;
        *triple = if is_word { word } else { any };
        *symbol = if is_word { as_word } else { as_any };
        let escaped;
        let meaning = if usize::from(*symbol) == TOKEN_ESCAPE {
            escaped = meaning(*triple)?;
            &escaped
        } else {
            &tables.meanings[usize::from(*symbol)]
        };
        let extra = (sequence.0 & Sequence::NUMBERS).wrapping_sub(meaning.base & Sequence::NUMBERS);
        extras.put(I::gather(extra, meaning.mask), (meaning.base >> 56) as u32);
        extras.flush();
        add(&mut costs, &tables.token_costs[usize::from(*symbol)]);
    }
    let extras_len = extras.finish();
    let tail = &window.page()[at - PAGE_AT..];
    scratch.literals[literal_count..][..tail.len()].copy_from_slice(tail);
    literal_count += tail.len();
    let literals = &scratch.literals[..literal_count];

    // The cheapest sets.
    let token_set = cheapest(&costs, tables.tokens.len());
    let mut costs = [0u16; SETS];
    for &literal in literals.iter().step_by(literal_count / 200 + 1) {
        add(&mut costs, &tables.literal_costs[usize::from(literal)]);
    }
    let literal_set = cheapest(&costs, tables.literals.len());

    let codes = &tables.tokens[token_set].encode;
    let mut tokens = Writer::new(&mut scratch.tokens);
    for (&symbol, &triple) in scratch.symbols[..count].iter().zip(&scratch.triples) {
        let code = codes[usize::from(symbol) & (codes.len() - 1)];
        tokens.put(u64::from(code & 0x7ff_ffff), code >> 27);
        if usize::from(symbol) == TOKEN_ESCAPE {
            tokens.put(u64::from(triple), TRIPLE_BITS);
        }
        tokens.flush();
    }
    let tokens_len = tokens.finish();

    let lane_count = if literal_count < FOUR_LANES_FROM { 2 } else { 4 };
    let set = &tables.literals[literal_set];
    let mut lane_lens = [0; 4];
    let mut rest = literals;
    for (lane, (lane_len, room)) in lane_lens.iter_mut().zip(&mut scratch.lanes).enumerate().take(lane_count) {
        let len = if lane + 1 < lane_count { literal_count / lane_count } else { rest.len() };
        let (now, later) = rest.split_at(len);
        rest = later;
        *lane_len = encode_lane(set, now, room);
    }

    let mut object = Object { out, at: 0 };
    object.byte((literal_set | token_set << 3) as u8 | if lane_count == 4 { FOUR_LANES } else { 0 });
    object.number(literal_count);
    object.number(lane_lens[0] + lane_lens[1]);
    if lane_count == 4 {
        object.number(lane_lens[2] + lane_lens[3]);
    }
    for pair in 0..lane_count / 2 {
        object.upwards(&scratch.lanes[2 * pair], lane_lens[2 * pair]);
        object.downwards(&scratch.lanes[2 * pair + 1], lane_lens[2 * pair + 1]);
    }
    object.upwards(&scratch.tokens, tokens_len);
    object.downwards(&scratch.extras, extras_len);
    if object.at > PAGE_SIZE {
        object.at = 0;
        object.byte(RAW);
        object.bytes(window.page());
    }
    (object.at <= object.out.len()).then_some(object.at)
}

/// Copies the `run` bytes at `from` in the window, and some more, to `to` in `literals`.
#[inline(always)]
fn copy_literals(literals: &mut Literals, to: usize, window: &Window, from: usize, run: usize) {
    debug_assert!(to + run <= PAGE_SIZE && from + run <= END);
    // SAFETY: the sequences of a page cover no more than the page, so `to + run` is at most its size and `from + run`
    // at most END. Up to 16 bytes more are copied than `run`, rounded up; both buffers have 64 more.
    unsafe { wild_copy::<16>(window.as_ptr().add(from), literals.as_mut_ptr().add(to), run) };
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

#[inline(always)]
fn encode_lane(set: &LiteralSet, literals: &[u8], room: &mut Room) -> usize {
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

/// An object in the making. `at` may go beyond the end of `out`: then nothing more is written.
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

    /// A number below 16384: 7 bits, and a second byte if the first has its top bit set.
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
        let (words, rest) = stream.as_chunks::<8>();
        let (low, high) = room.split_at_mut(rest.len());
        for (to, from) in high.rchunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&u64::from_le_bytes(*from).to_be_bytes());
        }
        for (to, from) in low.iter_mut().rev().zip(rest) {
            *to = *from;
        }
    }
}
