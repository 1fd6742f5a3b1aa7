//! Prefetch hints to the CPU.
#![allow(unsafe_code)] // an instruction without a safe wrapper

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Prefetches the line at `address`. An address outside all memory does nothing.
#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which changes no memory and cannot fault; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
