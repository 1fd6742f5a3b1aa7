//! What a page holds, as far as an encoder of pages should know: how many bytes a match needs to be
//! worth its bytes and its time depends on it. Told from the first 16 bytes of every 256.

use core::ops::Range;

use crate::Page;

/// The first 16 bytes of every 256 of a page, side by side: loops over them become vector code.
type Sample = [u8; SAMPLED];

const SAMPLED: usize = 256;

/// A kind of page. docs/log/lz4.md has the bytes and speeds that the limits between them were
/// chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What has been compressed or encrypted before: bytes of all values.
    Noise,
    /// Prose: hardly a zero byte.
    Prose,
    /// Prose by its letters and signs, of which a quarter is spaces: source, mostly.
    Indented,
    /// Source, markup with much text: hardly a zero byte either, nearly all ASCII, many of them
    /// signs or most digits.
    Source,
    /// The same with fewer letters and spaces, as in markup, JSON without line ends and tables.
    Markup,
    /// Machine code and its tables.
    Code,
    /// Bytes and names: byte code, rows of a database.
    Names,
    /// Words of 8 bytes that mostly differ in few of them, hardly more of which are zero than in
    /// code.
    Records,
    /// Many zero bytes: tables of code, small numbers.
    Words,
    /// The same in words of 8 bytes, some of which are pointers, and half or more are those or have
    /// a half that is zero: what most of a program's memory is. Numbers alone lose by long matches.
    Memory,
    /// Words of 8 bytes nearly all of which are a program's pointers, or numbers of half their
    /// length: what runtimes of Python and JavaScript have in memory.
    Pointers,
}

impl Kind {
    pub(crate) fn of(page: &Page) -> Self {
        const CODE: usize = SAMPLED / 16 + 1;
        const WORDS: usize = SAMPLED * 5 / 16 + 1;
        // Of the 32 words looked at: those that are pointers or have a half that is zero, and
        // pointers.
        const POINTERS_WHOLE: usize = 28;
        const POINTERS: usize = 3;
        const MEMORY_WHOLE: usize = 16;
        let sample = &sample::<0>(page);
        let zeros = count(sample, |byte| byte == 0);
        if zeros < CODE {
            return Self::without_zeros(sample, zeros);
        }
        let whole = count_words(sample, |lower, upper| is_pointer(upper) | (lower == 0) | (upper == 0));
        let pointers = if whole >= MEMORY_WHOLE { count_words(sample, |_, upper| is_pointer(upper)) } else { 0 };
        if whole >= POINTERS_WHOLE && pointers >= POINTERS {
            Self::Pointers
        } else if zeros < WORDS {
            Self::with_zeros(page, sample)
        } else if pointers > 0 {
            Self::Memory
        } else {
            Self::Words
        }
    }

    fn without_zeros(sample: &Sample, zeros: usize) -> Self {
        const SIGNS: usize = SAMPLED / 8;
        const DIGITS: usize = SAMPLED / 4;
        const NOT_ASCII: usize = SAMPLED / 64;
        const INDENTED: usize = SAMPLED / 4;
        // Pages with fewer are tables of code points and the like.
        const MARKUP: Range<usize> = SAMPLED * 9 / 32..SAMPLED * 5 / 8 + 1;
        // Half of the bytes are not ASCII, and an eighth control characters, of which text in other
        // scripts has none; code has more zeros.
        const NOISE_NOT_ASCII: Range<usize> = SAMPLED * 5 / 16..SAMPLED * 11 / 16;
        const NOISE_CONTROL: usize = SAMPLED / 16;
        const NOISE_ZEROS: usize = 5;
        let not_ascii = count(sample, |byte| !byte.is_ascii());
        if not_ascii > NOT_ASCII {
            let noise = NOISE_NOT_ASCII.contains(&not_ascii)
                && zeros <= NOISE_ZEROS
                && count(sample, |byte| byte < b' ') >= NOISE_CONTROL;
            return if noise { Self::Noise } else { Self::Prose };
        }
        let digits = count(sample, |byte| byte.is_ascii_digit());
        let spaces = count(sample, |byte| byte == b' ');
        let in_words = spaces + count(sample, |byte| (byte | 0x20).is_ascii_lowercase());
        let shown = count(sample, |byte| (b' '..0x80).contains(&byte));
        let signs = shown - in_words - digits;
        if signs >= SIGNS || digits >= DIGITS {
            if MARKUP.contains(&in_words) { Self::Markup } else { Self::Source }
        } else if spaces >= INDENTED {
            Self::Indented
        } else {
            Self::Prose
        }
    }

    fn with_zeros(page: &Page, sample: &Sample) -> Self {
        const REPEATED: usize = SAMPLED / 4;
        const LOWERCASE: usize = SAMPLED * 3 / 16;
        if count_pairs(sample, &self::sample::<8>(page), |byte, later| byte == later) >= REPEATED {
            Self::Records
        } else if count(sample, |byte| byte.is_ascii_lowercase()) >= LOWERCASE {
            Self::Names
        } else {
            Self::Code
        }
    }
}

/// 16 bytes from `offset` on of every 256.
#[inline(always)]
fn sample<const OFFSET: usize>(page: &Page) -> Sample {
    let mut sample = [0; SAMPLED];
    for (to, from) in sample.as_chunks_mut::<16>().0.iter_mut().zip(page.as_chunks::<256>().0) {
        to.copy_from_slice(&from[OFFSET..OFFSET + 16]);
    }
    sample
}

/// How many of the bytes are as asked.
#[inline(always)]
fn count(sample: &Sample, is: impl Fn(u8) -> bool) -> usize {
    count_pairs(sample, sample, |byte, _| is(byte))
}

/// How many of the bytes are as asked together with those of `other` at the same place.
#[inline(always)]
fn count_pairs(sample: &Sample, other: &Sample, is: impl Fn(u8, u8) -> bool) -> usize {
    let halves = sample.as_chunks::<128>().0.iter().zip(other.as_chunks::<128>().0);
    let in_half = |(half, other): (&[u8; 128], &[u8; 128])| -> u8 {
        half.iter().zip(other).map(|(&byte, &other)| u8::from(is(byte, other))).sum()
    };
    halves.map(|half| usize::from(in_half(half))).sum()
}

/// How many of the words of 8 bytes are as asked, by their lower and their upper half.
#[inline(always)]
fn count_words(sample: &Sample, is: impl Fn(u32, u32) -> bool) -> usize {
    let half = |word: &[u8; 8], at| u32::from_le_bytes(std::array::from_fn(|byte| word[at + byte]));
    sample.as_chunks::<8>().0.iter().map(|word| u32::from(is(half(word, 0), half(word, 4)))).sum::<u32>() as usize
}

/// May a word with this upper half be the address of something that a program has on a machine of
/// 64 bits? They have 42 to 48. (Milliseconds since 1970 have 41, until 2039.)
fn is_pointer(upper: u32) -> bool {
    (2 << 8..256 << 8).contains(&upper)
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
