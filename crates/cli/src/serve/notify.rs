//! Notifications to a service manager, using the protocol of `sd_notify(3)`.

use std::{
    env,
    ffi::OsString,
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

/// Returns the name of the service manager's socket.
pub(crate) fn socket() -> Option<OsString> {
    env::var_os("NOTIFY_SOCKET").or_else(|| TAKEN.get().map(Into::into))
}

/// Sends to the socket of another server, unless this process has its own.
pub(crate) fn take_socket(name: &str) {
    // It is called once.
    let _ = TAKEN.set(name.to_owned());
}

/// Sends `state` to the service manager's socket, if there is one. Failures are ignored: the
/// manager has its own timeout.
pub(crate) fn notify(state: &str) {
    let Some(name) = socket() else { return };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        // A manager that does not receive keeps nobody waiting for long.
        let _ = socket.set_write_timeout(Some(PATIENCE));
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
