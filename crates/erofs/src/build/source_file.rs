//! Files that a scan has found, to be read later.

use std::fs::File;
use std::io;

use rustix::fs::CWD;

use super::found::Found;
use super::place::SourcePath;

/// A regular file at a path. A path that leads elsewhere after the scan, such as through a link that
/// replaced a directory, does not lead to the file.
#[derive(Clone, Debug)]
pub struct SourceFile {
    path: SourcePath,
    found: Found,
}

impl SourceFile {
    pub(super) fn new(path: SourcePath, found: Found) -> Self {
        Self { path, found }
    }

    pub(crate) fn path(&self) -> &SourcePath {
        &self.path
    }

    pub(super) fn open(&self) -> io::Result<File> {
        self.found.open(CWD, self.path.reach()?.as_ref())
    }
}
