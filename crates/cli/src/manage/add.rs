//! `pagefold add`: adds a disk to a running server.

use std::{ffi::OsString, path::PathBuf};

use anyhow::{Context, anyhow};
use pagefold_base::Format;
use pagefold_control::{Add, AddBase, Command, DiskQuota, DiskRecord};

use super::{Asked, SocketArgs, quota::QuotaArgs, uris};
use crate::{image::ImagePath, report::misuse, size, storage};

/// Add an empty disk, or a file as a read-only disk
#[derive(clap::Args)]
#[command(
    visible_alias = "create",
    after_help = "Examples:
  pagefold add scratch --size 8G
  pagefold add guest-7 --size 20G --limit 2G --json
  pagefold add debian --base debian.erofs
  pagefold add guest-8 --size 20G --socket /run/vm/8.sock --mode 0660 --group kvm
  pagefold add guest-9 --size 20G --connections 2 --rate 200M

The server process opens FILE, so it needs permission to read it. 'pagefold serve --help' \
describes what FILE can be."
)]
pub(crate) struct Args {
    /// Name of the disk's export
    name: String,

    /// Size of the disk, a multiple of 512 bytes
    #[arg(long, value_parser = size::parse)]
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

    /// A file that holds data of FILE, an EROFS image written with 'pagefold freeze --backing' or
    /// 'mkfs.erofs --blobdev'; repeat in the order of the image's device table
    #[arg(long = "device", value_name = "FILE", requires = "base")]
    devices: Vec<PathBuf>,

    /// Format of the FILE, whatever its name ends in: raw, erofs, qcow2
    #[arg(long, requires = "base")]
    format: Option<Format>,

    #[command(flatten)]
    socket: SocketArgs,

    #[command(flatten)]
    quota: QuotaArgs,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { name, size, limit, read_only, base, devices, format, socket, quota, asked } = args;
    let (socket, quota) = (socket.socket()?, quota.quota());
    let name = name.clone();
    let command = match base {
        Some(file) => Command::AddBase(AddBase { socket, quota, ..add_base(name, file.clone(), devices, *format)? }),
        None => {
            let size = size.ok_or_else(|| misuse(anyhow!("a disk needs --size SIZE, or --base FILE")));
            let size_bytes = size?;
            Command::Add(Add { name, size_bytes, limit_bytes: *limit, read_only: *read_only, socket, quota })
        }
    };
    asked.perform(&command, |disk: &DiskRecord| {
        format!("added '{}', {}:{}", disk.name, size::written(disk.size_bytes), uris(disk))
    })
}

/// Builds the command. The server runs in another directory, so the path must be absolute.
pub(crate) fn add_base(
    name: String,
    file: OsString,
    devices: &[PathBuf],
    format: Option<Format>,
) -> anyhow::Result<AddBase> {
    let ImagePath { image, path } = ImagePath::from(file);
    let not_text = || misuse(anyhow!("--base: the path is not UTF-8, which the control protocol requires"));
    let image = pagefold_storage::absolute(&image).with_context(|| pagefold_storage::shown(&image))?;
    let inside = String::from_utf8(path).map_err(|_| not_text())?;
    let text = |path: PathBuf| path.to_str().map(str::to_owned).ok_or_else(not_text);
    Ok(AddBase {
        name,
        devices: storage::absolute_all(devices)?.into_iter().map(text).collect::<anyhow::Result<_>>()?,
        path: image.to_str().ok_or_else(not_text)?.to_owned(),
        inside: Some(inside).filter(|inside| !inside.is_empty()),
        format: format.map(|format| format.to_string()),
        socket: None,
        quota: DiskQuota::default(),
    })
}
