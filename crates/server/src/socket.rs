//! Unix sockets of single disks.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use nix::unistd::Group;
use pagefold_control::{Code, DiskSocket, Failure};
use pagefold_serve::{Export, Exports, OwnSocket, Permissions, ServerHandle};

use crate::error::message;

/// Bytes that a disk's socket needs in the server's lists, without its path.
const SOCKET_BYTES: u64 = 512;
/// How often its path is stored.
const PATHS: u64 = 3;

/// A socket on which only one disk is served, removed when this is dropped.
pub(crate) struct ServedSocket {
    pub(crate) path: PathBuf,
    permissions: Permissions,
    /// Set once the server listens.
    socket: OnceLock<OwnSocket>,
}

/// Returns the bytes that a disk's socket needs in the server's lists.
pub(crate) fn record_bytes(path: Option<&Path>) -> u64 {
    path.map_or(0, |path| SOCKET_BYTES + PATHS * path.as_os_str().len() as u64)
}

/// Returns the bytes that the socket of a new disk needs in the server's lists.
pub(crate) fn asked_bytes(socket: Option<&DiskSocket>) -> u64 {
    record_bytes(socket.map(|socket| Path::new(&socket.path)))
}

/// Parses the mode of a socket, as chmod takes it.
///
/// # Errors
/// The text is not a mode; the error shows how to write one.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("'{text}' is not a mode of a socket: up to three octal digits, such as 0660"))
}

/// Returns the number of a group: of one with this name, or this number.
///
/// # Errors
/// No group has the name, or the system cannot look it up.
pub fn parse_group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!("there is no group '{text}'")),
        Err(error) => Err(format!("cannot look up the group '{text}': {error}")),
    }
}

impl ServedSocket {
    /// Continues with a socket of another server.
    pub(crate) fn taken(path: PathBuf, socket: OwnSocket) -> Self {
        Self { path, permissions: Permissions::default(), socket: OnceLock::from(socket) }
    }

    /// Prepares the socket of a server whose process was killed. [`open`](Self::open) opens it.
    pub(crate) fn again(path: PathBuf, permissions: Permissions) -> Self {
        Self { path, permissions, socket: OnceLock::new() }
    }

    /// Serves an export on a socket of its own. Without a `server`, no server listens yet: then
    /// [`open`](Self::open) opens the socket.
    pub(crate) fn new(
        server: Option<&ServerHandle>,
        export: &Arc<Export>,
        socket: &DiskSocket,
    ) -> Result<Self, Failure> {
        let DiskSocket { path, mode, group } = socket;
        let path = PathBuf::from(path);
        if !path.is_absolute() {
            return Err(failed(format!("'{}' is not an absolute path", path.display())));
        }
        let mut permissions = Permissions::default();
        if let Some(mode) = mode {
            permissions.mode = parse_mode(mode).map_err(failed)?;
        }
        permissions.group = group.as_deref().map(parse_group).transpose().map_err(failed)?;
        let served = Self { path, permissions, socket: OnceLock::new() };
        server.map_or(Ok(()), |server| served.open(server, export))?;
        Ok(served)
    }

    /// Opens the socket, unless it is open.
    pub(crate) fn open(&self, server: &ServerHandle, export: &Arc<Export>) -> Result<(), Failure> {
        if self.socket.get().is_none() {
            let opened = server.listen(&self.path, self.permissions, Exports::only(Arc::clone(export)));
            // Only the thread that creates a disk, or that begins to listen, opens its socket.
            let _ = self.socket.set(opened.map_err(|error| failed(message(&error)))?);
        }
        Ok(())
    }
}

fn failed(what: String) -> Failure {
    Failure::new(Code::InvalidSocket, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_groups_are_read() {
        assert_eq!((parse_mode("0660"), parse_mode("600"), parse_mode("0")), (Ok(0o660), Ok(0o600), Ok(0)));
        for text in ["", "660x", "8", "1777", "u+w", "-1"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
        assert_eq!((parse_group("0"), parse_group("root"), parse_group("1234")), (Ok(0), Ok(0), Ok(1234)));
        assert!(parse_group("no such group").is_err() && parse_group("-1").is_err());
    }
}
