//! A heap of objects without a pool.
#![allow(unsafe_code)] // upholds the heap's contract by ownership

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::PAGE_SIZE;

use super::{Heap, owners::Location};
use crate::limit::Budget;

/// Objects of 1 to 4096 bytes in a heap that never moves them. For benchmarks of the heap that
/// pools use.
///
/// ```
/// use pagefold_store::Objects;
///
/// let objects = Objects::new()?;
/// let object = objects.put(b"sixteen bytes...").expect("memory");
/// let mut back = [0; 16];
/// objects.get(&object, &mut back);
/// assert_eq!(&back, b"sixteen bytes...");
/// objects.remove(object);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Objects {
    heap: Heap,
    number: u64,
}

/// An object of [`Objects`]. Dropping it does not free it.
#[derive(Debug)]
pub struct Object {
    at: Location,
    len_bytes: usize,
    objects: u64,
}

impl Objects {
    /// Creates an empty heap.
    pub fn new() -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let heap = Heap::new(Arc::new(Budget::new(u64::MAX, 1)), None)?;
        Ok(Self { heap, number: MADE.fetch_add(1, Relaxed) })
    }

    /// Allocates an object of `len_bytes` with unspecified content. Returns `None` if there is no
    /// memory or the length is invalid.
    pub fn room(&self, len_bytes: usize) -> Option<Object> {
        let at = (1..=PAGE_SIZE).contains(&len_bytes).then(|| self.heap.alloc(len_bytes, 0).ok())??;
        Some(Object { at, len_bytes, objects: self.number })
    }

    /// Stores `bytes` as an object, allocated like [`room`](Self::room).
    pub fn put(&self, bytes: &[u8]) -> Option<Object> {
        let object = self.room(bytes.len())?;
        // SAFETY: just allocated with this length; no other thread knows of it.
        unsafe { self.heap.write(object.at, bytes) };
        Some(object)
    }

    /// Copies the object's bytes to `out`.
    ///
    /// # Panics
    /// If the object belongs to another heap or `out` has another length.
    pub fn get(&self, object: &Object, out: &mut [u8]) {
        self.assert_own(object);
        assert_eq!(out.len(), object.len_bytes, "the object's length");
        // SAFETY: the object belongs to this heap and is live, as `remove` consumes it; nothing
        // writes it after `put`.
        unsafe { self.heap.read(object.at, out) };
    }

    /// Frees the object.
    ///
    /// # Panics
    /// If the object belongs to another heap.
    pub fn remove(&self, object: Object) {
        self.assert_own(&object);
        // SAFETY: the object belongs to this heap, and nothing else names it.
        unsafe { self.heap.free(object.at) };
    }

    /// Returns all memory that the heap holds.
    pub fn spent_bytes(&self) -> u64 {
        self.heap.account().held_bytes
    }

    fn assert_own(&self, object: &Object) {
        assert_eq!(object.objects, self.number, "an object of another heap");
    }
}
