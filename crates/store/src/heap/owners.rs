//! What the heap and those who use it tell each other.

/// Where an object lies: a number below 2⁴⁴ that only the heap understands.
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

/// Who owns an object: the number of the leaf in which its entry is, below 2²⁴.
pub(crate) type Owner = u32;

/// `held_bytes = live_bytes + free_bytes + tail_bytes + index_bytes`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// All the memory that the heap has from the system.
    pub(crate) held_bytes: u64,
    /// Objects, with their headers and rounding.
    pub(crate) live_bytes: u64,
    /// Room that objects have left.
    pub(crate) free_bytes: u64,
    /// Room that has never been used.
    pub(crate) tail_bytes: u64,
    /// What the heap keeps apart from the objects' memory.
    pub(crate) index_bytes: u64,
}

/// How urgent compaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// Nothing is worth moving.
    None,
    /// A thread in the background should see to it.
    Soft,
    /// So much is free that writers should help.
    Hard,
}

/// When [`Heap::compact`](super::Heap::compact) is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The pressure is gone.
    Relief,
    /// Nothing more can be given back.
    Densest,
}

/// Who owns objects: the heap asks it where an object stands before and when it moves it.
pub(crate) trait Owners: Send + Sync {
    /// The length of the object at `at`, if an entry of `owner` names it at some moment during the
    /// call.
    fn len_bytes(&self, owner: Owner, at: Location) -> Option<usize>;

    /// If an entry of `owner` names the object of `len_bytes` at `from` and nobody holds the entry:
    /// calls `copy`, makes the entry name `to`, and returns the word that it was. The old object is
    /// the caller's once [`wait_for_readers`](Self::wait_for_readers) has returned.
    fn repoint(
        &self,
        owner: Owner,
        from: Location,
        to: Location,
        len_bytes: usize,
        copy: &mut dyn FnMut(),
    ) -> Option<u64>;

    /// Waits until nobody reads what any of `words` named, which [`repoint`](Self::repoint)
    /// returned.
    fn wait_for_readers(&self, words: &[u64]);

    /// Frees what was taken out of entries and is only kept for those who might still be reading
    /// it.
    fn settle(&self);
}
