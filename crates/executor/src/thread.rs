//! Starts threads, and counts their memory.

use std::{io, thread};

/// Other bytes that a thread takes: the touched part of its stack, and its records.
pub const THREAD_BYTES: u64 = 32 << 10;

/// Starts a thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}
