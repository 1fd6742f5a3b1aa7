//! What another process needs to continue a mount, in addition to its device.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A mount of files that has [paused](crate::Files::pause), to continue with
/// [`Files::taken`](crate::Files::taken). A field that a later version adds needs a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The directory, without symbolic links.
    pub(crate) directory: PathBuf,
    /// The number of the mounted file system.
    pub(crate) file_system: String,
    /// The user who mounted it and owns the files.
    pub(crate) user: u32,
    pub(crate) mode: u32,
    pub(crate) group: u32,
    /// The time of all files, in nanoseconds of Unix time.
    pub(crate) made_ns: u64,
    /// The longest read and write.
    pub(crate) request_bytes: usize,
    /// The handle of the next file that is opened.
    pub(crate) next_handle: u64,
    pub(crate) open: Vec<OpenState>,
}

impl Handed {
    /// Returns the directory.
    pub fn directory(&self) -> &std::path::Path {
        &self.directory
    }
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenState {
    pub(crate) handle: u64,
    /// The number of the file; 0 if it is gone.
    pub(crate) number: u64,
    /// Whether its changes may wait for room.
    pub(crate) waits: bool,
}
