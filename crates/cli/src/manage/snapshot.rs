//! `pagefold snapshot`: what a disk holds is kept.

use pagefold_control::{Command, DiskRecord};

use super::{Asked, uris};
use crate::size;

/// Keep what a running server's disk holds at this instant
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold snapshot job-1 before-upgrade

The snapshot is the read-only export DISK@SNAPSHOT until it is dropped. It is what a crash would leave: writes that were answered are in it. For a file system without a \
journal to replay, unmount it first, or have the guest freeze it (fsfreeze).")]
pub(crate) struct Args {
    /// The disk, which may be in use
    disk: String,

    /// What to call the snapshot
    snapshot: String,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let command = Command::Snapshot { name: args.disk.clone(), snapshot: args.snapshot.clone() };
    args.asked.perform(&command, |disk: &DiskRecord| {
        format!("kept '{}', {}:{}", disk.name, size::show(disk.size_bytes), uris(disk))
    })
}
