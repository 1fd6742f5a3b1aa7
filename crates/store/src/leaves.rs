//! All entries of a pool: leaves of 64, by number.
//!
//! ```text
//! words   leaf 0: 64 entries │ leaf 1: 64 entries │ …     one row of address space; an entry's number is leaf × 64 + index
//! disks   disk of leaf 0 │ of leaf 1 │ …
//! nodes   node 0: 64 places of leaves │ node 1 │ …            the parts of disks' tables, of the same length
//! ```
//!
//! A leaf belongs to one place of one disk's table, from [`take`](Leaves::take) to [`give`](Leaves::give), then to another. Its
//! words are memory as long as the pool lives, so whoever looks at a leaf a moment too late sees [`GONE`], or another disk's entries, but
//! never anything else. How a table tells which of these it saw is said in `table.rs`.
//!
//! The row is also the order in which all pages of a pool can be walked, whoever has them: for the compactor, which knows an
//! object's leaf, and for those who look for work from the first entry to the last.

use std::{
    io,
    sync::atomic::{self, AtomicU32},
};

use crate::{
    budget::{Budget, Full, Purpose},
    disks::DiskId,
    entry::{Entry, GONE},
    heap::{Location, Owner},
    lock::Locked,
    memory,
    reserved::Reserved,
    slab::Slab,
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Entries of a leaf.
#[cfg(not(loom))]
pub(crate) const LEAF_SLOTS: usize = 64;
#[cfg(loom)]
pub(crate) const LEAF_SLOTS: usize = 2;

/// Places of a node.
pub(crate) const NODE_LEAVES: usize = LEAF_SLOTS;

/// Bytes of a leaf, and of a node.
pub(crate) const LEAF_BYTES: usize = LEAF_SLOTS * size_of::<u64>();

/// The most leaves, as many as an object's header can name: 4 TiB of pages that are written side by side.
const LEAVES_MAX: usize = 1 << 24;
const LEAVES_MIN: usize = 1 << 12;

/// A leaf while it is somebody's: its number, and when it was taken. No two are equal, also of the same leaf, until 2³² others were
/// taken between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafId(u64);

impl LeafId {
    /// The word of a place without a leaf.
    pub(crate) const NONE: u64 = 0;

    fn new(number: u32, birth: u32) -> Self {
        Self((u64::from(birth) << 32) | (u64::from(number) + 1))
    }

    /// The leaf of a word that [`word`](Self::word) made, or of [`NONE`](Self::NONE).
    pub(crate) fn of(word: u64) -> Option<Self> {
        (word != Self::NONE).then_some(Self(word))
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// The leaf's number.
    pub(crate) fn number(self) -> Owner {
        self.0 as u32 - 1
    }
}

/// See the module's comment. The budget holds all of [`held_bytes`](Self::held_bytes).
#[derive(Debug)]
pub(crate) struct Leaves {
    words: Reserved<AtomicU64>,
    disks: Reserved<AtomicU32>,
    nodes: Reserved<AtomicU64>,
    node_slab: Slab,
    births: AtomicU32,
    slab: Slab,
    /// Bytes of the roots of all disks' tables.
    tables_bytes: atomic::AtomicU64,
}

impl Leaves {
    /// No leaf yet, and address space for as many as the machine's memory can hold.
    ///
    /// # Errors
    /// The process may not have the address space.
    pub(crate) fn new() -> io::Result<Self> {
        let useful = memory::bytes().map_or(LEAVES_MAX, |bytes| (bytes / LEAF_BYTES as u64) as usize);
        let words = Reserved::at_most(useful.min(LEAVES_MAX) * LEAF_SLOTS, LEAVES_MIN * LEAF_SLOTS)?;
        let count = words.count() / LEAF_SLOTS;
        let disks = Reserved::new(count)?;
        // Each has a leaf at least.
        let nodes = Reserved::new(count * LEAF_SLOTS)?;
        Ok(Self {
            slab: Slab::new(count, LEAF_BYTES, size_of::<u32>()),
            node_slab: Slab::new(count, LEAF_BYTES, 0),
            nodes,
            words,
            disks,
            births: AtomicU32::new(0),
            tables_bytes: atomic::AtomicU64::new(0),
        })
    }

    /// A leaf for `disk`, all of whose entries are empty.
    pub(crate) fn take(&self, disk: DiskId, budget: &Budget) -> Result<LeafId, Full> {
        let number = self.slab.take(budget)?;
        self.disks.all()[number as usize].store(disk.number(), Relaxed);
        for word in self.words(number) {
            // Who finds this word though it came for the leaf's user before sees too that it is too late.
            word.store(Entry::Empty.encode(), Release);
        }
        Ok(LeafId::new(number, self.births.fetch_add(1, Relaxed)))
    }

    /// Gives back a leaf whose words are all [`GONE`].
    pub(crate) fn give(&self, leaf: LeafId, budget: &Budget) {
        let give_back = |first, count| self.words.give_back(first * LEAF_SLOTS, count * LEAF_SLOTS);
        self.slab.give(leaf.number(), budget, give_back);
    }

    /// The leaf's words.
    #[inline]
    pub(crate) fn words(&self, number: Owner) -> &[AtomicU64] {
        let first = number as usize * LEAF_SLOTS;
        &self.words.all()[first..first + LEAF_SLOTS]
    }

    /// An entry's word.
    #[inline]
    pub(crate) fn word(&self, entry: u64) -> &AtomicU64 {
        &self.words.all()[entry as usize]
    }

    /// The disk that has the leaf, for who holds an entry of it.
    pub(crate) fn disk(&self, number: Owner) -> DiskId {
        DiskId::of(self.disks.all()[number as usize].load(Relaxed))
    }

    /// The number of a leaf's entry.
    #[inline]
    pub(crate) fn entry_number(leaf: Owner, index: usize) -> u64 {
        u64::from(leaf) * LEAF_SLOTS as u64 + index as u64
    }

    /// The leaf that an entry is in.
    pub(crate) fn leaf_of(entry: u64) -> Owner {
        (entry / LEAF_SLOTS as u64) as Owner
    }

    /// Entries from this number on have never been anybody's.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.slab.end()) * LEAF_SLOTS as u64
    }

    /// What an entry is at some moment during the call; `None`: its leaf is nobody's.
    pub(crate) fn entry(&self, number: u64) -> Option<Entry> {
        let word = self.word(number).load(Acquire);
        (word != GONE).then(|| Entry::decode(word))
    }

    /// The entry of leaf `number` that names the object at `at`, at some moment during the call.
    pub(crate) fn find(&self, number: Owner, at: Location) -> Option<(&AtomicU64, Entry)> {
        self.words(number).iter().find_map(|word| {
            let entry = Entry::decode(word.load(Acquire));
            entry.object().filter(|&(named, _)| named == at).map(|_| (word, entry))
        })
    }

    /// Holds the entry of leaf `number` that names the object at `at`, if there is one and nobody else does.
    pub(crate) fn try_lock(&self, number: Owner, at: Location) -> Option<Locked<'_>> {
        self.find(number, at).and_then(|(word, _)| Locked::try_lock_object(word, at))
    }

    /// A node of a disk's table, whose places are all [`LeafId::NONE`].
    pub(crate) fn take_node(&self, budget: &Budget) -> Result<u32, Full> {
        let number = self.node_slab.take(budget)?;
        for place in self.node(number) {
            place.store(LeafId::NONE, Relaxed);
        }
        Ok(number)
    }

    /// Gives back a node that nobody uses.
    pub(crate) fn give_node(&self, number: u32, budget: &Budget) {
        let give_back = |first, count| self.nodes.give_back(first * NODE_LEAVES, count * NODE_LEAVES);
        self.node_slab.give(number, budget, give_back);
    }

    /// The node's places.
    #[inline]
    pub(crate) fn node(&self, number: u32) -> &[AtomicU64] {
        let first = number as usize * NODE_LEAVES;
        &self.nodes.all()[first..first + NODE_LEAVES]
    }

    /// Takes memory for the root of a disk's table.
    pub(crate) fn take_table(&self, bytes: u64, budget: &Budget) -> Result<(), Full> {
        budget.take_for(Purpose::Keep, bytes)?;
        self.tables_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn give_table(&self, bytes: u64, budget: &Budget) {
        self.tables_bytes.fetch_sub(bytes, Relaxed);
        budget.give(bytes);
    }

    /// All memory that belongs to the leaves, whoever has them, and to the disks' tables.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.slab.held_bytes() + self.node_slab.held_bytes() + self.tables_bytes.load(Relaxed)
    }

    /// Looks over which leaves are somebody's. For tests, with no other thread in the pool.
    pub(crate) fn check(&self) -> Result<(), String> {
        for number in 0..self.slab.end() {
            let gone = self.words(number).iter().filter(|word| word.load(Relaxed) == GONE).count();
            let expected = if self.slab.is_taken(number) { 0 } else { LEAF_SLOTS };
            if gone != expected {
                return Err(format!("leaf {number}: {gone} of its entries are nobody's, not {expected}"));
            }
        }
        Ok(())
    }
}
