//! LZ4 clusters: our own fast encoder, liblz4's search for LZ4HC.

use lzzzz::lz4_hc;

use super::{ClusterEncoder, EncoderError, Extent, Filled};
use crate::Corrupt;
use crate::lz4::{Lz4Encoder, Matches, decompress, decompress_partial};

#[derive(Default)]
pub(super) struct Fast {
    encoder: Lz4Encoder,
    /// Bytes that the last cluster held; 0 before the first.
    last_consumed: usize,
}

/// Inputs up to this are searched with a table that needs no reckoning with what is out of an offset's reach.
const SHORT: usize = 1 << 16;

impl ClusterEncoder for Fast {
    /// Where the last cluster held clearly less than a short input, that much is tried first: in 0.8 to 0.9 of the time. If
    /// that is not enough for this cluster the work was in vain, so that a try is made only where it has promise.
    ///
    /// Where it held less than 1.5 times its own length, matches are few and short, and each is looked for. Elsewhere longer ones
    /// do: beside liblz4, clusters of 64 KiB then take 0.76 to 1.0 of the time and 0.94 to 1.007 of the bytes. Always
    /// with short ones it was 0.91 to 1.04 and 0.94 to 0.99; always with long ones up to 1.02 of the bytes.
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        let promising =
            if self.last_consumed == 0 { dst.len() <= SHORT / 4 } else { self.last_consumed <= SHORT / 4 * 3 };
        let mut filled = None;
        if promising && let Some(short) = src.get(..SHORT) {
            filled = self.encoder.compress_fill(short, dst, Matches::Short).filter(|(consumed, _)| *consumed < SHORT);
        }
        let filled = match filled {
            Some(filled) => filled,
            None => {
                let few = self.last_consumed > 0 && self.last_consumed < dst.len() / 2 * 3;
                self.encoder.compress_fill(src, dst, if few { Matches::Short } else { Matches::Long })?
            }
        };
        self.last_consumed = filled.0;
        gained(filled)
    }

    fn restart(&mut self) {
        self.last_consumed = 0;
    }
}

pub(super) struct High {
    level: i32,
}

impl High {
    pub(super) fn new(level: i32) -> Result<Self, EncoderError> {
        if (1..=12).contains(&level) {
            Ok(Self { level })
        } else {
            Err(EncoderError { codec: "lz4hc", what: "levels are 1 to 12" })
        }
    }
}

impl ClusterEncoder for High {
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        gained(lz4_hc::compress_fill(src, dst, self.level).ok()?)
    }
}

fn gained((consumed, written): (usize, usize)) -> Option<Filled> {
    (written > 0 && written < consumed).then_some(Filled { consumed, written })
}

pub(super) fn decode(src: &[u8], dst: &mut [u8], extent: Extent) -> Result<(), Corrupt> {
    match extent {
        Extent::Whole => decompress(src, dst),
        Extent::Prefix => match decompress_partial(src, dst)? {
            len if len == dst.len() => Ok(()),
            _ => Err(Corrupt { what: "lz4 cluster is shorter than its extent" }),
        },
    }
}
