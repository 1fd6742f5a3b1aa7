//! What users name where an image or a disk can be given: a file, or a URL.

use std::{io, path::Path, sync::Arc};

use pagefold_storage::Storage;

/// Opens the storage of an image or a disk, for all commands.
pub(crate) fn open(name: &Path) -> io::Result<Arc<dyn Storage>> {
    pagefold_storage::open(name)
}
