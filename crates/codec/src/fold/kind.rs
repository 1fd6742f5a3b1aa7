//! Determines the kind of a page from samples of its bytes. Pages of fields are found later
//! ([`fields`](super::fields)).
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
//! Pointers and small numbers have zeros in every word. Empty space says nothing about the rest of
//! the page: pages that are half zeros and half random bytes, as fio writes them, are not of words.
//! If all samples began at a multiple of 256, they would see only the heads of records whose size
//! is a power of two, such as inodes.
//!
//! In an array of floats, the bytes with the exponents repeat, and the lowest ones of the mantissas
//! do not. A multiple of the size of an element or a record is among the distances if that size is
//! 2, 4, 5, 6, 8, 10, 12, 16, 20, 24 or 32 bytes. In text and code, all four residues are alike.

use super::tables::Kind;
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

/// A page is one of records if, of 64 comparisons each, bytes of one residue equal earlier bytes
/// this many times more often than those of another. At 20, `heap-redis` gets 0.15 % larger,
/// because literals of records are not coded.
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
        // The lowest four bytes hold the sums of the four residues, at most 64 each.
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
    use super::*;

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
    fn runs_of_zeros_are_not_pages_of_words() {
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
}
