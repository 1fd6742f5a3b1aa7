//! Where a server listens.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use pagefold_control::{Client, ClientError};
use pagefold_serve::Passed;
use pagefold_server::{Belongings, Config, ServiceManager, Sockets, TakeOverError, Taken};
use tempfile::TempDir;

use super::{
    args::Args,
    options::{MetricsArg, VsockArg},
    tls::Certificates,
};
use crate::{
    peer::unanswered,
    report::misuse,
    server_directory::{self, ServerDirectory},
};

/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Name of the control socket among the sockets that a service manager passes.
const PASSED_CONTROL: &str = "control";

/// Names under which a server hands over its lock, its directory, the service manager's socket, and how many
/// descriptors that manager stores.
const LOCK: &str = "lock";
const DIRECTORY: &str = "directory";
const NOTIFY: &str = "notify-socket";
const STORE_ROOM: &str = "descriptor-store";

/// Where a server will listen: sockets that the service manager passed, and a directory if they are
/// not enough. Fields are dropped in order: the directory is unlocked before it is removed.
pub(super) struct Place {
    passed: Option<Passed>,
    control: Option<UnixListener>,
    directory: Option<ServerDirectory>,
    _temporary: Option<TempDir>,
    /// The directory and the service manager of another server, until that has ended.
    taken: Option<OfTaken>,
    manager: ServiceManager,
}

struct OfTaken {
    /// A directory and its lock.
    lock: Option<(PathBuf, File)>,
    /// The service manager's socket, and how many descriptors it stores.
    manager: Option<(String, usize)>,
}

/// Adds what belongs to the process and is not handed over: certificates and sockets for metrics.
fn of_the_process(sockets: Sockets, args: &Args, certificates: Option<Arc<Certificates>>) -> Sockets {
    let sockets = args.tls.on(sockets, certificates);
    args.metrics.iter().fold(sockets, |sockets, metrics| match metrics {
        MetricsArg::Unix(path) => sockets.metrics_unix(path, args.permissions()),
        MetricsArg::Tcp(address) => sockets.metrics_tcp(*address),
    })
}

impl Place {
    /// Uses the sockets that the service manager has passed.
    fn of_passed(mut passed: Option<Passed>, manager: ServiceManager) -> Self {
        let control = passed.as_mut().and_then(|passed| passed.take_unix(PASSED_CONTROL));
        let passed = passed.filter(|passed| !passed.is_empty());
        Self { passed, control, directory: None, _temporary: None, taken: None, manager }
    }

    /// Claims the place. From now on, other commands wait for this server.
    pub(super) fn claim(args: &Args, passed: Option<Passed>, manager: ServiceManager) -> anyhow::Result<Self> {
        let mut place = Self::of_passed(passed, manager);
        if place.passed.is_none() || (args.control.is_none() && place.control.is_none()) {
            let (directory, temporary) = args.directory()?;
            place._temporary = temporary;
            place.directory = Some(ServerDirectory::claim(directory)?);
        }
        Ok(place)
    }

    /// Asks the server whose options these are to hand itself over.
    pub(super) fn take_over(args: &Args, config: Config) -> anyhow::Result<Taken> {
        let directory = match &args.control {
            Some(_) => None,
            None => Some(server_directory::path(args.dir.as_deref())?),
        };
        let path = args.control.clone().or_else(|| directory.as_deref().map(server_directory::control_socket));
        let mut client = Client::connect(&path.unwrap_or_default(), TIMEOUT).map_err(|error| match error {
            ClientError::Silent(_) => unanswered(error, directory.as_deref()),
            error => anyhow::Error::from(error).context("there is no server to take over"),
        })?;
        Taken::from_server(&mut client, config).map_err(|error| match error {
            TakeOverError::NoCertificates => misuse(anyhow!("{error}: give --tls-certificates DIR")),
            error => error.into(),
        })
    }

    /// Continues the server that has left these files in the service manager's store.
    pub(super) fn restore(
        stored: Vec<(String, OwnedFd)>,
        config: Config,
        manager: &ServiceManager,
    ) -> anyhow::Result<Taken> {
        Taken::from_store(stored, &manager.store(), config).map_err(|error| match error {
            TakeOverError::NoCertificates => misuse(anyhow!("{error}: give --tls-certificates DIR")),
            TakeOverError::Lost(_) => {
                anyhow!("{error}; to begin with empty disks, start the service once more")
            }
            error => anyhow::Error::from(error).context("cannot continue with what the service manager stores"),
        })
    }

    /// Begins the place of a server that continues another one.
    pub(super) fn of_taken(taken: &mut Taken, passed: Option<Passed>, manager: ServiceManager) -> Self {
        let mut belongings = taken.take_belongings();
        let lock = belongings.take_file(LOCK).zip(belongings.text(DIRECTORY));
        let lock = lock.map(|(lock, directory)| (directory.into(), lock.into()));
        let room = belongings.text(STORE_ROOM).and_then(|room| room.parse().ok()).unwrap_or(0);
        let old = belongings.text(NOTIFY).map(|socket| (socket.to_owned(), room));
        Self { taken: Some(OfTaken { lock, manager: old }), ..Self::of_passed(passed, manager) }
    }

    /// Takes over the directory and the service manager of the other server, which has ended.
    pub(super) fn own(&mut self) -> anyhow::Result<()> {
        let Some(OfTaken { lock, manager }) = self.taken.take() else { return Ok(()) };
        if let Some((socket, room)) = manager {
            self.manager.take(&socket, room);
        }
        if let Some((directory, lock)) = lock {
            let mut directory = ServerDirectory::taken(directory, lock);
            let signed = directory.sign();
            self.directory = Some(directory);
            signed.context("cannot write the lock of the server's directory")?;
        }
        Ok(())
    }

    /// Returns the files and texts to hand over with the server.
    pub(super) fn belongings(&self) -> anyhow::Result<Belongings> {
        let mut belongings = Belongings::default();
        let taken = self.taken.as_ref().and_then(|taken| taken.lock.as_ref());
        let own = self.directory.as_ref().map(|own| Ok((own.directory(), own.lock_file()?)));
        let taken = taken.map(|(directory, lock)| Ok((directory.as_path(), lock.try_clone()?)));
        let lock: Option<io::Result<(&Path, File)>> = own.or(taken);
        if let Some((directory, lock)) = lock.transpose().context("cannot copy a descriptor")?
            && let Some(directory) = directory.to_str()
        {
            belongings.files.push((LOCK.to_owned(), lock.into()));
            belongings.texts.push((DIRECTORY.to_owned(), directory.to_owned()));
        }
        let own = self.manager.socket().and_then(OsStr::to_str);
        let own = own.map(|socket| (socket.to_owned(), self.manager.store_room()));
        if let Some((socket, room)) = own.or_else(|| self.taken.as_ref()?.manager.clone()) {
            belongings.texts.push((NOTIFY.to_owned(), socket));
            belongings.texts.push((STORE_ROOM.to_owned(), room.to_string()));
        }
        Ok(belongings)
    }

    /// Returns the sockets. Those that the service manager did not pass will be created in the
    /// directory.
    pub(super) fn sockets(&mut self, args: &Args, certificates: Option<Arc<Certificates>>) -> anyhow::Result<Sockets> {
        if self.taken.is_some() {
            // All other sockets come from the other server.
            let mut sockets = of_the_process(Sockets::new(), args, certificates);
            if let Some(passed) = self.passed.take() {
                sockets = sockets.passed(passed);
            }
            if let Some(control) = self.control.take() {
                sockets = sockets.control_on(control);
            }
            return Ok(sockets);
        }
        let mut sockets = match (self.passed.take(), &self.directory) {
            (Some(passed), _) => Sockets::new().passed(passed),
            (None, Some(directory)) => Sockets::new().unix_for(directory.nbd_socket(), args.permissions()),
            (None, None) => Sockets::new(),
        };
        sockets = args.unix.iter().fold(sockets, |sockets, path| sockets.unix_for(path, args.permissions()));
        sockets = args.tcp.iter().fold(sockets, |sockets, address| sockets.tcp(*address));
        sockets = args.vsock.iter().fold(sockets, |sockets, &VsockArg { cid, port }| sockets.vsock(cid, port));
        sockets = of_the_process(sockets, args, certificates);
        if let Some(listener) = self.control.take() {
            return Ok(sockets.control_on(listener));
        }
        let path = args.control.clone().or_else(|| self.directory.as_ref().map(ServerDirectory::control_socket));
        Ok(sockets.control(path.context("no path for the control socket: give --control PATH")?))
    }
}
