//! `pagefold resize`: a disk gets another size.

use pagefold_control::{Command, Resized};

use super::Asked;
use crate::size;

/// Change the size of a running server's disk
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold resize root 16G
  pagefold resize scratch 1G --shrink

Clients that are connected see the new size when they ask again; docs/nbd.md says how qemu and others do.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    /// The new size, a multiple of 512 bytes
    #[arg(value_parser = size::parse)]
    size: u64,

    /// Allow the disk to become smaller: what lies past its new end is lost
    #[arg(long)]
    shrink: bool,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { name, size, shrink, asked } = args;
    let command = Command::Resize { name: name.clone(), size_bytes: *size, shrink: *shrink };
    asked.perform(&command, |disk: &Resized| {
        format!("resized '{}' from {} to {}", disk.name, size::show(disk.before_bytes), size::show(disk.size_bytes))
    })
}
