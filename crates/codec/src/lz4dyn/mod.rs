//! LZ4 with dynamic offsets.

mod decode;

use crate::{
    Codec, CodecId, Corrupt, Page, Stream, StreamError,
    lz4::{
        encode::{self, Fit},
        format::Dynamic,
        table::{Narrow, Table},
    },
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
        Ok(Box::new(Lz4DynStream { table: Narrow::new() }))
    }
}

struct Lz4DynStream {
    table: Narrow,
}

impl Stream for Lz4DynStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        encode::encode::<Dynamic, _>(&mut self.table, page, out, Fit::All).map(|(_, len)| len)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        decode::decode(object, page)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + Narrow::BYTES
    }
}

#[cfg(test)]
mod tests;
