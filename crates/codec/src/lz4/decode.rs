//! The decoder of an LZ4 block.
//!
//! ```text
//! until the input is used up after a sequence's literals:
//!     token             literals = high four bits, code = low four bits
//!     literals == 15 ?  add bytes up to and including the first that is not 255
//!     copy the literals
//!     offset            two bytes, little-endian, 1 ..= bytes of output so far
//!     code == 15 ?      add bytes up to and including the first that is not 255
//!     copy code + 4 bytes from `offset` back
//! ```
//!
//! Speed:
//!
//! 1. Far from both ends, `quick` decodes a sequence. It always copies 16 literals and 18 match
//!    bytes, so a short sequence has no branch on a length, and a long match with an offset of at
//!    least 32 has none before its 64th byte. Near the ends, `careful` checks and copies to the
//!    byte, and continues to the block's end.
//! 2. Sequences without length bytes and with an offset of at least 8, most of them, have a
//!    separate loop of 25 instructions, which all others leave by rarely taken branches: 3 to 7 %
//!    faster.
//! 3. An offset below 8 is expanded to a pattern of 8 bytes by one multiplication and stored at
//!    multiples of the offset, so that no load waits for bytes just stored. Long matches with an
//!    offset below 16 continue the same way with 16 bytes.
//! 4. In place, sequences need no individual test that the output does not run into the unread
//!    input. A sequence is read before it is written, and one whose literals have no length byte
//!    shrinks the gap between the two, since its 3 bytes of token and offset give at least 4 match
//!    bytes. So a gap of `QUICK_GAP` at a later sequence proves that there was one at every
//!    sequence before, back to the last whose literals have length bytes. The gap is checked there,
//!    and where `quick` ends. Runs and matches with length bytes are checked against the unread
//!    input, and against the output's end only where `quick` ends, because the input already read
//!    may be overwritten. Literals may overlap themselves, since they are copied forwards.
//! 5. In place, the output's cache lines are prefetched [`AHEAD`] bytes in advance. If unread input
//!    and output are in one 4 KiB page, as in all of a 4 KiB block, the processor sees one stream
//!    that jumps back and forth and prefetches nothing: 3 to 6 % faster at 4 KiB.
//! 6. Otherwise the block's first 2 KiB are prefetched at the start, because long literals are
//!    copied before the processor has detected the direction: 4 to 8 % faster where most of a block
//!    is literals.
#![allow(unsafe_code)] // Copies that overshoot; in place, source and destination share a buffer.

use std::ops::Range;

use crate::{
    Corrupt,
    mem::{copy, copy_literals, load16, prefetch_front, prefetch_line, wild_copy},
};

use super::copies::{LONG, OVERSHOOT, careful_match, copy_exact, length, length_mostly_short, long_match, short_match};

const MIN_MATCH: usize = 4;

/// Input bytes that `quick` may read for a sequence whose literals have no length byte: token, 14
/// literals, offset, and one length byte of the match.
const QUICK_INPUT: usize = 18;

/// Maximum output bytes that a sequence without length bytes writes: 14 literals and 24 for the
/// match.
const QUICK_OUTPUT: usize = 38;

/// In place, bytes from the output's end to the next input that a sequence without length bytes
/// needs: with `n` literals it writes at most `n + 24` bytes and consumes `n + 3`.
const QUICK_GAP: usize = 21;

/// In place, bytes from the output's end to literals with length bytes, at least 15 of them, that
/// `copy_literals` needs.
const LITERALS_GAP: usize = 64 - 15;

/// The same for a copy by 32 bytes.
const LITERALS_GAP_BY_32: usize = 32;

/// How far ahead of the output cache lines are prefetched when decoding in place, in bytes.
const AHEAD: usize = 512;

/// The input and output of a block. In place they overlap.
struct Buffers {
    input: *const u8,
    input_len: usize,
    output: *mut u8,
    output_len: usize,
    /// Bytes directly before the output in which matches may begin.
    before_len: usize,
}

/// How much of a block is decoded, and what is an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The whole block, which may not exceed the output.
    Whole,
    /// Until the output is full or the block ends. Ignores the rest of the block.
    Prefix,
}

struct Decoder {
    /// Next input byte to read.
    ip: *const u8,
    input_end: *const u8,
    /// Next output byte to write.
    op: *mut u8,
    /// The first byte at which a match may begin.
    oldest: *mut u8,
    output_end: *mut u8,
    extent: Extent,
}

enum Step {
    More,
    Done,
}

/// Decodes `block` into `out` and returns the bytes of output.
pub(crate) fn separate(block: &[u8], out: &mut [u8], extent: Extent) -> Result<usize, Corrupt> {
    let buffers = Buffers {
        input: block.as_ptr(),
        input_len: block.len(),
        output: out.as_mut_ptr(),
        output_len: out.len(),
        before_len: 0,
    };
    prefetch_front(block);
    // SAFETY: two slices, borrowed for the call, that cannot overlap.
    unsafe { decode::<false>(&buffers, extent) }
}

/// Decodes `block` into `window[before_len..]`, with matches that may begin in the bytes before
/// that, and returns the bytes of output.
pub(crate) fn after(block: &[u8], window: &mut [u8], before_len: usize) -> Result<usize, Corrupt> {
    let output_len = window[before_len..].len();
    // SAFETY: `window` has `before_len` bytes; otherwise the line above has panicked.
    let output = unsafe { window.as_mut_ptr().add(before_len) };
    let buffers = Buffers { input: block.as_ptr(), input_len: block.len(), output, output_len, before_len };
    // SAFETY: two slices, borrowed for the call, that cannot overlap.
    unsafe { decode::<false>(&buffers, Extent::Whole) }
}

/// Decodes `buffer[block]` into `buffer[..out_len]` and returns the bytes of output.
pub(super) fn in_place(buffer: &mut [u8], block: Range<usize>, out_len: usize) -> Result<usize, Corrupt> {
    if block.start > block.end || block.end > buffer.len() || out_len > buffer.len() {
        return Err(Corrupt { what: "in-place lz4 block reaches outside its buffer" });
    }
    let output = buffer.as_mut_ptr();
    for at in (0..AHEAD).step_by(64) {
        prefetch_line(output.wrapping_add(at));
    }
    // SAFETY: `block.start` is inside the buffer.
    let input = unsafe { output.add(block.start) };
    let buffers = Buffers { input, input_len: block.len(), output, output_len: out_len, before_len: 0 };
    // SAFETY: both are in `buffer`, which is borrowed for the call, and both pointers come from
    // that borrow.
    unsafe { decode::<true>(&buffers, Extent::Whole) }
}

/// Decodes one block and returns the bytes of output.
///
/// # Safety
/// For the duration of the call, `input_len` bytes from `input` are initialised and can be read,
/// `output_len` bytes from `output` are initialised and can be read and written, and `before_len`
/// bytes before them can be read. The two overlap only if `IN_PLACE`, and then both pointers are
/// derived from one borrow of their buffer.
unsafe fn decode<const IN_PLACE: bool>(buffers: &Buffers, extent: Extent) -> Result<usize, Corrupt> {
    // SAFETY: the start and one past the end of the caller's buffers.
    let (input_end, output_end, oldest) = unsafe {
        let output = buffers.output;
        (buffers.input.add(buffers.input_len), output.add(buffers.output_len), output.sub(buffers.before_len))
    };
    let mut decoder = Decoder { ip: buffers.input, input_end, op: buffers.output, oldest, output_end, extent };
    loop {
        // SAFETY: upheld by the caller; `ip` and `op` are and stay within their buffers.
        unsafe {
            decoder.quick::<IN_PLACE>()?;
            if let Step::Done = decoder.careful::<IN_PLACE>()? {
                return Ok(decoder.op.offset_from_unsigned(buffers.output));
            }
        }
    }
}

impl Decoder {
    /// Decodes sequences while all reads and writes are inside the buffers. Stops before the first
    /// sequence that it cannot decode, for whatever reason, and leaves that to `careful`.
    ///
    /// # Errors
    /// In place, if it has overwritten input that was not yet read.
    ///
    /// # Safety
    /// As for [`decode`]; `ip` and `op` point into their buffers or one past.
    #[inline(always)]
    unsafe fn quick<const IN_PLACE: bool>(&mut self) -> Result<(), Corrupt> {
        let Self { mut ip, input_end, mut op, oldest, output_end, .. } = *self;
        // In place, the distance from the output's end to the next input.
        let gap = |ip: *const u8, op: *mut u8| ip.addr().saturating_sub(op.addr());
        if IN_PLACE && gap(ip, op) < QUICK_GAP {
            return Ok(());
        }
        let last_input = input_end.addr().saturating_sub(QUICK_INPUT);
        let last_output = output_end.addr().saturating_sub(QUICK_OUTPUT);
        // Unless in place: a match with length bytes that ends after this is not copied by
        // `long_match`.
        let last_long = output_end.addr().saturating_sub(OVERSHOOT);
        'sequences: while ip.addr() <= last_input && op.addr() <= last_output {
            // SAFETY: `QUICK_INPUT` bytes can be read and `QUICK_OUTPUT` written. A length that
            // goes beyond is checked against input and output before it is used; `offset` is
            // checked against the output so far, by the match's source.
            unsafe {
                let (token, offset, offset_at, match_at);
                // Sequences without length bytes and with an offset of at least 8.
                let long = loop {
                    let first = usize::from(*ip);
                    if IN_PLACE {
                        prefetch_line(op.wrapping_add(AHEAD));
                    }
                    copy::<16>(ip.add(1), op);
                    if first >= 0xF0 {
                        core::hint::cold_path();
                        // The previous sequence may have overwritten this token and its length
                        // bytes.
                        if IN_PLACE && gap(ip, op) < QUICK_GAP {
                            break 'sequences;
                        }
                        let mut literals_at = ip.add(1);
                        let Some(more) = length_mostly_short(&mut literals_at, input_end) else { break 'sequences };
                        let literals = 15 + more;
                        let left = input_end.addr() - literals_at.addr();
                        let room = if IN_PLACE { usize::MAX } else { output_end.addr() - op.addr() };
                        let near = |gap_needed| IN_PLACE && gap(literals_at, op) < gap_needed;
                        if literals + 64 > left || literals + 64 > room || near(LITERALS_GAP) {
                            if literals + QUICK_INPUT + 16 > left
                                || literals + QUICK_OUTPUT + 16 > room
                                || near(LITERALS_GAP_BY_32)
                            {
                                break 'sequences;
                            }
                            wild_copy::<32>(literals_at, op, literals);
                        } else {
                            copy_literals(literals_at, op, literals);
                        }
                        (token, offset_at, match_at) = (first, literals_at.add(literals), op.add(literals));
                        offset = usize::from(load16(offset_at));
                        break token & 15 == 15;
                    }
                    let literals = first >> 4;
                    let to = op.add(literals);
                    let distance = usize::from(load16(ip.add(literals).add(1)));
                    let code = first & 15;
                    let from = to.wrapping_sub(distance);
                    if code == 15 {
                        (token, offset, offset_at, match_at) = (first, distance, ip.add(literals).add(1), to);
                        break true;
                    }
                    if distance < 8 || from.addr() < oldest.addr() {
                        core::hint::cold_path();
                        (token, offset, offset_at, match_at) = (first, distance, ip.add(literals).add(1), to);
                        break false;
                    }
                    copy::<8>(from, to);
                    copy::<8>(from.add(8), to.add(8));
                    copy::<2>(from.add(16), to.add(16));
                    ip = ip.add(literals).add(3);
                    op = to.add(code).add(MIN_MATCH);
                    if ip.addr() > last_input || op.addr() > last_output {
                        break 'sequences;
                    }
                };
                if offset == 0 || offset > match_at.addr() - oldest.addr() {
                    return Err(BAD_OFFSET);
                }
                if !long {
                    short_match(match_at, offset);
                    ip = offset_at.add(2);
                    op = match_at.add(MIN_MATCH + (token & 15));
                    continue;
                }
                let mut next = offset_at.add(2);
                let more = length_mostly_short(&mut next, input_end).ok_or(TRUNCATED)?;
                // Both lengths are far below `usize::MAX / 2`, so no sum overflows.
                let len = LONG + more;
                let match_end = match_at.addr() + len;
                let is_far = if IN_PLACE { match_end + OVERSHOOT <= next.addr() } else { match_end <= last_long };
                if !is_far {
                    if IN_PLACE && gap(offset_at, match_at) < QUICK_GAP {
                        return Err(OVERRUN);
                    }
                    let end = if IN_PLACE { next.addr() } else { output_end.addr() };
                    let len = long_match_near_end(match_at, offset, len, [output_end.addr(), end], self.extent)?;
                    (self.ip, self.op) = (next, match_at.add(len));
                    return Ok(());
                }
                long_match(match_at, offset, len);
                ip = next;
                op = match_at.add(len);
            }
        }
        (self.ip, self.op) = (ip, op);
        if IN_PLACE && op > output_end {
            return Err(TOO_LONG);
        }
        if IN_PLACE && gap(ip, op) < QUICK_GAP { Err(OVERRUN) } else { Ok(()) }
    }

    /// Decodes sequences with every bound checked to the byte, until the block is done or `quick`
    /// may continue.
    ///
    /// # Safety
    /// As for [`decode`]; `ip` and `op` point into their buffers or one past.
    #[inline(never)]
    unsafe fn careful<const IN_PLACE: bool>(&mut self) -> Result<Step, Corrupt> {
        let Self { mut ip, input_end, mut op, oldest, output_end, extent } = *self;
        // SAFETY: upheld by the caller; each length is checked against the remaining bytes before
        // they are touched.
        let step = unsafe {
            loop {
                if extent == Extent::Prefix && op == output_end {
                    break Step::Done;
                }
                if ip == input_end {
                    return Err(TRUNCATED);
                }
                let token = usize::from(*ip);
                ip = ip.add(1);
                let mut literals = token >> 4;
                if literals == 15 {
                    literals += length(&mut ip, input_end).ok_or(TRUNCATED)?;
                }
                let (left, room) = (input_end.offset_from_unsigned(ip), output_end.offset_from_unsigned(op));
                if literals > left {
                    return Err(TRUNCATED);
                }
                if literals > room {
                    if extent == Extent::Whole {
                        return Err(TOO_LONG);
                    }
                    literals = room;
                }
                debug_assert!(!IN_PLACE || op.addr() <= ip.addr());
                if literals <= 16 && left >= 16 && room >= 16 && (!IN_PLACE || op.addr() + 16 <= ip.addr()) {
                    copy::<16>(ip, op);
                } else if IN_PLACE {
                    op.copy_from(ip, literals);
                } else {
                    copy_exact(ip, op, literals);
                }
                ip = ip.add(literals);
                op = op.add(literals);
                if ip == input_end || (extent == Extent::Prefix && op == output_end) {
                    break Step::Done;
                }
                if input_end.offset_from_unsigned(ip) < 2 {
                    return Err(TRUNCATED);
                }
                let offset = usize::from(load16(ip));
                ip = ip.add(2);
                let mut len = MIN_MATCH + (token & 15);
                if len == LONG {
                    len += length(&mut ip, input_end).ok_or(TRUNCATED)?;
                }
                if offset == 0 || offset > op.offset_from_unsigned(oldest) {
                    return Err(BAD_OFFSET);
                }
                let room = output_end.offset_from_unsigned(op);
                if len > room {
                    if extent == Extent::Whole {
                        return Err(TOO_LONG);
                    }
                    len = room;
                }
                // In place, input that is still to be read must not be overwritten.
                let free = if IN_PLACE { ip.addr().saturating_sub(op.addr()).min(room) } else { room };
                if IN_PLACE && len > free {
                    return Err(OVERRUN);
                }
                careful_match(op, offset, len, free);
                op = op.add(len);
                if room - len > 2 * QUICK_OUTPUT {
                    break Step::More;
                }
            }
        };
        (self.ip, self.op) = (ip, op);
        Ok(step)
    }
}

/// Copies a match that ends near or beyond one of `ends`: the output's and, in place, the next
/// input. Returns how much of it fit.
///
/// # Safety
/// Output can be written from `op` to the first of `ends`, and `offset` bytes before `op`, at least
/// 1, can be read.
#[cold]
#[inline(never)]
unsafe fn long_match_near_end(
    op: *mut u8,
    offset: usize,
    len: usize,
    ends: [usize; 2],
    extent: Extent,
) -> Result<usize, Corrupt> {
    let [room, before_input] = ends.map(|end| end.saturating_sub(op.addr()));
    if len > room && extent == Extent::Whole {
        return Err(TOO_LONG);
    }
    let (len, free) = (len.min(room), room.min(before_input));
    if len > free {
        return Err(OVERRUN);
    }
    // SAFETY: upheld by the caller.
    unsafe { careful_match(op, offset, len, free) };
    Ok(len)
}

const TRUNCATED: Corrupt = Corrupt { what: "lz4 block ends inside a sequence" };
const TOO_LONG: Corrupt = Corrupt { what: "lz4 block is longer than its output" };
pub(super) const BAD_OFFSET: Corrupt = Corrupt { what: "lz4 match offset is 0 or reaches before the output" };

/// In place, the output reached an input byte before it was read.
const OVERRUN: Corrupt = Corrupt { what: "in-place lz4 block would overwrite its unread input" };
