//! The decoder of an lz4dyn block.
//!
//! ```text
//! until the output is full, or a sequence says that it is the last:
//!     token             literals = high four bits, code = low four bits
//!     offset            one byte or two; 0: the last sequence, without a match
//!     code == 15 ?      add bytes up to and with the first that is not 255
//!     literals == 15 ?  likewise
//!     copy the literals, then code + 3 bytes from `offset` back
//! ```
//!
//! As in LZ4's decoder, a sequence far from both ends is done by `quick`, which copies more than asked, and any other from its
//! token anew by `careful`. Token and offset lie side by side, so that one load of four bytes tells where the next sequence begins.
#![allow(unsafe_code)] // Copies that overshoot, bounds being checked once a sequence.

use crate::{
    Corrupt,
    lz4::copies::{OVERSHOOT, careful_match, length, long_match, short_match, short_match_far, short_match_near},
    mem::{copy, load16, wild_copy},
};

const MIN_MATCH: usize = 3;

/// Bytes of input that `quick` may read before it looks at a length: token, offset and 16 literals.
const QUICK_INPUT: usize = 19;

/// Bytes of output that a sequence without length bytes writes at most: 14 literals and 24 of match.
const QUICK_OUTPUT: usize = 38;

const TRUNCATED: Corrupt = Corrupt { what: "lz4dyn block ends inside a sequence" };
const TOO_LONG: Corrupt = Corrupt { what: "lz4dyn block is longer than its output" };
const TOO_SHORT: Corrupt = Corrupt { what: "lz4dyn block is shorter than its output" };
const TRAILING: Corrupt = Corrupt { what: "lz4dyn block has bytes after its end" };
const BAD_OFFSET: Corrupt = Corrupt { what: "lz4dyn match from before the output" };

/// Decodes `block` to exactly `out`.
pub(super) fn decode(block: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    let (input, output) = (block.as_ptr_range(), out.as_mut_ptr_range());
    let mut decoder = Decoder {
        ip: input.start,
        input_end: input.end,
        op: output.start,
        output_start: output.start,
        output_end: output.end,
        long: 1,
    };
    while decoder.op != decoder.output_end {
        // SAFETY: both slices are borrowed for the call; `ip` and `op` are in them, and stay so.
        unsafe {
            decoder.quick();
            decoder.careful()?;
        }
    }
    if decoder.ip == decoder.input_end { Ok(()) } else { Err(TRAILING) }
}

struct Decoder {
    /// Next input byte to read.
    ip: *const u8,
    input_end: *const u8,
    /// Next output byte to write.
    op: *mut u8,
    output_start: *mut u8,
    output_end: *mut u8,
    /// Bytes of the next sequence's offset beyond one.
    long: usize,
}

/// Whether a sequence with this token has length bytes: one look-up is cheaper than two comparisons.
const LENGTH_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut token = 0;
    while token < 256 {
        table[token] = token >> 4 == 15 || token & 15 == 15;
        token += 1;
    }
    table
};

/// The bits of an offset of one byte and of two, once the bit that is not part of it is shifted out.
const OFFSET_MASKS: [u16; 2] = [0x7F, 0x7FFF];

/// The offset that stands in the low byte of `bits`, or, if `long` is 1, in both.
#[inline(always)]
fn offset(bits: u16, long: usize) -> usize {
    usize::from(bits >> 1 & OFFSET_MASKS[long & 1])
}

impl Decoder {
    /// Decodes sequences while all that it may read and write lies inside the buffers. Stops before the first that it cannot
    /// decode, for whatever reason, and leaves that to `careful`.
    ///
    /// # Safety
    /// `ip..input_end` can be read, `output_start..output_end` read and written, and `op` is in the latter or at its end.
    #[inline(always)]
    unsafe fn quick(&mut self) {
        let Self { mut ip, input_end, mut op, output_start, output_end, mut long } = *self;
        let last_input = input_end.addr().saturating_sub(QUICK_INPUT);
        let last_output = output_end.addr().saturating_sub(QUICK_OUTPUT);
        while ip.addr() <= last_input && op.addr() <= last_output {
            // SAFETY: `QUICK_INPUT` bytes can be read and `QUICK_OUTPUT` written. A length that goes beyond is checked
            // anew, input and output, before it is used, and `offset` is checked against the output so far.
            unsafe {
                let token = usize::from(*ip);
                if LENGTH_BYTES[token] {
                    let Some(next) = self.long_sequence(ip, op, long) else { break };
                    (ip, op, long) = next;
                    continue;
                }
                let literals = token >> 4;
                let bits = load16(ip.add(1));
                let offset = offset(bits, long);
                let literals_at = ip.add(2 + long);
                let match_at = op.add(literals);
                copy::<16>(literals_at, op);
                if offset > match_at.addr() - output_start.addr() {
                    break;
                }
                if offset >= 8 {
                    short_match_far(match_at, offset);
                } else if offset != 0 {
                    short_match_near(match_at, offset);
                } else {
                    break;
                }
                ip = literals_at.add(literals);
                op = match_at.add(MIN_MATCH + (token & 15));
                long = usize::from(bits & 1);
            }
        }
        (self.ip, self.op, self.long) = (ip, op, long);
    }

    /// Decodes one sequence with length bytes, as `quick` does, and returns what comes after it. `None`: it is left to `careful`.
    ///
    /// # Safety
    /// As `quick`'s, and `QUICK_INPUT` bytes of input and `QUICK_OUTPUT` of output are left.
    #[inline(always)]
    unsafe fn long_sequence(&self, mut ip: *const u8, op: *mut u8, long: usize) -> Option<(*const u8, *mut u8, usize)> {
        // SAFETY: the caller's; what a length reaches is compared with what is left of both before it is used.
        unsafe {
            let token = usize::from(*ip);
            let bits = load16(ip.add(1));
            let offset = offset(bits, long);
            ip = ip.add(2 + long);
            let mut literals = token >> 4;
            let mut len = MIN_MATCH + (token & 15);
            if len == 15 + MIN_MATCH {
                let more = length(&mut ip, self.input_end)?;
                len += more;
            }
            if literals == 15 {
                let more = length(&mut ip, self.input_end)?;
                literals += more;
            }
            if literals + 32 > self.input_end.addr() - ip.addr()
                || literals + len + OVERSHOOT > self.output_end.addr() - op.addr()
            {
                return None;
            }
            let match_at = op.add(literals);
            if offset == 0 || offset > match_at.addr() - self.output_start.addr() {
                return None;
            }
            if token < 0xF0 {
                copy::<16>(ip, op);
            } else {
                wild_copy::<32>(ip, op, literals);
            }
            if token & 15 < 15 {
                short_match(match_at, offset);
            } else {
                long_match(match_at, offset, len);
            }
            Some((ip.add(literals), match_at.add(len), usize::from(bits & 1)))
        }
    }

    /// Decodes one sequence with every bound checked to the byte.
    ///
    /// # Safety
    /// As `quick`'s.
    #[inline(never)]
    unsafe fn careful(&mut self) -> Result<(), Corrupt> {
        // SAFETY: the caller's, with each length compared to what is left before the bytes are touched.
        unsafe {
            if self.op == self.output_end {
                return Ok(());
            }
            if self.input_end.offset_from_unsigned(self.ip) < 2 + self.long {
                return Err(TRUNCATED);
            }
            let token = usize::from(*self.ip);
            let bits = if self.long == 0 { u16::from(*self.ip.add(1)) } else { load16(self.ip.add(1)) };
            let offset = offset(bits, self.long);
            self.ip = self.ip.add(2 + self.long);
            self.long = usize::from(bits & 1);
            let mut len = MIN_MATCH + (token & 15);
            if token & 15 == 15 {
                len += length(&mut self.ip, self.input_end).ok_or(TRUNCATED)?;
            }
            let mut literals = token >> 4;
            if literals == 15 {
                literals += length(&mut self.ip, self.input_end).ok_or(TRUNCATED)?;
            }
            if literals > self.input_end.offset_from_unsigned(self.ip) {
                return Err(TRUNCATED);
            }
            if literals > self.output_end.offset_from_unsigned(self.op) {
                return Err(TOO_LONG);
            }
            let wild = self.input_end.offset_from_unsigned(self.ip) >= 16
                && self.output_end.offset_from_unsigned(self.op) >= 16;
            if literals <= 16 && wild {
                copy::<16>(self.ip, self.op);
            } else {
                self.op.copy_from_nonoverlapping(self.ip, literals);
            }
            self.ip = self.ip.add(literals);
            self.op = self.op.add(literals);
            let room = self.output_end.offset_from_unsigned(self.op);
            if offset == 0 {
                return if room == 0 { Ok(()) } else { Err(TOO_SHORT) };
            }
            if offset > self.op.offset_from_unsigned(self.output_start) {
                return Err(BAD_OFFSET);
            }
            if len > room {
                return Err(TOO_LONG);
            }
            careful_match(self.op, offset, len, room);
            self.op = self.op.add(len);
            Ok(())
        }
    }
}
