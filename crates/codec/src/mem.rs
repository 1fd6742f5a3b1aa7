//! Unaligned loads and stores, and copies that write more than requested: the building blocks of
//! the codecs' match loops.
//!
//! All functions take raw pointers, because an LZ decoder's source and destination are parts of one
//! buffer and may overlap; holding `&` and `&mut` to them simultaneously would be undefined behaviour. A
//! codec checks its bounds once for several of these calls. Integers are little-endian on every
//! machine.
#![allow(unsafe_code)] // Unaligned access; callers check bounds once per sequence.

use core::hint;

use crate::Page;

/// Loads the 16 bits at `p`.
///
/// # Safety
/// 2 bytes from `p` can be read.
#[inline(always)]
pub(crate) unsafe fn load16(p: *const u8) -> u16 {
    // SAFETY: upheld by the caller; the read is unaligned.
    u16::from_le(unsafe { p.cast::<u16>().read_unaligned() })
}

/// Loads the 32 bits at `p`.
///
/// # Safety
/// 4 bytes from `p` can be read.
#[inline(always)]
pub(crate) unsafe fn load32(p: *const u8) -> u32 {
    // SAFETY: upheld by the caller; the read is unaligned.
    u32::from_le(unsafe { p.cast::<u32>().read_unaligned() })
}

/// Loads the 64 bits at `p`.
///
/// # Safety
/// 8 bytes from `p` can be read.
#[inline(always)]
pub(crate) unsafe fn load64(p: *const u8) -> u64 {
    // SAFETY: upheld by the caller; the read is unaligned.
    u64::from_le(unsafe { p.cast::<u64>().read_unaligned() })
}

/// Stores the 16 bits of `value` at `p`.
///
/// # Safety
/// 2 bytes from `p` can be written.
#[inline(always)]
pub(crate) unsafe fn store16(p: *mut u8, value: u16) {
    // SAFETY: upheld by the caller; the write is unaligned.
    unsafe { p.cast::<u16>().write_unaligned(value.to_le()) }
}

/// Stores the 32 bits of `value` at `p`.
///
/// # Safety
/// 4 bytes from `p` can be written.
#[inline(always)]
pub(crate) unsafe fn store32(p: *mut u8, value: u32) {
    // SAFETY: upheld by the caller; the write is unaligned.
    unsafe { p.cast::<u32>().write_unaligned(value.to_le()) }
}

/// Stores the 64 bits of `value` at `p`.
///
/// # Safety
/// 8 bytes from `p` can be written.
#[inline(always)]
pub(crate) unsafe fn store64(p: *mut u8, value: u64) {
    // SAFETY: upheld by the caller; the write is unaligned.
    unsafe { p.cast::<u64>().write_unaligned(value.to_le()) }
}

/// Fills a small table, a multiple of 32 bytes, with zeros by whole registers. The system's function
/// takes an instruction that starts slowly.
#[inline(always)]
pub(crate) fn clear(table: &mut [u16]) {
    // Opaque, or the compiler would call the system's function.
    let zero = hint::black_box(0);
    for part in table.as_chunks_mut::<16>().0 {
        *part = [zero; 16];
    }
}

/// Copies `N` bytes (8, 16, 32: one or two registers). All are read before the first is written, so
/// source and destination may overlap.
///
/// # Safety
/// `N` bytes can be read from `src` and written to `dst`.
#[inline(always)]
pub(crate) unsafe fn copy<const N: usize>(src: *const u8, dst: *mut u8) {
    // SAFETY: upheld by the caller; arrays of bytes need no alignment.
    unsafe { dst.cast::<[u8; N]>().write(src.cast::<[u8; N]>().read()) }
}

/// Copies `len` bytes, rounded up to `STEP` and at least `STEP` (16, 32), 16 at a time. Later steps
/// read bytes that earlier steps wrote: if `dst - src` is at least 16 and less than `len`, the
/// bytes repeat at that distance, as an LZ match requires.
///
/// # Safety
/// `len.next_multiple_of(STEP).max(STEP)` bytes can be read from `src` and written to `dst`.
#[inline(always)]
pub(crate) unsafe fn wild_copy<const STEP: usize>(mut src: *const u8, mut dst: *mut u8, len: usize) {
    // SAFETY: `end` is `len` bytes further, inside the caller's buffer.
    let end = unsafe { dst.add(len) };
    loop {
        // SAFETY: each step but the first starts before `end`, so it stays within `len` rounded up.
        unsafe {
            copy::<16>(src, dst);
            if STEP == 32 {
                copy::<16>(src.add(16), dst.add(16));
            }
            src = src.add(STEP);
            dst = dst.add(STEP);
        }
        if dst >= end {
            return;
        }
    }
}

/// Copies `len` bytes, rounded up to 32 and at least 64. Most literal runs with length bytes are
/// shorter than 64 and need no branch on their length. Beyond 256 bytes the system's copy is faster
/// than a loop.
///
/// # Safety
/// `(len + 31).max(64)` bytes can be read from `src` and written to `dst`. If the two overlap,
/// `dst` is before `src`.
#[inline(always)]
pub(crate) unsafe fn copy_literals(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: upheld by the caller.
    unsafe {
        copy::<16>(src, dst);
        copy::<16>(src.add(16), dst.add(16));
        copy::<16>(src.add(32), dst.add(32));
        copy::<16>(src.add(48), dst.add(48));
        if len > 64 {
            if len > 256 {
                dst.add(64).copy_from(src.add(64), len - 64);
            } else {
                wild_copy::<32>(src.add(64), dst.add(64), len - 64);
            }
        }
    }
}

/// Returns how many bytes from `a`, before `a_end`, equal those from `b`.
///
/// # Safety
/// `a <= a_end`; the bytes `a..a_end` can be read, and the same number from `b`.
#[inline(always)]
pub(crate) unsafe fn common_prefix(a: *const u8, b: *const u8, a_end: *const u8) -> usize {
    // SAFETY: upheld by the caller: both are in one buffer, `a` first.
    let len = unsafe { a_end.offset_from_unsigned(a) };
    let mut at = 0;
    while at + 8 <= len {
        // SAFETY: `at + 8 <= len` bytes can be read from both.
        let diff = unsafe { load64(a.add(at)) ^ load64(b.add(at)) };
        if diff != 0 {
            return at + diff.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    // SAFETY: `at < len` bytes can be read from both.
    while at < len && unsafe { *a.add(at) == *b.add(at) } {
        at += 1;
    }
    at
}

/// Does the same as [`common_prefix`] in steps of 8, 32 and 64: most matches end within the first,
/// most others within the second, and no step branches on where the two differ.
///
/// # Safety
/// As for [`common_prefix`], and at least 8 bytes are before `a_end`.
#[inline(always)]
pub(crate) unsafe fn common_prefix_wide(a: *const u8, b: *const u8, a_end: *const u8) -> usize {
    // SAFETY: upheld by the caller; each step was checked against the bytes left.
    unsafe {
        let diff = load64(a) ^ load64(b);
        if diff != 0 {
            return diff.trailing_zeros() as usize / 8;
        }
        let at = 8;
        #[cfg(target_arch = "x86_64")]
        let at = {
            let mut at = at;
            let len = a_end.offset_from_unsigned(a);
            if len >= 40 {
                let differ = differences::<2>(a.add(8), b.add(8));
                if differ != 0 {
                    return 8 + differ.trailing_zeros() as usize;
                }
                at = 40;
            }
            while at + 64 <= len {
                let differ = differences::<4>(a.add(at), b.add(at));
                if differ != 0 {
                    return at + differ.trailing_zeros() as usize;
                }
                at += 64;
            }
            at
        };
        at + common_prefix(a.add(at), b.add(at), a_end)
    }
}

/// Does the same as [`common_prefix_wide`] with a first step of `FIRST` bytes, 32 or 64: one branch
/// fewer depends on where the two differ.
///
/// # Safety
/// As for [`common_prefix`], and at least `FIRST` bytes are before `a_end`.
#[inline(always)]
pub(crate) unsafe fn common_prefix_by<const FIRST: usize>(a: *const u8, b: *const u8, a_end: *const u8) -> usize {
    const { assert!(FIRST == 32 || FIRST == 64) };
    // SAFETY: upheld by the caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            let differ = if FIRST == 32 { u64::from(differences::<2>(a, b) as u32) } else { differences::<4>(a, b) };
            if differ != 0 {
                return differ.trailing_zeros() as usize;
            }
            FIRST + common_prefix_by_32(a.add(FIRST), b.add(FIRST), a_end)
        }
        #[cfg(not(target_arch = "x86_64"))]
        common_prefix(a, b, a_end)
    }
}

/// Compares the rest of a long match, out of line so as not to slow short ones.
///
/// # Safety
/// As for [`common_prefix`].
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn common_prefix_by_32(a: *const u8, b: *const u8, a_end: *const u8) -> usize {
    // SAFETY: upheld by the caller; each step was checked against the bytes left.
    unsafe {
        let len = a_end.offset_from_unsigned(a);
        let mut at = 0;
        while at + 32 <= len {
            let differ = differences::<2>(a.add(at), b.add(at));
            if differ != 0 {
                return at + differ.trailing_zeros() as usize;
            }
            at += 32;
        }
        at + common_prefix(a.add(at), b.add(at), a_end)
    }
}

/// Returns a mask with a bit for each of the `16 * N` bytes at `a`, up to 64, that differs from
/// `b`.
///
/// # Safety
/// `16 * N` bytes can be read from both.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn differences<const N: usize>(a: *const u8, b: *const u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
    let mut mask = 0;
    for at in 0..N {
        // SAFETY: upheld by the caller; every x86-64 processor has SSE2.
        let equal = unsafe {
            let (a, b) = (_mm_loadu_si128(a.add(16 * at).cast()), _mm_loadu_si128(b.add(16 * at).cast()));
            _mm_movemask_epi8(_mm_cmpeq_epi8(a, b))
        };
        mask |= u64::from(!equal as u16) << (16 * at);
    }
    mask
}

/// Hints that all of a page is about to be read.
#[inline(always)]
pub(crate) fn prefetch(page: &Page) {
    for line in page.as_chunks::<64>().0 {
        prefetch_line(line.as_ptr());
    }
}

/// Hints that the first 2 KiB of `block`, or all of it if shorter, are about to be read. Skips the
/// first 64 bytes, which are read immediately.
#[inline(always)]
pub(crate) fn prefetch_front(block: &[u8]) {
    for at in (64..block.len().min(2048)).step_by(64) {
        prefetch_line(block.as_ptr().wrapping_add(at));
    }
}

/// Hints that the cache line at `p`, which may be any address, is about to be read or written.
#[inline(always)]
pub(crate) fn prefetch_line(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }
    let _ = p;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_little_endian_at_any_alignment() {
        let mut bytes: [u8; 12] = std::array::from_fn(|at| at as u8);
        for at in 0..4 {
            // SAFETY: 8 bytes from `at < 4` are inside the 12.
            unsafe {
                let p = bytes.as_mut_ptr().add(at);
                assert_eq!(load16(p), u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
                assert_eq!(load32(p), u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
                assert_eq!(load64(p), u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
                store16(p, load16(p));
                store64(p, load64(p));
            }
        }
        assert_eq!(bytes, std::array::from_fn(|at| at as u8));
    }

    #[test]
    fn wild_copy_repeats_a_distance_and_stays_within_the_rounded_length() {
        fn check<const STEP: usize>(len: usize, distance: usize) {
            let mut buffer: Vec<u8> = (0..160).map(|at| at as u8).collect();
            let mut want = buffer.clone();
            for at in distance..distance + len.next_multiple_of(STEP).max(STEP) {
                want[at] = want[at - distance];
            }
            // SAFETY: `distance` and the rounded length are at most 40 and 96.
            unsafe {
                let p = buffer.as_mut_ptr();
                wild_copy::<STEP>(p, p.add(distance), len);
            }
            assert_eq!(buffer, want, "len {len} distance {distance}");
        }
        for len in 0..70 {
            for distance in 16..40 {
                check::<16>(len, distance);
                check::<32>(len, distance);
            }
        }
    }

    #[test]
    fn common_prefix_agrees_with_the_bytewise_count() {
        for len in 0..200_usize {
            for differ in 0..=len {
                let a = vec![7; len];
                let mut b = a.clone();
                if let Some(byte) = b.get_mut(differ) {
                    *byte = 8;
                }
                // SAFETY: both have `len` bytes.
                let found = unsafe { common_prefix(a.as_ptr(), b.as_ptr(), a.as_ptr().add(len)) };
                assert_eq!(found, differ);
                if len >= 8 {
                    // SAFETY: both have `len` bytes, 8 or more.
                    let found = unsafe { common_prefix_wide(a.as_ptr(), b.as_ptr(), a.as_ptr().add(len)) };
                    assert_eq!(found, differ);
                }
            }
        }
    }
}
