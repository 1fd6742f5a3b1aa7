//! Decides which kind of page a page is, from samples of its bytes.
//!
//! ```text
//! samples := 16 bytes of every 256, from 0, 48, 96, … modulo 256 on
//! count those that are not all zeros
//! if these are four or more, and a quarter of their bytes are zeros: a page of words
//! else if a quarter of all sampled bytes are zeros: another page
//! for distance in 16, 20, 24, 32:
//!     for each residue of a byte's position modulo 4:
//!         equal := sampled bytes that equal the byte at this distance before them, of 64
//!     if the largest and the smallest of these four differ by 24 or more: a page of records
//! else another page
//! ```
//!
//! Pages of fields are found by what a search for another kind leaves:
//!
//! ```text
//! gain := number of sequences + bytes that the literals' code saves
//! if there are 2000 literals or more, and gain is less than a fifth of them:
//!     for each four literals if their mixed bytes end in four certain bits, and if gain is less
//!         than 64, of the literals 256 to 383 always:
//!         count them if the last four with the same hash were the same
//!     if 16 times this count is more than gain + 96: search again as a page of fields
//! ```
//!
//! Pointers and small numbers have zeros in every word. Empty space does not say what the rest of
//! the page is: pages that are half zeros and half random bytes, as fio writes them, are not of
//! words. If all samples began at a multiple of 256, they would see only the heads of records whose
//! size is a power of two, such as inodes.
//!
//! In an array of floats, the bytes with the exponents repeat, and the lowest ones of the mantissas
//! do not. A multiple of the size of an element or a record is among the distances if that size is
//! 2, 4, 5, 6, 8, 10, 12, 16, 20, 24 or 32 bytes. In text and code, all four residues are alike.

use core::ops::Range;

use super::{encode::WORD_HASH_BITS, literals::Room, tables::Kind};
use crate::{PAGE_SIZE, Page};

/// Samples for words are 16 bytes of every 256, this much further on in each.
const SAMPLES_STEP: usize = 48;
const SAMPLE: usize = 16;
const SAMPLES: usize = PAGE_SIZE / SAMPLE_EVERY;

/// Samples with a byte other than zero in a page of words.
const WORDS_SAMPLES: usize = 4;

/// In a page of words, one byte in this many is zero. Code has fewer.
const WORDS_ZEROS: usize = 4;

/// Distances at which the bytes of records repeat.
const DISTANCES: [usize; 4] = [16, 20, 24, 32];

/// Samples for records are 16 bytes from here on in every 256.
const SAMPLE_AT: usize = 32;
const SAMPLE_EVERY: usize = 256;

/// How much more often, of 64 times, bytes of one residue equal earlier ones than bytes of another.
/// At 20, `heap-redis` gets 0.15 % larger, because literals of records are not coded.
const CONTRAST: u8 = 24;

/// Returns the kind of a page.
#[inline]
pub(super) fn kind_of(page: &Page) -> Kind {
    let (zeros, empty) = zeros_of(page);
    let samples = SAMPLES - empty;
    if samples >= WORDS_SAMPLES && WORDS_ZEROS * (zeros - SAMPLE * empty) >= SAMPLE * samples {
        Kind::Words
    } else if WORDS_ZEROS * zeros < SAMPLE * SAMPLES && has_records(page) {
        Kind::Records
    } else {
        Kind::Others
    }
}

/// Returns the number of zeros in all samples, and the number of samples that are all zeros.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Loads of whole registers.
fn zeros_of(page: &Page) -> (usize, usize) {
    use core::arch::x86_64::*;

    // SAFETY: every x86-64 processor has SSE2. A sample begins at a multiple of 16 below 256, so it
    // is within the 256 bytes.
    unsafe {
        let (mut zeros, mut empty) = (_mm_setzero_si128(), 0);
        for (number, part) in page.as_chunks::<SAMPLE_EVERY>().0.iter().enumerate() {
            let sample = part.as_ptr().add(number * SAMPLES_STEP % SAMPLE_EVERY);
            let is_zero = _mm_cmpeq_epi8(_mm_loadu_si128(sample.cast()), _mm_setzero_si128());
            zeros = _mm_sub_epi8(zeros, is_zero);
            empty += usize::from(_mm_movemask_epi8(is_zero) == 0xFFFF);
        }
        let sums = _mm_sad_epu8(zeros, _mm_setzero_si128());
        ((_mm_cvtsi128_si64(sums) + _mm_cvtsi128_si64(_mm_unpackhi_epi64(sums, sums))) as usize, empty)
    }
}

/// Returns the number of zeros in all samples, and the number of samples that are all zeros.
#[cfg(not(target_arch = "x86_64"))]
fn zeros_of(page: &Page) -> (usize, usize) {
    zeros_of_bytewise(page)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn zeros_of_bytewise(page: &Page) -> (usize, usize) {
    page.as_chunks::<SAMPLE_EVERY>().0.iter().enumerate().fold((0, 0), |(zeros, empty), (number, part)| {
        let sample = &part[number * SAMPLES_STEP % SAMPLE_EVERY..][..SAMPLE];
        let here = sample.iter().filter(|&&byte| byte == 0).count();
        (zeros + here, empty + usize::from(here == SAMPLE))
    })
}

/// Returns whether the bytes of one residue modulo 4 repeat, and those of another do not.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Loads of whole registers.
fn has_records(page: &Page) -> bool {
    use core::arch::x86_64::*;

    // SAFETY: every x86-64 processor has SSE2. The 16 bytes of a sample and those at a distance
    // before them are in the same 256 bytes of the page.
    unsafe {
        let mut equal = [_mm_setzero_si128(); DISTANCES.len()];
        for part in page.as_chunks::<SAMPLE_EVERY>().0 {
            let here = part.as_ptr().add(SAMPLE_AT);
            let bytes = _mm_loadu_si128(here.cast());
            for (equal, distance) in equal.iter_mut().zip(DISTANCES) {
                let before = _mm_loadu_si128(here.sub(distance).cast());
                *equal = _mm_sub_epi8(*equal, _mm_cmpeq_epi8(bytes, before));
            }
        }
        // The lowest four bytes: the sums of each residue, at most 64.
        let [a, b, c, d] = equal.map(|equal| {
            let pairs = _mm_add_epi8(equal, _mm_srli_si128::<8>(equal));
            _mm_add_epi8(pairs, _mm_srli_si128::<4>(pairs))
        });
        let sums = _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        // In every byte, the most and the least of the four bytes with the same distance.
        let swapped = |of| _mm_or_si128(_mm_slli_epi32::<16>(of), _mm_srli_epi32::<16>(of));
        let rotated = |of| _mm_or_si128(_mm_slli_epi32::<8>(of), _mm_srli_epi32::<24>(of));
        let most = _mm_max_epu8(sums, swapped(sums));
        let most = _mm_max_epu8(most, rotated(most));
        let least = _mm_min_epu8(sums, swapped(sums));
        let least = _mm_min_epu8(least, rotated(least));
        let contrast = _mm_sub_epi8(most, least);
        let enough = _mm_cmpgt_epi8(contrast, _mm_set1_epi8(CONTRAST as i8 - 1));
        _mm_movemask_epi8(enough) != 0
    }
}

/// Returns whether the bytes of one residue modulo 4 repeat, and those of another do not.
#[cfg(not(target_arch = "x86_64"))]
fn has_records(page: &Page) -> bool {
    has_records_bytewise(page)
}

/// Literals are sampled at one place in about this many, which their bytes select.
const FIELDS_RATE: usize = 16;

/// With fewer literals, another search does not pay.
const FIELDS_LITERALS: usize = 2000;

/// Repeats are fewer than one literal in this many.
const FIELDS_SHARE: usize = 5;

/// Repeats that do not pay for another search, which takes longer than the first: they would save
/// about 2 % of a page. At 16, objects of images are 0.3 % smaller, and take 1.3 times as long.
const FIELDS_LEAST: usize = 96;

/// With less gain than this, the sample has all places of [`WHOLE`]. The others may miss all of a
/// few values, but count where more repeats anyway.
const LITTLE: usize = 64;
const WHOLE: Range<usize> = 256..384;

/// If nothing has repeated up to here, the rest is not sampled.
const GIVE_UP: usize = 1536;

/// Literals that are sampled together.
const CHUNK: usize = 64;

/// Returns whether four bytes repeat more than `gain` times among the first `count` literals, which
/// a search for longer matches left. `gain` is about how many bytes what it found saves over LZ4.
#[inline(never)]
pub(super) fn has_fields(literals: &Room, count: usize, gain: usize, seen: &mut [u16; 1 << WORD_HASH_BITS]) -> bool {
    if count < FIELDS_LITERALS || FIELDS_SHARE * gain >= count {
        return false;
    }
    seen.fill(0);
    let mut repeats = 0;
    let end = count - 3;
    for start in (0..end).step_by(CHUNK) {
        // Nothing repeats in most pages that do not compress.
        if repeats == 0 && start >= GIVE_UP {
            return false;
        }
        let bytes = literals[start..].first_chunk().expect("SLACK bytes after the literals");
        let mut sample = if gain < LITTLE && WHOLE.contains(&start) { !0 } else { sample_of(bytes) };
        if end - start < CHUNK {
            sample &= (1 << (end - start)) - 1;
        }
        while sample != 0 {
            let at = sample.trailing_zeros() as usize;
            sample &= sample - 1;
            let four: &[u8; 4] = bytes[at..].first_chunk().expect("three bytes after the chunk");
            let product = u32::from_le_bytes(*four).wrapping_mul(0x9E37_79B1);
            let slot = &mut seen[(product >> (32 - WORD_HASH_BITS)) as usize];
            let tag = (product >> 7) as u16;
            repeats += usize::from(*slot == tag);
            *slot = tag;
        }
    }
    FIELDS_RATE * repeats > gain + FIELDS_LEAST
}

/// Returns a bit for each of the chunk's bytes: 1 if the sample has it.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Loads of whole registers.
#[inline]
fn sample_of(bytes: &[u8; CHUNK + 3]) -> u64 {
    use core::arch::x86_64::*;

    let mut sample = 0;
    for at in (0..CHUNK).step_by(16) {
        // SAFETY: every x86-64 processor has SSE2. A load ends three bytes after the chunk at most.
        let bits = unsafe {
            let from = |offset: usize| _mm_loadu_si128(bytes.as_ptr().add(at + offset).cast());
            let twice = |of| _mm_add_epi8(of, of);
            let mixed = _mm_xor_si128(twice(_mm_xor_si128(twice(from(2)), from(1))), _mm_xor_si128(from(0), from(3)));
            let low = _mm_and_si128(mixed, _mm_set1_epi8(FIELDS_RATE as i8 - 1));
            _mm_movemask_epi8(_mm_cmpeq_epi8(low, _mm_set1_epi8(SAMPLED as i8)))
        };
        sample |= (bits as u64) << at;
    }
    sample
}

/// Returns a bit for each of the chunk's bytes: 1 if the sample has it.
#[cfg(not(target_arch = "x86_64"))]
fn sample_of(bytes: &[u8; CHUNK + 3]) -> u64 {
    sample_of_bytewise(bytes)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn sample_of_bytewise(bytes: &[u8; CHUNK + 3]) -> u64 {
    let mut flags = [0_u8; CHUNK];
    for (flag, bytes) in flags.iter_mut().zip(bytes.array_windows()) {
        let [a, b, c, d]: &[u8; 4] = bytes;
        let mixed = a ^ (b << 1) ^ (c << 2) ^ d;
        *flag = u8::from(mixed % FIELDS_RATE as u8 == SAMPLED);
    }
    let eights = flags.as_chunks().0.iter().enumerate();
    eights.fold(0, |sample, (at, flags)| {
        sample | (u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * at)
    })
}

/// The mixed bytes of the places in the sample, modulo [`FIELDS_RATE`].
const SAMPLED: u8 = 5;

#[cfg(any(test, not(target_arch = "x86_64")))]
fn has_records_bytewise(page: &Page) -> bool {
    DISTANCES.into_iter().any(|distance| {
        let mut equal = [0; 4];
        for part in page.as_chunks::<SAMPLE_EVERY>().0 {
            for at in SAMPLE_AT..SAMPLE_AT + 16 {
                equal[at % 4] += u8::from(part[at] == part[at - distance]);
            }
        }
        let most = equal.into_iter().fold(0, u8::max);
        let least = equal.into_iter().fold(u8::MAX, u8::min);
        most - least >= CONTRAST
    })
}

const _: () = assert!(SAMPLE_AT.is_multiple_of(4) && SAMPLE_AT + SAMPLE <= SAMPLE_EVERY && SAMPLES == SAMPLE);
const _: () = assert!(SAMPLES_STEP.is_multiple_of(SAMPLE) && SAMPLE_EVERY.is_multiple_of(SAMPLE));

#[cfg(test)]
mod tests {
    use super::{super::literals::EMPTY, *};

    /// A page whose bytes `of` gives by their number and a random one.
    fn filled(seed: u32, of: impl Fn(usize, u8) -> u8) -> Page {
        let mut state = seed;
        std::array::from_fn(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            of(at, (state >> 24) as u8)
        })
    }

    /// A page of elements of `size` bytes. The bytes at the places that `is_alike` selects are the
    /// same in all elements, the others are random.
    fn page(size: usize, seed: u32, is_alike: impl Fn(usize) -> bool) -> Page {
        filled(seed, |at, random| if is_alike(at % size) { (at % size) as u8 + 1 } else { random })
    }

    #[test]
    fn words_are_told_from_runs_of_zeros() {
        let pointer = |at: usize, random: u8| if at % 8 < 6 { random | 1 } else { 0 };
        for seed in 0..50 {
            assert_eq!(kind_of(&filled(seed, pointer)), Kind::Words);
            for used in [1024, 2048, 3000] {
                let words = filled(seed, |at, random| if at < used { pointer(at, random) } else { 0 });
                assert_eq!(kind_of(&words), Kind::Words, "{used} bytes of words, then zeros");
                let random = filled(seed, |at, random| if at < used { random } else { 0 });
                assert_eq!(kind_of(&random), Kind::Others, "{used} random bytes, then zeros");
            }
            let inodes = filled(seed, |at, random| if at % 256 < 64 { 0 } else { random });
            assert_eq!(kind_of(&inodes), Kind::Others, "zeros at the head of every record");
        }
        assert_eq!(kind_of(&[0; PAGE_SIZE]), Kind::Others);
    }

    #[test]
    fn every_build_counts_the_same_zeros() {
        for seed in 0..200 {
            let page = filled(seed, |at, random| if random < seed as u8 || at % 512 < 200 { 0 } else { random });
            assert_eq!(zeros_of(&page), zeros_of_bytewise(&page), "{seed}");
        }
        assert_eq!(zeros_of(&[0; PAGE_SIZE]), (SAMPLE * SAMPLES, SAMPLES));
        assert_eq!(zeros_of(&[1; PAGE_SIZE]), (0, 0));
    }

    #[test]
    fn elements_of_many_sizes_are_records() {
        for size in [4, 8, 12, 16, 20, 24, 32] {
            for seed in 0..50 {
                assert_eq!(kind_of(&page(size, seed, |_| false)), Kind::Others, "random bytes");
                assert_eq!(kind_of(&page(size, seed, |_| true)), Kind::Others, "the same bytes");
                assert_eq!(kind_of(&page(size, seed, |at| at % 2 == 0 && at % 8 < 4)), Kind::Records, "{size}");
                assert_eq!(kind_of(&page(size, seed, |at| at % 4 == 3)), Kind::Records, "{size}");
            }
        }
    }

    #[test]
    fn every_build_finds_the_same_records() {
        let mut found = [0; 2];
        for size in 1..40 {
            for alike in 0..=4 {
                for seed in 0..4 {
                    let page = page(size, seed, |at| at % 4 < alike);
                    let is_found = has_records(&page);
                    assert_eq!(is_found, has_records_bytewise(&page), "{size}, {alike}");
                    found[usize::from(is_found)] += 1;
                }
            }
        }
        assert!(found[0] > 50 && found[1] > 50, "{found:?}");
    }

    /// Fields of four bytes with this many values, each followed by three to five random bytes.
    fn fields(seed: u32, values: u8) -> (Room, usize) {
        let mut literals = EMPTY;
        let mut random = filled(seed, |_, random| random).into_iter().cycle();
        let mut next = || random.next().expect("endless");
        let mut at = 0;
        while at < 3000 {
            let value = u32::from(next() % values).wrapping_mul(0x9E37_79B1).to_le_bytes();
            literals[at..at + 4].copy_from_slice(&value);
            at += 4;
            for _ in 0..3 + next() % 3 {
                literals[at] = next();
                at += 1;
            }
        }
        (literals, at)
    }

    #[test]
    fn short_fields_that_repeat_are_found_and_random_bytes_are_not() {
        let mut seen = [7; 1 << WORD_HASH_BITS];
        for seed in 0..50 {
            for values in [40, 100] {
                let (literals, count) = fields(seed, values);
                assert!(has_fields(&literals, count, 0, &mut seen), "{values} values");
                assert!(!has_fields(&literals, count, count / 5, &mut seen), "the gain is larger");
                assert!(!has_fields(&literals, FIELDS_LITERALS - 1, 0, &mut seen), "few literals");
            }
            for chunk in fields(seed, 90).0.as_chunks::<{ CHUNK + 3 }>().0 {
                assert_eq!(sample_of(chunk), sample_of_bytewise(chunk));
            }
            let mut random = EMPTY;
            random[..PAGE_SIZE].copy_from_slice(&filled(seed, |_, random| random));
            assert!(!has_fields(&random, PAGE_SIZE, 0, &mut seen), "random bytes");
        }
    }
}
