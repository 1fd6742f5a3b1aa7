//! Subcommands that manage the disks of a running server.

pub(crate) mod add;
pub(crate) mod diff;
pub(crate) mod drop;
pub(crate) mod fork;
pub(crate) mod limit;
pub(crate) mod list;
pub(crate) mod rename;
pub(crate) mod reset;
pub(crate) mod resize;
pub(crate) mod rollback;
pub(crate) mod snapshot;
pub(crate) mod stop;
mod table;
mod tree;
pub(crate) mod uri;

use std::io::{BufWriter, Write};

use pagefold_control::{Client, ClientError, Command, DiskRecord};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    image::show,
    output::{Output, output},
    peer::Peer,
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
    fn connect(&self) -> anyhow::Result<Telling> {
        Ok(Telling { client: self.peer.connect()?, out: output(), json: self.json })
    }

    /// Executes a command and reports the answer; `say` turns the answer into text.
    fn perform<T: Serialize + DeserializeOwned>(
        &self,
        command: &Command,
        say: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let mut telling = self.connect()?;
        let answer: T = telling.call(command)?;
        telling.tell(&answer, || say(&answer))
    }
}

/// A connection to a server, and standard output for its answers.
struct Telling {
    client: Client,
    out: BufWriter<Output>,
    json: bool,
}

impl Telling {
    fn call<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, ClientError> {
        self.client.call(command)
    }

    /// Writes `answer` as JSON, or the text of `say`.
    fn tell(&mut self, answer: &impl Serialize, say: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            writeln!(self.out, "{}", serde_json::to_string(answer)?)?;
        } else {
            // Names may contain control characters.
            writeln!(self.out, "{}", show(say().as_bytes()))?;
        }
        Ok(self.out.flush()?)
    }
}

/// Returns the disk's URIs, each quoted and preceded by a space.
fn uris(disk: &DiskRecord) -> String {
    disk.uris.iter().map(|uri| format!(" '{uri}'")).collect()
}
