//! Decoded indexes that an open file keeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::Result;

/// The number of windows at the front of a file that stay in memory while it is open, if the
/// budget of all open files permits.
const KEPT_WINDOWS: u64 = 64;

/// A byte budget shared by several users.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes) }
    }

    /// Takes bytes from the budget. Returns whether enough were left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    pub(crate) fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

/// The first windows of an open file's indexes, read on first use. Their share of the budget is
/// returned on drop.
#[derive(Debug)]
pub(crate) struct KeptWindows<T> {
    windows: Box<[OnceLock<Box<[T]>>]>,
    budget: Arc<Budget>,
}

impl<T> KeptWindows<T> {
    /// Creates room for the first of `count` windows.
    pub(crate) fn new(count: u64, budget: &Arc<Budget>) -> Self {
        let windows = (0..count.min(KEPT_WINDOWS)).map(|_| OnceLock::new()).collect();
        Self { windows, budget: Arc::clone(budget) }
    }

    /// Returns window `number` if it is in memory.
    pub(crate) fn loaded(&self, number: u64) -> Option<&[T]> {
        self.windows.get(number as usize)?.get().map(|window| &**window)
    }

    /// Returns window `number`, of `bytes`, and reads it on first use. Returns `None` if it is not
    /// among the first windows or does not fit into the budget.
    pub(crate) fn get(
        &self,
        number: u64,
        bytes: usize,
        read: impl FnOnce() -> Result<Box<[T]>>,
    ) -> Result<Option<&[T]>> {
        let Some(slot) = self.windows.get(number as usize) else { return Ok(None) };
        if let Some(window) = slot.get() {
            return Ok(Some(window));
        }
        if !self.budget.take(bytes) {
            return Ok(None);
        }
        // If two threads read the same window, the second copy is dropped.
        let read = read().map(|window| slot.set(window).is_ok());
        if !matches!(read, Ok(true)) {
            self.budget.give(bytes);
        }
        read?;
        Ok(slot.get().map(|window| &**window))
    }
}

impl<T> Drop for KeptWindows<T> {
    fn drop(&mut self) {
        let kept = self.windows.iter().filter_map(OnceLock::get);
        self.budget.give(kept.map(|window| size_of_val(&**window)).sum());
    }
}
