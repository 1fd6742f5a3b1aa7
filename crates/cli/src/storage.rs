//! The location of an image or a disk on the command line: a file or a URL.

#[cfg(not(feature = "remote"))]
use std::ffi::OsString;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use pagefold_storage::Storage;

#[cfg(not(feature = "remote"))]
use crate::log::Log;
#[cfg(feature = "remote")]
pub(crate) use crate::remote::{RemoteArgs, record::RecordArgs};

/// Opens the storage of an image or a disk, for all commands.
#[cfg(feature = "remote")]
pub(crate) fn open(name: &Path, remote: &RemoteArgs) -> io::Result<Arc<dyn Storage>> {
    match pagefold_storage::Location::of(name) {
        pagefold_storage::Location::Url { url, .. } => remote.open(url),
        pagefold_storage::Location::File(_) => pagefold_storage::open(name),
    }
}

/// No options: this program reads files only.
#[cfg(not(feature = "remote"))]
#[derive(Clone, Default, clap::Args)]
pub(crate) struct RemoteArgs {}

/// No options: nothing is recorded.
#[cfg(not(feature = "remote"))]
#[derive(clap::Args)]
pub(crate) struct RecordArgs {}

#[cfg(not(feature = "remote"))]
impl RecordArgs {
    pub(crate) fn begin(
        &self,
        remote: &RemoteArgs,
        _files: &[OsString],
        _log: Log,
    ) -> anyhow::Result<(RemoteArgs, Option<Arc<Recording>>)> {
        Ok((remote.clone(), None))
    }
}

/// A recording, which cannot exist.
#[cfg(not(feature = "remote"))]
pub(crate) enum Recording {}

#[cfg(not(feature = "remote"))]
impl Recording {
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        match *self {}
    }

    pub(crate) fn finish(&self) {
        match *self {}
    }
}

/// Opens the storage of an image or a disk, for all commands.
#[cfg(not(feature = "remote"))]
pub(crate) fn open(name: &Path, _remote: &RemoteArgs) -> io::Result<Arc<dyn Storage>> {
    pagefold_storage::open(name)
}

/// Returns absolute paths, and URLs as they are.
pub(crate) fn absolute_all(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let absolute = |path: &PathBuf| pagefold_storage::absolute(path).with_context(|| pagefold_storage::shown(path));
    paths.iter().map(absolute).collect()
}
