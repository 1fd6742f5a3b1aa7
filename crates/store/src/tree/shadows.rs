//! Trees like those of forks, but without disks: the disks' content when a stream's rounds began.
//!
//! A shadow costs as much as a fork. Until the stream ends, the parts and entries that a round has
//! written are not freed, and their numbers are not reused. If the pool or a disk
//! lacks room, the thread that finds this drops all shadows, which ends the stream, and tries
//! again.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use super::Tree;

/// The shadows of a pool.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// `None` if no stream needs any.
    trees: Mutex<Option<Vec<Tree>>>,
    /// The number of ended streams.
    ended: AtomicU64,
}

impl Shadows {
    pub(crate) fn trees(&self) -> MutexGuard<'_, Option<Vec<Tree>>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the stream that has shadows, or of the next one.
    pub(crate) fn stream(&self) -> u64 {
        self.ended.load(Acquire)
    }

    /// Returns whether the shadows of the stream of this number still exist. If so, what was loaded
    /// from them before is valid.
    pub(crate) fn are_there(&self, stream: u64) -> bool {
        self.stream() == stream
    }

    /// Ends the stream, before anything of its shadows is freed.
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Release);
    }
}
