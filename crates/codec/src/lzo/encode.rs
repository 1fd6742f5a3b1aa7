//! The encoder: greedy, with one candidate per position, as LZO1X-1 is designed.
//!
//! ```text
//! loop: hash the next 4 bytes; the table has the position where that hash was last seen
//!       if the same 4 bytes are there: write the preceding literals, then the longest match
//!       otherwise: advance, in wider steps the longer nothing is found
//! write the remaining literals and the end
//! ```
//!
//! Deviations for speed, and alternatives tried (compared on six kinds of data with liblzo2 2.10's
//! `lzo1x_1_compress`: this encoder's output is up to 2 % smaller, at 1.01 to 1.04× the speed):
//!
//! 1. An empty entry of the table is position 0, a candidate like any other, so the loop has one
//!    branch that is hard to predict. Marking entries by page, without clearing, is slower by a
//!    sixth: one more condition in the loop.
//! 2. An instruction is written together with the literals after it, and its form is selected
//!    without a branch: 5 %.
//! 3. The stream is written to a buffer that holds the worst case, with one check of the caller's
//!    room per match, then copied.
//! 4. Matches are not extended backwards: that would save 1 to 1.5 % of the bytes for 2 to 12 % of
//!    the speed.

use super::format::{
    END, FAR_LENGTH, FIRST_LITERALS, NEAR_DISTANCE, NEAR_LENGTH, RUNS_HEADER, ZEROS_LEAST, ZEROS_MOST,
};
use crate::{PAGE_SIZE, Page};

/// Entries of the table: 16 KiB. With 12 bits, output grows by 0.5 % and speed does not.
const TABLE_BITS: u32 = 13;

/// Maximum length of a page's stream. Only runs of at least 19 literals before a match of 4 cost
/// more than the bytes that they encode: the run's length takes 2 bytes plus 1 for each 255, the
/// match 3. That is 1 byte in 23. A sixteenth covers it; the rest is for the header, the first run
/// and the end.
const BOUND: usize = PAGE_SIZE + PAGE_SIZE / 16 + 64;

/// Room past the worst case, for literals copied in whole words.
const SLACK: usize = 32;

/// Bytes copied together.
const WORD: usize = 16;

/// Minimum length of a match.
const LEAST: usize = 4;

/// Logarithm of the number of bytes without a match after which the step grows by one.
const SKIP_BITS: u32 = 5;

/// Minimum length of a run of zeros that is encoded as such: a shorter one costs no more as a match
/// at distance 1.
const ZEROS_WORTH: usize = 34;

/// The encoder's state: all of its memory.
pub(super) struct Encoder {
    table: Box<[u16; 1 << TABLE_BITS]>,
    buffer: Box<[u8; BOUND + SLACK]>,
}

impl Encoder {
    pub(super) const HEAP_BYTES: usize = size_of::<[u16; 1 << TABLE_BITS]>() + BOUND + SLACK;

    pub(super) fn new() -> Self {
        Self { table: Box::new([0; 1 << TABLE_BITS]), buffer: Box::new([0; BOUND + SLACK]) }
    }

    /// Compresses `page` into `out` and returns the stream's length, or `None` if it does not fit.
    /// With `RUNS`, writes a stream of version 1.
    pub(super) fn compress<const RUNS: bool>(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        let table = &mut *self.table;
        table.fill(0);
        let mut writer = Writer { buffer: &mut self.buffer, at: 0, pending: 0, pending_len: 0, trailing_shift: 0 };
        if RUNS {
            writer.bytes(RUNS_HEADER);
        }
        // The stream begins with at least one literal: an instruction in its first byte would be
        // read as literals.
        let mut anchor = 0;
        let mut at = 1;
        while let Some(sequence) = load4(page, at) {
            if RUNS && sequence == 0 {
                let end = at + zeros(page, at);
                if end - at >= ZEROS_WORTH {
                    while at > anchor.max(1) && page[at - 1] == 0 {
                        at -= 1;
                    }
                    writer.literals(page, anchor, at);
                    let run = (end - at).min(ZEROS_MOST);
                    writer.zeros(run);
                    at += run;
                    anchor = at;
                    continue;
                }
            }
            let from = usize::from(std::mem::replace(&mut table[hash(sequence)], at as u16));
            if load4(page, from) != Some(sequence) {
                at += 1 + ((at - anchor) >> SKIP_BITS);
                continue;
            }
            let end = at + LEAST + equal(page, from + LEAST, at + LEAST);
            writer.literals(page, anchor, at);
            writer.repeat(end - at, at - from);
            if writer.at > out.len() {
                return None;
            }
            anchor = end;
            at = end;
        }
        writer.literals(page, anchor, PAGE_SIZE);
        writer.bytes(END);
        let len = writer.at;
        out.get_mut(..len)?.copy_from_slice(&self.buffer[..len]);
        Some(len)
    }
}

fn hash(sequence: u32) -> usize {
    (sequence.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS)) as usize
}

#[inline(always)]
fn load4(page: &Page, at: usize) -> Option<u32> {
    page.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes))
}

#[inline(always)]
fn load8(page: &Page, at: usize) -> Option<u64> {
    page.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns how many bytes from `at` equal those from `from` < `at`.
#[inline(always)]
fn equal(page: &Page, from: usize, at: usize) -> usize {
    let mut len = 0;
    while let (Some(new), Some(old)) = (load8(page, at + len), load8(page, from + len)) {
        let differ = new ^ old;
        if differ != 0 {
            return len + differ.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    while at + len < PAGE_SIZE && page[at + len] == page[from + len] {
        len += 1;
    }
    len
}

/// Returns how many bytes from `at` are 0.
#[inline(always)]
fn zeros(page: &Page, at: usize) -> usize {
    let mut len = 0;
    while let Some(word) = load8(page, at + len) {
        if word != 0 {
            return len + word.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    while at + len < PAGE_SIZE && page[at + len] == 0 {
        len += 1;
    }
    len
}

/// The stream so far. The buffer holds the worst case of a page, so nothing here can overrun it;
/// see `BOUND`.
///
/// The last bytes of an instruction wait in `pending` until the number of literals that follow is
/// known, since two of their bits hold it.
struct Writer<'a> {
    buffer: &'a mut [u8; BOUND + SLACK],
    at: usize,
    /// Little-endian bytes of an instruction, to be written at `at`.
    pending: u32,
    /// Number of these bytes: 2 or 3; 0 at the start of the stream.
    pending_len: usize,
    /// The position in `pending` of the two bits.
    trailing_shift: u32,
}

impl Writer<'_> {
    /// Writes `bytes` without advancing.
    #[inline(always)]
    fn place<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(place) = self.buffer.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = bytes;
        }
    }

    #[inline(always)]
    fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        self.place(bytes);
        self.at += N;
    }

    /// Writes the part of a length, at least 1, that its instruction's field could not hold.
    fn continued(&mut self, mut rest: usize) {
        while rest > 255 {
            self.bytes([0]);
            rest -= 255;
        }
        self.bytes([rest as u8]);
    }

    /// Writes the pending bytes, and the bytes from `start` to `end` as literals.
    #[inline(always)]
    fn literals(&mut self, page: &Page, start: usize, end: usize) {
        let len = end - start;
        if len <= WORD
            && self.pending_len != 0
            && let Some(from) = page.get(start..).and_then(|rest| rest.first_chunk::<WORD>())
        {
            // Without a branch on the length: 0 to 3 literals are counted in the instruction, 4 to
            // 16 in a separate byte.
            let own = len > 3;
            let trailing = if own { 0 } else { len as u32 };
            self.place((self.pending | trailing << self.trailing_shift).to_le_bytes());
            self.at += self.pending_len;
            self.place([(len as u8).wrapping_sub(3)]);
            self.at += usize::from(own);
            self.place(*from);
            self.at += len;
        } else {
            self.many_literals(page, start, end);
        }
    }

    #[inline(never)]
    fn many_literals(&mut self, page: &Page, start: usize, end: usize) {
        let len = end - start;
        let first = self.pending_len == 0;
        let trailing = if len <= 3 { len as u32 } else { 0 };
        self.place((self.pending | trailing << self.trailing_shift).to_le_bytes());
        self.at += self.pending_len;
        if first && len <= 255 - FIRST_LITERALS {
            self.bytes([(len + FIRST_LITERALS) as u8]);
        } else if len > 18 {
            self.bytes([0]);
            self.continued(len - 18);
        } else if len > 3 {
            self.bytes([len as u8 - 3]);
        }
        self.buffer[self.at..self.at + len].copy_from_slice(&page[start..end]);
        self.at += len;
    }

    /// Writes a match whose end is pending.
    #[inline(always)]
    fn repeat(&mut self, len: usize, distance: usize) {
        let (len, distance) = (len as u32, distance as u32 - 1);
        if len <= FAR_LENGTH as u32 {
            // Both forms are computed and one is selected, without a branch.
            let near = (len - 1) << 5 | (distance & 7) << 2 | distance >> 3 << 8;
            let far = 0x20 | (len - 2) | distance << 10;
            let is_far = u32::from(len > NEAR_LENGTH as u32) | u32::from(distance >= NEAR_DISTANCE as u32);
            self.pending = near ^ ((near ^ far) & is_far.wrapping_neg());
            self.pending_len = 2 + is_far as usize;
            self.trailing_shift = is_far * 8;
        } else {
            self.bytes([0x20]);
            self.continued(len as usize - FAR_LENGTH);
            self.pending = distance << 2;
            self.pending_len = 2;
            self.trailing_shift = 0;
        }
    }

    /// Writes a run of zeros whose end is pending.
    #[inline(always)]
    fn zeros(&mut self, len: usize) {
        let len = len - ZEROS_LEAST;
        self.bytes([0x18 | (len & 7) as u8]);
        self.pending = 0xfffc | (len as u32 >> 3) << 16;
        self.pending_len = 3;
        self.trailing_shift = 0;
    }
}
