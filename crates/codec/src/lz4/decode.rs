//! The decoder of an LZ4 block.
//!
//! ```text
//! until the input is used up after a sequence's literals:
//!     token             literals = high four bits, code = low four bits
//!     literals == 15 ?  add bytes up to and with the first that is not 255
//!     copy the literals
//!     offset            two bytes, little-endian, 1 ..= bytes of output so far
//!     code == 15 ?      add bytes up to and with the first that is not 255
//!     copy code + 4 bytes from `offset` back
//! ```
//!
//! What is done for speed:
//!
//! 1. Far from both ends a sequence takes `quick`: 16 literals and 24 match bytes are copied whatever their number, so a
//!    short sequence has no branch on a length. Where the ends are near, or a length does not fit, the same sequence is
//!    done again from its token by `careful`, which checks and copies to the byte.
//! 2. An offset under 8 is spread to a pattern of 8 bytes by one multiplication and stored at multiples of the offset, so
//!    that nothing waits for bytes just stored. Long matches of an offset under 16 go on likewise with 16 bytes.
//! 3. Input and output are raw pointers, since in place they are one buffer. There, `quick` runs while what it may write,
//!    overshoot included, ends before the first unread byte; the bound is renewed when it is reached, not for each sequence.
#![allow(unsafe_code)] // Copies that overshoot, and in place a source and a destination in one buffer.

use std::ops::Range;

use crate::{
    Corrupt,
    mem::{copy, load16, wild_copy},
};

use super::copies::{OVERSHOOT, careful_match, length, long_match, short_match, short_match_far, short_match_near};

const MIN_MATCH: usize = 4;

/// Input bytes that `quick` may read before it looks at a length: the token and 16 literals, or, of a 14-literal sequence,
/// token, literals and offset.
const QUICK_INPUT: usize = 19;

/// Bytes of output that a sequence without length bytes writes at most: 14 literals and 24 of match.
const QUICK_OUTPUT: usize = 38;

/// Where the input and output of a block lie. In place they overlap.
struct Buffers {
    input: *const u8,
    input_len: usize,
    output: *mut u8,
    output_len: usize,
}

/// How far a block is decoded, and what is an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The whole block, which may not exceed the output.
    Whole,
    /// Until the output is full or the block ends. What follows in the block is not looked at.
    Prefix,
}

struct Decoder {
    /// Next input byte to read.
    ip: *const u8,
    input_end: *const u8,
    /// Next output byte to write.
    op: *mut u8,
    output_start: *mut u8,
    output_end: *mut u8,
    extent: Extent,
}

enum Step {
    More,
    Done,
}

/// Decodes `block` into `out` and returns the bytes of output.
pub(crate) fn separate(block: &[u8], out: &mut [u8], extent: Extent) -> Result<usize, Corrupt> {
    let buffers =
        Buffers { input: block.as_ptr(), input_len: block.len(), output: out.as_mut_ptr(), output_len: out.len() };
    // SAFETY: two slices, borrowed for the call, that cannot overlap.
    unsafe { decode::<false>(&buffers, extent) }
}

/// Decodes `buffer[block]` into `buffer[..out_len]` and returns the bytes of output.
pub(super) fn in_place(buffer: &mut [u8], block: Range<usize>, out_len: usize) -> Result<usize, Corrupt> {
    if block.start > block.end || block.end > buffer.len() || out_len > buffer.len() {
        return Err(Corrupt { what: "lz4 block in place reaches outside its buffer" });
    }
    let output = buffer.as_mut_ptr();
    // SAFETY: `block.start` is inside the buffer.
    let input = unsafe { output.add(block.start) };
    let buffers = Buffers { input, input_len: block.len(), output, output_len: out_len };
    // SAFETY: both lie in `buffer`, which is borrowed for the call, and both pointers come from that borrow.
    unsafe { decode::<true>(&buffers, Extent::Whole) }
}

/// Decodes one block and returns the bytes of output.
///
/// # Safety
/// `input_len` bytes from `input` are initialised and can be read, `output_len` bytes from `output` are initialised and can
/// be read and written, for as long as the call lasts. The two overlap only if `IN_PLACE`, and then both pointers are derived from
/// one borrow of their buffer.
unsafe fn decode<const IN_PLACE: bool>(buffers: &Buffers, extent: Extent) -> Result<usize, Corrupt> {
    // SAFETY: one past the end of what the caller gave.
    let (input_end, output_end) =
        unsafe { (buffers.input.add(buffers.input_len), buffers.output.add(buffers.output_len)) };
    let mut decoder =
        Decoder { ip: buffers.input, input_end, op: buffers.output, output_start: buffers.output, output_end, extent };
    loop {
        // SAFETY: the caller's; `ip` and `op` are within their buffers, and stay so.
        unsafe {
            decoder.quick::<IN_PLACE>();
            if let Step::Done = decoder.careful::<IN_PLACE>()? {
                return Ok(decoder.op.offset_from_unsigned(decoder.output_start));
            }
        }
    }
}

impl Decoder {
    /// Decodes sequences while everything that it may read and write lies inside the buffers (and, in place, before the unread
    /// input). Stops before the first sequence that it cannot decode, for whatever reason, and leaves that to `careful`.
    ///
    /// # Safety
    /// As [`decode`]'s; `ip` and `op` point into their buffers or one past.
    #[inline(always)]
    unsafe fn quick<const IN_PLACE: bool>(&mut self) {
        let (input_end, output_start, output_end) = (self.input_end, self.output_start, self.output_end);
        let last_input = input_end.addr().saturating_sub(QUICK_INPUT);
        let last_output = output_end.addr().saturating_sub(QUICK_OUTPUT);
        let (mut ip, mut op) = (self.ip, self.op);
        'all: loop {
            // In place, the input read so far bounds the output. Input is read as it goes, so a bound that is reached may have moved.
            let bound = if IN_PLACE { last_output.min(ip.addr().saturating_sub(QUICK_OUTPUT)) } else { last_output };
            if ip.addr() > last_input || op.addr() > bound {
                break;
            }
            while ip.addr() <= last_input && op.addr() <= bound {
                // SAFETY: `QUICK_INPUT` bytes can be read and `QUICK_OUTPUT` written (in place: before what `ip` was). A length
                // that goes beyond is checked anew, input and output, before it is used; `offset` is checked against the output so far.
                unsafe {
                    let token = usize::from(*ip);
                    if token >= 0xF0 || token & 15 == 15 {
                        let Some(next) = self.long_sequence::<IN_PLACE>(ip, op) else { break 'all };
                        (ip, op) = next;
                        continue;
                    }
                    let literals = token >> 4;
                    copy::<16>(ip.add(1), op);
                    let match_at = op.add(literals);
                    let offset = usize::from(load16(ip.add(1 + literals)));
                    if offset > match_at.addr() - output_start.addr() {
                        break 'all;
                    }
                    if offset >= 8 {
                        short_match_far(match_at, offset);
                    } else if offset != 0 {
                        short_match_near(match_at, offset);
                    } else {
                        break 'all;
                    }
                    ip = ip.add(3 + literals);
                    op = match_at.add(MIN_MATCH + (token & 15));
                }
            }
        }
        (self.ip, self.op) = (ip, op);
    }

    /// Decodes one sequence with length bytes, as `quick` does, and returns what comes after it. `None`: it is left to `careful`.
    ///
    /// # Safety
    /// As `quick`'s, and `QUICK_INPUT` bytes of input and `QUICK_OUTPUT` of output are left.
    #[inline(always)]
    unsafe fn long_sequence<const IN_PLACE: bool>(
        &self,
        mut ip: *const u8,
        mut op: *mut u8,
    ) -> Option<(*const u8, *mut u8)> {
        // Whether `len` bytes and the overshoot may be written at `op` once the input has been read up to `ip`.
        let fits = |len: usize, ip: *const u8, op: *mut u8| {
            let end = op.addr() + len + OVERSHOOT;
            end <= self.output_end.addr() && (!IN_PLACE || end <= ip.addr())
        };
        // SAFETY: the caller's; what a length reaches is compared with what is left of both before it is used.
        unsafe {
            let token = usize::from(*ip);
            ip = ip.add(1);
            let mut literals = token >> 4;
            if literals < 15 {
                copy::<16>(ip, op);
            } else {
                let more = length(&mut ip, self.input_end)?;
                literals += more;
                if literals + 32 > self.input_end.addr() - ip.addr() || !fits(literals + QUICK_OUTPUT, ip, op) {
                    return None;
                }
                wild_copy::<32>(ip, op, literals);
            }
            ip = ip.add(literals);
            op = op.add(literals);
            let offset = usize::from(load16(ip));
            ip = ip.add(2);
            if offset == 0 || offset > op.addr() - self.output_start.addr() {
                return None;
            }
            let mut len = MIN_MATCH + (token & 15);
            if token & 15 < 15 {
                short_match(op, offset);
            } else {
                let more = length(&mut ip, self.input_end)?;
                len += more;
                if !fits(len, ip, op) {
                    return None;
                }
                long_match(op, offset, len);
            }
            Some((ip, op.add(len)))
        }
    }

    /// Decodes one sequence with every bound checked to the byte.
    ///
    /// # Safety
    /// As [`decode`]'s; `ip` and `op` point into their buffers or one past.
    #[inline(never)]
    unsafe fn careful<const IN_PLACE: bool>(&mut self) -> Result<Step, Corrupt> {
        // SAFETY: the caller's, with each length compared to what is left before the bytes are touched.
        unsafe {
            if self.extent == Extent::Prefix && self.op == self.output_end {
                return Ok(Step::Done);
            }
            if self.ip == self.input_end {
                return Err(TRUNCATED);
            }
            let token = usize::from(*self.ip);
            self.ip = self.ip.add(1);
            let mut literals = token >> 4;
            if literals == 15 {
                literals += length(&mut self.ip, self.input_end).ok_or(TRUNCATED)?;
            }
            if literals > self.input_end.offset_from_unsigned(self.ip) {
                return Err(TRUNCATED);
            }
            let room = self.output_end.offset_from_unsigned(self.op);
            if literals > room {
                if self.extent == Extent::Whole {
                    return Err(TOO_LONG);
                }
                literals = room;
            }
            if IN_PLACE && self.op.addr() > self.ip.addr() {
                return Err(OVERRUN);
            }
            let left = self.input_end.offset_from_unsigned(self.ip);
            let wide = left.min(self.output_end.offset_from_unsigned(self.op));
            if literals <= 16 && wide >= 16 && (!IN_PLACE || self.op.addr() + 16 <= self.ip.addr()) {
                copy::<16>(self.ip, self.op);
            } else {
                self.op.copy_from(self.ip, literals);
            }
            self.ip = self.ip.add(literals);
            self.op = self.op.add(literals);
            if self.ip == self.input_end || (self.extent == Extent::Prefix && self.op == self.output_end) {
                return Ok(Step::Done);
            }
            if self.input_end.offset_from_unsigned(self.ip) < 2 {
                return Err(TRUNCATED);
            }
            let offset = usize::from(load16(self.ip));
            self.ip = self.ip.add(2);
            let mut len = MIN_MATCH + (token & 15);
            if token & 15 == 15 {
                len += length(&mut self.ip, self.input_end).ok_or(TRUNCATED)?;
            }
            if offset == 0 || offset > self.op.offset_from_unsigned(self.output_start) {
                return Err(BAD_OFFSET);
            }
            let room = self.output_end.offset_from_unsigned(self.op);
            if len > room {
                if self.extent == Extent::Whole {
                    return Err(TOO_LONG);
                }
                len = room;
            }
            // In place, where nothing may be written over input that is still to be read.
            let free = if IN_PLACE { self.ip.addr().saturating_sub(self.op.addr()).min(room) } else { room };
            if IN_PLACE && len > free {
                return Err(OVERRUN);
            }
            careful_match(self.op, offset, len, free);
            self.op = self.op.add(len);
            Ok(Step::More)
        }
    }
}

const TRUNCATED: Corrupt = Corrupt { what: "lz4 block ends inside a sequence" };
const TOO_LONG: Corrupt = Corrupt { what: "lz4 block is longer than its output" };
pub(super) const BAD_OFFSET: Corrupt = Corrupt { what: "lz4 match with offset 0, or from before the output" };

/// In place, an output byte's turn came before the input byte that lies there was read.
const OVERRUN: Corrupt = Corrupt { what: "lz4 block overruns its own input in place" };
