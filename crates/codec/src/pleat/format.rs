//! The classes in which a sequence's numbers are coded; `docs/pleat.md` has them as tables.
//!
//! A sequence is a run of literals followed by a match. Each of its three numbers (literal run,
//! match length, offset) is a class plus that class's extra bits. The three classes together are
//! one *triple*, and a triple is one symbol of the token code. Triples that are too rare to be
//! symbols use *coarse* symbols, which have wide classes: together they cover every sequence.

use crate::PAGE_SIZE;

/// The largest offset: how far back a match can reach.
pub(super) const MAX_OFFSET: usize = (1 << 16) - 1;
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

/// First class of offsets of any alignment; class `ANY + n` holds offsets from `1 << n` with `n`
/// extra bits.
const ANY: usize = REPS;
/// First class of offsets that are multiples of 8; class `WORDS + n` holds the words from `8 << n`
/// with `n` extra bits.
const WORDS: usize = ANY + 16;
/// Number of offset classes: all that a triple's bits can hold.
const OFFSETS: usize = WORDS + 13;
const _: () = assert!(OFFSETS << 9 == TRIPLES);

/// Number of coarse symbols, which come first in the token code.
pub(super) const COARSE: usize = 5 * WIDTHS.len();
/// Bits of the run, and of the length less [`LEAST`], in the coarse symbols of one kind of offset.
const WIDTHS: [usize; 3] = [4, 8, 12];
/// Bits of an offset, less one, in coarse symbols for near offsets.
const NEAR: usize = 12;
/// Maximum length of a dictionary for which far offsets in coarse symbols, less one, have 15 bits.
/// With a longer one they have 16.
pub(super) const SHORT_DICTIONARY: usize = (1 << 15) - 1 - PAGE_SIZE;
/// The shortest match.
const LEAST: usize = 3;

/// Bits of a triple: 5 of offset class, 4 of run class, 5 of length class.
pub(super) const TRIPLE_BITS: u32 = 14;
/// Number of triples, including those without meaning.
pub(super) const TRIPLES: usize = 1 << TRIPLE_BITS;

/// The three numbers of a sequence in one word, so that few instructions process all of them:
///
/// ```text
/// bits  0..16  literals before the match
/// bits 16..32  length of the match, at least 3
/// bits 32..48  offset; no meaning if an offset is repeated
/// bits 48..56  16 times the index of the repeated offset among the last three; 48: none
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sequence(pub(super) u64);

impl Sequence {
    /// Bits of the three numbers.
    pub(super) const NUMBERS: u64 = (1 << 48) - 1;

    #[inline(always)]
    pub(super) fn new(run: usize, length: usize, offset: usize, rep: usize) -> Self {
        Self(run as u64 | (length as u64) << 16 | (offset as u64) << 32 | (rep as u64) << 52)
    }

    #[inline(always)]
    pub(super) fn run(self) -> usize {
        usize::from(self.0 as u16)
    }

    #[inline(always)]
    pub(super) fn length(self) -> usize {
        usize::from((self.0 >> 16) as u16)
    }

    #[inline(always)]
    pub(super) fn offset(self) -> usize {
        usize::from((self.0 >> 32) as u16)
    }

    #[inline(always)]
    pub(super) fn rep(self) -> usize {
        (self.0 >> 52 & 3) as usize
    }
}

/// How a token encodes a sequence: `base`, plus extra bits where `mask` has ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub(super) struct Meaning {
    /// A [`Sequence`], and from bit 56 the number of extra bits.
    pub(super) base: u64,
    /// The places of the extra bits, lowest first, below bit 48.
    pub(super) mask: u64,
}

/// Returns the meaning of `triple`, or `None` if it has none.
pub(super) fn meaning(triple: u16) -> Option<Meaning> {
    let triple = usize::from(triple);
    let &(length_base, length_bits) = LENGTHS.get(triple & 31)?;
    let &(run_base, run_bits) = RUNS.get(triple >> 5 & 15)?;
    let class = triple >> 9;
    let (offset_base, offset_bits, offset_shift, rep) = match class {
        0..ANY => (0, 0, 0, class),
        ANY..WORDS => (1 << (class - ANY), class - ANY, 0, 3),
        WORDS..OFFSETS => (8 << (class - WORDS), class - WORDS, 3, 3),
        _ => return None,
    };
    let ones = |count: usize| (1u64 << count) - 1;
    let (run_bits, length_bits) = (usize::from(run_bits), usize::from(length_bits));
    let mask = ones(run_bits) | ones(length_bits) << 16 | ones(offset_bits) << (32 + offset_shift);
    let Sequence(base) = Sequence::new(usize::from(run_base), usize::from(length_base), offset_base, rep);
    Some(Meaning { base: base | u64::from(mask.count_ones()) << 56, mask })
}

/// Returns the meaning of the coarse symbol `symbol`, below [`COARSE`], with a dictionary of
/// `dictionary_len` bytes. The farthest offset of 16 bits, 65,536, is 0 in a [`Sequence`].
pub(super) fn coarse_meaning(symbol: usize, dictionary_len: usize) -> Meaning {
    let (kind, bits) = (symbol / WIDTHS.len(), WIDTHS[symbol % WIDTHS.len()]);
    let (offset_base, offset_bits, rep) = match kind {
        0..REPS => (0, 0, kind),
        REPS => (1, NEAR, REPS),
        _ => (1, if dictionary_len <= SHORT_DICTIONARY { 15 } else { 16 }, REPS),
    };
    let ones = |count: usize| (1u64 << count) - 1;
    let mask = ones(bits) | ones(bits) << 16 | ones(offset_bits) << 32;
    let Sequence(base) = Sequence::new(0, LEAST, offset_base, rep);
    Meaning { base: base | u64::from(mask.count_ones()) << 56, mask }
}

/// Returns the narrowest coarse symbol that covers every sequence of `triple`; 0 if it has no
/// meaning.
pub(super) fn coarse_symbol(triple: u16) -> usize {
    let Some(Meaning { base, mask }) = meaning(triple) else { return 0 };
    let most = Sequence((base & Sequence::NUMBERS) + mask);
    let wide = most.run().max(most.length() - LEAST);
    let width = WIDTHS.iter().take(WIDTHS.len() - 1).take_while(|&&bits| wide >= 1 << bits).count();
    let far = usize::from(most.offset() > 1 << NEAR);
    let kind = match Sequence(base).rep() {
        REPS => REPS + far,
        rep => rep,
    };
    kind * WIDTHS.len() + width
}

/// Lookup tables for the classes of every run and length in a page. No match is shorter than
/// [`LEAST`], so both have fewer values than a page has bytes.
#[derive(Debug)]
pub(super) struct Classes {
    /// By run: the class, at its place in a triple.
    run: [u16; PAGE_SIZE],
    /// By length less [`LEAST`].
    length: [u8; PAGE_SIZE],
}

impl Classes {
    pub(super) const NEW: Self = {
        let mut classes = Self { run: [0; _], length: [0; _] };
        let mut value = 0;
        while value < PAGE_SIZE {
            classes.run[value] = (last_at_most(&RUNS, value) as u16) << 5;
            classes.length[value] = last_at_most(&LENGTHS, value + LEAST);
            value += 1;
        }
        classes
    };

    /// Returns the triple of `sequence`, in a class of words if its offset is a multiple of 8.
    #[inline(always)]
    pub(super) fn triple(&self, sequence: Sequence) -> u16 {
        let run = self.run[sequence.run() & (PAGE_SIZE - 1)];
        let rest = run | u16::from(self.length[sequence.length().wrapping_sub(LEAST) & (PAGE_SIZE - 1)]);
        let (offset, rep) = (sequence.offset(), sequence.rep() as u16);
        let log = 15 - (offset as u16 | 1).leading_zeros() as u16;
        let new = if offset & 7 == 0 { (WORDS as u16 + log).wrapping_sub(3) } else { ANY as u16 + log };
        let class = if rep < 3 { rep } else { new };
        class << 9 | rest
    }
}

/// Returns the triple that covers the sequences of `triple` and has a class for offsets of any
/// alignment.
pub(super) fn of_any_alignment(triple: u16) -> u16 {
    let class = usize::from(triple >> 9);
    if class < WORDS { triple } else { triple - ((WORDS - ANY - 3) << 9) as u16 }
}

const fn last_at_most<const N: usize>(classes: &[(u16, u8); N], value: usize) -> u8 {
    let mut class = 0;
    while class + 1 < N && classes[class + 1].0 as usize <= value {
        class += 1;
    }
    class as u8
}

/// A sequence, ready for execution.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(super) struct Step {
    pub(super) run: u16,
    pub(super) length: u16,
    pub(super) offset: u16,
    /// Unused: makes a step a word, which one instruction stores.
    pub(super) rest: u16,
}

impl Step {
    /// Creates a step from the four numbers, first one lowest.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn of(word: u64) -> Self {
        Self { run: word as u16, length: (word >> 16) as u16, offset: (word >> 32) as u16, rest: (word >> 48) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_from_its_class() {
        let classes = Classes::NEW;
        let check = |sequence: Sequence| {
            let triple = classes.triple(sequence);
            for triple in [of_any_alignment(triple), triple] {
                let Meaning { base, mask } = meaning(triple).expect("a triple of a sequence has a meaning");
                let extra = (sequence.0 & Sequence::NUMBERS) - (base & Sequence::NUMBERS);
                assert_eq!(extra & !mask, 0, "{sequence:?} as {triple}");
                assert!(mask.count_ones() <= 40 && u64::from(mask.count_ones()) == base >> 56);
                assert_eq!(Sequence(base).rep(), sequence.rep());
            }
        };
        for run in 0..=4093 {
            check(Sequence::new(run, 3, 0, 1));
        }
        for length in 3..=4096 {
            check(Sequence::new(0, length, 0, 0));
        }
        for offset in 1..=MAX_OFFSET {
            check(Sequence::new(1, 9, offset, 3));
        }
    }

    #[test]
    fn the_coarse_symbol_of_a_triple_gives_all_its_sequences() {
        for triple in 0..TRIPLES as u16 {
            let Some(own) = meaning(triple) else { continue };
            let coarse = coarse_meaning(coarse_symbol(triple), SHORT_DICTIONARY + 1);
            let all = own.base & Sequence::NUMBERS;
            let most = Sequence(all + own.mask);
            // No sequence exceeds a page.
            let (run, length) = (most.run().min(PAGE_SIZE - 3), most.length().min(PAGE_SIZE));
            let most = Sequence::new(run, length, most.offset(), 0);
            for Sequence(sequence) in [Sequence(all), most] {
                let extra = sequence.wrapping_sub(coarse.base & Sequence::NUMBERS);
                assert_eq!(extra & !coarse.mask, 0, "triple {triple}");
            }
            assert_eq!(Sequence(own.base).rep(), Sequence(coarse.base).rep());
        }
    }

    #[test]
    fn no_meaning_gives_a_number_out_of_range() {
        let coarse = |dictionary_len| (0..COARSE).map(move |symbol| coarse_meaning(symbol, dictionary_len));
        let triples = (0..TRIPLES as u16).filter_map(meaning);
        for Meaning { base, mask } in triples.chain(coarse(SHORT_DICTIONARY)) {
            let (least, most) = (Sequence(base), Sequence((base & Sequence::NUMBERS) + mask));
            assert!(least.length() >= 3 && most.length() < 1 << 15 && most.run() < 1 << 15);
            assert!(least.rep() < 3 || least.offset() >= 1 && most.offset() >= least.offset());
        }
        for (Meaning { base, mask }, short) in coarse(SHORT_DICTIONARY + 1).zip(coarse(SHORT_DICTIONARY)) {
            // The farthest offset overflows into bits without meaning.
            let most = Sequence(((base & Sequence::NUMBERS) + mask) | (base & (3 << 52)));
            assert!(Sequence(base).rep() == most.rep() && base & Sequence::NUMBERS == short.base & Sequence::NUMBERS);
            assert!(mask == short.mask || mask >> 32 == 0xffff && most.offset() == 0);
        }
    }

    #[test]
    fn a_short_dictionary_is_in_reach_of_coarse_symbols() {
        let farthest = coarse_meaning(COARSE - 1, SHORT_DICTIONARY);
        let most = Sequence((farthest.base & Sequence::NUMBERS) + farthest.mask);
        assert!(SHORT_DICTIONARY + PAGE_SIZE <= most.offset());
    }
}
