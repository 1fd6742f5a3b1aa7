//! What a peer may cost.

use std::time::Duration;

use crate::protocol::MAX_PAYLOAD_BYTES;

/// Bounds of a server. All of them have sensible defaults; tests shorten the times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time that have chosen an export; whoever would be one more is refused the choice.
    pub connections: usize,
    /// Connections at a time that have not, besides. When one more comes, the one that has taken the longest is closed, so
    /// that silent peers keep nobody out, and whoever only asks is answered while all connections are in use.
    pub negotiating: usize,
    /// Threads of one connection: its slow requests run at the same time on up to this many.
    pub threads_per_connection: usize,
    /// Bytes of the payloads and replies that one connection holds for its slow requests. When they are spent, the
    /// connection's next requests wait. At least one request of the largest size always fits.
    pub memory_per_connection_bytes: usize,
    /// Bytes that all connections together hold for slow requests before each is held to its own share: one request of
    /// the largest size, which is always granted. So they hold at most this and 32 MiB for each connection.
    pub memory_bytes: usize,
    /// Within this time a peer has to choose an export.
    pub handshake_timeout: Duration,
    /// A peer that stops in the middle of a request, or does not read its replies, is dropped after this time. For all of
    /// a message it has this time and one second for each 64 KiB. Between requests it may be silent for ever.
    pub io_timeout: Duration,
    /// When the server stops, connections that are not done by then are closed.
    pub stop_grace: Duration,
}

impl Limits {
    /// A connection's own share, the least it needs: one payload of the largest size and its reply.
    pub(crate) const OWN_MEMORY_BYTES: usize = MAX_PAYLOAD_BYTES as usize + (64 << 10);
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            negotiating: 32,
            threads_per_connection: 16,
            memory_per_connection_bytes: 64 << 20,
            memory_bytes: 512 << 20,
            handshake_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
        }
    }
}
