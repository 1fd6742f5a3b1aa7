//! Counters that threads on different CPUs change without sharing a cache line.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use crate::entry::Entry;

/// A CPU's share of the figures; only the sum over all CPUs means something.
#[derive(Debug, Default)]
struct Share {
    pages: AtomicI64,
    compressed_bytes: AtomicI64,
    same_pages: AtomicI64,
    huge_pages: AtomicI64,
}

/// What the slots hold, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) pages: u64,
    pub(crate) compressed_bytes: u64,
    pub(crate) same_pages: u64,
    pub(crate) huge_pages: u64,
}

/// Counters of what the slots hold.
#[derive(Debug)]
pub(crate) struct Counters {
    shares: Box<[CachePadded<Share>]>,
}

impl Counters {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { shares: (0..cpus.max(1)).map(|_| CachePadded::default()).collect() }
    }

    /// Counts that `new` took the place of `old`, on `cpu`.
    pub(crate) fn replaced(&self, cpu: usize, old: Entry, new: Entry) {
        let share = &self.shares[cpu % self.shares.len()];
        share.count(old, -1);
        share.count(new, 1);
    }

    /// The sums, each exact once no thread is changing slots.
    pub(crate) fn sums(&self) -> Sums {
        let sum = |counter: fn(&Share) -> &AtomicI64| {
            let total: i64 = self.shares.iter().map(|share| counter(share).load(Relaxed)).sum();
            u64::try_from(total).unwrap_or(0)
        };
        Sums {
            pages: sum(|share| &share.pages),
            compressed_bytes: sum(|share| &share.compressed_bytes),
            same_pages: sum(|share| &share.same_pages),
            huge_pages: sum(|share| &share.huge_pages),
        }
    }
}

impl Share {
    fn count(&self, entry: Entry, sign: i64) {
        let len_bytes = match entry {
            Entry::Empty => return,
            Entry::Same(_) => {
                self.same_pages.fetch_add(sign, Relaxed);
                0
            }
            Entry::Object { len_bytes, .. } => len_bytes as i64,
            Entry::Raw { .. } => {
                self.huge_pages.fetch_add(sign, Relaxed);
                pagefold_codec::PAGE_SIZE as i64
            }
        };
        self.pages.fetch_add(sign, Relaxed);
        if len_bytes != 0 {
            self.compressed_bytes.fetch_add(sign * len_bytes, Relaxed);
        }
    }
}
