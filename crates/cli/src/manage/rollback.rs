//! `pagefold rollback`: restores a disk to one of its snapshots.

use pagefold_control::{Command, DiskRecord};

use super::Asked;
use crate::size;

/// Return a disk to one of its snapshots
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold rollback job-1 before-upgrade

Stop the guest, or unmount the file system and disconnect, first. --force rolls a disk with \
clients back: they stay connected, and their caches are stale. Everything written since the snapshot is \
lost; all snapshots stay. The disk gets the size that it had at the snapshot.")]
pub(crate) struct Args {
    /// The disk
    disk: String,

    /// A snapshot of this disk
    snapshot: String,

    /// Roll it back although it has clients, which are not notified
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { disk, snapshot, force, asked } = args;
    let command = Command::Rollback { name: disk.clone(), snapshot: snapshot.clone(), force: *force };
    asked.perform(&command, |disk: &DiskRecord| {
        format!("rolled '{}' back to '{snapshot}', {}", disk.name, size::written(disk.size_bytes))
    })
}
