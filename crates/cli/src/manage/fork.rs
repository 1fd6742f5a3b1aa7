//! `pagefold fork`: adds copies of a disk to a running server.

use pagefold_control::{Command, Fork, Listing, MAX_FORKS};

use super::{Asked, SocketArgs, quota::QuotaArgs, uris};
use crate::size;

/// Create writable copies of a disk that share its memory
#[derive(clap::Args)]
#[command(
    visible_alias = "clone",
    after_help = "Examples:
  pagefold fork debian job-1 job-2 job-3
  pagefold fork job-1 job-1b --limit 512M
  pagefold fork job-1@before job-1c
  pagefold fork debian job-4 --socket /run/jobs/4.sock --group jobs --mode 0660
  pagefold fork debian job-5 --connections 8 --rate 100M

FROM can be in use. All forks start with its contents at the same instant; either all forks are \
created or none; of more than 512, each 512. Each fork is independent: FROM and other forks do \
not see its writes, and it does not see theirs."
)]
pub(crate) struct Args {
    /// The disk to fork: a base, a disk, or a snapshot as DISK@SNAPSHOT
    from: String,

    /// Names of the forks' exports
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
    quota: QuotaArgs,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { from, names, limit, read_only, socket, quota, asked } = args;
    let (limit_bytes, read_only, socket) = (*limit, *read_only, socket.socket()?);
    let quota = quota.quota();
    let mut caller = asked.connect()?;
    for names in names.chunks(MAX_FORKS) {
        let (from, names) = (from.clone(), names.to_vec());
        let fork = Fork { from: from.clone(), names, limit_bytes, read_only, socket: socket.clone(), quota };
        let forks: Listing = caller.call(&Command::Fork(fork))?;
        for disk in &forks.disks {
            let (size, uris) = (size::written(disk.size_bytes), uris(disk));
            caller.print(disk, || format!("forked '{}' from '{from}', {size}:{uris}", disk.name))?;
        }
    }
    Ok(())
}
