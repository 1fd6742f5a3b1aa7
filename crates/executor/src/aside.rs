//! Requests that wait for room without a thread.
//!
//! One thread for each [`Room`](pagefold_disk::Room) retries what all clients have set aside when
//! there may be room.
//!
//! ```text
//! until nothing is set aside:
//!     try what has not been tried since the last signal
//!         there is room: a thread of the executor completes the change, which may wait for the peer
//!         it would wait for storage, or is long: a thread of the executor runs the rest
//!     sleep until there is a signal
//! ```
//!
//! That thread waits for no device and no peer, so no client can delay another one.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use pagefold_disk::Waits;

use crate::{
    memory::Memory,
    thread::{THREAD_BYTES, spawn},
};

/// Room that appears without a signal (compaction, overwriting) and the end of a client are noticed
/// within this time.
pub(crate) const RECHECK: Duration = Duration::from_millis(500);

/// Pause after an attempt that gained nothing. Without it, each discard of another client would
/// trigger an attempt.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Something that was set aside.
pub(crate) trait Aside: Send {
    /// Returns the signals of the room that it waits for.
    fn waits(&self) -> &Arc<Waits>;

    /// Returns whether this request has not been tried since [`Waits::seen`] returned `seen`.
    fn is_due(&self, seen: u64) -> bool;

    /// Tries the request once; `seen` is what [`Waits::seen`] returned before.
    fn retry(self: Box<Self>, seen: u64) -> Retried;
}

/// The result of a retry.
pub(crate) enum Retried {
    /// The request is done, or a thread of the executor has taken it over.
    Gone,
    NoRoom(Box<dyn Aside>),
    /// No thread of the executor is free for a change that may take long.
    NoThread(Box<dyn Aside>),
}

/// The changes that all clients have set aside.
#[derive(Default)]
pub(crate) struct SetAside(Mutex<Vec<Queue>>);

/// Requests that wait for the same room and that its thread has not seen yet. When nothing is left,
/// the thread removes this and ends.
struct Queue {
    /// The signals of any device with this room.
    waits: Arc<Waits>,
    new: VecDeque<Box<dyn Aside>>,
}

impl SetAside {
    fn lock(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of rooms for which requests wait.
    #[cfg(test)]
    pub(crate) fn rooms(&self) -> usize {
        self.lock().len()
    }

    /// Adds `aside`. If no thread waits for its room yet, starts one; without one, returns `aside`.
    pub(crate) fn put<A: Aside + 'static>(all: &Arc<Self>, aside: A, memory: &Arc<Memory>) -> Result<(), Box<A>> {
        let mut queues = all.lock();
        if let Some(queue) = queues.iter_mut().find(|queue| queue.waits.shares_room(aside.waits())) {
            queue.new.push_back(Box::new(aside));
            return Ok(());
        }
        let waits = Arc::clone(aside.waits());
        let (own, room) = (Arc::clone(all), Arc::clone(&waits));
        // The thread looks for the change only after the queues are unlocked.
        let started = memory.lend(THREAD_BYTES).is_some_and(|taken| {
            let body = move || {
                let _taken = taken;
                own.retry_all(&room);
            };
            spawn("waiter", body).is_ok()
        });
        if !started {
            return Err(Box::new(aside));
        }
        queues.push(Queue { waits, new: VecDeque::from([Box::new(aside) as Box<dyn Aside>]) });
        Ok(())
    }

    /// Moves new requests to those that the room's thread holds. Returns `false` if there are none
    /// at all; the thread must then end.
    fn gather(&self, waits: &Waits, held: &mut VecDeque<Box<dyn Aside>>) -> bool {
        let mut queues = self.lock();
        let Some(at) = queues.iter().position(|queue| queue.waits.shares_room(waits)) else { return false };
        held.append(&mut queues[at].new);
        if held.is_empty() {
            queues.swap_remove(at);
        }
        !held.is_empty()
    }

    /// Retries what waits for a room until nothing is left.
    fn retry_all(&self, waits: &Waits) {
        let mut held = VecDeque::new();
        let mut rechecked = Instant::now();
        while self.gather(waits, &mut held) {
            let seen = waits.seen();
            let is_recheck = rechecked.elapsed() >= RECHECK;
            if is_recheck {
                rechecked = Instant::now();
            }
            let (mut gained, mut failed, mut lacks_thread) = (false, false, false);
            for _ in 0..held.len() {
                let Some(aside) = held.pop_front() else { break };
                if !is_recheck && !aside.is_due(seen) {
                    held.push_back(aside);
                    continue;
                }
                // If a device panics, only its own change is lost.
                match catch_unwind(AssertUnwindSafe(|| aside.retry(seen))) {
                    Ok(Retried::Gone) => gained = true,
                    Ok(Retried::NoRoom(aside)) => {
                        failed = true;
                        held.push_back(aside);
                    }
                    Ok(Retried::NoThread(aside)) => {
                        lacks_thread = true;
                        held.push_back(aside);
                    }
                    Err(_) => {}
                }
            }
            if lacks_thread || failed && !gained {
                thread::sleep(RETRY_PAUSE);
            }
            if !lacks_thread {
                waits.sleep(seen, RECHECK.saturating_sub(rechecked.elapsed()));
            }
        }
    }

    /// Makes all threads check whether clients have ended.
    pub(crate) fn wake(&self) {
        let rooms: Vec<_> = self.lock().iter().map(|queue| Arc::clone(&queue.waits)).collect();
        rooms.iter().for_each(|waits| waits.signal());
    }
}
