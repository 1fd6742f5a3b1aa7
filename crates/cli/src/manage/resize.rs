//! `pagefold resize`: changes the size of a disk.

use pagefold_control::{Command, Resize, Resized};

use super::Asked;
use crate::size;

/// Change the size of a disk
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold resize root 16G
  pagefold resize scratch 1G --shrink

A connected client sees the new size once it asks for it. Most clients must reconnect for that; \
docs/nbd.md describes how qemu resizes a drive of a running guest.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    /// The new size, a multiple of 512 bytes
    #[arg(value_parser = size::parse, allow_negative_numbers = true)]
    size: u64,

    /// Allow the disk to shrink: data past the new end are lost
    #[arg(long)]
    shrink: bool,

    /// Shrink it although it has clients, which are not notified
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { name, size, shrink, force, asked } = args;
    let command = Command::Resize(Resize { name: name.clone(), size_bytes: *size, shrink: *shrink, force: *force });
    asked.perform(&command, |disk: &Resized| {
        format!(
            "resized '{}' from {} to {}",
            disk.name,
            size::written(disk.before_bytes),
            size::written(disk.size_bytes)
        )
    })
}
