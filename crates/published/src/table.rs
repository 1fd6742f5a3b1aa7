//! The flat table of entries.
//!
//! ```text
//!  63    62..57  56..44   43..0
//! ┌─────┬───────┬────────┬──────────┐
//! │lock │ 0     │ length │ location │   an object; one of 4096 bytes is a page stored raw
//! │lock │ 0     │ 0      │ 0        │   nothing, which reads as zeros
//! └─────┴───────┴────────┴──────────┘
//! ```
//!
//! zram's entry is two words of 32 or 64 bits: the object's handle, and its length with flags. This
//! one has everything in one word of 64 bits.

use std::mem;

use crate::{
    heap::LOCATION_BITS,
    lock::{BitLock, EntryLock, Lock},
};

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishedEntry {
    /// Nothing: reads as zeros.
    Empty,
    /// An object of 1 to 4096 bytes.
    Object { at: u64, len_bytes: usize },
}

impl PublishedEntry {
    fn encode(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Object { at, len_bytes } => ((len_bytes as u64) << LOCATION_BITS) | at,
        }
    }

    fn decode(word: u64) -> Self {
        match (word >> LOCATION_BITS) as usize {
            0 => Self::Empty,
            len_bytes => Self::Object { at: word & ((1 << LOCATION_BITS) - 1), len_bytes },
        }
    }
}

/// The entries of a store and their locks.
#[derive(Debug)]
pub(crate) struct EntryTable<L: EntryLock> {
    whole: L::Whole,
    words: Box<[BitLock]>,
    per_entry: Box<[L::PerEntry]>,
}

impl<L: EntryLock> EntryTable<L> {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            whole: L::Whole::default(),
            words: (0..slots).map(|_| BitLock::default()).collect(),
            per_entry: (0..slots).map(|_| L::PerEntry::default()).collect(),
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.words.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.slots() * L::ENTRY_BYTES) as u64
    }

    /// Locks the entry of `slot` exclusively.
    pub(crate) fn lock(&self, slot: usize) -> Locked<'_, L> {
        let word = &self.words[slot];
        let lock = L::of(&self.whole, &self.per_entry[slot], word);
        Locked { entry: PublishedEntry::decode(L::lock(lock, word)), word, lock }
    }

    /// Locks the entry of `slot` for reading.
    pub(crate) fn lock_shared(&self, slot: usize) -> ReadGuard<'_, L> {
        let word = &self.words[slot];
        let lock = L::of(&self.whole, &self.per_entry[slot], word);
        ReadGuard { entry: PublishedEntry::decode(L::lock_shared(lock, word)), lock }
    }
}

/// An entry that this thread holds exclusively, until it is dropped.
pub(crate) struct Locked<'a, L: EntryLock> {
    entry: PublishedEntry,
    word: &'a BitLock,
    lock: &'a L::Lock,
}

impl<L: EntryLock> Locked<'_, L> {
    /// Stores `new` in the entry and returns the old value.
    pub(crate) fn replace(&mut self, new: PublishedEntry) -> PublishedEntry {
        self.word.set(new.encode());
        mem::replace(&mut self.entry, new)
    }
}

impl<L: EntryLock> Drop for Locked<'_, L> {
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

/// An entry that this thread holds for reading, until it is dropped.
pub(crate) struct ReadGuard<'a, L: EntryLock> {
    entry: PublishedEntry,
    lock: &'a L::Lock,
}

impl<L: EntryLock> ReadGuard<'_, L> {
    pub(crate) fn entry(&self) -> PublishedEntry {
        self.entry
    }
}

impl<L: EntryLock> Drop for ReadGuard<'_, L> {
    fn drop(&mut self) {
        self.lock.unlock_shared();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::strategy::{BitSpin, Cas, RwLock, Spin, TableRwLock};

    fn keeps<L: EntryLock>(entry: PublishedEntry) {
        let table = EntryTable::<L>::new(2);
        assert_eq!(table.lock(1).replace(entry), PublishedEntry::Empty);
        assert_eq!(table.lock_shared(1).entry(), entry);
        assert_eq!(table.lock_shared(0).entry(), PublishedEntry::Empty);
        assert_eq!(table.lock(1).replace(PublishedEntry::Empty), entry);
    }

    proptest! {
        #[test]
        fn an_entry_keeps_what_is_put_there(len_bytes in 1usize..=4096, at in 0u64..1 << LOCATION_BITS) {
            let entry = PublishedEntry::Object { at, len_bytes };
            keeps::<TableRwLock>(entry);
            keeps::<Cas>(entry);
            keeps::<Spin>(entry);
            keeps::<RwLock>(entry);
            keeps::<BitSpin>(entry);
        }
    }
}
