//! Counters that threads on different CPUs change without sharing a cache line.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use crate::entry::Entry;

/// A part of the figures; only the sum over all shares means something.
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

/// Counters of what the slots hold: a share for the holder of each stream, which changes it without a locked instruction,
/// and one for all who hold none.
#[derive(Debug)]
pub(crate) struct Counters {
    held: Box<[CachePadded<Share>]>,
    loose: CachePadded<Share>,
}

impl Counters {
    /// Counters beside `streams` streams.
    pub(crate) fn new(streams: usize) -> Self {
        Self { held: (0..streams).map(|_| CachePadded::default()).collect(), loose: CachePadded::default() }
    }

    /// Bytes of the counters.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&*self.held) + size_of_val(&self.loose)) as u64
    }

    /// Counts that `new` took the place of `old`, by a thread that holds no stream.
    pub(crate) fn replaced(&self, old: Entry, new: Entry) {
        self.loose.change(old, new, |counter, by| {
            counter.fetch_add(by, Relaxed);
        });
    }

    /// Counts the same by the holder of `stream`, who alone counts there.
    pub(crate) fn replaced_by_holder(&self, stream: usize, old: Entry, new: Entry) {
        self.held[stream].change(old, new, |counter, by| counter.store(counter.load(Relaxed) + by, Relaxed));
    }

    /// The sums, each exact once no thread is changing slots.
    pub(crate) fn sums(&self) -> Sums {
        let sum = |counter: fn(&Share) -> &AtomicI64| {
            let shares = self.held.iter().chain([&self.loose]);
            let total: i64 = shares.map(|share| counter(share).load(Relaxed)).sum();
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

/// What one entry adds to pages, compressed bytes, same-filled pages and huge pages.
fn figures(entry: Entry) -> [i64; 4] {
    match entry {
        Entry::Empty => [0, 0, 0, 0],
        Entry::Same(_) => [1, 0, 1, 0],
        Entry::Object { len_bytes, .. } => [1, len_bytes as i64, 0, 0],
        Entry::Raw { .. } => [1, pagefold_codec::PAGE_SIZE as i64, 0, 1],
    }
}
