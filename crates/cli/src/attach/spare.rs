//! NBD devices that are connected before they have a disk.
//!
//! The kernel takes tens of milliseconds to connect a device, because it waits several times until
//! no processor uses the device's queues. Changing the size of a connected device takes one such
//! wait. A device that already has the right size needs none: only the server has to be asked.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_attach::{
    nbd::{self, Device},
    partitions,
};
use pagefold_control::{BindSpare, Command, DiskRecord, Failure, SpareRecord};

use super::{
    args::AttachArgs,
    connection::{self, OURS, address, connect_nbd, open_nbd},
};
use crate::report::print;

/// The prefix of the identifiers of these devices. The server's socket and the export's name
/// follow.
const SPARE: &str = "spare ";

/// Returns the prefix of the identifiers of a server's devices.
pub(super) fn beginning(socket: &Path) -> String {
    format!("{OURS}{SPARE}{} ", socket.display())
}

/// Returns the devices of a server with this size, and their exports' names.
fn all(socket: &Path, size_bytes: u64) -> anyhow::Result<Vec<(Device, String)>> {
    let beginning = beginning(socket);
    let mut found = Vec::new();
    for device in nbd::devices()? {
        let Some(export) = device.identifier.strip_prefix(&beginning).map(str::to_owned) else { continue };
        if nbd::size_bytes(device.number)? == Some(size_bytes) {
            found.push((device, export));
        }
    }
    Ok(found)
}

/// Connects devices until `count` are free.
pub(super) fn connect(args: &AttachArgs, disk: &DiskRecord, count: u16) -> anyhow::Result<()> {
    let nbd = open_nbd()?;
    let (socket, ..) = address(disk)?;
    let mut server = args.peer.connect()?;
    let pagefold_control::Listing { disks } = server.call(&Command::List {})?;
    let is_free =
        |device: &Device| !disks.iter().any(|disk| disk.device.as_deref() == nbd::path(device.number).to_str());
    let mut free = 0;
    for (device, export) in all(&socket, disk.size_bytes)? {
        if !is_free(&device) {
            continue;
        }
        match connection::connect(&socket, &export) {
            // An earlier server made the device, or the server has closed its connections.
            Err(error) if error.kind() == ErrorKind::NotFound && socket.exists() => {
                let shown = nbd::path(device.number);
                nbd.disconnect(device.number).with_context(|| format!("cannot detach {}", shown.display()))?;
            }
            _ => free += 1,
        }
    }
    let missing = usize::from(count).saturating_sub(free);
    for _ in 0..missing {
        let SpareRecord { export } = server.call(&Command::Spare { size_bytes: disk.size_bytes })?;
        let number = connect_nbd(args, &nbd, &socket, &export, &(beginning(&socket) + &export))?;
        // The first opening takes the kernel longer, so it is done here. Other programs may have
        // the device open.
        let _ = partitions::reread(&nbd::path(number));
    }
    let size = pagefold_size::written(disk.size_bytes);
    print(&format!("connected {missing} devices; {} wait for disks of {size}", free + missing));
    Ok(())
}

/// Gives the disk a device that waits for one, and returns its path.
pub(super) fn take(args: &AttachArgs, disk: &DiskRecord) -> anyhow::Result<Option<PathBuf>> {
    let Ok((socket, ..)) = address(disk) else { return Ok(None) };
    if disk.read_only {
        return Ok(None);
    }
    for (device, export) in all(&socket, disk.size_bytes)? {
        let path = nbd::path(device.number);
        let bind = BindSpare { export, name: disk.name.clone(), device: path.display().to_string() };
        let bound: Result<DiskRecord, _> = args.peer.connect()?.call(&Command::BindSpare(bind));
        match bound {
            Ok(_) => {
                if let Err(error) = partitions::reread(&path) {
                    print(&format!("the kernel does not look for partitions on {}: {error}", path.display()));
                }
                return Ok(Some(path));
            }
            // The spare device may have a disk already.
            Err(pagefold_control::ClientError::Failed(Failure { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
