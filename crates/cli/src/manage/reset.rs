//! `pagefold reset`: empties a disk.

use pagefold_control::{Command, DiskRecord};

use super::Asked;

/// Discard the contents of a disk and release their memory
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold reset scratch

The disk then reads as zeros; a fork of a base reads as the base again. Unmount its file system \
and disconnect its clients first. --force resets a disk with clients: they stay connected, and \
their caches are stale.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    /// Reset it although it has clients, which are not notified
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let command = Command::Reset { name: args.name.clone(), force: args.force };
    args.asked.perform(&command, |disk: &DiskRecord| format!("reset '{}'", disk.name))
}
