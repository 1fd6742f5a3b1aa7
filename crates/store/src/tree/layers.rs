//! The layers of a pool by number, and what each holds.
//!
//! A disk writes to a layer of its own. When it is forked, that layer becomes read-only, and the
//! disk and its fork get a new layer each. Every leaf and node belongs to a layer: only that
//! layer's disk may change it, and only while the layer is the disk's topmost one
//! (`tree/mod.rs`). A layer exists as long as its disk or any of its parts.

use std::{
    io,
    iter::Sum,
    sync::atomic::{
        self, AtomicI64, AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{
    entry::{Entry, LayerId},
    limit::{Budget, Full, Purpose, machine},
    memory::{Reserved, Slab},
};

/// The maximum number of layers, and the minimum if address space is scarce.
const LAYERS_MAX: usize = 1 << 20;
const LAYERS_MIN: usize = 1 << 10;

/// Counters per share, which fill two cache lines: processors fetch lines in pairs.
const SHARE_COUNTERS: usize = 16;
const SHARE_BYTES: usize = SHARE_COUNTERS * size_of::<AtomicI64>();

/// The maximum number of shares per layer: a power of two.
const SHARES_MAX: usize = 8;

/// The index of each counter in a share.
const PAGES: usize = 0;
const COMPRESSED_BYTES: usize = 1;
const SAME_PAGES: usize = 2;
const HUGE_PAGES: usize = 3;
const SHARED_PAGES: usize = 4;
const SHARED_BYTES: usize = 5;

/// The number of counters.
const FIGURES: usize = 6;

/// The content of the entries of one layer, or of all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) pages: u64,
    pub(crate) compressed_bytes: u64,
    pub(crate) same_pages: u64,
    pub(crate) huge_pages: u64,
    /// The part of these pages and of `compressed_bytes` whose objects are in the pool's own
    /// entries.
    pub(crate) shared_pages: u64,
    pub(crate) shared_bytes: u64,
}

/// The figures of each layer, in shares that threads on different CPUs update without sharing a
/// cache line; only the sum over a layer's shares is meaningful. In a layer without parts all sums
/// are zero.
#[derive(Debug)]
pub(crate) struct Layers {
    counters: Reserved<AtomicI64>,
    /// For each layer its number of parts, plus one if a disk has it.
    holds: Reserved<AtomicU32>,
    /// Shares per layer.
    shares: usize,
    slab: Slab,
}

impl Layers {
    /// Creates an empty set, with as many shares per layer as `cpus` need.
    ///
    /// # Errors
    /// The process cannot reserve the address space.
    pub(crate) fn new(cpus: usize) -> io::Result<Self> {
        let shares = cpus.next_power_of_two().min(SHARES_MAX);
        let each = shares * SHARE_COUNTERS;
        let room = machine::address_space() / 16 / size_of::<AtomicI64>();
        let counters = Reserved::at_most(None, room.min(LAYERS_MAX * each) / each * each, LAYERS_MIN * each)?;
        let holds = Reserved::new(counters.count() / each)?;
        let slab = Slab::new(holds.count(), shares * SHARE_BYTES, size_of::<AtomicU32>());
        Ok(Self { counters, holds, shares, slab })
    }

    /// Takes a number for a disk's new layer.
    pub(crate) fn take(&self, budget: &Budget) -> Result<LayerId, Full> {
        let each = self.shares * SHARE_COUNTERS;
        let number = self.slab.take(Purpose::Keep, budget, |layers| {
            self.counters.enable(layers * each)?;
            self.holds.enable(layers)
        })?;
        self.holds.all()[number as usize].store(1, Relaxed);
        Ok(LayerId::of(number))
    }

    /// Adds a part to the layer.
    pub(crate) fn hold(&self, layer: LayerId) {
        self.holds.all()[layer.number() as usize].fetch_add(1, Relaxed);
    }

    /// Removes a part or the disk from the layer. When it has neither, its number becomes free.
    pub(crate) fn give(&self, layer: LayerId, budget: &Budget) {
        if self.holds.all()[layer.number() as usize].fetch_sub(1, Release) > 1 {
            return;
        }
        atomic::fence(Acquire);
        let each = self.shares * SHARE_COUNTERS;
        for counter in self.counters_of(layer) {
            counter.store(0, Relaxed);
        }
        self.slab.give(layer.number(), budget, |first, count| self.counters.give_back(first * each, count * each));
    }

    /// Returns the number of parts of a layer that a disk has.
    pub(crate) fn parts(&self, layer: LayerId) -> u64 {
        u64::from(self.holds.all()[layer.number() as usize].load(Relaxed)) - 1
    }

    /// Moves an entry's figures from one layer to another.
    pub(crate) fn moved(&self, from: LayerId, to: LayerId, entry: Entry) {
        self.replaced(from, 0, entry, Entry::Empty);
        self.replaced(to, 0, Entry::Empty, entry);
    }

    fn counters_of(&self, layer: LayerId) -> &[AtomicI64] {
        let each = self.shares * SHARE_COUNTERS;
        &self.counters.all()[layer.number() as usize * each..][..each]
    }

    /// Counts that `new` replaced `old` in a layer. `hint` is any number that differs between
    /// threads on different CPUs.
    #[inline]
    pub(crate) fn replaced(&self, layer: LayerId, hint: usize, old: Entry, new: Entry) {
        let first = (layer.number() as usize * self.shares + (hint & (self.shares - 1))) * SHARE_COUNTERS;
        let share = &self.counters.all()[first..first + SHARE_COUNTERS];
        if old.is_shared() || new.is_shared() {
            add(share, shared_figures(old), shared_figures(new), SHARED_PAGES);
        }
        add(share, figures(old), figures(new), PAGES);
    }

    /// Returns what a layer holds; exact while no thread changes its entries.
    pub(crate) fn sums(&self, layer: LayerId) -> Sums {
        let mut totals = [0; FIGURES];
        for share in self.counters_of(layer).chunks_exact(SHARE_COUNTERS) {
            for (total, counter) in totals.iter_mut().zip(share) {
                *total += counter.load(Relaxed);
            }
        }
        Sums::of(totals)
    }

    /// Returns what all layers hold; exact while no thread changes entries.
    pub(crate) fn total(&self) -> Sums {
        (0..self.slab.end())
            .filter(|&number| self.slab.is_taken(number))
            .map(|number| self.sums(LayerId::of(number)))
            .sum()
    }

    /// Returns the bytes of the objects in a layer.
    pub(crate) fn compressed_bytes(&self, layer: LayerId) -> u64 {
        let shares = self.counters_of(layer).chunks_exact(SHARE_COUNTERS);
        let total: i64 = shares.map(|share| share[COMPRESSED_BYTES].load(Relaxed)).sum();
        total.max(0) as u64
    }

    /// Returns all memory that the numbers and figures use.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.slab.held_bytes()
    }
}

impl Sum for Sums {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |total, sums| Self {
            pages: total.pages + sums.pages,
            compressed_bytes: total.compressed_bytes + sums.compressed_bytes,
            same_pages: total.same_pages + sums.same_pages,
            huge_pages: total.huge_pages + sums.huge_pages,
            shared_pages: total.shared_pages + sums.shared_pages,
            shared_bytes: total.shared_bytes + sums.shared_bytes,
        })
    }
}

impl Sums {
    fn of(totals: [i64; FIGURES]) -> Self {
        let total = |at: usize| totals[at].max(0) as u64;
        Self {
            pages: total(PAGES),
            compressed_bytes: total(COMPRESSED_BYTES),
            same_pages: total(SAME_PAGES),
            huge_pages: total(HUGE_PAGES),
            shared_pages: total(SHARED_PAGES),
            shared_bytes: total(SHARED_BYTES),
        }
    }

    /// Sums up `entries`.
    pub(crate) fn of_entries(entries: impl Iterator<Item = Entry>) -> Self {
        let mut totals = [0; FIGURES];
        for entry in entries {
            for (total, figure) in totals.iter_mut().zip(figures(entry).into_iter().chain(shared_figures(entry))) {
                *total += figure;
            }
        }
        Self::of(totals)
    }
}

/// Adds the difference of `new` and `old` to the counters from `first` on.
#[inline(always)]
fn add<const N: usize>(share: &[AtomicI64], old: [i64; N], new: [i64; N], first: usize) {
    for at in 0..N {
        if old[at] != new[at] {
            share[first + at].fetch_add(new[at] - old[at], Relaxed);
        }
    }
}

/// Returns what one entry adds to the counters of shared objects.
fn shared_figures(entry: Entry) -> [i64; 2] {
    match entry {
        Entry::Shared { len_bytes, .. } => [1, len_bytes as i64],
        _ => [0; 2],
    }
}

/// Returns what one entry adds to the other counters, in their order.
fn figures(entry: Entry) -> [i64; SHARED_PAGES] {
    const PAGE: i64 = pagefold_codec::PAGE_SIZE as i64;
    match entry {
        Entry::Empty | Entry::Hole | Entry::Link(_) => [0; SHARED_PAGES],
        Entry::Same(_) => [1, 0, 1, 0],
        Entry::Object { len_bytes, .. } => [1, len_bytes as i64, 0, 0],
        Entry::Raw { .. } => [1, PAGE, 0, 1],
        Entry::Shared { len_bytes, .. } => {
            let len_bytes = len_bytes as i64;
            [1, len_bytes, 0, i64::from(len_bytes == PAGE)]
        }
    }
}
