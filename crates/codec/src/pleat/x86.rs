//! The primitives for x86-64: with BMI2 and AVX2, and with gathers for sixteen lanes of literals.
#![allow(unsafe_code)] // Instructions that were detected.

use std::arch::x86_64::{
    __m128i, _mm_cvtsi128_si64, _mm_insert_epi64, _mm_load_si128, _mm_setr_epi16, _mm_shuffle_epi8, _pdep_u64,
    _pext_u64,
};

use super::{
    bits::Room,
    format::{FIRST_REPS, Sequence, Step},
    isa::Isa,
    lanes::Bounds,
    literals::{self, Literals, Sixteen},
    sixteen,
    tables::{Lookup, Lookups},
};
use crate::Corrupt;

/// Operations with BMI2 and AVX2, and with AVX-512 if `GATHERS`. Only used by functions compiled for
/// these, which only run where they were detected.
pub(super) struct X86<const GATHERS: bool>;

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
}

impl<const GATHERS: bool> Sixteen for X86<GATHERS> {
    #[inline(always)]
    fn decode_16<const N: usize>(
        lookups: &Lookups<N>,
        first: Lookup,
        room: &Room,
        bounds: &Bounds,
        literals: &mut Literals,
        count: usize,
        while_waiting: impl FnMut(),
    ) -> Result<(), Corrupt> {
        if GATHERS {
            // SAFETY: what it is compiled for was detected (see `X86`).
            unsafe { sixteen::decode(lookups, first, room, bounds, literals, count, while_waiting) }
        } else {
            literals::decode_16(lookups, first, room, bounds, literals, count)
        }
    }
}
