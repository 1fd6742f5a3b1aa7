//! The builds for x86-64: with BMI2 and AVX2 (shifts by a register without flags, lzcnt, wider
//! copies), and one that also decodes sixteen lanes of literals by gathering.
#![allow(unsafe_code)] // Calls functions compiled for instructions that were detected.

use std::arch::x86_64::{
    __m128i, _mm_cvtsi128_si64, _mm_insert_epi64, _mm_load_si128, _mm_setr_epi16, _mm_shuffle_epi8, _pdep_u64,
    _pext_u64,
};

use super::{
    PleatTables,
    bits::Room,
    decode, encode,
    format::{FIRST_REPS, Sequence},
    isa::{Isa, Shims},
    lanes::Bounds,
    literals::{self, Literals},
    sequences::Step,
    sixteen,
    tables::{Lookup, Lookups},
    window::Window,
};
use crate::{Corrupt, Page};

/// Operations with BMI2 and AVX2, and with AVX-512 if `GATHERS`. Only used by functions compiled for
/// these, which only run where they were detected.
struct X86<const GATHERS: bool>;

/// By rep: the sources of the eight 16-bit numbers after a sequence. Before it they are its
/// run, length, offset and an unused number, then the last three offsets and an unused one.
/// After it they are the same with the resolved offset.
#[repr(align(16))]
struct Moves([[u8; 16]; 4]);

static MOVES: Moves = {
    const fn bytes(lanes: [u8; 8]) -> [u8; 16] {
        let mut bytes = [0; 16];
        let mut at = 0;
        while at < 16 {
            bytes[at] = 2 * lanes[at / 2] + (at % 2) as u8;
            at += 1;
        }
        bytes
    }
    Moves([
        bytes([0, 1, 4, 3, 4, 5, 6, 7]),
        bytes([0, 1, 5, 3, 5, 4, 6, 7]),
        bytes([0, 1, 6, 3, 6, 4, 5, 7]),
        bytes([0, 1, 2, 3, 2, 4, 5, 7]),
    ])
};

impl<const GATHERS: bool> Isa for X86<GATHERS> {
    /// The offsets are in the upper half.
    type Recent = __m128i;

    #[inline(always)]
    fn first() -> Self::Recent {
        let [newest, second, third] = FIRST_REPS.map(u16::cast_signed);
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { _mm_setr_epi16(0, 0, 0, 0, newest, second, third, 0) }
    }

    #[inline(always)]
    fn resolve(sequence: Sequence, recent: Self::Recent) -> (Step, Self::Recent) {
        let moves = &MOVES.0[sequence.rep()];
        // SAFETY: AVX2, which includes these, was detected (see `X86`); `moves` has 16 aligned
        // bytes.
        unsafe {
            let before = _mm_insert_epi64::<0>(recent, sequence.0.cast_signed());
            let after = _mm_shuffle_epi8(before, _mm_load_si128(moves.as_ptr().cast()));
            (Step::of(_mm_cvtsi128_si64(after).cast_unsigned()), after)
        }
    }

    #[inline(always)]
    fn gather(value: u64, mask: u64) -> u64 {
        // SAFETY: BMI2 was detected (see `X86`).
        unsafe { _pext_u64(value, mask) }
    }

    #[inline(always)]
    fn scatter(value: u64, mask: u64) -> u64 {
        // SAFETY: as above.
        unsafe { _pdep_u64(value, mask) }
    }

    #[inline(always)]
    fn decode_16<const N: usize>(
        lookups: &Lookups<N>,
        first: Lookup,
        room: &Room,
        bounds: &Bounds,
        literals: &mut Literals,
        count: usize,
        beside: impl FnMut(),
    ) -> Result<(), Corrupt> {
        if GATHERS {
            // SAFETY: what it is compiled for was detected (see `X86`).
            unsafe { sixteen::decode(lookups, first, room, bounds, literals, count, beside) }
        } else {
            literals::decode_16(lookups, first, room, bounds, literals, count)
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
fn decode_gathering(
    tables: &PleatTables,
    object: &[u8],
    window: &mut Window,
    scratch: &mut decode::Scratch,
    page: &mut Page,
) -> Result<(), Corrupt> {
    decode::decode::<X86<true>>(tables, object, window, scratch, page)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn encode_avx2(tables: &PleatTables, window: &Window, scratch: &mut encode::Scratch, out: &mut [u8]) -> Option<usize> {
    encode::encode::<X86<false>>(tables, window, scratch, out)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn decode_avx2(
    tables: &PleatTables,
    object: &[u8],
    window: &mut Window,
    scratch: &mut decode::Scratch,
    page: &mut Page,
) -> Result<(), Corrupt> {
    decode::decode::<X86<false>>(tables, object, window, scratch, page)
}

/// Returns whether this machine has what the builds are compiled for, without gathering and with it.
///
/// Of the processors with AVX-512, those without FP16 arithmetic gather slowly: AMD's Zen 4
/// takes about as long as for a load each, and Intel's before Sapphire Rapids several times as long
/// since their microcode keeps gathers from leaking data (CVE-2022-40982).
fn detected() -> [bool; 2] {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt");
    let gathers = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("avx512fp16");
    [avx2, avx2 && gathers]
}

/// Returns the builds that this machine can run, the fastest last.
pub(super) fn builds() -> [Option<Shims>; 2] {
    let [avx2, gathering] = detected();
    // SAFETY: these functions only become pointers where every instruction that they were compiled
    // for was detected; so for the others.
    let encode: super::isa::Encode =
        |tables, window, scratch, out| unsafe { encode_avx2(tables, window, scratch, out) };
    [
        avx2.then_some(Shims {
            encode,
            // SAFETY: as above.
            decode: |tables, object, window, scratch, page| unsafe {
                decode_avx2(tables, object, window, scratch, page)
            },
        }),
        gathering.then_some(Shims {
            encode,
            // SAFETY: as above.
            decode: |tables, object, window, scratch, page| unsafe {
                decode_gathering(tables, object, window, scratch, page)
            },
        }),
    ]
}

/// Returns each build's decoder of literals, of those that this machine can run.
#[cfg(test)]
pub(super) fn literal_decoders() -> Vec<super::isa::DecodeLiterals> {
    let builds: [super::isa::DecodeLiterals; 2] =
        [super::isa::decode_literals::<X86<false>>, super::isa::decode_literals::<X86<true>>];
    builds.into_iter().zip(detected()).filter_map(|(build, detected)| detected.then_some(build)).collect()
}
