//! Decoded indexes that an open file keeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::Result;

/// The first windows of a file are kept while it is open, as long as the budget of all open files
/// has room.
const KEPT_WINDOWS: u64 = 64;

/// Bytes that several may take, within a bound.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes) }
    }

    /// Takes bytes, if so many are left.
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

/// The first windows of an open file's indexes, once they were asked for. What they take of the
/// budget is given back on drop.
#[derive(Debug)]
pub(crate) struct KeptWindows<T> {
    windows: Box<[OnceLock<Box<[T]>>]>,
    budget: Arc<Budget>,
}

impl<T> KeptWindows<T> {
    /// Room for the first of `count` windows.
    pub(crate) fn new(count: u64, budget: &Arc<Budget>) -> Self {
        let windows = (0..count.min(KEPT_WINDOWS)).map(|_| OnceLock::new()).collect();
        Self { windows, budget: Arc::clone(budget) }
    }

    /// The window `number` of `bytes`, which is read if it was not asked for before. `None` if it
    /// is not among the first, or the budget has no room for it.
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
        // If two threads read the same window, the second one's is dropped.
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
