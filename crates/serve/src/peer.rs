//! The other end of a connection.

use std::{fmt, net::SocketAddr};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A process that connected to a Unix socket.
    Process {
        /// Its process id; 0 if it is in another namespace.
        pid: i32,
        /// Its user.
        uid: u32,
    },
    /// A TCP address.
    Address(SocketAddr),
    /// A virtual machine, or its host.
    Vsock {
        /// Its context id; 2 is the host.
        cid: u32,
        /// Its port.
        port: u32,
    },
    /// The system does not say.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Self::Address(address) => address.fmt(f),
            Self::Vsock { cid, port } => write!(f, "vsock {cid}:{port}"),
            Self::Unknown => f.write_str("an unknown peer"),
        }
    }
}
