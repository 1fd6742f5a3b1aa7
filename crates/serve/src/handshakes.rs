//! Threads that compute TLS handshakes.
//!
//! The server's thread watches all newcomers and resting connections. A part of a handshake takes
//! up to a few milliseconds (a signature, a client's chain of certificates), and a hostile client
//! can cause one with each connection. So the server's thread hands a newcomer whose handshake has
//! data to one of a few threads, which returns it with the result. Newcomers take turns in the
//! order in which their data arrived.
//!
//! ```text
//! handed on = queued + computing + done + closed in between
//! ```

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use pagefold_executor::{Exports, THREAD_BYTES, Taken, spawn};

use crate::{
    admission::Control,
    negotiate::Ended,
    newcomer::{Handshake, Newcomer, Progress},
};

/// On most machines, more threads would not finish handshakes sooner.
const MOST_THREADS: usize = 4;

/// A thread ends after it has been idle for this time.
const IDLE: Duration = Duration::from_secs(1);

/// The threads of a server, and their queue.
pub(crate) struct Handshakes {
    control: Arc<Control>,
    exports: Exports,
    most_threads: usize,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(u64, Box<Newcomer>)>,
    done: Vec<Done>,
    threads: usize,
    /// Threads that wait for work.
    free: usize,
    ended: bool,
}

/// A newcomer that a thread returns.
pub(crate) struct Done {
    pub(crate) number: u64,
    pub(crate) newcomer: Box<Newcomer>,
    pub(crate) result: Result<Progress, Ended>,
}

/// Uncounts a thread that panics. The newcomer that it had is then closed.
struct Counted<'a>(&'a Handshakes);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.lock().threads -= 1;
    }
}

impl Handshakes {
    pub(crate) fn new(control: Arc<Control>, exports: Exports) -> Arc<Self> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let most_threads = (cpus / 2).clamp(1, MOST_THREADS);
        Arc::new(Self { control, exports, most_threads, state: Mutex::default(), wake: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave it half changed, because each change is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a newcomer's negotiation to a thread. The server's thread is woken when
    /// [`take_done`](Self::take_done) can return it.
    ///
    /// # Errors
    /// There is no thread, and none can be started; returns the newcomer.
    pub(crate) fn hand_on(self: &Arc<Self>, number: u64, newcomer: Box<Newcomer>) -> Result<(), Box<Newcomer>> {
        let mut state = self.lock();
        if state.free <= state.queue.len() && state.threads < self.most_threads && !self.start(&mut state) {
            return Err(newcomer);
        }
        state.queue.push_back((number, newcomer));
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Starts a thread. Returns whether there is any.
    fn start(self: &Arc<Self>, state: &mut State) -> bool {
        let taken = self.control.common.executor.memory().lend(THREAD_BYTES);
        // The first thread needs no loan: like the server's own thread, it must be available
        // whenever it is needed.
        if taken.is_some() || state.threads == 0 {
            let handshakes = Arc::clone(self);
            let started = spawn("tls-handshake", move || handshakes.work(taken));
            state.threads += usize::from(started.is_ok());
        }
        state.threads > 0
    }

    /// Closes a newcomer that waits for its turn.
    pub(crate) fn close(&self, number: u64) {
        let mut state = self.lock();
        let place = state.queue.iter().position(|(queued, _)| *queued == number);
        let closed = place.and_then(|place| state.queue.remove(place));
        drop(state);
        drop(closed);
    }

    /// Returns the newcomers that threads have continued.
    pub(crate) fn take_done(&self) -> Vec<Done> {
        mem::take(&mut self.lock().done)
    }

    /// Closes all newcomers. One that a thread is computing for is closed when that thread has
    /// finished.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let closed = (mem::take(&mut state.queue), mem::take(&mut state.done));
        drop(state);
        self.wake.notify_all();
        drop(closed);
    }

    fn work(self: Arc<Self>, taken: Option<Taken>) {
        let counted = Counted(&self);
        while let Some((number, mut newcomer)) = self.next() {
            let result = newcomer.progress(number, &self.control, &self.exports, Handshake::Compute);
            let done = Done { number, newcomer, result };
            let mut state = self.lock();
            if state.ended {
                drop(state);
                drop(done);
                continue;
            }
            state.done.push(done);
            drop(state);
            self.control.wake();
        }
        // The thread is no longer counted.
        mem::forget(counted);
        drop(taken);
    }

    /// Returns the next newcomer; `None` if there has been none for [`IDLE`], or the server stops.
    /// The thread is then uncounted under the same lock, so a newcomer that is queued later starts
    /// another thread.
    fn next(&self) -> Option<(u64, Box<Newcomer>)> {
        let mut state = self.lock();
        loop {
            if state.ended {
                state.threads -= 1;
                return None;
            }
            if let Some(next) = state.queue.pop_front() {
                return Some(next);
            }
            state.free += 1;
            let (woken, time) = self.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.free -= 1;
            if time.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}
