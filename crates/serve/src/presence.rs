//! Reports of clients that begin and end to use an export.

use std::{fmt, net::SocketAddr, sync::Arc};

use crate::stream::Stream;

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A process that connected to a Unix socket.
    Process {
        /// Its process id; 0 if it is in another namespace.
        pid: i32,
        /// Its user.
        uid: u32,
    },
    /// A TCP address.
    Address(SocketAddr),
    /// A virtual machine, or its host.
    Vsock {
        /// Its context id; 2 is the host.
        cid: u32,
        /// Its port.
        port: u32,
    },
    /// The system does not say.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Self::Address(address) => address.fmt(f),
            Self::Vsock { cid, port } => write!(f, "vsock {cid}:{port}"),
            Self::Unknown => f.write_str("an unknown peer"),
        }
    }
}

/// A client begins, or has ended, to use an export.
#[derive(Clone, Debug)]
pub struct ClientEvent {
    /// The client.
    pub peer: Peer,
    /// The name under which it chose the export.
    pub export: Arc<str>,
    /// Whether it begins.
    pub begins: bool,
}

/// The callback for events of clients.
#[derive(Clone, Default)]
pub(crate) struct WhenClient(pub(crate) Option<Arc<dyn Fn(ClientEvent) + Send + Sync>>);

impl fmt::Debug for WhenClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WhenClient").field(&self.0.is_some()).finish()
    }
}

/// A client that uses an export; it has ended when this is dropped.
pub(crate) struct Presence {
    tell: Arc<dyn Fn(ClientEvent) + Send + Sync>,
    end: ClientEvent,
}

impl Presence {
    /// Reports a client, if anybody wants to know.
    pub(crate) fn begin(tell: &WhenClient, stream: &Stream, export: Arc<str>) -> Option<Self> {
        let tell = Arc::clone(tell.0.as_ref()?);
        let end = ClientEvent { peer: stream.peer(), export, begins: false };
        tell(ClientEvent { begins: true, ..end.clone() });
        Some(Self { tell, end })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        (self.tell)(self.end.clone());
    }
}
