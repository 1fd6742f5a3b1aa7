//! Rows of atomics in reserved address space: an element costs memory from its first use on, and
//! never moves or goes away.
#![allow(unsafe_code)] // atomics over plain memory

#[cfg(not(loom))]
mod rows {
    use std::{
        io,
        marker::PhantomData,
        slice,
        sync::atomic::{AtomicI64, AtomicU32, AtomicU64},
    };

    use crate::region::Region;

    /// What may lie in a row.
    ///
    /// # Safety
    /// All bytes zero are a valid value, all access through a shared reference is atomic, nothing
    /// is done when it is dropped, and its alignment is at most a page.
    pub(crate) unsafe trait Element {}
    // SAFETY: an integer.
    unsafe impl Element for AtomicU32 {}
    // SAFETY: an integer.
    unsafe impl Element for AtomicU64 {}
    // SAFETY: an integer.
    unsafe impl Element for AtomicI64 {}
    // SAFETY: elements side by side.
    unsafe impl<T: Element, const N: usize> Element for [T; N] {}

    /// `count` elements, all zero at first.
    #[derive(Debug)]
    pub(crate) struct Reserved<T> {
        region: Region,
        count: usize,
        elements: PhantomData<T>,
    }

    impl<T: Element> Reserved<T> {
        /// Reserves address space for `count` elements.
        pub(crate) fn new(count: usize) -> io::Result<Self> {
            let len_bytes = count.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { region: Region::reserve(len_bytes.max(1))?, count, elements: PhantomData })
        }

        /// How many elements there are.
        pub(crate) fn count(&self) -> usize {
            self.count
        }

        /// All of them.
        #[inline]
        pub(crate) fn all(&self) -> &[T] {
            // SAFETY: the region has `count` elements, zero-filled or as they were left, which are
            // valid by the trait's contract and only touched atomically; a mapping begins at a
            // page.
            unsafe { slice::from_raw_parts(self.region.start().cast::<T>(), self.count) }
        }

        /// Gives the memory of whole pages back: their elements become zero, for those too who read
        /// them just now.
        pub(crate) fn give_back(&self, first: usize, count: usize) {
            // SAFETY: who reads meanwhile reads an atomic that becomes zero; nobody writes elements
            // that are given back, by the contract of those who number them (see `Slab`).
            unsafe { self.region.give_back(first * size_of::<T>(), count * size_of::<T>()) };
        }
    }
}

/// The same as plain boxes, whose elements loom watches.
#[cfg(loom)]
mod rows {
    use std::io;

    pub(crate) trait Element: Default {}
    impl<T: Default> Element for T {}

    #[derive(Debug)]
    pub(crate) struct Reserved<T>(Box<[T]>);

    impl<T: Element> Reserved<T> {
        pub(crate) fn new(count: usize) -> io::Result<Self> {
            Ok(Self((0..count.min(96)).map(|_| T::default()).collect()))
        }

        pub(crate) fn count(&self) -> usize {
            self.0.len()
        }

        pub(crate) fn all(&self) -> &[T] {
            &self.0
        }

        pub(crate) fn give_back(&self, _: usize, _: usize) {}
    }
}

pub(crate) use rows::{Element, Reserved};

impl<T: Element> Reserved<T> {
    /// Reserves address space for `most` elements, or for half as many until that can be had, down
    /// to `least`.
    pub(crate) fn at_most(most: usize, least: usize) -> std::io::Result<Self> {
        let mut count = most.max(least);
        loop {
            match Self::new(count) {
                Err(_) if count / 2 >= least => count /= 2,
                made => return made,
            }
        }
    }
}
