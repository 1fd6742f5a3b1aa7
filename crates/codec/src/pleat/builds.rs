//! The encoder and decoder in their fastest form for the machine: one algorithm, compiled for any
//! machine and for some instructions of x86-64. All builds give the same bytes.
#![allow(unsafe_code)] // Calls functions compiled for instructions that were detected.

#[cfg(test)]
pub(super) use self::of_literals::every as literal_decoders;
use super::{PleatTables, decode, encode, isa::Generic, window::Window};
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
    /// The build for any machine.
    pub(super) const GENERIC: Self = Self {
        encode: |tables, window, scratch, out| encode::encode::<Generic>(tables, window, scratch, out),
        decode: |tables, object, window, scratch, page| {
            decode::decode::<Generic>(tables, object, window, scratch, page)
        },
    };

    /// Returns the builds that this machine can run, the fastest last.
    pub(super) fn every() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let others = x86::every();
        #[cfg(not(target_arch = "x86_64"))]
        let others = [None; 0];
        std::iter::once(Self::GENERIC).chain(others.into_iter().flatten())
    }

    /// Returns the fastest build for this machine.
    pub(super) fn best() -> Self {
        Self::every().last().unwrap_or(Self::GENERIC)
    }
}

/// The builds with BMI2 and AVX2 (shifts by a register without flags, lzcnt, wider copies), and one
/// that also decodes sixteen lanes of literals by gathering.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{super::x86::X86, Corrupt, Encode, Page, PleatTables, Shims, Window, decode, encode};

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
    fn encode_avx2(
        tables: &PleatTables,
        window: &Window,
        scratch: &mut encode::Scratch,
        out: &mut [u8],
    ) -> Option<usize> {
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
    pub(super) fn detected() -> [bool; 2] {
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
    pub(super) fn every() -> [Option<Shims>; 2] {
        let [avx2, gathering] = detected();
        // SAFETY: these functions only become pointers where every instruction that they were compiled
        // for was detected; so for the others.
        let encode: Encode = |tables, window, scratch, out| unsafe { encode_avx2(tables, window, scratch, out) };
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
}

/// Each build's decoder of literals.
#[cfg(test)]
mod of_literals {
    use super::{
        super::{
            bits::Room,
            lanes::Bounds,
            literals::{self, Literals, Sixteen},
            tables::LiteralSet,
        },
        Corrupt, Generic,
    };

    /// Decodes the literals of an object; see [`literals::decode`].
    pub(in super::super) type DecodeLiterals =
        fn(&LiteralSet, &Room, &Bounds, &mut Literals, usize) -> Result<(), Corrupt>;

    fn decode_literals<S: Sixteen>(
        set: &LiteralSet,
        room: &Room,
        bounds: &Bounds,
        literals: &mut Literals,
        count: usize,
    ) -> Result<(), Corrupt> {
        literals::decode::<S, _>(&set.decode, set.first(), room, bounds, literals, count, || ())
    }

    /// Returns each build's decoder of literals, of those that this machine can run.
    pub(in super::super) fn every() -> Vec<DecodeLiterals> {
        #[cfg(target_arch = "x86_64")]
        let others = {
            use super::{super::x86::X86, x86::detected};
            let builds: [DecodeLiterals; 2] = [decode_literals::<X86<false>>, decode_literals::<X86<true>>];
            builds.into_iter().zip(detected()).filter_map(|(build, detected)| detected.then_some(build))
        };
        #[cfg(not(target_arch = "x86_64"))]
        let others = [];
        std::iter::once(decode_literals::<Generic> as DecodeLiterals).chain(others).collect()
    }
}
