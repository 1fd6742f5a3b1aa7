//! A range of reserved address space whose front is enabled as its owner grows, and whose pages are
//! faulted in by use and released on request.
//!
//! The rest of the range allows no access, so a system that does not overcommit memory
//! (`vm.overcommit_memory=2`) charges the process for the enabled front alone.
#![allow(unsafe_code)] // mmap, mprotect, madvise and raw access to the mapping

use std::{
    ffi::c_void,
    io,
    ops::RangeInclusive,
    ptr, slice,
    sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed},
};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};

use super::{
    file::MemoryFile,
    prefetch::{LINE_BYTES, prefetch},
};
use crate::limit::machine;

/// The front ends at a multiple of this: the largest page of any Linux.
const STEP: usize = 64 << 10;

/// The bounds of a step by which the front grows, an eighth of it, if enabled memory costs nothing
/// before its use. Each growth briefly stops all page faults of the process.
const AHEAD: RangeInclusive<usize> = 1 << 20..=8 << 20;

/// Reserved, zero-filled memory: private, or a part of a file in memory. Untouched pages cost nothing.
///
/// Only the first `enabled` bytes, which never become fewer, may be accessed; any other access ends
/// the process.
#[derive(Debug)]
pub(crate) struct Region {
    base: *mut u8,
    len_bytes: usize,
    enabled: AtomicUsize,
    /// Whether the system charges the process for what is enabled, used or not.
    is_charged: bool,
    /// Its offset in its file, if it is in one.
    in_file: Option<u64>,
}

// SAFETY: a region is plain memory; the contract of its unsafe methods says who may access which
// bytes when.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len_bytes` of address space, of which nothing is enabled.
    pub(crate) fn reserve(len_bytes: usize) -> io::Result<Self> {
        Self::reserve_charged(len_bytes, machine::is_charged_unused())
    }

    /// Like `reserve`, for a part of `file` if there is one.
    #[cfg(not(loom))]
    pub(crate) fn reserve_in(file: Option<&MemoryFile>, len_bytes: usize) -> io::Result<Self> {
        match file {
            None => Self::reserve(len_bytes),
            Some(file) => Self::map(file, file.reserve(len_bytes as u64)?, len_bytes),
        }
    }

    /// Reserves address space for a part of a file, which has been reserved there. A child of this process
    /// does not get it.
    pub(crate) fn map(file: &MemoryFile, offset: u64, len_bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: as below; all of the file is changed through regions that do not overlap.
        let base = unsafe { mmap(ptr::null_mut(), len_bytes, ProtFlags::empty(), flags, file.file(), offset)? };
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork] {
            // SAFETY: advice on our own new mapping.
            let _ = unsafe { madvise(base, len_bytes, advice) };
        }
        let enabled = AtomicUsize::new(0);
        Ok(Self { base: base.cast(), len_bytes, enabled, is_charged: false, in_file: Some(offset) })
    }

    fn reserve_charged(len_bytes: usize, is_charged: bool) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no memory
        // in use.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, ProtFlags::empty(), flags)? };
        // Where the system makes huge pages by default, the first byte would fault in 2 MiB, and
        // released parts could come back: the account of 4 KiB pages would be wrong. A kernel
        // without huge pages rejects the advice, which is harmless. SAFETY: advice on our own new
        // mapping.
        let _ = unsafe { madvise(base, len_bytes, Advice::LinuxNoHugepage) };
        Ok(Self { base: base.cast(), len_bytes, enabled: AtomicUsize::new(0), is_charged, in_file: None })
    }

    /// Returns the region's offset in its file, if it is in one.
    #[cfg(not(loom))]
    pub(crate) fn in_file(&self) -> Option<u64> {
        self.in_file
    }

    /// Enables the first `end` bytes, and some more if the system allows.
    ///
    /// # Errors
    /// The system does not commit that much memory to the process, or `end` is outside the region;
    /// what was enabled stays so.
    pub(crate) fn enable(&self, end: usize) -> io::Result<()> {
        let now = self.enabled.load(Relaxed);
        if end <= now {
            return Ok(());
        }
        if end > self.len_bytes {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let ahead = if self.is_charged { 0 } else { now.clamp(*AHEAD.start(), *AHEAD.end()) };
        let usual = end.max(now + ahead.max(now / 8)).next_multiple_of(STEP);
        self.enable_exactly(now, usual.min(self.len_bytes)).or_else(|_| self.enable_exactly(now, end))
    }

    fn enable_exactly(&self, from: usize, end: usize) -> io::Result<()> {
        let start = self.base.wrapping_add(from / STEP * STEP).cast::<c_void>();
        // SAFETY: the range is in our mapping, and more access takes nothing from those who use it.
        unsafe { mprotect(start, end - from / STEP * STEP, MprotectFlags::READ | MprotectFlags::WRITE)? };
        self.enabled.fetch_max(end, Relaxed);
        Ok(())
    }

    /// Returns the start of the mapping, which is page-aligned.
    #[cfg(not(loom))]
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
        // Only the first advice for private memory releases locked memory. Linux has it since 5.18.
        let advices = match self.in_file {
            None => &[Advice::LinuxDontneedLocked, Advice::LinuxDontNeed][..],
            Some(_) => &[Advice::LinuxRemove],
        };
        for &advice in advices {
            // SAFETY: the range is in our mapping and no thread uses it. A failure only means that the
            // pages stay.
            if unsafe { madvise(start, len_bytes, advice) }.is_ok() {
                break;
            }
        }
    }

    /// Returns the bytes that the system reports to be in memory.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn resident_bytes(&self) -> usize {
        use std::os::unix::fs::FileExt;

        let page = rustix::param::page_size();
        let mut words = vec![0; self.enabled.load(Relaxed) / page * size_of::<u64>()];
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("a map of pages");
        let at = self.base.addr() / page * size_of::<u64>();
        pagemap.read_exact_at(&mut words, at as u64).expect("the region's part");
        let is_present = |word: &&[u8; 8]| u64::from_le_bytes(**word) >> 62 != 0;
        words.as_chunks().0.iter().filter(is_present).count() * page
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of the region that the system lists as writable.
    fn writable_bytes(region: &Region) -> usize {
        let (start, end) = (region.base.addr(), region.base.addr() + region.len_bytes);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a list of mappings");
        let of_line = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let [from, to] = [from, to].map(|address| usize::from_str_radix(address, 16).expect("an address"));
            rest.starts_with("rw").then(|| to.min(end).saturating_sub(from.max(start)))
        };
        maps.lines().filter_map(of_line).sum()
    }

    /// A system that does not overcommit charges for writable memory.
    #[test]
    fn only_what_was_enabled_may_be_written() {
        let region = Region::reserve_charged(1 << 32, true).expect("address space");
        assert_eq!(writable_bytes(&region), 0);
        for end in [1, 4096, STEP, STEP + 1, 1 << 20, 10 << 20, 100 << 20] {
            region.enable(end).expect("memory");
            // SAFETY: nothing else uses the region.
            unsafe { region.write(end - 1, &[7]) };
            let bytes = writable_bytes(&region);
            assert!((end..=end + end / 8 + STEP).contains(&bytes), "{bytes} bytes for {end}");
        }
        // SAFETY: as above.
        assert_eq!([0, 4095, STEP].map(|at| unsafe { region.byte(at) }), [7; 3]);
        region.enable((1 << 32) + 1).expect_err("outside");
        region.enable(1 << 32).expect("memory");
        assert_eq!(writable_bytes(&region), 1 << 32);
    }

    #[test]
    fn growth_takes_few_calls() {
        // To 2 MiB and to 1 GiB.
        for (is_charged, most) in [(true, [22, 99]), (false, [2, 44])] {
            let region = Region::reserve_charged(1 << 32, is_charged).expect("address space");
            let mut calls = 0;
            for end in (STEP..=1 << 30).step_by(STEP) {
                let before = region.enabled.load(Relaxed);
                region.enable(end).expect("memory");
                calls += usize::from(region.enabled.load(Relaxed) != before);
                let most = most[usize::from(end > 2 << 20)];
                assert!(calls <= most, "{calls} calls for {end} bytes, charged: {is_charged}");
            }
        }
    }
}
