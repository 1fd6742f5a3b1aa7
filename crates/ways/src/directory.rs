//! Disks as files in a directory.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use pagefold_files::{Files, Log, Options, Paths};
use pagefold_serve::Permissions;
use pagefold_server::{DiskFiles, Host, Level, Transport, TransportError};

/// Shows each disk as a file in a directory, through FUSE.
pub struct Directory {
    path: PathBuf,
    permissions: Permissions,
    mounted: Option<Files>,
}

impl Directory {
    /// Shows the disks in the directory `path`, which is created if it does not exist, and must be
    /// empty.
    /// `permissions` are those of the files.
    pub fn new(path: impl Into<PathBuf>, permissions: Permissions) -> Self {
        Self { path: path.into(), permissions, mounted: None }
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Transport for Directory {
    fn start(&mut self, host: &Host) -> Result<(), TransportError> {
        let (hidden_to, ended_to) = (host.observer().clone(), host.observer().clone());
        let mut options = Options::default();
        options.mode = self.permissions.mode;
        options.group = self.permissions.group;
        options.log = Log::new(move |line| hidden_to.log(Level::Warn, line));
        let shown = self.path.display().to_string();
        let ended = move |result: io::Result<()>| match result {
            Ok(()) => {
                ended_to.log(Level::Warn, &format!("'{shown}' was unmounted: the disks have no files any more"));
            }
            Err(error) => ended_to.log(Level::Error, &format!("the files in '{shown}' failed: {error}")),
        };
        let mounted = Files::mount(host.exports().clone(), host.executor(), &self.path, options, ended);
        let mounted = mounted.map_err(|error| format!("cannot mount files on '{}': {error}", self.path.display()))?;
        host.observer().log(Level::Info, &format!("files in {}", mounted.directory().display()));
        let shown = mounted.directory().display().to_string();
        host.announce_obstacle(move || Some(format!("disks are files in '{shown}', which cannot be handed over")));
        host.announce_files(Announced(mounted.paths()));
        self.mounted = Some(mounted);
        Ok(())
    }

    fn stop(&mut self) {
        self.mounted = None;
    }
}

/// What the server knows of the files.
struct Announced(Paths);

impl DiskFiles for Announced {
    fn of(&self, disk: &str) -> Option<PathBuf> {
        self.0.of(disk)
    }

    fn end(&self, file: &Path) -> bool {
        self.0.refuse_waiting(file)
    }
}
