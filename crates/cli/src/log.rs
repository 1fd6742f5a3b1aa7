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

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Level {
    /// It failed
    Error,
    /// It may fail soon
    Warn,
    /// What was done
    Info,
    /// What was asked for
    Debug,
}

/// Writes the lines of a server that matter as much as `level`, or more.
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

    fn write(self, level: Level, text: &str) {
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
            write(Level::Warn, &format!("{lost} lines were lost, as nobody read standard error"));
            *lost = 0;
            if !has_room() {
                *lost += 1;
                return;
            }
        }
        write(level, text);
    }
}

/// Whether standard error takes a line at once: a pipe that nobody reads would keep a server from
/// serving.
fn has_room() -> bool {
    let stderr = io::stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Where the system does not say, it is written.
    poll(&mut polled, Some(&now)).map_or(true, |ready| ready > 0)
}

/// Writes a line to standard error. Failures are ignored.
pub(crate) fn write(level: Level, text: &str) {
    // Names may have control characters.
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

/// Whether standard error is the journal's stream, which takes priorities and adds the program's
/// name: `JOURNAL_STREAM` has the stream's device and inode.
fn goes_to_journal() -> bool {
    static GOES: OnceLock<bool> = OnceLock::new();
    *GOES.get_or_init(|| {
        let stream = env::var("JOURNAL_STREAM").unwrap_or_default();
        let Ok(stderr) = fstat(io::stderr()) else { return false };
        stream == format!("{}:{}", stderr.st_dev, stderr.st_ino)
    })
}
