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
    sync::{Arc, OnceLock},
    time::Duration,
};

/// How long a manager may take to receive.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager of a server, if it has one. All clones are the same.
#[derive(Clone, Default)]
pub(super) struct Manager(Arc<ManagerState>);

#[derive(Default)]
struct ManagerState {
    /// The name of its socket.
    socket: OnceLock<OsString>,
    /// How many descriptors it stores for the service.
    room: OnceLock<usize>,
}

impl Manager {
    /// Returns the manager that has started this process.
    pub(super) fn of_environment() -> Self {
        let manager = Self::default();
        // Nothing is set yet.
        env::var_os("NOTIFY_SOCKET").into_iter().for_each(|socket| _ = manager.0.socket.set(socket));
        // systemd says so from version 254 on; the package's unit does for earlier ones.
        let room = env::var("FDSTORE").ok().and_then(|room| room.parse().ok());
        room.into_iter().for_each(|room| _ = manager.0.room.set(room));
        manager
    }

    /// Uses the socket of another server, and its manager's store, unless this process has its own.
    pub(super) fn take(&self, socket: &str, room: usize) {
        let _ = self.0.socket.set(socket.into());
        let _ = self.0.room.set(room);
    }

    /// Returns the name of its socket.
    pub(super) fn socket(&self) -> Option<&OsStr> {
        self.0.socket.get().map(|socket| &**socket)
    }

    /// Returns how many descriptors it stores for this service; 0 if it stores none, or does not say so.
    pub(super) fn store_room(&self) -> usize {
        self.0.room.get().copied().filter(|_| self.socket().is_some()).unwrap_or(0)
    }

    /// Returns the address of its socket.
    pub(super) fn address(&self) -> io::Result<Option<SocketAddr>> {
        let Some(name) = self.socket() else { return Ok(None) };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
        };
        address.map(Some)
    }

    /// Sends `state` to it. Failures are ignored: it has its own timeout.
    pub(super) fn notify(&self, state: &str) {
        if let (Ok(Some(address)), Ok(socket)) = (self.address(), UnixDatagram::unbound()) {
            // A manager that does not receive does not delay the server for long.
            let _ = socket.set_write_timeout(Some(PATIENCE));
            let _ = socket.send_to_addr(state.as_bytes(), &address);
        }
    }
}
