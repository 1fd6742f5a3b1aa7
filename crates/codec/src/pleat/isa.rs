//! The encoder and the decoder as the machine runs them best: one algorithm, compiled for x86-64 with BMI2 and AVX2
//! (shifts by a register without flags, lzcnt, wider copies), and for any machine. Both give the same bytes.
#![allow(unsafe_code)] // Calls of functions compiled for instructions that were found present.

use super::{PleatTables, decode, encode, window::Window};
use crate::{Corrupt, Page};

type Encode = fn(&PleatTables, &Window, &mut encode::Scratch, &mut [u8]) -> Option<usize>;
type Decode = fn(&PleatTables, &[u8], &mut Window, &mut decode::Scratch, &mut Page) -> Result<(), Corrupt>;

/// An encoder and a decoder.
#[derive(Clone, Copy)]
pub(super) struct Shims {
    pub(super) encode: Encode,
    pub(super) decode: Decode,
}

impl Shims {
    /// For any machine.
    pub(super) const GENERIC: Self = Self {
        encode: |tables, window, scratch, out| encode::encode(tables, window, scratch, out),
        decode: |tables, object, window, scratch, page| decode::decode(tables, object, window, scratch, page),
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
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn encode_v3(
        tables: &PleatTables,
        window: &Window,
        scratch: &mut encode::Scratch,
        out: &mut [u8],
    ) -> Option<usize> {
        encode::encode(tables, window, scratch, out)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn decode_v3(
        tables: &PleatTables,
        object: &[u8],
        window: &mut Window,
        scratch: &mut decode::Scratch,
        page: &mut Page,
    ) -> Result<(), Corrupt> {
        decode::decode(tables, object, window, scratch, page)
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
