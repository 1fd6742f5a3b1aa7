//! `fold`: the fast page codec of pagefold. Its format is in `docs/fold.md`; earlier designs, with
//! their figures, are in `docs/log/fold.md`.
//!
//! It is an LZ77 codec for pages of 4 KiB only. Three properties of running programs' pages shape
//! it:
//!
//! - half of all matches have the same distance as one of the two matches before, so these two need
//!   no offset;
//! - the other distances are mostly short and multiples of eight, as records and pointers are;
//! - there are few literals between two matches: the low bytes of a pointer, a counter.
//!
//! Literals come first in an object, common ones in half a byte. A token is one byte and encodes
//! the source of the offset, the number of literals before the match, and the match's length. A
//! stream of bits completes it. Literals, bits and tokens are separate, so that the decoder knows
//! the next token's place before it has examined the current one. In pages that are like heaps,
//! tokens are coded as literals are, which the decoder undoes first.

mod compare;
mod decode;
mod dict;
mod encode;
mod fields;
mod kind;
mod liblz4;
mod literals;
#[cfg(all(test, not(miri)))]
mod pages;
#[cfg(all(test, not(miri)))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod sequences;
mod shared;
mod stored;
mod tables;
#[cfg(all(test, not(miri)))] // Thousands of pages; Miri takes seconds for each and runs `memory_tests`.
mod tests;
mod tokens;
mod train;
#[cfg(target_arch = "x86_64")]
mod window;

use self::{
    decode::Decoder,
    encode::{BACK, Encoder, FRONT},
    literals::{PALETTES, Palettes},
    tables::{CLASSES, KINDS, Tokens},
};
pub use self::{dict::FoldDict, shared::FoldTables};
use crate::{Codec, CodecId, Corrupt, PAGE_SIZE, Page, Stream, StreamError};

/// The meaning of the numbers of tokens and palettes.
struct Format {
    /// By [`tables::Kind`].
    tokens: [Tokens; KINDS],
    palettes: Palettes,
}

/// The format of pages without tables.
static FIXED: Format = Format {
    tokens: [Tokens::new(&CLASSES[0]), Tokens::new(&CLASSES[1]), Tokens::new(&CLASSES[2]), Tokens::new(&CLASSES[3])],
    palettes: Palettes::new(PALETTES),
};

/// The fast page codec of pagefold.
#[derive(Clone, Copy, Debug)]
pub struct Fold;

impl Codec for Fold {
    fn id(&self) -> CodecId {
        CodecId::Fold
    }

    fn name(&self) -> String {
        "fold".to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(FoldStream::new(Isa::of_this_cpu())))
    }
}

/// Which build of the hot loops a stream runs. All builds give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    /// The features of the compiler's target.
    Portable,
    /// x86-64 with BMI1, BMI2, LZCNT, POPCNT and AVX2: shifts by a register that leave the flags
    /// alone, bit counts without a special case for zero, bit deposit, 32 bytes in one step.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same, with AVX-512 (F, BW, CD, VBMI, VBMI2) for literals, tokens, long matches, and all
    /// of decoding.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    fn of_this_cpu() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("avx2")
        {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vbmi2");
            return if avx512 { Self::Avx512 } else { Self::Avx2 };
        }
        Self::Portable
    }

    /// Returns the builds that this CPU can run.
    #[cfg(any(test, fuzzing))]
    fn all_of_this_cpu() -> Vec<Self> {
        let best = Self::of_this_cpu();
        let mut isas = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        if best == Self::Avx512 {
            isas.push(Self::Avx2);
        }
        if best != Self::Portable {
            isas.push(best);
        }
        isas
    }
}

struct FoldStream {
    encoder: Box<Encoder>,
    decoder: Box<Decoder>,
    /// A page, with the room around it that the encoder needs.
    window: Box<[u8]>,
}

/// Returns a stream of each build that this CPU can run.
#[cfg(any(test, fuzzing))]
pub(crate) fn streams_of_every_build() -> Vec<Box<dyn Stream>> {
    Isa::all_of_this_cpu().into_iter().map(|isa| Box::new(FoldStream::new(isa)) as Box<dyn Stream>).collect()
}

/// Does the same with these tables.
#[cfg(any(test, fuzzing))]
pub(crate) fn streams_of_every_build_with(tables: &std::sync::Arc<FoldTables>) -> Vec<Box<dyn Stream>> {
    let stream = |isa| Box::new(dict::FoldDictStream::new(isa, std::sync::Arc::clone(tables))) as Box<dyn Stream>;
    Isa::all_of_this_cpu().into_iter().map(stream).collect()
}

impl FoldStream {
    fn new(isa: Isa) -> Self {
        Self {
            encoder: Encoder::new(isa),
            decoder: Decoder::new(isa, &FIXED),
            window: vec![0; FRONT + PAGE_SIZE + BACK].into_boxed_slice(),
        }
    }
}

impl Stream for FoldStream {
    /// Also returns `None` if the page does not compress, since an object is always shorter than a
    /// page.
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.encoder.encode(&FIXED, &mut self.window, page, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.decoder.decode(&FIXED, object, page)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.encoder.memory_bytes() + self.decoder.memory_bytes() + self.window.len()
    }
}
