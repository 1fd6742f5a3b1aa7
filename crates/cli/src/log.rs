//! Lines on standard error.

use std::{
    env,
    io::{self, Write},
    sync::{Mutex, OnceLock, PoisonError},
};

use clap::ValueEnum;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::fstat,
};

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Level {
    /// Failures
    Error,
    /// Problems that may lead to failures
    Warn,
    /// Completed operations
    Info,
    /// Received requests
    Debug,
}

/// Writes a server's lines of at least the severity `level`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    level: Level,
}

impl Log {
    pub(crate) fn new(level: Level) -> Self {
        Self { level }
    }

    pub(crate) fn error(self, text: &str) {
        self.write(Level::Error, text);
    }

    pub(crate) fn warn(self, text: &str) {
        self.write(Level::Warn, text);
    }

    pub(crate) fn info(self, text: &str) {
        self.write(Level::Info, text);
    }

    pub(crate) fn debug(self, text: &str) {
        self.write(Level::Debug, text);
    }

    pub(crate) fn write(self, level: Level, text: &str) {
        static LOST: Mutex<u64> = Mutex::new(0);
        if level > self.level {
            return;
        }
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_room() {
            *lost += 1;
            return;
        }
        if *lost > 0 {
            write(Level::Warn, &format!("{lost} lines were lost because standard error was not read"));
            *lost = 0;
            if !has_room() {
                *lost += 1;
                return;
            }
        }
        write(level, text);
    }
}

/// Returns whether standard error accepts a line at once. A pipe that nobody reads must not block a
/// server.
fn has_room() -> bool {
    let stderr = io::stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // If the system cannot tell, write.
    poll(&mut polled, Some(&now)).map_or(true, |ready| ready > 0)
}

/// Writes a line to standard error. Failures are ignored.
pub(crate) fn write(level: Level, text: &str) {
    // Names may contain control characters.
    let text = crate::image::show(text.as_bytes());
    let _ = if goes_to_journal() {
        let priority = match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug => 7,
        };
        writeln!(io::stderr(), "<{priority}>{text}")
    } else {
        writeln!(io::stderr(), "pagefold: {text}")
    };
}

/// Returns whether standard error is the journal's stream, which accepts priorities and adds the
/// program's name. `JOURNAL_STREAM` contains the stream's device and inode.
fn goes_to_journal() -> bool {
    static GOES: OnceLock<bool> = OnceLock::new();
    *GOES.get_or_init(|| {
        let stream = env::var("JOURNAL_STREAM").unwrap_or_default();
        let Ok(stderr) = fstat(io::stderr()) else { return false };
        stream == format!("{}:{}", stderr.st_dev, stderr.st_ino)
    })
}
