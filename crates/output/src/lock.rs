//! Waits a short time for a lock.

use std::{
    fs::{File, TryLockError},
    io::{self, ErrorKind},
    thread,
    time::Duration,
};

/// The number of attempts, and the pause between two of them.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Locks a file, device or directory against other programs, which hold their locks for a moment.
///
/// # Errors
/// Another program still has the lock after about a second
/// ([`ResourceBusy`](ErrorKind::ResourceBusy)), or there are no locks here.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    for attempt in 1.. {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if attempt < ATTEMPTS => thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => return Ok(()),
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}
