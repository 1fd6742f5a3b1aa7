//! The interface of everything that holds an image or a disk.

use std::{any::Any, io, path::Path, sync::Arc};

use crate::ReadAt;

/// Bytes that must not change while they are in use: a file, or a blob elsewhere.
///
/// The defaults are those of a blob whose content cannot change.
pub trait Storage: ReadAt + Any {
    /// Returns a text that identifies the content, also against later content of the same place:
    /// the state of a file when it was opened, or a digest. It begins with the kind of identity, as
    /// in `sha256:`, unless it is that of a file.
    fn identity(&self) -> &str;

    /// Returns whether the content was found to have changed since the storage was opened. Called
    /// before each read, so it looks at most once a second.
    fn is_changed(&self) -> bool {
        false
    }

    /// Like `is_changed`, but looks now.
    fn is_changed_now(&self) -> bool {
        self.is_changed()
    }

    /// Returns the data or the hole that contains the byte at `at`, if that is known without
    /// reading. `at` is before the end. A hole reads as zeros.
    fn stretch_at(&self, _at: u64) -> Stretch {
        Stretch { end: u64::MAX, is_hole: false }
    }

    /// Returns the file name extension for the content's format, such as `erofs`, if a trusted
    /// source, such as the media type in a verified manifest, states it. `None`: the name under
    /// which the storage was opened has it.
    fn extension(&self) -> Option<&str> {
        None
    }

    /// Returns the other storages with data of this EROFS image, in the order of the image's device
    /// table. Empty if there is none, or if the user has to name it.
    ///
    /// # Errors
    /// It cannot be opened.
    fn devices(&self) -> io::Result<Vec<Arc<dyn Storage>>> {
        Ok(Vec::new())
    }
}

/// A part of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where it ends. The end of the last stretch may be past the end of the storage.
    pub end: u64,
    /// Whether it is not stored and reads as zeros.
    pub is_hole: bool,
}

/// Opens the storage that a user names, with a path or a URL ([`Location`](crate::Location)).
pub type Open = dyn Fn(&Path) -> io::Result<Arc<dyn Storage>> + Send + Sync;
