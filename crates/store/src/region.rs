//! A stretch of reserved address space whose pages come with use and go when told.
#![allow(unsafe_code)] // mmap, madvise and raw access to what they give

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

// SAFETY: a region is plain memory; who may touch which bytes when is the contract of its unsafe
// methods.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len_bytes` of address space.
    pub(crate) fn reserve(len_bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in
        // use.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        // Where the system makes huge pages of its own accord, 2 MiB would come with the first
        // byte, and come back after parts were given back: the account of 4 KiB pages would be
        // untrue. A kernel without huge pages refuses; good. SAFETY: advice on our own new mapping.
        let _ = unsafe { madvise(base, len_bytes, Advice::LinuxNoHugepage) };
        Ok(Self { base: base.cast(), len_bytes })
    }

    /// Where the mapping begins: at a page.
    pub(crate) fn start(&self) -> *const u8 {
        self.base
    }

    /// The bytes at `offset`.
    ///
    /// # Safety
    /// Nothing writes them while the slice lives.
    pub(crate) unsafe fn bytes(&self, offset: usize, len_bytes: usize) -> &[u8] {
        self.assert_within(offset, len_bytes);
        // SAFETY: the range lies in the mapping, which is initialised (zero-filled) and lives as
        // long as `self`; the caller keeps writers away.
        unsafe { slice::from_raw_parts(self.base.add(offset), len_bytes) }
    }

    /// The `N` bytes at `offset`, copied.
    ///
    /// # Safety
    /// Nothing writes them meanwhile.
    pub(crate) unsafe fn load<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.assert_within(offset, N);
        // SAFETY: the range lies in the mapping; an array of bytes has no alignment; the caller
        // keeps writers away.
        unsafe { self.base.add(offset).cast::<[u8; N]>().read() }
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Safety
    /// Nothing else reads or writes the range meanwhile.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_within(offset, bytes.len());
        // SAFETY: the range lies in the mapping; `bytes` cannot overlap it, as the caller alone
        // uses it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
    }

    /// Reads a byte that other threads may change by [`set_byte`](Self::set_byte) at the same time.
    ///
    /// # Safety
    /// Nothing writes the byte by other means meanwhile.
    pub(crate) unsafe fn byte(&self, offset: usize) -> u8 {
        self.assert_within(offset, 1);
        // SAFETY: the byte lies in the mapping, and the caller keeps plain writers away.
        unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.load(Relaxed)
    }

    /// Changes a byte that other threads may read by [`byte`](Self::byte) at the same time.
    ///
    /// # Safety
    /// Nothing reads or writes the byte by other means meanwhile.
    pub(crate) unsafe fn set_byte(&self, offset: usize, value: u8) {
        self.assert_within(offset, 1);
        // SAFETY: the byte lies in the mapping, and the caller keeps plain accesses away.
        unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.store(value, Relaxed);
    }

    /// Asks the CPU to have the lines of a range in its cache soon. The part of it outside the
    /// region does nothing.
    pub(crate) fn prefetch(&self, offset: usize, len_bytes: usize) {
        let end = offset.saturating_add(len_bytes).min(self.len_bytes);
        for line in (offset..end).step_by(LINE_BYTES) {
            prefetch(self.base.wrapping_add(line));
        }
    }

    /// Has the memory of whole pages present before it is used, where the kernel can (Linux 5.14);
    /// else each comes with its first use.
    pub(crate) fn make_present(&self, offset: usize, len_bytes: usize) {
        self.assert_within(offset, len_bytes);
        let start = self.base.wrapping_add(offset).cast::<c_void>();
        // SAFETY: the range lies in our mapping, and what is in it stays.
        let _ = unsafe { madvise(start, len_bytes, Advice::LinuxPopulateWrite) };
    }

    /// Gives the memory of whole pages back; they read as zeros afterwards.
    ///
    /// # Safety
    /// Nothing else reads or writes the range meanwhile.
    pub(crate) unsafe fn give_back(&self, offset: usize, len_bytes: usize) {
        self.assert_within(offset, len_bytes);
        // On a system with larger pages the kernel would round up, over memory in use. There it
        // stays.
        let page = rustix::param::page_size();
        if !offset.is_multiple_of(page) || !len_bytes.is_multiple_of(page) {
            return;
        }
        let start = self.base.wrapping_add(offset).cast::<c_void>();
        // Of locked memory, only the first gives anything back. Linux has it from 5.18 on.
        for advice in [Advice::LinuxDontneedLocked, Advice::LinuxDontNeed] {
            // SAFETY: the range lies in our mapping and nobody uses it. A failure only means that
            // the pages stay.
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
