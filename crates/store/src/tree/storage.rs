//! All parts of all disks' trees, by number: leaves of 64 entries and nodes of 64 places.
//!
//! ```text
//! words   leaf 0: 64 entries │ leaf 1 │ …               an entry's number is leaf × 64 + index
//! leaves  layer, uses, lives, counts of leaf 0 │ of leaf 1 │ …
//! nodes   node 0: 64 places of nodes or leaves │ node 1 │ …
//! inner   layer, uses of node 0 │ of node 1 │ …
//! counts  64 counts │ 64 counts │ …                     links to the entries of a leaf that has any
//! ```
//!
//! A part is in use from when it is taken until it is given back; then any disk may take it.
//! `tree/mod.rs` says who may change it in between. Its words stay mapped as long as the pool
//! lives: a stale access reads [`GONE`] or another disk's words, never unmapped memory.
//!
//! - **uses** of a part: the places of nodes that name it, and the disks whose topmost part it is.
//! - **lives** of a leaf: the links to its entries, plus one while it has uses. At zero it is
//!   freed.
//!
//! The words are contiguous, so the compactor and threads that search all entries for work can walk
//! them in order.

use std::{io, sync::atomic};

use crate::{
    entry::{Entry, GONE, LayerId, Locked},
    heap::{Location, Owner},
    limit::{Budget, Full, Purpose, machine},
    memory::{MemoryFile, Reserved, Slab},
    sync::{
        self, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Bits of a slot's number that select a child at each level of the tree.
#[cfg(not(loom))]
pub(crate) const FAN_BITS: u32 = 6;
#[cfg(loom)]
pub(crate) const FAN_BITS: u32 = 1;

/// Entries of a leaf, and places of a node.
pub(crate) const LEAF_SLOTS: usize = 1 << FAN_BITS;

/// Bytes of a leaf, and of a node.
pub(crate) const LEAF_BYTES: usize = LEAF_SLOTS * size_of::<u64>();

/// The maximum number of leaves, limited by the owner number in an object's header: 4 TiB of
/// contiguous pages.
const LEAVES_MAX: usize = 1 << 24;
const LEAVES_MIN: usize = 1 << 12;

/// Address space for a leaf, a node and counts, with their metadata.
const EACH_BYTES: usize = 2 * LEAF_BYTES + LEAF_SLOTS * size_of::<u32>() + 6 * size_of::<u32>();

/// A part while it is in use: its number, and when it was taken. Two ids differ, also of the same
/// part, unless 2³² parts were taken in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartId(u64);

impl PartId {
    fn new(number: u32, birth: u32) -> Self {
        Self((u64::from(birth) << 32) | (u64::from(number) + 1))
    }

    /// Returns the id that [`word`](Self::word) encoded.
    pub(crate) fn of(word: u64) -> Self {
        Self(word)
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// Returns the part's number, below 2²⁴.
    pub(crate) fn number(self) -> Owner {
        self.0 as u32 - 1
    }
}

/// The indices of the metadata of a leaf. A node has only the first two.
const LAYER: usize = 0;
const USES: usize = 1;
const LIVES: usize = 2;
/// The number of its counts plus one, or 0.
const COUNTS: usize = 3;

/// See the module documentation. [`held_bytes`](Self::held_bytes) is counted in the budget.
#[derive(Debug)]
pub(crate) struct PartStorage {
    words: Reserved<AtomicU64>,
    leaves: Reserved<[sync::AtomicU32; 4]>,
    leaf_slab: Slab,
    nodes: Reserved<AtomicU64>,
    inner: Reserved<[sync::AtomicU32; 2]>,
    node_slab: Slab,
    counts: Reserved<sync::AtomicU32>,
    count_slab: Slab,
    births: atomic::AtomicU32,
}

impl PartStorage {
    /// Creates an empty set, with address space for as many parts as the machine's memory can hold: in
    /// a file in memory, if there is one.
    ///
    /// # Errors
    /// The process cannot reserve the address space.
    pub(crate) fn new(file: Option<&MemoryFile>) -> io::Result<Self> {
        let useful = machine::bytes().map_or(LEAVES_MAX, |bytes| (bytes / LEAF_BYTES as u64) as usize);
        let useful = useful.min(machine::address_space() / 4 / EACH_BYTES);
        let words = Reserved::at_most(file, useful.min(LEAVES_MAX) * LEAF_SLOTS, LEAVES_MIN * LEAF_SLOTS)?;
        let count = words.count() / LEAF_SLOTS;
        Ok(Self {
            leaf_slab: Slab::new(count, LEAF_BYTES, size_of::<[sync::AtomicU32; 4]>()),
            node_slab: Slab::new(count, LEAF_BYTES, size_of::<[sync::AtomicU32; 2]>()),
            count_slab: Slab::new(count, LEAF_SLOTS * size_of::<u32>(), 0),
            leaves: Reserved::new_in(file, count)?,
            nodes: Reserved::new_in(file, count * LEAF_SLOTS)?,
            inner: Reserved::new_in(file, count)?,
            counts: Reserved::new(count * LEAF_SLOTS)?,
            words,
            births: atomic::AtomicU32::new(0),
        })
    }

    /// Returns how many leaves and nodes there can be, and where in a file their rows are: words and
    /// metadata of leaves, places and metadata of nodes.
    pub(crate) fn in_file(&self) -> (u64, [u64; 4]) {
        let rows = [self.words.in_file(), self.leaves.in_file(), self.nodes.in_file(), self.inner.in_file()];
        (self.leaves.count() as u64, rows)
    }

    /// Takes a leaf for `layer` with one use; all its entries are `entry`.
    pub(crate) fn take(&self, layer: LayerId, entry: Entry, purpose: Purpose, budget: &Budget) -> Result<PartId, Full> {
        let number = self.leaf_slab.take(purpose, budget, |leaves| {
            self.words.enable(leaves * LEAF_SLOTS)?;
            self.leaves.enable(leaves)
        })?;
        let [of, uses, lives, counts] = &self.leaves.all()[number as usize];
        of.store(layer.number(), Relaxed);
        uses.store(1, Relaxed);
        lives.store(1, Relaxed);
        counts.store(0, Relaxed);
        for word in self.words(number) {
            // A thread that looks for the leaf's previous user and sees this word also sees that
            // the leaf was reused.
            word.store(entry.encode(), Release);
        }
        Ok(self.born(number))
    }

    fn born(&self, number: u32) -> PartId {
        PartId::new(number, self.births.fetch_add(1, Relaxed))
    }

    /// Frees a leaf whose words are all [`GONE`].
    pub(crate) fn give(&self, number: Owner, budget: &Budget) {
        self.lives(number).store(0, Relaxed);
        if let Some(counts) = self.leaves.all()[number as usize][COUNTS].load(Acquire).checked_sub(1) {
            self.give_counts(counts, budget);
        }
        let give_back = |first, count| self.words.give_back(first * LEAF_SLOTS, count * LEAF_SLOTS);
        self.leaf_slab.give(number, budget, give_back);
    }

    fn give_counts(&self, number: u32, budget: &Budget) {
        let give_back = |first, count| self.counts.give_back(first * LEAF_SLOTS, count * LEAF_SLOTS);
        self.count_slab.give(number, budget, give_back);
    }

    /// Returns the leaf's words.
    #[inline]
    pub(crate) fn words(&self, number: Owner) -> &[AtomicU64] {
        let first = number as usize * LEAF_SLOTS;
        &self.words.all()[first..first + LEAF_SLOTS]
    }

    /// Returns an entry's word.
    #[inline]
    pub(crate) fn word(&self, entry: u64) -> &AtomicU64 {
        &self.words.all()[entry as usize]
    }

    /// Returns the layer that the leaf belongs to.
    #[inline]
    pub(crate) fn layer(&self, number: Owner) -> LayerId {
        LayerId::of(self.leaves.all()[number as usize][LAYER].load(Relaxed))
    }

    /// Moves the leaf to another layer.
    pub(crate) fn set_layer(&self, number: Owner, layer: LayerId) {
        self.leaves.all()[number as usize][LAYER].store(layer.number(), Relaxed);
    }

    /// Returns the number of uses of the leaf.
    pub(crate) fn uses(&self, number: Owner) -> &sync::AtomicU32 {
        &self.leaves.all()[number as usize][USES]
    }

    /// Returns the number of lives of the leaf.
    pub(crate) fn lives(&self, number: Owner) -> &sync::AtomicU32 {
        &self.leaves.all()[number as usize][LIVES]
    }

    /// Returns the number of links to each of the leaf's entries, or `None` if it has no counts.
    pub(crate) fn counts(&self, number: Owner) -> Option<&[sync::AtomicU32]> {
        let counts = self.leaves.all()[number as usize][COUNTS].load(Acquire).checked_sub(1)?;
        let first = counts as usize * LEAF_SLOTS;
        Some(&self.counts.all()[first..first + LEAF_SLOTS])
    }

    /// Creates counts for the leaf if it has none. The caller keeps the leaf in use.
    pub(crate) fn make_counts(
        &self,
        number: Owner,
        purpose: Purpose,
        budget: &Budget,
    ) -> Result<&[sync::AtomicU32], Full> {
        loop {
            if let Some(counts) = self.counts(number) {
                return Ok(counts);
            }
            let made = self.count_slab.take(purpose, budget, |counts| self.counts.enable(counts * LEAF_SLOTS))?;
            let first = made as usize * LEAF_SLOTS;
            self.counts.all()[first..first + LEAF_SLOTS].iter().for_each(|count| count.store(0, Relaxed));
            let place = &self.leaves.all()[number as usize][COUNTS];
            if place.compare_exchange(0, made + 1, Release, Relaxed).is_err() {
                self.give_counts(made, budget);
            }
        }
    }

    /// Returns the number of a leaf's entry.
    #[inline]
    pub(crate) fn entry_number(leaf: Owner, index: usize) -> u64 {
        u64::from(leaf) * LEAF_SLOTS as u64 + index as u64
    }

    /// Returns the leaf that an entry is in, and its index there.
    #[inline]
    pub(crate) fn leaf_of(entry: u64) -> (Owner, usize) {
        ((entry / LEAF_SLOTS as u64) as Owner, entry as usize % LEAF_SLOTS)
    }

    /// Returns the number of an entry that, like all later ones, has never been used.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.leaf_slab.end()) * LEAF_SLOTS as u64
    }

    /// Returns an entry's value at some moment during the call, or `None` if its leaf is unused.
    pub(crate) fn entry(&self, number: u64) -> Option<Entry> {
        let word = self.word(number).load(Acquire);
        (word != GONE).then(|| Entry::decode(word))
    }

    /// Returns an entry's word, or `None` if its leaf is unused. For threads that look at entries
    /// that may be unused: reading an unused word in a file would allocate memory, which is neither
    /// counted nor returned.
    #[inline]
    pub(crate) fn used_word(&self, entry: u64) -> Option<&AtomicU64> {
        (self.lives(Self::leaf_of(entry).0).load(Relaxed) > 0).then(|| self.word(entry))
    }

    /// Returns the entry of leaf `number` that names the object at `at`, at some moment during the
    /// call.
    pub(crate) fn find(&self, number: Owner, at: Location) -> Option<(&AtomicU64, Entry)> {
        self.words(number).iter().find_map(|word| {
            let entry = Entry::decode(word.load(Acquire));
            entry.object().filter(|&(named, _)| named == at).map(|_| (word, entry))
        })
    }

    /// Locks the entry of leaf `number` that names the object at `at`, if there is one and no thread
    /// holds it.
    pub(crate) fn try_lock(&self, number: Owner, at: Location) -> Option<Locked<'_>> {
        self.find(number, at).and_then(|(word, _)| Locked::try_lock_object(word, at))
    }

    /// Takes a node for `layer` with one use; all its places are `place`.
    pub(crate) fn take_node(
        &self,
        layer: LayerId,
        place: u64,
        purpose: Purpose,
        budget: &Budget,
    ) -> Result<PartId, Full> {
        let number = self.node_slab.take(purpose, budget, |nodes| {
            self.nodes.enable(nodes * LEAF_SLOTS)?;
            self.inner.enable(nodes)
        })?;
        let [of, uses] = &self.inner.all()[number as usize];
        of.store(layer.number(), Relaxed);
        uses.store(1, Relaxed);
        for word in self.node(number) {
            // For the order of accesses, see `take`.
            word.store(place, Release);
        }
        Ok(self.born(number))
    }

    /// Frees a node without uses.
    pub(crate) fn give_node(&self, number: u32, budget: &Budget) {
        let give_back = |first, count| self.nodes.give_back(first * LEAF_SLOTS, count * LEAF_SLOTS);
        self.node_slab.give(number, budget, give_back);
    }

    /// Returns the node's places.
    #[inline]
    pub(crate) fn node(&self, number: u32) -> &[AtomicU64] {
        let first = number as usize * LEAF_SLOTS;
        &self.nodes.all()[first..first + LEAF_SLOTS]
    }

    /// Returns the layer that the node belongs to.
    pub(crate) fn node_layer(&self, number: u32) -> LayerId {
        LayerId::of(self.inner.all()[number as usize][LAYER].load(Relaxed))
    }

    /// Moves the node to another layer.
    pub(crate) fn set_node_layer(&self, number: u32, layer: LayerId) {
        self.inner.all()[number as usize][LAYER].store(layer.number(), Relaxed);
    }

    /// Returns the number of uses of the node.
    pub(crate) fn node_uses(&self, number: u32) -> &sync::AtomicU32 {
        &self.inner.all()[number as usize][USES]
    }

    /// Returns all memory that the parts use, whichever disk has them.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.leaf_slab.held_bytes() + self.node_slab.held_bytes() + self.count_slab.held_bytes()
    }

    /// Checks which leaves are in use, and the counts of links. For tests, with no other thread in
    /// the pool.
    pub(crate) fn check(&self) -> Result<(), String> {
        let taken = |number: &u32| self.leaf_slab.is_taken(*number);
        let mut links = std::collections::HashMap::new();
        for number in 0..self.leaf_slab.end() {
            let gone = self.words(number).iter().filter(|word| word.load(Relaxed) == GONE).count();
            let expected = if taken(&number) { 0 } else { LEAF_SLOTS };
            if gone != expected {
                return Err(format!("leaf {number}: {gone} entries are unused, expected {expected}"));
            }
            for (index, word) in self.words(number).iter().enumerate() {
                let to = match Entry::decode(word.load(Relaxed)) {
                    Entry::Link(to) => (to, index),
                    Entry::Shared { number, .. } => Self::leaf_of(number),
                    _ => continue,
                };
                *links.entry(to).or_insert(0) += 1;
            }
        }
        for number in (0..self.leaf_slab.end()).filter(taken) {
            let counts = self.counts(number);
            let mut lives = u32::from(self.uses(number).load(Relaxed) > 0);
            for index in 0..LEAF_SLOTS {
                let found = links.remove(&(number, index)).unwrap_or(0);
                let counted = counts.map_or(0, |counts| counts[index].load(Relaxed));
                if found != counted {
                    return Err(format!("entry {index} of leaf {number}: {found} links found, {counted} counted"));
                }
                lives += found;
            }
            if lives != self.lives(number).load(Relaxed) || lives == 0 {
                return Err(format!("leaf {number}: {lives} references found, {:?} counted", self.lives(number)));
            }
        }
        match links.keys().next() {
            Some((leaf, index)) => Err(format!("a link to entry {index} of leaf {leaf}, which is unused")),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{fs::File, os::unix::fs::MetadataExt, sync::Arc};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// A sweep over all entries does not allocate released memory again.
    #[test]
    fn a_look_at_unused_entries_takes_no_memory_of_a_file() {
        let file = Arc::new(File::from(memfd_create("words", MemfdFlags::CLOEXEC).expect("a file")));
        let leaves = PartStorage::new(Some(&MemoryFile::new(Arc::clone(&file)))).expect("address space");
        let budget = Budget::new(u64::MAX, 1);
        let take = |_| leaves.take(LayerId::of(1), Entry::Empty, Purpose::Keep, &budget).expect("no limit");
        let taken: Vec<PartId> = (0..1000).map(take).collect();
        for leaf in taken {
            leaves.words(leaf.number()).iter().for_each(|word| word.store(GONE, Relaxed));
            leaves.give(leaf.number(), &budget);
        }
        let blocks = || file.metadata().expect("a file").blocks();
        let before = blocks();
        assert!((0..leaves.end()).all(|entry| leaves.used_word(entry).is_none()));
        assert_eq!(blocks(), before);
    }
}
