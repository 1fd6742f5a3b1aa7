//! Objects that slots of any disks share because their pages are equal.
//!
//! ```text
//! disk a ─ leaf │ shared 9.2 │ object  │ …     leaf 9 is the pool's: no tree names it
//! disk b ─ leaf │ object  │ shared 9.2 │ …     its entry 2 has the object, and counts two sharers
//! ```
//!
//! An object has one owner. When a second slot gets the same page, the object moves from the first
//! slot's entry to an entry of the pool's own, and both slots' entries refer to that one. The
//! object stays there until the last sharer drops it. These entries are in ordinary leaves, so
//! compaction, training and checks need no special case, and sharers are counted like links.
//!
//! Entries are taken and emptied under one lock. It is acquired after an entry's lock. While a
//! thread holds it, it locks only empty entries, which no thread holds for long.

use std::{collections::BTreeSet, sync::PoisonError};

use crate::{
    entry::LayerId,
    heap::Owner,
    sync::{Mutex, MutexGuard},
};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Common {
    /// The layer of its leaves.
    layer: LayerId,
    /// The leaves with an empty entry.
    roomy: Mutex<BTreeSet<Owner>>,
}

impl Common {
    /// Creates a set without entries. No other thread uses `layer`.
    pub(crate) fn new(layer: LayerId) -> Self {
        Self { layer, roomy: Mutex::default() }
    }

    /// Returns the layer that counts the objects.
    pub(crate) fn layer(&self) -> LayerId {
        self.layer
    }

    /// Locks and returns the leaves with an empty entry.
    pub(crate) fn roomy(&self) -> MutexGuard<'_, BTreeSet<Owner>> {
        self.roomy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
