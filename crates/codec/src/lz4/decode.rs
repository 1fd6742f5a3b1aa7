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
//!    overshoot included, ends before the first unread byte.
#![allow(unsafe_code)] // Copies that overshoot, and in place a source and a destination in one buffer.

use std::ops::Range;

use crate::{
    Corrupt,
    mem::{copy, load16, load32, load64, store64, wild_copy16},
};

use super::format::Format;

/// Input bytes that `quick` may read before it looks at a length: the token and 16 literals, or, of a 14-literal sequence,
/// token, literals and offset.
const QUICK_INPUT: usize = 19;

/// Bytes past a match that copying it may write: a match of 4 is copied as 24.
const OVERSHOOT: usize = 21;

/// Output bytes that a sequence without length bytes spans at most: 14 literals, 18 of match.
const QUICK_OUTPUT: usize = 32;

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
pub(crate) fn separate<F: Format>(block: &[u8], out: &mut [u8], extent: Extent) -> Result<usize, Corrupt> {
    let buffers =
        Buffers { input: block.as_ptr(), input_len: block.len(), output: out.as_mut_ptr(), output_len: out.len() };
    // SAFETY: two slices, borrowed for the call, that cannot overlap.
    unsafe { decode::<F, false>(&buffers, extent) }
}

/// Decodes `buffer[block]` into `buffer[..out_len]` and returns the bytes of output.
pub(super) fn in_place<F: Format>(buffer: &mut [u8], block: Range<usize>, out_len: usize) -> Result<usize, Corrupt> {
    if block.start > block.end || block.end > buffer.len() || out_len > buffer.len() {
        return Err(Corrupt { what: "lz4 block in place reaches outside its buffer" });
    }
    let output = buffer.as_mut_ptr();
    // SAFETY: `block.start` is inside the buffer.
    let input = unsafe { output.add(block.start) };
    let buffers = Buffers { input, input_len: block.len(), output, output_len: out_len };
    // SAFETY: both lie in `buffer`, which is borrowed for the call, and both pointers come from that borrow.
    unsafe { decode::<F, true>(&buffers, Extent::Whole) }
}

/// Decodes one block and returns the bytes of output.
///
/// # Safety
/// `input_len` bytes from `input` are initialised and can be read, `output_len` bytes from `output` are initialised and can
/// be read and written, for as long as the call lasts. The two overlap only if `IN_PLACE`, and then both pointers are derived from
/// one borrow of their buffer.
unsafe fn decode<F: Format, const IN_PLACE: bool>(buffers: &Buffers, extent: Extent) -> Result<usize, Corrupt> {
    // SAFETY: one past the end of what the caller gave.
    let (input_end, output_end) =
        unsafe { (buffers.input.add(buffers.input_len), buffers.output.add(buffers.output_len)) };
    let mut decoder =
        Decoder { ip: buffers.input, input_end, op: buffers.output, output_start: buffers.output, output_end, extent };
    loop {
        // SAFETY: the caller's; `ip` and `op` are within their buffers, and stay so.
        unsafe {
            decoder.quick::<F, IN_PLACE>();
            if let Step::Done = decoder.careful::<F, IN_PLACE>()? {
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
    unsafe fn quick<F: Format, const IN_PLACE: bool>(&mut self) {
        let (input_end, output_start, output_end) = (self.input_end, self.output_start, self.output_end);
        let input_left = |ip: *const u8| input_end.addr() - ip.addr();
        // Whether `len` bytes and the overshoot may be written once the input has been read up to `ip`.
        let fits = |len: usize, ip: *const u8, op: *mut u8| {
            let end = op.addr() + len + OVERSHOOT;
            end <= output_end.addr() && (!IN_PLACE || end <= ip.addr())
        };
        let last_input = input_end.addr().saturating_sub(QUICK_INPUT);
        let last_output = output_end.addr().saturating_sub(QUICK_OUTPUT + OVERSHOOT);
        let (mut ip, mut op) = (self.ip, self.op);
        if ip == input_end {
            return;
        }
        // SAFETY: `ip` is before the end.
        let mut token = usize::from(unsafe { *ip });
        while ip.addr() <= last_input
            && op.addr() <= last_output
            && (!IN_PLACE || op.addr() + (QUICK_OUTPUT + OVERSHOOT) <= ip.addr())
        {
            // SAFETY: `QUICK_INPUT` bytes can be read and `QUICK_OUTPUT + OVERSHOOT` written (in place: before `ip`). A length
            // that goes beyond is checked anew, input and output, before it is used; `offset` is checked against the output so far.
            unsafe {
                let mut ip_next = ip.add(1);
                let mut op_next = op;
                let mut literals = token >> 4;
                if literals < 15 {
                    copy::<16>(ip_next, op_next);
                } else {
                    let Some(more) = length(&mut ip_next, input_end) else { break };
                    literals += more;
                    if literals + QUICK_INPUT > input_left(ip_next) || !fits(literals + QUICK_OUTPUT, ip_next, op_next)
                    {
                        break;
                    }
                    wild_copy16(ip_next, op_next, literals);
                }
                ip_next = ip_next.add(literals);
                op_next = op_next.add(literals);
                let bytes = load32(ip_next);
                let (offset, offset_bytes) = F::offset(bytes);
                ip_next = ip_next.add(offset_bytes);
                if offset.wrapping_sub(1) >= op_next.addr() - output_start.addr() {
                    break;
                }
                let code = token & 15;
                if code < 15 {
                    short_match(op_next, offset);
                    token = (bytes >> (8 * offset_bytes)) as u8 as usize;
                    op_next = op_next.add(F::MIN_MATCH + code);
                } else {
                    let Some(more) = length(&mut ip_next, input_end) else { break };
                    let len = F::MIN_MATCH + 15 + more;
                    if !fits(len, ip_next, op_next) {
                        break;
                    }
                    long_match(op_next, offset, len);
                    op_next = op_next.add(len);
                    if ip_next == input_end {
                        (ip, op) = (ip_next, op_next);
                        break;
                    }
                    token = usize::from(*ip_next);
                }
                (ip, op) = (ip_next, op_next);
            }
        }
        (self.ip, self.op) = (ip, op);
    }

    /// Decodes one sequence with every bound checked to the byte.
    ///
    /// # Safety
    /// As [`decode`]'s; `ip` and `op` point into their buffers or one past.
    #[inline(never)]
    unsafe fn careful<F: Format, const IN_PLACE: bool>(&mut self) -> Result<Step, Corrupt> {
        // SAFETY: the caller's, with each length compared to what is left before the bytes are touched.
        unsafe {
            if self.extent == Extent::Prefix && self.op == self.output_end {
                return Ok(Step::Done);
            }
            if self.ip == self.input_end {
                let may_end = F::LAST_LITERALS == 0 && self.op != self.output_start;
                return if may_end { Ok(Step::Done) } else { Err(TRUNCATED) };
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
            self.op.copy_from(self.ip, literals);
            self.ip = self.ip.add(literals);
            self.op = self.op.add(literals);
            if self.ip == self.input_end || (self.extent == Extent::Prefix && self.op == self.output_end) {
                return Ok(Step::Done);
            }
            let left = self.input_end.offset_from_unsigned(self.ip);
            let bytes = if left == 1 { u16::from(*self.ip) } else { load16(self.ip) };
            let (offset, offset_bytes) = F::offset(u32::from(bytes));
            if offset_bytes > left {
                return Err(TRUNCATED);
            }
            self.ip = self.ip.add(offset_bytes);
            let mut len = F::MIN_MATCH + (token & 15);
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
            if len + OVERSHOOT <= free {
                long_match(self.op, offset, len);
            } else {
                let from = self.op.sub(offset);
                for at in 0..len {
                    *self.op.add(at) = *from.add(at);
                }
            }
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

/// Reads length bytes: the sum of all up to and with the first that is not 255. `None` if the input ends before that one.
/// The sum is at most 255 times the input's length.
///
/// # Safety
/// `*ip..end` can be read.
#[inline(always)]
unsafe fn length(ip: &mut *const u8, end: *const u8) -> Option<usize> {
    let mut sum = 0;
    while *ip < end {
        // SAFETY: before `end`.
        let byte = unsafe { **ip };
        // SAFETY: at most `end`.
        *ip = unsafe { ip.add(1) };
        sum += usize::from(byte);
        if byte != 255 {
            return Some(sum);
        }
    }
    None
}

/// For an offset under 8: the mask of that many bytes, the factor that repeats them through 8 bytes, and the greatest multiple
/// of the offset that is at most 8.
const PATTERNS: [(u64, u64, usize); 8] = {
    let mut patterns = [(0, 0, 0); 8];
    let mut offset = 1;
    while offset < 8 {
        let mut factor = 0;
        let mut at = 0;
        while at < 8 {
            factor |= 1 << (8 * at);
            at += offset;
        }
        patterns[offset] = ((1 << (8 * offset)) - 1, factor, 8 - 8 % offset);
        offset += 1;
    }
    patterns
};

/// Writes the first 18 bytes at least of a match at `op`, and no more than 24.
///
/// # Safety
/// 24 bytes can be written at `op`, and `offset` of at least 1 bytes before it read.
#[inline(always)]
unsafe fn short_match(op: *mut u8, offset: usize) {
    // SAFETY: the caller's. `from + 8` is at most `op + 7`.
    unsafe {
        let from = op.sub(offset);
        if offset >= 8 {
            copy::<8>(from, op);
            copy::<8>(from.add(8), op.add(8));
            copy::<2>(from.add(16), op.add(16));
        } else {
            let (mask, factor, step) = PATTERNS[offset];
            let pattern = (load64(from) & mask).wrapping_mul(factor);
            store64(op, pattern);
            store64(op.add(step), pattern);
            store64(op.add(2 * step), pattern);
        }
    }
}

/// Writes a match of `len` bytes at `op`, and no more than 20 bytes past it, 24 in all at least.
///
/// # Safety
/// `len + OVERSHOOT` bytes can be written at `op`, and `offset` of at least 1 bytes before it read.
#[inline(always)]
unsafe fn long_match(op: *mut u8, offset: usize, len: usize) {
    // SAFETY: the caller's. Each step starts before `op + len` and writes 16 bytes; the first of a short offset 24.
    unsafe {
        if offset >= 16 {
            wild_copy16(op.sub(offset), op, len);
            return;
        }
        short_match(op, offset);
        let pattern = op.cast::<[u8; 16]>().read();
        let step = 16 - 16 % offset;
        let mut at = step;
        while at < len {
            op.add(at).cast::<[u8; 16]>().write(pattern);
            at += step;
        }
    }
}
