//! Changes of one connection that wait for room.
//!
//! A request that waits takes no thread: it is put aside here with its payload, and one thread
//! tries all of a connection's again when there may be room. So the connection's other requests go
//! on, among them those that make room. What cannot be put aside, for want of memory or because too
//! many wait, holds up the thread that runs it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagefold_disk::{Waiting, Waits};

use crate::{
    change::{Change, Pieces},
    memory::Lent,
};

/// Requests of one connection that are put aside at a time, a piece of a large one counted as one:
/// as many as Linux's client has in flight.
const MOST_WAITING: usize = 128;
/// What these take besides their payloads: 256 bytes each, with what their replies need.
pub(crate) const ASIDE_BYTES: u64 = MOST_WAITING as u64 * 256;
/// What makes room without a signal (compaction, overwriting) is noticed after this time, and so is
/// the end of a connection.
pub(crate) const RECHECK: Duration = Duration::from_millis(500);
/// Between two tries when the first gained nothing: each discard of another client is a reason to
/// try again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// What a request brought, if it brought anything.
pub(crate) struct Payload(pub(crate) Option<Lent>);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Lent::as_ref)
    }
}

/// A change that was put aside.
pub(crate) struct Stalled {
    pub(crate) change: Change<Payload>,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) waiting: Waiting,
}

/// What a connection has put aside.
#[derive(Default)]
pub(crate) struct Aside(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// Not seen by the waiting thread yet.
    new: VecDeque<Stalled>,
    /// These, and those that the thread has.
    count: usize,
    /// There is a thread that tries them again. It ends when `count` is 0.
    has_thread: bool,
    /// What wakes that thread.
    waits: Option<Arc<Waits>>,
}

impl Aside {
    /// Puts a change aside. If no thread tries it again, `start` starts one. Gives the change back
    /// if too many wait, or there is no thread.
    pub(crate) fn put(
        &self,
        stalled: Stalled,
        waits: &Arc<Waits>,
        start: impl FnOnce() -> bool,
    ) -> Result<(), Box<Stalled>> {
        let mut queue = self.lock();
        // The thread comes to look for it once the queue is not locked any more.
        if queue.count >= MOST_WAITING || !(queue.has_thread || start()) {
            return Err(Box::new(stalled));
        }
        queue.has_thread = true;
        queue.waits.get_or_insert_with(|| Arc::clone(waits));
        queue.count += 1;
        queue.new.push_back(stalled);
        Ok(())
    }

    /// Adds what has come to what the thread has. `false`: there is nothing, and the thread has to
    /// end.
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

    /// Has the thread look again.
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
