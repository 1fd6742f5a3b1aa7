//! `pagefold reset`: empties a disk.

use pagefold_control::{Command, DiskRecord};

use super::Asked;

/// Discard the contents of a disk and release their memory
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold reset scratch

Clients stay connected, and the disk reads as zeros. Unmount its file system first: its contents \
are lost.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.asked
        .perform(&Command::Reset { name: args.name.clone() }, |disk: &DiskRecord| format!("reset '{}'", disk.name))
}
