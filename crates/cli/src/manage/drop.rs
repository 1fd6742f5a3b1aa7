//! `pagefold remove`: a running server loses a disk.

use pagefold_control::{Command, DiskRecord};

use super::Asked;
use crate::size;

/// Remove a disk, with its contents, from a running server
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold remove scratch

Requests that the server is working on are answered. Later requests of the disk's clients fail, and their connections end.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.asked.perform(&Command::Remove { name: args.name.clone() }, |disk: &DiskRecord| {
        format!("removed '{}', {}", disk.name, size::show(disk.size_bytes))
    })
}
