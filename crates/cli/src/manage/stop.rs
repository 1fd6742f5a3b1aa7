//! `pagefold stop`: stops a running server.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use pagefold_control::{Client, ClientError, Command, Stopping};
use pagefold_server::waits_for;

use crate::{log, output::output, peer::Peer, server_directory::Claim};

/// Maximum wait for the server to exit. It gives clients some seconds to read their answers.
const TIME: Duration = Duration::from_secs(60);

/// How long a server may take to end before the command says that it waits.
const QUIET: Duration = Duration::from_secs(2);

/// Interval at which to ask what the server waits for.
const PAUSE: Duration = Duration::from_secs(1);

/// Stop the server, and wait until it has exited
#[derive(clap::Args)]
#[command(
    visible_alias = "shutdown",
    after_help = "Example:
  pagefold stop && pagefold serve --size 8G

The server completes requests in flight, as on SIGTERM. If that takes long, for example because \
the storage of a base hangs, the command says what the server waits for. Disks are volatile: their \
contents are lost."
)]
pub(crate) struct Args {
    /// Do not wait for requests that the disks are working on
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    peer: Peer,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut client = args.peer.connect_now()?;
    let claim = args.peer.directory()?.map(|directory| Claim::open(&directory)).transpose()?.flatten();
    let start = Instant::now();
    let left = || TIME.saturating_sub(start.elapsed());
    let Stopping { .. } = client.call(&Command::Stop { force: args.force })?;
    let waited_for = wait(&mut client, &left)?;
    if left().is_zero() || claim.is_some_and(|claim| !claim.wait_until_free(left())) {
        let why =
            waited_for.map_or_else(String::new, |what| format!(": it is {what}; --force ends it without waiting"));
        bail!("the server did not stop within {} s{why}", TIME.as_secs());
    }
    let mut out = output();
    writeln!(out, "the server has ended")?;
    Ok(out.flush()?)
}

/// Waits until the server exits, which closes the connection, and reports what the server waits
/// for. Returns what it was waiting for when the time was over.
fn wait(client: &mut Client, left: &dyn Fn() -> Duration) -> anyhow::Result<Option<String>> {
    let mut reported = None;
    while !left().is_zero() {
        if client.ends_within(PAUSE.min(left())).context("the server did not stop")? {
            return Ok(None);
        }
        // The server may exit at any moment.
        let stopping: Stopping = match client.call(&Command::Stop { force: false }) {
            Err(ClientError::Io(_)) => return Ok(None),
            result => result?,
        };
        let busy = stopping.waits_for;
        let what = (!busy.is_empty() || TIME.saturating_sub(left()) >= QUIET).then(|| waits_for(&busy));
        if let Some(what) = what.as_ref().filter(|what| reported.as_ref() != Some(*what)) {
            log::line(&format!("{what}; 'pagefold stop --force' ends it without waiting"));
        }
        reported = what;
    }
    Ok(reported)
}
