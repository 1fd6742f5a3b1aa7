//! What a peer may cost.

use std::time::Duration;

/// Bounds of a server. All of them have sensible defaults: a program changes fields of
/// [`Limits::default`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Connections at a time that have chosen an export; whoever would be one more is refused the
    /// choice.
    pub connections: usize,
    /// Connections at a time that have not, besides. When one more comes, the one that has taken
    /// the longest is closed, so that silent peers keep nobody out, and whoever only asks is
    /// answered while all connections are in use.
    pub negotiating: usize,
    /// Threads of one connection: its slow requests run at the same time on up to this many.
    pub threads_per_connection: usize,
    /// Threads of all connections together besides the one that each has. When they are at work, a
    /// connection's requests run one after another.
    pub threads: usize,
    /// Bytes of one connection's buffers, besides the [`LEAST_BYTES`](crate::LEAST_BYTES) that each
    /// has. When they are spent, the connection runs one request at a time, in small pieces.
    pub memory_per_connection_bytes: usize,
    /// The same for all connections together.
    pub memory_bytes: u64,
    /// Within this time a peer has to choose an export.
    pub handshake_timeout: Duration,
    /// A peer that stops in the middle of a request, or does not read its replies, is dropped after
    /// this time. For all of a message it has this time and one second for each 64 KiB. Between
    /// requests it may be silent for ever.
    pub io_timeout: Duration,
    /// When the server stops, connections that are not done by then are closed.
    pub stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            negotiating: 32,
            threads_per_connection: 16,
            threads: 64,
            memory_per_connection_bytes: 8 << 20,
            memory_bytes: 64 << 20,
            handshake_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
        }
    }
}
