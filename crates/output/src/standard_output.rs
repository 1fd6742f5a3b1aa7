//! Standard output, whose errors are reported.
//!
//! The standard library hides two of them. If the descriptor is closed when the program starts, the
//! library opens `/dev/null` in its place before `main`. If the descriptor is open for reading only,
//! it takes each write for a success.
#![allow(unsafe_code)] // a function that runs before the standard library's start

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::io::{Errno, fcntl_getfd};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    let is_closed = fcntl_getfd(rustix::stdio::stdout()) == Err(Errno::BADF);
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

// SAFETY: the section contains addresses of functions that the C library calls before `main`, with
// arguments that `look` ignores. `look` makes one system call, and needs nothing that a start sets up.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

/// The names of the process's standard output in the file system.
const NAMES: [&str; 4] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"];

/// Returns standard output, unbuffered.
///
/// # Errors
/// It was closed when the program started.
pub fn standard_output() -> io::Result<File> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(io::Error::other("it is closed"));
    }
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

/// Returns whether `path` is a name of standard output.
pub(crate) fn is_name(path: &Path) -> bool {
    NAMES.iter().any(|name| path == Path::new(name))
}
