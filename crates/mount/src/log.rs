//! Reports errors of a mounted file system, because the failing system call can only return `EIO`.

use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of lines, so that repeated reads of a damaged image do not fill a disk.
const MAX_LINES: u64 = 1000;

/// A log of errors.
pub struct Log {
    write: Box<dyn Fn(&str) + Send + Sync>,
    lines: AtomicU64,
}

impl Log {
    /// Creates a log that passes the first thousand lines, and one that says that no more follow,
    /// to `write`.
    pub fn new(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { write: Box::new(write), lines: AtomicU64::new(0) }
    }

    /// Logs a line.
    pub fn line(&self, text: &str) {
        match self.lines.fetch_add(1, Ordering::Relaxed) {
            ..MAX_LINES => (self.write)(text),
            MAX_LINES => (self.write)("further errors are not reported"),
            _ => {}
        }
    }
}

impl Default for Log {
    /// Creates a log that discards everything.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn it_falls_silent() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = Log::new({
            let lines = Arc::clone(&lines);
            move |line| lines.lock().unwrap().push(line.to_owned())
        });
        for number in 0..2000 {
            log.line(&number.to_string());
        }
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 1001);
        assert_eq!((lines[999].as_str(), lines[1000].as_str()), ("999", "further errors are not reported"));
    }
}
