//! Arrays of atomics in reserved address space: an element is enabled before its first use, uses
//! memory from then on, and never moves.
#![allow(unsafe_code)] // atomics over plain memory

#[cfg(not(loom))]
mod rows {
    use std::{
        io,
        marker::PhantomData,
        slice,
        sync::atomic::{AtomicI64, AtomicU32, AtomicU64},
    };

    use super::super::{file::MemoryFile, region::Region};

    /// The type of an array's elements.
    ///
    /// # Safety
    /// All bytes zero are a valid value, all access through a shared reference is atomic, dropping
    /// a value does nothing, and its alignment is at most a page.
    pub(crate) unsafe trait Element {}
    // SAFETY: an integer.
    unsafe impl Element for AtomicU32 {}
    // SAFETY: an integer.
    unsafe impl Element for AtomicU64 {}
    // SAFETY: an integer.
    unsafe impl Element for AtomicI64 {}
    // SAFETY: elements side by side.
    unsafe impl<T: Element, const N: usize> Element for [T; N] {}

    /// `count` elements, all zero at first. Only those that were enabled may be accessed.
    #[derive(Debug)]
    pub(crate) struct Reserved<T> {
        region: Region,
        count: usize,
        elements: PhantomData<T>,
    }

    impl<T: Element> Reserved<T> {
        /// Reserves address space for `count` elements.
        pub(crate) fn new(count: usize) -> io::Result<Self> {
            Self::new_in(None, count)
        }

        /// Like `new`, with the elements in a file in memory, if there is one.
        pub(crate) fn new_in(file: Option<&MemoryFile>, count: usize) -> io::Result<Self> {
            let len_bytes = count.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { region: Region::reserve_in(file, len_bytes.max(1))?, count, elements: PhantomData })
        }

        /// Returns where the elements are in a file; 0 if they are in none.
        pub(crate) fn in_file(&self) -> u64 {
            self.region.in_file().unwrap_or(0)
        }

        /// Returns the number of elements.
        pub(crate) fn count(&self) -> usize {
            self.count
        }

        /// Enables the first `count` elements.
        ///
        /// # Errors
        /// The system commits no more memory to the process.
        pub(crate) fn enable(&self, count: usize) -> io::Result<()> {
            self.region.enable(count * size_of::<T>())
        }

        /// Returns all elements.
        #[inline]
        pub(crate) fn all(&self) -> &[T] {
            // SAFETY: the region has `count` elements, zero-filled or as they were left, which are
            // valid by the trait's contract. Only enabled elements are accessed, atomically. A
            // mapping is page-aligned.
            unsafe { slice::from_raw_parts(self.region.start().cast::<T>(), self.count) }
        }

        /// Releases the memory of whole pages: their elements become zero, even for threads that
        /// are reading them.
        pub(crate) fn give_back(&self, first: usize, count: usize) {
            // SAFETY: a concurrent reader reads an atomic that becomes zero; no thread writes elements
            // that are released, by the contract of the owner of their numbers (see `Slab`).
            unsafe { self.region.give_back(first * size_of::<T>(), count * size_of::<T>()) };
        }
    }
}

/// The same interface with plain boxes, whose elements loom tracks.
#[cfg(loom)]
mod rows {
    use std::io;

    use super::super::file::MemoryFile;

    pub(crate) trait Element: Default {}
    impl<T: Default> Element for T {}

    #[derive(Debug)]
    pub(crate) struct Reserved<T>(Box<[T]>);

    impl<T: Element> Reserved<T> {
        pub(crate) fn new(count: usize) -> io::Result<Self> {
            Ok(Self((0..count.min(96)).map(|_| T::default()).collect()))
        }

        pub(crate) fn new_in(_: Option<&MemoryFile>, count: usize) -> io::Result<Self> {
            Self::new(count)
        }

        pub(crate) fn in_file(&self) -> u64 {
            0
        }

        pub(crate) fn count(&self) -> usize {
            self.0.len()
        }

        pub(crate) fn enable(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        pub(crate) fn all(&self) -> &[T] {
            &self.0
        }

        pub(crate) fn give_back(&self, _: usize, _: usize) {}
    }
}

pub(crate) use rows::{Element, Reserved};

use super::file::MemoryFile;

impl<T: Element> Reserved<T> {
    /// Reserves address space for `most` elements. If that fails, halves the number, down to
    /// `least`, until it succeeds.
    pub(crate) fn at_most(file: Option<&MemoryFile>, most: usize, least: usize) -> std::io::Result<Self> {
        let mut count = most.max(least);
        loop {
            match Self::new_in(file, count) {
                Err(_) if count / 2 >= least => count /= 2,
                made => return made,
            }
        }
    }
}
