//! Subcommands that change what a running server serves.

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

use std::io::{BufWriter, Write};

use pagefold_control::{Client, ClientError, Command, DiskRecord};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    image::show,
    output::{Output, output},
    peer::Peer,
};

/// Where the server is, and how to say what was done.
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

    /// Has a command done, and says so with the words that `say` has for the answer.
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

/// A server that does commands, and standard output, where they are told.
struct Telling {
    client: Client,
    out: BufWriter<Output>,
    json: bool,
}

impl Telling {
    fn call<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, ClientError> {
        self.client.call(command)
    }

    /// Writes `answer`, or what `say` has for it.
    fn tell(&mut self, answer: &impl Serialize, say: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            writeln!(self.out, "{}", serde_json::to_string(answer)?)?;
        } else {
            // Names may have control characters.
            writeln!(self.out, "{}", show(say().as_bytes()))?;
        }
        Ok(self.out.flush()?)
    }
}

/// Where NBD clients find a disk, each after a space.
fn uris(disk: &DiskRecord) -> String {
    disk.uris.iter().map(|uri| format!(" '{uri}'")).collect()
}
