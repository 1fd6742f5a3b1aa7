//! The classes that a sequence's numbers are coded in; `docs/pleat.md` has them as tables.
//!
//! A sequence is a run of literals and then a match. Each of its three numbers (literal run, match length, offset) is
//! a class and that class's extra bits. The three classes together are one *triple*, and a triple is one symbol of the
//! token code.

/// Shortest match.
pub(super) const MIN_MATCH: usize = 3;
/// Offsets are below this, so that a match reaches at most this far before its place.
pub(super) const MAX_OFFSET: usize = (1 << 15) - 1;
/// Repeated offsets at the start of a page: a word, two words, half a word.
pub(super) const FIRST_REPS: [u16; 3] = [8, 16, 4];
/// Number of offset classes that repeat an offset: classes 0, 1 and 2.
const REPS: usize = 3;

/// Classes of literal runs: base and extra bits.
const RUNS: [(u16, u8); 15] = [
    (0, 0),
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 2),
    (12, 3),
    (20, 4),
    (36, 5),
    (68, 6),
    (132, 8),
    (388, 12),
];

/// Classes of match lengths: base and extra bits.
const LENGTHS: [(u16, u8); 23] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 0),
    (12, 0),
    (13, 0),
    (14, 0),
    (15, 0),
    (16, 0),
    (17, 0),
    (18, 0),
    (19, 2),
    (23, 3),
    (31, 4),
    (47, 5),
    (79, 6),
    (143, 8),
    (399, 12),
];

/// First class of offsets of any alignment; class `ANY + n` holds `1 << n` and the `n`-bit numbers above.
const ANY: usize = REPS;
/// First class of offsets that are multiples of 8; class `WORDS + n` holds `8 << n` and `n` extra bits for the words
/// above.
const WORDS: usize = ANY + 15;
/// Number of offset classes.
const OFFSETS: usize = WORDS + 12;

/// Bits of a triple: 5 of offset class, 4 of run class, 5 of length class.
pub(super) const TRIPLE_BITS: u32 = 14;
/// Number of triples, those without meaning included.
pub(super) const TRIPLES: usize = 1 << TRIPLE_BITS;

/// One sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sequence {
    /// Literals before the match.
    pub(super) run: u16,
    /// Length of the match, at least [`MIN_MATCH`].
    pub(super) length: u16,
    /// Offset of the match; unused when `rep` is less than 3.
    pub(super) offset: u16,
    /// Which of the last three offsets is repeated; 3: none of them.
    pub(super) rep: u16,
}

/// How a token gives a sequence: each number is a base plus extra bits, the offset's after a shift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub(super) struct Meaning {
    pub(super) run_base: u16,
    pub(super) length_base: u16,
    pub(super) offset_base: u16,
    /// 3 for a class of multiples of 8, else 0.
    pub(super) offset_shift: u8,
    /// Which of the last three offsets is repeated; 3: none of them.
    pub(super) rep: u8,
    /// Extra bits, in their order in the stream.
    pub(super) offset_bits: u8,
    pub(super) run_bits: u8,
    pub(super) length_bits: u8,
    /// The sum of the three.
    pub(super) all_bits: u8,
}

/// What `triple` means; `None` for one without meaning.
pub(super) fn meaning(triple: u16) -> Option<Meaning> {
    let triple = usize::from(triple);
    let &(length_base, length_bits) = LENGTHS.get(triple & 31)?;
    let &(run_base, run_bits) = RUNS.get(triple >> 5 & 15)?;
    let class = triple >> 9;
    let (offset_base, offset_bits, offset_shift, rep) = match class {
        0..ANY => (0, 0, 0, class as u8),
        ANY..WORDS => (1 << (class - ANY), (class - ANY) as u8, 0, 3),
        WORDS..OFFSETS => (1 << (class - WORDS), (class - WORDS) as u8, 3, 3),
        _ => return None,
    };
    let all_bits = offset_bits + run_bits + length_bits;
    Some(Meaning { run_base, length_base, offset_base, offset_shift, rep, offset_bits, run_bits, length_bits, all_bits })
}

/// The classes of every run and length of a page, looked up.
#[derive(Debug)]
pub(super) struct Classes {
    run: [u8; 256],
    length: [u8; 256],
}

impl Classes {
    pub(super) const NEW: Self = {
        let mut classes = Self { run: [0; 256], length: [0; 256] };
        let mut value = 0;
        while value < 256 {
            classes.run[value] = last_at_most(&RUNS, value);
            classes.length[value] = last_at_most(&LENGTHS, value);
            value += 1;
        }
        classes
    };

    /// Class of a literal run.
    fn run(&self, run: u16) -> u16 {
        if run < 256 { u16::from(self.run[usize::from(run)]) } else { u16::from(last_at_most(&RUNS, usize::from(run))) }
    }

    /// Class of a match length.
    fn length(&self, length: u16) -> u16 {
        if length < 256 {
            u16::from(self.length[usize::from(length)])
        } else {
            u16::from(last_at_most(&LENGTHS, usize::from(length)))
        }
    }

    /// The triple of `sequence`, by its offset's general class, and, if the offset is a multiple of 8, by the class
    /// of those.
    #[inline]
    pub(super) fn triples(&self, sequence: Sequence) -> (u16, Option<u16>) {
        let rest = self.run(sequence.run) << 5 | self.length(sequence.length);
        if sequence.rep < 3 {
            return (sequence.rep << 9 | rest, None);
        }
        let log = 15 - sequence.offset.leading_zeros() as u16;
        let any = (ANY as u16 + log) << 9 | rest;
        let word = (sequence.offset & 7 == 0).then(|| (WORDS as u16 + log - 3) << 9 | rest);
        (any, word)
    }
}

const fn last_at_most<const N: usize>(classes: &[(u16, u8); N], value: usize) -> u8 {
    let mut class = 0;
    while class + 1 < N && classes[class + 1].0 as usize <= value {
        class += 1;
    }
    class as u8
}

/// The extra bits of `sequence` coded as `meaning`, and how many: offset lowest, then run, then length.
#[inline(always)]
pub(super) fn extra(sequence: Sequence, meaning: &Meaning) -> (u64, u32) {
    let offset = if meaning.rep == 3 { (sequence.offset >> meaning.offset_shift) - meaning.offset_base } else { 0 };
    let run = u64::from(sequence.run - meaning.run_base);
    let length = u64::from(sequence.length - meaning.length_base);
    let bits = u64::from(offset) | (run | length << (meaning.run_bits & 63)) << (meaning.offset_bits & 63);
    (bits, u32::from(meaning.all_bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(meaning: Meaning, extra: u64) -> (u64, u64, u64) {
        let low = |value: u64, bits: u8| value & ((1 << bits) - 1);
        let offset = (u64::from(meaning.offset_base) + low(extra, meaning.offset_bits)) << meaning.offset_shift;
        let extra = extra >> meaning.offset_bits;
        let run = u64::from(meaning.run_base) + low(extra, meaning.run_bits);
        let length = u64::from(meaning.length_base) + low(extra >> meaning.run_bits, meaning.length_bits);
        (run, length, offset)
    }

    #[test]
    fn every_number_comes_back_from_its_class() {
        let classes = Classes::NEW;
        let check = |sequence: Sequence| {
            let (any, word) = classes.triples(sequence);
            for triple in [Some(any), word].into_iter().flatten() {
                let meaning = meaning(triple).expect("a triple of a sequence has a meaning");
                let (bits, count) = extra(sequence, &meaning);
                assert!(count <= 38 && bits >> count == 0);
                let (run, length, offset) = back(meaning, bits);
                assert_eq!((run, length), (u64::from(sequence.run), u64::from(sequence.length)));
                if sequence.rep == 3 {
                    assert_eq!(offset, u64::from(sequence.offset));
                }
            }
        };
        for run in 0..=4093 {
            check(Sequence { run, length: 3, offset: 0, rep: 1 });
        }
        for length in 3..=4096 {
            check(Sequence { run: 0, length, offset: 0, rep: 0 });
        }
        for offset in 1..=MAX_OFFSET as u16 {
            check(Sequence { run: 1, length: 9, offset, rep: 3 });
        }
    }

    #[test]
    fn no_meaning_gives_offset_zero_or_too_far() {
        for triple in 0..TRIPLES as u16 {
            if let Some(meaning) = meaning(triple)
                && meaning.rep == 3
            {
                let most = (usize::from(meaning.offset_base) << 1) - 1;
                assert!(meaning.offset_base > 0);
                assert!(most << meaning.offset_shift <= MAX_OFFSET);
            }
        }
    }
}
