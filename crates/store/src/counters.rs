//! Counters that threads on different CPUs change without sharing a cache line.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::entry::Entry;

/// A part of the figures of what the slots hold; only the sum over all shares means something. The holder of each stream has
/// one, which it changes without a locked instruction, and all who hold none have another.
#[derive(Debug, Default)]
pub(crate) struct Share {
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

impl Share {
    /// Counts that `new` took the place of `old`, in a share that several threads count in.
    pub(crate) fn replaced(&self, old: Entry, new: Entry) {
        self.change(old, new, |counter, by| {
            counter.fetch_add(by, Relaxed);
        });
    }

    /// Counts the same in a share that this thread alone counts in.
    pub(crate) fn replaced_by_holder(&self, old: Entry, new: Entry) {
        self.change(old, new, |counter, by| counter.store(counter.load(Relaxed) + by, Relaxed));
    }

    /// Passes each counter that changes to `add`, with the difference.
    fn change(&self, old: Entry, new: Entry, add: impl Fn(&AtomicI64, i64)) {
        let (old, new) = (figures(old), figures(new));
        let counters = [&self.pages, &self.compressed_bytes, &self.same_pages, &self.huge_pages];
        for (counter, (old, new)) in counters.into_iter().zip(old.into_iter().zip(new)) {
            if old != new {
                add(counter, new - old);
            }
        }
    }
}

impl Sums {
    /// The sums over `shares`, each exact once no thread is changing slots.
    pub(crate) fn of<'a>(shares: impl Iterator<Item = &'a Share> + Clone) -> Self {
        let sum = |counter: fn(&Share) -> &AtomicI64| {
            let total: i64 = shares.clone().map(|share| counter(share).load(Relaxed)).sum();
            u64::try_from(total).unwrap_or(0)
        };
        Self {
            pages: sum(|share| &share.pages),
            compressed_bytes: sum(|share| &share.compressed_bytes),
            same_pages: sum(|share| &share.same_pages),
            huge_pages: sum(|share| &share.huge_pages),
        }
    }
}

/// What one entry adds to pages, compressed bytes, same-filled pages and huge pages.
fn figures(entry: Entry) -> [i64; 4] {
    match entry {
        Entry::Empty => [0, 0, 0, 0],
        Entry::Same(_) => [1, 0, 1, 0],
        Entry::Object { len_bytes, .. } => [1, len_bytes as i64, 0, 0],
        Entry::Raw { .. } => [1, pagefold_codec::PAGE_SIZE as i64, 0, 1],
    }
}
