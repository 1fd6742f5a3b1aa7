//! Objects that slots of any disks share because their pages are equal.
//!
//! ```text
//! disk a ─ leaf │ shared 9.2 │ object  │ …        leaf 9 is the pool's: no tree names it
//! disk b ─ leaf │ object  │ shared 9.2 │ …        entry 2 of it has the object, and counts two who share it
//! ```
//!
//! An object has one owner. When a second slot gets the same page, the object moves from the first
//! one's entry to an entry of the pool's own, and both slots' entries say which. It stays there
//! until the last of them lets go of it. These entries lie in leaves like any others, so
//! compaction, training and checks know nothing of it, and whoever counts links counts these.
//!
//! Entries are taken and emptied under one lock, which is locked after an entry's and never before
//! one that somebody may hold for long: who holds it waits only for empty entries, which nobody
//! keeps.

use std::{collections::BTreeSet, sync::PoisonError};

use crate::{
    heap::Owner,
    layers::LayerId,
    sync::{Mutex, MutexGuard},
};

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Common {
    /// The layer of its leaves.
    layer: LayerId,
    /// The leaves that have an empty entry.
    roomy: Mutex<BTreeSet<Owner>>,
}

impl Common {
    /// No entry yet. `layer` is nobody else's.
    pub(crate) fn new(layer: LayerId) -> Self {
        Self { layer, roomy: Mutex::default() }
    }

    /// The layer that counts the objects.
    pub(crate) fn layer(&self) -> LayerId {
        self.layer
    }

    /// The leaves that have an empty entry, locked.
    pub(crate) fn roomy(&self) -> MutexGuard<'_, BTreeSet<Owner>> {
        self.roomy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
