//! Lets a server pause: commands in progress end, and no further one begins.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Passed by each command, and by each client that is accepted.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Commands that have passed and have not ended.
    inside: usize,
    is_paused: bool,
    is_closed: bool,
}

/// Counts what has passed until it is dropped.
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the gate is paused. Returns `None` if it was closed.
    pub(crate) fn pass(&self) -> Option<Inside<'_>> {
        let mut state = self.lock();
        while state.is_paused && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return None;
        }
        state.inside += 1;
        Some(Inside(self))
    }

    /// Closes the gate until the result is dropped. Returns `None` if running commands do not end
    /// within `patience`, or if the gate is paused already.
    pub(crate) fn pause(self: &Arc<Self>, patience: Duration) -> Option<Pause> {
        let mut state = self.lock();
        if state.is_paused || state.is_closed {
            return None;
        }
        state.is_paused = true;
        let pause = Pause(Arc::clone(self));
        let waited = self.changed.wait_timeout_while(state, patience, |state| state.inside > 0);
        let (state, time) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        // Dropping the pause ends it.
        (!time.timed_out()).then_some(pause)
    }

    /// Closes permanently: nothing passes.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.lock().inside -= 1;
        self.0.changed.notify_all();
    }
}

/// A pause of a server's commands. They continue when this is dropped.
#[derive(Debug)]
pub struct Pause(Arc<Gate>);

impl Pause {
    /// Keeps the gate closed permanently: another server continues.
    pub fn give_away(self) {
        self.0.close();
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.lock().is_paused = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn a_pause_waits_for_running_commands_and_delays_others() {
        let gate = Arc::<Gate>::default();
        let inside = gate.pass().expect("it is open");
        assert!(gate.pause(Duration::ZERO).is_none(), "something is inside");
        drop(inside);
        let pause = gate.pause(Duration::from_secs(10)).expect("nothing is inside");
        assert!(gate.pause(Duration::ZERO).is_none(), "paused already");
        let (sender, passed) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                sender.send(gate.pass().is_some()).expect("a receiver");
                sender.send(gate.pass().is_some()).expect("a receiver");
            });
            let nothing = passed.recv_timeout(Duration::from_millis(20));
            assert!(nothing.is_err(), "something passes while it is paused");
            drop(pause);
            assert!(passed.recv().expect("it continues"));
        });
        gate.pause(Duration::from_secs(10)).expect("nothing is inside").give_away();
        assert!(gate.pass().is_none());
    }
}
