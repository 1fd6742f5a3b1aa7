//! A disk's own limit, within its pool's.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{core::Core, entry::Entry, tree::Tree};

/// The memory that clearing slots may use above the limit, so that a full disk can discard: this
/// fraction of the limit, plus these bytes.
const CLEARING_PART: u64 = 16;
const CLEARING_BYTES: u64 = 16 << 10;

/// The bytes of the pool that a disk may use, and those that it uses.
///
/// ```text
/// spent = objects and parts of the tree's own layer + before_bytes
/// ```
#[derive(Debug)]
pub(crate) struct OwnLimit {
    /// `u64::MAX` means no limit.
    bytes: AtomicU64,
    /// Bytes left of what the disk wrote before it was last forked, as of the last count.
    before_bytes: AtomicU64,
}

impl Default for OwnLimit {
    fn default() -> Self {
        Self { bytes: AtomicU64::new(u64::MAX), before_bytes: AtomicU64::new(0) }
    }
}

impl OwnLimit {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Relaxed);
    }

    /// Recounts the bytes left of what the disk wrote before it was last forked, and returns them.
    pub(crate) fn count_before(&self, core: &Core, tree: &Tree) -> u64 {
        let all = tree.layers();
        let before = &all[..all.len() - 1];
        let bytes = before.iter().map(|&layer| core.layers.compressed_bytes(layer) + core.parts_bytes(layer)).sum();
        self.before_bytes.store(bytes, Relaxed);
        bytes
    }

    /// Returns whether `new` may replace `old` in the disk's tree.
    #[inline]
    pub(crate) fn lets_replace(&self, core: &Core, tree: &Tree, old: Entry, new: Entry) -> bool {
        let limit = self.bytes();
        if limit == u64::MAX {
            return true;
        }
        let grows =
            new.counted_bytes() > old.counted_bytes() || matches!(old, Entry::Empty | Entry::Hole | Entry::Link(_));
        let now = Self::own_bytes(core, tree) + new.counted_bytes() as u64;
        let most = limit.saturating_add(old.counted_bytes() as u64);
        !grows || now + self.before_bytes.load(Relaxed) <= most || now + self.count_before(core, tree) <= most
    }

    /// Returns whether clearing slots may take memory.
    pub(crate) fn lets_clear(&self, core: &Core, tree: &Tree) -> bool {
        let limit = self.bytes();
        let most = limit.saturating_add(limit / CLEARING_PART + CLEARING_BYTES);
        limit == u64::MAX || Self::own_bytes(core, tree) + self.before_bytes.load(Relaxed) <= most
    }

    /// Returns the bytes that the disk has written since it was last forked.
    fn own_bytes(core: &Core, tree: &Tree) -> u64 {
        let layer = tree.layer();
        core.layers.compressed_bytes(layer) + core.parts_bytes(layer)
    }
}
