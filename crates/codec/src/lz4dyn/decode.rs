//! The decoder of an lz4dyn block.
//!
//! ```text
//! until the output is full, or a sequence marks itself as the last:
//!     token             literals = high four bits, code = low four bits
//!     offset            one byte or two; 0: the last sequence, without a match
//!     code == 15 ?      add bytes up to and including the first that is not 255
//!     literals == 15 ?  likewise
//!     copy the literals, then code + 4 bytes from `offset` back
//! ```
//!
//! As in LZ4's decoder, `quick` decodes a sequence far from both ends and copies more than needed;
//! `careful` decodes any other, starting again at its token. Token and offset are adjacent, so that
//! one load of four bytes determines where the next sequence begins.
#![allow(unsafe_code)] // Copies that overshoot; bounds are checked once per sequence.

use crate::{
    Corrupt,
    lz4::copies::{
        LONG, OVERSHOOT, careful_match, copy_exact, length, length_mostly_short, long_match, short_match,
        short_match_near,
    },
    mem::{copy, copy_literals, load16, wild_copy},
};

const MIN_MATCH: usize = 4;

/// Input bytes that `quick` may read before it checks a length: token, offset and 16 literals.
const QUICK_INPUT: usize = 19;

/// Maximum output bytes that a sequence without length bytes writes: 14 literals and 24 for the
/// match.
const QUICK_OUTPUT: usize = 38;

const TRUNCATED: Corrupt = Corrupt { what: "lz4dyn block ends inside a sequence" };
const TOO_LONG: Corrupt = Corrupt { what: "lz4dyn block is longer than its output" };
const TOO_SHORT: Corrupt = Corrupt { what: "lz4dyn block is shorter than its output" };
const TRAILING: Corrupt = Corrupt { what: "lz4dyn block has bytes after its end" };
const BAD_OFFSET: Corrupt = Corrupt { what: "lz4dyn match offset reaches before the output" };

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
    // SAFETY: both slices are borrowed for the call; `ip` and `op` are and stay in them.
    unsafe {
        decoder.quick();
        decoder.careful()
    }
}

/// Why a sequence leaves the loop of short ones.
enum Why {
    /// Its literals have length bytes.
    Literals,
    /// Its match has length bytes, and its literals have none.
    Match,
    /// Its offset is below 8 or invalid.
    Offset,
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

/// Returns the offset in the low byte of `bits` or, if `long` is 1 instead of 0, in both bytes.
/// Computing the mask avoids a load.
#[inline(always)]
fn offset(bits: usize, long: usize) -> usize {
    (bits & (0xFF | (long.wrapping_neg() & 0xFF00))) >> 1
}

impl Decoder {
    /// Decodes sequences while all reads and writes are inside the buffers. Stops before the first
    /// that it cannot decode, for whatever reason, and leaves that to `careful`.
    ///
    /// # Safety
    /// `ip..input_end` can be read, `output_start..output_end` read and written, and `op` is in the
    /// latter or at its end.
    #[inline(always)]
    unsafe fn quick(&mut self) {
        let Self { mut ip, input_end, mut op, output_start, output_end, mut long } = *self;
        let last_input = input_end.addr().saturating_sub(QUICK_INPUT);
        let last_output = output_end.addr().saturating_sub(QUICK_OUTPUT);
        // The last position at which a match with length bytes may end.
        let last_long = output_end.addr().saturating_sub(OVERSHOOT);
        'sequences: while ip.addr() <= last_input && op.addr() <= last_output {
            // SAFETY: `QUICK_INPUT` bytes can be read and `QUICK_OUTPUT` written. Positions and
            // lengths that length bytes change are checked against input and output before they are
            // used, and `offset` is checked against the output so far.
            unsafe {
                let (token, bits, offset, mut literals_at);
                // Sequences without length bytes and with an offset of at least 8.
                let why = loop {
                    let first = usize::from(*ip);
                    let first_bits = usize::from(load16(ip.add(1)));
                    let start = ip.add(long).add(2);
                    copy::<16>(start, op);
                    let literals = first >> 4;
                    let code = first & 15;
                    let distance = self::offset(first_bits, long);
                    let to = op.add(literals);
                    let from = to.wrapping_sub(distance);
                    let why = if first >= 0xF0 {
                        Why::Literals
                    } else if code == 15 {
                        Why::Match
                    } else if distance < 8 || from.addr() < output_start.addr() {
                        Why::Offset
                    } else {
                        copy::<8>(from, to);
                        copy::<8>(from.add(8), to.add(8));
                        copy::<2>(from.add(16), to.add(16));
                        ip = start.add(literals);
                        op = to.add(code).add(MIN_MATCH);
                        long = first_bits & 1;
                        if ip.addr() > last_input || op.addr() > last_output {
                            break 'sequences;
                        }
                        continue;
                    };
                    (token, bits, offset, literals_at) = (first, first_bits, distance, start);
                    break why;
                };
                match why {
                    Why::Match => {
                        let Some(more) = length_mostly_short(&mut literals_at, input_end) else { break };
                        let len = LONG + more;
                        if input_end.addr() - literals_at.addr() < 16 {
                            break;
                        }
                        copy::<16>(literals_at, op);
                        let literals = token >> 4;
                        let to = op.add(literals);
                        if offset == 0 || offset > to.addr() - output_start.addr() || to.addr() + len > last_long {
                            break;
                        }
                        long_match(to, offset, len);
                        ip = literals_at.add(literals);
                        op = to.add(len);
                        long = bits & 1;
                    }
                    Why::Literals => {
                        let mut len = MIN_MATCH + (token & 15);
                        if len == LONG {
                            let Some(more) = length_mostly_short(&mut literals_at, input_end) else { break };
                            len += more;
                            if literals_at == input_end {
                                break;
                            }
                        }
                        let Some(more) = length_mostly_short(&mut literals_at, input_end) else { break };
                        let literals = 15 + more;
                        let left = input_end.addr() - literals_at.addr();
                        let room = output_end.addr() - op.addr();
                        if literals + 64 > left || literals + 64 > room {
                            if literals + 32 > left || literals + QUICK_OUTPUT + 16 > room {
                                break;
                            }
                            wild_copy::<32>(literals_at, op, literals);
                        } else {
                            copy_literals(literals_at, op, literals);
                        }
                        let to = op.add(literals);
                        if offset == 0 || offset > to.addr() - output_start.addr() {
                            break;
                        }
                        if len < LONG {
                            short_match(to, offset);
                        } else {
                            if to.addr() + len > last_long {
                                break;
                            }
                            long_match(to, offset, len);
                        }
                        ip = literals_at.add(literals);
                        op = to.add(len);
                        long = bits & 1;
                    }
                    Why::Offset => {
                        let literals = token >> 4;
                        let to = op.add(literals);
                        if offset == 0 || offset > to.addr() - output_start.addr() {
                            break;
                        }
                        short_match_near(to, offset);
                        ip = literals_at.add(literals);
                        op = to.add(MIN_MATCH + (token & 15));
                        long = bits & 1;
                    }
                }
            }
        }
        (self.ip, self.op, self.long) = (ip, op, long);
    }

    /// Decodes the rest with every bound checked to the byte.
    ///
    /// # Safety
    /// As for `quick`.
    #[inline(never)]
    unsafe fn careful(self) -> Result<(), Corrupt> {
        let Self { mut ip, input_end, mut op, output_start, output_end, mut long } = self;
        // SAFETY: upheld by the caller; each length is checked against the remaining bytes before
        // they are touched.
        unsafe {
            while op != output_end {
                if input_end.offset_from_unsigned(ip) < 2 + long {
                    return Err(TRUNCATED);
                }
                let token = usize::from(*ip);
                let bits = usize::from(if long == 0 { u16::from(*ip.add(1)) } else { load16(ip.add(1)) });
                let offset = offset(bits, long);
                ip = ip.add(2 + long);
                long = bits & 1;
                let mut len = MIN_MATCH + (token & 15);
                if len == LONG {
                    len += length(&mut ip, input_end).ok_or(TRUNCATED)?;
                }
                let mut literals = token >> 4;
                if literals == 15 {
                    literals += length(&mut ip, input_end).ok_or(TRUNCATED)?;
                }
                let (left, room) = (input_end.offset_from_unsigned(ip), output_end.offset_from_unsigned(op));
                if literals > left {
                    return Err(TRUNCATED);
                }
                if literals > room {
                    return Err(TOO_LONG);
                }
                if literals <= 16 && left >= 16 && room >= 16 {
                    copy::<16>(ip, op);
                } else {
                    copy_exact(ip, op, literals);
                }
                ip = ip.add(literals);
                op = op.add(literals);
                let room = room - literals;
                if offset == 0 {
                    if room > 0 {
                        return Err(TOO_SHORT);
                    }
                    break;
                }
                if offset > op.offset_from_unsigned(output_start) {
                    return Err(BAD_OFFSET);
                }
                if len > room {
                    return Err(TOO_LONG);
                }
                careful_match(op, offset, len, room);
                op = op.add(len);
            }
        }
        if ip == input_end { Ok(()) } else { Err(TRAILING) }
    }
}
