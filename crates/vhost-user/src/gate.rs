//! Where a frontend's thread pauses: between two messages, or parts of one.

use std::{
    fmt, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::state::Handed;

/// The next step of a frontend's thread.
pub(crate) enum Turn {
    /// Receives the part of a message that has arrived.
    Message,
    /// Pauses, once requests have ended or at this time.
    Pause(Instant),
}

/// Asks a frontend's thread to pause, and lets it continue.
pub(crate) struct Gate {
    wake: OwnedFd,
    phase: Mutex<Phase>,
    changed: Condvar,
}

enum Phase {
    Serves,
    Asked(Instant),
    /// Contains what another process needs, until that is taken, or the reason why none can
    /// continue.
    Pauses(Option<Result<Handed, String>>),
    /// Another process has the frontend.
    Given,
    Ended,
}

impl Gate {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake, phase: Mutex::new(Phase::Serves), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a message, or for the request to pause.
    pub(crate) fn wait(&self, socket: &UnixStream) -> io::Result<Turn> {
        loop {
            if let Phase::Asked(deadline) = *self.lock() {
                return Ok(Turn::Pause(deadline));
            }
            let mut watched = [PollFd::new(socket, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            if !watched[1].revents().is_empty() {
                // This does not block; the phase says what to do.
                let _ = rustix::io::read(self.wake.as_fd(), &mut [0; 8]);
            } else if !watched[0].revents().is_empty() {
                return Ok(Turn::Message);
            }
        }
    }

    /// Pauses, unless the pause has already ended.
    pub(crate) fn pause(&self, handed: Result<Handed, String>) {
        let mut phase = self.lock();
        if let Phase::Asked(_) = *phase {
            *phase = Phase::Pauses(Some(handed));
            self.changed.notify_all();
        }
    }

    /// Waits for the end of the pause. Returns whether the frontend is this process's.
    pub(crate) fn wait_for_end(&self) -> bool {
        let mut phase = self.lock();
        while let Phase::Pauses(_) = *phase {
            phase = self.changed.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
        !matches!(*phase, Phase::Given)
    }

    /// Asks the thread to pause, at the latest at this time.
    pub(crate) fn ask(&self, deadline: Instant) {
        let mut phase = self.lock();
        if let Phase::Serves = *phase {
            *phase = Phase::Asked(deadline);
            // The counter cannot be full.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Waits until the thread pauses. Returns `None` if the frontend has left.
    ///
    /// # Errors
    /// It has not paused by that time, or cannot be handed over; the text says why.
    pub(crate) fn wait_until_paused(&self, deadline: Instant, late: &str) -> Result<Option<Handed>, String> {
        let mut phase = self.lock();
        loop {
            match &mut *phase {
                Phase::Pauses(handed) => return handed.take().transpose(),
                Phase::Ended => return Ok(None),
                _ => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late.to_owned());
            }
            phase = self.changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a pause.
    pub(crate) fn go_on(&self) {
        self.leave_for(Phase::Serves);
    }

    /// Leaves the frontend to another process.
    pub(crate) fn give_away(&self) {
        self.leave_for(Phase::Given);
    }

    fn leave_for(&self, next: Phase) {
        let mut phase = self.lock();
        if !matches!(*phase, Phase::Ended) {
            *phase = next;
            self.changed.notify_all();
        }
    }

    /// Makes the frontend pause before its first message.
    pub(crate) fn begin_paused(&self) {
        *self.lock() = Phase::Pauses(None);
    }

    /// Records that the thread has ended.
    pub(crate) fn end(&self) {
        *self.lock() = Phase::Ended;
        self.changed.notify_all();
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}
