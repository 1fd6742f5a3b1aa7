//! The implementation of the control socket's commands.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::{self, Duration},
};

use pagefold_control::{
    Add, AddBase, Batch, Changes, Compacted, DiskKind, DiskRecord, DiskSocket, DiskStat, Dropped, Failure, Fork,
    FrozenRuns, Held, Instant, Limited, LimitedConnections, Manage, Quota, Renamed, Resize, Resized, ServerStat,
    Stopping,
};
use pagefold_serve::{Limits, ServerHandle, tcp_uri, unix_uri};

use super::{
    bases::BaseFile,
    descriptors,
    disks::{Disks, Found},
    ending::Ending,
    machine,
};
use crate::{log::Log, size};

/// An address on which the server listens.
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp {
        address: SocketAddr,
        /// The same, or for a wildcard an address of this machine.
        reachable: SocketAddr,
    },
}

impl Address {
    pub(crate) fn tcp(address: SocketAddr) -> Self {
        let mut reachable = address;
        if address.ip().is_unspecified() {
            reachable.set_ip(own_address(address.is_ipv6()));
        }
        Self::Tcp { address, reachable }
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        match self {
            Self::Unix(path) => unix_uri(path, export),
            Self::Tcp { reachable, .. } => tcp_uri(*reachable, export),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { address, .. } => address.fmt(f),
        }
    }
}

/// Returns the address from which this machine would send to others, or loopback. Nothing is sent.
fn own_address(ipv6: bool) -> IpAddr {
    // Documentation addresses, which are routed like any other.
    let (any, other): (IpAddr, IpAddr) = if ipv6 {
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
    } else {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into())
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((other, 9)).and(socket.local_addr()));
    let loopback = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    found.map(|found| found.ip()).ok().filter(|found| !found.is_unspecified()).unwrap_or(loopback)
}

/// A running server.
pub(crate) struct Managed {
    pub(crate) disks: Arc<Disks>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) ending: Arc<Ending>,
    pub(crate) server: ServerHandle,
    pub(crate) log: Log,
    /// When it began to listen.
    pub(crate) start: time::Instant,
}

impl Managed {
    /// Returns what is wrong with the server's new limit, and logs it.
    fn limit_warnings(&self, limit_bytes: Option<u64>) -> Vec<String> {
        let memory = limit_bytes.and_then(|bytes| machine::Memory::find()?.warning(bytes));
        let warnings: Vec<_> = memory.into_iter().chain(self.disks.client_memory().warning()).collect();
        warnings.iter().for_each(|warning| self.log.warn(warning));
        warnings
    }

    /// Returns a disk's URIs: of its own socket, and of all addresses.
    fn uris(&self, export: &str, own: Option<&Path>) -> Vec<String> {
        let own = own.map(|path| unix_uri(path, export));
        own.into_iter().chain(self.addresses.iter().map(|address| address.uri(export))).collect()
    }

    fn record(&self, found: Found) -> DiskRecord {
        let quota = self.disks.quota(&found.name);
        DiskRecord {
            max_connections: quota.connections.map(|connections| connections as u64),
            bytes_per_second: quota.bytes_per_second,
            uris: self.uris(&found.name, found.socket.as_deref()),
            socket: found.socket.map(|path| path.display().to_string()),
            name: found.name,
            size_bytes: found.size_bytes,
            limit_bytes: found.limit_bytes,
            read_only: found.read_only,
            kind: found.kind,
            path: found.path,
            from: found.from,
            age_seconds: found.age.as_secs(),
            changed_bytes: found.changed_bytes,
            own_bytes: found.own_bytes,
            snapshots: found.snapshots,
            clients: found.clients,
        }
    }

    /// Logs a disk's name and its addresses.
    pub(crate) fn tell_disk(&self, found: &Found) {
        let mut of = if found.read_only { ", read-only" } else { "" }.to_owned();
        match (&found.from, &found.path) {
            (Some(from), _) => of += &format!(", forked from '{from}'"),
            (None, Some(path)) => of += &format!(", of {path}"),
            (None, None) => {}
        }
        let what = match found.kind {
            DiskKind::Base => "base",
            DiskKind::Snapshot => "snapshot",
            _ => "disk",
        };
        for uri in self.uris(&found.name, found.socket.as_deref()) {
            self.log.info(&format!("{what} '{}', {}{of}: '{uri}'", found.name, size::show(found.size_bytes)));
        }
    }
}

impl Manage for Managed {
    fn list(&self, batch: Batch<'_>) -> Vec<DiskRecord> {
        if batch.after.is_none() {
            self.log.debug("control: list");
        }
        self.disks.list(batch).into_iter().map(|found| self.record(found)).collect()
    }

    fn server(&self) -> ServerStat {
        self.log.debug("control: stat");
        let mut total = self.disks.total();
        total.figures.insert("connections".to_owned(), self.server.connections().into());
        total.figures.insert("connections_limit".to_owned(), self.server.connections_limit().into());
        ServerStat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process::id(),
            uptime_seconds: self.start.elapsed().as_secs(),
            codec: total.codec,
            disks: total.disks,
            limit_bytes: total.limit_bytes,
            figures: total.figures,
        }
    }

    fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat> {
        self.disks.stats(batch)
    }

    fn stat(&self, name: &str) -> Result<DiskStat, Failure> {
        self.disks.stat(name)
    }

    fn add(&self, disk: &Add) -> Result<DiskRecord, Failure> {
        let found = self.disks.add(disk)?;
        self.tell_disk(&found);
        Ok(self.record(found))
    }

    fn add_base(&self, base: &AddBase) -> Result<DiskRecord, Failure> {
        let found = add_base(&self.disks, &BaseFile::try_from(base)?, base.socket.as_ref(), self.log)?;
        self.tell_disk(&found);
        Ok(self.record(found))
    }

    fn fork(&self, fork: &Fork) -> Result<Vec<DiskRecord>, Failure> {
        let found = self.disks.fork(fork)?;
        found.iter().for_each(|found| self.tell_disk(found));
        Ok(found.into_iter().map(|found| self.record(found)).collect())
    }

    fn snapshot(&self, name: &str, snapshot: &str) -> Result<DiskRecord, Failure> {
        let found = self.disks.snapshot(name, snapshot)?;
        self.tell_disk(&found);
        Ok(self.record(found))
    }

    fn rollback(&self, name: &str, snapshot: &str, force: bool) -> Result<DiskRecord, Failure> {
        let found = self.disks.rollback(name, snapshot, force)?;
        self.log.info(&format!("disk '{name}' rolled back to its snapshot '{snapshot}'"));
        Ok(self.record(found))
    }

    fn changes(&self, name: &str, offset: u64) -> Result<Changes, Failure> {
        self.log.debug("control: changes");
        self.disks.changes(name, offset)
    }

    fn drop(&self, name: &str, snapshots: bool, force: bool) -> Result<Dropped, Failure> {
        let (found, file_users) = self.disks.remove(name, snapshots, force)?;
        let with = match found.snapshots {
            0 => String::new(),
            count => format!(" with its snapshots, {count}"),
        };
        self.log.info(&format!("disk '{name}' dropped{with}"));
        Ok(Dropped { disk: self.record(found), file_users })
    }

    fn resize(&self, resize: &Resize) -> Result<Resized, Failure> {
        let before_bytes = self.disks.resize(resize)?;
        let Resize { name, size_bytes, .. } = resize;
        self.log.info(&format!("disk '{name}' has {} now", size::show(*size_bytes)));
        Ok(Resized { name: name.clone(), before_bytes, size_bytes: *size_bytes })
    }

    fn rename(&self, name: &str, to: &str) -> Result<Renamed, Failure> {
        let socket = self.disks.rename(name, to)?;
        self.log.info(&format!("disk '{name}' renamed to '{to}'"));
        Ok(Renamed { before: name.to_owned(), name: to.to_owned(), uris: self.uris(to, socket.as_deref()) })
    }

    fn reset(&self, name: &str, force: bool) -> Result<DiskRecord, Failure> {
        let found = self.disks.reset(name, force)?;
        self.log.info(&format!("disk '{name}' reset"));
        Ok(self.record(found))
    }

    fn limit(&self, name: Option<&str>, limit_bytes: Option<u64>) -> Result<Limited, Failure> {
        let (before_bytes, spent_bytes) = self.disks.set_limit(name, limit_bytes)?;
        let what = name.map_or_else(|| "the server".to_owned(), |name| format!("disk '{name}'"));
        let limit =
            limit_bytes.map_or_else(|| "no limit".to_owned(), |bytes| format!("the limit {}", size::show(bytes)));
        self.log.info(&format!("{what} has {limit} now"));
        let warnings = if name.is_none() { self.limit_warnings(limit_bytes) } else { Vec::new() };
        Ok(Limited { name: name.map(str::to_owned), before_bytes, limit_bytes, spent_bytes, warnings })
    }

    fn limit_connections(&self, connections: u64) -> Result<LimitedConnections, Failure> {
        let count = usize::try_from(connections).unwrap_or(usize::MAX);
        let descriptors = descriptors::allow(count, Limits::default());
        self.disks.client_memory().set_connections(count);
        let before = self.server.set_connections(count) as u64;
        self.log.info(&format!("the server allows {connections} connections now"));
        let warnings: Vec<_> = descriptors.into_iter().chain(self.disks.client_memory().warning()).collect();
        warnings.iter().for_each(|warning| self.log.warn(warning));
        Ok(LimitedConnections { before, connections, warnings })
    }

    fn quota(&self, quota: &Quota) -> Result<DiskRecord, Failure> {
        let Quota { name, connections, bytes_per_second } = quota.clone();
        let connections = connections.map(|connections| usize::try_from(connections).unwrap_or(usize::MAX));
        let found = self.disks.set_quota(&name, pagefold_serve::Quota { connections, bytes_per_second })?;
        let words =
            |what: &str, value: Option<String>| value.map_or_else(String::new, |value| format!(", {what} {value}"));
        let connections = words("connections", connections.map(|connections| connections.to_string()));
        let rate = words("bytes per second", bytes_per_second.map(|rate| rate.to_string()));
        self.log.info(&format!("disk '{name}' has another quota{connections}{rate}"));
        Ok(self.record(found))
    }

    fn compact(&self, time: Duration) -> Result<Compacted, Failure> {
        self.log.debug("control: compact");
        self.disks.compact(time, &|| !self.ending.has_begun())
    }

    fn freeze(&self, name: &str) -> Result<(Instant, Held), Failure> {
        let (instant, held) = self.disks.freeze(name)?;
        self.log.debug(&format!("disk '{name}' frozen as export '{}'", instant.export));
        let sockets = self.addresses.iter().filter_map(|address| match address {
            Address::Unix(path) => path.to_str().map(str::to_owned),
            Address::Tcp { .. } => None,
        });
        let addresses = self.addresses.iter().filter_map(|address| match address {
            Address::Unix(_) => None,
            Address::Tcp { address, .. } => Some(address.to_string()),
        });
        let instant = Instant { sockets: sockets.collect(), addresses: addresses.collect(), ..instant };
        Ok((instant, Box::new(held)))
    }

    fn frozen_runs(&self, export: &str, offset_bytes: u64) -> Result<FrozenRuns, Failure> {
        self.disks.frozen_runs(export, offset_bytes)
    }

    fn stop(&self, force: bool) -> Stopping {
        let why = "asked to by a client";
        if force {
            self.ending.force(why);
        } else {
            self.ending.begin(why);
        }
        Stopping { waits_for: self.disks.busy() }
    }
}

/// Serves a file, and logs later events of it.
pub(crate) fn add_base(
    disks: &Disks,
    file: &BaseFile,
    socket: Option<&DiskSocket>,
    log: Log,
) -> Result<Found, Failure> {
    let name = file.name.clone();
    let (found, padding_bytes) =
        disks.add_base(file, socket, move |line| log.warn(&format!("base '{name}': {line}")))?;
    if padding_bytes > 0 {
        let (name, size_bytes) = (&found.name, found.size_bytes - padding_bytes);
        log.warn(&format!(
            "base '{name}': its {size_bytes} bytes are not a multiple of 512: {padding_bytes} bytes of zeros follow them"
        ));
    }
    Ok(found)
}
