//! Recognizes the format of a base's file by its content and its name.

use std::{io, path::Path};

use pagefold_storage::{ReadAt, Storage};

use crate::{
    Format, OpenError,
    signature::{Kind, Signature},
};

impl Format {
    /// Returns whether `source` has the format's magic number from byte `start` on. A raw disk has
    /// none.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn is_in(self, source: &dyn ReadAt, start: u64) -> io::Result<bool> {
        Signature::of_kind(Kind::Base(self)).map_or(Ok(false), |signature| signature.is_in(source, start))
    }

    /// Returns the format of the storage that users call `path` if none was specified: its content
    /// must agree with its name or [other statement of the format](Storage::extension). A raw disk
    /// needs no particular name.
    ///
    /// # Errors
    /// [`OpenError::Unfit`] and [`OpenError::Doubtful`] if they disagree, or if the file does not
    /// contain a base; [`OpenError::Io`] if it cannot be read.
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
            Kind::Tar | Kind::Compressed(_) | Kind::OtherDisk(_) | Kind::Foreign => {
                let found = content.map_or_else(String::new, |content| content.described(path));
                unfit(format!("{found}; --format {} takes its bytes as they are", Self::Raw))
            }
        }
    }
}
