//! A store in which a server leaves open files for the process that continues it.

use std::{io, os::fd::BorrowedFd, time::Duration};

/// Keeps open files while no process of a server runs.
pub trait DescriptorStore: Send + Sync {
    /// Returns how many files it keeps; 0 if the server cannot leave anything there.
    fn room(&self) -> usize;

    /// Announces that this process is starting, and takes up to `time` until it is ready or calls
    /// this again.
    fn begins_within(&self, time: Duration);

    /// Announces that this process ends, which takes up to `time`.
    fn ends_within(&self, time: Duration);

    /// Keeps a copy under a name.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn keep(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()>;

    /// Waits until everything is kept; then this process may end.
    ///
    /// # Errors
    /// The store does not answer.
    fn settle(&self) -> io::Result<()>;

    /// Closes the files with this name.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn remove(&self, name: &str) -> io::Result<()>;
}
