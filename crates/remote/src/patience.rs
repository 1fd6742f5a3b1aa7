//! How long failures are waited out.

use std::{
    hash::{BuildHasher, RandomState},
    thread,
    time::{Duration, Instant},
};

use crate::error::{Error, Result};

/// The first pause. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause, unless the server asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the same request may succeed later.
    pub(crate) passing: bool,
    /// How long the server asks to wait.
    pub(crate) after: Option<Duration>,
}

impl Failure {
    pub(crate) fn passing(error: Error) -> Self {
        Self { error, passing: true, after: None }
    }
}

/// An error that stays.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, passing: false, after: None }
    }
}

/// How long an image's opening waits for a server that cannot be reached: its name may be mistyped.
const OPENING: Duration = Duration::from_secs(15);

/// The time that remains for a request with its repetitions.
pub(crate) struct Patience {
    /// How long failures are waited out.
    limit: Duration,
    /// How long they are if the server does not ask to wait.
    silent_limit: Duration,
    start: Instant,
    pause: Duration,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, silent_limit: limit, start: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Gives up earlier if the server cannot be reached.
    pub(crate) fn opening(limit: Duration) -> Self {
        Self { silent_limit: limit.min(OPENING), ..Self::new(limit) }
    }

    /// Restarts the time after progress.
    pub(crate) fn restart(&mut self) {
        (self.start, self.pause) = (Instant::now(), FIRST_PAUSE);
    }

    /// Returns when the time ends.
    pub(crate) fn until(&self) -> Instant {
        self.start + self.limit
    }

    /// Waits until the request may be repeated.
    ///
    /// # Errors
    /// The failure's error, if it stays or no time is left.
    pub(crate) fn wait(&mut self, failure: Failure) -> Result<()> {
        if !failure.passing {
            return Err(failure.error);
        }
        // Clients that failed together do not return together.
        let share = 75 + (RandomState::new().hash_one(0) % 50) as u32;
        let limit = if failure.after.is_some() { self.limit } else { self.silent_limit };
        let pause = failure.after.unwrap_or(self.pause * share / 100);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if self.start.elapsed() + pause >= limit {
            return Err(failure.error);
        }
        thread::sleep(pause);
        Ok(())
    }

    /// Repeats a request until it succeeds, its failure stays or the time is over.
    pub(crate) fn repeat<T>(mut self, mut request: impl FnMut(Instant) -> Result<T, Failure>) -> Result<T> {
        loop {
            match request(self.until()) {
                Ok(value) => return Ok(value),
                Err(failure) => self.wait(failure)?,
            }
        }
    }
}
