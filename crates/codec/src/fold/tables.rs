//! The token table of the format (`docs/fold.md`, "Tokens"), in the shapes that the decoder and the encoder want.

/// An interval of lengths or of runs: the `1 << bits` values from `base`. Its extra bits say which.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) base: u8,
    pub(super) bits: u8,
}

/// Where a match's offset comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Source {
    /// It is that of the last match.
    Last = 0,
    /// It is that of the match before, of those whose offset was another.
    Before = 1,
    /// It is in the extra bits.
    New = 2,
}

/// The header: literals below, the copy hint, the palette.
pub(super) const LITERALS_MASK: usize = 0xFFF;
pub(super) const WIDE_SHIFT: u32 = 12;
pub(super) const PALETTE_SHIFT: u32 = 13;

/// The longest run that every class has a slot for. A longer one needs [`FAR`].
pub(super) const RUN_MAX: usize = 41;

/// The shortest match at a repeated offset.
pub(super) const LENGTH_MIN: usize = 3;

/// The shortest match that the classes with a new offset can say.
pub(super) const LENGTH_MIN_NEW: usize = 5;

/// Most extra bits of a token: 12 of the offset, 12 of the length, 12 of the run.
pub(super) const BITS_MAX: usize = 36;

/// Ends the sequences of a page whose last bytes are literals.
pub(super) const END: u8 = 255;

/// Tokens of one class share the source of the offset. They are numbered run slot by run slot, each with all its length
/// slots.
struct Class {
    source: Source,
    /// Bits of the offset field, and how far it is shifted left to become the offset.
    offset_bits: u8,
    offset_shift: u8,
    runs: &'static [Slot],
    lengths: &'static [Slot],
}

pub(super) const LAST: usize = 0;
pub(super) const BEFORE: usize = 1;
/// New offsets below [`NEAR_END`]; plus [`WORDS`] for multiples of eight.
pub(super) const NEAR: usize = 2;
/// New offsets of any size; plus [`WORDS`] for multiples of eight.
pub(super) const FAR: usize = 4;
pub(super) const WORDS: usize = 1;
pub(super) const NEAR_END: usize = 128;
const CLASS_COUNT: usize = 6;

const fn slots<const N: usize>(list: [(u8, u8); N]) -> [Slot; N] {
    let mut out = [Slot { base: 0, bits: 0 }; N];
    let mut at = 0;
    while at < N {
        out[at] = Slot { base: list[at].0, bits: list[at].1 };
        at += 1;
    }
    out
}

#[rustfmt::skip]
const CLASSES: [Class; CLASS_COUNT] = [
    Class {
        source: Source::Last, offset_bits: 0, offset_shift: 0,
        runs: &slots([(1, 0), (2, 0), (3, 3), (11, 5)]),
        lengths: &slots([
            (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 1), (10, 2), (14, 0), (15, 0), (16, 3), (24, 3), (32, 4),
            (48, 5), (80, 12),
        ]),
    },
    Class {
        source: Source::Before, offset_bits: 0, offset_shift: 0,
        runs: &slots([(0, 0), (1, 0), (2, 6)]),
        lengths: &slots([
            (3, 2), (7, 0), (8, 0), (9, 2), (13, 2), (17, 3), (25, 4), (41, 6), (105, 12),
        ]),
    },
    Class {
        source: Source::New, offset_bits: 7, offset_shift: 0,
        runs: &slots([(0, 0), (1, 2), (5, 3), (13, 5)]),
        lengths: &slots([
            (5, 0), (6, 0), (7, 0), (8, 1), (10, 2), (14, 3), (22, 4), (38, 5), (70, 12),
        ]),
    },
    Class {
        source: Source::New, offset_bits: 4, offset_shift: 3,
        runs: &slots([(0, 0), (1, 0), (2, 0), (3, 3), (11, 5)]),
        lengths: &slots([
            (5, 1), (7, 0), (8, 0), (9, 3), (17, 5), (49, 12),
        ]),
    },
    Class {
        source: Source::New, offset_bits: 12, offset_shift: 0,
        runs: &slots([(0, 0), (1, 1), (3, 2), (7, 2), (11, 4), (27, 5), (59, 12)]),
        lengths: &slots([
            (5, 0), (6, 0), (7, 0), (8, 1), (10, 1), (12, 2), (16, 3), (24, 4), (40, 5), (72, 12),
        ]),
    },
    Class {
        source: Source::New, offset_bits: 9, offset_shift: 3,
        runs: &slots([(0, 0), (1, 1), (3, 3), (11, 5)]),
        lengths: &slots([
            (5, 0), (6, 0), (7, 0), (8, 0), (9, 2), (13, 2), (17, 4), (33, 5), (65, 12),
        ]),
    },
];

/// What a token says, as the decoder wants it. The extra bits of a token are, from the lowest: those of the length,
/// those of the run, the offset field.
///
/// 32 bytes, so that a token's entry is one shift away.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Token {
    pub(super) length_mask: u32,
    pub(super) length_base: u32,
    pub(super) run_mask: u32,
    pub(super) run_base: u32,
    /// The mask of the offset itself, shifted left already.
    pub(super) offset_mask: u32,
    pub(super) run_shift: u8,
    /// How far to shift the extra bits right, after a shift left by three, for [`Token::offset_mask`].
    pub(super) offset_shift: u8,
    /// All extra bits.
    pub(super) bits: u8,
    /// A [`Source`].
    pub(super) source: u8,
}

pub(super) static TOKENS: [Token; 256] = tokens();

const fn tokens() -> [Token; 256] {
    let end = Token {
        length_mask: 0,
        length_base: 0,
        run_mask: 0,
        run_base: u16::MAX as u32, // Stops the decoder's fast loop, as a run without room for it does.
        offset_mask: 0,
        run_shift: 0,
        offset_shift: 0,
        bits: 0,
        source: Source::New as u8,
    };
    let mut out = [end; 256];
    let mut token = 0;
    let mut at = 0;
    while at < CLASS_COUNT {
        let class = &CLASSES[at];
        let mut r = 0;
        while r < class.runs.len() {
            let mut l = 0;
            while l < class.lengths.len() {
                let (run, length) = (class.runs[r], class.lengths[l]);
                out[token] = Token {
                    length_mask: (1 << length.bits) - 1,
                    length_base: length.base as u32,
                    run_mask: (1 << run.bits) - 1,
                    run_base: run.base as u32,
                    offset_mask: ((1 << class.offset_bits) - 1) << class.offset_shift,
                    run_shift: length.bits,
                    offset_shift: length.bits + run.bits + 3 - class.offset_shift,
                    bits: length.bits + run.bits + class.offset_bits,
                    source: class.source as u8,
                };
                assert!(out[token].bits as usize <= BITS_MAX);
                token += 1;
                l += 1;
            }
            r += 1;
        }
        at += 1;
    }
    assert!(token == END as usize);
    out
}

/// How the encoder says a run or a length, for each class: from the lowest byte on, its share of the token, the slot's extra bits
/// and its base; then, of runs, the bits of the class's offset field.
pub(super) struct Codes {
    pub(super) runs: [[u32; RUN_CODES]; CLASS_COUNT],
    pub(super) lengths: [[u32; LENGTH_CODES]; CLASS_COUNT],
}

/// Runs from `RUN_CODES - 1` on share a code, and so do lengths.
pub(super) const RUN_CODES: usize = 64;
pub(super) const LENGTH_CODES: usize = 128;

pub(super) static CODES: Codes = codes();

const fn codes() -> Codes {
    let mut out = Codes { runs: [[0; RUN_CODES]; CLASS_COUNT], lengths: [[0; LENGTH_CODES]; CLASS_COUNT] };
    let mut first = 0;
    let mut at = 0;
    while at < CLASS_COUNT {
        let class = &CLASSES[at];
        let mut slot = 0;
        while slot < class.runs.len() {
            let Slot { base, bits } = class.runs[slot];
            let token = (first + slot * class.lengths.len()) as u8;
            let mut run = base as usize;
            while run < RUN_CODES {
                out.runs[at][run] = u32::from_le_bytes([token, bits, base, class.offset_bits]);
                run += 1;
            }
            slot += 1;
        }
        slot = 0;
        while slot < class.lengths.len() {
            let Slot { base, bits } = class.lengths[slot];
            let mut length = base as usize;
            while length < LENGTH_CODES {
                out.lengths[at][length] = u32::from_le_bytes([slot as u8, bits, base, 0]);
                length += 1;
            }
            slot += 1;
        }
        first += class.runs.len() * class.lengths.len();
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    /// Slots follow each other without a gap; the last is open or reaches `reach`.
    fn assert_covers(slots: &[Slot], first: usize, reach: usize) {
        let mut next = first;
        for slot in slots {
            assert_eq!(usize::from(slot.base), next);
            next += 1 << slot.bits;
        }
        assert!(next > reach, "reaches {next}, not {reach}");
    }

    #[test]
    fn every_class_says_all_it_may_be_asked_to() {
        for (at, class) in CLASSES.iter().enumerate() {
            let repeats = class.source != Source::New;
            assert_covers(class.lengths, if repeats { LENGTH_MIN } else { LENGTH_MIN_NEW }, PAGE_SIZE);
            assert_covers(class.runs, usize::from(at == LAST), if at == FAR { PAGE_SIZE } else { RUN_MAX });
            assert!(usize::from(class.runs.last().unwrap().base) < RUN_CODES);
            assert!(usize::from(class.lengths.last().unwrap().base) < LENGTH_CODES);
        }
    }

    #[test]
    fn decoder_and_encoder_agree_on_every_token() {
        for (class, (runs, lengths)) in CLASSES.iter().zip(CODES.runs.iter().zip(&CODES.lengths)) {
            for run in &runs[usize::from(class.runs[0].base)..] {
                for length in &lengths[usize::from(class.lengths[0].base)..] {
                    let [run_token, run_bits, run_base, offset_bits] = run.to_le_bytes();
                    let [length_token, length_bits, length_base, none] = length.to_le_bytes();
                    let token = &TOKENS[usize::from(run_token) + usize::from(length_token)];
                    assert_eq!((u32::from(length_base), u32::from(run_base)), (token.length_base, token.run_base));
                    assert_eq!(run_bits + length_bits + offset_bits, token.bits);
                    assert_eq!(u32::from(offset_bits), token.offset_mask.count_ones());
                    assert_eq!(none, 0);
                }
            }
        }
    }
}
