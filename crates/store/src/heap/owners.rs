//! The interface between the heap and its users.

/// The location of an object: a number below 2⁴⁴ that only the heap interprets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location(u64);

impl Location {
    pub(crate) const BITS: u32 = 44;

    /// Returns the location with this number, cut to 44 bits.
    pub(crate) fn new(number: u64) -> Self {
        Self(number & ((1 << Self::BITS) - 1))
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// The owner of an object: the number of the leaf that contains its entry, below 2²⁴.
pub(crate) type Owner = u32;

/// `held_bytes = live_bytes + free_bytes + tail_bytes + index_bytes`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// All memory that the heap has from the system.
    pub(crate) held_bytes: u64,
    /// Objects, with their headers and rounding.
    pub(crate) live_bytes: u64,
    /// Holes that objects have left.
    pub(crate) free_bytes: u64,
    /// Memory that has never been used.
    pub(crate) tail_bytes: u64,
    /// Metadata apart from the objects' memory.
    pub(crate) index_bytes: u64,
}

/// How urgent compaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// Nothing is worth moving.
    None,
    /// The background thread should compact.
    Soft,
    /// Writers should help.
    Hard,
}

/// When [`Heap::compact`](super::Heap::compact) stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The pressure is gone.
    Relief,
    /// No more memory can be released.
    Densest,
}

/// The owners of objects, which the heap asks before it moves an object and notifies when it does.
pub(crate) trait Owners: Send + Sync {
    /// Returns the length of the object at `at`, if an entry of `owner` names it at some moment
    /// during the call.
    fn len_bytes(&self, owner: Owner, at: Location) -> Option<usize>;

    /// If an entry of `owner` names the object of `len_bytes` at `from` and no thread holds the entry,
    /// calls `copy`, makes the entry name `to`, and returns the entry's old word. The caller owns
    /// the old object once [`wait_for_readers`](Self::wait_for_readers) has returned.
    fn repoint(
        &self,
        owner: Owner,
        from: Location,
        to: Location,
        len_bytes: usize,
        copy: &mut dyn FnMut(),
    ) -> Option<u64>;

    /// Waits until no thread reads an object named by `words`, which [`repoint`](Self::repoint)
    /// returned.
    fn wait_for_readers(&self, words: &[u64]);

    /// Frees objects that were removed from their entries and are kept only for possible readers.
    fn settle(&self);
}
