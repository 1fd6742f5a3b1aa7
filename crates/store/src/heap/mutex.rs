//! A lock whose release is a plain store.
//!
//! The standard library's mutex releases with an exchange, which waits until every earlier store
//! has reached the cache. The code under a shard's lock ends with stores to lines that are seldom
//! cached, and those waits took two thirds of the time of a `free`. The price is that no thread is
//! woken: a waiter spins, then yields the CPU, then sleeps briefly. A thread that takes the lock
//! again and again, with little work in between, would starve others: it uses `lock_after_others`.
#![allow(unsafe_code)] // lends the value behind the lock to its holder

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    sync::atomic::{
        AtomicBool, AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::sync::{SLEEPS_FROM, wait_for};

/// The number of checks for waiters before the lock is taken regardless, the last few with sleeps
/// in between.
const LOOKS_FOR_OTHERS: u32 = SLEEPS_FROM + 8;

/// A value behind a lock. The lock is held for the time of a few header accesses; the only system
/// calls under it enable and release memory.
#[derive(Debug)]
pub(super) struct Mutex<T> {
    held: AtomicBool,
    /// Threads that found the lock held.
    waiting: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the value, and passes it on with a release and an acquire.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// The holder's access. Dropping it, also in a panic, releases the lock.
#[derive(Debug)]
pub(super) struct Guard<'a, T>(&'a Mutex<T>);

// SAFETY: when shared, it only gives out `&T`.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), waiting: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Takes the lock if no thread holds it.
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.held.compare_exchange(false, true, Acquire, Relaxed).ok().map(|_| Guard(self))
    }

    /// Takes the lock when no thread waits for it, or after a while, when any sleeping waiter has
    /// tried again.
    pub(super) fn lock_after_others(&self) -> Guard<'_, T> {
        let mut looks = 0;
        wait_for(|| {
            looks += 1;
            (self.waiting.load(Relaxed) == 0 || looks > LOOKS_FOR_OTHERS).then_some(())
        });
        self.lock()
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = wait_for(|| if self.held.load(Relaxed) { None } else { self.try_lock() });
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard is the lock's only one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` excludes other references from it.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.held.store(false, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_holds_it_at_a_time() {
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..20_000 {
                        let mut count = mutex.lock();
                        let before = *count;
                        if turn % 1000 == 0 {
                            thread::yield_now();
                        }
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), 80_000);
    }

    #[test]
    fn a_panic_releases_it() {
        let mutex = Mutex::new(7);
        let panicked = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = mutex.lock();
                panic!("meant");
            });
            holder.join().is_err()
        });
        assert!(panicked && mutex.try_lock().is_some_and(|value| *value == 7));
    }
}
