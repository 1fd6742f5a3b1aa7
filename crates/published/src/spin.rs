//! A value behind a spinlock, as in the original allocators and stream lists.
#![allow(unsafe_code)] // promises mutual exclusion to lock_api

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use lock_api::{GuardSend, Mutex, RawMutex};

use crate::lock::wait_until;

/// A value behind a flag.
pub(crate) type SpinMutex<T> = Mutex<RawSpin, T>;

/// A flag whose waiters wait like those of the entries' locks.
pub(crate) struct RawSpin(AtomicBool);

// SAFETY: the thread whose exchange found the flag clear holds the lock alone until it clears the
// flag.
unsafe impl RawMutex for RawSpin {
    type GuardMarker = GuardSend;

    const INIT: Self = Self(AtomicBool::new(false));

    fn lock(&self) {
        wait_until(|| self.try_lock());
    }

    fn try_lock(&self) -> bool {
        !self.0.load(Relaxed) && !self.0.swap(true, Acquire)
    }

    /// # Safety
    /// The caller holds the lock: it alone may clear the flag.
    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}
