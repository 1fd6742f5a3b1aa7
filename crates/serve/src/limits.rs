//! Bounds on the resources that a peer can consume.

use std::time::Duration;

/// Bounds of a server. All have sensible defaults: start from [`Limits::default`] and change
/// fields.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Connections that have chosen an export. A further connection is refused when it chooses one.
    /// [`ServerHandle::set_connections`](crate::ServerHandle::set_connections) changes the number
    /// while the server runs.
    pub connections: usize,
    /// Additional connections for [private](crate::Export::private) exports alone.
    pub private: usize,
    /// Additional connections that have not chosen an export yet. Each needs a descriptor, and no
    /// thread. When a further one arrives, the oldest of them is closed, once it has had some time.
    /// So silent peers do not lock others out, and clients that only query are answered even if all
    /// `connections` are in use.
    pub negotiating: usize,
    /// Threads per connection: at most this many of its slow requests run in parallel.
    pub threads_per_connection: usize,
    /// Threads of all connections together, in addition to the one that each working connection has.
    /// If all are busy, a connection runs its requests one after another.
    pub threads: usize,
    /// Bytes of buffers per connection, in addition to its [`WORK_BYTES`](crate::WORK_BYTES). If they
    /// are used up, the connection runs one request at a time, in small pieces.
    pub memory_per_connection_bytes: usize,
    /// The same for all connections together.
    pub memory_bytes: u64,
    /// Time within which a peer must choose an export.
    pub handshake_timeout: Duration,
    /// A peer that stops in the middle of a request or does not read its replies is dropped after
    /// this time. So is one that sends or reads a message more slowly than 64 KiB per second after
    /// this time. Between requests, a peer may be silent indefinitely.
    pub io_timeout: Duration,
    /// When the server stops, connections that have not finished after this time are closed.
    pub stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            private: 16,
            negotiating: 512,
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
