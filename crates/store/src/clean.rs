//! Memory that its users can do without: the pages of clean disks.
//!
//! A clean disk caches pages that its user can get elsewhere. These pages are not in the figures of
//! what disks hold. The disk never shares objects, and its writes fail where others would wait for
//! room. When a pool has no room for something else, it asks the user to discard some of these
//! pages.

use std::{
    fmt,
    sync::{Mutex, PoisonError, Weak},
};

use crate::{
    entry::LayerId,
    tree::{LEAF_BYTES, Layers, Sums},
};

/// A user of clean disks.
pub trait Reclaim: Send + Sync {
    /// Discards some clean pages. Returns whether there were any.
    fn reclaim(&self) -> bool;
}

/// The clean disks of a pool and their user.
#[derive(Default)]
pub(crate) struct Clean {
    layers: Mutex<Vec<LayerId>>,
    user: Mutex<Option<Weak<dyn Reclaim>>>,
}

impl fmt::Debug for Clean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clean").field("layers", &self.layers).finish_non_exhaustive()
    }
}

impl Clean {
    pub(crate) fn add(&self, layer: LayerId) {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner).push(layer);
    }

    pub(crate) fn remove(&self, layer: LayerId) {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner).retain(|&other| other != layer);
    }

    pub(crate) fn set_user(&self, user: Weak<dyn Reclaim>) {
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = Some(user);
    }

    /// Returns what the clean disks hold, and the bytes of their tables.
    pub(crate) fn sums(&self, layers: &Layers) -> (Sums, u64) {
        let clean = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let table_bytes = clean.iter().map(|&layer| layers.parts(layer) * LEAF_BYTES as u64).sum();
        (clean.iter().map(|&layer| layers.sums(layer)).sum(), table_bytes)
    }

    /// Asks the user to discard some clean pages. Returns whether there were any.
    pub(crate) fn reclaim(&self) -> bool {
        let user = self.user.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade);
        user.is_some_and(|user| user.reclaim())
    }
}
