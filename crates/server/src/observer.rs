//! The receiver of a server's log lines.

use std::{fmt, sync::Arc};

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Failures.
    Error,
    /// Problems that may lead to failures.
    Warn,
    /// Completed operations.
    Info,
    /// Received requests, and clients that connect and disconnect.
    Debug,
}

type Log = dyn Fn(Level, &str) + Send + Sync;

/// Receives a log line about each event of a server. The thread that causes the event calls it and
/// waits for it to return.
#[derive(Clone)]
pub struct Observer(Arc<Log>);

impl Observer {
    /// Creates an observer that calls `log`. Lines may contain any characters that the names of
    /// files contain.
    pub fn new(log: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(log))
    }

    /// Passes on a line.
    pub fn log(&self, level: Level, line: &str) {
        (self.0)(level, line);
    }

    pub(crate) fn error(&self, line: &str) {
        self.log(Level::Error, line);
    }

    pub(crate) fn warn(&self, line: &str) {
        self.log(Level::Warn, line);
    }

    pub(crate) fn info(&self, line: &str) {
        self.log(Level::Info, line);
    }

    pub(crate) fn debug(&self, line: &str) {
        self.log(Level::Debug, line);
    }
}

impl Default for Observer {
    /// Ignores everything.
    fn default() -> Self {
        Self::new(|_, _| {})
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}
