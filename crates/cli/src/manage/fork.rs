//! `pagefold fork`: adds copies of a disk to a running server.

use pagefold_control::{Command, Fork, Listing};

use super::{Asked, SocketArgs, uris};
use crate::size;

/// Create writable copies of a disk that share its memory
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold fork debian job-1 job-2 job-3
  pagefold fork job-1 job-1b --limit 512M
  pagefold fork job-1@before job-1c
  pagefold fork debian job-4 --socket /run/jobs/4.sock --group jobs --mode 0660

FROM can be in use. All forks start with its contents at the same instant; either all forks are \
created or none. Each fork is independent: FROM and other forks do not see its writes, and it \
does not see theirs.")]
pub(crate) struct Args {
    /// The disk to fork: a base, a disk, or a snapshot as DISK@SNAPSHOT
    from: String,

    /// Names of the forks' exports, at most 512
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Memory limit of what each fork writes; writes beyond it fail with ENOSPC, or wait if the
    /// server runs with --when-full wait
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,

    /// Make the forks read-only
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    socket: SocketArgs,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { from, names, limit, read_only, socket, asked } = args;
    let (from, names) = (from.clone(), names.clone());
    let (limit_bytes, read_only, socket) = (*limit, *read_only, socket.socket()?);
    let fork = Fork { from: from.clone(), names, limit_bytes, read_only, socket };
    let mut telling = asked.connect()?;
    let forks: Listing = telling.call(&Command::Fork(fork))?;
    for disk in &forks.disks {
        let words = || format!("forked '{}' from '{from}', {}:{}", disk.name, size::show(disk.size_bytes), uris(disk));
        telling.tell(disk, words)?;
    }
    Ok(())
}
