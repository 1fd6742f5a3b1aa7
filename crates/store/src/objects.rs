//! A heap's objects without a pool around them.
#![allow(unsafe_code)] // keeps the heap's promises by ownership

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::PAGE_SIZE;

use crate::{
    budget::Budget,
    heap::{Heap, Location},
};

/// Objects of 1 to 4096 bytes in a heap, which nothing moves. For measuring the heap: a pool does
/// more with the same one.
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

/// An object of [`Objects`]. It is not given back when dropped.
#[derive(Debug)]
pub struct Object {
    at: Location,
    len_bytes: usize,
    objects: u64,
}

impl Objects {
    /// An empty heap.
    pub fn new() -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let heap = Heap::new(Arc::new(Budget::new(u64::MAX, 1)))?;
        Ok(Self { heap, number: MADE.fetch_add(1, Relaxed) })
    }

    /// Makes an object of `len_bytes` whose bytes are unspecified. `None`: there is no memory, or
    /// no object has this length.
    pub fn room(&self, len_bytes: usize) -> Option<Object> {
        let at = (1..=PAGE_SIZE).contains(&len_bytes).then(|| self.heap.alloc(len_bytes, 0).ok())??;
        Some(Object { at, len_bytes, objects: self.number })
    }

    /// Makes an object of `bytes`, as [`room`](Self::room) does.
    pub fn put(&self, bytes: &[u8]) -> Option<Object> {
        let object = self.room(bytes.len())?;
        // SAFETY: just allocated with this length; nobody else knows of it.
        unsafe { self.heap.write(object.at, bytes) };
        Some(object)
    }

    /// Copies the object's bytes to `out`.
    ///
    /// # Panics
    /// If the object is not one of these or `out` has another length.
    pub fn get(&self, object: &Object, out: &mut [u8]) {
        self.assert_own(object);
        assert_eq!(out.len(), object.len_bytes, "the object's length");
        // SAFETY: the object is this heap's and live, as `remove` takes it; nothing writes it after
        // `put`.
        unsafe { self.heap.read(object.at, out) };
    }

    /// Gives the object's memory back.
    ///
    /// # Panics
    /// If the object is not one of these.
    pub fn remove(&self, object: Object) {
        self.assert_own(&object);
        // SAFETY: the object is this heap's, and there is no other like it.
        unsafe { self.heap.free(object.at) };
    }

    /// All memory that the heap holds.
    pub fn spent_bytes(&self) -> u64 {
        self.heap.account().held_bytes
    }

    fn assert_own(&self, object: &Object) {
        assert_eq!(object.objects, self.number, "an object of another heap");
    }
}
