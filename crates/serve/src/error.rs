//! Errors outside of connections. An error's text does not repeat its source.

use std::{io, net::SocketAddr, path::PathBuf};

use pagefold_executor::ExportError;

use crate::adopt_error::AdoptError;

/// Bytes of `sun_path` on Linux, without the terminating NUL.
pub(crate) const MAX_UNIX_PATH_BYTES: usize = 107;

/// Reasons why a server cannot start or run. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address was given.
    #[error("no address to listen on: add a Unix socket path, a TCP address, a vsock port or socket activation")]
    NoListener,
    /// An export's name is invalid, or used twice.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A server listens on the path.
    #[error("address in use: a server already listens on {}: stop it or choose another path", .0.display())]
    PathInUse(PathBuf),
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket: choose another path, or remove it", .0.display())]
    NotASocket(PathBuf),
    /// The path is too long for a Unix socket.
    #[error("socket path {} has {} bytes, the maximum is {MAX_UNIX_PATH_BYTES}: choose a shorter one", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// The Unix socket cannot be created.
    #[error("cannot listen on {}", path.display())]
    Unix {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Something already listens on the address.
    #[error("address in use: something already listens on {0}: choose another port, or 0 for any free one")]
    AddressInUse(SocketAddr),
    /// The TCP address cannot be used.
    #[error("cannot listen on {address}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The vsock port cannot be used.
    #[error("cannot listen on vsock port {port}")]
    Vsock {
        /// The port.
        port: u32,
        /// The cause.
        source: io::Error,
    },
    /// A passed socket is not a listening stream socket.
    #[error("cannot use passed socket {index}")]
    Activation {
        /// Index of the socket, from 0.
        index: usize,
        /// The cause.
        source: io::Error,
    },
    /// A socket cannot be opened because the server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The state of a client of another server cannot be continued.
    #[error("cannot take the clients of another server over")]
    Adopt(#[from] AdoptError),
    /// The system refused something that the server needs.
    #[error("cannot {what}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}
