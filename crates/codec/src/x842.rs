//! 842, the format of IBM's POWER7+ compression units and of zram's `842`.
//!
//! The implementation is our own, written from the facts of the format below, on which Linux's
//! software 842 and IBM's units agree. The format is designed for hardware, which looks up all
//! phrases of a block in parallel; in software it is here for comparison, as in zram's table of
//! backends.
//!
//! # Format
//!
//! A stream of bits, highest bit first. It consists of templates of 5 bits, each followed by its
//! operands. Each template encodes 8 bytes, a block. Each half of a block, 4 bytes, is encoded in
//! one of five ways:
//!
//! ```text
//! 0   4 bytes as they are                      32 bits
//! 1   2 bytes as they are, then an index       16 + 8 bits
//! 2   an index, then 2 bytes as they are        8 + 16 bits
//! 3   two indices of 2 bytes                    8 + 8 bits
//! 4   an index of 4 bytes                       9 bits
//! ```
//!
//! | template | operands | meaning |
//! |---|---|---|
//! | 5·a + b, 0 to 24 | those of way a, then of way b | the two halves |
//! | 25 | an index of 8 bytes, 8 bits | the block |
//! | 27 | n, 6 bits | the last block n + 1 times more |
//! | 28 | none | 8 zero bytes |
//! | 29 | n, 3 bits, and n bytes | a tail shorter than a block |
//! | 30 | a sum of 32 bits | the end |
//!
//! An index is a place in a ring of the bytes decoded before this block: 256 pairs of bytes, 512
//! fours or 256 eights. The byte decoded at position p is at place p mod the ring's size, in units
//! of the phrase, until it is overwritten. The sum is CRC-32 with the polynomial 0x04c11db7,
//! highest bit first, starting at 0 and not inverted. The stream is padded with zero bits to a
//! multiple of 8 bytes.

mod bits;
mod crc;
mod decode;
mod encode;
mod format;

use crate::{Codec, CodecId, Corrupt, Page, Stream, StreamError};
use encode::Encoder;

/// 842.
#[derive(Clone, Copy, Debug)]
pub struct X842;

impl Codec for X842 {
    fn id(&self) -> CodecId {
        CodecId::X842
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        "842".to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(X842Stream(Encoder::new())))
    }
}

struct X842Stream(Encoder);

impl Stream for X842Stream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.0.compress(page, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        decode::decode(object, page)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + Encoder::HEAP_BYTES
    }
}

#[cfg(test)]
mod tests;
