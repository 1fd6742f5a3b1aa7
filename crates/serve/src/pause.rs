//! Pauses of a server, after which it continues or ends.
//!
//! ```text
//! running → asked: no request begins → paused: nothing is in progress → running
//!                                    → cancelled → running             → given away
//! ```

use std::{
    fmt,
    os::fd::AsFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::handover::Handed;

/// How long the server's thread may take to notice that it is to pause.
const NOTICE: Duration = Duration::from_secs(5);

/// How long a client's requests may take to end once it was disconnected because they did not end
/// in time. It is longer than a read of a remote image may take.
pub(crate) const LAST: Duration = Duration::from_secs(75);

/// Why a server cannot pause, or cannot hand its clients over. It continues to serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PauseError {
    /// It is not running, or it is stopping.
    #[error("the server is not running, or is stopping")]
    NotRunning,
    /// Another thread has paused it.
    #[error("the server is paused already")]
    Paused,
    /// Clients use TLS, whose state cannot be handed over.
    #[error("{0} clients use TLS, whose connections cannot be handed over")]
    Tls(usize),
    /// Requests have not ended in time.
    #[error("requests of disk '{0}' have not ended in time; they may wait for memory or for storage")]
    Busy(String),
    /// Clients use an export that cannot be handed over.
    #[error("clients use the export '{0}', which is not a disk")]
    Export(String),
}

/// A socket of a server that pauses.
pub type Shared = Arc<dyn AsFd + Send + Sync>;

/// Whether a server pauses.
#[derive(Default)]
pub(crate) struct Pause {
    state: Mutex<State>,
    changed: Condvar,
}

/// A pause that the server's thread has to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Until when requests may end.
    pub(crate) deadline: Instant,
    /// Whether clients that cannot be handed over are left out.
    pub(crate) leaves_out: bool,
}

/// What the server's thread has to do.
pub(crate) enum Ask {
    Nothing,
    Pause(Asked),
    /// Continue what has stopped for a pause.
    GoOn,
}

#[derive(Default)]
enum State {
    #[default]
    Running,
    /// The thread has to pause.
    Asked(Asked),
    /// The pause was requested, but no thread waits for it any more: what has stopped for it must
    /// continue.
    Cancelled,
    /// The pause has begun. `None` once the result has been taken.
    Paused(Option<Result<Handed<Shared>, PauseError>>),
    /// The thread never continues.
    Given,
    Ended,
}

impl Pause {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    /// Asks the server's thread to pause, and waits until it has found what can be handed over.
    /// `pausing` sets whether requests must stop, and wakes that thread.
    pub(crate) fn begin(
        &self,
        patience: Duration,
        leaves_out: bool,
        pausing: &dyn Fn(bool),
    ) -> Result<Handed<Shared>, PauseError> {
        let mut state = self.lock();
        match *state {
            State::Running | State::Cancelled => {}
            State::Asked(_) | State::Paused(_) => return Err(PauseError::Paused),
            State::Given | State::Ended => return Err(PauseError::NotRunning),
        }
        *state = State::Asked(Asked { deadline: Instant::now() + patience, leaves_out });
        pausing(true);
        let waits = |state: &mut State| matches!(state, State::Asked(_));
        let waited = self.changed.wait_timeout_while(state, patience + LAST + NOTICE, waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let found = if let State::Paused(found) = &mut *state { found.take() } else { None };
        let found = found.unwrap_or(Err(PauseError::NotRunning));
        if found.is_err() && !matches!(*state, State::Ended) {
            let is_asked = matches!(*state, State::Asked(_));
            *state = if is_asked { State::Cancelled } else { State::Running };
            self.changed.notify_all();
            // The thread may not have seen that it was asked.
            pausing(false);
        }
        found
    }

    /// Ends a pause: the server continues. `pausing` is that of [`begin`](Self::begin).
    pub(crate) fn go_on(&self, pausing: &dyn Fn(bool)) {
        let mut state = self.lock();
        if matches!(*state, State::Paused(_)) {
            pausing(false);
            *state = State::Running;
            self.changed.notify_all();
        }
    }

    /// Ends a pause: the server never continues.
    pub(crate) fn give_away(&self) {
        self.set(State::Given);
    }

    /// For the server's thread: returns what it has to do.
    pub(crate) fn asked(&self) -> Ask {
        let mut state = self.lock();
        match *state {
            State::Asked(asked) => Ask::Pause(asked),
            State::Cancelled => {
                *state = State::Running;
                Ask::GoOn
            }
            _ => Ask::Nothing,
        }
    }

    /// For the server's thread: reports the result for `asked`, and waits until the pause ends.
    /// Returns whether the server continues, which it does immediately if that pause was given up.
    pub(crate) fn wait(&self, asked: Asked, found: Result<Handed<Shared>, PauseError>) -> bool {
        let mut state = self.lock();
        if !matches!(*state, State::Asked(last) if last == asked) {
            if matches!(*state, State::Cancelled) {
                *state = State::Running;
            }
            return true;
        }
        *state = State::Paused(Some(found));
        self.changed.notify_all();
        while matches!(*state, State::Paused(_)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !matches!(*state, State::Given)
    }

    /// For the server's thread: no thread needs to wait for a pause any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        if !matches!(*state, State::Given) {
            *state = State::Ended;
        }
        self.changed.notify_all();
    }

    pub(crate) fn is_given(&self) -> bool {
        matches!(*self.lock(), State::Given)
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's thread may settle only after no thread waits for it any more.
    #[test]
    fn the_servers_thread_waits_only_for_those_that_wait_for_it() {
        let pause = Pause::default();
        let now = Instant::now();
        let [first, second] = [now, now + Duration::from_secs(1)].map(|deadline| Asked { deadline, leaves_out: false });
        let is_asked = |asked: Asked| matches!(pause.asked(), Ask::Pause(found) if found == asked);
        pause.set(State::Asked(first));
        assert!(is_asked(first));
        pause.set(State::Cancelled);
        assert!(pause.wait(first, Ok(Handed::default())), "it continues");
        assert!(matches!(pause.asked(), Ask::Nothing), "it has gone on");
        pause.set(State::Cancelled);
        assert!(matches!(pause.asked(), Ask::GoOn), "it has not seen that it was asked");
        assert!(matches!(pause.asked(), Ask::Nothing));
        // The result for the first pause does not apply to the second.
        pause.set(State::Asked(second));
        assert!(pause.wait(first, Ok(Handed::default())));
        assert!(is_asked(second));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pause.wait(second, Err(PauseError::Tls(1))));
            while !matches!(*pause.lock(), State::Paused(Some(Err(_)))) {
                std::thread::yield_now();
            }
            pause.set(State::Given);
            assert!(!waits.join().expect("a thread"));
        });
    }
}
