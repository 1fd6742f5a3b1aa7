//! Subcommands that manage the disks of a running server.

pub(crate) mod add;
pub(crate) mod diff;
pub(crate) mod drop;
pub(crate) mod fork;
pub(crate) mod limit;
pub(crate) mod list;
pub(crate) mod quota;
pub(crate) mod rename;
pub(crate) mod reset;
pub(crate) mod resize;
pub(crate) mod rollback;
pub(crate) mod snapshot;
pub(crate) mod stop;
mod table;
mod tree;
pub(crate) mod uri;

use std::{
    io::{BufWriter, Write},
    path::PathBuf,
};

use anyhow::Context;
use pagefold_control::{Client, ClientError, Command, DiskRecord, DiskSocket};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    output::{Output, output},
    peer::Peer,
    text::{plain, plain_json},
};

/// The server's location, and how to report results.
#[derive(clap::Args)]
pub(crate) struct Asked {
    #[command(flatten)]
    peer: Peer,

    /// Print the server's answer, one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Asked {
    fn connect(&self) -> anyhow::Result<Caller> {
        Ok(Caller { client: self.peer.connect()?, out: output(), json: self.json })
    }

    /// Executes a command and reports the answer; `say` turns the answer into text.
    fn perform<T: Serialize + DeserializeOwned>(
        &self,
        command: &Command,
        say: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let mut caller = self.connect()?;
        let answer: T = caller.call(command)?;
        caller.print(&answer, || say(&answer))
    }
}

/// A disk's own socket.
#[derive(clap::Args)]
pub(crate) struct SocketArgs {
    /// Also serve the disk on a Unix socket of its own, on which no other disk exists; the socket is
    /// removed with the disk
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Mode of the socket, whatever the umask; 0600 by default
    #[arg(long, value_name = "MODE", requires = "socket")]
    mode: Option<String>,

    /// Group of the socket
    #[arg(long, value_name = "GROUP", requires = "socket")]
    group: Option<String>,
}

impl SocketArgs {
    /// Returns the socket's description. The server runs in another directory, so the path must be
    /// absolute.
    fn socket(&self) -> anyhow::Result<Option<DiskSocket>> {
        let Self { socket, mode, group } = self;
        let Some(path) = socket else { return Ok(None) };
        let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
        let path = path.to_str().context("--socket: the path is not UTF-8, which the control protocol requires")?;
        Ok(Some(DiskSocket { path: path.to_owned(), mode: mode.clone(), group: group.clone() }))
    }
}

/// A connection to a server, and standard output for its answers.
struct Caller {
    client: Client,
    out: BufWriter<Output>,
    json: bool,
}

impl Caller {
    fn call<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, ClientError> {
        self.client.call(command)
    }

    /// Writes `answer` as JSON, or the text of `say`.
    fn print(&mut self, answer: &impl Serialize, say: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            writeln!(self.out, "{}", plain_json(&serde_json::to_string(answer)?))?;
        } else {
            // Names may contain control characters.
            writeln!(self.out, "{}", plain(&say()))?;
        }
        Ok(self.out.flush()?)
    }
}

/// Returns the disk's URIs, each quoted and preceded by a space.
fn uris(disk: &DiskRecord) -> String {
    disk.uris.iter().map(|uri| format!(" '{uri}'")).collect()
}
