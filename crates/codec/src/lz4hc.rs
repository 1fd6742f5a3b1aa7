//! LZ4's block format by liblz4's high-compression encoder (lz4's `lib/lz4hc.h`). Any LZ4 decoder
//! reads its objects, so they have LZ4's id.

use lzzzz::lz4_hc;

use crate::{Codec, CodecId, Corrupt, Lz4, Page, Stream, StreamError};

/// Size of liblz4's encoder state (`LZ4_STREAMHCSIZE`), one per thread.
const STATE_BYTES: usize = 4 * (1 << 15) + 2 * (1 << 16) + 56;

/// LZ4 by liblz4's high-compression encoder, at one level.
#[derive(Clone, Copy, Debug)]
pub struct Lz4Hc {
    level: i32,
}

impl Lz4Hc {
    /// Returns the encoder at `level`, 1 to 12; `None` for any other level.
    pub fn new(level: i32) -> Option<Self> {
        (1..=lz4_hc::CLEVEL_MAX).contains(&level).then_some(Self { level })
    }

    /// Compresses all of `input` into the front of `out` and returns the block's length. If it does
    /// not fit, returns `None` and `out` holds unspecified bytes. A block holds at most
    /// 2,113,929,216 bytes of input.
    pub fn compress(&self, input: &[u8], out: &mut [u8]) -> Option<usize> {
        lz4_hc::compress(input, out, self.level).ok().filter(|&len| len > 0)
    }

    /// Compresses as much of the front of `input` as fits in `out`, and returns the number of input
    /// bytes consumed and the block's length. Returns `None` if nothing fits.
    pub fn compress_fill(&self, input: &[u8], out: &mut [u8]) -> Option<(usize, usize)> {
        lz4_hc::compress_fill(input, out, self.level).ok().filter(|&(_, len)| len > 0)
    }
}

impl Default for Lz4Hc {
    /// Returns liblz4's own default, level 9.
    fn default() -> Self {
        Self { level: lz4_hc::CLEVEL_DEFAULT }
    }
}

impl Codec for Lz4Hc {
    fn id(&self) -> CodecId {
        CodecId::Lz4
    }

    fn is_slow(&self) -> bool {
        self.level >= 10
    }

    fn name(&self) -> String {
        format!("lz4hc-{}", self.level)
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(Lz4HcStream { encoder: *self, decoder: Lz4.stream()? }))
    }
}

struct Lz4HcStream {
    encoder: Lz4Hc,
    decoder: Box<dyn Stream>,
}

impl Stream for Lz4HcStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.encoder.compress(page, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.decoder.decompress(object, page)
    }

    fn memory_bytes(&self) -> usize {
        STATE_BYTES + self.decoder.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use lzzzz::lz4;

    use super::*;

    fn text(len: usize) -> Vec<u8> {
        (0..)
            .flat_map(|line: u32| format!("line {line} of {}\n", line.wrapping_mul(2_654_435_761) % 999).into_bytes())
            .take(len)
            .collect()
    }

    #[test]
    fn higher_levels_are_not_larger_and_any_decoder_reads_them() {
        let input = text(65536);
        let mut last = usize::MAX;
        for level in [1, 4, 9, 12] {
            let mut out = vec![0; 70000];
            let len = Lz4Hc::new(level).unwrap().compress(&input, &mut out).unwrap();
            assert!(len <= last, "level {level} makes {len} bytes, a lower one {last}");
            last = len;
            let mut back = vec![0; input.len()];
            assert_eq!(lz4::decompress(&out[..len], &mut back).unwrap(), input.len());
            assert_eq!(back, input);
        }
    }

    #[test]
    fn fixed_output_is_filled() {
        let input = text(65536);
        for room in [64, 1000, 4096] {
            let mut out = vec![0; room];
            let (taken, len) = Lz4Hc::default().compress_fill(&input, &mut out).unwrap();
            assert!(taken < input.len() && len <= room && len + 16 >= room, "{taken} bytes in {len} of {room}");
            let mut back = vec![0; taken];
            assert_eq!(lz4::decompress(&out[..len], &mut back).unwrap(), taken);
            assert_eq!(back, input[..taken]);
        }
    }

    #[test]
    fn levels_that_do_not_exist_are_refused() {
        assert!(Lz4Hc::new(0).is_none() && Lz4Hc::new(13).is_none());
    }
}
