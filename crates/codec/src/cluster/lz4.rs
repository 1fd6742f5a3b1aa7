//! LZ4 clusters: our own fast encoder, liblz4's search for LZ4HC.

use lzzzz::lz4_hc;

use super::{ClusterEncoder, EncoderError, Extent, Filled};
use crate::Corrupt;
use crate::lz4::table::{Narrow, Table};
use crate::lz4::{Lz4Encoder, decompress, decompress_partial};

#[derive(Default)]
pub(super) struct Fast {
    encoder: Lz4Encoder,
}

impl ClusterEncoder for Fast {
    /// Inputs up to 64 KiB are searched with a table of narrow entries, which has twice as many in the same memory and
    /// finds more matches. Short clusters, which seldom hold more, are tried with that much first.
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        if dst.len() <= Narrow::MAX_INPUT / 4
            && let Some(short) = src.get(..Narrow::MAX_INPUT)
        {
            let (consumed, written) = self.encoder.compress_fill(short, dst)?;
            if consumed < short.len() {
                return gained((consumed, written));
            }
        }
        gained(self.encoder.compress_fill(src, dst)?)
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
