//! The encoder and the decoder as the machine runs them best: one algorithm, compiled for x86-64 with BMI2 and AVX2
//! (shifts by a register without flags, lzcnt, wider copies), and for any machine. Both give the same bytes.
#![allow(unsafe_code)] // Calls of functions compiled for instructions that were found present.

use super::{PleatTables, decode, encode, window::Window};
use crate::{Corrupt, Page};

type Encode = fn(&PleatTables, &Window, &mut encode::Scratch, &mut [u8]) -> Option<usize>;
type Decode = fn(&PleatTables, &[u8], &mut Window, &mut decode::Scratch, &mut Page) -> Result<(), Corrupt>;

/// What one machine has an instruction for, and another has not.
pub(super) trait Isa {
    /// The bits of `value` where `mask` has ones, together at the low end (BMI2's `pext`). `mask` is a
    /// [`Meaning`](super::format::Meaning)'s.
    fn gather(value: u64, mask: u64) -> u64;

    /// The low bits of `value`, moved to where `mask` has ones (BMI2's `pdep`). `mask` is a
    /// [`Meaning`](super::format::Meaning)'s.
    fn scatter(value: u64, mask: u64) -> u64;
}

/// Any machine.
pub(super) struct Generic;

impl Isa for Generic {
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
    /// For any machine.
    pub(super) const GENERIC: Self = Self {
        encode: |tables, window, scratch, out| encode::encode::<Generic>(tables, window, scratch, out),
        decode: |tables, object, window, scratch, page| {
            decode::decode::<Generic>(tables, object, window, scratch, page)
        },
    };

    /// The fastest for this machine.
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
    struct V3;

    impl Isa for V3 {
        #[inline(always)]
        fn gather(value: u64, mask: u64) -> u64 {
            // SAFETY: `V3` is only used by functions compiled for BMI2, which run only where it was found present.
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
        // SAFETY: these functions are only made into pointers where every instruction they were compiled for was
        // found present.
        encode: |tables, window, scratch, out| unsafe { encode_v3(tables, window, scratch, out) },
        // SAFETY: as above.
        decode: |tables, object, window, scratch, page| unsafe { decode_v3(tables, object, window, scratch, page) },
    })
}
