//! What a store asks of the memory that holds its objects.
#![allow(unsafe_code)] // declares methods that trust their caller; has no unsafe block

use std::{io, sync::Arc};

use crate::{
    budget::{Budget, Full},
    mosaic::Mosaic,
    xcfmalloc::Xcfmalloc,
    xvmalloc::Xvmalloc,
};

/// What holds a store's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolKind {
    /// Objects side by side to the byte, holes used again, memory compacted.
    #[default]
    Mosaic,
    /// The allocator that zram began with: objects within pages. It is here to be compared with.
    Xvmalloc,
    /// The allocator that was to replace it in zcache: objects in two pieces over pages. It is here to be compared with.
    Xcfmalloc,
}

impl PoolKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mosaic, Self::Xvmalloc, Self::Xcfmalloc];

    /// The name in tables and benches.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mosaic => "mosaic",
            Self::Xvmalloc => "xvmalloc",
            Self::Xcfmalloc => "xcfmalloc",
        }
    }

    /// An empty pool for at most `objects` objects at a time, whose owners are below `owners`.
    pub(crate) fn make(self, objects: u64, owners: u64, budget: Arc<Budget>) -> io::Result<Box<dyn Pool>> {
        Ok(match self {
            Self::Mosaic => Box::new(Mosaic::new(objects, owners, budget)?),
            Self::Xvmalloc => Box::new(Xvmalloc::new(objects, budget)?),
            Self::Xcfmalloc => Box::new(Xcfmalloc::new(objects, budget)?),
        })
    }
}

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
    /// Takes room for `len_bytes` (1 to 4096) whose bytes are unspecified. `owner` is the slot whose entry will name
    /// the object; [`compact`](Self::compact) asks there for it.
    fn alloc(&self, len_bytes: usize, owner: u64) -> Result<Location, Full>;

    /// The same for a caller who is about to write the object: has its lines in the cache soon, and does meanwhile what was
    /// put off.
    fn alloc_to_write(&self, len_bytes: usize, owner: u64) -> Result<Location, Full> {
        self.alloc(len_bytes, owner)
    }

    /// Has the lines of an object's first `len_bytes` in the cache soon, if one lies at `at`.
    fn prefetch(&self, at: Location, len_bytes: usize) {
        let _ = (at, len_bytes);
    }

    /// The object's bytes where they lie, or `None` if they do not lie in one piece.
    ///
    /// # Safety
    /// `at` came from `alloc(len_bytes, _)` of this pool, is live, and is neither written nor freed while the slice is.
    unsafe fn bytes(&self, at: Location, len_bytes: usize) -> Option<&[u8]>;

    /// Copies the object's bytes to `out`.
    ///
    /// # Safety
    /// `at` came from `alloc(out.len(), _)` of this pool, is live, and is neither written nor freed meanwhile.
    unsafe fn read(&self, at: Location, out: &mut [u8]);

    /// Stores the object's bytes.
    ///
    /// # Safety
    /// `at` came from `alloc(bytes.len(), _)` of this pool, is live, and the caller alone uses it.
    unsafe fn write(&self, at: Location, bytes: &[u8]);

    /// Gives the object's room back.
    ///
    /// # Safety
    /// `at` came from `alloc(len_bytes, _)` of this pool, is live, and the caller alone uses it.
    unsafe fn free(&self, at: Location, len_bytes: usize);

    /// What the pool's memory is used for.
    fn account(&self) -> Account;

    /// How much the pool wants [`compact`](Self::compact) to be called.
    fn pressure(&self) -> Pressure {
        Pressure::None
    }

    /// Moves up to about `objects` objects so as to empty memory and give it back. Any number of threads may call it,
    /// and the pool is in full use meanwhile. Returns whether there is more to do for `goal`.
    fn compact(&self, _owners: &dyn Owners, _goal: Goal, _objects: usize) -> bool {
        false
    }

    /// [`alloc_to_write`](Self::alloc_to_write) in a pool that may take no more memory: moves others until there is room, as
    /// far as what is free can be brought together. One thread at a time calls it.
    fn make_room(&self, _owners: &dyn Owners, len_bytes: usize, owner: u64) -> Result<Location, Full> {
        self.alloc_to_write(len_bytes, owner)
    }

    /// Looks the whole structure over and says what is inconsistent. For tests, with no other thread in the pool.
    fn check(&self) -> Result<(), String>;
}

/// `held_bytes = live_bytes + free_bytes + tail_bytes + index_bytes`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// All the memory that the pool has from the system.
    pub(crate) held_bytes: u64,
    /// Objects, with their headers and rounding.
    pub(crate) live_bytes: u64,
    /// Room that objects have left.
    pub(crate) free_bytes: u64,
    /// Room that has never been used.
    pub(crate) tail_bytes: u64,
    /// What the pool keeps apart from the objects' memory.
    pub(crate) index_bytes: u64,
}

/// How urgent compaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// There is nothing worth moving.
    None,
    /// A thread in the background should see to it.
    Soft,
    /// So much is free that whoever writes should help.
    Hard,
}

/// When [`Pool::compact`] is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The pressure is gone.
    Relief,
    /// Nothing more can be given back.
    Densest,
}

/// Who owns objects: a pool asks it where an object stands before and when it moves it.
pub(crate) trait Owners: Send + Sync {
    /// The object that `owner`'s entry names at some moment during the call, and its length.
    fn object(&self, owner: u64) -> Option<(Location, usize)>;

    /// If `owner`'s entry names the object of `len_bytes` at `from` and nobody holds the entry: calls `copy`, makes the
    /// entry name `to`, and returns the word that it was. The old object is the caller's once
    /// [`wait_for_readers`](Self::wait_for_readers) has returned.
    fn repoint(
        &self,
        owner: u64,
        from: Location,
        to: Location,
        len_bytes: usize,
        copy: &mut dyn FnMut(),
    ) -> Option<u64>;

    /// Waits until nobody reads what any of `words` named, which [`repoint`](Self::repoint) returned.
    fn wait_for_readers(&self, words: &[u64]);

    /// Frees what was taken out of entries and is only kept for those who might still be reading it.
    fn settle(&self);
}
