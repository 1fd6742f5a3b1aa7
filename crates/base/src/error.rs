//! Why a base cannot be opened.

use std::{
    io,
    path::{Path, PathBuf},
};

use pagefold_storage::shown;

use crate::Format;

/// Why a base cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system cannot open or read the file.
    #[error("{}", named(path, source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be a base.
    #[error("{}: {what}", shown(path))]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The reason, and what to do.
        what: String,
    },
    /// The content indicates another format than the name does. The content of a raw disk is chosen
    /// by the guest that writes it, so it is not trusted.
    #[error(
        "{}: contains {}, but its name does not end in '.{}': give --format {} or --format {}",
        shown(path), found.described(), found.name(), found.name(), Format::Raw.name()
    )]
    Doubtful {
        /// The file.
        path: PathBuf,
        /// The format that the content indicates.
        found: Format,
    },
    /// There is no memory for the [`Cache`](crate::Cache).
    #[error("{}: the memory limit leaves no room for its read cache", shown(path))]
    NoMemory {
        /// The image.
        path: PathBuf,
    },
    /// The file is not an EROFS image, or it is damaged or not supported.
    #[error("{}: {source}", shown(path))]
    Erofs {
        /// The image.
        path: PathBuf,
        /// The reason.
        source: pagefold_erofs::Error,
    },
}

/// Returns an error with the name of its file, which that of a remote file has already.
fn named(path: &Path, source: &io::Error) -> String {
    let (name, text) = (shown(path), source.to_string());
    let has_name = text.strip_prefix(&*name).is_some_and(|rest| rest.starts_with(": "));
    if has_name { text } else { format!("{name}: {text}") }
}

impl OpenError {
    /// Returns the error of a storage that cannot be opened.
    pub fn of_storage(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::InvalidInput => Self::Unfit { path: path.into(), what: source.to_string() },
            _ => Self::Io { path: path.into(), source },
        }
    }
}
