//! Zstandard (RFC 8878) by libzstd, with contexts that are used again and frames without magic number, size or sum.

use std::sync::Arc;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

use crate::{Codec, CodecId, Corrupt, Dictionary, PAGE_SIZE, Page, Stream, StreamError};

/// Zstandard at one level, with a dictionary or without.
#[derive(Clone, Debug)]
pub struct Zstd {
    level: i32,
    dictionary: Option<Arc<Dictionary>>,
}

impl Zstd {
    /// Zstandard at `level`, −7 to 22; `None` outside that.
    pub fn new(level: i32) -> Option<Self> {
        (-7..=22).contains(&level).then_some(Self { level, dictionary: None })
    }

    /// The same with `dictionary`. Its objects can be decoded with that dictionary only, and do not name it: whoever keeps
    /// them keeps the dictionary and its id.
    pub fn with_dictionary(self, dictionary: Arc<Dictionary>) -> Self {
        Self { dictionary: Some(dictionary), ..self }
    }
}

impl Default for Zstd {
    fn default() -> Self {
        Self { level: 3, dictionary: None }
    }
}

const OUT_OF_MEMORY: StreamError = StreamError { codec: "zstd" };

impl Codec for Zstd {
    fn id(&self) -> CodecId {
        CodecId::Zstd
    }

    fn name(&self) -> String {
        let dictionary = if self.dictionary.is_some() { "-dict" } else { "" };
        format!("zstd-{}{dictionary}", self.level)
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        let mut compressor = CCtx::try_create().ok_or(OUT_OF_MEMORY)?;
        for parameter in [
            CParameter::CompressionLevel(self.level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            compressor.set_parameter(parameter).map_err(|_| OUT_OF_MEMORY)?;
        }
        let mut decompressor = DCtx::try_create().ok_or(OUT_OF_MEMORY)?;
        decompressor.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| OUT_OF_MEMORY)?;
        if let Some(dictionary) = &self.dictionary {
            // Digested once, at the first page, and used from then on.
            compressor.load_dictionary(dictionary.bytes()).map_err(|_| OUT_OF_MEMORY)?;
            decompressor.load_dictionary(dictionary.bytes()).map_err(|_| OUT_OF_MEMORY)?;
        }
        Ok(Box::new(ZstdStream { compressor, decompressor }))
    }
}

struct ZstdStream {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
}

impl Stream for ZstdStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.compressor.compress2(out, page.as_slice()).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match self.decompressor.decompress(page.as_mut_slice(), object) {
            Ok(PAGE_SIZE) => Ok(()),
            Ok(_) => Err(Corrupt { what: "zstd frame is shorter than a page" }),
            Err(_) => Err(Corrupt { what: "malformed zstd frame" }),
        }
    }

    fn memory_bytes(&self) -> usize {
        self.compressor.sizeof() + self.decompressor.sizeof()
    }
}
