//! `pagefold uri`: prints the URIs of disks.

use std::io::Write;

use anyhow::ensure;
use pagefold_control::{Command, Failure, Listing};

use crate::{output::output, peer::Peer};

/// Print the NBD URI of a disk
#[derive(clap::Args)]
#[command(after_help = "Examples:
  nbdinfo \"$(pagefold uri job-1)\"
  qemu-img info \"$(pagefold uri job-1)\"

If the server listens at several addresses, the URI is of the first, a Unix socket if there is one; \
--all prints all, one per line.")]
pub(crate) struct Args {
    /// Disks, bases, or snapshots as DISK@SNAPSHOT
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Print the URIs of all addresses
    #[arg(short, long)]
    all: bool,

    #[command(flatten)]
    peer: Peer,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let listing: Listing = args.peer.connect()?.call(&Command::List {})?;
    let mut out = output();
    for name in &args.names {
        let found = listing.disks.iter().find(|disk| disk.name == *name);
        let known = || listing.disks.iter().map(|disk| disk.name.as_str());
        ensure!(found.is_some(), Failure::no_disk_among(name, known()));
        let uris = found.into_iter().flat_map(|disk| &disk.uris);
        for uri in uris.take(if args.all { usize::MAX } else { 1 }) {
            writeln!(out, "{uri}")?;
        }
    }
    Ok(out.flush()?)
}
