//! Decides, from the literals that the first search left, whether to search a page again as a page
//! of fields.
//!
//! ```text
//! saved := bytes by which coded literals are shorter, 4/3 of them in a page of words
//! need := sequences / 4 + 5/4 saved + 64
//! if there are less than 2000 literals: no, except in a page that is neither of words nor of
//!     records, if its literals are not coded, are 1400 or more, and more than eight a sequence
//! if there are less than 16 sequences: yes if there are 2000 literals
//! if there are not more than five literals for each byte of need, or four if there are less than 64
//!     sequences: no
//! repeats := places whose four literals are those of the last place with the same hash; those whose
//!     next two are the same, too, count twice
//! for each of four residues:
//!     count the repeats among the places whose mixed bytes have this residue modulo 16
//!     if 16 times all that were counted is more than need times the residues so far: yes
//!     if it is 64 less than that, or an eighth at literal 1536: no, except after the first residue if
//!         none was counted and no literal is coded
//! no
//! ```
//!
//! `need` is about the number of bytes that the first search saves over LZ4, for which a repeat of
//! four or five bytes saves one. A gain of less than 64 bytes is not worth the second search.

use core::hint::cold_path;

use super::{Isa, hashes::WORD_HASH_BITS, literals::Room, tables::Kind};
use crate::{PAGE_SIZE, mem::clear};

/// Literals are sampled at one place in about this many. Their bytes select the place.
const RATE: usize = 16;

/// The mixed bytes of the places in each sample, modulo [`RATE`].
const RESIDUES: [u8; 4] = [5, 14, 3, 8];

/// With fewer literals, another search does not pay.
const LITERALS: usize = 2000;

/// The same if none of them is coded, in a page that is neither of words nor of records. With
/// [`RUNS`] literals a sequence or fewer, such a page is smaller than with LZ4.
const LITERALS_UNCODED: usize = 1400;
const RUNS: usize = 8;

/// Repeats are fewer than one literal in this many, or in one less if there are fewer sequences than
/// [`SPARSE`].
const SHARE: usize = 5;
const SPARSE: usize = 64;

/// Repeats that do not pay for another search, which takes longer than the first.
const LEAST: usize = 64;

/// With fewer sequences, a page hardly compresses, so another search takes little time.
const FEW: usize = 16;

/// If less than 1/8 of the repeats that are needed has been counted up to here, the rest is not
/// sampled.
const GIVE_UP: usize = 1536;

/// Literals that are sampled together.
const CHUNK: usize = 64;

/// Literals whose samples are looked up together.
const BATCH: usize = 512;

/// Number of places that are always written for a chunk: twice as many as most chunks have.
const PUT: usize = 8;

/// A repeat of this many bytes counts twice: it is a match that the first search stepped over or
/// lost from its table.
const COMPARED: usize = 6;

/// Literals from the first of a chunk to the end of the last load.
type Loaded = [u8; CHUNK + 8];

/// By hash, the last place in the sample.
type Seen = [u16; 1 << WORD_HASH_BITS];

/// The literals that a search for longer matches left in a page of this kind.
pub(super) struct Left<'a> {
    pub(super) kind: Kind,
    /// They are the first `count`.
    pub(super) literals: &'a Room,
    pub(super) count: usize,
    /// Number of matches.
    pub(super) sequences: usize,
    /// Bytes by which coded literals are shorter.
    pub(super) saved: usize,
}

/// Returns whether four or five bytes repeat often among these literals.
#[inline]
pub(super) fn has_fields(isa: Isa, left: &Left<'_>, seen: &mut Seen) -> bool {
    let &Left { kind, literals, count, sequences, saved } = left;
    if count < LITERALS && (count < LITERALS_UNCODED || saved > 0 || kind != Kind::Others || count <= RUNS * sequences)
    {
        return false;
    }
    if sequences < FEW {
        return count >= LITERALS;
    }
    // Code needs more repeats. Pages of words whose literals can be coded count as code.
    let worth = if kind == Kind::Words { saved * 4 / 3 } else { saved };
    let need = sequences / 4 + 5 * worth / 4 + LEAST;
    if (SHARE - usize::from(sequences < SPARSE)) * need >= count {
        return false;
    }
    let repeats = Repeats { literals, seen, count: 0 };
    match isa {
        #[allow(unsafe_code)]
        // SAFETY: both builds have AVX2, BMI1, BMI2, LZCNT and POPCNT, which the stream detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => unsafe { x86::are_enough(repeats, count, need, saved > 0) },
        Isa::Portable => repeats.are_enough(count, need, saved > 0, sample_of),
    }
}

/// Counts repeats.
struct Repeats<'a> {
    literals: &'a Room,
    seen: &'a mut Seen,
    count: usize,
}

impl Repeats<'_> {
    /// Returns whether `need` of the first `count` literals are repeats. `sample_of` returns a bit for
    /// each of the chunk's bytes: 1 if the sample of this residue has it.
    #[inline(always)]
    fn are_enough(mut self, count: usize, need: usize, is_coded: bool, sample_of: impl Fn(&Loaded, u8) -> u64) -> bool {
        clear(self.seen);
        let literals = &self.literals[..count.min(PAGE_SIZE) - COMPARED];
        let mut places = [0; BATCH + PUT];
        let mut needed = 0;
        'samples: for residue in RESIDUES {
            needed += need;
            let may_stop = |count: usize| residue != RESIDUES[0] || is_coded || count > 0;
            for start in (0..literals.len()).step_by(BATCH) {
                if start == GIVE_UP && 8 * RATE * self.count < needed && may_stop(self.count) {
                    break 'samples;
                }
                let batch = literals.len().min(start + BATCH);
                let mut sampled = 0;
                for at in (start..batch - batch % CHUNK).step_by(CHUNK) {
                    let sample = sample_of(self.literals[at..].first_chunk().expect("SLACK bytes"), residue);
                    sampled += put(at, sample, &mut places[sampled..]);
                }
                for &place in &places[..sampled] {
                    self.look_up(usize::from(place));
                }
            }
            if RATE * self.count > needed {
                return true;
            }
            if RATE * self.count + LEAST < needed && may_stop(self.count) {
                break;
            }
        }
        false
    }

    /// Counts the four bytes at a place of the literals, if they repeat.
    #[inline(always)]
    fn look_up(&mut self, at: usize) {
        let here = word(&self.literals[at % PAGE_SIZE..]);
        let slot = &mut self.seen[((here as u32).wrapping_mul(0x9E37_79B1) >> (32 - WORD_HASH_BITS)) as usize];
        let difference = here ^ word(&self.literals[usize::from(*slot) % PAGE_SIZE..]);
        *slot = at as u16;
        if difference as u32 == 0 {
            cold_path();
            self.count += 1 + usize::from(difference << (64 - 8 * COMPARED) == 0);
        }
    }
}

/// Writes the places of the sample's bits from `at` on to the start of `places`, and returns their
/// number. It always writes a fixed number, because a loop over the actual number is mispredicted.
#[inline(always)]
fn put(at: usize, mut sample: u64, places: &mut [u16]) -> usize {
    let count = sample.count_ones() as usize;
    let (first, rest) = places.split_first_chunk_mut::<PUT>().expect("room for PUT places more");
    let mut next = || {
        let place = at as u16 + sample.trailing_zeros() as u16;
        sample &= sample.wrapping_sub(1);
        place
    };
    for place in first {
        *place = next();
    }
    if count > PUT {
        cold_path();
        rest[..count - PUT].fill_with(next);
    }
    count
}

/// Returns the first eight bytes.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"))
}

/// Returns a bit for each of the chunk's bytes: 1 if the sample of this residue has it.
fn sample_of(bytes: &Loaded, residue: u8) -> u64 {
    let mut flags = [0_u8; CHUNK];
    for (flag, bytes) in flags.iter_mut().zip(bytes.array_windows()) {
        let [a, b, c, d]: &[u8; 4] = bytes;
        let mixed = a ^ (b << 1) ^ (c << 2) ^ d;
        *flag = u8::from(mixed % RATE as u8 == residue);
    }
    let eights = flags.as_chunks().0.iter().enumerate();
    eights.fold(0, |sample, (at, flags)| {
        sample | (u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * at)
    })
}

const _: () = assert!(GIVE_UP.is_multiple_of(BATCH) && BATCH.is_multiple_of(CHUNK));

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Loads of whole registers.
mod x86 {
    use core::arch::x86_64::*;

    use super::*;

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    pub(super) fn are_enough(repeats: Repeats<'_>, count: usize, need: usize, is_coded: bool) -> bool {
        repeats.are_enough(count, need, is_coded, |bytes, residue| sample_of(bytes, residue))
    }

    /// Returns a bit for each of the chunk's bytes: 1 if the sample of this residue has it.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn sample_of(bytes: &Loaded, residue: u8) -> u64 {
        let mut sample = 0;
        for at in [0, CHUNK / 2] {
            // SAFETY: a load ends three bytes after the chunk at most.
            let [a, b, c, d] =
                [0, 1, 2, 3].map(|offset| unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at + offset).cast()) });
            let twice = |of| _mm256_add_epi8(of, of);
            let mixed = _mm256_xor_si256(twice(_mm256_xor_si256(twice(c), b)), _mm256_xor_si256(a, d));
            let low = _mm256_and_si256(mixed, _mm256_set1_epi8(RATE as i8 - 1));
            let is_sampled = _mm256_cmpeq_epi8(low, _mm256_set1_epi8(residue as i8));
            sample |= u64::from(_mm256_movemask_epi8(is_sampled) as u32) << at;
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{literals::EMPTY, pages::Lcg},
        *,
    };

    /// Fields of four bytes with this many values, each followed by three to five random bytes.
    fn fields(seed: u64, values: u64) -> (Room, usize) {
        let mut literals = EMPTY;
        let mut random = Lcg(seed);
        let mut at = 0;
        while at < 3000 {
            let value = (random.below(values) as u32).wrapping_mul(0x9E37_79B1).to_le_bytes();
            literals[at..at + 4].copy_from_slice(&value);
            let gap = 3 + random.below(3) as usize;
            literals[at + 4..][..gap].fill_with(|| random.below(256) as u8);
            at += 4 + gap;
        }
        (literals, at)
    }

    /// Asks every build about a page of records, whose few literals are not sampled.
    fn has_fields(literals: &Room, count: usize, sequences: usize, saved: usize) -> bool {
        has_fields_of(Kind::Records, literals, count, sequences, saved)
    }

    /// Asks every build.
    fn has_fields_of(kind: Kind, literals: &Room, count: usize, sequences: usize, saved: usize) -> bool {
        let mut seen = [7; 1 << WORD_HASH_BITS];
        let left = Left { kind, literals, count, sequences, saved };
        let mut ask = |isa| super::has_fields(isa, &left, &mut seen);
        let found: Vec<bool> = Isa::all_of_this_cpu().into_iter().map(&mut ask).collect();
        assert!(found.iter().all(|&is_found| is_found == found[0]), "{found:?}");
        found[0]
    }

    #[test]
    fn short_fields_that_repeat_are_found_and_random_bytes_are_not() {
        for seed in 0..50 {
            for values in [40, 100] {
                let (literals, count) = fields(seed, values);
                assert!(has_fields(&literals, count, FEW, 0), "{values} values");
                assert!(!has_fields(&literals, count, FEW, count / 6), "the literals' code saves more");
                assert!(!has_fields(&literals, LITERALS - 1, FEW, 0), "few literals");
            }
            let mut random = EMPTY;
            let mut bytes = Lcg(seed);
            random[..PAGE_SIZE].fill_with(|| bytes.below(256) as u8);
            assert!(!has_fields(&random, PAGE_SIZE, FEW, 0), "random bytes");
            assert!(has_fields(&random, PAGE_SIZE, FEW - 1, 0), "a page that hardly compresses");
        }
    }

    #[test]
    fn few_literals_are_sampled_only_if_none_is_coded_and_matches_are_few() {
        let mut found = 0;
        for seed in 0..50 {
            let (literals, _) = fields(seed, 40);
            let count = LITERALS_UNCODED;
            found += usize::from(has_fields_of(Kind::Others, &literals, count, FEW, 0));
            assert!(!has_fields_of(Kind::Others, &literals, count - 1, FEW, 0), "fewer literals");
            assert!(!has_fields_of(Kind::Others, &literals, count, FEW, 1), "coded literals");
            assert!(!has_fields_of(Kind::Others, &literals, count, count / RUNS, 0), "many matches");
            assert!(!has_fields_of(Kind::Words, &literals, count, FEW, 0), "words");
        }
        assert!(found >= 40, "{found} of 50: a sample may have none of the fields");
    }

    /// Fields that begin with bytes whose mixture is 14 modulo 16: the first residue has none.
    #[test]
    fn fields_that_the_first_sample_misses_are_found() {
        let mut random = Lcg(3);
        let mut literals = EMPTY;
        let values: Vec<[u8; 4]> =
            (0..40).map(|value| [0x10 * (value % 16) + 0x0E, 0x10 * (value / 16), 0x40, 0x80]).collect();
        let mut at = 0;
        while at < 3000 {
            literals[at..at + 4].copy_from_slice(&values[random.below(40) as usize]);
            // Random bytes of which no four have a sampled mixture with the fields' bytes.
            literals[at + 4..at + 8].copy_from_slice(&[0x11, 0, 0x20, (random.below(16) as u8) << 4]);
            at += 8;
        }
        assert!(has_fields(&literals, at, FEW, 0));
        assert!(!has_fields(&literals, at, FEW, 1), "not looked for where a palette codes literals");
    }

    /// The first search passed them in its steps.
    #[test]
    fn longer_repeats_count_twice() {
        let mut random = Lcg(1);
        let mut literals = EMPTY;
        literals[..PAGE_SIZE].fill_with(|| random.below(256) as u8);
        for at in (400..PAGE_SIZE - 40).step_by(40) {
            literals.copy_within(at - 400..at - 392, at);
        }
        assert!(has_fields(&literals, PAGE_SIZE, FEW, 0));
    }

    #[test]
    fn bytes_after_the_literals_do_not_matter() {
        for seed in 0..50 {
            let (mut literals, count) = fields(seed, 90);
            for count in count - 70..count {
                let found = has_fields(&literals, count, FEW, 0);
                literals[count..].fill(seed as u8);
                assert_eq!(has_fields(&literals, count, FEW, 0), found);
                literals = fields(seed, 90).0;
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_build_takes_the_same_sample() {
        for seed in 0..50 {
            let literals = fields(seed, 90).0;
            for chunk in literals.as_chunks::<{ CHUNK + 8 }>().0 {
                #[allow(unsafe_code)]
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the CPU has AVX2.
                    let sample = unsafe { x86::sample_of(chunk, 5) };
                    assert_eq!(sample, sample_of(chunk, 5));
                }
            }
        }
    }
}
