//! The interface of a heap's allocator, and the allocators.

use std::ops::Range;

/// The allocator of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorKind {
    /// The first allocator of zram and zcache: objects within pages.
    Xvmalloc,
    /// Its proposed replacement in zcache: objects in two pieces across pages.
    Xcfmalloc,
}

impl AllocatorKind {
    /// Both allocators.
    pub const ALL: [Self; 2] = [Self::Xvmalloc, Self::Xcfmalloc];

    /// The name in tables and benches.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xvmalloc => "xvmalloc",
            Self::Xcfmalloc => "xcfmalloc",
        }
    }
}

/// An allocator for objects of 1 to 4096 bytes. As in both originals, one spinlock guards an
/// allocator's whole state.
pub(crate) trait Allocator: Send + Sync {
    /// Allocates `len_bytes` and returns the location, below 2⁴⁴, or `None` if there is no memory.
    fn alloc(&self, len_bytes: usize) -> Option<u64>;

    /// Frees `len_bytes` at `at`, which [`alloc`](Self::alloc) returned for that length.
    fn free(&self, at: u64, len_bytes: usize);

    /// Returns where in the memory the `len_bytes` at `at` are, in one piece or two. No other
    /// allocation overlaps them, and the allocator does not use them until they are freed.
    fn pieces(&self, at: u64, len_bytes: usize) -> [Range<usize>; 2];

    /// Returns all memory that the allocator holds: the objects' pages and its metadata.
    fn spent_bytes(&self) -> u64;

    /// Checks the whole structure. Returns the bytes of all objects, with their headers and
    /// rounding, or the inconsistency found.
    fn check(&self) -> Result<u64, String>;
}
