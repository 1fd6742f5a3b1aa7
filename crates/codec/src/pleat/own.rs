//! A literal code for a single page, stored in its object: for literals that no shared set fits.
//!
//! ```text
//! encode: frequency of each literal -> code lengths -> their description, and codes
//! decode: the description -> code lengths -> look-ups of 10 bits, one literal each
//! ```

use std::hint::cold_path;

use super::{
    bits::{Reader, Room, Writer},
    tables::{LITERAL_MAX, Lookup},
};
use crate::PAGE_SIZE;

/// The code length of each literal; 0 if it does not occur.
pub(super) type Lengths = [u8; 256];

/// Look-ups by the next [`LITERAL_MAX`] bits.
pub(super) type Lookups = super::tables::Lookups<{ 1 << LITERAL_MAX }>;

/// Length of the longest code, as an index of lengths.
const MAX: usize = LITERAL_MAX as usize;

/// Bits of the longest code of a description.
const WORD_MAX: u32 = 7;
/// Number of words of a description: [`MAX`] code lengths, then runs of literals without a code, by
/// the logarithm of the run.
const WORDS: usize = MAX + 8;
/// Number of words that can be read between two refills, each with the length of its run.
const REFILLED: usize = 56 / (WORD_MAX as usize + 7);
/// Number of states that select a word's code: the length of the previous literal, or 0 at the
/// start and if it has none.
const BEFORE: usize = MAX + 1;

/// The lengths of the words' codes, by the previous length. Adjacent literals have similar
/// frequencies.
pub(super) const WORD_LENGTHS: [[u8; WORDS]; BEFORE] = [
    [7, 7, 6, 5, 5, 5, 4, 3, 3, 1, 7, 7, 7, 7, 7, 7, 7, 7],
    [6, 6, 6, 6, 6, 6, 6, 6, 1, 6, 3, 6, 3, 6, 6, 6, 6, 5],
    [7, 7, 3, 1, 4, 5, 5, 4, 5, 7, 4, 6, 7, 7, 7, 7, 7, 6],
    [7, 7, 4, 2, 3, 3, 3, 4, 4, 6, 4, 6, 6, 6, 6, 6, 7, 7],
    [7, 7, 5, 2, 3, 3, 4, 4, 4, 4, 4, 6, 5, 5, 5, 6, 7, 7],
    [7, 7, 7, 4, 2, 2, 3, 4, 4, 5, 5, 6, 5, 6, 6, 7, 7, 7],
    [7, 7, 7, 6, 3, 2, 2, 3, 4, 5, 5, 6, 5, 7, 7, 7, 7, 7],
    [7, 7, 7, 7, 5, 3, 2, 2, 3, 4, 4, 6, 7, 7, 7, 7, 7, 7],
    [7, 7, 7, 7, 7, 4, 3, 2, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7],
    [7, 7, 7, 7, 7, 7, 4, 2, 2, 2, 4, 5, 7, 7, 7, 7, 7, 7],
    [7, 7, 7, 7, 7, 7, 5, 4, 3, 1, 3, 4, 7, 7, 7, 7, 7, 7],
];

/// By the previous length and the word: its code, first bit lowest.
const WORD_CODES: [[u8; WORDS]; BEFORE] = {
    let mut codes = [[0; WORDS]; BEFORE];
    let mut before = 0;
    while before < BEFORE {
        let lengths = &WORD_LENGTHS[before];
        let (mut next, mut length) = (0u32, 1);
        while length <= WORD_MAX {
            let mut word = 0;
            while word < WORDS {
                if lengths[word] as u32 == length {
                    codes[before][word] = (next.reverse_bits() >> (32 - length)) as u8;
                    next += 1;
                }
                word += 1;
            }
            if length < WORD_MAX {
                next <<= 1;
            }
            length += 1;
        }
        assert!(next == 1 << WORD_MAX, "the lengths are a complete code");
        before += 1;
    }
    codes
};

/// By the previous length times 128 plus the next 7 bits:
///
/// ```text
/// bits 0..6   length of the word plus the bits that follow it
/// bits 6..9   length of the word
/// bits 9..12  number of bits that follow a run
/// bits 12..16 code length of the literal; 0 for a run
/// ```
static READ: [u16; BEFORE << WORD_MAX] = {
    let mut read = [0; BEFORE << WORD_MAX];
    let mut before = 0;
    while before < BEFORE {
        let mut word = 0;
        while word < WORDS {
            let bits = WORD_LENGTHS[before][word];
            let (log, length) = if word < MAX { (0, word + 1) } else { (word - MAX, 0) };
            let mut at = before << WORD_MAX | WORD_CODES[before][word] as usize;
            while at < (before + 1) << WORD_MAX {
                let all = bits as u16 + log as u16;
                read[at] = all | (bits as u16) << 6 | (log as u16) << 9 | (length as u16) << 12;
                at += 1 << bits;
            }
            word += 1;
        }
        before += 1;
    }
    read
};

/// By number: its logarithm in sixteenths, rounded down.
static LOG: [u8; PAGE_SIZE + 1] = {
    // 2^(n/16) with 15 fractional bits.
    const ROOTS: [u32; 16] = [
        32768, 34219, 35734, 37316, 38968, 40693, 42495, 44376, 46341, 48393, 50535, 52773, 55109, 57549, 60097, 62757,
    ];
    let mut logs = [0; PAGE_SIZE + 1];
    let mut number = 1;
    while number <= PAGE_SIZE {
        let whole = number.ilog2();
        let mantissa = (number as u32) << (15 - whole);
        let mut part = 15;
        while ROOTS[part] > mantissa {
            part -= 1;
        }
        logs[number] = (16 * whole + part as u32) as u8;
        number += 1;
    }
    logs
};

/// Maximum number of literals in a [`Sample`].
pub(super) const SAMPLED: usize = 100;

/// By number of occurrences so far: the amount that one more occurrence of a literal adds to the
/// sum of a [`Sample`].
static GROWTH: [i16; 256] = {
    // By their counts alone, 200 uniform bytes seem to take 7 bits each. They take 8; adding a bit
    // and a half for each value that occurs corrects that.
    let mut growth = [-24; 256];
    let mut count = 1;
    while count < 256 {
        // The derivative of x × log2(x) halfway to the next: log2(x) + log2(e).
        growth[count] = LOG[2 * count + 1] as i16 - 16 + 23;
        count += 1;
    }
    growth
};

/// Evenly spaced literals of a page, to estimate how short a code for all of them could be.
pub(super) struct Sample {
    of: usize,
    count: usize,
    /// The sum of `count × log2(count)` by literal, in sixteenths, less the amount by which a
    /// sample underestimates the entropy of all.
    sum: i32,
}

impl Sample {
    /// Samples every `step`th of `literals`.
    #[inline(always)]
    pub(super) fn of(literals: &[u8], step: usize) -> Self {
        let mut sample = Self { of: literals.len(), count: 0, sum: 0 };
        let mut counts = [0u8; 256];
        while let Some(&literal) = literals.get(sample.count * step) {
            let count = &mut counts[usize::from(literal)];
            sample.sum += i32::from(GROWTH[usize::from(*count)]);
            *count = count.wrapping_add(1);
            sample.count += 1;
        }
        sample
    }

    /// Returns the bytes that all literals would take with a separate code for this page.
    pub(super) fn bytes(&self) -> usize {
        let bits = self.count * usize::from(LOG[self.count.min(PAGE_SIZE)]);
        self.scaled(usize::try_from(bits as i32 - self.sum).unwrap_or(0) / 2)
    }

    /// Returns the bytes of all literals if the sample takes this many eighths of a bit.
    pub(super) fn scaled(&self, eighths: usize) -> usize {
        self.of * eighths / (64 * self.count.max(1))
    }
}

/// Counts how often each of `literals` occurs.
#[inline(always)]
pub(super) fn count(literals: &[u8]) -> [u16; 256] {
    // Four tables, so that equal neighbours do not wait for each other.
    let mut counts = [[0u16; 256]; 4];
    let (fours, rest) = literals.as_chunks::<4>();
    for four in fours {
        for (counts, &literal) in counts.iter_mut().zip(four) {
            counts[usize::from(literal)] += 1;
        }
    }
    let [mut all, others @ ..] = counts;
    rest.iter().for_each(|&literal| all[usize::from(literal)] += 1);
    for counts in others {
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    all
}

/// Returns the lengths of a complete code, and the bits that the literals take with it. The
/// literals occur `counts` times, `total` in all, at most [`PAGE_SIZE`]. Returns `None` unless at
/// least two occur.
///
/// The code is 0.3 % longer than the best, and found in a few passes without sorting: the lengths
/// are the logarithms of the frequencies, rounded up where the sum of 2^-length requires it,
/// starting with those nearest to the next whole number.
#[inline(always)]
pub(super) fn lengths(counts: &[u16; 256], total: usize) -> Option<(Lengths, usize)> {
    const WHOLE: u32 = 1 << MAX;
    let space = |length: u8| WHOLE >> (length & 15);
    let log_total = LOG[total.min(PAGE_SIZE)];
    let mut lengths = [0u8; 256];
    let mut parts = [0u8; 256];
    let mut used = 0;
    let mut taken = 0;
    // By sixteenths: the space saved by making these literals' codes one bit longer.
    let mut saved = [0u32; 16];
    for ((&count, length), part) in counts.iter().zip(&mut lengths).zip(&mut parts) {
        if count > 0 {
            let log = log_total.saturating_sub(LOG[usize::from(count).min(PAGE_SIZE)]).clamp(16, 16 * LITERAL_MAX);
            (*length, *part) = (log / 16, log % 16);
            used += 1;
            taken += space(*length);
            saved[usize::from(*part)] += space(*length) - space(LITERAL_MAX.min(*length + 1));
        }
    }
    if used < 2 {
        return None;
    }
    while taken > WHOLE {
        let mut from = 16;
        while from > 0 && taken > WHOLE {
            from -= 1;
            taken -= saved[usize::from(from)];
        }
        for (length, &part) in lengths.iter_mut().zip(&parts) {
            *length += u8::from(part >= from) & u8::from(*length > 0) & u8::from(*length < LITERAL_MAX);
        }
        if taken > WHOLE {
            cold_path();
            saved = [0; 16];
            for (&length, &part) in lengths.iter().zip(&parts).filter(|&(&length, _)| length > 0) {
                saved[usize::from(part)] += space(length) - space(LITERAL_MAX.min(length + 1));
            }
        }
    }
    // The remaining space shortens codes. One always fits, since all spaces and the remainder are
    // multiples of the smallest space.
    let mut left = WHOLE - taken;
    while left > 0 {
        for length in &mut lengths {
            if *length > 1 && space(*length) <= left {
                left -= space(*length);
                *length -= 1;
                if left == 0 {
                    break;
                }
            }
        }
    }
    let bits = counts.iter().zip(&lengths).map(|(&count, &length)| usize::from(count) * usize::from(length)).sum();
    Some((lengths, bits))
}

/// Writes the description of `lengths` to the front of `room` and returns its length in bytes.
pub(super) fn describe(lengths: &Lengths, room: &mut Room) -> usize {
    let mut writer = Writer::new(room);
    let mut before = 0;
    for run in lengths.chunk_by(|a, b| a | b == 0) {
        let (word, log, next) = match run[0] {
            0 => {
                let log = run.len().ilog2();
                (MAX + log as usize, log, 0)
            }
            length => (usize::from(length) - 1, 0, usize::from(length)),
        };
        writer.put(u64::from(WORD_CODES[before][word]), u32::from(WORD_LENGTHS[before][word]));
        writer.put((run.len() & ((1 << log) - 1)) as u64, log);
        writer.flush();
        before = next;
    }
    writer.finish()
}

/// Returns the codes of `lengths`, in the format of
/// [`LiteralSet::encode`](super::tables::LiteralSet::encode).
pub(super) fn codes(lengths: &Lengths) -> [u64; 256] {
    let mut of_length = [0u16; 16];
    lengths.iter().for_each(|&length| of_length[usize::from(length & 15)] += 1);
    of_length[0] = 0;
    let mut next = [0u64; 16];
    for length in 1..=MAX {
        next[length] = (next[length - 1] + u64::from(of_length[length - 1])) << 1;
    }
    lengths.map(|length| {
        let next = &mut next[usize::from(length & 15)];
        let code = *next;
        *next += 1;
        if length == 0 { 0 } else { code.reverse_bits() | u64::from(length) }
    })
}

/// Reads the description at `at`, builds the look-ups of its code, and returns the place after it.
/// Returns `None` if it does not describe exactly 256 literals or the code is not complete.
#[inline(always)]
pub(super) fn read(object: &Room, at: usize, lookups: &mut Lookups) -> Option<usize> {
    let mut lengths = [0u8; 256];
    let mut of_length = [0u16; 16];
    let mut reader = Reader::<false>::new(at);
    let (mut before, mut literal) = (0, 0);
    'all: loop {
        reader.refill(object);
        for _ in 0..REFILLED {
            let bits = reader.peek();
            let entry = READ[before << WORD_MAX | bits as usize & ((1 << WORD_MAX) - 1)];
            let (word, log, length) = (entry >> 6 & 7, entry >> 9 & 7, usize::from(entry >> 12));
            lengths[literal & 255] = length as u8;
            of_length[length] += 1;
            literal += 1 << log | (bits >> word) as usize & ((1 << log) - 1);
            reader.skip(u32::from(entry));
            before = length;
            if literal >= 256 {
                break 'all;
            }
        }
    }
    if literal != 256 {
        return None;
    }
    // Sorts the literals by their lengths.
    let mut ends = [0; 16];
    let (mut space, mut end) = (0, 0);
    for (length, &count) in of_length.iter().enumerate().skip(1).take(MAX) {
        ends[length] = end;
        end += usize::from(count);
        space += usize::from(count) << (MAX - length);
    }
    if space != 1 << MAX {
        return None;
    }
    let mut sorted = [0u8; 512];
    // Literals without a code come last.
    ends[0] = 256;
    for (literal, &length) in lengths.iter().enumerate() {
        let at = &mut ends[usize::from(length & 15)];
        sorted[*at & 511] = literal as u8;
        *at += 1;
    }
    // The look-ups cover as many bits as the longest code so far; each further bit doubles them.
    let mut rest = sorted.as_slice();
    let mut code = 0;
    let mut made = 1;
    for (length, &count) in of_length.iter().enumerate().skip(1).take(MAX) {
        lookups.0.copy_within(..made, made);
        made *= 2;
        let (now, later) = rest.split_at(usize::from(count));
        rest = later;
        for &literal in now {
            lookups.0[code & ((1 << MAX) - 1)] = Lookup::new(length as u8, &[literal], 0);
            // The next code: increments the bits in reading order, lowest bit first.
            let carried = 1 << (usize::BITS - 1 - (!code & (made - 1) | 1).leading_zeros());
            code = code & (carried - 1) | carried;
        }
    }
    Some(reader.place())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pleat::huffman;

    /// Returns a buffer that starts with the description of `lengths`, like an object, and the
    /// description's length.
    fn described(lengths: &Lengths) -> (Box<Room>, usize) {
        let mut room = Box::new([0xa5; size_of::<Room>()]);
        let len = describe(lengths, &mut room);
        (room, len)
    }

    fn no_lookups() -> Box<Lookups> {
        Box::new(Lookups::new())
    }

    #[test]
    fn few_literals() {
        assert_eq!(lengths(&count(b""), 0), None);
        assert_eq!(lengths(&count(b"aaaa"), 4), None);
        let (code, bits) = lengths(&count(b"aaab"), 4).unwrap();
        assert_eq!((code[usize::from(b'a')], code[usize::from(b'b')], bits), (1, 1, 4));
        let one_and_all_others = |common: u16| std::array::from_fn(|literal| if literal == 77 { common } else { 1 });
        let (code, _) = lengths(&one_and_all_others(3841), 4096).unwrap();
        assert!(huffman::codes(&code, LITERAL_MAX).is_some() && code[77] == 1);
        let (code, bits) = lengths(&[16; 256], 4096).unwrap();
        assert_eq!((code, bits), ([8; 256], 8 * 4096));
    }

    #[test]
    fn a_sample_of_noise_takes_no_less() {
        let mut state = 1u32;
        let noise = [0; 4000].map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let sample = Sample::of(&noise, 21);
        assert!((3900..4100).contains(&sample.bytes()), "{}", sample.bytes());
    }

    #[test]
    fn the_code_of_a_page_is_close_to_the_best() {
        for page in &*crate::memory_tests::PAGES {
            let counts = count(page);
            let (_, bits) = lengths(&counts, PAGE_SIZE).expect("many literals");
            let best = huffman::lengths(&counts.map(u32::from), LITERAL_MAX);
            let best: usize =
                best.iter().zip(&counts).map(|(&length, &count)| usize::from(length) * usize::from(count)).sum();
            assert!(bits * 100 <= best * 102, "{bits} bits, at best {best}");
        }
    }

    #[test]
    fn invalid_codes_are_refused() {
        let read_back = |lengths: &Lengths| {
            let (room, len) = described(lengths);
            read(&room, 0, &mut no_lookups()).inspect(|&end| assert_eq!(end, len))
        };
        let mut code = [0; 256];
        code[0] = 1;
        assert_eq!(read_back(&code), None, "one code");
        code[..4].fill(2);
        assert!(read_back(&code).is_some());
        code[4] = 10;
        assert_eq!(read_back(&code), None, "too many codes");
        code[3..5].copy_from_slice(&[3, 4]);
        assert_eq!(read_back(&code), None, "too few codes");
    }

    proptest! {
        /// Any counts give a complete code that is at most one bit per literal longer than the
        /// best, and is recovered from its description.
        #[test]
        fn codes_come_back(
            few in proptest::collection::vec((any::<u8>(), 1u16..400), 2..40),
            floor in 0u16..4,
        ) {
            let mut counts = [floor; 256];
            few.iter().for_each(|&(literal, count)| counts[usize::from(literal)] += count);
            let mut total: usize = counts.iter().map(|&count| usize::from(count)).sum();
            while total > PAGE_SIZE {
                counts.iter_mut().for_each(|count| *count /= 2);
                total = counts.iter().map(|&count| usize::from(count)).sum();
            }
            let Some((code, bits)) = lengths(&counts, total) else { return Ok(()) };
            prop_assert!(code.iter().zip(&counts).all(|(&length, &count)| (length > 0) == (count > 0)));
            let cost = |code: &[u8]| -> usize {
                code.iter().zip(&counts).map(|(&length, &count)| usize::from(length) * usize::from(count)).sum()
            };
            prop_assert_eq!(bits, cost(&code));
            let best = cost(&huffman::lengths(&counts.map(u32::from), LITERAL_MAX));
            prop_assert!(bits <= best + total, "{bits} bits, at best {best}");

            // The codes equal those of RFC 1951, and the look-ups decode them.
            let canonical = huffman::codes(&code, LITERAL_MAX).expect("a complete code");
            let (room, len) = described(&code);
            let mut lookups = no_lookups();
            prop_assert_eq!(read(&room, 0, &mut lookups), Some(len));
            for (literal, (code, entry)) in canonical.iter().zip(codes(&code)).enumerate() {
                if code.length == 0 {
                    continue;
                }
                prop_assert_eq!(entry, u64::from(code.bits) << (64 - code.length) | u64::from(code.length));
                for more in 0..1 << (LITERAL_MAX - code.length) {
                    let lookup = lookups.0[usize::from(code.bits) | more << code.length];
                    prop_assert_eq!(lookup, Lookup::new(code.length, &[literal as u8], 0));
                }
            }
        }

        /// Any bytes are rejected or give look-ups of one literal each.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let mut room = Box::new([0; size_of::<Room>()]);
            room[..bytes.len()].copy_from_slice(&bytes);
            let mut lookups = no_lookups();
            if read(&room, 0, &mut lookups).is_some() {
                prop_assert!(lookups.0.iter().all(|lookup| lookup.0 >> 30 == 1 && (1..=10).contains(&(lookup.0 & 63))));
            }
        }
    }
}
