//! Disks as files in a directory.

use std::{
    fmt, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pagefold_files::{Files, Handed, Log, Options, Paths};
use pagefold_serve::Permissions;
use pagefold_server::{DiskFiles, HandedTransport, Host, Level, TakenTransport, Transport, TransportError};

/// Shows each disk as a file in a directory, through FUSE.
pub struct Directory {
    path: PathBuf,
    permissions: Permissions,
    /// What another process has mounted, and its device.
    taken: Option<(Handed, OwnedFd)>,
    mounted: Option<Files>,
}

impl Directory {
    /// The name by which another process knows that it continues files.
    pub const NAME: &str = "files";

    /// Shows the disks in the directory `path`, which is created if it does not exist, and must be
    /// empty.
    /// `permissions` are those of the files.
    pub fn new(path: impl Into<PathBuf>, permissions: Permissions) -> Self {
        Self { path: path.into(), permissions, taken: None, mounted: None }
    }

    /// Continues the files of another process.
    ///
    /// # Errors
    /// The state is not that of such files.
    pub fn taken(taken: TakenTransport) -> Result<Self, TransportError> {
        let TakenTransport { state, mut descriptors, .. } = taken;
        let handed: Handed =
            serde_json::from_str(state.get()).map_err(|error| format!("the state of files: {error}"))?;
        let device = descriptors.pop().filter(|_| descriptors.is_empty());
        let device = device.ok_or("files have one descriptor, their device")?;
        let path = handed.directory().to_owned();
        Ok(Self { path, permissions: Permissions::default(), taken: Some((handed, device)), mounted: None })
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
                ended_to.log(Level::Warn, &format!("'{shown}' was unmounted: the disks no longer have files"));
            }
            Err(error) => ended_to.log(Level::Error, &format!("the files in '{shown}' failed: {error}")),
        };
        let (exports, executor, path) = (host.exports().clone(), host.executor(), self.path.display());
        let mounted = match self.taken.take() {
            Some((handed, device)) => Files::taken(exports, executor, &handed, device, options, ended)
                .map_err(|error| format!("cannot continue the files in '{path}': {error}"))?,
            None => Files::mount(exports, executor, &self.path, options, ended)
                .map_err(|error| format!("cannot mount files on '{path}': {error}"))?,
        };
        host.observer().log(Level::Info, &format!("files in {}", mounted.directory().display()));
        host.announce_files(Announced(mounted.paths()));
        self.mounted = Some(mounted);
        Ok(())
    }

    fn stop(&mut self) {
        self.mounted = None;
    }

    fn pause(&mut self, patience: Duration) -> Result<Option<HandedTransport>, String> {
        let Some(files) = &mut self.mounted else { return Ok(None) };
        let Some((handed, device)) = files.pause(patience)? else { return Ok(None) };
        // A path that was handed over is UTF-8.
        let state = serde_json::value::to_raw_value(&handed).map_err(|error| {
            files.go_on();
            error.to_string()
        })?;
        Ok(Some(HandedTransport { name: Self::NAME, state, descriptors: vec![Arc::new(device)] }))
    }

    fn go_on(&mut self) {
        self.mounted.iter_mut().for_each(Files::go_on);
    }

    fn give_away(&mut self) {
        self.mounted.take().into_iter().for_each(Files::give_away);
    }
}

/// The server's handle to the files.
struct Announced(Paths);

impl DiskFiles for Announced {
    fn of(&self, disk: &str) -> Option<PathBuf> {
        self.0.of(disk)
    }

    fn end(&self, file: &Path) -> bool {
        self.0.refuse_waiting(file)
    }
}
