//! Descriptors that NBD clients leave to the rest of the process.
//!
//! The kernel gives the lowest free number, so the number of a new descriptor says how many the
//! process has, whatever they are for:
//!
//! ```text
//! 0 ············· sockets, bases, clients ·············│ private, negotiating │ others │ limit
//!                                                      serves                 accepts
//! ```

use std::os::fd::{AsFd, AsRawFd};

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, getrlimit},
};

/// Descriptors for clients of the control socket and files that their commands open.
const OTHERS: u64 = 16;

/// Descriptors for private exports, and for clients that learn why they are refused.
const PRIVATE: u64 = 16;

/// Descriptors below the process's limit of open files that clients of exports leave free.
pub const SPARE_DESCRIPTORS: u64 = OTHERS + PRIVATE;

/// Returns whether a client with this descriptor may be served.
pub(crate) fn serves(client: impl AsFd) -> bool {
    is_below(client, SPARE_DESCRIPTORS)
}

/// Returns whether a client may be accepted. `listener` is any descriptor.
pub(crate) fn accepts(listener: impl AsFd) -> bool {
    // The copy gets the number that a client would get.
    fcntl_dupfd_cloexec(listener, 0).is_ok_and(|copy| is_below(copy, OTHERS))
}

fn is_below(descriptor: impl AsFd, spare: u64) -> bool {
    let number = u64::try_from(descriptor.as_fd().as_raw_fd()).unwrap_or(0);
    // If the limit is very low, clients get half of it.
    getrlimit(Resource::Nofile).current.is_none_or(|limit| number < limit - spare.min(limit / 2))
}
