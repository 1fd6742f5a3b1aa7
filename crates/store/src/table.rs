//! A disk's sparse table: which leaf has the entries of which slots.
//!
//! ```text
//! root   the number of a node for 16 MiB      made at the first write to the disk: 2 KiB for 8 GiB
//! node   the names of 64 leaves               512 bytes, made at the first write to one of its slots; of the pool's (`leaves.rs`)
//! leaf   64 entries                           512 bytes, the same; of the pool's (`leaves.rs`)
//! ```
//!
//! Until a slot has a leaf it is empty: a reader that finds none has its answer. A leaf whose entries are all empty can go again
//! ([`remove_empty`](Table::remove_empty)), and then be another disk's. So whoever looked a leaf up may look at it too late:
//!
//! ```text
//! user:    id ← place; look at the entry, or lock it; place still id? then it was this slot's entry when it was looked at,
//!          and stays so as long as it is locked. Else look the leaf up again.
//! remover: lock all entries of the leaf, each empty; place ← none; every entry ← gone; the leaf is anybody's
//! ```
//!
//! An id is never used twice ([`LeafId`]). The remover changes the place before the entries, and a leaf's next user gets it through
//! the slab's lock: whoever reads from the leaf what came later has a place that differs when it looks again.
#![allow(unsafe_code)] // the root hangs on an atomic pointer

use std::{ptr, sync::PoisonError};

use crate::{
    budget::{Budget, Full},
    disks::DiskId,
    entry::Entry,
    heap::Owner,
    leaves::{LEAF_BYTES, LEAF_SLOTS, LeafId, Leaves, NODE_LEAVES},
    lock::Locked,
    sync::{
        AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard,
        Ordering::{Acquire, Relaxed, Release},
    },
};

const NODE_SLOTS: usize = NODE_LEAVES * LEAF_SLOTS;

/// What an allocator adds to a block.
const BLOCK_BYTES: u64 = 16;

/// For each node its number and one, or 0 as long as there is none; once there is one it never changes.
type Root = Box<[AtomicU32]>;

/// `nodes` points to the last of `Made::roots`, whose length is at least `len`. The budget holds [`bytes`](Self::bytes).
#[derive(Debug)]
pub(crate) struct Table {
    nodes: AtomicPtr<AtomicU32>,
    /// Grows after `nodes` has changed, so whoever sees it sees a root that is as long.
    len: AtomicUsize,
    made: Mutex<Made>,
}

/// What the table consists of.
#[derive(Debug, Default)]
struct Made {
    /// The root, last, and those before it: readers may still look at them.
    roots: Vec<Root>,
    /// Bytes of the roots.
    bytes: u64,
    nodes: u64,
    leaves: u64,
}

/// Where a slot's entry was when it was looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    place: &'a AtomicU64,
    id: LeafId,
    index: usize,
    pub(crate) word: &'a AtomicU64,
}

impl<'a> Place<'a> {
    /// The leaf's number.
    pub(crate) fn owner(&self) -> Owner {
        self.id.number()
    }

    /// The entry's number in the pool.
    pub(crate) fn number(&self) -> u64 {
        Leaves::entry_number(self.id.number(), self.index)
    }

    /// Whether the entry is still the slot's. To be asked after what was looked at.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.place.load(Relaxed) == self.id.word()
    }

    /// Holds the entry, if it is still the slot's.
    pub(crate) fn lock(&self) -> Option<Locked<'a>> {
        Locked::lock(self.word).filter(|_| self.is_current())
    }
}

impl Table {
    /// A table without any leaf.
    pub(crate) fn new() -> Self {
        Self { nodes: AtomicPtr::new(ptr::null_mut()), len: AtomicUsize::new(0), made: Mutex::default() }
    }

    /// Bytes of the roots, nodes and leaves.
    pub(crate) fn bytes(&self) -> u64 {
        let made = self.made();
        made.bytes + (made.nodes + made.leaves) * LEAF_BYTES as u64
    }

    /// Waits until nobody makes a part for slots that there were when the call began.
    pub(crate) fn settle(&self) {
        drop(self.made());
    }

    /// How many leaves there are.
    pub(crate) fn leaves(&self) -> u64 {
        self.made().leaves
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot's entry as it is at some moment during the call; without a leaf it is empty.
    pub(crate) fn peek(&self, leaves: &Leaves, slot: u64) -> Entry {
        while let Some(place) = self.find(leaves, slot) {
            let word = place.word.load(Acquire);
            if place.is_current() {
                return Entry::decode(word);
            }
        }
        Entry::Empty
    }

    /// Where the slot's entry is, if it has a leaf.
    #[inline]
    pub(crate) fn find<'a>(&'a self, leaves: &'a Leaves, slot: u64) -> Option<Place<'a>> {
        let slot = slot as usize;
        let place = &leaves.node(self.node(slot / NODE_SLOTS)?)[slot / LEAF_SLOTS % NODE_LEAVES];
        let id = LeafId::of(place.load(Acquire))?;
        Some(Self::place(leaves, place, id, slot))
    }

    fn place<'a>(leaves: &'a Leaves, place: &'a AtomicU64, id: LeafId, slot: usize) -> Place<'a> {
        let index = slot % LEAF_SLOTS;
        Place { place, id, index, word: &leaves.words(id.number())[index] }
    }

    /// Holds the slot's entry, if it has a leaf; without one it is empty.
    pub(crate) fn lock<'a>(&'a self, leaves: &'a Leaves, slot: u64) -> Option<(Place<'a>, Locked<'a>)> {
        loop {
            let place = self.find(leaves, slot)?;
            if let Some(locked) = place.lock() {
                return Some((place, locked));
            }
        }
    }

    /// Where the slot's entry is, with a leaf made for `disk` if need be, as long as the slot is below `slots` when it is made.
    ///
    /// # Errors
    /// There is no memory for it, or `slots` is no longer beyond the slot: then no part of the table was made.
    pub(crate) fn find_or_make<'a>(
        &'a self,
        leaves: &'a Leaves,
        slot: u64,
        slots: impl Fn() -> u64,
        disk: DiskId,
        budget: &Budget,
    ) -> Result<Place<'a>, Full> {
        match self.find(leaves, slot) {
            Some(place) => Ok(place),
            None => self.make(leaves, slot, slots, disk, budget),
        }
    }

    /// How many slots from `slot` on have no leaf, at most `limit`.
    pub(crate) fn missing(&self, leaves: &Leaves, slot: u64, limit: u64) -> u64 {
        let (mut at, end) = (slot, slot.saturating_add(limit));
        while at < end {
            let without = match self.node(at as usize / NODE_SLOTS) {
                None => NODE_SLOTS,
                Some(node) => match leaves.node(node)[at as usize / LEAF_SLOTS % NODE_LEAVES].load(Acquire) {
                    LeafId::NONE => LEAF_SLOTS,
                    _ => break,
                },
            };
            at = (at / without as u64 + 1) * without as u64;
        }
        at.min(end) - slot
    }

    /// The number of a node of the root.
    #[inline]
    fn node(&self, index: usize) -> Option<u32> {
        if index >= self.len.load(Acquire) {
            return None;
        }
        // SAFETY: the root that `nodes` points to is longer than that (see the struct), and roots live as long as the table.
        let node = unsafe { &*self.nodes.load(Acquire).add(index) };
        node.load(Acquire).checked_sub(1)
    }

    #[cold]
    fn make<'a>(
        &'a self,
        leaves: &'a Leaves,
        slot: u64,
        slots: impl Fn() -> u64,
        disk: DiskId,
        budget: &Budget,
    ) -> Result<Place<'a>, Full> {
        let made = &mut *self.made();
        let at = slot as usize;
        let slots = slots();
        if slot >= slots {
            return Err(Full);
        }
        if at / NODE_SLOTS >= self.len.load(Relaxed) {
            self.make_root(made, (slots as usize).div_ceil(NODE_SLOTS), leaves, budget)?;
        }
        let node = match self.node(at / NODE_SLOTS) {
            Some(node) => node,
            None => self.make_node(made, at / NODE_SLOTS, leaves, budget)?,
        };
        let place = &leaves.node(node)[at / LEAF_SLOTS % NODE_LEAVES];
        let id = match LeafId::of(place.load(Acquire)) {
            Some(id) => id,
            None => {
                let id = leaves.take(disk, budget)?;
                place.store(id.word(), Release);
                made.leaves += 1;
                id
            }
        };
        Ok(Self::place(leaves, place, id, at))
    }

    /// Makes a root of at least `len` pointers.
    fn make_root(&self, made: &mut Made, len: usize, leaves: &Leaves, budget: &Budget) -> Result<(), Full> {
        // Those before it stay, so it at least doubles.
        let len = len.max(made.roots.last().map_or(0, |before| before.len() * 2));
        let bytes = (len * size_of::<AtomicU32>()) as u64 + BLOCK_BYTES;
        leaves.take_table(bytes, budget)?;
        let mut root = Vec::new();
        if root.try_reserve_exact(len).is_err() || made.roots.try_reserve(1).is_err() {
            leaves.give_table(bytes, budget);
            return Err(Full);
        }
        let nodes = made.roots.last().map_or(&[][..], |before| before);
        root.extend(nodes.iter().map(|node| AtomicU32::new(node.load(Relaxed))));
        root.resize_with(len, || AtomicU32::new(0));
        made.roots.push(root.into_boxed_slice());
        made.bytes += bytes;
        if let Some(root) = made.roots.last() {
            self.nodes.store(root.as_ptr().cast_mut(), Release);
            self.len.store(len, Release);
        }
        Ok(())
    }

    fn make_node(&self, made: &mut Made, index: usize, leaves: &Leaves, budget: &Budget) -> Result<u32, Full> {
        let Some(place) = made.roots.last().and_then(|root| root.get(index)) else {
            unreachable!("the root was made for the index");
        };
        let node = leaves.take_node(budget)?;
        place.store(node + 1, Release);
        made.nodes += 1;
        Ok(node)
    }

    /// Gives the slot's leaf back, if it has one whose entries are all empty and held by nobody.
    pub(crate) fn remove_empty(&self, leaves: &Leaves, slot: u64, budget: &Budget) {
        let mut made = self.made();
        let Some(Place { place, id, .. }) = self.find(leaves, slot) else { return };
        let words = leaves.words(id.number());
        let mut held: [Option<Locked<'_>>; LEAF_SLOTS] = [const { None }; LEAF_SLOTS];
        for (held, word) in held.iter_mut().zip(words) {
            *held = Locked::try_lock(word, Entry::Empty);
            if held.is_none() {
                return;
            }
        }
        place.store(LeafId::NONE, Release);
        held.into_iter().flatten().for_each(Locked::end);
        made.leaves -= 1;
        leaves.give(id, budget);
    }

    /// The first slot of each leaf, from that of `slot` on.
    pub(crate) fn leaf_starts(&self, leaves: &Leaves, slot: u64) -> impl Iterator<Item = u64> {
        let end = self.len.load(Acquire) * NODE_SLOTS;
        let first = slot / LEAF_SLOTS as u64 * LEAF_SLOTS as u64;
        let mut at = first.min(end as u64);
        std::iter::from_fn(move || {
            at += self.missing(leaves, at, end as u64 - at);
            (at < end as u64).then(|| {
                let start = at / LEAF_SLOTS as u64 * LEAF_SLOTS as u64;
                at = start + LEAF_SLOTS as u64;
                start
            })
        })
    }

    /// Gives the budget back what it holds for a table that has no leaf any more.
    pub(crate) fn give_back(&mut self, leaves: &Leaves, budget: &Budget) {
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(made.leaves, 0, "the disk's leaves were given back");
        let root = made.roots.last().into_iter().flatten();
        for node in root.filter_map(|node| node.load(Relaxed).checked_sub(1)) {
            leaves.give_node(node, budget);
        }
        leaves.give_table(made.bytes, budget);
        *made = Made::default();
        self.len.store(0, Relaxed);
    }
}
