//! Runs changes: in a transport's thread until they would have to wait, in a thread of the executor, or
//! set aside until there is room.

use std::sync::Arc;

use crate::{
    change::{Attempt, Change, Keep, Storage},
    completion::{Called, Completion},
    waiting,
};

impl Change<&[u8]> {
    /// Runs the change until it would have to wait for storage or for room. A thread of the executor
    /// does the rest; if there is none, or no memory for a copy of the payload, this thread does.
    pub fn start<C: Completion>(mut self, mut completion: C) {
        let attempt = self.attempt(completion.client().device().as_deref(), Storage::DoNotWait);
        if let Attempt::Done(result) = attempt {
            completion.done(result);
        } else if let Err((change, completion)) = self.hand_on(completion) {
            change.finish(completion);
        }
    }

    /// Hands the rest to a thread of the executor.
    ///
    /// # Errors
    /// There is no thread, or no memory for a copy of the payload. Nothing has happened.
    pub fn hand_on<C: Completion>(self, completion: C) -> Result<(), (Self, C)> {
        let client = Arc::clone(completion.client());
        let Some(thread) = client.reserve() else { return Err((self, completion)) };
        match self.keep(client.share()) {
            Ok(change) => {
                thread.run(move |_| change.run(completion));
                Ok(())
            }
            Err(change) => Err((change, completion)),
        }
    }
}

impl<B: Keep> Change<B> {
    /// Does the rest in this thread, which waits for storage. If there is no room, the change is set
    /// aside, and the thread is free; if that is impossible, this thread waits.
    pub fn finish<C: Completion>(self, completion: C) {
        drop(self.run(completion));
    }

    /// Like [`finish`](Self::finish). Returns the completion if it was called.
    pub(crate) fn run<C: Completion>(mut self, mut completion: C) -> Called<C> {
        loop {
            let attempt = self.attempt(completion.client().device().as_deref(), Storage::Wait);
            match attempt {
                Attempt::Done(result) => {
                    // Dropped first, so that its memory is free while the transport replies.
                    drop(self);
                    completion.done(result);
                    return Called::Own(completion);
                }
                Attempt::NoRoom(waits) => return waiting::set_aside(self, completion, &waits),
                Attempt::Blocks => {}
            }
        }
    }
}
