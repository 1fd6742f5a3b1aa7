//! The sparse two-level table of entries and the lock in each of them.
//!
//! A leaf of 512 entries is made at the first write to one of its slots; until then all of them are empty. A reader
//! that finds no leaf has its answer. Leaves live as long as the table.
#![allow(unsafe_code)] // leaves hang on atomic pointers

use std::{
    hint, ptr,
    sync::atomic::{
        AtomicPtr, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    thread,
};

use crate::{
    budget::{Budget, Full},
    entry::{Entry, LOCK},
};

const LEAF_SLOTS: usize = 512;
const SPINS_BEFORE_YIELD: u32 = 64;

type Leaf = [AtomicU64; LEAF_SLOTS];

/// Bytes a leaf costs, with its allocator's header.
const LEAF_BYTES: u64 = size_of::<Leaf>() as u64 + 16;

/// `leaves.len() = ⌈slots / 512⌉`; the budget holds 8 bytes a root pointer and [`LEAF_BYTES`] a leaf that is there.
#[derive(Debug)]
pub(crate) struct Table {
    leaves: Box<[AtomicPtr<Leaf>]>,
}

impl Table {
    /// A table of `slots` empty slots. `None`: there is no memory for its root.
    pub(crate) fn new(slots: u64) -> Option<Self> {
        let count = usize::try_from(slots.div_ceil(LEAF_SLOTS as u64)).ok()?;
        let mut leaves = Vec::new();
        leaves.try_reserve_exact(count).ok()?;
        leaves.resize_with(count, || AtomicPtr::new(ptr::null_mut()));
        Some(Self { leaves: leaves.into_boxed_slice() })
    }

    /// Bytes of the root.
    pub(crate) fn root_bytes(&self) -> u64 {
        size_of_val(&*self.leaves) as u64
    }

    /// Bytes of the root and of the leaves that are there.
    pub(crate) fn used_bytes(&self) -> u64 {
        let leaves = self.leaves.iter().filter(|leaf| !leaf.load(Relaxed).is_null()).count();
        self.root_bytes() + leaves as u64 * LEAF_BYTES
    }

    /// The slot's entry as it is at some moment during the call.
    pub(crate) fn peek(&self, slot: u64) -> Entry {
        self.word(slot).map_or(Entry::Empty, |word| Entry::decode(word.load(Acquire)))
    }

    /// Locks the slot, if it has a leaf; without one it is empty.
    pub(crate) fn lock(&self, slot: u64) -> Option<Locked<'_>> {
        self.word(slot).map(Locked::new)
    }

    /// Locks the slot, making its leaf first if need be.
    pub(crate) fn lock_or_make(&self, slot: u64, budget: &Budget) -> Result<Locked<'_>, Full> {
        match self.word(slot) {
            Some(word) => Ok(Locked::new(word)),
            None => self.make(slot, budget).map(Locked::new),
        }
    }

    /// How many slots from `slot` on have no leaf, at most `limit`.
    pub(crate) fn missing(&self, slot: u64, limit: u64) -> u64 {
        let mut at = slot;
        let end = slot + limit;
        while at < end && self.word(at).is_none() {
            at = (at / LEAF_SLOTS as u64 + 1) * LEAF_SLOTS as u64;
        }
        at.min(end) - slot
    }

    fn word(&self, slot: u64) -> Option<&AtomicU64> {
        let leaf = self.leaves[slot as usize / LEAF_SLOTS].load(Acquire);
        // SAFETY: a pointer in the root is null or a leaf from `make`, freed only by `drop`.
        let leaf = unsafe { leaf.as_ref() }?;
        Some(&leaf[slot as usize % LEAF_SLOTS])
    }

    #[cold]
    fn make(&self, slot: u64, budget: &Budget) -> Result<&AtomicU64, Full> {
        budget.take(LEAF_BYTES)?;
        let mut words = Vec::new();
        if words.try_reserve_exact(LEAF_SLOTS).is_err() {
            budget.give(LEAF_BYTES);
            return Err(Full);
        }
        words.resize_with(LEAF_SLOTS, || AtomicU64::new(Entry::Empty.encode()));
        let Ok(new) = <Box<Leaf>>::try_from(words.into_boxed_slice()) else { unreachable!("a leaf's length") };
        let new = Box::into_raw(new);
        let root = &self.leaves[slot as usize / LEAF_SLOTS];
        let leaf = match root.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(other) => {
                budget.give(LEAF_BYTES);
                // SAFETY: `new` came from `Box::into_raw` above and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: not null, and a leaf lives until `drop`.
        Ok(unsafe { &(&*leaf)[slot as usize % LEAF_SLOTS] })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for leaf in &mut self.leaves {
            let leaf = *leaf.get_mut();
            if !leaf.is_null() {
                // SAFETY: from `Box::into_raw` in `make`; `&mut self` says that nobody uses it.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
    }
}

/// A slot that this thread holds. Dropping it unlocks with the entry unchanged.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    word: &'a AtomicU64,
    value: u64,
}

impl<'a> Locked<'a> {
    fn new(word: &'a AtomicU64) -> Self {
        let mut spins = 0;
        loop {
            let value = word.load(Relaxed);
            if value & LOCK == 0 && word.compare_exchange_weak(value, value | LOCK, Acquire, Relaxed).is_ok() {
                return Self { word, value };
            }
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { hint::spin_loop() } else { thread::yield_now() }
        }
    }

    /// The entry, which cannot change while `self` lives.
    pub(crate) fn entry(&self) -> Entry {
        Entry::decode(self.value)
    }

    /// Puts `entry` in place and unlocks; the old entry's object is then the caller's alone.
    pub(crate) fn replace(mut self, entry: Entry) -> Entry {
        let old = self.entry();
        self.value = entry.encode();
        old
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.store(self.value, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Fill;

    #[test]
    fn leaves_come_with_writes() {
        let budget = Budget::new(LEAF_BYTES);
        let table = Table::new(3 * 512).expect("a small root");
        assert_eq!(table.peek(1000), Entry::Empty);
        assert!(table.lock(1000).is_none());
        assert_eq!(table.missing(0, 3 * 512), 3 * 512);

        let same = Entry::Same(Fill::ZERO);
        assert_eq!(table.lock_or_make(1000, &budget).expect("first leaf").replace(same), Entry::Empty);
        assert_eq!(table.peek(1000), same);
        assert_eq!(table.missing(0, 3 * 512), 512);
        assert_eq!(table.missing(1024, 100), 100);
        assert!(table.lock_or_make(0, &budget).is_err(), "the budget has no second leaf");
        assert_eq!(table.used_bytes(), 24 + LEAF_BYTES);
    }

    #[test]
    fn a_lock_is_exclusive() {
        let budget = Budget::new(u64::MAX);
        let table = Table::new(1).expect("a small root");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let locked = table.lock_or_make(0, &budget).expect("no limit");
                        let count = match locked.entry() {
                            Entry::Same(fill) => fill.word(),
                            _ => 0,
                        };
                        locked.replace(Entry::Same(Fill::new(count + 1).expect("a small number")));
                    }
                });
            }
        });
        assert_eq!(table.peek(0), Entry::Same(Fill::new(4000).expect("a small number")));
    }
}
