//! `pagefold disks`: which disks a server has.

use std::io::Write;

use pagefold_control::{Command, DiskRecord, Listing};

use crate::{image::show, output::output, peer::Peer, size};

/// List the disks of a running server
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold disks
  pagefold disks --json | jq -r .uris[0]")]
pub(crate) struct Args {
    #[command(flatten)]
    peer: Peer,

    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let listing: Listing = args.peer.connect()?.call(&Command::List {})?;
    let mut out = output();
    for disk in &listing.disks {
        if args.json {
            writeln!(out, "{}", serde_json::to_string(disk)?)?;
        } else {
            writeln!(out, "{}", show(words(disk).as_bytes()))?;
        }
    }
    Ok(out.flush()?)
}

fn words(disk: &DiskRecord) -> String {
    let DiskRecord { name, size_bytes, limit_bytes, read_only, kind: _, path, clients, uris } = disk;
    let mut words = format!("'{name}'  {}", size::show(*size_bytes));
    if let Some(limit) = limit_bytes {
        words += &format!(", limit {}", size::show(*limit));
    }
    if *read_only {
        words += ", read-only";
    }
    if let Some(path) = path {
        words += &format!(", of {path}");
    }
    match clients {
        0 => {}
        1 => words += ", 1 client",
        clients => words += &format!(", {clients} clients"),
    }
    for uri in uris {
        words += &format!("  '{uri}'");
    }
    words
}
