//! The primitives under the entry protocol: the standard library's, or loom's when a model is checked.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    thread::{yield_now as spin_loop, yield_now},
};

const SPINS_BEFORE_YIELD: u32 = 64;

/// Calls `attempt` until it gives something, which takes another thread: spins at first, then gives the CPU away between
/// two calls, as the other may have been preempted.
#[inline]
pub(crate) fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut backoff = Backoff::default();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        backoff.wait();
    }
}

/// The waiting between two attempts.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    spins: u32,
}

impl Backoff {
    pub(crate) fn wait(&mut self) {
        if self.spins < SPINS_BEFORE_YIELD {
            self.spins += 1;
            spin_loop();
        } else {
            yield_now();
        }
    }
}
