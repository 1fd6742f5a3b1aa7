//! Reasons why a disk cannot be saved.

use std::io;

use pagefold_base::OpenError;
use pagefold_control::{ClientError, Failure};

/// Why a disk cannot be saved as an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// The disk, its base or the server does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The system failed, or the server did not answer.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The image cannot be written, or the base's image cannot be read.
    #[error(transparent)]
    Image(#[from] pagefold_erofs::Error),
    /// The base below the disk cannot be read.
    #[error(transparent)]
    Base(#[from] OpenError),
    /// The server cannot be reached.
    #[error(transparent)]
    Control(#[from] ClientError),
    /// The server refused.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Another error, and what was being done.
    #[error("{what}")]
    In {
        /// The operation that failed.
        what: String,
        /// The error.
        source: Box<FreezeError>,
    },
}

impl FreezeError {
    /// Returns whether there is no room for the image.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io(error) | Self::Image(pagefold_erofs::Error::Io { source: error, .. }) => matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            ),
            Self::In { source, .. } => source.is_full(),
            _ => false,
        }
    }
}

/// The result of saving a disk.
pub(super) type Result<T, E = FreezeError> = std::result::Result<T, E>;

/// Adds to an error what was being done.
pub(super) trait Within<T> {
    fn within(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<FreezeError>> Within<T> for Result<T, E> {
    fn within(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| FreezeError::In { what: what(), source: Box::new(error.into()) })
    }
}

/// Returns [`FreezeError::Refused`] with this text.
macro_rules! refuse {
    ($($what:tt)*) => {
        return Err($crate::freeze::error::FreezeError::Refused(format!($($what)*)))
    };
}

/// Returns [`FreezeError::Refused`] with this text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($what:tt)*) => {
        if !$condition {
            $crate::freeze::error::refuse!($($what)*);
        }
    };
}

pub(super) use {ensure, refuse};
