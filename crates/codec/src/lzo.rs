//! LZO1X, the format of zram's `lzo`, and its variant with runs of zeros, zram's default `lzo-rle`.
//!
//! The encoder and decoder are our own, written from the description of the format in Linux's
//! `Documentation/staging/lzo.rst`. The streams are LZO1X (bitstream version 0) and LZO-RLE
//! (version 1), interoperable both ways with other implementations. [`mod@format`] has the
//! instructions; [`encode`] and [`decode`] use them.

mod decode;
mod encode;
mod format;

use crate::{Codec, CodecId, Corrupt, Page, Stream, StreamError};
use encode::Encoder;
use format::Version;

/// LZO1X, compressed as LZO1X-1 does: greedily and fast.
#[derive(Clone, Copy, Debug)]
pub struct Lzo(Version);

impl Lzo {
    /// LZO1X: `lzo`.
    pub const PLAIN: Self = Self(Version::Plain);
    /// LZO1X with runs of zeros: `lzo-rle`.
    pub const RUNS: Self = Self(Version::Runs);
}

impl Codec for Lzo {
    fn id(&self) -> CodecId {
        match self.0 {
            Version::Plain => CodecId::Lzo,
            Version::Runs => CodecId::LzoRle,
        }
    }

    fn name(&self) -> String {
        match self.0 {
            Version::Plain => "lzo",
            Version::Runs => "lzo-rle",
        }
        .to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(LzoStream { version: self.0, encoder: Encoder::new() }))
    }
}

struct LzoStream {
    version: Version,
    encoder: Encoder,
}

impl Stream for LzoStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        match self.version {
            Version::Plain => self.encoder.compress::<false>(page, out),
            Version::Runs => self.encoder.compress::<true>(page, out),
        }
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        decode::decode(object, page, self.version)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + Encoder::HEAP_BYTES
    }
}

#[cfg(test)]
mod tests;
