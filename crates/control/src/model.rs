//! An in-memory model of disks without contents.

use std::{
    collections::BTreeMap,
    ops::Bound,
    os::fd::OwnedFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    Add, AddBase, Batch, BindSpare, Changes, Code, Compacted, DeviceEnding, DeviceFault, DiskKind, DiskQuota,
    DiskRecord, DiskStat, Dropped, Failure, Figures, Fork, FrozenRuns, HandingOver, Held, Instant, Limited,
    LimitedConnections, MAX_NAME_BYTES, Manage, NewDevice, Quota, Renamed, Resize, Resized, ServerStat, SpareRecord,
    Stopping, snapshot_name,
};

/// A minimal [`Manage`] that stores only the names and sizes of disks. For tests and fuzzers of
/// programs that use the protocol.
#[derive(Debug, Default)]
pub struct Model {
    state: Mutex<ModelState>,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct ModelState {
    disks: BTreeMap<String, DiskRecord>,
    limit_bytes: Option<u64>,
    connections: u64,
    device_fault: Option<String>,
}

impl Model {
    /// Creates a model without disks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether it was asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn insert(&self, disk: DiskRecord) -> Result<DiskRecord, Failure> {
        let mut state = self.lock();
        if state.disks.contains_key(&disk.name) {
            return Err(Failure::name_in_use(&disk.name));
        }
        state.disks.insert(disk.name.clone(), disk.clone());
        Ok(disk)
    }

    fn lock(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelState {
    fn batch(&self, Batch { after, most }: Batch<'_>) -> impl Iterator<Item = &DiskRecord> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.disks.range::<str, _>((start, Bound::Unbounded)).map(|(_, disk)| disk).take(most)
    }

    fn get(&mut self, name: &str) -> Result<&mut DiskRecord, Failure> {
        self.disks.get_mut(name).ok_or_else(|| Failure::no_such_disk(name))
    }
}

fn record(name: String, size_bytes: u64) -> DiskRecord {
    DiskRecord {
        name,
        id: String::new(),
        size_bytes,
        limit_bytes: None,
        read_only: false,
        kind: DiskKind::Ram,
        path: None,
        devices: Vec::new(),
        identity: None,
        from: None,
        from_id: None,
        age_seconds: 0,
        changed_bytes: 0,
        own_bytes: 0,
        snapshots: 0,
        clients: 0,
        max_connections: None,
        bytes_per_second: None,
        socket: None,
        file: None,
        device: None,
        uris: Vec::new(),
    }
}

fn bounded(disk: DiskRecord, quota: DiskQuota) -> DiskRecord {
    DiskRecord { max_connections: quota.connections, bytes_per_second: quota.bytes_per_second, ..disk }
}

fn stat(disk: &DiskRecord) -> DiskStat {
    DiskStat {
        name: disk.name.clone(),
        size_bytes: disk.size_bytes,
        limit_bytes: disk.limit_bytes,
        kind: disk.kind,
        figures: Figures::new(),
    }
}

impl Manage for Model {
    fn list(&self, batch: Batch<'_>) -> Vec<DiskRecord> {
        self.lock().batch(batch).cloned().collect()
    }

    fn server(&self) -> ServerStat {
        let state = self.lock();
        ServerStat {
            version: String::new(),
            pid: 0,
            uptime_seconds: 0,
            codec: String::new(),
            disks: state.disks.len() as u64,
            limit_bytes: state.limit_bytes,
            files: Vec::new(),
            figures: Figures::new(),
        }
    }

    fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat> {
        self.lock().batch(batch).map(stat).collect()
    }

    fn stat(&self, name: &str) -> Result<DiskStat, Failure> {
        self.lock().get(name).map(|disk| stat(disk))
    }

    fn add(&self, disk: &Add) -> Result<DiskRecord, Failure> {
        let Add { name, size_bytes, limit_bytes, read_only, socket, quota } = disk.clone();
        let socket = socket.map(|socket| socket.path);
        self.insert(bounded(DiskRecord { limit_bytes, read_only, socket, ..record(name, size_bytes) }, quota))
    }

    fn add_base(&self, base: &AddBase) -> Result<DiskRecord, Failure> {
        let path = Some(base.path.clone());
        let record = record(base.name.clone(), 512);
        let socket = base.socket.as_ref().map(|socket| socket.path.clone());
        let devices = base.devices.clone();
        let record = DiskRecord { read_only: true, kind: DiskKind::Base, path, devices, socket, ..record };
        self.insert(bounded(record, base.quota))
    }

    fn fork(&self, fork: &Fork) -> Result<Vec<DiskRecord>, Failure> {
        let mut state = self.lock();
        let Fork { from, names, limit_bytes, read_only, socket, quota } = fork;
        let source = state.get(from)?.clone();
        if let Some(name) = names.iter().find(|name| state.disks.contains_key(*name)) {
            return Err(Failure::name_in_use(name));
        }
        let forks = names.iter().map(|name| DiskRecord {
            limit_bytes: *limit_bytes,
            read_only: *read_only,
            from: Some(from.clone()),
            path: source.path.clone(),
            socket: socket.as_ref().map(|socket| socket.path.clone()),
            ..record(name.clone(), source.size_bytes)
        });
        let forks: Vec<_> = forks.map(|fork| bounded(fork, *quota)).collect();
        state.disks.extend(forks.iter().map(|fork| (fork.name.clone(), fork.clone())));
        Ok(forks)
    }

    fn snapshot(&self, name: &str, snapshot: &str) -> Result<DiskRecord, Failure> {
        let size_bytes = self.lock().get(name)?.size_bytes;
        let record = record(snapshot_name(name, snapshot), size_bytes);
        self.insert(DiskRecord { read_only: true, kind: DiskKind::Snapshot, from: Some(name.to_owned()), ..record })
    }

    fn rollback(&self, name: &str, snapshot: &str, _: bool) -> Result<DiskRecord, Failure> {
        let mut state = self.lock();
        let size_bytes = state.get(&snapshot_name(name, snapshot))?.size_bytes;
        let disk = state.get(name)?;
        disk.size_bytes = size_bytes;
        Ok(disk.clone())
    }

    fn changes(&self, name: &str, _: u64) -> Result<Changes, Failure> {
        let DiskRecord { name, size_bytes, .. } = self.lock().get(name)?.clone();
        Ok(Changes { name, size_bytes, ranges: Vec::new(), next_offset: None })
    }

    fn drop(&self, name: &str, snapshots: bool, _: bool) -> Result<Dropped, Failure> {
        let mut state = self.lock();
        let prefix = snapshot_name(name, "");
        let is_snapshot = |other: &str| other.starts_with(&prefix);
        if !snapshots && state.disks.keys().any(|other| is_snapshot(other)) {
            return Err(Failure::new(Code::HasSnapshots, "the disk has snapshots; set snapshots to drop them too"));
        }
        let disk = state.disks.remove(name).ok_or_else(|| Failure::no_such_disk(name))?;
        state.disks.retain(|other, _| !is_snapshot(other));
        Ok(Dropped { disk, file_users: 0 })
    }

    fn resize(&self, resize: &Resize) -> Result<Resized, Failure> {
        let Resize { name, size_bytes, shrink, .. } = resize.clone();
        let mut state = self.lock();
        let disk = state.get(&name)?;
        let before_bytes = disk.size_bytes;
        if size_bytes < before_bytes && !shrink {
            return Err(Failure::new(Code::WouldShrink, "shrinking the disk loses data; set shrink to allow this"));
        }
        disk.size_bytes = size_bytes;
        Ok(Resized { name, before_bytes, size_bytes })
    }

    fn rename(&self, name: &str, to: &str) -> Result<Renamed, Failure> {
        let mut state = self.lock();
        state.get(name)?;
        if name != to && state.disks.contains_key(to) {
            return Err(Failure::name_in_use(to));
        }
        let prefix = snapshot_name(name, "");
        let renamed = |old: &str| {
            let rest = if old == name { Some("") } else { old.starts_with(&prefix).then(|| &old[name.len()..]) };
            rest.map(|rest| format!("{to}{rest}"))
        };
        if state.disks.keys().filter_map(|old| renamed(old)).any(|new| new.len() > MAX_NAME_BYTES) {
            return Err(Failure::new(Code::InvalidName, "the name of a snapshot would be too long"));
        }
        for (old, disk) in std::mem::take(&mut state.disks) {
            let name = renamed(&old).unwrap_or(old);
            state.disks.insert(name.clone(), DiskRecord { name, ..disk });
        }
        Ok(Renamed { before: name.to_owned(), name: to.to_owned(), uris: Vec::new() })
    }

    fn reset(&self, name: &str, _: bool) -> Result<DiskRecord, Failure> {
        self.lock().get(name).cloned()
    }

    fn limit(&self, name: Option<&str>, limit_bytes: Option<u64>) -> Result<Limited, Failure> {
        let mut state = self.lock();
        let limit = match name {
            Some(name) => &mut state.get(name)?.limit_bytes,
            None => &mut state.limit_bytes,
        };
        let before_bytes = std::mem::replace(limit, limit_bytes);
        Ok(Limited { name: name.map(str::to_owned), before_bytes, limit_bytes, spent_bytes: 0, warnings: Vec::new() })
    }

    fn limit_connections(&self, connections: u64) -> Result<LimitedConnections, Failure> {
        let before = std::mem::replace(&mut self.lock().connections, connections);
        Ok(LimitedConnections { before, connections, warnings: Vec::new() })
    }

    fn quota(&self, quota: &Quota) -> Result<DiskRecord, Failure> {
        let mut state = self.lock();
        let disk = state.get(&quota.name)?;
        *disk = bounded(disk.clone(), quota.of_disk());
        Ok(disk.clone())
    }

    fn compact(&self, _: Duration) -> Result<Compacted, Failure> {
        Ok(Compacted { before_bytes: 0, after_bytes: 0, more: false })
    }

    fn freeze(&self, name: &str) -> Result<(Instant, Held), Failure> {
        let size_bytes = self.lock().get(name)?.size_bytes;
        let (name, export) = (name.to_owned(), format!("@{name}"));
        Ok((Instant { name, export, size_bytes, sockets: Vec::new(), addresses: Vec::new(), base: None }, Box::new(())))
    }

    fn frozen_runs(&self, export: &str, _: u64) -> Result<FrozenRuns, Failure> {
        self.lock().get(export.trim_start_matches('@'))?;
        Ok(FrozenRuns { runs: Vec::new(), next_bytes: None })
    }

    fn serve_device(&self, device: &NewDevice, _: OwnedFd) -> Result<DiskRecord, Failure> {
        Ok(DiskRecord {
            device: Some(format!("/dev/ublkb{}", device.number)),
            ..self.lock().get(&device.name)?.clone()
        })
    }

    fn device_fault(&self, why: Option<String>) -> DeviceFault {
        let mut state = self.lock();
        state.device_fault = why.or_else(|| state.device_fault.take());
        DeviceFault { why: state.device_fault.clone() }
    }

    fn end_device(&self, device: &str, _: Option<u32>) -> DeviceEnding {
        DeviceEnding { served: device == "/dev/ublkb7" }
    }

    fn spare(&self, _: u64) -> Result<SpareRecord, Failure> {
        Ok(SpareRecord { export: "spare".to_owned() })
    }

    fn bind_spare(&self, bind: &BindSpare) -> Result<DiskRecord, Failure> {
        Ok(DiskRecord { device: Some(bind.device.clone()), ..self.lock().get(&bind.name)?.clone() })
    }

    fn take_over(&self, _: OwnedFd, _: bool) -> Result<HandingOver, Failure> {
        Ok(HandingOver { pid: std::process::id() })
    }

    fn stop(&self, _: bool) -> Stopping {
        self.stopped.store(true, Ordering::SeqCst);
        Stopping::default()
    }
}
