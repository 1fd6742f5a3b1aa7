//! Zstandard (RFC 8878) by libzstd, with reused contexts and frames without magic number, size or
//! checksum.

mod digested;
mod tables;
pub(crate) mod train;

use std::sync::Arc;

use digested::{Compressor, Digested};
pub use tables::ZstdTables;
use zstd_safe::{CParameter, DCtx, DParameter, FrameFormat};

use crate::{Codec, CodecId, Corrupt, PAGE_SIZE, Page, Stream, StreamError, Tables};

/// Zstandard at one level, with or without a dictionary.
#[derive(Clone, Debug)]
pub struct Zstd {
    level: i32,
    tables: Option<Arc<ZstdTables>>,
}

impl Zstd {
    /// Returns Zstandard at `level`, −7 to 22; `None` for any other level.
    pub fn new(level: i32) -> Option<Self> {
        (-7..=22).contains(&level).then_some(Self { level, tables: None })
    }

    /// Returns the same codec for a store that trains dictionaries. Initially there is no
    /// dictionary, and objects are those of the codec without one.
    pub fn with_dictionaries(self) -> Self {
        Self::with_tables(Arc::new(ZstdTables { level: self.level, digested: None }))
    }

    /// Returns the codec at the tables' level, with their dictionary. It decodes only objects made
    /// with the same dictionary.
    pub fn with_tables(tables: Arc<ZstdTables>) -> Self {
        Self { level: tables.level, tables: Some(tables) }
    }
}

impl Default for Zstd {
    fn default() -> Self {
        Self { level: 3, tables: None }
    }
}

const OUT_OF_MEMORY: StreamError = StreamError { codec: "zstd" };

impl Codec for Zstd {
    fn id(&self) -> CodecId {
        CodecId::Zstd
    }

    fn is_slow(&self) -> bool {
        self.level > 5
    }

    fn name(&self) -> String {
        let dictionary = if self.tables.is_some() { "-dict" } else { "" };
        format!("zstd-{}{dictionary}", self.level)
    }

    fn tables(&self) -> Option<Tables> {
        self.tables.clone().map(Tables::Zstd)
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        let mut compressor = Compressor::new().ok_or(OUT_OF_MEMORY)?;
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
        let digested = self.tables.as_ref().and_then(|tables| tables.digested.clone());
        // libzstd allocates its tables at the first page. This forces that now, outside the hot
        // path.
        let mut stream = ZstdStream { compressor, decompressor, digested };
        let mut page = [0; PAGE_SIZE];
        let mut object = [0; PAGE_SIZE];
        let len = stream.compress(&page, &mut object).ok_or(OUT_OF_MEMORY)?;
        stream.decompress(&object[..len], &mut page).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Box::new(stream))
    }
}

struct ZstdStream {
    compressor: Compressor,
    decompressor: DCtx<'static>,
    digested: Option<Arc<Digested>>,
}

impl Stream for ZstdStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.compressor.compress(self.digested.as_ref(), page, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let page = page.as_mut_slice();
        let decoded = match &self.digested {
            Some(digested) => self.decompressor.decompress_using_ddict(page, object, digested.for_decompression()),
            None => self.decompressor.decompress(page, object),
        };
        match decoded {
            Ok(PAGE_SIZE) => Ok(()),
            Ok(_) => Err(Corrupt { what: "zstd frame is shorter than a page" }),
            Err(_) => Err(Corrupt { what: "malformed zstd frame" }),
        }
    }

    fn set_tables(&mut self, tables: &Tables) {
        if let Tables::Zstd(tables) = tables {
            self.digested.clone_from(&tables.digested);
            // Done now so that nothing refers to the previous dictionary. If libzstd refuses, the
            // next page retries.
            let _: Option<()> = self.compressor.refer(self.digested.as_ref());
        }
    }

    fn memory_bytes(&self) -> usize {
        self.compressor.memory_bytes() + self.decompressor.sizeof()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dictionary;

    /// Holds for every dictionary: libzstd frees memory once a context has had three times its need
    /// for 128 pages.
    #[test]
    fn a_stream_has_all_its_memory_from_the_start() {
        let page: Page = std::array::from_fn(|at| (at * at / 7) as u8);
        for level in [-7, 1, 3, 5, 9, 11, 22] {
            let zstd = Zstd::new(level).unwrap();
            let with = |kib: usize| {
                let dictionary: Vec<u8> = (0..kib << 10).map(|at| ((at * at) >> 5) as u8).collect();
                Tables::Zstd(Arc::new(ZstdTables::new(level, Dictionary::new(dictionary)).unwrap()))
            };
            let none = zstd.clone().with_dictionaries();
            let tables = [none.tables().unwrap(), with(1), with(16), with(60), with(110)];
            for mut stream in [zstd.stream().unwrap(), none.stream().unwrap()] {
                let before = stream.memory_bytes();
                for tables in &tables {
                    stream.set_tables(tables);
                    for _ in 0..150 {
                        let (mut object, mut back) = ([0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
                        let len = stream.compress(&page, &mut object).unwrap();
                        stream.decompress(&object[..len], &mut back).unwrap();
                        assert_eq!((back, stream.memory_bytes()), (page, before), "level {level}");
                    }
                }
            }
        }
    }

    #[test]
    fn tables_count_what_libzstd_holds() {
        let dictionary = Dictionary::new((0..60 << 10).map(|at: usize| ((at * at) >> 5) as u8).collect());
        let bytes = dictionary.bytes().len();
        let tables = ZstdTables::new(3, dictionary).unwrap();
        let digested = tables.digested.as_ref().unwrap();
        // Both refer to the bytes; neither has a copy.
        assert!(digested.for_decompression().sizeof() < bytes);
        assert!(tables.memory_bytes() > bytes + digested.for_decompression().sizeof());
    }

    #[test]
    fn bytes_that_claim_to_be_a_dictionary_of_libzstd_and_are_none() {
        let mut bytes = 0xec30_a437_u32.to_le_bytes().to_vec();
        bytes.extend([9; 100]);
        assert!(ZstdTables::new(1, Dictionary::new(bytes)).is_none());
        // libzstd treats content shorter than 8 bytes as raw.
        assert!(ZstdTables::new(1, Dictionary::new(vec![7; 3])).is_some());
    }
}
