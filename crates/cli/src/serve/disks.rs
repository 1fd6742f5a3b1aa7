//! The disks of a server: made, changed and removed while it serves them.
//!
//! This is the one file of the program that knows what a disk is made of.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use pagefold_codec::Codec;
use pagefold_control::{Add, Batch, Code, Compacted, DiskStat, Failure, Figures};
use pagefold_disk::{BlockDevice, NewError, NewPoolError, Patient, Pool, PoolConfig, RamDisk, Room, Waits};
use pagefold_serve::{Account, Error, Export, Exports, Limits};

use super::{clients::ClientMemory, process::anonymous_bytes};

/// What one disk is compacted for before the next has its turn, and before the end of the server is noticed.
const COMPACT_STEP: Duration = Duration::from_millis(500);

/// What a disk takes besides its table: its entries in the server's lists, and its name in each of them.
const RECORD_BYTES: u64 = 256;
const NAMES: u64 = 3;

/// What all disks are made with.
pub(crate) struct Config {
    pub(crate) codec: Arc<dyn Codec>,
    /// The most memory that they and their clients may take.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) clients: Limits,
    pub(crate) when_full: WhenFull,
}

/// What becomes of a write that finds a limit reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WhenFull {
    /// It fails with ENOSPC
    Error,
    /// It waits until there is room
    Wait,
}

/// Disks by name, and their exports.
pub(crate) struct Disks {
    exports: Exports,
    pool: Pool,
    client_memory: Arc<ClientMemory>,
    /// Where writes wait, if they do.
    room: Option<Arc<Room>>,
    /// Changed together with `exports`, so that both have the same names.
    state: Mutex<State>,
    /// Held while a disk is resized, from the look at its size on.
    resizing: Mutex<()>,
    /// Held while the disks are compacted.
    compacting: Mutex<()>,
}

struct State {
    disks: BTreeMap<String, Disk>,
    limit_bytes: Option<u64>,
}

#[derive(Clone)]
struct Disk {
    ram: Arc<RamDisk>,
    limit_bytes: Option<u64>,
    read_only: bool,
    waits: Option<Arc<Waits>>,
    /// Held in memory until the disk is removed.
    _record: Arc<Counted>,
}

impl Disk {
    /// Requests that wait for room; `None` where they fail.
    fn waiting(&self) -> Option<u64> {
        self.waits.as_ref().map(|waits| waits.count() as u64)
    }
}

/// Bytes that count against the limit until this is dropped.
struct Counted {
    pool: Pool,
    bytes: u64,
}

impl Counted {
    /// What a disk of this name takes in the server's lists, if there is room for it.
    fn record(pool: &Pool, name: &str) -> Result<Arc<Self>, Failure> {
        let bytes = RECORD_BYTES + NAMES * name.len() as u64;
        if !pool.take_beside(bytes) {
            return Err(Failure::new(
                Code::NoMemory,
                "the server's memory limit leaves no room for a disk or its name",
            ));
        }
        Ok(Arc::new(Self { pool: pool.clone(), bytes }))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.pool.give_beside(self.bytes);
    }
}

/// A disk as it is at a moment.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) read_only: bool,
    pub(crate) clients: u64,
}

/// Figures of all disks together.
pub(crate) struct Total {
    pub(crate) codec: String,
    pub(crate) disks: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) figures: Figures,
}

/// Memory that is limited.
pub(crate) struct Use {
    /// The disk; without a name all of them.
    pub(crate) name: Option<String>,
    pub(crate) spent_bytes: u64,
    pub(crate) limit_bytes: u64,
}

impl Disks {
    pub(crate) fn new(config: Config) -> Result<Self, NewPoolError> {
        let Config { codec, limit_bytes, clients, when_full } = config;
        let pool =
            Pool::new(PoolConfig { codec, memory_limit: limit_bytes.unwrap_or(u64::MAX), ..PoolConfig::default() })?;
        let client_memory = Arc::new(ClientMemory::new(pool.clone(), clients, limit_bytes));
        Ok(Self {
            exports: Exports::new(),
            pool,
            client_memory,
            room: (when_full == WhenFull::Wait).then(Arc::default),
            state: Mutex::new(State { disks: BTreeMap::new(), limit_bytes }),
            resizing: Mutex::new(()),
            compacting: Mutex::new(()),
        })
    }

    /// What a server serves.
    pub(crate) fn exports(&self) -> Exports {
        self.exports.clone()
    }

    /// Where the memory of clients counts.
    pub(crate) fn client_memory(&self) -> Arc<dyn Account> {
        Arc::clone(&self.client_memory) as _
    }

    pub(crate) fn add(&self, disk: &Add) -> Result<Found, Failure> {
        let Add { name, size_bytes, limit_bytes, read_only } = disk;
        let mut state = self.lock();
        if state.disks.contains_key(name) {
            return Err(Failure::name_in_use(name));
        }
        let record = Counted::record(&self.pool, name)?;
        let ram = Arc::new(RamDisk::new(&self.pool, *size_bytes).map_err(|error| {
            let code = if matches!(error, NewError::Store(pagefold_disk::StoreError::Full)) {
                Code::NoMemory
            } else {
                Code::InvalidSize
            };
            Failure::new(code, error.to_string())
        })?);
        ram.set_limit(limit_bytes.unwrap_or(u64::MAX));
        let waits = self.room.as_ref().map(|room| Arc::new(Waits::new(room)));
        let device: Arc<dyn BlockDevice> = match &waits {
            Some(waits) => Arc::new(Patient::new(Arc::clone(&ram), Arc::clone(waits))),
            None => Arc::clone(&ram) as _,
        };
        let export = if *read_only { Export::read_only(name, device) } else { Export::new(name, device) };
        self.exports.add(export).map_err(failure)?;
        let disk = Disk { ram, limit_bytes: *limit_bytes, read_only: *read_only, waits, _record: record };
        let found = found(name, &disk, 0);
        state.disks.insert(name.clone(), disk);
        Ok(found)
    }

    pub(crate) fn remove(&self, name: &str) -> Result<Found, Failure> {
        let mut state = self.lock();
        let disk = state.disks.remove(name).ok_or_else(|| Failure::no_such_disk(name))?;
        let export = self.exports.remove(name);
        // The last reference may be this one: to free a disk takes time, in which others need not wait.
        drop(state);
        let clients = export.map_or(0, |export| export.connections() as u64);
        let found = found(name, &disk, clients);
        drop(disk);
        self.signal_room();
        Ok(found)
    }

    /// Returns the size that the disk had.
    pub(crate) fn resize(&self, name: &str, size_bytes: u64, shrink: bool) -> Result<u64, Failure> {
        let _turn = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        // The other disks are not locked: a disk that shrinks frees its pages first.
        let ram = Arc::clone(&self.lock().get(name)?.ram);
        let before_bytes = ram.size_bytes();
        if size_bytes < before_bytes && !shrink {
            let what =
                format!("disk '{name}' has {before_bytes} bytes: to lose what lies past {size_bytes}, say shrink");
            return Err(Failure::new(Code::WouldShrink, what));
        }
        ram.resize(size_bytes).map_err(|error| Failure::new(Code::InvalidSize, error.to_string()))?;
        self.signal_room();
        Ok(before_bytes)
    }

    pub(crate) fn rename(&self, name: &str, to: &str) -> Result<(), Failure> {
        let mut state = self.lock();
        state.get(name)?;
        let record = Counted::record(&self.pool, to)?;
        self.exports.rename(name, to).map_err(failure)?;
        if let Some(disk) = state.disks.remove(name) {
            state.disks.insert(to.to_owned(), Disk { _record: record, ..disk });
        }
        Ok(())
    }

    pub(crate) fn reset(&self, name: &str) -> Result<Found, Failure> {
        let disk = self.lock().get(name)?.clone();
        disk.ram.reset().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        self.signal_room();
        Ok(found(name, &disk, self.clients(name)))
    }

    /// Sets a disk's limit, or that of all together, and returns the one that there was.
    pub(crate) fn set_limit(&self, name: Option<&str>, limit_bytes: Option<u64>) -> Result<Option<u64>, Failure> {
        let mut state = self.lock();
        let bytes = limit_bytes.unwrap_or(u64::MAX);
        let limit = match name {
            Some(name) => {
                let disk = state.disks.get_mut(name).ok_or_else(|| Failure::no_such_disk(name))?;
                disk.ram.set_limit(bytes);
                &mut disk.limit_bytes
            }
            None => {
                self.pool
                    .set_memory_limit(bytes)
                    .map_err(|error| Failure::new(Code::InvalidLimit, error.to_string()))?;
                self.client_memory.set_limit(limit_bytes);
                &mut state.limit_bytes
            }
        };
        let before_bytes = std::mem::replace(limit, limit_bytes);
        self.signal_room();
        Ok(before_bytes)
    }

    /// Has requests that wait for room try again.
    fn signal_room(&self) {
        if let Some(room) = &self.room {
            room.signal();
        }
    }

    /// Disks in the order of their names.
    pub(crate) fn list(&self, batch: Batch<'_>) -> Vec<Found> {
        self.batch(batch).into_iter().map(|(name, disk)| found(&name, &disk, self.clients(&name))).collect()
    }

    /// Figures of disks in the order of their names.
    pub(crate) fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat> {
        self.batch(batch).into_iter().map(|(name, disk)| figures(name, &disk)).collect()
    }

    /// Figures of the disk `name`.
    pub(crate) fn stat(&self, name: &str) -> Result<DiskStat, Failure> {
        let disk = self.lock().get(name)?.clone();
        Ok(figures(name.to_owned(), &disk))
    }

    /// Figures of all disks together.
    pub(crate) fn total(&self) -> Total {
        let mut figures: Figures = limited(self.pool.stats().figures()).collect();
        figures.insert("client_bytes".to_owned(), self.client_memory.taken_bytes().into());
        if let Some(bytes) = anonymous_bytes() {
            figures.insert("process_bytes".to_owned(), bytes.into());
        }
        let state = self.lock();
        if self.room.is_some() {
            let waiting: u64 = state.disks.values().filter_map(Disk::waiting).sum();
            figures.insert("waiting_requests".to_owned(), waiting.into());
        }
        Total {
            codec: self.pool.codec_name(),
            disks: state.disks.len() as u64,
            limit_bytes: state.limit_bytes,
            figures,
        }
    }

    /// The memory of what has a limit: the disks that have one, and all of them together.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let state = self.lock();
        let limited = state.disks.iter().filter_map(|(name, disk)| Some((name, disk, disk.limit_bytes?)));
        let disks = limited.map(|(name, disk, limit_bytes)| Use {
            name: Some(name.clone()),
            spent_bytes: disk.ram.stats().spent_bytes,
            limit_bytes,
        });
        let all = state.limit_bytes.map(|limit_bytes| Use {
            name: None,
            spent_bytes: self.pool.stats().spent_bytes,
            limit_bytes,
        });
        disks.chain(all).collect()
    }

    /// The requests of each disk that wait for room; of no disk if none do.
    pub(crate) fn waiting(&self) -> Vec<(String, u64)> {
        if self.room.is_none() {
            return Vec::new();
        }
        let state = self.lock();
        state
            .disks
            .iter()
            .filter_map(|(name, disk)| Some((name.clone(), disk.waiting()?)))
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    /// Gives back what memory the disks' holes take, for about `time` at most and while `goes_on`.
    pub(crate) fn compact(&self, time: Duration, goes_on: &dyn Fn() -> bool) -> Result<Compacted, Failure> {
        let busy = || Failure::new(Code::Busy, "somebody else compacts the disks now: try again when that is done");
        let _turn = match self.compacting.try_lock() {
            Ok(turn) => turn,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return Err(busy()),
        };
        let start = Instant::now();
        let spent = || self.pool.stats().spent_bytes;
        let before_bytes = spent();
        let mut last_bytes = before_bytes;
        loop {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() || !goes_on() {
                return Ok(Compacted { before_bytes, after_bytes: spent(), more: true });
            }
            let more = self.pool.compact_for(left.min(COMPACT_STEP));
            let after_bytes = spent();
            // Clients may write as fast as the pool is compacted.
            if !more || after_bytes >= last_bytes {
                return Ok(Compacted { before_bytes, after_bytes, more });
            }
            last_bytes = after_bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic can leave no disk half made: each change of the maps is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disks of this moment. A disk that is removed meanwhile lives until this is dropped.
    fn batch(&self, Batch { after, most }: Batch<'_>) -> Vec<(String, Disk)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let state = self.lock();
        let disks = state.disks.range::<str, _>((start, Bound::Unbounded));
        disks.take(most).map(|(name, disk)| (name.clone(), disk.clone())).collect()
    }

    /// How many clients an export has.
    fn clients(&self, name: &str) -> u64 {
        self.exports.get(name).map_or(0, |export| export.connections() as u64)
    }
}

impl State {
    fn get(&self, name: &str) -> Result<&Disk, Failure> {
        self.disks.get(name).ok_or_else(|| Failure::no_such_disk(name))
    }
}

fn found(name: &str, disk: &Disk, clients: u64) -> Found {
    Found {
        name: name.to_owned(),
        size_bytes: disk.ram.size_bytes(),
        limit_bytes: disk.limit_bytes,
        read_only: disk.read_only,
        clients,
    }
}

fn figures(name: String, disk: &Disk) -> DiskStat {
    let waiting = disk.waiting().map(|waiting| ("waiting_requests".to_owned(), waiting.into()));
    DiskStat {
        name,
        size_bytes: disk.ram.size_bytes(),
        limit_bytes: disk.limit_bytes,
        figures: limited(disk.ram.stats().figures()).chain(waiting).collect(),
    }
}

/// The figures, but for the limit: it is a field of its own.
fn limited<const N: usize>(figures: [(&'static str, u64); N]) -> impl Iterator<Item = (String, serde_json::Value)> {
    let figures = figures.into_iter().filter(|(name, _)| *name != "mem_limit");
    figures.map(|(name, value)| (name.to_owned(), value.into()))
}

fn failure(error: Error) -> Failure {
    match error {
        Error::DuplicateExport(name) => Failure::name_in_use(&name),
        Error::UnknownExport(name) => Failure::no_such_disk(&name),
        error @ (Error::NameTooLong(_) | Error::ControlInName(_)) => Failure::new(Code::InvalidName, error.to_string()),
        error => Failure::new(Code::Failed, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU64, sync::atomic::Ordering, thread};

    use super::*;

    /// Of several that grow a disk at the same time, none makes it smaller than another has made it.
    #[test]
    fn a_disk_that_many_grow_never_shrinks() {
        let codec = crate::codec::of_pages("lz4").expect("a codec");
        let disks =
            Disks::new(Config { codec, limit_bytes: None, clients: Limits::default(), when_full: WhenFull::Error })
                .expect("a pool");
        let add = Add { name: "a".to_owned(), size_bytes: 512, limit_bytes: None, read_only: false };
        disks.add(&add).expect("a disk");
        let size_bytes = || disks.list(Batch { after: None, most: 1 })[0].size_bytes;
        let largest = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (disks, largest, now_bytes) = (&disks, &largest, &size_bytes);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let size_bytes = now_bytes() + (thread + 1) * 512;
                        match disks.resize("a", size_bytes, false) {
                            Ok(before_bytes) => {
                                assert!(before_bytes <= size_bytes, "from {before_bytes} to {size_bytes}");
                                largest.fetch_max(size_bytes, Ordering::SeqCst);
                            }
                            Err(failure) => assert_eq!(failure.code, Code::WouldShrink),
                        }
                        let least_bytes = largest.load(Ordering::SeqCst);
                        assert!(now_bytes() >= least_bytes, "it shrank");
                    }
                });
            }
        });
        assert_eq!(size_bytes(), largest.into_inner());
    }
}
