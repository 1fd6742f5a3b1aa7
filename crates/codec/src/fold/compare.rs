//! Compares two places of a page. Every build gives the same lengths.
#![allow(unsafe_code)] // Loads whole registers on both sides of a place.

use crate::mem;

/// Maximum number of bytes compared before a place.
pub(super) const BACK: usize = 32;

const _: () = assert!(BACK.is_multiple_of(8));

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

    /// Returns a bit for each of the `BYTES` bytes from `p`, from the lowest: 1 if it is equal.
    ///
    /// # Safety
    /// That of [`forward`](Self::forward).
    unsafe fn equal(p: *const u8, offset: usize) -> u64;

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

    /// # Safety
    /// 8 bytes can be read from `p` and from `p - offset`.
    #[inline(always)]
    unsafe fn forward(p: *const u8, offset: usize) -> usize {
        // SAFETY: a word is the 8 bytes that the caller allows to read at both places.
        let difference = unsafe { mem::load64(p) ^ mem::load64(p.sub(offset)) };
        difference.trailing_zeros() as usize / 8
    }

    /// # Safety
    /// 8 bytes can be read from every place from `p` to `end`, and `offset` before it.
    #[inline(never)]
    unsafe fn forward_long(p: *const u8, offset: usize, end: *const u8) -> usize {
        let mut equal = 0;
        while p.wrapping_add(equal) < end {
            // SAFETY: `p + equal` is before `end`, where the caller lets 8 bytes be read.
            match unsafe { Self::forward(p.add(equal), offset) } {
                8 => equal += 8,
                more => return equal + more,
            }
        }
        equal
    }

    /// # Safety
    /// 8 bytes can be read from `p` and from `p - offset`.
    #[inline(always)]
    unsafe fn equal(p: *const u8, offset: usize) -> u64 {
        const LOW: u64 = 0x7F7F_7F7F_7F7F_7F7F;
        // SAFETY: a word is the 8 bytes that the caller allows to read at both places.
        let difference = unsafe { mem::load64(p) ^ mem::load64(p.sub(offset)) };
        // The highest bit of each byte: 1 if the byte is 0.
        let equal = !(((difference & LOW) + LOW) | difference | LOW);
        (equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    }

    /// # Safety
    /// [`BACK`] bytes can be read before `p` and before `p - offset`.
    #[inline(always)]
    unsafe fn backward(p: *const u8, offset: usize) -> usize {
        let mut equal = 0;
        while equal < BACK {
            // SAFETY: `equal + 8` is at most BACK, a multiple of 8, so the word is among the bytes
            // that the caller allows to read.
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

        /// # Safety
        /// 32 bytes can be read from `p` and from `p - offset`, and the CPU has AVX2.
        #[inline(always)]
        unsafe fn forward(p: *const u8, offset: usize) -> usize {
            // SAFETY: the caller vouches for the 32 bytes at both places and for the CPU.
            unsafe { differences32(p, offset) }.trailing_zeros() as usize
        }

        /// # Safety
        /// 32 bytes can be read from every place from `p` to `end`, and `offset` before it, and the
        /// CPU has AVX2.
        #[inline(always)]
        unsafe fn forward_long(p: *const u8, offset: usize, end: *const u8) -> usize {
            // SAFETY: the two functions ask the same of the caller.
            unsafe { forward_long32(p, offset, end) }
        }

        /// # Safety
        /// 32 bytes can be read from `p` and from `p - offset`, and the CPU has AVX2.
        #[inline(always)]
        unsafe fn equal(p: *const u8, offset: usize) -> u64 {
            // SAFETY: the caller vouches for the 32 bytes at both places and for the CPU.
            u64::from(!unsafe { differences32(p, offset) })
        }

        /// # Safety
        /// [`BACK`] bytes can be read before `p` and before `p - offset`, and the CPU has AVX2.
        #[inline(always)]
        unsafe fn backward(p: *const u8, offset: usize) -> usize {
            // SAFETY: the 32 bytes are the BACK bytes before `p`, which can be read (upheld by the
            // caller).
            unsafe { differences32(p.sub(BACK), offset) }.leading_zeros() as usize
        }
    }

    /// Compares 64 bytes at a time.
    pub(in super::super) struct Avx512;

    impl Compare for Avx512 {
        const BYTES: usize = 64;

        /// # Safety
        /// 64 bytes can be read from `p` and from `p - offset`, and the CPU has AVX-512 (F, BW).
        #[inline(always)]
        unsafe fn forward(p: *const u8, offset: usize) -> usize {
            // SAFETY: the caller vouches for the 64 bytes at both places and for the CPU.
            unsafe { differences64(p, offset) }.trailing_zeros() as usize
        }

        /// # Safety
        /// 64 bytes can be read from every place from `p` to `end`, and `offset` before it, and the
        /// CPU has AVX-512 (F, BW).
        #[inline(always)]
        unsafe fn forward_long(p: *const u8, offset: usize, end: *const u8) -> usize {
            // SAFETY: the two functions ask the same of the caller.
            unsafe { forward_long64(p, offset, end) }
        }

        /// # Safety
        /// 64 bytes can be read from `p` and from `p - offset`, and the CPU has AVX-512 (F, BW).
        #[inline(always)]
        unsafe fn equal(p: *const u8, offset: usize) -> u64 {
            // SAFETY: the caller vouches for the 64 bytes at both places and for the CPU.
            !unsafe { differences64(p, offset) }
        }

        /// # Safety
        /// [`BACK`] bytes can be read before `p` and before `p - offset`, and the CPU has AVX-512.
        #[inline(always)]
        unsafe fn backward(p: *const u8, offset: usize) -> usize {
            // SAFETY: the 32 bytes are the BACK ones before `p`, which the caller allows to read; a
            // CPU with AVX-512 has AVX2.
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
            // SAFETY: `p + equal` is before `end`, where the caller lets 32 bytes be read.
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
        // SAFETY: a register is the 32 bytes that the caller allows to read at both places.
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
            // SAFETY: `p + equal` is before `end`, where the caller lets 64 bytes be read.
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
        // SAFETY: a register is the 64 bytes that the caller allows to read at both places.
        let (here, there) = unsafe { (_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.sub(offset).cast())) };
        _mm512_cmpneq_epi8_mask(here, there)
    }
}
