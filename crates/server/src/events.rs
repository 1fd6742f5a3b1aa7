//! Counts of events since a server was made.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// NBD clients that have chosen a disk.
    pub(crate) clients: Count,
    pub(crate) forks: Count,
    pub(crate) snapshots: Count,
    pub(crate) rollbacks: Count,
    /// Instants of disks, most of which are saved as images.
    pub(crate) freezes: Count,
    pub(crate) compactions: Count,
    /// The bytes that compactions have freed.
    pub(crate) compacted_bytes: Count,
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
