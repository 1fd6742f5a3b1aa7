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
            compressor.load_dictionary(dictionary.bytes()).map_err(|_| OUT_OF_MEMORY)?;
            decompressor.load_dictionary(dictionary.bytes()).map_err(|_| OUT_OF_MEMORY)?;
        }
        // libzstd makes its tables, and digests a dictionary, at the first page. That is now, outside the hot path.
        let mut stream = ZstdStream { compressor, decompressor };
        let mut page = [0; PAGE_SIZE];
        let mut object = [0; PAGE_SIZE];
        let len = stream.compress(&page, &mut object).ok_or(OUT_OF_MEMORY)?;
        stream.decompress(&object[..len], &mut page).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Box::new(stream))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_all_its_memory_from_the_start() {
        for level in [-7, 1, 3, 9, 22] {
            let mut stream = Zstd::new(level).unwrap().stream().unwrap();
            let before = stream.memory_bytes();
            let page: Page = std::array::from_fn(|at| (at * at / 7) as u8);
            let (mut object, mut back) = ([0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
            let len = stream.compress(&page, &mut object).unwrap();
            stream.decompress(&object[..len], &mut back).unwrap();
            assert_eq!((back, stream.memory_bytes()), (page, before), "level {level}");
        }
    }
}
