//! The sparse table of entries and their locks.
//!
//! ```text
//! root   one pointer for 128 MiB of disk          made with the table: 512 bytes for 8 GiB
//! node   64 pointers to leaves                    512 bytes, made with its first leaf
//! leaf   512 entries                              4 KiB or 6, made at the first write to one of its slots
//! ```
//!
//! Until a slot has a leaf it is empty: a reader that finds none has its answer. Nodes and leaves live as long as the table.
#![allow(unsafe_code)] // parts hang on atomic pointers

use std::{marker::PhantomData, ptr};

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

#[cfg(not(loom))]
const NODE_LEAVES: usize = 64;
#[cfg(loom)]
const NODE_LEAVES: usize = 2;

const NODE_SLOTS: usize = NODE_LEAVES * LEAF_SLOTS;

/// Words side by side, and what a lock keeps outside them after those: a lock of 4 bytes costs 4 bytes.
#[derive(Debug)]
struct Leaf<L: Protocol> {
    words: [AtomicU64; LEAF_SLOTS],
    beside: [L::Beside; LEAF_SLOTS],
}

/// 64 leaves side by side.
#[derive(Debug)]
struct Node<L: Protocol> {
    leaves: [Lazy<Leaf<L>>; NODE_LEAVES],
}

/// `root.len() = ⌈slots / 32768⌉`; the budget holds 8 bytes for each of its pointers, [`NODE_BYTES`](Self::NODE_BYTES) a
/// node and [`LEAF_BYTES`](Self::LEAF_BYTES) a leaf that is there.
#[derive(Debug)]
pub(crate) struct Table<L: Protocol> {
    root: Box<[Lazy<Node<L>>]>,
    whole: L::Whole,
}

impl<L: Protocol> Table<L> {
    /// Bytes that a leaf and a node cost, with their allocator's header.
    const LEAF_BYTES: u64 = size_of::<Leaf<L>>() as u64 + 16;
    const NODE_BYTES: u64 = size_of::<Node<L>>() as u64 + 16;
    /// What the first slot that is written costs.
    pub(crate) const FIRST_BYTES: u64 = Self::NODE_BYTES + Self::LEAF_BYTES;

    /// A table of `slots` empty slots. `None`: there is no memory for its root.
    pub(crate) fn new(slots: u64) -> Option<Self> {
        let count = usize::try_from(slots.div_ceil(NODE_SLOTS as u64)).ok()?;
        let mut root = Vec::new();
        root.try_reserve_exact(count).ok()?;
        root.resize_with(count, Lazy::new);
        Some(Self { root: root.into_boxed_slice(), whole: L::Whole::default() })
    }

    /// Bytes of the root.
    pub(crate) fn root_bytes(&self) -> u64 {
        size_of_val(&*self.root) as u64
    }

    /// Bytes of the root and of the nodes and leaves that are there.
    pub(crate) fn used_bytes(&self) -> u64 {
        let node_bytes = |node: &Node<L>| {
            let leaves = node.leaves.iter().filter_map(Lazy::get).count();
            Self::NODE_BYTES + leaves as u64 * Self::LEAF_BYTES
        };
        self.root_bytes() + self.root.iter().filter_map(Lazy::get).map(node_bytes).sum::<u64>()
    }

    /// The slot's entry as it is at some moment during the call; beyond the table it is empty.
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
            let without = if self.root[at as usize / NODE_SLOTS].get().is_none() { NODE_SLOTS } else { LEAF_SLOTS };
            at = (at / without as u64 + 1) * without as u64;
        }
        at.min(end) - slot
    }

    fn place(&self, slot: u64) -> Option<Place<'_, L>> {
        let node = self.root.get(slot as usize / NODE_SLOTS)?.get()?;
        let leaf = node.leaves[slot as usize / LEAF_SLOTS % NODE_LEAVES].get()?;
        Some(self.place_in(leaf, slot))
    }

    fn place_in<'a>(&'a self, leaf: &'a Leaf<L>, slot: u64) -> Place<'a, L> {
        let at = slot as usize % LEAF_SLOTS;
        Place { word: &leaf.words[at], beside: &leaf.beside[at], whole: &self.whole }
    }

    #[cold]
    fn make(&self, slot: u64, budget: &Budget) -> Result<Place<'_, L>, Full> {
        let node = self.root[slot as usize / NODE_SLOTS].get_or_make(Self::NODE_BYTES, budget, Node::new)?;
        let leaf = &node.leaves[slot as usize / LEAF_SLOTS % NODE_LEAVES];
        let leaf = leaf.get_or_make(Self::LEAF_BYTES, budget, Leaf::new)?;
        Ok(self.place_in(leaf, slot))
    }
}

impl<L: Protocol> Node<L> {
    fn new() -> Self {
        Self { leaves: std::array::from_fn(|_| Lazy::new()) }
    }
}

impl<L: Protocol> Leaf<L> {
    fn new() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(Entry::Empty.encode())),
            beside: std::array::from_fn(|_| L::Beside::default()),
        }
    }
}

/// A part of the table that is made when first needed, and dropped with what it is part of. The pointer is null or from
/// `Box::into_raw` in [`get_or_make`](Self::get_or_make), and once it is not null it never changes.
#[derive(Debug)]
struct Lazy<T>(AtomicPtr<T>, PhantomData<Box<T>>);

impl<T> Lazy<T> {
    fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    fn get(&self) -> Option<&T> {
        // SAFETY: see the struct: it lives as long as `self`.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// What is there, made for `bytes` of the budget if nothing is.
    fn get_or_make(&self, bytes: u64, budget: &Budget, make: impl FnOnce() -> T) -> Result<&T, Full> {
        if let Some(there) = self.get() {
            return Ok(there);
        }
        budget.take_for(Purpose::Keep, bytes)?;
        let mut place = Vec::new();
        if place.try_reserve_exact(1).is_err() {
            budget.give(bytes);
            return Err(Full);
        }
        place.push(make());
        let new: *mut T = Box::into_raw(place.into_boxed_slice()).cast();
        let there = match self.0.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(other) => {
                budget.give(bytes);
                // SAFETY: from `Box::into_raw` above, and nobody else has seen it.
                unsafe { Self::free(new) };
                other
            }
        };
        // SAFETY: not null; see the struct.
        Ok(unsafe { &*there })
    }

    /// # Safety
    /// `made` came from `Box::into_raw` in [`get_or_make`](Self::get_or_make), is freed once, and nobody uses it any more.
    unsafe fn free(made: *mut T) {
        // SAFETY: the caller's word; it was the box of a slice of one, whose layout is that of an array of one.
        drop(unsafe { Box::from_raw(made.cast::<[T; 1]>()) });
    }
}

impl<T> Drop for Lazy<T> {
    fn drop(&mut self) {
        let made = self.0.load(Relaxed);
        if !made.is_null() {
            // SAFETY: see the struct; `&mut self` says that nobody uses it.
            unsafe { Self::free(made) };
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
    const NODE_BYTES: u64 = Table::<BitSpin>::NODE_BYTES;

    #[test]
    fn leaves_come_with_writes() {
        let budget = Budget::new((NODE_BYTES + LEAF_BYTES) * 5 / 4);
        let table = Table::<BitSpin>::new(3 * 512).expect("a small root");
        assert_eq!(table.peek(1000), Entry::Empty);
        assert!(table.lock(1000).is_none());
        assert_eq!(table.missing(0, 3 * 512), 3 * 512);
        assert_eq!(table.peek(NODE_SLOTS as u64), Entry::Empty);

        let same = Entry::Same(Fill::ZERO);
        assert_eq!(table.lock_or_make(1000, &budget).expect("first leaf").replace(same), Entry::Empty);
        assert_eq!(table.peek(1000), same);
        assert_eq!(table.missing(0, 3 * 512), 512);
        assert_eq!(table.missing(1024, 100), 100);
        assert!(table.lock_or_make(0, &budget).is_err(), "the budget has no second leaf");
        assert_eq!((table.used_bytes(), budget.used()), (8 + NODE_BYTES + LEAF_BYTES, NODE_BYTES + LEAF_BYTES));
    }

    #[test]
    fn a_node_covers_many_leaves() {
        let budget = Budget::new(u64::MAX);
        let slots = 5 * NODE_SLOTS as u64 + 7;
        let table = Table::<BitSpin>::new(slots).expect("a small root");
        assert_eq!((table.root_bytes(), table.missing(3, slots - 3)), (48, slots - 3));
        let at = 4 * NODE_SLOTS as u64 + 700;
        table.lock_or_make(at, &budget).expect("no limit").replace(Entry::Same(Fill::ZERO));
        assert_eq!(table.missing(0, slots), at - at % 512);
        assert_eq!(table.missing(at - at % 512 + 512, slots - at), slots - at);
        assert_eq!(table.used_bytes(), 48 + budget.used());
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
