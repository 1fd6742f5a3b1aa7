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
    /// The time until the failure during which bytes were transferred; it does not count as
    /// waiting.
    pub(crate) moved: Duration,
}

impl Failure {
    pub(crate) fn passing(error: Error) -> Self {
        Self { error, passing: true, after: None, moved: Duration::ZERO }
    }
}

/// An error without further information is permanent.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, passing: false, after: None, moved: Duration::ZERO }
    }
}

/// How long the opening of an image waits for a server that cannot be reached: its name may be
/// mistyped.
const OPENING: Duration = Duration::from_secs(15);

/// The time that remains for a request with its repetitions.
pub(crate) struct Patience {
    /// How long failures are waited out.
    limit: Duration,
    /// How long they are waited out if the server does not ask to wait.
    silent_limit: Duration,
    start: Instant,
    pause: Duration,
    /// When the time ends because a server asked to wait longer. A server may do so once.
    extended: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, silent_limit: limit, start: Instant::now(), pause: FIRST_PAUSE, extended: None }
    }

    /// Gives up earlier if the server cannot be reached.
    pub(crate) fn opening(limit: Duration) -> Self {
        Self { silent_limit: limit.min(OPENING), ..Self::new(limit) }
    }

    /// Restarts the time after progress.
    pub(crate) fn restart(&mut self) {
        (self.start, self.pause, self.extended) = (Instant::now(), FIRST_PAUSE, None);
    }

    /// Returns how long failures are waited out.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns when the time ends.
    pub(crate) fn until(&self) -> Instant {
        self.end(self.limit)
    }

    fn end(&self, limit: Duration) -> Instant {
        let end = self.start + limit;
        self.extended.map_or(end, |extended| end.max(extended))
    }

    /// Waits until the request may be repeated.
    ///
    /// # Errors
    /// The failure's error, if it stays or no time is left.
    pub(crate) fn wait(&mut self, failure: Failure) -> Result<()> {
        if !failure.passing {
            return Err(failure.error);
        }
        match self.next_pause(failure.after, failure.moved, Instant::now()) {
            Some(pause) => thread::sleep(pause),
            None => return Err(failure.error),
        }
        Ok(())
    }

    /// Returns the pause after a failure, or `None` if no time is left.
    fn next_pause(&mut self, after: Option<Duration>, moved: Duration, now: Instant) -> Option<Duration> {
        self.start += moved;
        // A random share, so that clients that failed together do not retry together.
        let share = 75 + (RandomState::new().hash_one(0) % 50) as u32;
        let usual = self.pause * share / 100;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let (pause, limit) = match after {
            Some(after) => {
                self.extended.get_or_insert(now + after + LONGEST_PAUSE);
                (after.max(usual), self.limit)
            }
            None => (usual, self.silent_limit),
        };
        (now + pause < self.end(limit)).then_some(pause)
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_server_may_ask_once_for_a_longer_wait() {
        let mut patience = Patience::new(60 * SECOND);
        let start = patience.start;
        assert_eq!(patience.next_pause(Some(60 * SECOND), Duration::ZERO, start + SECOND), Some(60 * SECOND));
        assert!(patience.until() > start + 65 * SECOND);
        let now = start + 62 * SECOND;
        assert!(patience.next_pause(None, Duration::ZERO, now).is_some());
        assert_eq!(patience.next_pause(Some(60 * SECOND), Duration::ZERO, now), None);
        patience.restart();
        assert!(patience.next_pause(Some(120 * SECOND), Duration::ZERO, patience.start).is_some());
    }

    #[test]
    fn no_loop_without_pauses() {
        let mut patience = Patience::new(60 * SECOND);
        let (mut now, mut pauses) = (patience.start, 0);
        while let Some(pause) = patience.next_pause(Some(Duration::ZERO), Duration::ZERO, now) {
            assert!(pause >= FIRST_PAUSE / 2);
            (now, pauses) = (now + pause, pauses + 1);
        }
        assert!((10..40).contains(&pauses), "{pauses}");
    }

    #[test]
    fn time_in_which_bytes_moved_does_not_count() {
        let mut patience = Patience::new(60 * SECOND);
        let late = patience.start + 100 * SECOND;
        assert_eq!(Patience::new(60 * SECOND).next_pause(None, Duration::ZERO, late), None);
        assert!(patience.next_pause(None, 90 * SECOND, late).is_some());
    }
}
