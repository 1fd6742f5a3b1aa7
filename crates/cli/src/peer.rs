//! The running server that a subcommand connects to.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::anyhow;
use pagefold_control::{Client, ClientError, Command, Listing};

use crate::{destination::Inputs, image::ImagePath, message, server_directory};

const TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Returns the files of the server, which no output may replace: those that it serves as bases,
    /// and the lock of its directory.
    pub(crate) fn inputs(&self) -> anyhow::Result<Inputs> {
        let mut inputs = Inputs::default();
        if let Some(directory) = self.directory()? {
            inputs.add("the server's lock", &server_directory::lock(&directory));
        }
        let listing: Listing = self.connect()?.call(&Command::List {})?;
        for path in listing.disks.into_iter().filter_map(|disk| disk.path) {
            inputs.add("the server's base", &ImagePath::from(OsString::from(path)).image);
        }
        Ok(inputs)
    }

    /// Opens a connection on which each answer must arrive within ten seconds.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        let path = match &self.control {
            Some(path) => path.clone(),
            None => server_directory::control_socket(&server_directory::path(self.dir.as_deref())?),
        };
        Client::connect(&path, TIMEOUT).map_err(|error| match error {
            error @ ClientError::Connect { .. } => {
                let what = message(&error.into());
                anyhow!("{what}; start a server, or give its location with --dir or --control")
            }
            error => error.into(),
        })
    }
}
