//! The encoder.
//!
//! ```text
//! for each block:
//!     same as the previous block: count it
//!     zeros: use the template for zeros
//!     the 8 bytes are in their ring: write their index
//!     otherwise, for each half: the 4 bytes' index; else each 2 bytes' index, or the bytes
//!     remember the block's phrases
//! ```
//!
//! The two halves are independent, so each takes the shortest of its five ways. Tables by hash hold
//! the last position of each phrase. An empty entry is position 0, a candidate like any other,
//! since the bytes there are compared.

use super::{
    bits::BitWriter,
    crc::crc32,
    format::{
        BLOCK, END, INDEX2_BITS, INDEX4_BITS, INDEX8_BITS, REPEAT, REPEAT_BITS, RING2, RING4, RING8, SUM_BITS,
        TEMPLATE_BITS, WHOLE, ZEROS,
    },
};
use crate::{PAGE_SIZE, Page};

/// Logarithms of the tables' sizes: a page has 2048 pairs of bytes, 1024 fours and 512 eights.
const TWO_BITS: u32 = 12;
const FOUR_BITS: u32 = 10;
const EIGHT_BITS: u32 = 10;

/// Maximum number of blocks that one template repeats.
const REPEAT_MOST: u64 = 1 << REPEAT_BITS;

/// The last position of each phrase, by hash.
#[derive(Default)]
pub(super) struct Encoder {
    tables: Box<Tables>,
}

struct Tables {
    two: [u16; 1 << TWO_BITS],
    four: [u16; 1 << FOUR_BITS],
    eight: [u16; 1 << EIGHT_BITS],
}

impl Default for Tables {
    fn default() -> Self {
        Self { two: [0; 1 << TWO_BITS], four: [0; 1 << FOUR_BITS], eight: [0; 1 << EIGHT_BITS] }
    }
}

/// Half a block, ready to be written.
struct Half {
    way: u64,
    operands: u64,
    bits: u32,
}

impl Encoder {
    pub(super) const HEAP_BYTES: usize = size_of::<Tables>();

    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Compresses `page` into `out` and returns the stream's length, a multiple of 8, or `None` if
    /// it does not fit.
    pub(super) fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        *self.tables = Tables::default();
        let mut writer = BitWriter::new(out);
        let (blocks, _) = page.as_chunks::<BLOCK>();
        let mut last = None;
        let mut repeats = 0;
        for (index, bytes) in blocks.iter().enumerate() {
            let block = u64::from_be_bytes(*bytes);
            if last == Some(block) {
                repeats += 1;
                if repeats == REPEAT_MOST {
                    write_repeats(&mut writer, &mut repeats);
                }
                continue;
            }
            write_repeats(&mut writer, &mut repeats);
            if writer.is_overrun() {
                return None;
            }
            let at = index * BLOCK;
            if block == 0 {
                writer.write(ZEROS, TEMPLATE_BITS);
            } else if let Some(index) =
                ring_index::<8, RING8>(page, block, self.tables.eight[hash::<EIGHT_BITS>(block)], at)
            {
                writer.write(WHOLE, TEMPLATE_BITS);
                writer.write(index, INDEX8_BITS);
            } else {
                let high = self.half(page, block >> 32, at);
                let low = self.half(page, block & 0xffff_ffff, at);
                writer.write(5 * high.way + low.way, TEMPLATE_BITS);
                writer.write(high.operands, high.bits);
                writer.write(low.operands, low.bits);
            }
            self.remember(block, at);
            last = Some(block);
        }
        write_repeats(&mut writer, &mut repeats);
        writer.write(END, TEMPLATE_BITS);
        writer.write(u64::from(crc32(page)), SUM_BITS);
        writer.finish()
    }

    /// Returns the shortest encoding of a half of the block at `at`.
    #[inline(always)]
    fn half(&self, page: &Page, half: u64, at: usize) -> Half {
        if let Some(index) = ring_index::<4, RING4>(page, half, self.tables.four[hash::<FOUR_BITS>(half)], at) {
            return Half { way: 4, operands: index, bits: INDEX4_BITS };
        }
        let (high, low) = (half >> 16, half & 0xffff);
        let two = |pair| ring_index::<2, RING2>(page, pair, self.tables.two[hash::<TWO_BITS>(pair)], at);
        match (two(high), two(low)) {
            (Some(high), Some(low)) => Half { way: 3, operands: high << INDEX2_BITS | low, bits: 2 * INDEX2_BITS },
            (Some(high), None) => Half { way: 2, operands: high << 16 | low, bits: INDEX2_BITS + 16 },
            (None, Some(low)) => Half { way: 1, operands: high << INDEX2_BITS | low, bits: 16 + INDEX2_BITS },
            (None, None) => Half { way: 0, operands: half, bits: 32 },
        }
    }

    #[inline(always)]
    fn remember(&mut self, block: u64, at: usize) {
        self.tables.eight[hash::<EIGHT_BITS>(block)] = at as u16;
        for part in 0..2 {
            self.tables.four[hash::<FOUR_BITS>(block >> (32 - 32 * part) & 0xffff_ffff)] = (at + 4 * part) as u16;
        }
        for part in 0..4 {
            self.tables.two[hash::<TWO_BITS>(block >> (48 - 16 * part) & 0xffff)] = (at + 2 * part) as u16;
        }
    }
}

fn write_repeats(writer: &mut BitWriter, repeats: &mut u64) {
    if *repeats != 0 {
        writer.write(REPEAT, TEMPLATE_BITS);
        writer.write(*repeats - 1, REPEAT_BITS);
        *repeats = 0;
    }
}

#[inline(always)]
fn hash<const BITS: u32>(phrase: u64) -> usize {
    (phrase.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize
}

/// Returns the index of `phrase`, of `N` bytes, in a ring of `RING` bytes, if it is at `from` and
/// still in the ring when `at` bytes are done.
#[inline(always)]
fn ring_index<const N: usize, const RING: usize>(page: &Page, phrase: u64, from: u16, at: usize) -> Option<u64> {
    let from = usize::from(from);
    let there: &[u8; N] = page.get(from..)?.first_chunk()?;
    let there = there.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
    (there == phrase && from < at && from + RING >= at).then_some((from % RING / N) as u64)
}

const _: () = assert!(PAGE_SIZE.is_multiple_of(BLOCK));
