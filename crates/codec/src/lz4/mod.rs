//! LZ4's block format (lz4's `doc/lz4_Block_format.md`), interoperable both ways with liblz4.
//!
//! The encoder is made for blocks of one page, and takes any; the decoder also decodes a part, and
//! in place.

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

/// An LZ4 encoder for blocks of any length: its hash table, 32 KiB, used again for every block.
///
/// What a block compresses to does not depend on the blocks before it.
pub struct Lz4Encoder {
    positions: Box<fill::Positions>,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matches {
    /// Matches of 5 bytes and more, in a table of twice the length: 0.97 to 1.0 of the bytes and
    /// 1.0 to 1.15 of the time.
    Most,
    /// Matches of 5 bytes and more.
    Short,
    /// Matches of 6 bytes and more: 0.65 to 0.95 of the time and of the sequences. Blocks of prose
    /// and code are up to 5 % longer, others hardly longer or shorter.
    Long,
    /// As `Long`, in a table of twice the length: 0.97 to 1.0 of the bytes.
    LongMost,
    /// As `Long`, and of two that begin a byte apart the longer: 1 to 3 % fewer sequences and bytes
    /// for a tenth of the time.
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
    /// A new encoder. Allocates; nothing later does.
    pub fn new() -> Self {
        Self { positions: Box::new([0; _]) }
    }

    /// Compresses `input` into the front of `out` and returns the block's length. `None`: the block
    /// would be longer than `out`, which then holds unspecified bytes. With `out` of
    /// [`compress_bound`] bytes every input fits.
    pub fn compress(&mut self, input: &[u8], out: &mut [u8]) -> Option<usize> {
        let (taken, len) = self.compress_fill(input, out, Matches::Short)?;
        (taken == input.len()).then_some(len)
    }

    /// Compresses as much of the front of `input` as fits `out`, and returns the bytes taken of
    /// `input` and the block's length. If not all of `input` was taken, the block's length is
    /// `out.len()`, or one less where no block has that length. `None`: `out` is empty.
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

/// The most bytes that a block of `input_len` bytes of input can have.
pub const fn compress_bound(input_len: usize) -> usize {
    input_len + input_len / 255 + 16
}

/// Decodes `block` to exactly `out`.
///
/// # Errors
/// [`Corrupt`] if `block` is malformed or has another length than `out`. `out` then holds unspecified bytes.
pub fn decompress(block: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    match decode::separate(block, out, Extent::Whole)? {
        len if len == out.len() => Ok(()),
        _ => Err(SHORT),
    }
}

/// Decodes the front of `block` until `out` is full, and returns the bytes of output: fewer than
/// `out.len()` only if the block ends. What follows in `block` is not looked at.
///
/// # Errors
/// [`Corrupt`] if `block` is malformed as far as it was read. `out` then holds unspecified bytes.
pub fn decompress_partial(block: &[u8], out: &mut [u8]) -> Result<usize, Corrupt> {
    decode::separate(block, out, Extent::Prefix)
}

/// Bytes that the buffer of [`decompress_in_place`] needs beyond the output for every well-formed
/// block of `block_len` bytes at the buffer's end (liblz4's `LZ4_DECOMPRESS_INPLACE_MARGIN`).
pub const fn in_place_margin(block_len: usize) -> usize {
    (block_len >> 8) + 32
}

/// Decodes a block in the buffer it lies in: `buffer[block]` to exactly `buffer[..out_len]`.
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
/// The output grows towards the unread input and may never pass it. It does not for a well-formed
/// block that ends `out_len + in_place_margin(block.len())` bytes or more into the buffer: what is
/// left of the input is longer than what is left of the output by a byte in 256 and two, at most.
/// With less of a margin it may; that is found out, but a block that comes within 21 bytes of it
/// can be refused too. Behind the output the buffer holds unspecified bytes, up to the block's end.
///
/// # Errors
/// [`Corrupt`] if the block is malformed, has another length than `out_len`, or would overwrite input not yet read; also if
/// `block` or `out_len` reach outside `buffer`. `buffer` then holds unspecified bytes.
pub fn decompress_in_place(buffer: &mut [u8], block: Range<usize>, out_len: usize) -> Result<(), Corrupt> {
    match decode::in_place(buffer, block, out_len)? {
        len if len == out_len => Ok(()),
        _ => Err(SHORT),
    }
}

pub(crate) const SHORT: Corrupt = Corrupt { what: "lz4 block is shorter than its output" };

#[cfg(test)]
mod tests;
