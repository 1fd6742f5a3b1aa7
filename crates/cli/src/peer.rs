//! The running server that a subcommand connects to.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use pagefold_control::{Client, ClientError, Command, Listing, Stat};
use pagefold_output::Inputs;
use pagefold_storage::files_of;

use crate::{
    image::ImagePath,
    server_directory::{self, Claim},
    text::message,
};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait if nothing shows that a server is starting: after `pagefold serve … &`, the
/// shell may start the next command first.
const NO_SIGN: Duration = Duration::from_secs(1);
/// Interval between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// The location of a server.
#[derive(clap::Args)]
pub(crate) struct Peer {
    /// The server's directory: --dir of 'pagefold serve'
    #[arg(long, value_name = "DIR", conflicts_with = "control")]
    dir: Option<PathBuf>,

    /// The server's control socket, if it is outside that directory
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

impl Peer {
    /// Returns the server's directory, unless its control socket was given instead.
    pub(crate) fn directory(&self) -> anyhow::Result<Option<PathBuf>> {
        match self.control {
            Some(_) => Ok(None),
            None => server_directory::path(self.dir.as_deref()).map(Some),
        }
    }

    /// Waits until no other command attaches a disk of the server. Until the result is dropped,
    /// other commands wait.
    pub(crate) fn attaching(&self) -> anyhow::Result<File> {
        let socket = self.control_socket()?;
        let directory = socket.parent().filter(|directory| !directory.as_os_str().is_empty());
        server_directory::attaching(directory.unwrap_or(Path::new(".")))
    }

    fn control_socket(&self) -> anyhow::Result<PathBuf> {
        match &self.control {
            Some(path) => Ok(path.clone()),
            None => server_directory::path(self.dir.as_deref()).map(|path| server_directory::control_socket(&path)),
        }
    }

    /// Returns the files that no output of the disk `name` may replace: those that the server serves as bases,
    /// their devices, its log, pid file and configuration, the lock of its directory, and the file or
    /// device that the disk is.
    pub(crate) fn inputs(&self, name: &str) -> anyhow::Result<Inputs> {
        let mut inputs = Inputs::default();
        if let Some(directory) = self.directory()? {
            inputs.add("the server's lock", &server_directory::lock(&directory));
        }
        let mut server = self.connect()?;
        let own: Stat = server.call(&Command::Stat { name: None })?;
        own.server.files.iter().for_each(|path| inputs.add("the server's own file", Path::new(path)));
        let listing: Listing = server.call(&Command::List {})?;
        // Forks name the files of their base again.
        let (mut bases, mut devices) = (BTreeSet::new(), BTreeSet::new());
        let mut open = BTreeSet::new();
        for disk in listing.disks {
            if disk.name == name {
                let paths = disk.file.iter().chain(&disk.device);
                paths.for_each(|path| inputs.add("the disk", Path::new(path)));
            }
            // Their paths may have become those of other files, or may not be UTF-8.
            open.extend(disk.path.iter().cloned().zip(disk.identity));
            bases.extend(disk.path);
            devices.extend(disk.devices);
        }
        for path in bases {
            inputs.add("the server's base", &ImagePath::from(OsString::from(path)).image);
        }
        devices.iter().for_each(|device| inputs.add("the base's device", Path::new(device)));
        for (path, identity) in open {
            let what = format!("a file of the server's base {path}");
            files_of(&identity).into_iter().for_each(|numbers| inputs.add_numbered(&what, numbers));
        }
        Ok(inputs)
    }

    /// Returns the names of the images that the server has open: of bases and their devices.
    #[cfg(feature = "remote")]
    pub(crate) fn open_images(&self) -> anyhow::Result<BTreeSet<PathBuf>> {
        let listing: Listing = self.connect()?.call(&Command::List {})?;
        let image = |path| ImagePath::from(OsString::from(path)).image;
        let names = listing
            .disks
            .into_iter()
            .flat_map(|disk| disk.path.map(image).into_iter().chain(disk.devices.into_iter().map(PathBuf::from)));
        Ok(names.collect())
    }

    /// Opens a connection on which each answer must arrive within ten seconds. Waits for a server
    /// that is starting.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        self.connect_within(NO_SIGN)
    }

    /// Like `connect`, but without waiting if nothing shows that a server is starting.
    pub(crate) fn connect_now(&self) -> anyhow::Result<Client> {
        self.connect_within(Duration::ZERO)
    }

    fn connect_within(&self, no_sign: Duration) -> anyhow::Result<Client> {
        let directory = self.directory()?;
        let path = self.control_socket()?;
        let start = Instant::now();
        loop {
            let error = match Client::connect(&path, TIMEOUT) {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            let is_missing = matches!(&error, ClientError::Connect { source, .. }
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused));
            let is_starting = is_missing && directory.as_deref().is_some_and(is_claimed);
            let time = if is_starting { TIMEOUT } else { no_sign };
            if !is_missing || start.elapsed() >= time {
                return Err(with_advice(error, is_starting, directory.as_deref()));
            }
            thread::sleep(PAUSE);
        }
    }
}

fn is_claimed(directory: &Path) -> bool {
    matches!(Claim::open(directory), Ok(Some(claim)) if claim.is_held())
}

/// Says which process does not answer, if that is the error, and what to do.
pub(crate) fn unanswered(error: ClientError, directory: Option<&Path>) -> anyhow::Error {
    let ClientError::Silent(_) = &error else { return error.into() };
    let claim = directory.and_then(|directory| Claim::open(directory).ok().flatten());
    match claim.and_then(|claim| claim.process()) {
        None => anyhow!("{error}; it may be stopped or busy"),
        Some(pid) => anyhow!(
            "{error}: process {pid} may be busy, or stopped ('kill -CONT {pid}' continues it); 'kill -9 {pid}' ends it, and \
             its disks are lost"
        ),
    }
}

/// Adds advice to an error of connecting.
fn with_advice(error: ClientError, is_starting: bool, directory: Option<&Path>) -> anyhow::Error {
    let advice = match &error {
        ClientError::Connect { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            "only root and the user of that server may manage it"
        }
        ClientError::Connect { source, path } if source.kind() == ErrorKind::InvalidInput => {
            let len = path.as_os_str().len();
            return anyhow!(
                "the path of the socket {} has {len} bytes, the maximum is 107: choose a shorter one (--dir, --control)",
                path.display()
            );
        }
        ClientError::Connect { .. } if is_starting => {
            "the server that uses this directory is still starting, or its control socket is elsewhere (--control)"
        }
        ClientError::Connect { .. } => "start a server, or give its location with --dir or --control",
        _ => return unanswered(error, directory),
    };
    anyhow!("{}; {advice}", message(&error.into()))
}
