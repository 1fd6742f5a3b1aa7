//! Pauses a mount, so that it can be handed over to another process.
//!
//! A thread that sleeps on the device wakes only with a request, which must be answered. So each
//! thread is held once it has answered one, which this process sends itself if no other comes. Then
//! no thread reads the device, and requests wait in the kernel.
//!
//! ```text
//! all threads are held:  done
//! otherwise:             ask for the file system's state; a thread answers and is held
//! ```
//!
//! The last question may arrive when all threads are held. Then it waits for the end of the pause,
//! or for the other process.

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

    /// Holds all threads until [`go_on`](Self::go_on), and returns the device when none has a
    /// request. Replies that were left to other threads may be missing. Returns `None` if the file
    /// system is not mounted any more.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if a request is not answered by `deadline`; other
    /// errors if the directory cannot be accessed. The threads continue.
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
        // The thread is not joined: its last question may have no answer yet.
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
