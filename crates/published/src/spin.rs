//! A value behind a spinlock, as the sources' allocators and lists of streams have it.
#![allow(unsafe_code)] // promises lock_api that the lock excludes

use lock_api::{GuardSend, Mutex, RawMutex};

use crate::lock::{Flag, Lock};

/// A value behind a [`Flag`].
pub(crate) type SpinMutex<T> = Mutex<RawFlag, T>;

/// A [`Flag`], as lock_api wants it.
pub(crate) struct RawFlag(Flag);

// SAFETY: who has locked the flag has it alone until it is unlocked (`lock::tests::every_lock_keeps_others_out`).
unsafe impl RawMutex for RawFlag {
    type GuardMarker = GuardSend;

    const INIT: Self = Self(Flag::new());

    fn lock(&self) {
        self.0.lock();
    }

    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    unsafe fn unlock(&self) {
        self.0.unlock();
    }
}
