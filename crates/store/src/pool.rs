//! What a store asks of the memory that holds its objects.
#![allow(unsafe_code)] // declares methods that trust their caller; has no unsafe block

use crate::budget::Full;

/// Where an object lies: a number below 2⁴⁴ that only the pool that gave it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location(u64);

impl Location {
    pub(crate) const BITS: u32 = 44;

    /// The location with this number, cut to 44 bits.
    pub(crate) fn new(number: u64) -> Self {
        Self(number & ((1 << Self::BITS) - 1))
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// Memory for objects of 1 to 4096 bytes.
///
/// An object is *live* from the [`alloc`](Self::alloc) that gave its location to the [`free`](Self::free) that took it
/// back. Whoever holds the lock of the entry that names an object, or has not yet put it in an entry, owns it.
pub(crate) trait Pool: Send + Sync {
    /// Takes room for `len_bytes` (1 to 4096) whose bytes are unspecified.
    fn alloc(&self, len_bytes: usize) -> Result<Location, Full>;

    /// The object's bytes.
    ///
    /// # Safety
    /// `at` came from `alloc(len_bytes)` of this pool, is live, and is neither written nor freed while the slice is.
    unsafe fn bytes(&self, at: Location, len_bytes: usize) -> &[u8];

    /// Stores the object's bytes.
    ///
    /// # Safety
    /// `at` came from `alloc(bytes.len())` of this pool, is live, and the caller alone uses it.
    unsafe fn write(&self, at: Location, bytes: &[u8]);

    /// Gives the object's room back.
    ///
    /// # Safety
    /// `at` came from `alloc(len_bytes)` of this pool, is live, and the caller alone uses it.
    unsafe fn free(&self, at: Location, len_bytes: usize);

    /// Bytes of memory the pool holds for objects, unused room included.
    fn used_bytes(&self) -> u64;

    /// Looks the whole structure over and says what is inconsistent. For tests, with no other thread in the pool.
    fn check(&self) -> Result<(), String>;
}
