//! The running server that a subcommand asks.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use pagefold_serve::client::{Client, Target};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Where a server is and which of its exports is meant.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("server").args(["unix", "tcp"]).required(true))]
pub(crate) struct Peer {
    /// The server's Unix socket
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,

    /// The server's TCP address
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Option<String>,

    /// Only the export of this name
    #[arg(long)]
    name: Option<String>,
}

impl Peer {
    /// A new connection, of which everything has to be asked within ten seconds.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        let target = match (&self.unix, &self.tcp) {
            (Some(path), _) => Target::Unix(path.clone()),
            (None, Some(address)) => Target::Tcp(address.clone()),
            (None, None) => bail!("give --unix PATH or --tcp HOST:PORT"),
        };
        Ok(Client::connect(&target, TIMEOUT)?)
    }

    /// The export that was named, or else all that the server has.
    pub(crate) fn exports(&self) -> anyhow::Result<Vec<String>> {
        match &self.name {
            Some(name) => Ok(vec![name.clone()]),
            None => Ok(self.connect()?.list()?),
        }
    }
}
