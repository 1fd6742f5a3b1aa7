//! A disk in a server's lists: its kind, its origin, and what users have set.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use pagefold_control::{DiskKind, DiskQuota, DiskStat, Figures};
use pagefold_disk::{BlockDevice, DiskStats, Figure, Waits};
use pagefold_executor::{AllDone, Done, Operation};

use crate::{
    backing::{Backing, BaseDisk},
    counted::Counted,
    socket::{self, ServedSocket},
};

/// Bytes that a disk needs in addition to its table and its name: its entries in the server's lists.
pub(crate) const RECORD_BYTES: u64 = 432;

/// Additional bytes for a fork's origin, without the origin's name.
const ORIGIN_BYTES: u64 = 112;

/// Returns the memory of a server's lists for a fork of `from`, apart from the fork's table.
pub fn fork_record_bytes(name: &str, from: &str) -> u64 {
    Counted::with_names(name, RECORD_BYTES + Origin::record_bytes(from))
}

/// A disk in a server's lists.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) backing: Backing,
    pub(crate) origin: Option<Arc<Origin>>,
    pub(crate) made: Instant,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) read_only: bool,
    pub(crate) waits: Option<Arc<Waits>>,
    /// A socket on which only this disk is served.
    pub(crate) socket: Option<Arc<ServedSocket>>,
    /// Counts the memory of the entry until the disk is removed.
    pub(crate) _record: Arc<Counted>,
}

/// The origin of a fork.
pub(crate) struct Origin {
    /// Name of the forked disk at the time of the fork.
    pub(crate) name: String,
    /// The number of its export.
    pub(crate) number: Option<u64>,
    /// The base below.
    pub(crate) base: Option<Arc<BaseDisk>>,
}

impl Origin {
    /// Returns the bytes that an origin needs if the forked disk has this name.
    pub(crate) fn record_bytes(name: &str) -> u64 {
        ORIGIN_BYTES + name.len() as u64
    }
}

/// The state of a disk at one moment.
pub(crate) struct FoundDisk {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) read_only: bool,
    pub(crate) kind: DiskKind,
    /// The file of the base: of this disk, or of the base below it.
    pub(crate) path: Option<String>,
    /// That file's devices.
    pub(crate) devices: Vec<String>,
    /// What identifies both, as they were opened.
    pub(crate) identity: Option<String>,
    pub(crate) from: Option<String>,
    /// The number of that disk's export.
    pub(crate) from_number: Option<u64>,
    pub(crate) age: Duration,
    /// Bytes of the disk's own pages; the next field is the memory that they use.
    pub(crate) changed_bytes: u64,
    pub(crate) own_bytes: u64,
    pub(crate) snapshots: u64,
    pub(crate) exported: Exported,
    /// Its own socket.
    pub(crate) socket: Option<PathBuf>,
}

/// The figures of a disk at one moment, for metrics.
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) kind: DiskKind,
    pub(crate) size_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
    /// `None` for a base.
    pub(crate) stats: Option<DiskStats>,
    pub(crate) clients: u64,
    /// Requests that wait for room.
    pub(crate) waiting: u64,
    pub(crate) done: AllDone,
}

/// A disk's export at one moment.
#[derive(Clone, Default)]
pub(crate) struct Exported {
    /// Identifies the disk among the disks of all servers, independently of its name.
    pub(crate) id: String,
    pub(crate) clients: u64,
    pub(crate) quota: DiskQuota,
}

impl Disk {
    /// Creates a read-only entry that was made now, without an origin.
    pub(crate) fn read_only(backing: Backing, record: Arc<Counted>) -> Self {
        Self {
            backing,
            origin: None,
            made: Instant::now(),
            limit_bytes: None,
            read_only: true,
            waits: None,
            socket: None,
            _record: record,
        }
    }

    /// Returns the device that clients use.
    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        self.backing.device(self.waits.as_ref())
    }

    /// Returns this disk's base: itself, or the base below it.
    pub(crate) fn base(&self) -> Option<&Arc<BaseDisk>> {
        self.backing.as_base().or_else(|| self.origin.as_ref()?.base.as_ref())
    }

    /// Returns the bytes that the disk needs in the server's lists in addition to its name.
    pub(crate) fn record_bytes(&self) -> u64 {
        let origin_bytes = self.origin.as_ref().map_or(0, |origin| Origin::record_bytes(&origin.name));
        RECORD_BYTES + origin_bytes + socket::record_bytes(self.socket.as_ref().map(|socket| &*socket.path))
    }

    /// Returns whether it is stacked on this base.
    pub(crate) fn is_over(&self, base: &Arc<BaseDisk>) -> bool {
        self.origin.is_some() && self.base().is_some_and(|found| Arc::ptr_eq(found, base))
    }

    /// Returns the number of requests that wait for room; `None` if they fail instead.
    pub(crate) fn waiting(&self) -> Option<u64> {
        self.waits.as_ref().map(|waits| waits.count() as u64)
    }

    /// Describes the disk under this name.
    pub(crate) fn found(&self, name: &str, exported: Exported, snapshots: u64) -> FoundDisk {
        let stats = self.backing.stats().unwrap_or_default();
        FoundDisk {
            name: name.to_owned(),
            size_bytes: self.backing.size_bytes(),
            limit_bytes: self.limit_bytes,
            read_only: self.read_only,
            kind: self.backing.kind(),
            path: self.base().and_then(|base| base.path()).map(str::to_owned),
            devices: self.base().map_or_else(Vec::new, |base| base.devices()),
            identity: self.base().and_then(|base| base.identity()).map(str::to_owned),
            from: self.origin.as_ref().map(|origin| origin.name.clone()),
            from_number: self.origin.as_ref().and_then(|origin| origin.number),
            age: self.made.elapsed(),
            changed_bytes: stats.orig_data_size,
            own_bytes: stats.spent_bytes,
            snapshots,
            exported,
            socket: self.socket.as_ref().map(|socket| socket.path.clone()),
        }
    }

    /// Returns the figures of the disk under this name for metrics.
    pub(crate) fn measured(&self, name: String, clients: u64, done: AllDone) -> Measured {
        Measured {
            name,
            kind: self.backing.kind(),
            size_bytes: self.backing.size_bytes(),
            limit_bytes: self.limit_bytes,
            stats: self.backing.stats(),
            clients,
            waiting: self.waiting().unwrap_or(0),
            done,
        }
    }

    /// Returns the figures of the disk under this name; `done` is what its clients have done.
    pub(crate) fn stat(&self, name: String, done: &AllDone) -> DiskStat {
        let waiting = self.waiting().map(|waiting| ("waiting_requests".to_owned(), waiting.into()));
        let stats = self.backing.stats();
        let mut figures = stats.map_or_else(Figures::new, |stats| limited(stats.figures()).chain(waiting).collect());
        figures.extend(done_figures(done));
        let (kind, size_bytes) = (self.backing.kind(), self.backing.size_bytes());
        DiskStat { name, size_bytes, limit_bytes: self.limit_bytes, kind, figures }
    }
}

/// Returns the counts of clients' requests as figures, without those that are 0.
pub(crate) fn done_figures(done: &AllDone) -> impl Iterator<Item = (String, serde_json::Value)> {
    let figures = Operation::ALL.map(|operation| {
        let Done { requests, errors, bytes, timed, timed_ns } = done.of(operation);
        let figures =
            [("requests", requests), ("errors", errors), ("bytes", bytes), ("timed", timed), ("timed_ns", timed_ns)];
        figures.map(|(figure, value)| (operation, figure, value))
    });
    let figures = figures.into_iter().flatten().filter(|(_, _, value)| *value > 0);
    figures.map(|(operation, figure, value)| (format!("{}_{figure}", operation.name()), value.into()))
}

/// Converts the figures without the limit, which has its own field.
pub(crate) fn limited(figures: impl Iterator<Item = Figure>) -> impl Iterator<Item = (String, serde_json::Value)> {
    let figures = figures.filter(|figure| figure.name != "mem_limit");
    figures.map(|figure| (figure.name.to_owned(), figure.value.into()))
}
