//! `pagefold snapshot`: takes a snapshot of a disk.

use pagefold_control::{Command, DiskRecord};

use super::{Asked, uris};
use crate::size;

/// Take a snapshot of a disk
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold snapshot job-1 before-upgrade

The snapshot is served as the read-only export DISK@SNAPSHOT until it is dropped. It is \
crash-consistent: it contains every write that was acknowledged before. If the file system has no \
journal, unmount it first, or freeze it in the guest (fsfreeze).")]
pub(crate) struct Args {
    /// The disk, which can be in use
    disk: String,

    /// Name of the snapshot
    snapshot: String,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let command = Command::Snapshot { name: args.disk.clone(), snapshot: args.snapshot.clone() };
    args.asked.perform(&command, |disk: &DiskRecord| {
        format!("created snapshot '{}', {}:{}", disk.name, size::written(disk.size_bytes), uris(disk))
    })
}
