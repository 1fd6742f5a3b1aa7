//! The configuration of a server.

use std::{fmt, sync::Arc};

use pagefold_codec::{Codec, Fold};
use pagefold_serve::Limits;
use pagefold_storage::Open;

use crate::Observer;

/// The configuration of a server. Start from [`Config::default`] and change fields.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Codec of the pages.
    pub codec: Arc<dyn Codec>,
    /// Whether equal pages of all disks are stored once. A client that can write to one disk can
    /// then find out by timing which pages other disks hold.
    pub dedupe: bool,
    /// Maximum memory of the disks and their clients.
    pub limit: MemoryLimit,
    /// Maximum memory for the content of bases, within the limit; `None` means a quarter of the
    /// limit.
    pub base_cache_bytes: Option<u64>,
    /// Whether the disks' memory outlives the process in its [store](crate::Sockets::store), so
    /// that another process can continue if this one is killed. Fresh memory then takes longer to
    /// fault in.
    pub keep_memory: bool,
    /// What happens to writes that would exceed this limit or a disk's own.
    pub when_full: WhenFull,
    /// Bounds on the resources of clients.
    pub clients: Limits,
    /// Whether clients will be able to use TLS. If not, a server whose clients can use it is not
    /// taken over.
    pub has_certificates: bool,
    /// Paths of the program's own files, which clients of the control socket must not replace with their
    /// outputs.
    pub files: Vec<String>,
    /// Receives a log line about each event of the server.
    pub observer: Observer,
    /// Opens the storage that bases are read from. The default opens files.
    pub open: Arc<Open>,
    /// Called before the maximum number of connections changes, for example to let the process open
    /// more files. Returns a warning.
    pub when_connections: Option<WhenConnections>,
}

/// See [`Config::when_connections`].
pub type WhenConnections = Arc<dyn Fn(usize) -> Option<String> + Send + Sync>;

/// A limit of a server's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// Half of the memory of the machine or of the control group that the process is in.
    #[default]
    Half,
    /// This number of bytes.
    Bytes(u64),
    /// None.
    None,
}

/// What happens to writes beyond a memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// They fail with ENOSPC.
    #[default]
    Error,
    /// They wait until there is room.
    Wait,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            codec: Arc::new(Fold),
            dedupe: false,
            limit: MemoryLimit::default(),
            base_cache_bytes: None,
            keep_memory: false,
            when_full: WhenFull::default(),
            clients: Limits::default(),
            has_certificates: false,
            files: Vec::new(),
            observer: Observer::default(),
            open: Arc::new(pagefold_storage::open),
            when_connections: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("codec", &self.codec.name())
            .field("dedupe", &self.dedupe)
            .field("limit", &self.limit)
            .field("base_cache_bytes", &self.base_cache_bytes)
            .field("keep_memory", &self.keep_memory)
            .field("when_full", &self.when_full)
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}
