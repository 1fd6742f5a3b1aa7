//! The pieces of a sequence that both decoders copy.
#![allow(unsafe_code)] // Copies that overshoot; the decoders check their bounds once a sequence.

use crate::mem::{copy, load64, store64, wild_copy};

/// Bytes past a match that copying it may write, at most.
pub(crate) const OVERSHOOT: usize = 32;

/// Reads length bytes: the sum of all up to and with the first that is not 255. `None` if the input ends before that one.
/// The sum is at most 255 times the input's length.
///
/// # Safety
/// `*ip..end` can be read.
#[inline(always)]
pub(crate) unsafe fn length(ip: &mut *const u8, end: *const u8) -> Option<usize> {
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
pub(crate) unsafe fn short_match(op: *mut u8, offset: usize) {
    // SAFETY: the caller's.
    unsafe {
        if offset >= 8 {
            short_match_far(op, offset);
        } else {
            short_match_near(op, offset);
        }
    }
}

/// [`short_match`] of an offset of 8 or more.
///
/// # Safety
/// As [`short_match`]'s.
#[inline(always)]
pub(crate) unsafe fn short_match_far(op: *mut u8, offset: usize) {
    // SAFETY: the caller's.
    unsafe {
        let from = op.sub(offset);
        copy::<8>(from, op);
        copy::<8>(from.add(8), op.add(8));
        copy::<2>(from.add(16), op.add(16));
    }
}

/// [`short_match`] of an offset under 8.
///
/// # Safety
/// As [`short_match`]'s.
#[inline(always)]
pub(crate) unsafe fn short_match_near(op: *mut u8, offset: usize) {
    // SAFETY: the caller's. The 8 bytes loaded end before `op + 8`.
    unsafe {
        let (mask, factor, step) = PATTERNS[offset & 7];
        let pattern = (load64(op.sub(offset)) & mask).wrapping_mul(factor);
        store64(op, pattern);
        store64(op.add(step), pattern);
        store64(op.add(2 * step), pattern);
    }
}

/// Writes a match of `len` bytes at `op`, and no more than [`OVERSHOOT`] bytes past it.
///
/// # Safety
/// `len + OVERSHOOT` bytes can be written at `op`, and `offset` of at least 1 bytes before it read.
#[inline(always)]
pub(crate) unsafe fn long_match(op: *mut u8, offset: usize, len: usize) {
    // SAFETY: the caller's. Each step starts before `op + len` and writes at most 32 bytes.
    unsafe {
        if offset >= 16 {
            wild_copy::<32>(op.sub(offset), op, len);
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

/// Writes a match of `len` bytes at `op`, and no more than `room`.
///
/// # Safety
/// `len <= room`, `room` bytes can be written at `op`, and `offset` of at least 1 bytes before it read.
#[inline(always)]
pub(crate) unsafe fn careful_match(op: *mut u8, offset: usize, len: usize, room: usize) {
    // SAFETY: the caller's, and what each writes was compared with `room`.
    unsafe {
        if len + OVERSHOOT <= room {
            long_match(op, offset, len);
        } else {
            let from = op.sub(offset);
            let mut at = 0;
            while offset >= 8 && at + 8 <= room && at < len {
                copy::<8>(from.add(at), op.add(at));
                at += 8;
            }
            while at < len {
                *op.add(at) = *from.add(at);
                at += 1;
            }
        }
    }
}
