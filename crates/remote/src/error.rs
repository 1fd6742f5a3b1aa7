//! Errors of remote images.

use std::io;

/// Why a remote image cannot be opened, read or pushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The location cannot be understood or used.
    #[error("{location}: {what}")]
    Location {
        /// The location as given.
        location: String,
        /// What is wrong with it.
        what: String,
    },
    /// A server refused or failed, or cannot be reached.
    #[error("{url}: {what}")]
    Server {
        /// The URL without its query, which may contain a signature.
        url: String,
        /// What happened.
        what: String,
    },
    /// A server sent bytes that differ from the SHA-256 sum that is expected of them.
    #[error("{url}: {what} differs from its SHA-256 sum")]
    Sum {
        /// The URL without its query.
        url: String,
        /// What was read.
        what: String,
    },
    /// A server sent a dm-verity tree that is invalid, or that differs from the sum of its root.
    #[error("{url}: {what}")]
    Tree {
        /// The URL without its query.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A chunk index is invalid.
    #[error("{name}: {what}")]
    Index {
        /// Where the index is from.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A registry's manifest does not describe an image that can be read.
    #[error("{name}: {what}")]
    Manifest {
        /// The manifest's location.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The cache lacks what is needed, and requests are not allowed.
    #[error("{0}: not in the cache, and --offline allows no requests")]
    Offline(String),
    /// A file or directory of this machine cannot be used.
    #[error("{path}: {source}")]
    Io {
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
