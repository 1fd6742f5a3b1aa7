//! `pagefold add`: a running server gets a disk.

use pagefold_control::{Add, Command, DiskRecord};

use super::Asked;
use crate::size;

/// Add an empty disk to a running server
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold add scratch --size 8G
  pagefold add guest-7 --size 20G --limit 2G --json")]
pub(crate) struct Args {
    /// The name of the disk's export
    name: String,

    /// The disk's size, a multiple of 512 bytes
    #[arg(long, value_parser = size::parse)]
    size: u64,

    /// The most memory that the disk may take; writes over it fail with ENOSPC
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,

    /// Refuse every change
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { name, size, limit, read_only, asked } = args;
    let disk = Add { name: name.clone(), size_bytes: *size, limit_bytes: *limit, read_only: *read_only };
    asked.perform(&Command::Add(disk), |disk: &DiskRecord| {
        let uris: Vec<_> = disk.uris.iter().map(|uri| format!(" '{uri}'")).collect();
        format!("added '{}', {}:{}", disk.name, size::show(disk.size_bytes), uris.concat())
    })
}
