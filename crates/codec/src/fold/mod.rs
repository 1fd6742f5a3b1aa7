//! `fold`: the fast page codec of pagefold. Its format is in `docs/fold.md`; earlier designs, with
//! their figures, are in `docs/log/fold.md`.
//!
//! It is an LZ77 codec for pages of 4 KiB only. Three properties of running programs' pages shape
//! it:
//!
//! - half of all matches have the same distance as one of the two previous ones, so they need no
//!   offset;
//! - the other distances are mostly short and multiples of eight, as records and pointers are;
//! - there are few literals between two matches: the low bytes of a pointer, a counter.
//!
//! Literals come first in an object, common ones in half a byte. A token is one byte and encodes
//! the source of the offset, the number of literals before the match, and the match's length. A
//! stream of bits completes it. Literals, bits and tokens are separate, so that the decoder knows
//! the next token's place before it has examined the current one. In pages like those of heaps,
//! tokens are coded as literals are; the decoder undoes that first.

mod compare;
mod decode;
mod dict;
mod encode;
mod fields;
mod format;
mod hashes;
mod isa;
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
    format::{FIXED, Format},
    isa::Isa,
};
pub use self::{dict::FoldDict, shared::FoldTables};
use crate::{Codec, CodecId, Corrupt, PAGE_SIZE, Page, Stream, StreamError};

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
