//! Why a base cannot be opened.

use std::{io, path::PathBuf};

use crate::Format;

/// Why a base cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system does not open or read the file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be a base.
    #[error("{}: {what}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Why not, and what to do.
        what: String,
    },
    /// The content says another format than the name, and a guest that writes a raw disk chooses
    /// its content.
    #[error(
        "{}: it has the contents of {}, but its name does not end in '.{}': give its format, {} or {}",
        path.display(), found.described(), found.name(), found.name(), Format::Raw.name()
    )]
    Doubtful {
        /// The file.
        path: PathBuf,
        /// What the content says.
        found: Format,
    },
    /// Nobody lends the memory of the [`Cache`](crate::Cache).
    #[error("{}: the memory limit leaves no room for its read cache", path.display())]
    NoMemory {
        /// The image.
        path: PathBuf,
    },
    /// It is no such image, or one that is damaged or not supported.
    #[error("{}: {source}", path.display())]
    Erofs {
        /// The image.
        path: PathBuf,
        /// Why not.
        source: pagefold_erofs::Error,
    },
}
