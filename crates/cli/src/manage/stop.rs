//! `pagefold stop`: stops a running server.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use pagefold_control::{Command, Done};

use crate::{output::output, peer::Peer, server_directory};

/// Maximum wait for the server to exit. It gives clients some seconds to read their answers.
const TIME: Duration = Duration::from_secs(60);

/// Stop the server, and wait until it has exited
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold stop && pagefold serve --size 8G

The server completes requests in flight, as on SIGTERM. Disks are volatile: their contents are \
lost.")]
pub(crate) struct Args {
    #[command(flatten)]
    peer: Peer,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut client = args.peer.connect()?;
    let Done {} = client.call(&Command::Stop {})?;
    let start = Instant::now();
    client.wait_for_end(TIME).context("the server did not stop in time")?;
    if let Some(directory) = args.peer.directory()?
        && !server_directory::wait_until_free(&directory, TIME.saturating_sub(start.elapsed()))?
    {
        bail!("the server did not stop within {} s", TIME.as_secs());
    }
    let mut out = output();
    writeln!(out, "the server has ended")?;
    Ok(out.flush()?)
}
