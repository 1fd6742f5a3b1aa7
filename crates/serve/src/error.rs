//! What can go wrong outside of a connection. A cause is the error's source, and not in its text
//! too.

use std::{io, net::SocketAddr, path::PathBuf};

/// `sun_path` of Linux, without the byte that ends it.
pub(crate) const MAX_UNIX_PATH_BYTES: usize = 107;

/// Why a server cannot start or run. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address was given.
    #[error("no address to listen on: add a Unix socket path, a TCP address or socket activation")]
    NoListener,
    /// Two exports would have one name.
    #[error("duplicate export name `{0}`: give each export its own name")]
    DuplicateExport(String),
    /// There is nothing to rename.
    #[error("no export named `{0}`")]
    UnknownExport(String),
    /// A name is longer than the protocol allows.
    #[error("export name of {0} bytes: the protocol allows 4096")]
    NameTooLong(usize),
    /// A name cannot be shown: clients and logs are lines of text.
    #[error("export name with control characters: {0:?}")]
    ControlInName(String),
    /// A server listens on the path.
    #[error("address in use: a server already listens on {}: stop it or choose another path", .0.display())]
    PathInUse(PathBuf),
    /// The path is something else than a socket.
    #[error("{} exists and is not a socket: choose another path, or remove it", .0.display())]
    NotASocket(PathBuf),
    /// The system takes no such path for a Unix socket.
    #[error("socket path {} has {} bytes, the maximum is {MAX_UNIX_PATH_BYTES}: choose a shorter one", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// The Unix socket cannot be made.
    #[error("cannot listen on {}", path.display())]
    Unix {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something listens on the address.
    #[error("address in use: something already listens on {0}: choose another port, or 0 for any free one")]
    AddressInUse(SocketAddr),
    /// The TCP address cannot be used.
    #[error("cannot listen on {address}")]
    Tcp {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A passed socket is not one to listen on.
    #[error("cannot use passed socket {index}")]
    Activation {
        /// Which, from 0.
        index: usize,
        /// Why.
        source: io::Error,
    },
    /// The system refuses something a server needs.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}
