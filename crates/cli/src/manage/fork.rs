//! `pagefold fork`: a running server gets disks that begin as another is.

use pagefold_control::{Command, Fork, Listing};

use super::{Asked, uris};
use crate::size;

/// Make disks of a running server that begin as another is, and share its memory
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold fork debian job-1 job-2 job-3
  pagefold fork job-1 job-1b --limit 512M
  pagefold fork job-1@before job-1c

FROM may be in use: its forks hold what it holds at one instant, the same for all NAMEs. Either all of them are made or none is. What a fork writes is its own: \
neither FROM nor other forks see it, nor does the fork see what FROM writes later.")]
pub(crate) struct Args {
    /// A base, a disk, or a snapshot as DISK@SNAPSHOT
    from: String,

    /// The names of the forks' exports, 512 at most
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// The most memory that each fork may take for what it writes; writes over it fail with ENOSPC,
    /// or wait
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,

    /// Refuse every change of the forks
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { from, names, limit, read_only, asked } = args;
    let (from, names) = (from.clone(), names.clone());
    let fork = Fork { from: from.clone(), names, limit_bytes: *limit, read_only: *read_only };
    let mut telling = asked.connect()?;
    let forks: Listing = telling.call(&Command::Fork(fork))?;
    for disk in &forks.disks {
        let words = || format!("forked '{}' from '{from}', {}:{}", disk.name, size::show(disk.size_bytes), uris(disk));
        telling.tell(disk, words)?;
    }
    Ok(())
}
