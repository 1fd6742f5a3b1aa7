//! The tables that the pages of a store share, and their serialised form.

use std::sync::{Arc, OnceLock};

use super::{
    bits::COUNT,
    format::{COARSE, Meaning, TRIPLES, coarse_meaning, coarse_symbol, meaning, of_any_alignment},
    huffman,
    places::Places,
    window::{self, MAX_DICTIONARY, Window},
};
use crate::BadTables;

/// Bits of the longest literal code.
pub(super) const LITERAL_MAX: u8 = 10;
/// Bits of the longest token code.
pub(super) const TOKEN_MAX: u8 = 10;
/// Contexts of a literal set.
pub(super) const CONTEXTS: usize = 8;
/// Maximum number of literal sets, and of token sets.
pub(super) const SETS: usize = 8;
/// Maximum number of symbols in the token code, including the coarse ones.
pub(super) const SYMBOLS: usize = 1024;
/// The symbol of a literal that has no code in its context: 8 bits follow.
pub(super) const ESCAPE: usize = 256;

const MAGIC: [u8; 4] = *b"plt\x07";
const CLASS_BYTES: usize = 128;
const CONTEXT_BYTES: usize = 129;

/// The code of one kind of literals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiteralCode {
    /// The context that each literal selects for the next, below [`CONTEXTS`].
    pub(super) context_after: [u8; 256],
    /// Code lengths in each context; the last is [`ESCAPE`]'s.
    pub(super) lengths: [[u8; 257]; CONTEXTS],
    /// Each literal's cost without context, in eighths of a bit. The sum of these selects a page's
    /// set.
    pub(super) costs: [u8; 256],
}

/// The part that is trained and stored; everything else is derived from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// The triple of each token symbol from [`COARSE`], in ascending order.
    pub(super) triples: Vec<u16>,
    /// Code lengths of the token symbols, the coarse ones first, in each token set.
    pub(super) token_lengths: Vec<Vec<u8>>,
    pub(super) literals: Vec<LiteralCode>,
    pub(super) dictionary: Vec<u8>,
    /// The places of the dictionary that an encoder looks up, ascending.
    pub(super) starts: Vec<u16>,
}

/// One token set, ready for use.
pub(super) struct TokenSet {
    /// `code | length << 27`; a symbol without code holds the coarse symbol that replaces it, and
    /// length 0.
    pub(super) encode: Box<[u32; SYMBOLS]>,
    /// `length | symbol << 6` by the next [`TOKEN_MAX`] bits.
    pub(super) decode: Box<[u16; 1 << TOKEN_MAX]>,
}

impl TokenSet {
    /// Returns the symbol that encodes `symbol` in this set, itself or a coarse one, and that
    /// symbol's entry of `encode`.
    #[inline(always)]
    pub(super) fn code(&self, symbol: usize) -> (usize, u32) {
        let code = self.encode[symbol & (SYMBOLS - 1)];
        if code >> 27 != 0 {
            return (symbol, code);
        }
        let coarse = code as usize & (SYMBOLS - 1);
        (coarse, self.encode[coarse])
    }
}

/// The result of a literal look-up.
///
/// ```text
/// bits  0..6   length of the codes
/// bits 10..14  context of the next look-up
/// bits 14..30  the literals, the first lowest
/// bits 30..32  number of literals: 1 or 2; 0 for an escape
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lookup(pub(super) u32);

impl Lookup {
    /// Mask of the context, at the place where it is combined with the next [`LITERAL_MAX`] bits.
    pub(super) const CONTEXT: u32 = 15 << LITERAL_MAX;

    #[inline(always)]
    pub(super) fn new(length: u8, literals: &[u8], context: u8) -> Self {
        let bytes = literals.iter().rev().fold(0, |bytes, &literal| bytes << 8 | u32::from(literal));
        let count = literals.len() as u32;
        Self(u32::from(length) | u32::from(context) << LITERAL_MAX | bytes << 14 | count << 30)
    }
}

/// `N` look-ups, and one that is never used: 8 bytes can be read from each.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Lookups<const N: usize>(pub(super) [Lookup; N], Lookup);

impl<const N: usize> Lookups<N> {
    pub(super) const fn new() -> Self {
        Self([Lookup(0); N], Lookup(0))
    }
}

/// The context after an escape, in which the next 8 bits are a literal: an escape is then a look-up
/// like any other.
const ESCAPED: usize = CONTEXTS;
/// Look-ups of a literal set: those of 16 contexts, so that any bits of [`Lookup::CONTEXT`] are a
/// valid index; those above [`ESCAPED`] are never used.
pub(super) const LOOKUPS: usize = 16 << LITERAL_MAX;

/// One literal set, ready for use.
pub(super) struct LiteralSet {
    /// Start of the codes in `encode` after each literal: its context times 256.
    pub(super) row_after: [u16; 256],
    /// By `context << 8 | literal`: the code's length in the low bits, the code in the highest. A
    /// literal without code holds the escape's code followed by its own 8 bits.
    pub(super) encode: Box<[u64; CONTEXTS << 8]>,
    /// By `context << LITERAL_MAX | next bits`: the one or two literals whose codes are completely
    /// in these bits, or an escape. See [`Lookup`].
    pub(super) decode: Box<Lookups<LOOKUPS>>,
}

impl LiteralSet {
    /// Returns the bits of every `step`th of `literals`, in the context that the previous one
    /// selects.
    #[inline(always)]
    pub(super) fn bits(&self, literals: &[u8], step: usize) -> usize {
        let mut bits = 0;
        let mut at = 0;
        while let Some(&literal) = literals.get(at) {
            let before = literals.get(at.wrapping_sub(1)).map_or(0, |&before| usize::from(before));
            let place = usize::from(self.row_after[before] | u16::from(literal));
            bits += self.encode[place & ((CONTEXTS << 8) - 1)] & 63;
            at += step;
        }
        bits as usize
    }

    /// Returns a look-up whose context is the one in which a lane begins.
    #[inline(always)]
    pub(super) fn first(&self) -> Lookup {
        Lookup(u32::from(self.row_after[0] >> 8) << LITERAL_MAX)
    }
}

/// Tables of the dense page codec, shared by the pages of a store: a dictionary, and prefix codes
/// for tokens and literals in up to eight sets each, of which a page uses one.
///
/// A store may hold objects of several tables. An object must be decoded with the tables it was
/// made with, and does not name them. With wrong tables, decoding fails or yields a wrong page; it
/// stays memory-safe.
pub struct PleatTables {
    id: u32,
    model: Model,
    /// Symbol of each triple: its own, that of the same triple with an offset of any alignment, or
    /// a coarse one.
    pub(super) symbol_of: Box<[u16; TRIPLES]>,
    pub(super) meanings: Box<[Meaning; SYMBOLS]>,
    pub(super) tokens: Vec<TokenSet>,
    pub(super) literals: Vec<LiteralSet>,
    /// Each token symbol's bits in each set, including the extra bits.
    pub(super) token_costs: Box<[[u16; SETS]; SYMBOLS]>,
    /// Each literal's cost in each set, in eighths of a bit.
    pub(super) literal_costs: Box<[[u16; SETS]; 256]>,
    pub(super) window: Window,
    /// The positions of the dictionary's bytes; `None` without a dictionary.
    pub(super) places: Option<Box<Places>>,
}

impl std::fmt::Debug for PleatTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PleatTables")
            .field("id", &self.id)
            .field("token_sets", &self.tokens.len())
            .field("literal_sets", &self.literals.len())
            .field("symbols", &self.model.triples.len())
            .field("dictionary_bytes", &self.model.dictionary.len())
            .finish_non_exhaustive()
    }
}

impl PleatTables {
    /// Returns the tables built into the library, trained on a mixture of heaps, programs, text and
    /// data.
    pub fn builtin() -> Arc<Self> {
        static BUILTIN: OnceLock<Arc<PleatTables>> = OnceLock::new();
        let tables = || Self::from_bytes(include_bytes!("builtin.tables")).unwrap_or_else(|error| panic!("{error}"));
        Arc::clone(BUILTIN.get_or_init(|| Arc::new(tables())))
    }

    /// Returns a hash of the content: equal tables have equal ids, on every machine.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Serialises the tables to at most 85 KiB, as docs/pleat.md describes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let model = &self.model;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.id.to_le_bytes());
        bytes.extend((model.dictionary.len() as u16).to_le_bytes());
        bytes.extend((model.triples.len() as u16).to_le_bytes());
        bytes.extend([model.token_lengths.len() as u8, model.literals.len() as u8]);
        bytes.extend(model.triples.iter().flat_map(|triple| triple.to_le_bytes()));
        for lengths in &model.token_lengths {
            put_nibbles(&mut bytes, lengths);
        }
        for code in &model.literals {
            put_nibbles(&mut bytes, &code.context_after);
            for lengths in &code.lengths {
                put_nibbles(&mut bytes, lengths);
            }
            bytes.extend(code.costs);
        }
        bytes.extend(&model.dictionary);
        let mut is_start = vec![0; model.dictionary.len().div_ceil(8)];
        for start in model.starts.iter().map(|&start| usize::from(start)) {
            is_start[start / 8] |= 1 << (start % 8);
        }
        bytes.extend(is_start);
        bytes
    }

    /// Deserialises the output of [`PleatTables::to_bytes`]. `bytes` is untrusted; tables that are
    /// accepted are safe to use and serialise to the same bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadTables> {
        const SHORT: BadTables = BadTables { what: "truncated" };
        let mut rest = bytes;
        let mut take = |len: usize| -> Result<&[u8], BadTables> {
            let (head, tail) = rest.split_at_checked(len).ok_or(SHORT)?;
            rest = tail;
            Ok(head)
        };
        if take(4)? != MAGIC {
            return Err(BadTables { what: "unknown format or version" });
        }
        let id = u32::from_le_bytes(take(4)?.try_into().map_err(|_| SHORT)?);
        if id != id_of(bytes) {
            return Err(BadTables { what: "the id does not match the contents" });
        }
        let &[d0, d1, t0, t1, token_sets, literal_sets] = take(6)? else { return Err(SHORT) };
        let dictionary_len = usize::from(u16::from_le_bytes([d0, d1]));
        let symbols = usize::from(u16::from_le_bytes([t0, t1]));
        if symbols > SYMBOLS - COARSE || dictionary_len > MAX_DICTIONARY {
            return Err(BadTables { what: "too many symbols or too long a dictionary" });
        }
        let possible = 1..=SETS as u8;
        if !possible.contains(&token_sets) || !possible.contains(&literal_sets) {
            return Err(BadTables { what: "invalid number of sets" });
        }
        let triples: Vec<u16> = take(2 * symbols)?.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair)).collect();
        let mut token_lengths = Vec::with_capacity(SETS);
        for _ in 0..token_sets {
            token_lengths.push(nibbles(take((COARSE + symbols).div_ceil(2))?, COARSE + symbols)?);
        }
        let mut literals = Vec::with_capacity(SETS);
        for _ in 0..literal_sets {
            let mut context_after = [0; 256];
            context_after.copy_from_slice(&nibbles(take(CLASS_BYTES)?, 256)?);
            let mut lengths = [[0; 257]; CONTEXTS];
            for lengths in &mut lengths {
                lengths.copy_from_slice(&nibbles(take(CONTEXT_BYTES)?, 257)?);
            }
            let mut costs = [0; 256];
            costs.copy_from_slice(take(256)?);
            literals.push(LiteralCode { context_after, lengths, costs });
        }
        let dictionary = take(dictionary_len)?.to_vec();
        let is_start = take(dictionary_len.div_ceil(8))?;
        let starts: Vec<u16> =
            (0..8 * is_start.len()).filter(|at| is_start[at / 8] >> (at % 8) & 1 == 1).map(|at| at as u16).collect();
        if starts.last().is_some_and(|&last| usize::from(last) >= dictionary_len) {
            return Err(BadTables { what: "a place beyond the dictionary" });
        }
        if !rest.is_empty() {
            return Err(BadTables { what: "trailing bytes after the tables" });
        }
        Self::new(Model { triples, token_lengths, literals, dictionary, starts })
    }

    /// Derives everything from `model`, and checks it.
    pub(super) fn new(model: Model) -> Result<Self, BadTables> {
        if !model.triples.is_sorted_by(|a, b| a < b) {
            return Err(BadTables { what: "token symbols out of order" });
        }
        let mut symbol_of = Box::new([0; TRIPLES]);
        for (triple, symbol) in symbol_of.iter_mut().enumerate() {
            *symbol = coarse_symbol(triple as u16) as u16;
        }
        let mut meanings = Box::new([Meaning::default(); SYMBOLS]);
        for (symbol, meaning) in meanings.iter_mut().enumerate().take(COARSE) {
            *meaning = coarse_meaning(symbol, model.dictionary.len());
        }
        for (&triple, symbol) in model.triples.iter().zip(COARSE..) {
            let meaning = meaning(triple).ok_or(BadTables { what: "a token symbol without meaning" })?;
            symbol_of[usize::from(triple)] = symbol as u16;
            meanings[symbol] = meaning;
        }
        for triple in 0..TRIPLES {
            if usize::from(symbol_of[triple]) < COARSE {
                symbol_of[triple] = symbol_of[usize::from(of_any_alignment(triple as u16))];
            }
        }
        let mut tables = Self {
            id: 0,
            symbol_of,
            meanings,
            tokens: Vec::with_capacity(SETS),
            literals: Vec::with_capacity(SETS),
            token_costs: Box::new([[u16::MAX; SETS]; SYMBOLS]),
            literal_costs: Box::new([[u16::MAX; SETS]; 256]),
            window: Window::new(&model.dictionary),
            places: None,
            model,
        };
        if tables.dictionary_bytes() > 0 {
            tables.places = Some(Places::new(&tables.window, tables.dictionary_bytes(), &tables.model.starts));
        }
        for (set, lengths) in tables.model.token_lengths.iter().enumerate() {
            let token = token_set(lengths, &tables.model.triples)?;
            for (symbol, costs) in tables.token_costs.iter_mut().enumerate() {
                let (symbol, code) = token.code(symbol);
                costs[set] = (code >> 27) as u16 + (tables.meanings[symbol].base >> 56) as u16;
            }
            tables.tokens.push(token);
        }
        for (set, code) in tables.model.literals.iter().enumerate() {
            for (costs, &cost) in tables.literal_costs.iter_mut().zip(&code.costs) {
                costs[set] = u16::from(cost);
            }
            tables.literals.push(literal_set(code)?);
        }
        tables.id = id_of(&tables.to_bytes());
        Ok(tables)
    }

    /// Returns the trained data.
    #[cfg(test)]
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the dictionary's length in bytes, 0 if there is none.
    pub fn dictionary_bytes(&self) -> usize {
        self.model.dictionary.len()
    }

    /// Returns the heap bytes of the tables.
    pub fn memory_bytes(&self) -> usize {
        let token = size_of::<[u32; SYMBOLS]>() + size_of::<[u16; 1 << TOKEN_MAX]>() + SYMBOLS;
        let literal = size_of::<[u64; CONTEXTS << 8]>()
            + size_of::<Lookups<LOOKUPS>>()
            + size_of::<LiteralSet>()
            + size_of::<LiteralCode>();
        size_of::<[u16; TRIPLES]>()
            + size_of::<[Meaning; SYMBOLS]>()
            + size_of::<[[u16; SETS]; SYMBOLS]>()
            + size_of::<[[u16; SETS]; 256]>()
            + self.places.as_deref().map_or(0, size_of_val)
            + window::SIZE
            + self.model.dictionary.len()
            + 2 * self.model.triples.len()
            + SETS * token
            + SETS * literal
    }
}

/// Returns the id of serialised tables: FNV-1a of the bytes after the id.
pub(super) fn id_of(bytes: &[u8]) -> u32 {
    let hash = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.iter().skip(8).fold(0x811c_9dc5, hash)
}

fn put_nibbles(bytes: &mut Vec<u8>, values: &[u8]) {
    bytes.extend(values.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |high| high << 4)));
}

fn nibbles(bytes: &[u8], count: usize) -> Result<Vec<u8>, BadTables> {
    let mut values: Vec<u8> = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
    if values.drain(count..).any(|padding| padding != 0) {
        return Err(BadTables { what: "nonzero padding" });
    }
    Ok(values)
}

fn token_set(lengths: &[u8], triples: &[u16]) -> Result<TokenSet, BadTables> {
    let codes =
        huffman::codes(lengths, TOKEN_MAX).ok_or(BadTables { what: "token code lengths are not a valid code" })?;
    if codes.iter().take(COARSE).any(|code| code.length == 0) {
        return Err(BadTables { what: "a coarse token without a code" });
    }
    let mut encode = Box::new([0; SYMBOLS]);
    let mut decode = Box::new([0; 1 << TOKEN_MAX]);
    for (symbol, code) in codes.iter().enumerate() {
        if code.length == 0 {
            encode[symbol] = coarse_symbol(triples[symbol - COARSE]) as u32;
            continue;
        }
        encode[symbol] = u32::from(code.bits) | u32::from(code.length) << 27;
        for slot in decode.iter_mut().skip(usize::from(code.bits)).step_by(1 << code.length) {
            *slot = u16::from(code.length) | (symbol as u16) << COUNT;
        }
    }
    Ok(TokenSet { encode, decode })
}

fn literal_set(code: &LiteralCode) -> Result<LiteralSet, BadTables> {
    let LiteralCode { context_after, lengths, .. } = code;
    if context_after.iter().any(|&context| usize::from(context) >= CONTEXTS) {
        return Err(BadTables { what: "a context that does not exist" });
    }
    let mut encode = Box::new([0; CONTEXTS << 8]);
    // One symbol by context and bits: its length, and its literal unless it is the escape.
    let mut symbols = vec![(0, None); CONTEXTS << LITERAL_MAX];
    for (context, lengths) in lengths.iter().enumerate() {
        let codes = huffman::codes(lengths, LITERAL_MAX)
            .ok_or(BadTables { what: "literal code lengths are not a valid code" })?;
        let escape = codes[ESCAPE];
        if escape.length == 0 {
            return Err(BadTables { what: "literal code without an escape" });
        }
        for (literal, code) in codes.iter().enumerate() {
            if literal != ESCAPE {
                let (bits, length) = match code.length {
                    0 => (u64::from(escape.bits) | (literal as u64) << escape.length, escape.length + 8),
                    length => (u64::from(code.bits), length),
                };
                encode[context << 8 | literal] = bits << (64 - length) | u64::from(length);
            }
            if code.length > 0 {
                let symbol = (code.length, u8::try_from(literal).ok());
                let table = &mut symbols[context << LITERAL_MAX..][..1 << LITERAL_MAX];
                table.iter_mut().skip(usize::from(code.bits)).step_by(1 << code.length).for_each(|slot| *slot = symbol);
            }
        }
    }
    let mut decode = Box::new(Lookups::new());
    for (place, (lookup, &(length, literal))) in decode.0.iter_mut().zip(&symbols).enumerate() {
        let Some(first) = literal else {
            *lookup = Lookup::new(length, &[], ESCAPED as u8);
            continue;
        };
        let context = context_after[usize::from(first)];
        let rest = (place & ((1 << LITERAL_MAX) - 1)) >> length;
        *lookup = match symbols[usize::from(context) << LITERAL_MAX | rest] {
            (more, Some(second)) if length + more <= LITERAL_MAX => {
                Lookup::new(length + more, &[first, second], context_after[usize::from(second)])
            }
            _ => Lookup::new(length, &[first], context),
        };
    }
    for (bits, lookup) in decode.0[ESCAPED << LITERAL_MAX..][..1 << LITERAL_MAX].iter_mut().enumerate() {
        *lookup = Lookup::new(8, &[bits as u8], context_after[bits & 255]);
    }
    Ok(LiteralSet { row_after: context_after.map(|context| u16::from(context) << 8), encode, decode })
}
