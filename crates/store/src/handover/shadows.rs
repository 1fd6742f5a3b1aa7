//! Begins and ends a pool's [`Shadows`](crate::tree::Shadows).

use std::sync::Arc;

use crate::{core::Core, streams::Training, tree::Tree};

impl Core {
    /// Begins a stream that needs shadows, and returns its number; `None` if there is one already.
    pub(crate) fn begin_shadows(&self) -> Option<u64> {
        let mut trees = self.shadows.trees();
        if trees.is_some() {
            return None;
        }
        *trees = Some(Vec::new());
        self.training.iter().for_each(|training: &Training| training.keep(true));
        Some(self.shadows.stream())
    }

    /// Stores a shadow for the stream of this number. Returns false if the stream has ended.
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

    /// Ends the stream that needs shadows, and frees what only they refer to. Returns false if
    /// there is none. The caller must not hold a stream, an entry or a lock of the pool.
    pub(crate) fn end_shadows(self: &Arc<Self>) -> bool {
        let have_ended = self.drop_shadows(None);
        while have_ended && self.has_freed() {}
        have_ended
    }

    /// Returns whether an attempt that failed for lack of room may succeed now because shadows were
    /// dropped: by this call, or earlier by another thread.
    pub(crate) fn without_shadows(self: &Arc<Self>) -> bool {
        let have_ended = self.drop_shadows(None) || self.shadows.stream() > 0;
        while have_ended && self.has_freed() {}
        have_ended
    }

    /// Ends the stream of this number; what only its shadows refer to is freed in the background.
    pub(crate) fn end_shadows_of(self: &Arc<Self>, stream: u64) {
        self.drop_shadows(Some(stream));
    }

    /// Drops the shadows, of this stream if one is given. Returns whether there were any. Other
    /// threads see that there are none only once their parts can be [freed](Self::has_freed).
    fn drop_shadows(self: &Arc<Self>, stream: Option<u64>) -> bool {
        let mut trees = self.shadows.trees();
        if stream.is_some_and(|stream| !self.shadows.are_there(stream)) {
            return false;
        }
        let Some(taken) = trees.take() else { return false };
        // Set before anything is freed: see `are_there`.
        self.shadows.end();
        self.training.iter().for_each(|training: &Training| training.keep(false));
        taken.into_iter().for_each(|tree| self.leave_later(tree.end(self.parts())));
        true
    }
}
