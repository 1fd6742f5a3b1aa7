//! A line on a terminal that shows the progress of a long task.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use crate::size;

/// Interval between updates.
const INTERVAL: Duration = Duration::from_millis(100);

/// The line, shown on standard error if that is a terminal. Dropping this value erases it.
pub(crate) struct ProgressLine {
    terminal: bool,
    shown: bool,
    start: Instant,
    next: Instant,
}

impl ProgressLine {
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        Self { terminal: io::stderr().is_terminal(), shown: false, start, next: start + INTERVAL }
    }

    /// Shows that `done` of `total` bytes have been processed.
    pub(crate) fn show(&mut self, done: u64, total: u64) {
        let now = Instant::now();
        if self.terminal && now >= self.next {
            self.next = now + INTERVAL;
            self.shown = true;
            // Failure to write to the terminal is not an error.
            let _ = write!(io::stderr(), "\r\x1b[K{}", line(done, total, now - self.start));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(done: u64, total: u64, time: Duration) -> String {
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    let speed = done as f64 / time.as_secs_f64().max(1e-3);
    format!("{percent:3} %  {} of {}, {}/s", size::show(done), size::show(total), size::show(speed as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_and_how_fast() {
        assert_eq!(line(512 << 10, 2 << 20, Duration::from_secs(2)), " 25 %  512 KiB of 2 MiB, 256 KiB/s");
        assert_eq!(line(0, 0, Duration::ZERO), "  0 %  0 B of 0 B, 0 B/s");
    }
}
