//! The lock of an entry: a bit of its word, for writers only.
//!
//! The bit makes an entry's writers and the thread that moves its object exclude each other.
//! Readers take no lock: they pin the object (`pins.rs`). This is the only one of the locks that
//! were compared for zram that needs no memory; the crate `published` has the others.

use super::{Entry, GONE, LOCK};
use crate::{
    heap::Location,
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
        wait_for,
    },
};

/// An entry that this thread holds. Dropping it unlocks the entry unchanged.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    word: &'a AtomicU64,
    value: u64,
}

impl<'a> Locked<'a> {
    /// Locks the entry, waiting until no other thread holds it. Returns `None` if its leaf is unused.
    pub(crate) fn lock(word: &'a AtomicU64) -> Option<Self> {
        wait_for(|| {
            let value = word.load(Acquire);
            if value == GONE {
                return Some(None);
            }
            if value & LOCK != 0 {
                return None;
            }
            word.compare_exchange_weak(value, value | LOCK, Acquire, Relaxed).ok()?;
            Some(Some(Self { word, value }))
        })
    }

    /// Locks the entry if its value is `entry` and no thread holds it.
    pub(crate) fn try_lock(word: &'a AtomicU64, entry: Entry) -> Option<Self> {
        let value = entry.encode();
        word.compare_exchange(value, value | LOCK, Acquire, Relaxed).ok()?;
        Some(Self { word, value })
    }

    /// Locks the entry if it names the object at `at` and no thread holds it.
    pub(crate) fn try_lock_object(word: &'a AtomicU64, at: Location) -> Option<Self> {
        let entry = Entry::decode(word.load(Relaxed));
        entry.object().filter(|&(named, _)| named == at)?;
        Self::try_lock(word, entry)
    }

    /// Returns the entry, which cannot change while `self` lives.
    pub(crate) fn entry(&self) -> Entry {
        Entry::decode(self.value)
    }

    /// Stores `entry`, unlocks and returns the old entry. The caller then owns the old object and
    /// may free it once no pin names it.
    pub(crate) fn replace(mut self, entry: Entry) -> Entry {
        let old = self.entry();
        self.value = entry.encode();
        old
    }

    /// Marks the entry as unused with its leaf: no thread can lock it any more.
    pub(crate) fn end(mut self) {
        self.value = GONE;
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.store(self.value, Release);
    }
}
