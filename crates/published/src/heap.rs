//! Compressed pages in memory: an allocator that says where they lie, and their bytes.
#![allow(unsafe_code)] // an object's bytes belong to its owner

use std::{
    fmt, io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::{PAGE_SIZE, Page};

use crate::{
    memory::{Memory, Pages},
    xcfmalloc::Xcfmalloc,
    xvmalloc::Xvmalloc,
};

/// Bits of an object's location.
pub(crate) const LOCATION_BITS: u32 = 44;

/// Which allocator a heap has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorKind {
    /// The allocator that zram and zcache began with: objects within pages.
    Xvmalloc,
    /// The one that was proposed for zcache in its place: objects in two pieces over pages.
    Xcfmalloc,
}

impl AllocatorKind {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Xvmalloc, Self::Xcfmalloc];

    /// The name in tables and benches.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xvmalloc => "xvmalloc",
            Self::Xcfmalloc => "xcfmalloc",
        }
    }
}

/// Decides where objects of 1 to 4096 bytes lie. As in both sources, one spinlock guards all that
/// an allocator knows.
pub(crate) trait Allocator: Send + Sync {
    /// Takes room for `len_bytes` and returns its location, below 2⁴⁴. `None`: there is no memory.
    fn alloc(&self, len_bytes: usize) -> Option<u64>;

    /// Gives back the room of `len_bytes` at `at`, which [`alloc`](Self::alloc) gave for that
    /// length.
    fn free(&self, at: u64, len_bytes: usize);

    /// Where in the memory the room of `len_bytes` at `at` lies, in one piece or two. No other room
    /// overlaps these, nor does the allocator use them for itself before they are given back.
    fn pieces(&self, at: u64, len_bytes: usize) -> [Range<usize>; 2];

    /// All memory that the allocator holds: the pages that objects lie in, and what it knows them
    /// by.
    fn spent_bytes(&self) -> u64;

    /// Looks the whole structure over. Returns the bytes of all objects, with their headers and
    /// rounding, or what is inconsistent.
    fn check(&self) -> Result<u64, String>;
}

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

/// An object of a [`Heap`]: whoever has it owns the object's bytes. It is not given back when
/// dropped.
#[derive(Debug)]
pub struct Object {
    at: u64,
    len_bytes: usize,
    heap: u64,
}

impl Object {
    /// Location and length.
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
    /// An empty heap for at most `objects` objects at a time, which fails with more than 4 Mi.
    pub fn new(kind: AllocatorKind, objects: u64) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        // An object takes a new page at most.
        let pages = Pages::reserve(objects)?;
        let memory = Arc::clone(pages.memory());
        let allocator: Box<dyn Allocator> = match kind {
            AllocatorKind::Xvmalloc => Box::new(Xvmalloc::new(pages)),
            AllocatorKind::Xcfmalloc => Box::new(Xcfmalloc::new(pages)),
        };
        Ok(Self { memory, allocator, number: MADE.fetch_add(1, Relaxed) })
    }

    /// Makes an object of `len_bytes` whose bytes are unspecified. `None`: there is no memory, or
    /// no object has this length.
    pub fn room(&self, len_bytes: usize) -> Option<Object> {
        let at = (1..=PAGE_SIZE).contains(&len_bytes).then(|| self.allocator.alloc(len_bytes))??;
        Some(Object { at, len_bytes, heap: self.number })
    }

    /// Makes an object of `bytes`, as [`room`](Self::room) does.
    pub fn put(&self, bytes: &[u8]) -> Option<Object> {
        let object = self.room(bytes.len())?;
        let [front, rest] = self.allocator.pieces(object.at, object.len_bytes);
        let (to_front, to_rest) = bytes.split_at(front.len());
        // SAFETY: the object was just made, so nobody else knows of these pieces, and no other
        // object overlaps them.
        unsafe {
            self.memory.write(front.start, to_front);
            self.memory.write(rest.start, to_rest);
        }
        Some(object)
    }

    /// The object's bytes: where they lie, or brought together in `buffer` if that is in two
    /// pieces.
    ///
    /// # Panics
    /// If the object is not one of this heap.
    pub fn bytes<'a>(&'a self, object: &'a Object, buffer: &'a mut Page) -> &'a [u8] {
        self.assert_own(object);
        let [front, rest] = self.allocator.pieces(object.at, object.len_bytes);
        // SAFETY: the pieces are the object's, which stays live as long as it is borrowed, and
        // nobody writes it after `put`.
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

    /// Gives the object's memory back.
    ///
    /// # Panics
    /// If the object is not one of this heap.
    pub fn remove(&self, object: Object) {
        self.assert_own(&object);
        self.allocator.free(object.at, object.len_bytes);
    }

    /// The object with these [parts](Object::parts).
    ///
    /// # Safety
    /// An object of this heap had them, and was not removed. Only one made from them is ever
    /// removed, once no other is used.
    pub(crate) unsafe fn object(&self, at: u64, len_bytes: usize) -> Object {
        Object { at, len_bytes, heap: self.number }
    }

    /// All memory that the allocator holds.
    pub fn spent_bytes(&self) -> u64 {
        self.allocator.spent_bytes()
    }

    /// Looks the whole structure over. Returns the bytes of all objects, with their headers and
    /// rounding, or what is inconsistent. For tests, with no other thread in the heap.
    pub fn check(&self) -> Result<u64, String> {
        self.allocator.check()
    }

    fn assert_own(&self, object: &Object) {
        assert_eq!(object.heap, self.number, "an object of another heap");
    }
}
