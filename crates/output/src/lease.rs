//! Whether a file is open elsewhere.
#![allow(unsafe_code)] // commands of fcntl

use std::{
    fs::File,
    io::{Error, ErrorKind},
    os::fd::AsRawFd,
};

use libc::{F_SETLEASE, F_UNLCK, F_WRLCK, SIGURG, c_int, fcntl};

/// `F_SETSIG` of `fcntl(2)`, which the crate `libc` lacks: the same number for all processors.
const F_SETSIG: c_int = 10;

/// Returns whether another program has a regular file open, or the system, as below a loop device. This
/// process has it open for reading once, as `file`. False if the system does not say: for another
/// user's file, and on many network file systems.
///
/// The system grants a lease for writing (`fcntl(2)`, `F_SETLEASE`) only if nothing else has the file
/// open. It ends immediately.
pub(crate) fn is_open_elsewhere(file: &File) -> bool {
    let command = |command: c_int, argument: c_int| {
        // SAFETY: these commands take a number and access no memory.
        match unsafe { fcntl(file.as_raw_fd(), command, argument) } {
            -1 => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // A program that opens the file during the lease waits for its end, and the system signals that. By
    // default, its signal would end this process; this one is ignored.
    let lease = command(F_SETSIG, SIGURG).and_then(|()| command(F_SETLEASE, F_WRLCK));
    if lease.is_ok() {
        // Closing the file would end it, too.
        let _ = command(F_SETLEASE, F_UNLCK);
    }
    lease.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    #[test]
    fn readers_and_writers_are_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "content").expect("a file");
        let is_open = || is_open_elsewhere(&File::open(&path).expect("a file"));
        assert!(!is_open());
        let reader = File::open(&path).expect("a file");
        assert!(is_open());
        drop(reader);
        let writer = OpenOptions::new().append(true).open(&path).expect("a file");
        assert!(is_open());
        drop(writer);
        assert!(!is_open());
        // Nothing of the lease is left.
        OpenOptions::new().write(true).open(&path).expect("a file");
    }
}
