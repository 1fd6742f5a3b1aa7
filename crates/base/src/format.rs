//! The format of a base's file.

use std::{fmt, io, path::Path, str::FromStr};

use pagefold_storage::{ReadAt, Storage};

use crate::{
    OpenError,
    signature::{Kind, Signature},
};

/// The format of a base's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The plain bytes: a file or a block device.
    Raw,
    /// An EROFS image that contains the base as a file.
    Erofs,
    /// A qcow2 image.
    Qcow2,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Erofs, Self::Qcow2];

    /// Returns the format's name, which is also the extension of such files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Erofs => "erofs",
            Self::Qcow2 => "qcow2",
        }
    }

    pub(crate) fn described(self) -> &'static str {
        match self {
            Self::Raw => "a raw disk",
            Self::Erofs => "an EROFS image",
            Self::Qcow2 => "a qcow2 image",
        }
    }

    /// Returns whether `source` has the format's magic number from byte `start` on. A raw disk has
    /// none.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn is_in(self, source: &dyn ReadAt, start: u64) -> io::Result<bool> {
        Signature::of_kind(Kind::Base(self)).map_or(Ok(false), |signature| signature.is_in(source, start))
    }

    /// Returns the format of the storage that users call `path` if none was specified: its content
    /// and its name, or [what else says it](Storage::extension), must agree. A raw disk needs no
    /// particular name.
    ///
    /// # Errors
    /// [`OpenError::Unfit`] and [`OpenError::Doubtful`] if they do not, or if the file is not a
    /// base; [`OpenError::Io`] if it cannot be read.
    pub fn of(path: &Path, storage: &dyn Storage) -> Result<Self, OpenError> {
        let unfit = |what| Err(OpenError::Unfit { path: path.into(), what });
        let content = Signature::of(storage, 0).map_err(|source| OpenError::Io { path: path.into(), source })?;
        let name = storage.extension().map_or_else(|| Signature::of_name(path), Signature::of_extension);
        match content.map_or(Kind::Disk, Signature::kind) {
            Kind::Disk => match name {
                None => Ok(Self::Raw),
                Some(named) => unfit(named.misnomer(path)),
            },
            Kind::Base(found) if content == name => Ok(found),
            Kind::Base(found) => Err(OpenError::Doubtful { path: path.into(), found }),
            Kind::Tar | Kind::Compressed(_) | Kind::Foreign => {
                let found = content.map_or_else(String::new, |content| content.described(path));
                unfit(format!("{found}; --format {} takes its bytes as they are", Self::Raw))
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("unknown format '{text}'; known formats: {}", known()))
    }
}
