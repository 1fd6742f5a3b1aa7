//! Zstandard clusters (RFC 8878) by libzstd: one frame with its magic number, without checksum, and
//! with its content size (2 or 4 bytes), which erofs-utils requires.

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::search::Search;
use super::{ClusterEncoder, EncoderError, Filled, Portion};
use crate::Corrupt;

pub(super) struct Encoder {
    context: CCtx<'static>,
    search: Search,
}

impl Encoder {
    pub(super) fn new(level: i32, window_log: u32) -> Result<Self, EncoderError> {
        let error = |what| EncoderError { codec: "zstd", what };
        if !(-7..=22).contains(&level) {
            return Err(error("levels are -7 to 22"));
        }
        if !(10..=20).contains(&window_log) {
            return Err(error("window logarithms are 10 to 20"));
        }
        let mut context = CCtx::try_create().ok_or(error("out of memory"))?;
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::WindowLog(window_log),
            CParameter::ContentSizeFlag(true),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            context.set_parameter(parameter).map_err(|_| error("parameter refused"))?;
        }
        Ok(Self { context, search: Search::default() })
    }
}

impl ClusterEncoder for Encoder {
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        self.search.fill(src, dst, |src, dst| self.context.compress2(dst, src).ok())
    }

    fn restart(&mut self) {
        self.search.restart();
    }
}

/// Windows need not exceed the longest content of a cluster, 12 MiB.
const MAX_WINDOW_LOG: u32 = 24;

pub(super) struct Decoder {
    context: DCtx<'static>,
}

impl Decoder {
    pub(super) fn new() -> Result<Self, Corrupt> {
        const NO_CONTEXT: Corrupt = Corrupt { what: "out of memory for a zstd context" };
        let mut context = DCtx::try_create().ok_or(NO_CONTEXT)?;
        // A prefix is decoded through a buffer of the window's length, which the frame specifies.
        context.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG)).map_err(|_| NO_CONTEXT)?;
        Ok(Self { context })
    }

    pub(super) fn decode(&mut self, src: &[u8], dst: &mut [u8], extent: Portion) -> Result<(), Corrupt> {
        const MALFORMED: Corrupt = Corrupt { what: "malformed zstd cluster" };
        const SHORT: Corrupt = Corrupt { what: "zstd cluster is shorter than its extent" };
        if extent == Portion::Whole {
            return match self.context.decompress(dst, src) {
                Ok(len) if len == dst.len() => Ok(()),
                Ok(_) => Err(SHORT),
                Err(_) => Err(MALFORMED),
            };
        }
        self.context.reset(ResetDirective::SessionOnly).map_err(|_| MALFORMED)?;
        let mut input = InBuffer::around(src);
        let wanted = dst.len();
        let mut output = OutBuffer::around(dst);
        while output.pos() < wanted {
            let before = (input.pos(), output.pos());
            let more = self.context.decompress_stream(&mut output, &mut input).map_err(|_| MALFORMED)?;
            if output.pos() < wanted && (more == 0 || before == (input.pos(), output.pos())) {
                return Err(SHORT);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of one stored byte that declares a window of `1 << log` bytes.
    fn frame(log: u8) -> [u8; 10] {
        [0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 0b1001, 0, 0, b'a']
    }

    #[test]
    fn a_window_longer_than_contents_is_refused() {
        let mut decoder = Decoder::new().unwrap();
        let mut byte = [0];
        assert_eq!(decoder.decode(&frame(24), &mut byte, Portion::Prefix), Ok(()));
        assert_eq!(byte, *b"a");
        for log in [25, 27, 31] {
            assert!(decoder.decode(&frame(log), &mut byte, Portion::Prefix).is_err());
        }
    }
}
