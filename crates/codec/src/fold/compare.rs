//! Compares two places of a page. Every build gives the same lengths.
#![allow(unsafe_code)] // Loads whole registers on both sides of a place.

use crate::mem;

/// Maximum number of bytes compared before a place.
pub(super) const BACK: usize = 32;

/// Compares the bytes at a place with those `offset` bytes before it.
pub(super) trait Compare {
    /// Number of bytes compared forward, at most 64.
    const BYTES: usize;

    /// Returns how many of the `BYTES` bytes from `p` are equal, up to the first that differs.
    ///
    /// # Safety
    /// `BYTES` bytes can be read from `p` and from `p - offset`, and the CPU has the features.
    unsafe fn forward(p: *const u8, offset: usize) -> usize;

    /// Returns how many bytes from `p` are equal, up to the first that differs; at least those until
    /// `end` if all of them are. It predicts that a comparison finds no difference, and does not
    /// wait for the number of equal bytes.
    ///
    /// # Safety
    /// `BYTES` bytes can be read from every place from `p` to `end`, and `offset` before it, and the
    /// CPU has the features.
    unsafe fn forward_long(p: *const u8, offset: usize, end: *const u8) -> usize;

    /// Returns how many of the [`BACK`] bytes before `p` are equal, from the last to the first that
    /// differs.
    ///
    /// # Safety
    /// [`BACK`] bytes can be read before `p` and before `p - offset`, and the CPU has the features.
    unsafe fn backward(p: *const u8, offset: usize) -> usize;
}

/// Compares a word at a time, on every machine.
pub(super) struct Words;

impl Compare for Words {
    const BYTES: usize = 8;

    #[inline(always)]
    unsafe fn forward(p: *const u8, offset: usize) -> usize {
        // SAFETY: upheld by the caller.
        let difference = unsafe { mem::load64(p) ^ mem::load64(p.sub(offset)) };
        difference.trailing_zeros() as usize / 8
    }

    #[inline(never)]
    unsafe fn forward_long(p: *const u8, offset: usize, end: *const u8) -> usize {
        let mut equal = 0;
        while p.wrapping_add(equal) < end {
            // SAFETY: upheld by the caller.
            match unsafe { Self::forward(p.add(equal), offset) } {
                8 => equal += 8,
                more => return equal + more,
            }
        }
        equal
    }

    #[inline(always)]
    unsafe fn backward(p: *const u8, offset: usize) -> usize {
        let mut equal = 0;
        while equal < BACK {
            // SAFETY: upheld by the caller; `equal + 8` is at most BACK.
            let difference = unsafe {
                let p = p.sub(equal + 8);
                mem::load64(p) ^ mem::load64(p.sub(offset))
            };
            if difference != 0 {
                return equal + difference.leading_zeros() as usize / 8;
            }
            equal += 8;
        }
        equal
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::{BACK, Compare};

    /// Compares 32 bytes at a time.
    pub(in super::super) struct Avx2;

    impl Compare for Avx2 {
        const BYTES: usize = 32;

        #[inline(always)]
        unsafe fn forward(p: *const u8, offset: usize) -> usize {
            // SAFETY: upheld by the caller.
            unsafe { differences32(p, offset) }.trailing_zeros() as usize
        }

        #[inline(always)]
        unsafe fn forward_long(p: *const u8, offset: usize, end: *const u8) -> usize {
            // SAFETY: upheld by the caller.
            unsafe { forward_long32(p, offset, end) }
        }

        #[inline(always)]
        unsafe fn backward(p: *const u8, offset: usize) -> usize {
            // SAFETY: upheld by the caller.
            unsafe { differences32(p.sub(BACK), offset) }.leading_zeros() as usize
        }
    }

    /// Compares 64 bytes at a time.
    pub(in super::super) struct Avx512;

    impl Compare for Avx512 {
        const BYTES: usize = 64;

        #[inline(always)]
        unsafe fn forward(p: *const u8, offset: usize) -> usize {
            // SAFETY: upheld by the caller.
            unsafe { differences64(p, offset) }.trailing_zeros() as usize
        }

        #[inline(always)]
        unsafe fn forward_long(p: *const u8, offset: usize, end: *const u8) -> usize {
            // SAFETY: upheld by the caller.
            unsafe { forward_long64(p, offset, end) }
        }

        #[inline(always)]
        unsafe fn backward(p: *const u8, offset: usize) -> usize {
            // SAFETY: upheld by the caller; AVX-512 includes AVX2.
            unsafe { differences32(p.sub(BACK), offset) }.leading_zeros() as usize
        }
    }

    /// Implements [`Compare::forward_long`].
    ///
    /// # Safety
    /// That of [`Compare::forward_long`].
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    unsafe fn forward_long32(p: *const u8, offset: usize, end: *const u8) -> usize {
        let mut equal = 0;
        while p.wrapping_add(equal) < end {
            // SAFETY: upheld by the caller.
            match unsafe { differences32(p.add(equal), offset) } {
                0 => equal += 32,
                differences => return equal + differences.trailing_zeros() as usize,
            }
        }
        equal
    }

    /// Returns a bit for each of 32 bytes: 1 if it differs.
    ///
    /// # Safety
    /// 32 bytes can be read from `p` and from `p - offset`.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn differences32(p: *const u8, offset: usize) -> u32 {
        // SAFETY: upheld by the caller.
        let (here, there) = unsafe { (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.sub(offset).cast())) };
        !(_mm256_movemask_epi8(_mm256_cmpeq_epi8(here, there)) as u32)
    }

    /// Implements [`Compare::forward_long`].
    ///
    /// # Safety
    /// That of [`Compare::forward_long`].
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn forward_long64(p: *const u8, offset: usize, end: *const u8) -> usize {
        let mut equal = 0;
        while p.wrapping_add(equal) < end {
            // SAFETY: upheld by the caller.
            match unsafe { differences64(p.add(equal), offset) } {
                0 => equal += 64,
                differences => return equal + differences.trailing_zeros() as usize,
            }
        }
        equal
    }

    /// Returns a bit for each of 64 bytes: 1 if it differs.
    ///
    /// # Safety
    /// 64 bytes can be read from `p` and from `p - offset`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn differences64(p: *const u8, offset: usize) -> u64 {
        // SAFETY: upheld by the caller.
        let (here, there) = unsafe { (_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.sub(offset).cast())) };
        _mm512_cmpneq_epi8_mask(here, there)
    }
}
