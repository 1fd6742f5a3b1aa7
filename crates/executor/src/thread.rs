//! Starting threads, and what each takes.

use std::{io, thread};

/// Bytes that a thread takes besides: the part of its stack that is touched, and its records.
pub const THREAD_BYTES: u64 = 32 << 10;

/// Starts a thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}
