//! Changes that find no room: set aside, and retried when there may be room.

use std::{collections::VecDeque, sync::Arc, thread};

use pagefold_disk::Waits;
use pagefold_executor::{THREAD_BYTES, spawn};

use super::{Connection, EndOnUnwind, Keeper};
use crate::{
    change::{Attempt, Change, Pieces, Storage},
    negotiate::Ended,
    request::{REPLY_OVERHEAD_BYTES, Refusal, Replies},
    transport::Transport,
    waiting::{ASIDE_BYTES, Payload, RECHECK, RETRY_PAUSE, Stalled},
};

impl<T: Transport, G: Keeper<T>> Connection<T, G> {
    /// Ends a piece of a change, and replies if it is the last.
    pub(super) fn finish<B>(
        &self,
        change: Change<B>,
        pieces: &Pieces,
        result: Result<(), Refusal>,
    ) -> Result<(), Ended> {
        if let Err(refusal) = result {
            pieces.fail(refusal);
        }
        // Its memory is then free for the next piece while the reply is sent.
        drop(change);
        let Some(result) = pieces.done(self.device().as_deref()) else { return Ok(()) };
        let mut replies = Replies::new([0; REPLY_OVERHEAD_BYTES]);
        replies.finish(&pieces.request, self.headers(), result);
        self.send(replies.filled())
    }

    /// Sets a change aside to wait for room; if that is impossible, waits in this thread.
    pub(super) fn put_aside(
        connection: &Arc<Self>,
        mut change: Change<Payload>,
        pieces: Arc<Pieces>,
        waits: &Arc<Waits>,
    ) -> Result<(), Ended> {
        let waiting = waits.begin();
        let seen = waits.seen();
        if let Attempt::Done(result) = change.attempt(connection.device().as_deref(), Storage::Wait) {
            return connection.finish(change, &pieces, result);
        }
        let start = || {
            let Some(taken) = connection.common.memory.lend(THREAD_BYTES + ASIDE_BYTES) else { return false };
            let (other, waits) = (Arc::clone(connection), Arc::clone(waits));
            let body = move || {
                let _taken = taken;
                other.wait_for_room(&waits);
            };
            spawn("nbd-waiter", body).is_ok()
        };
        if let Err(stalled) = connection.aside.put(Stalled { change, pieces, waiting }, waits, start) {
            let Stalled { mut change, pieces, waiting } = *stalled;
            let result = connection.outlast(&mut change, waits);
            drop(waiting);
            return connection.finish(change, &pieces, result);
        }
        if waits.seen() != seen {
            // The waiting thread may have gone back to sleep before this change was queued.
            waits.signal();
        }
        Ok(())
    }

    /// Retries the changes that were set aside until none is left.
    fn wait_for_room(&self, waits: &Waits) {
        let unwinding = EndOnUnwind(self);
        let mut held = VecDeque::new();
        while self.aside.gather(&mut held) {
            let seen = waits.seen();
            let ending = self.is_ending();
            let mut left = VecDeque::with_capacity(held.len());
            let mut gained = false;
            for Stalled { mut change, pieces, waiting } in held.drain(..) {
                let result = match change.attempt(self.device().as_deref(), Storage::Wait) {
                    Attempt::Done(result) => result,
                    Attempt::NoRoom(_) | Attempt::Blocks if ending => Err(Refusal::ended()),
                    Attempt::NoRoom(_) | Attempt::Blocks => {
                        left.push_back(Stalled { change, pieces, waiting });
                        continue;
                    }
                };
                gained = true;
                drop(waiting);
                if self.finish(change, &pieces, result).is_err() {
                    self.end(true);
                }
            }
            held = left;
            if !gained {
                thread::sleep(RETRY_PAUSE);
                waits.sleep(seen, RECHECK);
            }
        }
        std::mem::forget(unwinding);
    }

    /// Waits for room in this thread. The caller has a [`Waiting`](pagefold_disk::Waiting).
    pub(super) fn outlast<B: AsRef<[u8]>>(&self, change: &mut Change<B>, waits: &Waits) -> Result<(), Refusal> {
        loop {
            let seen = waits.seen();
            if let Attempt::Done(result) = change.attempt(self.device().as_deref(), Storage::Wait) {
                return result;
            }
            if self.is_ending() {
                return Err(Refusal::ended());
            }
            thread::sleep(RETRY_PAUSE);
            waits.sleep(seen, RECHECK);
        }
    }
}
