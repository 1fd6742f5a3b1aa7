//! Hints to equal pages: the hash of a page, and the entry that had it.
//!
//! ```text
//! bucket 0: 8 hints │ bucket 1: 8 hints │ …   hint: 33 bits of hash, 1, entry number (30 bits)
//! ```
//!
//! A thread that finds a hint compares the pages, so hints need no lock: they may be lost or stale.
//! The table grows by linear hashing (W. Litwin, "Linear Hashing: A New Tool for File and Table
//! Addressing", VLDB 1980): bucket `n` takes its share of one earlier bucket, and nothing else
//! moves. It grows when hints displace others, up to 1/64 of the memory that the pool uses.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    io,
    sync::{
        Mutex,
        atomic::{
            AtomicU32, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use foldhash::{SharedSeed, quality::FoldHasher};
use pagefold_codec::{PAGE_SIZE, Page};

use crate::{
    limit::{Budget, Purpose, machine},
    memory::Reserved,
};

/// Hints per bucket. A bucket is a cache line.
const BUCKET_HINTS: usize = 8;
const BUCKET_BYTES: usize = BUCKET_HINTS * size_of::<u64>();

/// Buckets by which the table grows: one page.
const STEP: usize = PAGE_SIZE / BUCKET_BYTES;

/// The table may use 1/`SHARE` of a pool's memory.
const SHARE: u64 = 64;

/// Displaced hints after which the table grows by one step.
const DISPLACED: u32 = 4;

const NUMBER_MASK: u64 = (1 << 30) - 1;
const USED: u64 = 1 << 30;
const TAG_SHIFT: u32 = 31;

/// The hash of a page, cut to the bits that a hint stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum(u64);

/// The seeds of a table's hashes. A table with the same seeds can use its hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(pub(crate) [u64; 2]);

impl Seeds {
    /// Returns random seeds, so that clients cannot choose which pages share a bucket.
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        Self([0, 1].map(|number: u64| random.hash_one(number)))
    }
}

/// See the module documentation. [`held_bytes`](Self::held_bytes) is counted in the budget.
#[derive(Debug)]
pub(crate) struct Equals {
    hints: Reserved<AtomicU64>,
    buckets: AtomicUsize,
    displaced: AtomicU32,
    changing: Mutex<()>,
    seeds: Seeds,
    /// Derived from the second seed.
    shared_seed: SharedSeed,
}

impl Equals {
    /// Creates an empty table, with address space for the hints of a pool of `memory_bytes`, whose
    /// hashes depend on `seeds`.
    ///
    /// # Errors
    /// The process cannot reserve the address space.
    pub(crate) fn new(memory_bytes: u64, seeds: Seeds) -> io::Result<Self> {
        let room = (machine::address_space() / 32) as u64;
        let most = ((memory_bytes / SHARE).min(room) / size_of::<u64>() as u64).next_power_of_two() as usize;
        let least = STEP * BUCKET_HINTS;
        let hints = Reserved::at_most(None, most, least)?;
        Ok(Self {
            hints,
            buckets: AtomicUsize::new(0),
            displaced: AtomicU32::new(0),
            changing: Mutex::default(),
            seeds,
            shared_seed: SharedSeed::from_u64(seeds.0[1]),
        })
    }

    /// Returns the page's hash.
    pub(crate) fn sum(&self, page: &Page) -> Sum {
        let mut hasher = FoldHasher::with_seed(self.seeds.0[0], &self.shared_seed);
        hasher.write(page);
        Sum(hasher.finish() & !(NUMBER_MASK | USED) | USED)
    }

    /// Returns the seeds of the hashes.
    pub(crate) fn seeds(&self) -> Seeds {
        self.seeds
    }

    /// Returns the hash and the entry of every hint at some moment during the call.
    pub(crate) fn hints(&self) -> impl Iterator<Item = (Sum, u64)> {
        let all = self.hints.all()[..self.buckets.load(Relaxed) * BUCKET_HINTS].iter().map(|hint| hint.load(Relaxed));
        all.filter(|&hint| hint != 0).map(|hint| (Sum(hint & !NUMBER_MASK), hint & NUMBER_MASK))
    }

    /// Returns the entries that may have a page with this hash.
    pub(crate) fn find(&self, sum: Sum) -> impl Iterator<Item = u64> {
        let hints = self.bucket(sum, self.buckets.load(Relaxed)).iter().map(|hint| hint.load(Relaxed));
        hints.filter(move |hint| hint & !NUMBER_MASK == sum.0).map(|hint| hint & NUMBER_MASK)
    }

    fn bucket(&self, sum: Sum, buckets: usize) -> &[AtomicU64] {
        if buckets == 0 {
            return &[];
        }
        let first = index(sum.0, buckets) * BUCKET_HINTS;
        &self.hints.all()[first..first + BUCKET_HINTS]
    }

    /// Records that the entry has a page with this hash, replacing a hint with the same hash.
    pub(crate) fn put(&self, sum: Sum, number: u64, budget: &Budget) {
        if self.buckets.load(Relaxed) == 0 {
            self.grow(budget);
        }
        let bucket = self.bucket(sum, self.buckets.load(Relaxed));
        let mut empty = None;
        for hint in bucket {
            match hint.load(Relaxed) {
                0 => empty = Some(hint),
                seen if seen & !NUMBER_MASK == sum.0 => return hint.store(sum.0 | number, Relaxed),
                _ => {}
            }
        }
        if let Some(hint) = empty {
            return hint.store(sum.0 | number, Relaxed);
        }
        let displaced = self.displaced.fetch_add(1, Relaxed);
        if let Some(hint) = bucket.get(displaced as usize % BUCKET_HINTS) {
            hint.store(sum.0 | number, Relaxed);
        }
        if displaced.is_multiple_of(DISPLACED) {
            self.grow(budget);
        }
    }

    /// Removes a wrong hint.
    pub(crate) fn forget(&self, sum: Sum, number: u64) {
        for hint in self.bucket(sum, self.buckets.load(Relaxed)) {
            // A hint that another thread has stored in the meantime stays.
            let _ = hint.compare_exchange(sum.0 | number, 0, Relaxed, Relaxed);
        }
    }

    /// Grows the table by a step, if the pool's memory allows a table of that size and the budget
    /// has room.
    #[cold]
    fn grow(&self, budget: &Budget) {
        let Ok(_changing) = self.changing.try_lock() else { return };
        let before = self.buckets.load(Relaxed);
        let after = before + STEP;
        let may_be = after * BUCKET_HINTS <= self.hints.count()
            && (after * BUCKET_BYTES) as u64 <= (budget.used() / SHARE).max(PAGE_SIZE as u64)
            && self.hints.enable(after * BUCKET_HINTS).is_ok()
            && budget.take_for(Purpose::Keep, PAGE_SIZE as u64).is_ok();
        if !may_be {
            return;
        }
        let hints = self.hints.all();
        for bucket in before.max(1)..after {
            let from = (bucket ^ 1 << bucket.ilog2()) * BUCKET_HINTS;
            for at in 0..BUCKET_HINTS {
                let hint = hints[from + at].load(Relaxed);
                if hint != 0 && index(hint, bucket + 1) == bucket {
                    hints[from + at].store(0, Relaxed);
                    hints[bucket * BUCKET_HINTS + at].store(hint, Relaxed);
                }
            }
        }
        self.buckets.store(after, SeqCst);
    }

    /// Frees the part of the table that exceeds what the pool's memory allows; the hints in it are
    /// lost.
    pub(crate) fn shrink(&self, budget: &Budget) {
        let before = self.buckets.load(Relaxed);
        if (before * BUCKET_BYTES) as u64 <= 2 * budget.used() / SHARE + PAGE_SIZE as u64 {
            return;
        }
        let Ok(_changing) = self.changing.try_lock() else { return };
        let after = (budget.used() / SHARE) as usize / PAGE_SIZE * STEP;
        let Some(gone) = before.checked_sub(after) else { return };
        self.buckets.store(after, SeqCst);
        // A hint that is stored there later is found only if the table grows again.
        self.hints.give_back(after * BUCKET_HINTS, gone * BUCKET_HINTS);
        budget.give((gone * BUCKET_BYTES) as u64);
    }

    /// Returns all memory that the table uses.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.buckets.load(Relaxed) * BUCKET_BYTES) as u64
    }
}

/// Returns the bucket of a hint in a table of `buckets` buckets.
fn index(hint: u64, buckets: usize) -> usize {
    let tag = (hint >> TAG_SHIFT) as usize;
    let bits = buckets.next_power_of_two() - 1;
    let bucket = tag & bits;
    if bucket < buckets { bucket } else { bucket & bits >> 1 }
}

impl Sum {
    /// Returns the hash of a hint, without the entry number.
    pub(crate) fn bits(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// Returns the hash with these bits; bits above the 33rd are ignored.
    pub(crate) fn of_bits(bits: u64) -> Self {
        Self(bits << TAG_SHIFT | USED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64) -> Page {
        let mut page = [7; PAGE_SIZE];
        page[100..108].copy_from_slice(&number.to_le_bytes());
        page
    }

    #[test]
    fn hints_stay_while_the_table_grows() {
        let (equals, budget) =
            (Equals::new(1 << 30, Seeds::random()).expect("address space"), Budget::new(u64::MAX, 1));
        budget.take_for(Purpose::Store, 64 << 20).expect("no limit");
        for number in 0..50_000 {
            equals.put(equals.sum(&page(number)), number, &budget);
        }
        assert_eq!(budget.used(), (64 << 20) + equals.held_bytes());
        assert!(equals.held_bytes() < 50_000 * 24, "{}", equals.held_bytes());
        let found = |number| equals.find(equals.sum(&page(number))).any(|found| found == number);
        let kept = (0..50_000).filter(|&number| found(number)).count();
        assert!(kept > 48_500, "{kept}");
        assert!(!(50_000..60_000).any(found));

        let sum = equals.sum(&page(49_999));
        equals.forget(sum, 49_999);
        assert_eq!(equals.find(sum).next(), None);
        equals.put(sum, 5, &budget);
        equals.put(sum, 6, &budget);
        assert_eq!(equals.find(sum).collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn a_pool_that_shrinks_has_a_smaller_table() {
        let (equals, budget) =
            (Equals::new(1 << 30, Seeds::random()).expect("address space"), Budget::new(u64::MAX, 1));
        budget.take_for(Purpose::Store, 64 << 20).expect("no limit");
        for number in 0..50_000 {
            equals.put(equals.sum(&page(number)), number, &budget);
        }
        budget.give(63 << 20);
        equals.shrink(&budget);
        assert!(equals.held_bytes() <= 48 << 10, "{}", equals.held_bytes());
        for number in 0..1000 {
            let sum = equals.sum(&page(number));
            equals.put(sum, number, &budget);
            assert_eq!(equals.find(sum).collect::<Vec<_>>(), [number]);
        }
        budget.give(budget.used() - equals.held_bytes());
        equals.shrink(&budget);
        assert_eq!(budget.used(), equals.held_bytes());
    }
}
