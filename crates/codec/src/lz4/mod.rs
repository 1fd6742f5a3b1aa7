//! LZ4's block format (lz4's `doc/lz4_Block_format.md`), interoperable both ways with liblz4.
//!
//! The encoder is tuned for blocks of one page but accepts any length. The decoder can also decode
//! a prefix, or decode in place.

pub(crate) mod copies;
pub(crate) mod decode;
pub(crate) mod encode;
mod fill;
pub(crate) mod format;
pub(crate) mod kind;
pub(crate) mod table;

use std::ops::Range;

use decode::Extent;
use encode::encode;
use format::Plain;
use kind::Kind;
use table::{HASH_FEW, Narrow, Positions};

use crate::{Codec, CodecId, Corrupt, Page, Stream, StreamError, mem::prefetch};

/// LZ4 at its default acceleration.
#[derive(Clone, Copy, Debug)]
pub struct Lz4;

impl Codec for Lz4 {
    fn id(&self) -> CodecId {
        CodecId::Lz4
    }

    fn name(&self) -> String {
        "lz4".to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(Lz4Stream { positions: Positions::new() }))
    }
}

pub(crate) struct Lz4Stream {
    pub(crate) positions: Positions,
}

impl Stream for Lz4Stream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        prefetch(page);
        let table = &mut self.positions;
        match Kind::of(page) {
            Kind::Prose | Kind::Names => encode::<Plain, _>(Narrow::<33, false, true>(table), page, out),
            Kind::Indented | Kind::Source | Kind::Records => {
                encode::<Plain, _>(Narrow::<40, false, true>(table), page, out)
            }
            Kind::Markup => encode::<Plain, _>(Narrow::<44, false, true, HASH_FEW, 0, 48, 32>(table), page, out),
            Kind::Noise => encode::<Plain, _>(Narrow::<48, false, false, HASH_FEW, 0, 24, 64>(table), page, out),
            Kind::Code => encode::<Plain, _>(Narrow::<32, false, false>(table), page, out),
            Kind::Words => encode::<Plain, _>(Narrow::<40, false, false, HASH_FEW>(table), page, out),
            Kind::Memory => encode::<Plain, _>(Narrow::<56, false, false, HASH_FEW, 4, 48, 32>(table), page, out),
            Kind::Pointers => encode::<Plain, _>(Narrow::<56, false, false, HASH_FEW, 4>(table), page, out),
        }
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        decompress(object, page)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + Positions::BYTES
    }
}

/// An LZ4 encoder for blocks of any length: its hash table, 32 KiB, reused for every block.
///
/// The output for a block does not depend on earlier blocks.
pub struct Lz4Encoder {
    positions: Box<fill::Positions>,
}

/// Which matches the encoder searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matches {
    /// Matches of at least 5 bytes, with a table twice as long: up to 3 % fewer bytes for up to 15
    /// % more time than `Short`.
    Most,
    /// Matches of at least 5 bytes.
    Short,
    /// Matches of at least 6 bytes: 5 to 35 % less time and fewer sequences than `Short`. Blocks of
    /// prose and code are up to 5 % longer; others change little.
    Long,
    /// Like `Long`, with a table twice as long: up to 3 % fewer bytes.
    LongMost,
    /// Like `Long`, and of two matches that begin one byte apart takes the longer: 1 to 3 % fewer
    /// sequences and bytes for 10 % more time.
    Longest,
}

impl std::fmt::Debug for Lz4Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lz4Encoder").finish_non_exhaustive()
    }
}

impl Default for Lz4Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Lz4Encoder {
    /// Creates an encoder. Allocates; no later call does.
    pub fn new() -> Self {
        Self { positions: Box::new([0; _]) }
    }

    /// Compresses `input` into the front of `out` and returns the block's length. If the block does
    /// not fit in `out`, returns `None` and `out` holds unspecified bytes. Every input fits in
    /// [`compress_bound`] bytes.
    pub fn compress(&mut self, input: &[u8], out: &mut [u8]) -> Option<usize> {
        let (taken, len) = self.compress_fill(input, out, Matches::Short)?;
        (taken == input.len()).then_some(len)
    }

    /// Compresses as much of the front of `input` as fits in `out`, and returns the number of input
    /// bytes consumed and the block's length. If some of `input` is left, the block's length is
    /// `out.len()`, or one less where no block has that length. Returns `None` if `out` is empty.
    pub fn compress_fill(&mut self, input: &[u8], out: &mut [u8], matches: Matches) -> Option<(usize, usize)> {
        match matches {
            Matches::Most => fill::fill::<40, false, 14>(&mut self.positions, input, out),
            Matches::Short => fill::fill::<40, false, 13>(&mut self.positions, input, out),
            Matches::Long => fill::fill::<48, false, 13>(&mut self.positions, input, out),
            Matches::LongMost => fill::fill::<48, false, 14>(&mut self.positions, input, out),
            Matches::Longest => fill::fill::<48, true, 13>(&mut self.positions, input, out),
        }
    }
}

/// Returns the maximum length of a block for `input_len` bytes of input.
pub const fn compress_bound(input_len: usize) -> usize {
    input_len + input_len / 255 + 16
}

/// Decodes `block` to exactly `out`.
///
/// # Errors
/// [`Corrupt`] if `block` is malformed or does not decode to `out.len()` bytes. `out` then holds
/// unspecified bytes.
pub fn decompress(block: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    match decode::separate(block, out, Extent::Whole)? {
        len if len == out.len() => Ok(()),
        _ => Err(SHORT),
    }
}

/// Decodes the front of `block` until `out` is full, and returns the bytes of output: fewer than
/// `out.len()` only if the block ends. Ignores the rest of `block`.
///
/// # Errors
/// [`Corrupt`] if the part of `block` that was read is malformed. `out` then holds unspecified
/// bytes.
pub fn decompress_partial(block: &[u8], out: &mut [u8]) -> Result<usize, Corrupt> {
    decode::separate(block, out, Extent::Prefix)
}

/// Returns the bytes that the buffer of [`decompress_in_place`] needs beyond the output, for every
/// well-formed block of `block_len` bytes at the buffer's end (liblz4's
/// `LZ4_DECOMPRESS_INPLACE_MARGIN`).
pub const fn in_place_margin(block_len: usize) -> usize {
    (block_len >> 8) + 32
}

/// Decodes a block within its own buffer: `buffer[block]` to exactly `buffer[..out_len]`.
///
/// ```text
/// before   |                                |<----------- block ------------>|
/// buffer   |-----------------------------------------------------------------|
/// after    |<---------------------- out_len -------------------->|<- margin->|
///
/// during   |<- output so far ->|  free  |<- unread input ->|
///                              op       ip
/// ```
///
/// The output grows towards the unread input and must never pass it. It does not if the block is
/// well-formed and ends at least `out_len + in_place_margin(block.len())` bytes into the buffer:
/// the remaining input is longer than the remaining output by at most one byte in 256 plus two.
/// With a smaller margin it may. That is detected, but blocks that come within 21 bytes of it can
/// be rejected too. After the output the buffer holds unspecified bytes up to the block's end.
///
/// # Errors
/// [`Corrupt`] if the block is malformed, does not decode to `out_len` bytes, or would overwrite
/// input not yet read; also if `block` or `out_len` reaches outside `buffer`. `buffer` then holds
/// unspecified bytes.
pub fn decompress_in_place(buffer: &mut [u8], block: Range<usize>, out_len: usize) -> Result<(), Corrupt> {
    match decode::in_place(buffer, block, out_len)? {
        len if len == out_len => Ok(()),
        _ => Err(SHORT),
    }
}

pub(crate) const SHORT: Corrupt = Corrupt { what: "lz4 block is shorter than its output" };

#[cfg(test)]
mod tests;
