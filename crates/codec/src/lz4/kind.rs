//! Classifies a page for the encoder: the content determines how long a match must be to pay for
//! its bytes and its time. Judged from 16 bytes of every 256.

use core::ops::Range;

use crate::Page;

/// 16 bytes of every 256 of a page, contiguous: loops over them become vector code.
type Sample = [u8; SAMPLED];

const SAMPLED: usize = 256;

/// A sample begins this much further on in its 256 bytes than the one before, modulo [`STARTS`]. If
/// all began at a multiple of 256, they would see only the heads of records whose size is a power
/// of two, such as inodes.
const STEP: usize = 72;

/// All samples begin at a multiple of 8 below this, with 24 bytes before the end of the 256.
const STARTS: usize = 240;

/// A kind of page. docs/log/lz4.md has the sizes and speeds from which the thresholds were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Compressed or encrypted data: bytes of all values.
    Noise,
    /// Prose: almost no zero bytes.
    Prose,
    /// Prose by its letters and signs, but a quarter spaces: mostly source code.
    Indented,
    /// Source, or markup with much text: also almost no zero bytes, nearly all ASCII, with many
    /// signs or digits.
    Source,
    /// The same with fewer letters and spaces: markup, JSON without line breaks, tables.
    Markup,
    /// Machine code and its tables.
    Code,
    /// Bytes and names: bytecode, database rows.
    Names,
    /// 8-byte words that mostly differ in few bytes, with hardly more zero bytes than code.
    Records,
    /// Many zero bytes: tables in code, small numbers.
    Words,
    /// The same in 8-byte words, some of them pointers; at least half are pointers or have a zero
    /// half. Most of a program's memory is of this kind. Numbers alone (`Words`) compress worse
    /// with long matches.
    Memory,
    /// 8-byte words, nearly all of them pointers or numbers of half that length: memory of Python
    /// and JavaScript runtimes.
    Pointers,
}

impl Kind {
    pub(crate) fn of(page: &Page) -> Self {
        const CODE: usize = SAMPLED / 16 + 1;
        const WORDS: usize = SAMPLED * 5 / 16 + 1;
        // Of the 32 sampled words: those that are pointers or have a zero half, and pointers alone.
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
        // In noise, half of the bytes are not ASCII and an eighth are control characters. Text in
        // other scripts has no control characters; code has more zeros.
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

/// Returns 16 bytes of every 256, `LATER` bytes behind the places where samples begin.
#[inline(always)]
fn sample<const LATER: usize>(page: &Page) -> Sample {
    let mut sample = [0; SAMPLED];
    let parts = page.as_chunks::<256>().0.iter().enumerate();
    for (to, (number, part)) in sample.as_chunks_mut::<16>().0.iter_mut().zip(parts) {
        to.copy_from_slice(&part[number * STEP % STARTS + LATER..][..16]);
    }
    sample
}

/// Counts the bytes for which `is` holds.
#[inline(always)]
fn count(sample: &Sample, is: impl Fn(u8) -> bool) -> usize {
    count_pairs(sample, sample, |byte, _| is(byte))
}

/// Counts the bytes for which `is` holds together with the byte of `other` at the same place.
#[inline(always)]
fn count_pairs(sample: &Sample, other: &Sample, is: impl Fn(u8, u8) -> bool) -> usize {
    let halves = sample.as_chunks::<128>().0.iter().zip(other.as_chunks::<128>().0);
    let in_half = |(half, other): (&[u8; 128], &[u8; 128])| -> u8 {
        half.iter().zip(other).map(|(&byte, &other)| u8::from(is(byte, other))).sum()
    };
    halves.map(|half| usize::from(in_half(half))).sum()
}

/// Counts the 8-byte words for which `is` holds, given the lower and the upper half.
#[inline(always)]
fn count_words(sample: &Sample, is: impl Fn(u32, u32) -> bool) -> usize {
    let half = |word: &[u8; 8], at| u32::from_le_bytes(std::array::from_fn(|byte| word[at + byte]));
    sample.as_chunks::<8>().0.iter().map(|word| u32::from(is(half(word, 0), half(word, 4)))).sum::<u32>() as usize
}

/// Returns whether a word with this upper half may be an address in a 64-bit program. Those have 42
/// to 48 bits. (Milliseconds since 1970 have 41, until 2039.)
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
    fn kinds_follow_from_the_bytes_sampled() {
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

    #[test]
    fn heads_of_records_do_not_decide() {
        let prose = page(b"He sat down and said nothing at all for a long while. ");
        let pointers = page(b"\x30\x52\x11\xF7\xFF\x7F\0\0");
        assert_eq!(Kind::of(&pointers), Kind::Pointers);
        let with_heads = |content: &Page, head: &Page| -> Page {
            std::array::from_fn(|at| if at % 256 < 16 { head[at] } else { content[at] })
        };
        assert_ne!(Kind::of(&with_heads(&prose, &pointers)), Kind::Pointers);
        assert_eq!(Kind::of(&with_heads(&pointers, &[0; _])), Kind::Pointers);
    }
}
