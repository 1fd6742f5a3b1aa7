//! The sparse two-level table of entries and their locks.
//!
//! A leaf of 512 entries is made at the first write to one of its slots; until then all of them are empty. A reader
//! that finds no leaf has its answer. Leaves live as long as the table.
#![allow(unsafe_code)] // leaves hang on atomic pointers

use std::ptr;

use crate::{
    budget::{Budget, Full, Purpose},
    entry::Entry,
    lock::{Place, Protocol},
    pins::Pin,
    sync::{
        AtomicPtr, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

#[cfg(not(loom))]
const LEAF_SLOTS: usize = 512;
#[cfg(loom)]
const LEAF_SLOTS: usize = 2;

/// Words side by side, and what a lock keeps outside them after those: a lock of 4 bytes costs 4 bytes.
#[derive(Debug)]
struct Leaf<L: Protocol> {
    words: [AtomicU64; LEAF_SLOTS],
    beside: [L::Beside; LEAF_SLOTS],
}

/// `leaves.len() = ⌈slots / 512⌉`; the budget holds 8 bytes a root pointer and [`LEAF_BYTES`](Self::LEAF_BYTES) a leaf
/// that is there.
#[derive(Debug)]
pub(crate) struct Table<L: Protocol> {
    leaves: Box<[AtomicPtr<Leaf<L>>]>,
    whole: L::Whole,
}

impl<L: Protocol> Table<L> {
    /// Bytes a leaf costs, with its allocator's header.
    const LEAF_BYTES: u64 = size_of::<Leaf<L>>() as u64 + 16;

    /// A table of `slots` empty slots. `None`: there is no memory for its root.
    pub(crate) fn new(slots: u64) -> Option<Self> {
        let count = usize::try_from(slots.div_ceil(LEAF_SLOTS as u64)).ok()?;
        let mut leaves = Vec::new();
        leaves.try_reserve_exact(count).ok()?;
        leaves.resize_with(count, || AtomicPtr::new(ptr::null_mut()));
        Some(Self { leaves: leaves.into_boxed_slice(), whole: L::Whole::default() })
    }

    /// Bytes of the root.
    pub(crate) fn root_bytes(&self) -> u64 {
        size_of_val(&*self.leaves) as u64
    }

    /// Bytes of the root and of the leaves that are there.
    pub(crate) fn used_bytes(&self) -> u64 {
        let leaves = self.leaves.iter().filter(|leaf| !leaf.load(Relaxed).is_null()).count();
        self.root_bytes() + leaves as u64 * Self::LEAF_BYTES
    }

    /// The slot's entry as it is at some moment during the call.
    pub(crate) fn peek(&self, slot: u64) -> Entry {
        self.place(slot).map_or(Entry::Empty, |place| Entry::decode(place.word.load(Acquire)))
    }

    /// Takes the slot for reading, if it has a leaf; without one it is empty.
    pub(crate) fn view(&self, slot: u64, pin: &mut Pin<'_>) -> Option<View<'_, L>> {
        let place = self.place(slot)?;
        Some(View { place, word: L::enter(place, pin) })
    }

    /// Locks the slot, if it has a leaf; without one it is empty.
    pub(crate) fn lock(&self, slot: u64) -> Option<Locked<'_, L>> {
        self.place(slot).map(Locked::new)
    }

    /// Locks the slot, if it has a leaf and nobody else holds it.
    pub(crate) fn try_lock(&self, slot: u64) -> Option<Locked<'_, L>> {
        let place = self.place(slot)?;
        L::try_lock(place).map(|word| Locked { place, word })
    }

    /// Locks the slot, making its leaf first if need be.
    pub(crate) fn lock_or_make(&self, slot: u64, budget: &Budget) -> Result<Locked<'_, L>, Full> {
        match self.place(slot) {
            Some(place) => Ok(Locked::new(place)),
            None => self.make(slot, budget).map(Locked::new),
        }
    }

    /// How many slots from `slot` on have no leaf, at most `limit`.
    pub(crate) fn missing(&self, slot: u64, limit: u64) -> u64 {
        let mut at = slot;
        let end = slot + limit;
        while at < end && self.place(at).is_none() {
            at = (at / LEAF_SLOTS as u64 + 1) * LEAF_SLOTS as u64;
        }
        at.min(end) - slot
    }

    fn place(&self, slot: u64) -> Option<Place<'_, L>> {
        let leaf = self.leaves[slot as usize / LEAF_SLOTS].load(Acquire);
        // SAFETY: a pointer in the root is null or a leaf from `make`, freed only by `drop`.
        let leaf = unsafe { leaf.as_ref() }?;
        Some(self.place_in(leaf, slot))
    }

    fn place_in<'a>(&'a self, leaf: &'a Leaf<L>, slot: u64) -> Place<'a, L> {
        let at = slot as usize % LEAF_SLOTS;
        Place { word: &leaf.words[at], beside: &leaf.beside[at], whole: &self.whole }
    }

    #[cold]
    fn make(&self, slot: u64, budget: &Budget) -> Result<Place<'_, L>, Full> {
        budget.take_for(Purpose::Table, Self::LEAF_BYTES)?;
        let Some(new) = Leaf::<L>::new() else {
            budget.give(Self::LEAF_BYTES);
            return Err(Full);
        };
        let new = Box::into_raw(new).cast::<Leaf<L>>();
        let root = &self.leaves[slot as usize / LEAF_SLOTS];
        let leaf = match root.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(other) => {
                budget.give(Self::LEAF_BYTES);
                // SAFETY: `new` came from `Box::into_raw` above and nobody else has seen it.
                drop(unsafe { Leaf::from_raw(new) });
                other
            }
        };
        // SAFETY: not null, and a leaf lives until `drop`.
        Ok(self.place_in(unsafe { &*leaf }, slot))
    }
}

impl<L: Protocol> Leaf<L> {
    /// A leaf of empty slots. `None`: there is no memory for it.
    fn new() -> Option<Box<[Self; 1]>> {
        let mut leaf = Vec::new();
        leaf.try_reserve_exact(1).ok()?;
        leaf.push(Self {
            words: std::array::from_fn(|_| AtomicU64::new(Entry::Empty.encode())),
            beside: std::array::from_fn(|_| L::Beside::default()),
        });
        leaf.into_boxed_slice().try_into().ok()
    }

    /// # Safety
    /// `leaf` came from [`new`](Self::new) through `Box::into_raw`, once, and nobody uses it any more.
    unsafe fn from_raw(leaf: *mut Self) -> Box<[Self; 1]> {
        // SAFETY: an array of one has the layout of its element; the rest is the caller's word.
        unsafe { Box::from_raw(leaf.cast()) }
    }
}

impl<L: Protocol> Drop for Table<L> {
    fn drop(&mut self) {
        for leaf in &self.leaves {
            let leaf = leaf.load(Relaxed);
            if !leaf.is_null() {
                // SAFETY: from `Box::into_raw` in `make`; `&mut self` says that nobody uses it.
                drop(unsafe { Leaf::from_raw(leaf) });
            }
        }
    }
}

/// A slot that this thread reads: what its entry names stays live and unchanged while the view does, and with a strategy
/// that pins as long as the pin stays where it is.
#[derive(Debug)]
pub(crate) struct View<'a, L: Protocol> {
    place: Place<'a, L>,
    word: u64,
}

impl<L: Protocol> View<'_, L> {
    /// The entry, as it was when the view was made.
    pub(crate) fn entry(&self) -> Entry {
        Entry::decode(self.word)
    }
}

impl<L: Protocol> Drop for View<'_, L> {
    fn drop(&mut self) {
        L::leave(self.place);
    }
}

/// A slot that this thread holds. Dropping it unlocks with the entry unchanged.
#[derive(Debug)]
pub(crate) struct Locked<'a, L: Protocol> {
    place: Place<'a, L>,
    word: u64,
}

impl<'a, L: Protocol> Locked<'a, L> {
    fn new(place: Place<'a, L>) -> Self {
        Self { place, word: L::lock(place) }
    }

    /// The entry, which cannot change while `self` lives.
    pub(crate) fn entry(&self) -> Entry {
        Entry::decode(self.word)
    }

    /// Puts `entry` in place and unlocks. The old entry's object is then the caller's to free, with a strategy that pins
    /// not before every pin of it is gone.
    pub(crate) fn replace(mut self, entry: Entry) -> Entry {
        let old = self.entry();
        self.word = entry.encode();
        old
    }
}

impl<L: Protocol> Drop for Locked<'_, L> {
    fn drop(&mut self) {
        L::unlock(self.place, self.word);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        entry::Fill,
        lock::{BitSpin, Cas, Hazard, RwLock, Spin, TableRwLock},
    };

    const LEAF_BYTES: u64 = Table::<BitSpin>::LEAF_BYTES;

    #[test]
    fn leaves_come_with_writes() {
        let budget = Budget::new(LEAF_BYTES * 3 / 2);
        let table = Table::<BitSpin>::new(3 * 512).expect("a small root");
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
    fn every_lock_is_exclusive() {
        lock_is_exclusive::<TableRwLock>();
        lock_is_exclusive::<Cas>();
        lock_is_exclusive::<Spin>();
        lock_is_exclusive::<RwLock>();
        lock_is_exclusive::<BitSpin>();
        lock_is_exclusive::<Hazard>();
    }

    fn lock_is_exclusive<L: Protocol>() {
        let budget = Budget::new(u64::MAX);
        let table = Table::<L>::new(1).expect("a small root");
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
