//! Raw DEFLATE clusters (RFC 1951) by libdeflate.

use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

use super::search::Search;
use super::{ClusterEncoder, EncoderError, Filled, Portion};
use crate::Corrupt;

pub(super) struct Encoder {
    compressor: Compressor,
    search: Search,
}

impl Encoder {
    pub(super) fn new(level: i32) -> Result<Self, EncoderError> {
        let out_of_range = |_| EncoderError { codec: "deflate", what: "levels are 1 to 12" };
        if level < 1 {
            return Err(EncoderError { codec: "deflate", what: "levels are 1 to 12" });
        }
        let level = CompressionLvl::new(level).map_err(out_of_range)?;
        Ok(Self { compressor: Compressor::new(level), search: Search::default() })
    }
}

impl ClusterEncoder for Encoder {
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        self.search.fill(src, dst, |src, dst| self.compressor.deflate_compress(src, dst).ok())
    }

    fn restart(&mut self) {
        self.search.restart();
    }
}

pub(super) struct Decoder {
    decompressor: Decompressor,
    longer: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { decompressor: Decompressor::new(), longer: Vec::new() }
    }
}

impl Decoder {
    /// Decodes `src` into `dst`. libdeflate decodes all or nothing, so a prefix is found by
    /// decoding the whole into a buffer that doubles up to `max_content_bytes`.
    pub(super) fn decode(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        extent: Portion,
        max_content_bytes: usize,
    ) -> Result<(), Corrupt> {
        const MALFORMED: Corrupt = Corrupt { what: "malformed deflate cluster" };
        match self.decompressor.deflate_decompress(src, dst) {
            Ok(len) if len == dst.len() => return Ok(()),
            Ok(_) => return Err(Corrupt { what: "deflate cluster is shorter than its extent" }),
            Err(DecompressionError::InsufficientSpace) if extent == Portion::Prefix => {}
            Err(_) => return Err(MALFORMED),
        }
        let mut room = dst.len();
        while room < max_content_bytes {
            room = room.saturating_mul(2).clamp(4096, max_content_bytes);
            self.longer.resize(room, 0);
            match self.decompressor.deflate_decompress(src, &mut self.longer) {
                Ok(_) => {
                    dst.copy_from_slice(&self.longer[..dst.len()]);
                    self.longer.truncate(0);
                    return Ok(());
                }
                Err(DecompressionError::InsufficientSpace) => {}
                Err(_) => return Err(MALFORMED),
            }
        }
        Err(Corrupt { what: "deflate cluster exceeds the maximum content size" })
    }
}
