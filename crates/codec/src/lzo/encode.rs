//! The encoder: greedy, one candidate a position, as LZO1X-1 is meant to be.
//!
//! ```text
//! loop: hash the next 4 bytes; the table knows where that hash was last seen
//!       the 4 bytes are there too: lengthen the match both ways, write the literals before it, write it
//!       otherwise: go on, in wider steps the longer nothing was found
//! write the literals that are left and the end
//! ```
//!
//! Deviations for speed:
//! 1. The table is not cleared for each page. Positions are stored above a base that grows by a page each time; what is
//!    under the base is of an earlier page. It is cleared once in 15 pages, when the base would leave 16 bits.
//! 2. The stream is written into a buffer that holds the worst case, with no check of the caller's room but one a match,
//!    then copied.

use super::format::{END, FAR_LENGTH, FIRST_LITERALS, NEAR_DISTANCE, NEAR_LENGTH, RUNS_HEADER, ZEROS_LEAST, ZEROS_MOST};
use crate::{PAGE_SIZE, Page};

/// Entries of the table: 8 KiB, a quarter of a first-level cache.
const TABLE_BITS: u32 = 12;

/// The longest stream of a page that holds no match: header, literals, the length's continuation, end.
const BOUND: usize = RUNS_HEADER.len() + PAGE_SIZE + PAGE_SIZE / 255 + 2 + END.len();

/// Room past the worst case, for literals copied in whole words.
const SLACK: usize = 32;

/// Bytes copied at once.
const WORD: usize = 16;

/// Shortest match looked for.
const LEAST: usize = 4;

/// The step to the next position grows by one with each so many bytes, as a power of two, in which nothing was found.
const SKIP_BITS: u32 = 5;

/// A run of zeros is written as one if it is at least this long: a match at distance 1 costs no more bytes below.
const ZEROS_WORTH: usize = 34;

/// The encoder's state: all of its memory.
pub(super) struct Encoder {
    table: Box<[u16; 1 << TABLE_BITS]>,
    /// What positions of this page are stored above; a multiple of the page size, never 0.
    base: usize,
    buffer: Box<[u8; BOUND + SLACK]>,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self { table: Box::new([0; 1 << TABLE_BITS]), base: 0, buffer: Box::new([0; BOUND + SLACK]) }
    }

    /// Compresses `page` into `out` and returns the stream's length; `None` if it does not fit. With `RUNS`, a stream of
    /// version 1.
    pub(super) fn compress<const RUNS: bool>(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.base += PAGE_SIZE;
        if self.base > usize::from(u16::MAX) {
            self.table.fill(0);
            self.base = PAGE_SIZE;
        }
        let base = self.base;
        let table = &mut *self.table;
        let mut writer = Writer { buffer: &mut self.buffer, at: 0, trailing_at: 0 };
        if RUNS {
            writer.bytes(RUNS_HEADER);
        }
        // The stream begins with at least one literal: an instruction in its first byte would be taken for literals.
        table[hash(load4(page, 0))] = base as u16;
        let mut anchor = 0;
        let mut at = 1;
        while at + LEAST <= PAGE_SIZE {
            let sequence = load4(page, at);
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
            let entry = &mut table[hash(sequence)];
            let mut from = usize::from(*entry).wrapping_sub(base);
            *entry = (base + at) as u16;
            // One branch for both conditions: which of them fails is hard to foresee, that one does is not. `stale` is 1
            // if the entry is below the base, of an earlier page; one of this page is always before `at`.
            let stale = from >> (usize::BITS - 1);
            if (load4(page, from & (PAGE_SIZE - 1)) ^ sequence) as usize | stale != 0 {
                at += 1 + ((at - anchor) >> SKIP_BITS);
                continue;
            }
            let mut end = at + LEAST + equal(page, from + LEAST, at + LEAST);
            let back = equal_before(page, from, at).min(at - anchor);
            at -= back;
            from -= back;
            writer.literals(page, anchor, at);
            writer.repeat(end - at, at - from);
            if writer.at > out.len() {
                return None;
            }
            anchor = end;
            at = end;
            end -= 2;
            if end + LEAST <= PAGE_SIZE {
                table[hash(load4(page, end))] = (base + end) as u16;
            }
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
fn load4(page: &Page, at: usize) -> u32 {
    page.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[inline(always)]
fn load8(page: &Page, at: usize) -> Option<u64> {
    page.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes))
}

/// How many bytes from `at` are those from `from` < `at`.
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

/// How many bytes before `at` are those before `from` < `at`, up to 8.
#[inline(always)]
fn equal_before(page: &Page, from: usize, at: usize) -> usize {
    match (from.checked_sub(8).and_then(|from| load8(page, from)), load8(page, at.wrapping_sub(8))) {
        (Some(old), Some(new)) => (old ^ new).leading_zeros() as usize / 8,
        _ => (0..from).take_while(|back| page[from - 1 - back] == page[at - 1 - back]).count(),
    }
}

/// How many bytes from `at` are 0.
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

/// The stream so far. The buffer holds the worst case of a page, so nothing here can overrun it: `BOUND` says why.
struct Writer<'a> {
    buffer: &'a mut [u8; BOUND + SLACK],
    at: usize,
    /// Where the low two bits say how many literals follow the last instruction. At the start, where there is none, 0: no
    /// instruction but the first literals' is ever there.
    trailing_at: usize,
}

impl Writer<'_> {
    /// Writes `bytes` without going on past them.
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

    /// What of a length, at least 1, its instruction's field could not hold.
    #[inline(always)]
    fn continued(&mut self, mut rest: usize) {
        while rest > 255 {
            self.bytes([0]);
            rest -= 255;
        }
        self.bytes([rest as u8]);
    }

    /// Writes the bytes from `start` to `end` as literals.
    #[inline(always)]
    fn literals(&mut self, page: &Page, start: usize, end: usize) {
        let len = end - start;
        if len <= WORD
            && self.trailing_at != 0
            && let Some(from) = page.get(start..).and_then(|rest| rest.first_chunk::<WORD>())
        {
            // With no branch on the length: 0 to 3 go into the last instruction, 4 to 16 into a byte of their own.
            let own = len > 3;
            self.buffer[self.trailing_at] |= if own { 0 } else { len as u8 };
            self.place([(len as u8).wrapping_sub(3)]);
            self.at += usize::from(own);
            self.place(*from);
            self.at += len;
            return;
        }
        if self.trailing_at == 0 && len <= 255 - FIRST_LITERALS {
            self.bytes([(len + FIRST_LITERALS) as u8]);
        } else if self.trailing_at != 0 && len <= 3 {
            self.buffer[self.trailing_at] |= len as u8;
        } else if len <= 18 {
            self.bytes([len as u8 - 3]);
        } else {
            self.bytes([0]);
            self.continued(len - 18);
        }
        self.buffer[self.at..self.at + len].copy_from_slice(&page[start..end]);
        self.at += len;
    }

    /// Writes a match.
    #[inline(always)]
    fn repeat(&mut self, len: usize, distance: usize) {
        let (len, distance) = (len as u32, distance as u32 - 1);
        if len <= FAR_LENGTH as u32 {
            // Both forms are computed and one is chosen, with no branch.
            let near = (len - 1) << 5 | (distance & 7) << 2 | distance >> 3 << 8;
            let far = 0x20 | (len - 2) | distance << 10;
            let is_far = (len > NEAR_LENGTH as u32) | (distance >= NEAR_DISTANCE as u32);
            self.place(if is_far { far } else { near }.to_le_bytes());
            self.trailing_at = self.at + usize::from(is_far);
            self.at += 2 + usize::from(is_far);
        } else {
            self.bytes([0x20]);
            self.continued(len as usize - FAR_LENGTH);
            self.trailing_at = self.at;
            self.bytes(((distance as u16) << 2).to_le_bytes());
        }
    }

    /// Writes a run of zeros.
    #[inline(always)]
    fn zeros(&mut self, len: usize) {
        let len = len - ZEROS_LEAST;
        self.trailing_at = self.at + 1;
        self.bytes([0x18 | (len & 7) as u8, 0xfc, 0xff, (len >> 3) as u8]);
    }
}
