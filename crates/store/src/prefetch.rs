//! Hints to the CPU's caches.
#![allow(unsafe_code)] // an instruction that the language has no word for

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks the CPU to have the line at `address` in its cache soon. An address outside all memory does
/// nothing.
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
