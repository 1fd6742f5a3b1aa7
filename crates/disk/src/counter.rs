//! A counter that many threads add to without contention.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The number of parts. Each thread uses one.
const PARTS: usize = 16;

/// A sum in parts, each in cache lines of its own.
#[derive(Debug, Default)]
pub(crate) struct Counter([PaddedCount; PARTS]);

/// Prefetchers load pairs of lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedCount(AtomicU64);

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PART: usize = NEXT.fetch_add(1, Relaxed) % PARTS;
}

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0[PART.with(|part| *part)].0.fetch_add(count, Relaxed);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|part| part.0.load(Relaxed)).sum()
    }
}
