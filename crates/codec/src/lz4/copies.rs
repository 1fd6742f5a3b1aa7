//! The copies within a sequence that both decoders share.
#![allow(unsafe_code)] // Copies that overshoot; the decoders check bounds once per sequence.

use crate::mem::{copy, load64, store64, wild_copy};

/// Reads the length bytes at `*ip` as [`length`] does, but handles a single byte, the common case,
/// without its loop.
///
/// # Safety
/// `*ip..end` can be read, and is not empty.
#[inline(always)]
pub(crate) unsafe fn length_mostly_short(ip: &mut *const u8, end: *const u8) -> Option<usize> {
    // SAFETY: upheld by the caller.
    unsafe {
        let byte = **ip;
        *ip = ip.add(1);
        if byte < 255 { Some(usize::from(byte)) } else { length(ip, end).map(|more| 255 + more) }
    }
}

/// Reads length bytes and returns the sum of all up to and including the first that is not 255.
/// Returns `None` if the input ends before that byte or the sum exceeds any buffer.
///
/// # Safety
/// `*ip..end` can be read.
#[inline(always)]
pub(crate) unsafe fn length(ip: &mut *const u8, end: *const u8) -> Option<usize> {
    let mut sum: usize = 0;
    while *ip < end {
        // SAFETY: before `end`.
        let byte = unsafe { **ip };
        // SAFETY: at most `end`.
        *ip = unsafe { ip.add(1) };
        sum = sum.saturating_add(usize::from(byte));
        if byte != 255 {
            return (sum < usize::MAX / 4).then_some(sum);
        }
    }
    None
}

/// For an offset below 8: the mask of that many bytes, the factor that repeats them through 8
/// bytes, and the greatest multiple of the offset that is at most 8.
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

/// Writes the first 18 bytes of a match at `op`.
///
/// # Safety
/// 18 bytes can be written at `op`, and `offset` bytes before it, at least 8, can be read.
#[inline(always)]
pub(crate) unsafe fn short_match_far(op: *mut u8, offset: usize) {
    // SAFETY: upheld by the caller.
    unsafe {
        let from = op.sub(offset);
        copy::<8>(from, op);
        copy::<8>(from.add(8), op.add(8));
        copy::<2>(from.add(16), op.add(16));
    }
}

/// Writes at least the first 18 bytes of a match at `op`, and at most 24.
///
/// # Safety
/// 24 bytes can be written at `op`, and `offset` bytes before it, 1 to 7, can be read.
#[inline(always)]
pub(crate) unsafe fn short_match_near(op: *mut u8, offset: usize) {
    // SAFETY: upheld by the caller. The 8 bytes loaded end before `op + 8`.
    unsafe {
        let (mask, factor, step) = PATTERNS[offset & 7];
        let pattern = (load64(op.sub(offset)) & mask).wrapping_mul(factor);
        store64(op, pattern);
        store64(op.add(step), pattern);
        store64(op.add(2 * step), pattern);
    }
}

/// Maximum bytes that [`short_match`] writes.
pub(crate) const SHORT_ROOM: usize = 24;

/// Writes at least the first 18 bytes of a match at `op`, and at most [`SHORT_ROOM`].
///
/// # Safety
/// `SHORT_ROOM` bytes can be written at `op`, and `offset` bytes before it, at least 1, can be
/// read.
#[inline(always)]
pub(crate) unsafe fn short_match(op: *mut u8, offset: usize) {
    // SAFETY: upheld by the caller.
    unsafe {
        if offset >= 8 {
            short_match_far(op, offset);
        } else {
            short_match_near(op, offset);
        }
    }
}

/// Maximum bytes that [`long_match`] writes past a match of at least [`LONG`] bytes.
pub(crate) const OVERSHOOT: usize = 45;

/// Minimum length of a match with length bytes.
pub(crate) const LONG: usize = 19;

/// Writes a match of `len` bytes, at least [`LONG`], at `op`, and at most [`OVERSHOOT`] bytes past
/// it.
///
/// Most matches are shorter than 64 bytes, and no branch predictor guesses their lengths, so 64
/// bytes are copied unconditionally. Not for a match so near that the copy reads bytes it has just
/// written: each load would wait for a store.
///
/// # Safety
/// `len + OVERSHOOT` bytes can be written at `op`, and `offset` bytes before it, at least 1, can be
/// read.
#[inline(always)]
pub(crate) unsafe fn long_match(op: *mut u8, offset: usize, len: usize) {
    // SAFETY: upheld by the caller: 64 bytes, or `len` and at most 32 more.
    unsafe {
        let from = op.sub(offset);
        if offset >= 32 {
            copy::<16>(from, op);
            copy::<16>(from.add(16), op.add(16));
            copy::<16>(from.add(32), op.add(32));
            copy::<16>(from.add(48), op.add(48));
            if len > 64 {
                wild_copy::<32>(from.add(64), op.add(64), len - 64);
            }
        } else if offset >= 16 {
            copy::<16>(from, op);
            copy::<16>(from.add(16), op.add(16));
            if len > 32 {
                wild_copy::<32>(from.add(32), op.add(32), len - 32);
            }
        } else {
            if offset >= 8 {
                short_match_far(op, offset);
            } else {
                short_match_near(op, offset);
            }
            let pattern = op.cast::<[u8; 16]>().read();
            let step = 16 - 16 % offset;
            let mut at = step;
            while at < len {
                op.add(at).cast::<[u8; 16]>().write(pattern);
                at += step;
            }
        }
    }
}

/// Writes a match of `len` bytes at `op`, and at most `room`.
///
/// # Safety
/// `len <= room`, `room` bytes can be written at `op`, and `offset` bytes before it, at least 1,
/// can be read.
#[inline(always)]
pub(crate) unsafe fn careful_match(op: *mut u8, offset: usize, len: usize, room: usize) {
    // SAFETY: upheld by the caller. Copies of more than `len` bytes were checked against `room`.
    // The last 8 or 4 bytes of a match whose offset is at least that long come from before them.
    unsafe {
        let from = op.sub(offset);
        if len >= LONG && len + OVERSHOOT <= room {
            long_match(op, offset, len);
        } else if len < LONG && room >= SHORT_ROOM {
            short_match(op, offset);
        } else if len >= LONG + OVERSHOOT {
            // For example, a run of zeros up to the end of a cluster.
            let most = len - OVERSHOOT;
            long_match(op, offset, most);
            for at in most..len {
                *op.add(at) = *from.add(at);
            }
        } else if offset >= 8 && len >= 8 {
            let mut at = 0;
            while at + 8 <= len {
                copy::<8>(from.add(at), op.add(at));
                at += 8;
            }
            copy::<8>(from.add(len - 8), op.add(len - 8));
        } else if offset >= 4 && (4..8).contains(&len) {
            copy::<4>(from, op);
            copy::<4>(from.add(len - 4), op.add(len - 4));
        } else {
            for at in 0..len {
                *op.add(at) = *from.add(at);
            }
        }
    }
}

/// Copies exactly `len` bytes, usually few: a call costs more than the bytes.
///
/// # Safety
/// `len` bytes can be read from `src` and written to `dst`, and the two do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_exact(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: upheld by the caller; every copy ends at or before `len`.
    unsafe {
        if len > 32 {
            dst.copy_from_nonoverlapping(src, len);
        } else if len >= 16 {
            copy::<16>(src, dst);
            copy::<16>(src.add(len - 16), dst.add(len - 16));
        } else if len >= 8 {
            copy::<8>(src, dst);
            copy::<8>(src.add(len - 8), dst.add(len - 8));
        } else if len >= 4 {
            copy::<4>(src, dst);
            copy::<4>(src.add(len - 4), dst.add(len - 4));
        } else {
            for at in 0..len {
                *dst.add(at) = *src.add(at);
            }
        }
    }
}
