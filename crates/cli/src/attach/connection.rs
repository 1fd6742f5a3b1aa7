//! Connections of NBD devices to a server.

use std::{
    io::{self, ErrorKind},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, ensure};
use pagefold_attach::nbd::{self, Connection, Nbd};
use pagefold_control::DiskRecord;
use pagefold_serve::{Opened, of_unix_uri, open_export};

use super::args::AttachArgs;

/// How long a server may take to answer during the negotiation.
const PATIENCE: Duration = Duration::from_secs(10);

/// The prefix of the identifiers of our NBD devices. The disk's id, the process that has connected
/// the device, and one of the disk's URIs follow.
pub(super) const OURS: &str = "pagefold ";

pub(super) fn open_nbd() -> anyhow::Result<Nbd> {
    Nbd::open().map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("the kernel has no NBD devices: try 'modprobe nbd'"),
        _ => error.into(),
    })
}

/// Returns the server's Unix socket, the disk's name there, and the URI of both.
pub(super) fn address(disk: &DiskRecord) -> anyhow::Result<(PathBuf, String, &str)> {
    let found = disk.uris.iter().find_map(|uri| Some((of_unix_uri(uri)?, uri)));
    let ((socket, export), uri) =
        found.context("the server has no Unix socket, to which the kernel could connect a device")?;
    Ok((socket, export, uri))
}

/// Connects a device to an export. Returns its number.
pub(super) fn connect_nbd(
    args: &AttachArgs,
    nbd: &Nbd,
    socket: &Path,
    export: &str,
    identifier: &str,
) -> anyhow::Result<u32> {
    ensure!(identifier.len() <= nbd::MAX_IDENTIFIER_BYTES, "the disk's name is too long for a device");
    let count = usize::from(args.connections());
    let mut sockets = Vec::with_capacity(count);
    let mut opened = None;
    for _ in 0..count {
        let (socket, export) = connect(socket, export).with_context(|| socket.display().to_string())?;
        sockets.push(socket);
        ensure!(opened.is_none_or(|before| before == export), "the disk has just been changed; try again");
        opened = Some(export);
    }
    let Opened { size_bytes, flags } = opened.context("no connection")?;
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let timeout_seconds = args.timeout.into();
    let connection = Connection { sockets: &sockets, size_bytes, flags, timeout_seconds, identifier };
    nbd.connect(connection).context("the kernel refuses the connection")
}

pub(super) fn connect(socket: &Path, export: &str) -> io::Result<(UnixStream, Opened)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let opened = open_export(&mut stream, export)?;
    // The kernel, which uses the socket from now on, has a timeout of its own.
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok((stream, opened))
}
