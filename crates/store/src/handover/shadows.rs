//! What disks had at the instants of a stream's rounds: trees like those of forks, which no disk has.
//!
//! A shadow costs what a fork costs, and keeps what it shares with its disk: the parts and entries
//! that a round has written cannot be freed, and their numbers cannot be reused, until the stream
//! ends. If the pool or a disk lacks room, the thread that finds this drops all shadows, which ends
//! the stream, and tries again.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use crate::{core::Core, training::Training, tree::Tree};

/// The shadows of a pool.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// `None` if no stream needs any.
    trees: Mutex<Option<Vec<Tree>>>,
    /// How many streams had shadows that are dropped.
    ended: AtomicU64,
}

impl Shadows {
    fn trees(&self) -> MutexGuard<'_, Option<Vec<Tree>>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the shadows of the stream of this number still exist. What was loaded from
    /// them before was theirs.
    pub(crate) fn are_there(&self, stream: u64) -> bool {
        self.ended.load(Acquire) == stream
    }
}

impl Core {
    /// Begins a stream that needs shadows, and returns its number; `None` if there is one already.
    pub(crate) fn begin_shadows(&self) -> Option<u64> {
        let mut trees = self.shadows.trees();
        if trees.is_some() {
            return None;
        }
        *trees = Some(Vec::new());
        self.training.iter().for_each(|training: &Training| training.keep(true));
        Some(self.shadows.ended.load(Acquire))
    }

    /// Keeps a shadow for the stream of this number. Returns false if that has ended.
    pub(crate) fn add_shadow(self: &Arc<Self>, stream: u64, tree: Tree) -> bool {
        let mut trees = self.shadows.trees();
        match &mut *trees {
            Some(trees) if self.shadows.are_there(stream) => {
                trees.push(tree);
                true
            }
            _ => {
                drop(trees);
                self.leave_later(tree.end(self.parts()));
                false
            }
        }
    }

    /// Ends the stream that needs shadows, and frees what only they have. Returns false if there is
    /// none. The caller must not hold a stream, an entry or a lock of the pool.
    pub(crate) fn end_shadows(self: &Arc<Self>) -> bool {
        let Some(trees) = self.drop_shadows() else { return false };
        trees.into_iter().for_each(|tree| self.leave_later(tree.end(self.parts())));
        while self.has_freed() {}
        true
    }

    /// Does the same for the stream of this number; what only its shadows have is freed in the
    /// background.
    pub(crate) fn end_shadows_of(self: &Arc<Self>, stream: u64) {
        if self.shadows.are_there(stream)
            && let Some(trees) = self.drop_shadows()
        {
            trees.into_iter().for_each(|tree| self.leave_later(tree.end(self.parts())));
        }
    }

    fn drop_shadows(&self) -> Option<Vec<Tree>> {
        let mut trees = self.shadows.trees();
        let taken = trees.take()?;
        // Before anything is freed: see `are_there`.
        self.shadows.ended.fetch_add(1, Release);
        self.training.iter().for_each(|training: &Training| training.keep(false));
        Some(taken)
    }
}
