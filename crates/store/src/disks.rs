//! The disks of a pool by number, and what each holds.

use std::{
    io,
    sync::atomic::{AtomicI64, Ordering::Relaxed},
};

use crate::{
    budget::{Budget, Full},
    entry::Entry,
    reserved::Reserved,
    slab::Slab,
};

/// A disk while it is there; then its number is another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskId(u32);

impl DiskId {
    pub(crate) fn of(number: u32) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// The most disks, and how many there can be at least where address space is scarce.
const DISKS_MAX: usize = 1 << 20;
const DISKS_MIN: usize = 1 << 10;

/// A share is as long as two lines: processors fetch lines in pairs.
const SHARE_COUNTERS: usize = 16;
const SHARE_BYTES: usize = SHARE_COUNTERS * size_of::<AtomicI64>();

/// Shares of a disk, at most: a power of two.
const SHARES_MAX: usize = 8;

/// Which counter of a share counts what.
const PAGES: usize = 0;
const COMPRESSED_BYTES: usize = 1;
const SAME_PAGES: usize = 2;
const HUGE_PAGES: usize = 3;

/// What the slots of a disk hold, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) pages: u64,
    pub(crate) compressed_bytes: u64,
    pub(crate) same_pages: u64,
    pub(crate) huge_pages: u64,
}

/// What each disk holds, in shares that threads on different CPUs change without sharing a cache line; only the sum over a disk's
/// shares means something. A disk that is dropped leaves all of its shares' sums at zero.
#[derive(Debug)]
pub(crate) struct Disks {
    counters: Reserved<AtomicI64>,
    /// Shares of a disk.
    shares: usize,
    slab: Slab,
}

impl Disks {
    /// No disk yet, counted in as many shares each as `cpus` need.
    ///
    /// # Errors
    /// The process may not have the address space.
    pub(crate) fn new(cpus: usize) -> io::Result<Self> {
        let shares = cpus.next_power_of_two().min(SHARES_MAX);
        let each = shares * SHARE_COUNTERS;
        let counters = Reserved::at_most(DISKS_MAX * each, DISKS_MIN * each)?;
        let slab = Slab::new(counters.count() / each, shares * SHARE_BYTES, 0);
        Ok(Self { counters, shares, slab })
    }

    /// A number for a new disk.
    pub(crate) fn take(&self, budget: &Budget) -> Result<DiskId, Full> {
        self.slab.take(budget).map(DiskId)
    }

    /// Gives back the number of a disk that holds nothing any more.
    pub(crate) fn give(&self, disk: DiskId, budget: &Budget) {
        let each = self.shares * SHARE_COUNTERS;
        for counter in self.counters_of(disk) {
            counter.store(0, Relaxed);
        }
        self.slab.give(disk.0, budget, |first, count| self.counters.give_back(first * each, count * each));
    }

    fn counters_of(&self, disk: DiskId) -> &[AtomicI64] {
        let each = self.shares * SHARE_COUNTERS;
        &self.counters.all()[disk.0 as usize * each..][..each]
    }

    /// Counts that `new` took the place of `old` on a disk. `hint`: any number that threads on different CPUs have different.
    #[inline]
    pub(crate) fn replaced(&self, disk: DiskId, hint: usize, old: Entry, new: Entry) {
        let first = (disk.0 as usize * self.shares + (hint & (self.shares - 1))) * SHARE_COUNTERS;
        let share = &self.counters.all()[first..first + SHARE_COUNTERS];
        let (old, new) = (figures(old), figures(new));
        for at in 0..old.len() {
            if old[at] != new[at] {
                share[at].fetch_add(new[at] - old[at], Relaxed);
            }
        }
    }

    /// What a disk holds, exact once no thread changes its slots.
    pub(crate) fn sums(&self, disk: DiskId) -> Sums {
        let mut totals = [0; 4];
        for share in self.counters_of(disk).chunks_exact(SHARE_COUNTERS) {
            for (total, counter) in totals.iter_mut().zip(share) {
                *total += counter.load(Relaxed);
            }
        }
        Sums::of(totals)
    }

    /// What all disks hold, exact once no thread changes slots.
    pub(crate) fn total(&self) -> Sums {
        (0..self.slab.end()).filter(|&number| self.slab.is_taken(number)).fold(Sums::default(), |total, number| {
            let sums = self.sums(DiskId(number));
            Sums {
                pages: total.pages + sums.pages,
                compressed_bytes: total.compressed_bytes + sums.compressed_bytes,
                same_pages: total.same_pages + sums.same_pages,
                huge_pages: total.huge_pages + sums.huge_pages,
            }
        })
    }

    /// Bytes of objects that a disk has.
    pub(crate) fn compressed_bytes(&self, disk: DiskId) -> u64 {
        let shares = self.counters_of(disk).chunks_exact(SHARE_COUNTERS);
        let total: i64 = shares.map(|share| share[COMPRESSED_BYTES].load(Relaxed)).sum();
        total.max(0) as u64
    }

    /// All memory that the numbers and figures take.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.slab.held_bytes()
    }
}

impl Sums {
    fn of(totals: [i64; 4]) -> Self {
        let total = |at: usize| totals[at].max(0) as u64;
        Self {
            pages: total(PAGES),
            compressed_bytes: total(COMPRESSED_BYTES),
            same_pages: total(SAME_PAGES),
            huge_pages: total(HUGE_PAGES),
        }
    }

    /// What `entries` make.
    pub(crate) fn of_entries(entries: impl Iterator<Item = Entry>) -> Self {
        let mut totals = [0; 4];
        for entry in entries {
            for (total, figure) in totals.iter_mut().zip(figures(entry)) {
                *total += figure;
            }
        }
        Self::of(totals)
    }
}

/// What one entry adds, in the order of the counters.
fn figures(entry: Entry) -> [i64; 4] {
    match entry {
        Entry::Empty => [0, 0, 0, 0],
        Entry::Same(_) => [1, 0, 1, 0],
        Entry::Object { len_bytes, .. } => [1, len_bytes as i64, 0, 0],
        Entry::Raw { .. } => [1, pagefold_codec::PAGE_SIZE as i64, 0, 1],
    }
}
