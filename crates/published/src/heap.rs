//! Compressed pages in memory: their bytes, and an allocator that places them.
#![allow(unsafe_code)] // an object's bytes belong to its owner

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::{PAGE_SIZE, Page};

use crate::{
    allocator::{Allocator, AllocatorKind},
    memory::{Memory, Pages},
    xcfmalloc::Xcfmalloc,
    xvmalloc::Xvmalloc,
};

/// Bits of an object's location.
pub(crate) const LOCATION_BITS: u32 = 44;

/// Memory for objects of 1 to 4096 bytes, whose bytes never change.
///
/// ```
/// use pagefold_published::{AllocatorKind, Heap};
///
/// let heap = Heap::new(AllocatorKind::Xvmalloc, 1000)?;
/// let object = heap.put(b"sixteen bytes...").expect("memory");
/// assert_eq!(heap.bytes(&object, &mut [0; 4096]), b"sixteen bytes...");
/// heap.remove(object);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Heap {
    memory: Arc<Memory>,
    allocator: Box<dyn Allocator>,
    number: u64,
}

/// An object of a [`Heap`], which owns its bytes. Dropping it does not free it.
#[derive(Debug)]
pub struct Object {
    at: u64,
    len_bytes: usize,
    heap: u64,
}

impl Object {
    /// Returns location and length.
    pub(crate) fn parts(&self) -> (u64, usize) {
        (self.at, self.len_bytes)
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("spent_bytes", &self.spent_bytes()).finish_non_exhaustive()
    }
}

impl Heap {
    /// Creates an empty heap for at most `objects` objects at a time. Fails for more than 4 Mi.
    pub fn new(kind: AllocatorKind, objects: u64) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        // An object takes at most one new page.
        let pages = Pages::reserve(objects)?;
        let memory = Arc::clone(pages.memory());
        let allocator: Box<dyn Allocator> = match kind {
            AllocatorKind::Xvmalloc => Box::new(Xvmalloc::new(pages)),
            AllocatorKind::Xcfmalloc => Box::new(Xcfmalloc::new(pages)),
        };
        Ok(Self { memory, allocator, number: MADE.fetch_add(1, Relaxed) })
    }

    /// Allocates an object of `len_bytes` with unspecified content. Returns `None` if there is no
    /// memory or the length is invalid.
    pub fn room(&self, len_bytes: usize) -> Option<Object> {
        let at = (1..=PAGE_SIZE).contains(&len_bytes).then(|| self.allocator.alloc(len_bytes))??;
        Some(Object { at, len_bytes, heap: self.number })
    }

    /// Stores `bytes` as an object, allocated like [`room`](Self::room).
    pub fn put(&self, bytes: &[u8]) -> Option<Object> {
        let object = self.room(bytes.len())?;
        let [front, rest] = self.allocator.pieces(object.at, object.len_bytes);
        let (to_front, to_rest) = bytes.split_at(front.len());
        // SAFETY: the object was just allocated, so no other thread knows of these pieces, and no other
        // object overlaps them.
        unsafe {
            self.memory.write(front.start, to_front);
            self.memory.write(rest.start, to_rest);
        }
        Some(object)
    }

    /// Returns the object's bytes: in place, or assembled in `buffer` if they are in two pieces.
    ///
    /// # Panics
    /// If the object belongs to another heap.
    pub fn bytes<'a>(&'a self, object: &'a Object, buffer: &'a mut Page) -> &'a [u8] {
        self.assert_own(object);
        let [front, rest] = self.allocator.pieces(object.at, object.len_bytes);
        // SAFETY: the pieces belong to the object, which stays live as long as it is borrowed, and
        // no thread writes it after `put`.
        let (front, rest) =
            unsafe { (self.memory.bytes(front.start, front.len()), self.memory.bytes(rest.start, rest.len())) };
        if rest.is_empty() {
            return front;
        }
        let bytes = &mut buffer[..object.len_bytes];
        let (to_front, to_rest) = bytes.split_at_mut(front.len());
        to_front.copy_from_slice(front);
        to_rest.copy_from_slice(rest);
        bytes
    }

    /// Frees the object.
    ///
    /// # Panics
    /// If the object belongs to another heap.
    pub fn remove(&self, object: Object) {
        self.assert_own(&object);
        self.allocator.free(object.at, object.len_bytes);
    }

    /// Returns the object with these [parts](Object::parts).
    ///
    /// # Safety
    /// An object of this heap had these parts and was not removed. Of all the objects made from
    /// them, only one is ever removed, after the last use of the others.
    pub(crate) unsafe fn object(&self, at: u64, len_bytes: usize) -> Object {
        Object { at, len_bytes, heap: self.number }
    }

    /// Returns all memory that the allocator holds.
    pub fn spent_bytes(&self) -> u64 {
        self.allocator.spent_bytes()
    }

    /// Checks the whole structure. Returns the bytes of all objects, with their headers and
    /// rounding, or the inconsistency found. For tests, with no other thread in the heap.
    pub fn check(&self) -> Result<u64, String> {
        self.allocator.check()
    }

    fn assert_own(&self, object: &Object) {
        assert_eq!(object.heap, self.number, "an object of another heap");
    }
}
