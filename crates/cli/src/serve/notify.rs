//! Notifications to a service manager, using the protocol of `sd_notify(3)`.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::OnceLock,
    time::Duration,
};

/// How long a manager may take to receive.
const PATIENCE: Duration = Duration::from_secs(1);

/// The socket of a server that this one continues, if it has none of its own.
static TAKEN: OnceLock<String> = OnceLock::new();

/// How many descriptors the manager of such a server stores.
static TAKEN_ROOM: OnceLock<usize> = OnceLock::new();

/// Returns the name of the service manager's socket.
pub(crate) fn socket() -> Option<OsString> {
    env::var_os("NOTIFY_SOCKET").or_else(|| TAKEN.get().map(Into::into))
}

/// Returns how many descriptors the manager stores for this service; 0 if it stores none, or does not say
/// so. systemd says so from version 254 on; the package's unit does for earlier ones.
pub(crate) fn store_room() -> usize {
    let own = env::var("FDSTORE").ok().and_then(|room| room.parse().ok());
    let room = own.or_else(|| TAKEN_ROOM.get().copied()).unwrap_or(0);
    if socket().is_some() { room } else { 0 }
}

/// Uses the socket of another server, and its manager's store, unless this process has its own.
pub(crate) fn take(socket: &str, room: usize) {
    // It is called once.
    let _ = TAKEN.set(socket.to_owned());
    let _ = TAKEN_ROOM.set(room);
}

/// Returns the address of the service manager's socket.
pub(crate) fn address() -> io::Result<Option<SocketAddr>> {
    let Some(name) = socket() else { return Ok(None) };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
    };
    address.map(Some)
}

/// Sends `state` to the service manager's socket, if there is one. Failures are ignored: the
/// manager has its own timeout.
pub(crate) fn notify(state: &str) {
    if let (Ok(Some(address)), Ok(socket)) = (address(), UnixDatagram::unbound()) {
        // A manager that does not receive does not delay the server for long.
        let _ = socket.set_write_timeout(Some(PATIENCE));
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
