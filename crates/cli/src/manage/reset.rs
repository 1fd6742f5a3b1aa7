//! `pagefold reset`: a disk becomes empty.

use pagefold_control::{Command, DiskRecord};

use super::Asked;

/// Make a running server's disk read as zeros and give its memory back
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold reset scratch

Clients stay connected. A file system that is mounted from the disk is lost: unmount it before.")]
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
