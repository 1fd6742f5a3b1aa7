//! `pagefold compact`: makes a running server return unused memory.

use std::io::Write;

use pagefold_control::{Command, Compacted};

use crate::{figure::Figure, output::output, peer::Peer, size};

/// Duration of one request: short enough that no user takes the server for dead.
const SECONDS: u64 = 10;

/// Return unused memory to the system
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold compact
  pagefold compact --json

The server compacts its memory by itself when about 4 % of it is unused. This command compacts \
the rest immediately, for example after large discards or before other programs need the memory. The \
disks stay in use, and their contents do not change.")]
pub(crate) struct Args {
    #[command(flatten)]
    peer: Peer,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (before, after) = compact(&args.peer)?;
    let given_back = before.saturating_sub(after);
    let mut out = output();
    if args.json {
        for (metric, value) in [("before_bytes", before), ("after_bytes", after), ("given_back_bytes", given_back)] {
            Figure { bench: "compact", case: "", subject: "server", metric, value, unit: "bytes" }.write(&mut out)?;
        }
    } else {
        writeln!(out, "{} given back, {} in use", size::show(given_back), size::show(after))?;
    }
    Ok(out.flush()?)
}

/// Compacts all disks, with several requests if necessary. Returns their memory before and after.
fn compact(peer: &Peer) -> anyhow::Result<(u64, u64)> {
    let mut client = peer.connect()?;
    let mut before = None;
    loop {
        let done: Compacted = client.call(&Command::Compact { seconds: SECONDS })?;
        let before = *before.get_or_insert(done.before_bytes);
        // Stop if clients write as fast as the server compacts.
        if !done.more || done.after_bytes >= done.before_bytes {
            return Ok((before, done.after_bytes));
        }
    }
}
