//! Reasons why a source cannot be read, and warnings about it.

use std::{io, sync::Arc};

use pagefold_base::OpenError;

/// Receives warnings about sources, also while their content is read.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Why a source cannot be read. Each error names the source, itself or in an outer [`Error::In`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options contradict each other or the sources.
    #[error("{0}")]
    Options(String),
    /// The source is of a kind, or has contents, from which no image can be made.
    #[error("{0}")]
    Refused(String),
    /// The system failed, or compressed data are damaged.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A directory or an archive cannot be read.
    #[error(transparent)]
    Image(#[from] pagefold_erofs::Error),
    /// A disk cannot be read.
    #[error(transparent)]
    Disk(#[from] OpenError),
    /// A document of a container image cannot be understood.
    #[error(transparent)]
    Document(#[from] serde_json::Error),
    /// Another error, and where it occurred.
    #[error("{place}")]
    In {
        /// A file, or a part of it.
        place: String,
        /// The error.
        source: Box<Error>,
    },
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns the error of compressed data that are damaged.
pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Adds to an error where it occurred.
pub(crate) trait Within<T> {
    fn within(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Within<T> for Result<T, E> {
    fn within(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::In { place: place(), source: Box::new(error.into()) })
    }
}

/// Returns [`Error::Refused`] with this text.
macro_rules! refuse {
    ($($what:tt)*) => {
        return Err($crate::Error::Refused(format!($($what)*)))
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
