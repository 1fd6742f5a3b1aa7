//! A range of reserved address space whose pages are faulted in by use and released on request.
#![allow(unsafe_code)] // mmap, madvise and raw access to the mapping

use std::{
    ffi::c_void,
    io, ptr, slice,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::prefetch::{LINE_BYTES, prefetch};

/// Reserved, zero-filled, private memory. Untouched pages cost nothing.
#[derive(Debug)]
pub(crate) struct Region {
    base: *mut u8,
    len_bytes: usize,
}

// SAFETY: a region is plain memory; the contract of its unsafe methods says who may access which
// bytes when.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len_bytes` of address space.
    pub(crate) fn reserve(len_bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no memory
        // in use.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        // Where the system makes huge pages by default, the first byte would fault in 2 MiB, and
        // released parts could come back: the account of 4 KiB pages would be wrong. A kernel
        // without huge pages rejects the advice, which is harmless. SAFETY: advice on our own new
        // mapping.
        let _ = unsafe { madvise(base, len_bytes, Advice::LinuxNoHugepage) };
        Ok(Self { base: base.cast(), len_bytes })
    }

    /// Returns the start of the mapping, which is page-aligned.
    pub(crate) fn start(&self) -> *const u8 {
        self.base
    }

    /// Returns the bytes at `offset`.
    ///
    /// # Safety
    /// Nothing writes them while the slice lives.
    pub(crate) unsafe fn bytes(&self, offset: usize, len_bytes: usize) -> &[u8] {
        self.assert_within(offset, len_bytes);
        // SAFETY: the range is in the mapping, which is initialised (zero-filled) and lives as long
        // as `self`; the caller keeps writers away.
        unsafe { slice::from_raw_parts(self.base.add(offset), len_bytes) }
    }

    /// Returns a copy of the `N` bytes at `offset`.
    ///
    /// # Safety
    /// Nothing writes them during the call.
    pub(crate) unsafe fn load<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.assert_within(offset, N);
        // SAFETY: the range is in the mapping; an array of bytes has no alignment; the caller keeps
        // writers away.
        unsafe { self.base.add(offset).cast::<[u8; N]>().read() }
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Safety
    /// Nothing else reads or writes the range during the call.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_within(offset, bytes.len());
        // SAFETY: the range is in the mapping; `bytes` cannot overlap it, as only the caller uses
        // it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
    }

    /// Reads a byte that other threads may change with [`set_byte`](Self::set_byte) concurrently.
    ///
    /// # Safety
    /// Nothing writes the byte in another way during the call.
    pub(crate) unsafe fn byte(&self, offset: usize) -> u8 {
        self.assert_within(offset, 1);
        // SAFETY: the byte is in the mapping, and the caller keeps plain writers away.
        unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.load(Relaxed)
    }

    /// Changes a byte that other threads may read with [`byte`](Self::byte) concurrently.
    ///
    /// # Safety
    /// Nothing reads or writes the byte in another way during the call.
    pub(crate) unsafe fn set_byte(&self, offset: usize, value: u8) {
        self.assert_within(offset, 1);
        // SAFETY: the byte is in the mapping, and the caller keeps plain accesses away.
        unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.store(value, Relaxed);
    }

    /// Prefetches the lines of a range. Ignores the part outside the region.
    pub(crate) fn prefetch(&self, offset: usize, len_bytes: usize) {
        let end = offset.saturating_add(len_bytes).min(self.len_bytes);
        for line in (offset..end).step_by(LINE_BYTES) {
            prefetch(self.base.wrapping_add(line));
        }
    }

    /// Faults in the memory of whole pages before it is used, if the kernel can (Linux 5.14);
    /// otherwise each page is faulted in by its first use.
    pub(crate) fn make_present(&self, offset: usize, len_bytes: usize) {
        self.assert_within(offset, len_bytes);
        let start = self.base.wrapping_add(offset).cast::<c_void>();
        // SAFETY: the range is in our mapping, and its content stays.
        let _ = unsafe { madvise(start, len_bytes, Advice::LinuxPopulateWrite) };
    }

    /// Releases the memory of whole pages; they read as zeros afterwards.
    ///
    /// # Safety
    /// Nothing else reads or writes the range during the call.
    pub(crate) unsafe fn give_back(&self, offset: usize, len_bytes: usize) {
        self.assert_within(offset, len_bytes);
        // On a system with larger pages the kernel would round up and release memory in use. There
        // the memory stays.
        let page = rustix::param::page_size();
        if !offset.is_multiple_of(page) || !len_bytes.is_multiple_of(page) {
            return;
        }
        let start = self.base.wrapping_add(offset).cast::<c_void>();
        // Only the first advice releases locked memory. Linux has it since 5.18.
        for advice in [Advice::LinuxDontneedLocked, Advice::LinuxDontNeed] {
            // SAFETY: the range is in our mapping and nobody uses it. A failure only means that the
            // pages stay.
            if unsafe { madvise(start, len_bytes, advice) }.is_ok() {
                break;
            }
        }
    }

    fn assert_within(&self, offset: usize, len_bytes: usize) {
        assert!(offset.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes), "range outside the region");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and every borrow of it has ended.
        let _ = unsafe { munmap(self.base.cast(), self.len_bytes) };
    }
}
