//! DEFLATE (RFC 1951) by libdeflate: raw blocks, without header or checksum.

use std::fmt;

use libdeflater::{CompressionLvl, Compressor, Decompressor};

use crate::{Codec, CodecId, Corrupt, PAGE_SIZE, Page, Stream, StreamError};

/// Heap bytes of libdeflate's encoder at a level, and of its decoder. libdeflate does not report
/// them; they were measured with `mallinfo2` on 64-bit Linux.
const fn encoder_bytes(level: i32) -> usize {
    match level {
        1 => 200 << 10,
        2..=9 => 656 << 10,
        _ => 8800 << 10,
    }
}
const DECODER_BYTES: usize = 11568;

/// DEFLATE at one level.
#[derive(Clone, Copy)]
pub struct Deflate {
    level: CompressionLvl,
}

impl Deflate {
    /// Returns DEFLATE at `level`, 1 to 12; `None` for any other level.
    pub fn new(level: i32) -> Option<Self> {
        let level = (1..=12).contains(&level).then(|| CompressionLvl::new(level).ok()).flatten()?;
        Some(Self { level })
    }

    fn number(&self) -> i32 {
        self.level.into()
    }
}

impl Default for Deflate {
    /// Returns libdeflate's own default, level 6.
    fn default() -> Self {
        Self { level: CompressionLvl::default() }
    }
}

impl fmt::Debug for Deflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deflate").field("level", &self.number()).finish()
    }
}

impl Codec for Deflate {
    fn id(&self) -> CodecId {
        CodecId::Deflate
    }

    fn is_slow(&self) -> bool {
        self.number() >= 8
    }

    fn name(&self) -> String {
        format!("deflate-{}", self.number())
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(DeflateStream {
            compressor: Compressor::new(self.level),
            decompressor: Decompressor::new(),
            memory_bytes: encoder_bytes(self.number()) + DECODER_BYTES,
        }))
    }
}

struct DeflateStream {
    compressor: Compressor,
    decompressor: Decompressor,
    memory_bytes: usize,
}

impl Stream for DeflateStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.compressor.deflate_compress(page, out).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match self.decompressor.deflate_decompress(object, page) {
            Ok(PAGE_SIZE) => Ok(()),
            Ok(_) => Err(Corrupt { what: "deflate stream is shorter than a page" }),
            Err(_) => Err(Corrupt { what: "malformed deflate stream" }),
        }
    }

    fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}
