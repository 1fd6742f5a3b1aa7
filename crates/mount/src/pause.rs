//! Pauses of a mount, in which it can be handed over to another process.
//!
//! A thread that sleeps on the device cannot be called back: the request that wakes it would be lost. So
//! each is held when it has answered one, if need be one that this process itself sends. Then nothing reads
//! the device, and requests wait in the kernel.
//!
//! ```text
//! all threads are held:  done
//! otherwise:             ask for the file system's state; a thread answers and is held
//! ```
//!
//! The last question may come when all are held. It waits until the pause has ended, or until the other
//! process answers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::fs::fstatfs;

use crate::crew::Crew;
use crate::place::MountPoint;
use crate::poller::Poller;
use crate::session::is_gone;

/// Lets the threads of a [`Mount`](crate::Mount) pause between two requests. Its file system answers at
/// least `statfs` within [`Poller::answer`].
#[derive(Clone)]
pub struct Pauser {
    poller: Arc<Poller>,
    place: MountPoint,
}

impl Pauser {
    pub(crate) fn new(poller: Arc<Poller>, place: MountPoint) -> Self {
        Self { poller, place }
    }

    /// Lets no thread begin with a request until [`go_on`](Self::go_on), and returns the device when none has
    /// one. Replies that were left to other threads may be missing. Returns `None` if the file system is
    /// not mounted any more.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if a request has not been answered until `deadline`; others if
    /// the directory cannot be reached. The threads continue.
    pub fn pause(&self, deadline: Instant) -> io::Result<Option<OwnedFd>> {
        let Some(device) = self.poller.device() else { return Ok(None) };
        let crew = self.poller.crew();
        let pause = crew.pause();
        let (asking, place) = (Arc::clone(crew), self.place.clone());
        let ask = move || {
            if let Err(error) = ask(&asking, &place, pause) {
                asking.fail(pause, error);
            }
        };
        // The thread is not waited for: its last question has no answer yet.
        let asks = thread::Builder::new().name("pause".to_owned()).spawn(ask);
        let still = asks.and_then(|_| crew.wait_until_still(deadline));
        let paused = match still {
            _ if is_gone(device) => Ok(None),
            Ok(true) => device.try_clone().map(Some),
            Ok(false) => Err(io::Error::other("a thread that answers requests has ended")),
            Err(error) => Err(error),
        };
        if !matches!(paused, Ok(Some(_))) {
            crew.go_on();
        }
        paused
    }

    /// Ends a pause.
    pub fn go_on(&self) {
        self.poller.crew().go_on();
    }
}

/// Asks until all threads are held.
fn ask(crew: &Crew, place: &MountPoint, pause: u64) -> io::Result<()> {
    let directory = place.open()?;
    while crew.awaits(pause) {
        fstatfs(&directory)?;
    }
    Ok(())
}
