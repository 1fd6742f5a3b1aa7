//! Reasons why an output cannot be written.

use std::io;

/// Why an output cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The output's name and its format disagree, or neither says the format.
    #[error("{0}")]
    Name(String),
    /// The file with the output's name may not be replaced, or cannot hold the output.
    #[error("{0}")]
    Refused(String),
    /// The system failed.
    #[error("{what}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds a description of the operation to an error of the system.
pub(crate) trait During<T> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}

/// Returns [`Error::Refused`] with this text.
macro_rules! refuse {
    ($($what:tt)*) => {
        return Err($crate::error::Error::Refused(format!($($what)*)))
    };
}

/// Returns [`Error::Refused`] with this text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($what:tt)*) => {
        if !$condition {
            $crate::error::refuse!($($what)*);
        }
    };
}

pub(crate) use {ensure, refuse};
