//! Errors of this crate.

use std::io;
use std::path::PathBuf;

use crate::format::IN_BOX;

/// The reason why an image could not be read or built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The image violates the format. Untrusted bytes cause this error and nothing worse.
    #[error("corrupt image at byte {}: {what}", place(*offset))]
    Corrupt {
        /// The fault.
        what: &'static str,
        /// An offset into the image, in bytes. From 2⁶³ on, an offset into its metadata box, plus
        /// 2⁶³.
        offset: u64,
    },
    /// The image ends before something that it refers to: it was truncated, or the reference is
    /// wrong.
    #[error("corrupt image at byte {offset}: the image ends at byte {len_bytes}, before this structure")]
    Truncated {
        /// The offset into the image, in bytes, of what is missing.
        offset: u64,
        /// The length of the image.
        len_bytes: u64,
    },
    /// The image is shorter than its superblock says.
    #[error("the image ends before byte {expected}; it has {found} bytes")]
    TooShort {
        /// The length that the superblock states, in bytes.
        expected: u64,
        /// The length of the image in bytes.
        found: u64,
    },
    /// The image uses a feature that this crate does not read.
    #[error("unsupported image: {0}")]
    Unsupported(String),
    /// The content exceeds the caller's limit
    /// ([`ExtractOptions::max_bytes`](crate::ExtractOptions::max_bytes)).
    #[error("{needed} bytes exceed what is left of the limit of {allowed} bytes")]
    TooMuch {
        /// The size in bytes of the file that was skipped.
        needed: u64,
        /// The limit for all files together.
        allowed: u64,
    },
    /// The image has more files than the caller's limit
    /// ([`ExtractOptions::max_files`](crate::ExtractOptions::max_files)).
    #[error("the limit of {allowed} files is reached")]
    TooManyFiles {
        /// The limit.
        allowed: u64,
    },
    /// A file with this name exists in the target of an extraction.
    #[error("exists already")]
    Exists,
    /// A file with the name of a directory exists in the target of an extraction.
    #[error("exists already, so nothing in the directory was extracted")]
    DirectoryExists,
    /// A link or a file with the name of a directory exists in the target of an extraction, and was
    /// kept.
    #[error("a link or a file with this name was kept, so nothing in the directory was extracted")]
    KeptInPlace,
    /// The file with this name is one that the image is read from
    /// ([`ExtractOptions::inputs`](crate::ExtractOptions::inputs)).
    #[error("the image is read from this file, so it is not replaced")]
    IsInput,
    /// A further name of a file cannot be created, because the first one, at this path, existed and
    /// was kept.
    #[error("a hard link to {}, which was kept and differs", String::from_utf8_lossy(_0))]
    OtherFile(Vec<u8>),
    /// The image needs data from other devices, but none, or the wrong ones, were given.
    #[error("{0}")]
    Devices(String),
    /// The path does not exist in the image.
    #[error("no such file in the image: {0}")]
    NotFound(String),
    /// The operation does not apply to this kind of file.
    #[error("not a {0}")]
    NotA(&'static str),
    /// Reading the source, writing the target or another system operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be stored in an image.
    #[error("{}: {what}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// The build options contradict each other or the format.
    #[error("{0}")]
    Options(String),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Describes an offset in words.
fn place(offset: u64) -> String {
    match offset.checked_sub(IN_BOX) {
        Some(offset) => format!("{offset} of its metadata box"),
        None => offset.to_string(),
    }
}

impl Error {
    pub(crate) fn corrupt<T>(what: &'static str, offset: u64) -> Result<T> {
        Err(Self::Corrupt { what, offset })
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Returns whether no more files can be extracted: the limit of files is reached, or the target
    /// is full, over a quota, or read-only.
    pub(crate) fn takes_no_more(&self) -> bool {
        use rustix::io::Errno;
        let source = match self {
            Self::TooManyFiles { .. } => return true,
            Self::Io { source, .. } => source,
            _ => return false,
        };
        let errno = Errno::from_io_error(source);
        errno.is_some_and(|errno| [Errno::NOSPC, Errno::DQUOT, Errno::ROFS].contains(&errno))
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_full_target_is_distinguished_from_a_bad_file() {
        let takes_no_more = |errno: Errno| Error::io("writing a file")(errno.into()).takes_no_more();
        assert!([Errno::NOSPC, Errno::DQUOT, Errno::ROFS].into_iter().all(takes_no_more));
        assert!(![Errno::EXIST, Errno::ACCESS, Errno::FBIG, Errno::IO].into_iter().any(takes_no_more));
        assert!(!Error::NotA("directory").takes_no_more());
    }
}
