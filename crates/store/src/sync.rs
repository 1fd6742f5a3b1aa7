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

/// Waits for another thread: spins at first, then gives the CPU away, as the other may have been preempted.
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
