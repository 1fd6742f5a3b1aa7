//! Changes of one connection that wait for room.
//!
//! A waiting request occupies no thread: it is set aside here with its payload. One thread per
//! connection retries all of them when there may be room. The connection's other requests continue,
//! including those that make room. A change that cannot be set aside, because memory is short or
//! too many wait, blocks the thread that runs it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagefold_disk::{Waiting, Waits};
use pagefold_executor::Lent;

use crate::change::{Change, Pieces};

/// Requests that one connection sets aside at most; each piece of a large request counts as one.
/// Linux's client has this many in flight.
const MOST_WAITING: usize = 128;
/// Bytes that these requests need besides their payloads: 256 bytes each, including their replies.
pub(crate) const ASIDE_BYTES: u64 = MOST_WAITING as u64 * 256;
/// Room that appears without a signal (compaction, overwriting) and the end of a connection are
/// noticed within this time.
pub(crate) const RECHECK: Duration = Duration::from_millis(500);
/// Pause between two attempts if the first gained nothing: each discard of another client triggers
/// an attempt.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// A request's payload, if it has one.
pub(crate) struct Payload(pub(crate) Option<Lent>);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Lent::as_ref)
    }
}

/// A change that was set aside.
pub(crate) struct Stalled {
    pub(crate) change: Change<Payload>,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) waiting: Waiting,
}

/// The changes that a connection has set aside.
#[derive(Default)]
pub(crate) struct Aside(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// Changes that the waiting thread has not seen yet.
    new: VecDeque<Stalled>,
    /// Number of changes in `new` and held by the thread.
    count: usize,
    /// Whether a thread retries them. It ends when `count` is 0.
    has_thread: bool,
    /// Wakes that thread.
    waits: Option<Arc<Waits>>,
}

impl Aside {
    /// Sets a change aside. If no thread is retrying yet, calls `start` to start one. Returns the
    /// change if too many wait or there is no thread.
    pub(crate) fn put(
        &self,
        stalled: Stalled,
        waits: &Arc<Waits>,
        start: impl FnOnce() -> bool,
    ) -> Result<(), Box<Stalled>> {
        let mut queue = self.lock();
        // A new thread looks for the change only after the queue is unlocked.
        if queue.count >= MOST_WAITING || !(queue.has_thread || start()) {
            return Err(Box::new(stalled));
        }
        queue.has_thread = true;
        queue.waits.get_or_insert_with(|| Arc::clone(waits));
        queue.count += 1;
        queue.new.push_back(stalled);
        Ok(())
    }

    /// Moves new changes to those that the thread holds. Returns `false` if there are none at all;
    /// the thread must then end.
    pub(crate) fn gather(&self, held: &mut VecDeque<Stalled>) -> bool {
        let mut queue = self.lock();
        held.append(&mut queue.new);
        queue.count = held.len();
        if held.is_empty() {
            queue.has_thread = false;
            queue.waits = None;
        }
        !held.is_empty()
    }

    /// Makes the thread check again.
    pub(crate) fn wake(&self) {
        let waits = self.lock().waits.clone();
        if let Some(waits) = waits {
            waits.signal();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
