//! The time that the command has used; each phase compares it with its end.

use std::time::{Duration, Instant};

/// A clock that starts with the command.
#[derive(Debug)]
pub(super) struct Clock(Source);

#[derive(Debug)]
enum Source {
    Since(Instant),
    #[cfg(test)]
    Counted {
        step: Duration,
        asked: std::sync::atomic::AtomicU32,
    },
}

impl Clock {
    pub(super) fn start() -> Self {
        Self(Source::Since(Instant::now()))
    }

    /// Returns a clock that advances by `step` whenever it is asked, and not otherwise.
    #[cfg(test)]
    pub(super) fn counted(step: Duration) -> Self {
        Self(Source::Counted { step, asked: std::sync::atomic::AtomicU32::new(0) })
    }

    /// Returns how often a counted clock was asked.
    #[cfg(test)]
    pub(super) fn asked(&self) -> u32 {
        match &self.0 {
            Source::Since(_) => 0,
            Source::Counted { asked, .. } => asked.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    /// Returns the time since the start.
    pub(super) fn now(&self) -> Duration {
        match &self.0 {
            Source::Since(start) => start.elapsed(),
            #[cfg(test)]
            Source::Counted { step, asked } => *step * (1 + asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
        }
    }

    /// Returns a limit at `end` since the start.
    pub(super) fn until(&self, end: Duration) -> Deadline<'_> {
        Deadline { clock: self, end }
    }
}

/// The end of a phase. Every phase checks it between units of work of bounded length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline<'a> {
    clock: &'a Clock,
    end: Duration,
}

impl Deadline<'_> {
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(super) fn is_over(&self) -> bool {
        self.clock.now() >= self.end
    }

    /// Returns whether work that takes this long would end in time.
    pub(super) fn leaves(&self, time: Duration) -> bool {
        self.clock.now().saturating_add(time) < self.end
    }

    /// Returns the earlier of this limit and the instant `time` from now.
    pub(super) fn or_after(self, time: Duration) -> Self {
        Self { end: self.end.min(self.clock.now() + time), ..self }
    }
}
