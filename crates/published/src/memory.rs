//! The memory of an allocator's objects.
#![allow(unsafe_code)] // raw access to a mapping

use std::{
    io, slice,
    sync::{Arc, atomic::AtomicU32},
};

use memmap2::{Advice, MmapOptions, MmapRaw};
use pagefold_codec::PAGE_SIZE;

/// Zero-filled memory of a fixed length, whose pages are faulted in by their first use.
#[derive(Debug)]
pub(crate) struct Memory(MmapRaw);

impl Memory {
    fn reserve(len_bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(len_bytes).no_reserve_swap().map_anon()?;
        // Pages of 4 KiB, like those of the store that this is compared with. A kernel without huge
        // pages rejects the advice.
        let _ = map.advise(Advice::NoHugePage);
        Ok(Self(map.into()))
    }

    /// Returns the four bytes at `offset`, a multiple of four, for an allocator's metadata.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a word at {offset}");
        self.assert_within(offset, 4);
        // SAFETY: the word is in the mapping, which begins at a page, is initialised and lives as
        // long as `self`. The contracts of `bytes` and `write` keep plain accesses away.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(offset).cast()) }
    }

    /// Returns the bytes at `offset`.
    ///
    /// # Safety
    /// While the slice lives, nothing writes them or uses a [`word`](Self::word) of them.
    pub(crate) unsafe fn bytes(&self, offset: usize, len_bytes: usize) -> &[u8] {
        self.assert_within(offset, len_bytes);
        // SAFETY: the range is in the mapping, which is initialised and lives as long as `self`;
        // the caller keeps writers away.
        unsafe { slice::from_raw_parts(self.0.as_ptr().add(offset), len_bytes) }
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Safety
    /// During the call, nothing else reads or writes the range or uses a [`word`](Self::word) of
    /// it.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_within(offset, bytes.len());
        // SAFETY: the range is in the mapping and only the caller uses it, so `bytes` cannot
        // overlap it.
        unsafe { self.0.as_mut_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn assert_within(&self, offset: usize, len_bytes: usize) {
        assert!(offset.checked_add(len_bytes).is_some_and(|end| end <= self.0.len()), "range outside the memory");
    }
}

/// Pages of a [`Memory`] that are taken and given back one by one. They are named by the offset of
/// their first byte.
///
/// A returned page stays with the process until it is taken again: releasing it to the system needs
/// a call, and allocators in the kernel have no such cost. [`held_bytes`](Self::held_bytes) counts
/// only the pages that are taken.
#[derive(Debug)]
pub(crate) struct Pages {
    memory: Arc<Memory>,
    given: Vec<u32>,
    /// Pages with this number or a higher one have never been taken.
    fresh: u32,
    most: u32,
}

/// The maximum number of pages, 16 GiB: allocators number words of 4 bytes with 32 bits.
const PAGES_MAX: u64 = 1 << 22;

impl Pages {
    /// Reserves `count` pages, none of them taken. Fails for more than 4 Mi (16 GiB).
    pub(crate) fn reserve(count: u64) -> io::Result<Self> {
        if count > PAGES_MAX {
            let what = format!("{count} pages are more than the {PAGES_MAX} that an allocator can number");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let memory = Arc::new(Memory::reserve(count.max(1) as usize * PAGE_SIZE)?);
        Ok(Self { memory, given: Vec::new(), fresh: 0, most: count as u32 })
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Takes a page with unspecified content.
    pub(crate) fn take(&mut self) -> Option<usize> {
        let page = match self.given.pop() {
            Some(page) => page,
            None if self.fresh < self.most => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        Some(page as usize * PAGE_SIZE)
    }

    /// Gives back the page at `offset`.
    pub(crate) fn give(&mut self, offset: usize) {
        self.given.push((offset / PAGE_SIZE) as u32);
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        (self.fresh as usize - self.given.len()) as u64 * PAGE_SIZE as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn bytes_stay_where_they_were_put() {
        let memory = Memory::reserve(2 * PAGE_SIZE).expect("two pages");
        // SAFETY: there is no other thread, and no slice lives on.
        unsafe {
            assert_eq!(memory.bytes(0, 2 * PAGE_SIZE), [0; 2 * PAGE_SIZE]);
            memory.write(PAGE_SIZE - 2, b"four");
            assert_eq!(memory.bytes(PAGE_SIZE - 3, 6), b"\0four\0");
        }
        memory.word(8).store(u32::from_ne_bytes(*b"word"), Relaxed);
        // SAFETY: as above.
        assert_eq!(unsafe { memory.bytes(7, 6) }, b"\0word\0");
    }

    #[test]
    #[should_panic(expected = "outside the memory")]
    fn ranges_outside_are_refused() {
        // SAFETY: there is no other thread.
        unsafe { Memory::reserve(PAGE_SIZE).expect("a page").write(PAGE_SIZE - 1, b"ab") };
    }

    #[test]
    fn pages_are_taken_once_and_taken_again() {
        let mut pages = Pages::reserve(2).expect("two pages");
        let both = [pages.take().expect("a page"), pages.take().expect("a page")];
        assert_eq!(both, [0, PAGE_SIZE]);
        assert_eq!((pages.take(), pages.held_bytes()), (None, 2 * PAGE_SIZE as u64));
        pages.give(0);
        assert_eq!(pages.held_bytes(), PAGE_SIZE as u64);
        assert_eq!((pages.take(), pages.take()), (Some(0), None));
        assert!(Pages::reserve(PAGES_MAX + 1).is_err());
    }
}
