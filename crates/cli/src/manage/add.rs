//! `pagefold add`: adds a disk to a running server.

use std::ffi::OsString;

use anyhow::{Context, anyhow};
use pagefold_base::Format;
use pagefold_control::{Add, AddBase, Command, DiskRecord};

use super::{Asked, SocketArgs, uris};
use crate::{image::ImagePath, misuse, size};

/// Add an empty disk, or a file as a read-only disk
#[derive(clap::Args)]
#[command(
    visible_alias = "create",
    after_help = "Examples:
  pagefold add scratch --size 8G
  pagefold add guest-7 --size 20G --limit 2G --json
  pagefold add debian --base debian.erofs
  pagefold add guest-8 --size 20G --socket /run/vm/8.sock --mode 0660 --group kvm

The server process opens FILE, so it needs permission to read it. 'pagefold serve --help' \
describes what FILE can be."
)]
pub(crate) struct Args {
    /// Name of the disk's export
    name: String,

    /// Size of the disk, a multiple of 512 bytes
    #[arg(long, value_parser = size::parse, required_unless_present = "base")]
    size: Option<u64>,

    /// Memory limit of the disk; writes beyond it fail with ENOSPC, or wait if the server runs with
    /// --when-full wait
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,

    /// Make the disk read-only
    #[arg(long)]
    read_only: bool,

    /// Serve this file instead: a raw disk, a block device, a qcow2 or EROFS image, or IMAGE:/PATH
    /// for a file in an image
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "limit", "read_only"])]
    base: Option<OsString>,

    /// Format of the FILE, whatever its name ends in: raw, erofs, qcow2
    #[arg(long, requires = "base")]
    format: Option<Format>,

    #[command(flatten)]
    socket: SocketArgs,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { name, size, limit, read_only, base, format, socket, asked } = args;
    let socket = socket.socket()?;
    let name = name.clone();
    let command = match base {
        Some(file) => Command::AddBase(AddBase { socket, ..add_base(name, file.clone(), *format)? }),
        None => {
            let size_bytes = size.context("a disk needs --size SIZE, or --base FILE")?;
            Command::Add(Add { name, size_bytes, limit_bytes: *limit, read_only: *read_only, socket })
        }
    };
    asked.perform(&command, |disk: &DiskRecord| {
        format!("added '{}', {}:{}", disk.name, size::show(disk.size_bytes), uris(disk))
    })
}

/// Builds the command. The server runs in another directory, so the path must be absolute.
fn add_base(name: String, file: OsString, format: Option<Format>) -> anyhow::Result<AddBase> {
    let ImagePath { image, path } = ImagePath::from(file);
    let not_text = || misuse(anyhow!("--base: the path is not UTF-8, which the control protocol requires"));
    let image = pagefold_storage::absolute(&image).with_context(|| image.display().to_string())?;
    let inside = String::from_utf8(path).map_err(|_| not_text())?;
    Ok(AddBase {
        name,
        path: image.to_str().ok_or_else(not_text)?.to_owned(),
        inside: Some(inside).filter(|inside| !inside.is_empty()),
        format: format.map(|format| format.to_string()),
        socket: None,
    })
}
