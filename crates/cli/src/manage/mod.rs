//! Subcommands that change what a running server serves.

pub(crate) mod add;
pub(crate) mod limit;
pub(crate) mod list;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod reset;
pub(crate) mod resize;
pub(crate) mod stop;

use std::io::Write;

use pagefold_control::Command;
use serde::{Serialize, de::DeserializeOwned};

use crate::{image::show, output::output, peer::Peer};

/// Where the server is, and how to say what was done.
#[derive(clap::Args)]
pub(crate) struct Asked {
    #[command(flatten)]
    peer: Peer,

    /// Write what the server answers, one JSON object a line
    #[arg(long)]
    json: bool,
}

impl Asked {
    /// Has a command done, and says so with the words that `say` has for the answer.
    fn perform<T: Serialize + DeserializeOwned>(
        &self,
        command: &Command,
        say: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let answer: T = self.peer.connect()?.call(command)?;
        let mut out = output();
        if self.json {
            writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        } else {
            // Names may have control characters.
            writeln!(out, "{}", show(say(&answer).as_bytes()))?;
        }
        Ok(out.flush()?)
    }
}
