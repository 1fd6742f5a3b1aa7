//! The encoder and decoder in their fastest form for the machine: one algorithm, compiled for
//! x86-64 with BMI2 and AVX2 (shifts by a register without flags, lzcnt, wider copies), and for any
//! machine. Both give the same bytes.
#![allow(unsafe_code)] // Calls functions compiled for instructions that were detected.

use std::hint::select_unpredictable;

use super::{
    PleatTables, decode, encode,
    format::{FIRST_REPS, Sequence},
    sequences::Step,
    window::Window,
};
use crate::{Corrupt, Page};

type Encode = fn(&PleatTables, &Window, &mut encode::Scratch, &mut [u8]) -> Option<usize>;
type Decode = fn(&PleatTables, &[u8], &mut Window, &mut decode::Scratch, &mut Page) -> Result<(), Corrupt>;

/// Operations that have an instruction on some machines only.
pub(super) trait Isa {
    /// Collects the bits of `value` where `mask` has ones at the low end (BMI2's `pext`). `mask`
    /// belongs to a [`Meaning`](super::format::Meaning).
    fn gather(value: u64, mask: u64) -> u64;

    /// Moves the low bits of `value` to where `mask` has ones (BMI2's `pdep`). `mask` belongs to a
    /// [`Meaning`](super::format::Meaning).
    fn scatter(value: u64, mask: u64) -> u64;

    /// The last three offsets, newest first.
    type Recent: Copy;

    /// Returns the last three offsets before a page's first sequence.
    fn first() -> Self::Recent;

    /// Returns the numbers of `sequence`, with a repeated offset looked up in `recent`, and
    /// `recent` after it.
    fn resolve(sequence: Sequence, recent: Self::Recent) -> (Step, Self::Recent);
}

/// The implementation for any machine.
pub(super) struct Generic;

impl Isa for Generic {
    type Recent = [u16; 3];

    #[inline(always)]
    fn first() -> Self::Recent {
        FIRST_REPS
    }

    #[inline(always)]
    fn resolve(sequence: Sequence, [newest, second, third]: Self::Recent) -> (Step, Self::Recent) {
        let rep = sequence.rep();
        let mut offset = sequence.offset() as u16;
        offset = select_unpredictable(rep == 0, newest, offset);
        offset = select_unpredictable(rep == 1, second, offset);
        offset = select_unpredictable(rep == 2, third, offset);
        let third = select_unpredictable(rep >= 2, second, third);
        let second = select_unpredictable(rep >= 1, newest, second);
        let step = Step { run: sequence.run() as u16, length: sequence.length() as u16, offset, rest: 0 };
        (step, [offset, second, third])
    }

    #[inline(always)]
    fn gather(value: u64, mask: u64) -> u64 {
        let [run, length, offset] = [mask & 0xffff, mask >> 16 & 0xffff, mask >> 32];
        let lengths = (value & run) | (value >> 16 & length) << run.count_ones();
        let offset_at = offset.trailing_zeros() & 63;
        lengths | (value >> 32 & offset) >> offset_at << (run.count_ones() + length.count_ones())
    }

    #[inline(always)]
    fn scatter(value: u64, mask: u64) -> u64 {
        let [run, length, offset] = [mask & 0xffff, mask >> 16 & 0xffff, mask >> 32];
        let after_run = value >> run.count_ones();
        let after_length = after_run >> length.count_ones();
        let offset_at = offset.trailing_zeros() & 63;
        value & run | (after_run & length) << 16 | (after_length << offset_at & offset) << 32
    }
}

/// An encoder and a decoder.
#[derive(Clone, Copy)]
pub(super) struct Shims {
    pub(super) encode: Encode,
    pub(super) decode: Decode,
}

impl Shims {
    /// The build for any machine.
    pub(super) const GENERIC: Self = Self {
        encode: |tables, window, scratch, out| encode::encode::<Generic>(tables, window, scratch, out),
        decode: |tables, object, window, scratch, page| {
            decode::decode::<Generic>(tables, object, window, scratch, page)
        },
    };

    /// Returns the fastest build for this machine.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(shims) = v3() {
            return shims;
        }
        Self::GENERIC
    }
}

#[cfg(target_arch = "x86_64")]
fn v3() -> Option<Shims> {
    use std::arch::x86_64::{
        __m128i, _mm_cvtsi128_si64, _mm_insert_epi64, _mm_load_si128, _mm_setr_epi16, _mm_shuffle_epi8,
    };

    struct V3;

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

    impl Isa for V3 {
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
            // SAFETY: as in `gather`, with AVX2, which includes these; `moves` has 16 aligned
            // bytes.
            unsafe {
                let before = _mm_insert_epi64::<0>(recent, sequence.0.cast_signed());
                let after = _mm_shuffle_epi8(before, _mm_load_si128(moves.as_ptr().cast()));
                (Step::of(_mm_cvtsi128_si64(after).cast_unsigned()), after)
            }
        }

        #[inline(always)]
        fn gather(value: u64, mask: u64) -> u64 {
            // SAFETY: `V3` is only used by functions compiled for BMI2, which only run where it was
            // detected.
            unsafe { std::arch::x86_64::_pext_u64(value, mask) }
        }

        #[inline(always)]
        fn scatter(value: u64, mask: u64) -> u64 {
            // SAFETY: as above.
            unsafe { std::arch::x86_64::_pdep_u64(value, mask) }
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn encode_v3(
        tables: &PleatTables,
        window: &Window,
        scratch: &mut encode::Scratch,
        out: &mut [u8],
    ) -> Option<usize> {
        encode::encode::<V3>(tables, window, scratch, out)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn decode_v3(
        tables: &PleatTables,
        object: &[u8],
        window: &mut Window,
        scratch: &mut decode::Scratch,
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        decode::decode::<V3>(tables, object, window, scratch, page)
    }

    let present = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt");
    present.then_some(Shims {
        // SAFETY: these functions only become pointers where every instruction that they were
        // compiled for was detected.
        encode: |tables, window, scratch, out| unsafe { encode_v3(tables, window, scratch, out) },
        // SAFETY: as above.
        decode: |tables, object, window, scratch, page| unsafe { decode_v3(tables, object, window, scratch, page) },
    })
}
