//! LZ4 with dynamic offsets.

mod decode;

use crate::{
    Codec, CodecId, Corrupt, Page, Stream, StreamError,
    lz4::{
        encode::encode,
        format::Dynamic,
        kind::Kind,
        table::{HASH, Narrow, Positions},
    },
    mem::prefetch,
};

/// LZ4 with offsets of one or two bytes.
#[derive(Clone, Copy, Debug)]
pub struct Lz4Dyn;

impl Codec for Lz4Dyn {
    fn id(&self) -> CodecId {
        CodecId::Lz4Dyn
    }

    fn name(&self) -> String {
        "lz4dyn".to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(Lz4DynStream { positions: Positions::new() }))
    }
}

struct Lz4DynStream {
    positions: Positions,
}

impl Stream for Lz4DynStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        prefetch(page);
        let table = &mut self.positions;
        match Kind::of(page) {
            Kind::Prose | Kind::Indented | Kind::Noise => {
                encode::<Dynamic, _>(Narrow::<33, true, true>(table), page, out)
            }
            Kind::Source | Kind::Markup => encode::<Dynamic, _>(Narrow::<40, false, true, HASH, 5>(table), page, out),
            Kind::Code | Kind::Names | Kind::Records => {
                encode::<Dynamic, _>(Narrow::<32, true, true>(table), page, out)
            }
            Kind::Words | Kind::Memory => encode::<Dynamic, _>(Narrow::<36, true, false>(table), page, out),
            Kind::Pointers => encode::<Dynamic, _>(Narrow::<48, false, true, HASH, 4>(table), page, out),
        }
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        decode::decode(object, page)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + Positions::BYTES
    }
}

#[cfg(test)]
mod tests;
