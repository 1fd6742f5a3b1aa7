//! The sockets on which a server exports metrics.

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use pagefold_metrics::{Exporter, Listener};
use pagefold_serve::{Permissions, SocketFile, listen_with};

use crate::{Error, Level, Server, address::absolute, error::no_thread};

/// How long the process that a server continues may take to close its sockets.
const PATIENCE: Duration = Duration::from_secs(30);

/// The pause between two attempts to open sockets that are in use.
const PAUSE: Duration = Duration::from_millis(50);

/// The socket on which clients request metrics.
pub(crate) enum MetricsSocket {
    Unix(PathBuf, Permissions),
    Tcp(SocketAddr),
}

/// Sockets that are open, and not served yet.
#[derive(Default)]
pub(crate) struct OpenMetrics {
    listeners: Vec<Listener>,
    files: Vec<SocketFile>,
    /// Log lines about the sockets, for when the server listens.
    words: Vec<(Level, String)>,
}

/// Exports metrics until it is dropped.
pub(crate) struct Exporting {
    _exported: Arc<Mutex<Option<Exported>>>,
}

struct Exported {
    /// Dropped before the files, so that no thread listens any more when they are removed.
    _exporter: Option<Exporter>,
    _files: Vec<SocketFile>,
}

impl OpenMetrics {
    pub(crate) fn open(sockets: &[MetricsSocket]) -> Result<Self, Error> {
        let mut open = Self::default();
        for socket in sockets {
            match socket {
                MetricsSocket::Unix(path, permissions) => {
                    let path = absolute(path);
                    let (listener, file) = listen_with(&path, *permissions)?;
                    open.words.push((Level::Info, format!("metrics on {}", path.display())));
                    open.listeners.push(Listener::Unix(listener));
                    open.files.push(file);
                }
                &MetricsSocket::Tcp(address) => {
                    let listener = TcpListener::bind(address).map_err(|source| Error::Metrics { address, source })?;
                    let address = listener.local_addr().map_err(|source| Error::Metrics { address, source })?;
                    open.words.push((Level::Info, format!("metrics on http://{address}/metrics")));
                    if !address.ip().is_loopback() {
                        let what = "may be reached from other machines: everyone who reaches it can read the names of \
                                    all disks and how they are used";
                        open.words.push((Level::Warn, format!("http://{address}/metrics {what}")));
                    }
                    open.listeners.push(Listener::Tcp(listener));
                }
            }
        }
        Ok(open)
    }

    /// Exports the server's metrics.
    fn export(self, server: &Server) -> Result<Exported, Error> {
        let Self { listeners, files, words } = self;
        let exporter = (!listeners.is_empty()).then(|| Exporter::start(listeners, Arc::new(server.clone())));
        let exporter = exporter.transpose().map_err(no_thread)?;
        words.iter().for_each(|(level, words)| server.0.observer.log(*level, words));
        Ok(Exported { _exporter: exporter, _files: files })
    }
}

impl Exporting {
    pub(crate) fn start(server: &Server, open: OpenMetrics) -> Result<Self, Error> {
        Ok(Self { _exported: Arc::new(Mutex::new(Some(open.export(server)?))) })
    }

    /// Like `start`, with sockets that another process still has and is about to close: a thread
    /// opens them as soon as it can. If that fails, the server continues without them.
    pub(crate) fn when_free(server: &Server, sockets: Vec<MetricsSocket>) -> Self {
        let slot = Arc::new(Mutex::new(None));
        if !sockets.is_empty() {
            let observer = server.0.observer.clone();
            let (server, weak) = (server.clone(), Arc::downgrade(&slot));
            let open = move || {
                let start = Instant::now();
                while let Some(slot) = weak.upgrade() {
                    match OpenMetrics::open(&sockets).and_then(|open| open.export(&server)) {
                        Ok(exported) => {
                            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(exported);
                            return;
                        }
                        Err(error) if start.elapsed() > PATIENCE => {
                            server.0.observer.warn(&format!("metrics are not exported: {error}"));
                            return;
                        }
                        Err(_) => {}
                    }
                    drop(slot);
                    thread::sleep(PAUSE);
                }
            };
            if let Err(error) = thread::Builder::new().name("metrics-open".to_owned()).spawn(open) {
                observer.warn(&format!("metrics are not exported: cannot start a thread: {error}"));
            }
        }
        Self { _exported: slot }
    }
}

impl fmt::Debug for Exporting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporting").finish_non_exhaustive()
    }
}
