//! LZ4's block format, by liblz4 (see lz4's `doc/lz4_Block_format.md`).

use lzzzz::lz4;

use crate::{Codec, CodecId, Corrupt, PAGE_SIZE, Page, Stream, StreamError};

/// LZ4 at its default acceleration.
#[derive(Clone, Copy, Debug)]
pub struct Lz4;

impl Codec for Lz4 {
    fn id(&self) -> CodecId {
        CodecId::Lz4
    }

    fn name(&self) -> String {
        "lz4".to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(Lz4Stream))
    }
}

struct Lz4Stream;

impl Stream for Lz4Stream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        lz4::compress(page, out, lz4::ACC_LEVEL_DEFAULT).ok().filter(|&len| len > 0)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match lz4::decompress(object, page) {
            Ok(PAGE_SIZE) => Ok(()),
            Ok(_) => Err(Corrupt { what: "lz4 block is shorter than a page" }),
            Err(_) => Err(Corrupt { what: "malformed lz4 block" }),
        }
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}
