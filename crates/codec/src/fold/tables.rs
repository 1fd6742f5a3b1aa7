//! The token table of the format (`docs/fold.md`, "Tokens"), in the layouts for decoder and
//! encoder: the fixed one and those that [`train`](super::train) fits.

/// An interval of lengths or of runs: the `1 << bits` values from `base`. Its extra bits select
/// one.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) base: u8,
    pub(super) bits: u8,
}

impl Slot {
    /// Returns the first value after the slot.
    const fn end(self) -> usize {
        self.base as usize + (1 << self.bits)
    }
}

/// The source of a match's offset.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Source {
    /// The last match's offset.
    Last = 0,
    /// The offset that preceded the last one; tokens whose source is `Last` do not count.
    Before = 1,
    /// The extra bits.
    New = 2,
}

/// The kinds of pages. Each has its own tokens and its own search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Kind {
    Others = 0,
    /// Pointers and small numbers.
    Words = 1,
    /// Numbers and records with a short period, such as arrays of floats.
    Records = 2,
    /// Short fields that repeat among other bytes, such as the keys and codes of a table.
    Fields = 3,
}

/// Number of [`Kind`]s.
pub(super) const KINDS: usize = 4;

/// Returns the length of the shortest match at a new offset in a page of this [`Kind`].
pub(super) const fn length_min_new(kind: usize) -> usize {
    [6, 6, 5, 4][kind]
}

/// The header: the number of literals in the low bits, which tokens the page uses, the palette.
pub(super) const LITERALS_MASK: usize = 0xFFF;
pub(super) const WORDS_SHIFT: u32 = 12;
pub(super) const PALETTE_SHIFT: u32 = 13;

/// The upper bits of a header that is followed by [`SecondHeader`]: those of a page of words with
/// the last palette, which pages of words do not use.
pub(super) const LONG_HEADER: usize = 0xF000;

/// The byte after a [`LONG_HEADER`]: the palette, and whether the page is one of records or fields.
pub(super) const PALETTE_MASK: u8 = 7;
pub(super) const RECORDS_SHIFT: u32 = 3;

/// The header of a page of words' tokens: their number in the low bits, and whether they are coded.
pub(super) const TOKENS_MASK: usize = 0x7FFF;
pub(super) const CODED_SHIFT: u32 = 15;

/// The longest run for which every class has a slot. A longer one needs [`FAR`].
pub(super) const RUN_MAX: usize = 41;

/// The shortest match at a repeated offset.
pub(super) const LENGTH_MIN: usize = 3;

/// Maximum extra bits of a token: 16 for the offset, 12 for the length, 12 for the run.
pub(super) const BITS_MAX: usize = 40;

/// Ends the sequences of a page whose last bytes are literals.
pub(super) const END: u8 = 255;

/// Consecutive slots without a gap, at most [`SLOTS_MAX`]. Slots may overlap; values of two slots
/// are encoded by the first one.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    list: [Slot; SLOTS_MAX],
    count: usize,
}

/// Maximum number of slots for the runs, or for the lengths, of a class.
pub(super) const SLOTS_MAX: usize = 32;

impl Slots {
    pub(super) const NONE: Self = Self { list: [Slot { base: 0, bits: 0 }; SLOTS_MAX], count: 0 };

    /// Creates the slots of a list of bases and bits.
    const fn new(list: &[(u8, u8)]) -> Self {
        let mut out = Self::NONE;
        while out.count < list.len() {
            out = out.and(Slot { base: list[out.count].0, bits: list[out.count].1 });
        }
        out
    }

    /// Returns these slots and one more.
    pub(super) const fn and(mut self, slot: Slot) -> Self {
        self.list[self.count] = slot;
        self.count += 1;
        self
    }

    pub(super) const fn as_slice(&self) -> &[Slot] {
        self.list.split_at(self.count).0
    }
}

/// A class of tokens that share the source of the offset. They are numbered run slot by run slot,
/// each with all its length slots.
#[derive(Clone, Copy)]
pub(super) struct Class {
    pub(super) runs: Slots,
    pub(super) lengths: Slots,
}

/// The source of a class's offsets.
struct Offsets {
    source: Source,
    /// Bits of the offset field, and its shift left to give the offset.
    bits: u8,
    shift: u8,
}

pub(super) const LAST: usize = 0;
pub(super) const BEFORE: usize = 1;
/// New offsets below [`NEAR_END`]; plus [`WORDS`] for multiples of eight.
pub(super) const NEAR: usize = 2;
/// New offsets below a page; plus [`WORDS`] for multiples of eight.
pub(super) const FAR: usize = 4;
/// New offsets of at least a page: into a dictionary.
pub(super) const DICT: usize = 6;
pub(super) const WORDS: usize = 1;
pub(super) const NEAR_END: usize = 128;
pub(super) const CLASSES_COUNT: usize = 7;

pub(super) type Classes = [Class; CLASSES_COUNT];

const OFFSETS: [Offsets; CLASSES_COUNT] = [
    Offsets { source: Source::Last, bits: 0, shift: 0 },
    Offsets { source: Source::Before, bits: 0, shift: 0 },
    Offsets { source: Source::New, bits: 7, shift: 0 },
    Offsets { source: Source::New, bits: 4, shift: 3 },
    Offsets { source: Source::New, bits: 12, shift: 0 },
    Offsets { source: Source::New, bits: 9, shift: 3 },
    Offsets { source: Source::New, bits: 16, shift: 0 },
];

/// The classes of pages without tables; the second are for pages of words. None has offsets that
/// are [`DICT`].
pub(super) const CLASSES: [Classes; KINDS] = [OTHERS, OF_WORDS, OF_RECORDS, OF_FIELDS];

#[rustfmt::skip]
const OTHERS: Classes = [
    Class {
        runs: Slots::new(&[(1, 0), (2, 0), (3, 1), (5, 3), (13, 5)]),
        lengths: Slots::new(&[
            (3, 1), (5, 0), (6, 0), (7, 0), (8, 1), (10, 1), (12, 2), (16, 4), (32, 4), (48, 12),
        ]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 2), (5, 6)]),
        lengths: Slots::new(&[(3, 1), (5, 1), (7, 0), (8, 0), (9, 3), (17, 4), (33, 6), (97, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 2), (5, 3), (13, 5)]),
        lengths: Slots::new(&[
            (6, 0), (7, 0), (8, 0), (9, 1), (11, 1), (13, 2), (17, 4), (33, 6), (97, 12),
        ]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 0), (3, 3), (11, 5)]),
        lengths: Slots::new(&[(6, 0), (7, 0), (8, 1), (10, 4), (26, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 1), (4, 2), (8, 2), (12, 4), (28, 5), (60, 12)]),
        lengths: Slots::new(&[
            (6, 0), (7, 0), (8, 1), (10, 1), (12, 0), (13, 1), (15, 2), (19, 3), (27, 5), (59, 12),
        ]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 0), (3, 3), (11, 5)]),
        lengths: Slots::new(&[(6, 0), (7, 0), (8, 0), (9, 0), (10, 2), (14, 2), (18, 5), (50, 12)]),
    },
    Class { runs: Slots::NONE, lengths: Slots::NONE },
];

#[rustfmt::skip]
const OF_WORDS: Classes = [
    Class {
        runs: Slots::new(&[(1, 0), (2, 0), (3, 3), (11, 5)]),
        lengths: Slots::new(&[
            (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 1), (10, 0), (11, 0), (12, 1), (14, 0),
            (15, 0), (16, 1), (18, 2), (22, 0), (23, 1), (25, 2), (29, 1), (31, 4), (47, 4),
            (63, 0), (64, 4), (80, 2), (84, 3), (92, 5), (124, 0), (125, 12),
        ]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 6)]),
        lengths: Slots::new(&[
            (3, 0), (4, 0), (5, 1), (7, 0), (8, 0), (9, 1), (11, 2), (15, 1), (17, 3), (25, 4),
            (41, 4), (57, 6), (121, 12),
        ]),
    },
    Class {
        runs: Slots::new(&[(0, 1), (2, 3), (10, 5)]),
        lengths: Slots::new(&[(6, 0), (7, 1), (9, 2), (13, 5), (45, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 0), (3, 3), (11, 5)]),
        lengths: Slots::new(&[(6, 0), (7, 0), (8, 0), (9, 3), (17, 4), (33, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 1), (2, 3), (10, 5), (42, 12)]),
        lengths: Slots::new(&[(6, 0), (7, 0), (8, 2), (12, 4), (28, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 0), (3, 3), (11, 5)]),
        lengths: Slots::new(&[
            (6, 0), (7, 0), (8, 0), (9, 1), (11, 1), (13, 1), (15, 2), (19, 3), (27, 1), (29, 2),
            (33, 5), (65, 12),
        ]),
    },
    Class { runs: Slots::NONE, lengths: Slots::NONE },
];

#[rustfmt::skip]
const OF_RECORDS: Classes = [
    Class {
        runs: Slots::new(&[
            (1, 0), (2, 0), (3, 0), (4, 1), (6, 0), (7, 3), (15, 2), (19, 0), (20, 3), (28, 4),
        ]),
        lengths: Slots::new(&[(3, 1), (5, 0), (6, 0), (7, 3), (15, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 3), (9, 6)]),
        lengths: Slots::new(&[
            (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 1), (11, 1), (13, 2), (17, 5),
            (49, 12),
        ]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 1), (3, 0), (4, 3), (12, 5)]),
        lengths: Slots::new(&[(5, 0), (6, 0), (7, 0), (8, 0), (9, 2), (13, 4), (29, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 1), (4, 3), (12, 5)]),
        lengths: Slots::new(&[
            (5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 1), (13, 4), (29, 12),
        ]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 0), (3, 0), (4, 3), (12, 12)]),
        lengths: Slots::new(&[(5, 0), (6, 0), (7, 0), (8, 0), (9, 3), (17, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (6, 1), (8, 2), (12, 5)]),
        lengths: Slots::new(&[(5, 0), (6, 0), (7, 0), (8, 0), (9, 1), (11, 3), (19, 12)]),
    },
    Class { runs: Slots::NONE, lengths: Slots::NONE },
];

/// Codes each match of liblz4 in no more bits than LZ4 does, except the few behind runs of 255 to
/// 269 literals.
#[rustfmt::skip]
const OF_FIELDS: Classes = [
    Class {
        runs: Slots::new(&[(1, 0), (2, 1), (4, 3), (12, 5)]),
        lengths: Slots::new(&[(3, 0), (4, 0), (5, 0), (6, 1), (8, 2), (12, 5), (44, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 1), (2, 6)]),
        lengths: Slots::new(&[(3, 1), (5, 1), (7, 2), (11, 0), (12, 4), (28, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 0), (2, 1), (4, 1), (6, 2), (10, 5)]),
        lengths: Slots::new(&[(4, 0), (5, 0), (6, 0), (7, 2), (11, 0), (12, 4), (28, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 1), (2, 3), (10, 5)]),
        lengths: Slots::new(&[(4, 0), (5, 0), (6, 1), (8, 4), (24, 12)]),
    },
    Class {
        runs: Slots::new(&[
            (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0),
            (10, 0), (11, 0), (12, 0), (13, 0), (14, 0), (15, 4), (31, 5), (63, 8), (63, 12),
        ]),
        lengths: Slots::new(&[(4, 0), (5, 0), (6, 1), (8, 2), (12, 3), (20, 6), (84, 12)]),
    },
    Class {
        runs: Slots::new(&[(0, 0), (1, 1), (3, 2), (7, 3), (15, 5)]),
        lengths: Slots::new(&[(4, 0), (5, 0), (6, 1), (8, 4), (24, 12)]),
    },
    Class { runs: Slots::NONE, lengths: Slots::NONE },
];

/// Untrained classes with all offsets.
#[cfg(test)]
#[rustfmt::skip]
pub(super) const PLAIN: [Classes; KINDS] = {
    const RUNS: &[(u8, u8)] = &[(0, 0), (1, 3), (9, 5), (41, 12)];
    const LENGTHS: &[(u8, u8)] = &[(6, 0), (7, 0), (8, 0), (9, 3), (17, 5), (49, 12)];
    const LENGTHS_OF_RECORDS: &[(u8, u8)] = &[(5, 0), (6, 1), (8, 0), (9, 3), (17, 5), (49, 12)];
    let new = Class { runs: Slots::new(RUNS), lengths: Slots::new(LENGTHS) };
    let of_records = Class { lengths: Slots::new(LENGTHS_OF_RECORDS), ..new };
    let repeated = Slots::new(&[(3, 1), (5, 1), (7, 0), (8, 0), (9, 3), (17, 5), (49, 12)]);
    let last = Class { runs: Slots::new(&[(1, 0), (2, 1), (4, 2), (8, 6)]), lengths: repeated };
    let before = Class { lengths: repeated, ..new };
    let of = [last, before, new, new, new, new, new];
    const LENGTHS_OF_FIELDS: &[(u8, u8)] = &[(4, 0), (5, 0), (6, 1), (8, 0), (9, 3), (17, 5), (49, 12)];
    let of_fields = Class { lengths: Slots::new(LENGTHS_OF_FIELDS), ..new };
    let of_records = [last, before, of_records, of_records, of_records, of_records, of_records];
    [of, of, of_records, [last, before, of_fields, of_fields, of_fields, of_fields, of_fields]]
};

/// The meaning of a token for the decoder. The extra bits of a token are, from the lowest: those of
/// the length, those of the run, the offset field.
///
/// 32 bytes, so that a token's entry is one shift away.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Token {
    pub(super) length_mask: u32,
    pub(super) length_base: u32,
    pub(super) run_mask: u32,
    pub(super) run_base: u32,
    /// The mask of the offset itself, already shifted left.
    pub(super) offset_mask: u32,
    pub(super) run_shift: u8,
    /// How far to shift the extra bits right, after a shift left by three, before applying
    /// [`Token::offset_mask`].
    pub(super) offset_shift: u8,
    /// Number of extra bits.
    pub(super) bits: u8,
    /// A [`Source`].
    pub(super) source: u8,
}

/// The meaning of all tokens.
pub(super) struct Tokens {
    pub(super) decoder: [Token; 256],
    pub(super) codes: Codes,
    /// For [`sequences`](super::sequences).
    #[cfg(target_arch = "x86_64")]
    pub(super) fields: [Bytes; 4],
}

/// A byte for each token.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
pub(super) struct Bytes(pub(super) [u8; 256]);

impl Tokens {
    /// Builds the tokens of `classes`, at most 255. Unused numbers, except [`END`], mean the same
    /// as token 0.
    pub(super) const fn new(classes: &Classes) -> Self {
        let decoder = decoder_tokens(classes);
        Self {
            codes: codes(classes),
            #[cfg(target_arch = "x86_64")]
            fields: fields(&decoder),
            decoder,
        }
    }
}

const fn decoder_tokens(classes: &Classes) -> [Token; 256] {
    let end = Token {
        length_mask: 0,
        length_base: 0,
        run_mask: 0,
        run_base: u16::MAX as u32, // Stops the decoder's fast loop, like a run that does not fit.
        offset_mask: 0,
        run_shift: 0,
        offset_shift: 0,
        bits: 0,
        source: Source::New as u8,
    };
    let mut out = [end; 256];
    let mut token = 0;
    let mut at = 0;
    while at < CLASSES_COUNT {
        let (offsets, runs, lengths) = (&OFFSETS[at], classes[at].runs.as_slice(), classes[at].lengths.as_slice());
        let mut r = 0;
        while r < runs.len() {
            let mut l = 0;
            while l < lengths.len() {
                let (run, length) = (runs[r], lengths[l]);
                out[token] = Token {
                    length_mask: (1 << length.bits) - 1,
                    length_base: length.base as u32,
                    run_mask: (1 << run.bits) - 1,
                    run_base: run.base as u32,
                    offset_mask: ((1 << offsets.bits) - 1) << offsets.shift,
                    run_shift: length.bits,
                    offset_shift: length.bits + run.bits + 3 - offsets.shift,
                    bits: length.bits + run.bits + offsets.bits,
                    source: offsets.source as u8,
                };
                assert!(out[token].bits as usize <= BITS_MAX && length.base as usize >= LENGTH_MIN);
                token += 1;
                l += 1;
            }
            r += 1;
        }
        at += 1;
    }
    assert!(token <= END as usize);
    while token < END as usize {
        out[token] = out[0];
        token += 1;
    }
    out
}

/// By token: extra bits of the length, and of the run shifted left by 4; the length's base; the
/// run's base, and the source shifted left by 6; extra bits of the offset, and the left shift of
/// the offset shifted left by 5.
#[cfg(target_arch = "x86_64")]
const fn fields(tokens: &[Token; 256]) -> [Bytes; 4] {
    let mut out = [const { Bytes([0; 256]) }; 4];
    let mut at = 0;
    while at < END as usize {
        let token = &tokens[at];
        let offset_shift = if token.offset_mask == 0 { 0 } else { token.offset_mask.trailing_zeros() };
        let (length_bits, run_bits) = (token.length_mask.count_ones(), token.run_mask.count_ones());
        assert!(length_bits <= 12 && run_bits <= 12 && token.length_base < 256 && token.run_base < 64);
        out[0].0[at] = (length_bits | run_bits << 4) as u8;
        out[1].0[at] = token.length_base as u8;
        out[2].0[at] = token.run_base as u8 | token.source << 6;
        out[3].0[at] = (token.offset_mask.count_ones() | offset_shift << 5) as u8;
        at += 1;
    }
    out
}

/// How the encoder encodes a run or a length, for each class: from the lowest byte, its part of the
/// token, the slot's extra bits and its base; then, for runs, the bits of the class's offset field.
pub(super) struct Codes {
    pub(super) runs: [[u32; RUN_CODES]; CLASSES_COUNT],
    pub(super) lengths: [[u32; LENGTH_CODES]; CLASSES_COUNT],
}

/// Runs from `RUN_CODES - 1` up share a code, as do lengths from `LENGTH_CODES - 1`.
pub(super) const RUN_CODES: usize = 256;
pub(super) const LENGTH_CODES: usize = 128;

/// Bases of runs are below this: a byte has two bits more for the [`Source`].
pub(super) const RUN_BASES: usize = 64;

pub(super) const fn codes(classes: &Classes) -> Codes {
    let mut out = Codes { runs: [[0; RUN_CODES]; CLASSES_COUNT], lengths: [[0; LENGTH_CODES]; CLASSES_COUNT] };
    let mut first = 0;
    let mut at = 0;
    while at < CLASSES_COUNT {
        let (runs, lengths) = (classes[at].runs.as_slice(), classes[at].lengths.as_slice());
        let mut slot = 0;
        while slot < runs.len() {
            let Slot { base, bits } = runs[slot];
            let token = (first + slot * lengths.len()) as u8;
            let mut run = if slot == 0 { base as usize } else { runs[slot - 1].end() };
            if run >= RUN_CODES {
                run = RUN_CODES - 1;
            }
            while run < RUN_CODES {
                out.runs[at][run] = u32::from_le_bytes([token, bits, base, OFFSETS[at].bits]);
                run += 1;
            }
            slot += 1;
        }
        slot = 0;
        while slot < lengths.len() {
            let Slot { base, bits } = lengths[slot];
            let mut length = base as usize;
            while length < LENGTH_CODES {
                out.lengths[at][length] = u32::from_le_bytes([slot as u8, bits, base, 0]);
                length += 1;
            }
            slot += 1;
        }
        first += runs.len() * lengths.len();
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    /// Slots are consecutive without a gap; the last is open or reaches `reach`.
    fn assert_covers(slots: &[Slot], first: usize, reach: usize) {
        let mut next = first;
        for slot in slots {
            assert!(usize::from(slot.base) <= next && slot.end() > next);
            next = slot.end();
        }
        assert!(next > reach, "reaches {next}, not {reach}");
    }

    #[test]
    fn every_class_says_all_it_may_be_asked_to() {
        for (kind, at, class) in (0..KINDS).flat_map(|kind| (0..DICT).map(move |at| (kind, at, &CLASSES[kind][at]))) {
            let (runs, lengths) = (class.runs.as_slice(), class.lengths.as_slice());
            let repeats = OFFSETS[at].source != Source::New;
            assert_covers(lengths, if repeats { LENGTH_MIN } else { length_min_new(kind) }, PAGE_SIZE);
            assert_covers(runs, usize::from(at == LAST), if at == FAR { PAGE_SIZE } else { RUN_MAX });
            assert!(usize::from(runs.last().unwrap().base) < RUN_CODES);
            assert!(usize::from(lengths.last().unwrap().base) < LENGTH_CODES);
        }
    }

    /// A page of fields has the matches that liblz4 takes. LZ4 has a byte for the token, two for the
    /// offset, and one for a run of 15 or more or a match of 19 or more and each 255 more.
    #[test]
    fn no_match_of_a_page_of_fields_has_more_bits_than_with_lz4() {
        let codes = codes(&CLASSES[Kind::Fields as usize]);
        let bits = |code: u32| u32::from(code.to_le_bytes()[1]);
        let more = |number: usize, limit: usize| if number < limit { 0 } else { 1 + (number - limit) as u32 / 255 };
        for class in 0..DICT {
            for run in usize::from(class == LAST)..PAGE_SIZE - 4 {
                if run > RUN_MAX && class != FAR {
                    continue;
                }
                for length in (4..PAGE_SIZE - run).take(300) {
                    let run_code = codes.runs[class][run.min(RUN_CODES - 1)];
                    let length_code = codes.lengths[class][length.min(LENGTH_CODES - 1)];
                    let ours = 8 + bits(run_code) + u32::from(run_code.to_le_bytes()[3]) + bits(length_code);
                    let theirs = 24 + 8 * (more(run, 15) + more(length, 19));
                    let spare = if (255..270).contains(&run) { 4 } else { 0 };
                    assert!(ours <= theirs + spare, "class {class}, run {run}, length {length}: {ours}, not {theirs}");
                }
            }
        }
    }

    #[test]
    fn decoder_and_encoder_agree_on_every_token() {
        for classes in &CLASSES {
            let tokens = Tokens::new(classes);
            let codes = tokens.codes.runs.iter().zip(&tokens.codes.lengths);
            for (class, (runs, lengths)) in classes.iter().zip(codes).take(DICT) {
                for run in &runs[usize::from(class.runs.as_slice()[0].base)..] {
                    for length in &lengths[usize::from(class.lengths.as_slice()[0].base)..] {
                        let [run_token, run_bits, run_base, offset_bits] = run.to_le_bytes();
                        let [length_token, length_bits, length_base, none] = length.to_le_bytes();
                        let token = &tokens.decoder[usize::from(run_token) + usize::from(length_token)];
                        assert_eq!((u32::from(length_base), u32::from(run_base)), (token.length_base, token.run_base));
                        assert_eq!(run_bits + length_bits + offset_bits, token.bits);
                        assert_eq!(u32::from(offset_bits), token.offset_mask.count_ones());
                        assert_eq!(none, 0);
                    }
                }
            }
        }
    }
}
