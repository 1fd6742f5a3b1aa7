//! What disks had at the instants of a stream's rounds: trees like those of forks, which no disk has.
//!
//! A shadow costs what a fork costs, and keeps what it shares with its disk: the parts and entries
//! that a round has written cannot be freed, and their numbers cannot be reused, until the stream
//! ends. If the pool or a disk lacks room, the thread that finds this drops all shadows, which ends
//! the stream, and tries again.

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
    /// How many streams had shadows that are dropped.
    ended: AtomicU64,
}

impl Shadows {
    pub(crate) fn trees(&self) -> MutexGuard<'_, Option<Vec<Tree>>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the stream that has shadows, or has them next.
    pub(crate) fn stream(&self) -> u64 {
        self.ended.load(Acquire)
    }

    /// Returns whether the shadows of the stream of this number still exist. What was loaded from
    /// them before was theirs.
    pub(crate) fn are_there(&self, stream: u64) -> bool {
        self.stream() == stream
    }

    /// Ends the stream, before anything of its shadows is freed.
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Release);
    }
}
