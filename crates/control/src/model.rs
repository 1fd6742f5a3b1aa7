//! Disks without contents.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    Add, AddBase, Batch, Code, Compacted, DiskKind, DiskRecord, DiskStat, Failure, Figures, Limited, Manage, Renamed,
    Resized, ServerStat,
};

/// The plainest [`Manage`]: it keeps what disks are called and how large they are. For tests and fuzzers of what speaks the
/// protocol.
#[derive(Debug, Default)]
pub struct Model {
    state: Mutex<State>,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    disks: BTreeMap<String, DiskRecord>,
    limit_bytes: Option<u64>,
}

impl Model {
    /// No disks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it was told to stop.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn batch(&self, Batch { after, most }: Batch<'_>) -> impl Iterator<Item = &DiskRecord> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.disks.range::<str, _>((start, Bound::Unbounded)).map(|(_, disk)| disk).take(most)
    }

    fn get(&mut self, name: &str) -> Result<&mut DiskRecord, Failure> {
        self.disks.get_mut(name).ok_or_else(|| Failure::no_such_disk(name))
    }
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
        let Add { name, size_bytes, limit_bytes, read_only } = disk.clone();
        let (kind, path) = (DiskKind::Ram, None);
        self.insert(DiskRecord { name, size_bytes, limit_bytes, read_only, kind, path, clients: 0, uris: Vec::new() })
    }

    fn add_base(&self, base: &AddBase) -> Result<DiskRecord, Failure> {
        self.insert(DiskRecord {
            name: base.name.clone(),
            size_bytes: 512,
            limit_bytes: None,
            read_only: true,
            kind: DiskKind::Base,
            path: Some(base.path.clone()),
            clients: 0,
            uris: Vec::new(),
        })
    }

    fn remove(&self, name: &str) -> Result<DiskRecord, Failure> {
        self.lock().disks.remove(name).ok_or_else(|| Failure::no_such_disk(name))
    }

    fn resize(&self, name: &str, size_bytes: u64, shrink: bool) -> Result<Resized, Failure> {
        let mut state = self.lock();
        let disk = state.get(name)?;
        let before_bytes = disk.size_bytes;
        if size_bytes < before_bytes && !shrink {
            return Err(Failure::new(Code::WouldShrink, "say shrink"));
        }
        disk.size_bytes = size_bytes;
        Ok(Resized { name: name.to_owned(), before_bytes, size_bytes })
    }

    fn rename(&self, name: &str, to: &str) -> Result<Renamed, Failure> {
        let mut state = self.lock();
        state.get(name)?;
        if name != to && state.disks.contains_key(to) {
            return Err(Failure::name_in_use(to));
        }
        if let Some(disk) = state.disks.remove(name) {
            state.disks.insert(to.to_owned(), DiskRecord { name: to.to_owned(), ..disk });
        }
        Ok(Renamed { before: name.to_owned(), name: to.to_owned(), uris: Vec::new() })
    }

    fn reset(&self, name: &str) -> Result<DiskRecord, Failure> {
        self.lock().get(name).cloned()
    }

    fn limit(&self, name: Option<&str>, limit_bytes: Option<u64>) -> Result<Limited, Failure> {
        let mut state = self.lock();
        let limit = match name {
            Some(name) => &mut state.get(name)?.limit_bytes,
            None => &mut state.limit_bytes,
        };
        let before_bytes = std::mem::replace(limit, limit_bytes);
        Ok(Limited { name: name.map(str::to_owned), before_bytes, limit_bytes })
    }

    fn compact(&self, _: Duration) -> Result<Compacted, Failure> {
        Ok(Compacted { before_bytes: 0, after_bytes: 0, more: false })
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}
