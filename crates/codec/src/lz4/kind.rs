//! What a page holds, as far as an encoder of pages should know: how many bytes a match needs to be worth its bytes and its
//! time depends on it. Told from the first 16 bytes of every 256.

use core::ops::Range;

use crate::{
    PAGE_SIZE, Page,
    mem::{ZEROS_SAMPLED, sampled_zeros},
};

/// A kind of page. docs/log/lz4.md has the bytes and speeds that the limits between them were chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What has been compressed or encrypted before: bytes of all values.
    Noise,
    /// Prose: hardly a zero byte.
    Prose,
    /// Prose by its letters and signs, of which a quarter is spaces: source, mostly.
    Indented,
    /// Source, markup with much text: hardly a zero byte either, nearly all ASCII, many of them signs or most digits.
    Source,
    /// The same with fewer letters and spaces, as in markup, JSON without line ends and tables.
    Markup,
    /// Machine code and its tables.
    Code,
    /// Bytes and names: byte code, rows of a database.
    Names,
    /// Words of 8 bytes that mostly differ in few of them, hardly more of which are zero than in code.
    Records,
    /// Many zero bytes: tables of code, small numbers.
    Words,
    /// The same in words of 8 bytes, some of which are pointers, and half or more are those or have a half that is zero: what most of a program's
    /// memory is. Numbers alone lose by long matches.
    Memory,
    /// Words of 8 bytes nearly all of which are a program's pointers, or numbers of half their length: what runtimes of Python and
    /// JavaScript have in memory.
    Pointers,
}

impl Kind {
    pub(crate) fn of(page: &Page) -> Self {
        const CODE: usize = ZEROS_SAMPLED / 16 + 1;
        const WORDS: usize = ZEROS_SAMPLED * 5 / 16 + 1;
        // Of the 32 words looked at: those that are pointers or have a half that is zero, and pointers.
        const POINTERS_WHOLE: usize = 28;
        const POINTERS: usize = 3;
        const MEMORY_WHOLE: usize = 16;
        let zeros = sampled_zeros(page);
        if zeros < CODE {
            return Self::without_zeros(page, zeros);
        }
        let whole = count(page, |word, _| mark(is_pointer(word) || word >> 32 == 0 || word as u32 == 0));
        let pointers = if whole >= MEMORY_WHOLE { count(page, |word, _| mark(is_pointer(word))) } else { 0 };
        if whole >= POINTERS_WHOLE && pointers >= POINTERS {
            Self::Pointers
        } else if zeros < WORDS {
            Self::with_zeros(page)
        } else if pointers > 0 {
            Self::Memory
        } else {
            Self::Words
        }
    }

    fn without_zeros(page: &Page, zeros: usize) -> Self {
        const SIGNS: usize = ZEROS_SAMPLED / 8;
        const DIGITS: usize = ZEROS_SAMPLED / 4;
        const NOT_ASCII: usize = ZEROS_SAMPLED / 64;
        const INDENTED: usize = ZEROS_SAMPLED / 4;
        // Pages with fewer are tables of code points and the like.
        const MARKUP: Range<usize> = ZEROS_SAMPLED * 9 / 32..ZEROS_SAMPLED * 5 / 8 + 1;
        // Half of the bytes are not ASCII, and an eighth control characters, of which text in other scripts has none; code has more zeros.
        const NOISE_NOT_ASCII: Range<usize> = ZEROS_SAMPLED * 5 / 16..ZEROS_SAMPLED * 11 / 16;
        const NOISE_CONTROL: usize = ZEROS_SAMPLED / 16;
        const NOISE_ZEROS: usize = 5;
        let not_ascii = count(page, |word, _| word);
        if not_ascii > NOT_ASCII {
            let control = |word: u64| !above(word, b' ' - 1) & !word;
            let noise = NOISE_NOT_ASCII.contains(&not_ascii)
                && zeros <= NOISE_ZEROS
                && count(page, |word, _| control(word)) >= NOISE_CONTROL;
            return if noise { Self::Noise } else { Self::Prose };
        }
        let letters = |word| within(word | (0x20 * EACH), b'a', b'z');
        let digits = |word| within(word, b'0', b'9');
        let many_signs = count(page, |word, _| above(word, b' ') & !(letters(word) | digits(word))) >= SIGNS;
        let spaces = |word| within(word, b' ', b' ');
        if many_signs || count(page, |word, _| digits(word)) >= DIGITS {
            let in_words = count(page, |word, _| letters(word) | spaces(word));
            if MARKUP.contains(&in_words) { Self::Markup } else { Self::Source }
        } else if count(page, |word, _| spaces(word)) >= INDENTED {
            Self::Indented
        } else {
            Self::Prose
        }
    }

    fn with_zeros(page: &Page) -> Self {
        const REPEATED: usize = ZEROS_SAMPLED / 4;
        const LOWERCASE: usize = ZEROS_SAMPLED * 3 / 16;
        let equal = |word: u64, next: u64| {
            let differ = word ^ next;
            !(((differ & LOW) + LOW) | differ)
        };
        if count(page, equal) >= REPEATED {
            Self::Records
        } else if count(page, |word, _| within(word, b'a', b'z')) >= LOWERCASE {
            Self::Names
        } else {
            Self::Code
        }
    }
}

/// A one in each byte.
const EACH: u64 = 0x0101_0101_0101_0101;

/// All but the highest bit of each byte.
const LOW: u64 = 0x7F * EACH;

/// May `word` be the address of something that a program has on a machine of 64 bits? They have 42 to 48. (Milliseconds since 1970
/// have 41, until 2039.)
fn is_pointer(word: u64) -> bool {
    (2..256).contains(&(word >> 40))
}

/// What [`count`] counts as one byte, if `marked`.
fn mark(marked: bool) -> u64 {
    u64::from(marked) << 7
}

/// The highest bit of each byte of `word` that is above `limit` and ASCII. Other bits are unspecified.
fn above(word: u64, limit: u8) -> u64 {
    ((word & LOW) + u64::from(0x7F - limit) * EACH) & !word
}

/// The same of each that is `low` to `high`, which are ASCII.
fn within(word: u64, low: u8, high: u8) -> u64 {
    above(word, low - 1) & !above(word, high)
}

/// How many bytes of those sampled have their highest bit set by `mark`, which gets 8 and the 8 after them.
#[inline(always)]
fn count(page: &Page, mark: impl Fn(u64, u64) -> u64) -> usize {
    const { assert!(2 * PAGE_SIZE / 256 < 256) };
    let mut counts = 0;
    for part in page.as_chunks::<256>().0 {
        let [first, second, third] =
            [0, 8, 16].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| part[at + byte])));
        counts += mark(first, second) >> 7 & EACH;
        counts += mark(second, third) >> 7 & EACH;
    }
    counts.to_le_bytes().iter().map(|&count| usize::from(count)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(unit: &[u8]) -> Page {
        std::array::from_fn(|at| unit[at % unit.len()])
    }

    #[test]
    fn kinds_are_told_by_the_bytes_sampled() {
        assert_eq!(Kind::of(&page(b"He sat down and said nothing at all for a long while. ")), Kind::Prose);
        assert_eq!(Kind::of(&page(b"\x9C\xE2\x81\xD0\xF7")), Kind::Prose);
        assert_eq!(Kind::of(&page("он сел и молчал".as_bytes())), Kind::Prose);
        let mut random = 1_u32;
        let noise = std::array::from_fn(|_| {
            random = random.wrapping_mul(0x0019_660D).wrapping_add(0x3C6E_F35F);
            (random >> 24) as u8
        });
        assert_eq!(Kind::of(&noise), Kind::Noise);
        assert_eq!(Kind::of(&page(b"<row id=\"31\" name=\"x\">&lt;</row>\n")), Kind::Markup);
        assert_eq!(Kind::of(&page(b"if not (name or value): return [first, second]\n")), Kind::Source);
        assert_eq!(Kind::of(&page(b"        return name\n    found\n")), Kind::Indented);
        assert_eq!(Kind::of(&page(b"\x48\x8B\x05\x11\x20\0\xE8\x84\xC3\x0F\x55")), Kind::Code);
        assert_eq!(Kind::of(&page(b"some_name\0\x04other\0\x11")), Kind::Names);
        assert_eq!(Kind::of(&page(b"\x10\x92\x33\x71\xFE\x7F\x88\0")), Kind::Records);
        assert_eq!(Kind::of(&page(b"\x10\x92\x33\x71\x7F\0\0\0")), Kind::Words);
        assert_eq!(Kind::of(&page(b"\x10\x92\x33\x71\0\0\0\0")), Kind::Words);
        let object = b"\x10\x92\x33\x71\x5E\x7F\0\0\x20\x13\0\0\0\0\0\0\x10\0\0\0\x33\x01\0\0";
        assert_eq!(Kind::of(&page(object)), Kind::Memory);
        assert_eq!(Kind::of(&page(b"\x10\x92\x33\x71\x5E\x7F\0\0")), Kind::Pointers);
        assert_eq!(Kind::of(&page(b"\x10\x92\x33\x71\x8E\x01\0\0")), Kind::Records, "times");
    }
}
