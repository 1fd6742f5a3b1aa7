//! Waiting for room.
//!
//! ```text
//! waiter                             thread that makes room
//!     begin: count += 1                  free it
//!     loop                               fence
//!         seen = generation              count > 0: generation += 1, wake all
//!         try; done if there is room
//!         sleep until generation ≠ seen
//! ```
//!
//! Either the try sees the freed room, or the thread that freed it sees the count and wakes the
//! waiter.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    time::Duration,
};

/// The room that several devices share. All requests that wait for it are woken when there may be
/// more.
#[derive(Debug, Default)]
pub struct Room {
    waiting: AtomicUsize,
    generation: Mutex<u64>,
    changed: Condvar,
}

impl Room {
    /// Signals that there may be room. Costs a fence if no thread waits.
    pub fn signal(&self) {
        fence(SeqCst);
        if self.waiting.load(Relaxed) != 0 {
            *self.generation() += 1;
            self.changed.notify_all();
        }
    }

    fn generation(&self) -> MutexGuard<'_, u64> {
        self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests of one device that wait for room.
#[derive(Debug)]
pub struct Waits {
    room: Arc<Room>,
    count: AtomicUsize,
}

impl Waits {
    /// Creates a set without waiting requests.
    pub fn new(room: &Arc<Room>) -> Self {
        Self { room: Arc::clone(room), count: AtomicUsize::new(0) }
    }

    /// Returns whether requests of both devices wait for the same [`Room`].
    pub fn shares_room(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.room, &other.room)
    }

    /// Returns how many requests wait at this moment.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Registers a waiting request, until the result is dropped.
    pub fn begin(self: &Arc<Self>) -> Waiting {
        self.count.fetch_add(1, Relaxed);
        self.room.waiting.fetch_add(1, Relaxed);
        fence(SeqCst);
        Waiting(Arc::clone(self))
    }

    /// Returns a number that changes whenever there may be more room while a request waits. To be
    /// called before a try.
    pub fn seen(&self) -> u64 {
        *self.room.generation()
    }

    /// Sleeps until there may be more room than at `seen`, for at most `most`. The caller has a
    /// [`Waiting`].
    pub fn sleep(&self, seen: u64, most: Duration) {
        let same = |generation: &mut u64| *generation == seen;
        let slept = self.room.changed.wait_timeout_while(self.room.generation(), most, same);
        drop(slept.unwrap_or_else(PoisonError::into_inner));
    }

    /// Signals that there may be room, or that a request should stop waiting.
    pub fn signal(&self) {
        self.room.signal();
    }
}

/// A request that waits for room.
#[derive(Debug)]
pub struct Waiting(Arc<Waits>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.room.waiting.fetch_sub(1, Relaxed);
        self.0.count.fetch_sub(1, Relaxed);
    }
}
