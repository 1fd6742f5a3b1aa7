//! Reports when clients begin and cease to use an export.

use std::{fmt, sync::Arc};

use crate::{peer::Peer, stream::Stream};

/// A client begins to use an export, or no longer uses it.
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

/// A client that uses an export, until this is dropped.
pub(crate) struct Presence {
    notify: Arc<dyn Fn(ClientEvent) + Send + Sync>,
    end: ClientEvent,
}

impl Presence {
    /// Reports a client if the server asked for such reports.
    pub(crate) fn begin(notify: &WhenClient, stream: &Stream, export: Arc<str>) -> Option<Self> {
        let notify = Arc::clone(notify.0.as_ref()?);
        let end = ClientEvent { peer: stream.peer(), export, begins: false };
        notify(ClientEvent { begins: true, ..end.clone() });
        Some(Self { notify, end })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        (self.notify)(self.end.clone());
    }
}
