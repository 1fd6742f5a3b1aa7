//! What a peer may cost.

use std::time::Duration;

use crate::protocol::MAX_PAYLOAD_BYTES;

/// Bounds of a server. All of them have sensible defaults; tests shorten the times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; more are closed as they come.
    pub connections: usize,
    /// Threads of one connection: its slow requests run at the same time on up to this many.
    pub threads_per_connection: usize,
    /// Bytes of the payloads and replies that one connection holds for its slow requests. When they are spent, the
    /// connection's next requests wait. At least one request of the largest size always fits.
    pub memory_per_connection_bytes: usize,
    /// Within this time a peer has to choose an export.
    pub handshake_timeout: Duration,
    /// A peer that stops in the middle of a request, or does not read its replies, is dropped after this time. For all of
    /// a message it has this time and one second for each 64 KiB. Between requests it may be silent for ever.
    pub io_timeout: Duration,
    /// When the server stops, connections that are not done by then are closed.
    pub stop_grace: Duration,
}

impl Limits {
    /// The least memory a connection needs: one payload of the largest size and its reply.
    pub(crate) const LEAST_MEMORY_BYTES: usize = MAX_PAYLOAD_BYTES as usize + (64 << 10);
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            threads_per_connection: 16,
            memory_per_connection_bytes: 64 << 20,
            handshake_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
        }
    }
}
