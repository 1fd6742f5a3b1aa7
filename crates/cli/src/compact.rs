//! `pagefold compact`: a running server gives back what memory it can.

use std::io::{self, Write};

use crate::{figure::Figure, output::output, peer::Peer, size};
use anyhow::Context;

/// Have a running server give back what memory its disks' holes take
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold compact --unix /run/user/1000/disk.sock
  pagefold compact --tcp 127.0.0.1:10809 --name root --json

A server compacts by itself when more than about 4 % of a disk's memory are holes. This does the rest at once, for example \
after much was discarded or before other programs need the memory. The disks stay in use, and no byte of them changes.")]
pub(crate) struct Args {
    #[command(flatten)]
    peer: Peer,

    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = output();
    for name in args.peer.exports()? {
        let done = compact(&args.peer, &name).with_context(|| format!("export '{name}'"))?;
        let print = if args.json { print_json } else { print_words };
        print(&mut out, &name, done)?;
        out.flush()?;
    }
    Ok(())
}

/// Compacts an export, with several requests if need be, and returns what it took before and takes now.
fn compact(peer: &Peer, name: &str) -> anyhow::Result<Option<(u64, u64)>> {
    let mut before = None;
    loop {
        let Some(done) = peer.connect()?.compact(name)? else { return Ok(None) };
        let before = *before.get_or_insert(done.before_bytes);
        // Others may write as fast as the server compacts.
        if !done.more || done.after_bytes >= done.before_bytes {
            return Ok(Some((before, done.after_bytes)));
        }
    }
}

fn print_json(out: &mut dyn Write, name: &str, done: Option<(u64, u64)>) -> io::Result<()> {
    let Some((before, after)) = done else { return Ok(()) };
    let figures =
        [("before_bytes", before), ("after_bytes", after), ("given_back_bytes", before.saturating_sub(after))];
    for (metric, value) in figures {
        Figure { bench: "compact", case: name, subject: "store", metric, value, unit: "bytes" }.write(out)?;
    }
    Ok(())
}

fn print_words(out: &mut dyn Write, name: &str, done: Option<(u64, u64)>) -> io::Result<()> {
    match done {
        Some((before, after)) => writeln!(
            out,
            "export '{name}': {} given back, {} in use",
            size::show(before.saturating_sub(after)),
            size::show(after)
        ),
        None => writeln!(out, "export '{name}': nothing to compact"),
    }
}
