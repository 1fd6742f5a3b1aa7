//! The disks of a server: made, changed and removed while it serves them.
//!
//! This is the one file of the program that knows what a disk is made of.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use pagefold_base::{Base, Cache};
use pagefold_codec::Codec;
use pagefold_control::{Add, Batch, Code, Compacted, DiskKind, DiskStat, Failure, Figures};
use pagefold_disk::{
    BlockDevice, Error as BlockError, NewError, NewPoolError, Patient, Pool, PoolConfig, RamDisk, Room, Waits,
};
use pagefold_serve::{Account, Error, Export, Exports, Limits};

use super::{
    bases::{self, BaseFile},
    clients::ClientMemory,
    process::anonymous_bytes,
};

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
    base_cache: Cache,
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
    kind: Kind,
    limit_bytes: Option<u64>,
    read_only: bool,
    waits: Option<Arc<Waits>>,
    /// Held in memory until the disk is removed.
    _record: Arc<Counted>,
}

/// What a disk is made of.
#[derive(Clone)]
enum Kind {
    /// Compressed pages, which clients write.
    Ram(Arc<RamDisk>),
    /// A file, which is only read. It is named as users name it.
    Base(Arc<Base>, Arc<str>),
}

impl Kind {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Ram(ram) => ram.size_bytes(),
            Self::Base(base, _) => base.size_bytes(),
        }
    }

    /// What it takes in the server's lists beside its name.
    fn record_bytes(&self) -> u64 {
        match self {
            Self::Ram(_) => RECORD_BYTES,
            Self::Base(base, path) => RECORD_BYTES + base.table_bytes() + path.len() as u64,
        }
    }

    /// How clients of the control socket name it.
    fn told(&self) -> DiskKind {
        match self {
            Self::Ram(_) => DiskKind::Ram,
            Self::Base(..) => DiskKind::Base,
        }
    }

    /// The RAM disk that `name` must be for what is asked of it.
    fn ram(&self, name: &str, asked: &str) -> Result<&Arc<RamDisk>, Failure> {
        match self {
            Self::Ram(ram) => Ok(ram),
            Self::Base(..) => {
                let what = format!("disk '{name}' is a base, which is only read: it cannot {asked}");
                Err(Failure::new(Code::ReadOnly, what))
            }
        }
    }
}

impl Disk {
    /// What clients use.
    fn device(&self) -> Arc<dyn BlockDevice> {
        match (&self.kind, &self.waits) {
            (Kind::Ram(ram), Some(waits)) => Arc::new(Patient::new(Arc::clone(ram), Arc::clone(waits))),
            (Kind::Ram(ram), None) => Arc::clone(ram) as _,
            (Kind::Base(base, _), _) => Arc::clone(base) as _,
        }
    }

    /// Requests that wait for room; `None` where they fail.
    fn waiting(&self) -> Option<u64> {
        self.waits.as_ref().map(|waits| waits.count() as u64)
    }
}

/// Bytes that count against the limit until this is dropped.
pub(crate) struct Counted {
    pool: Pool,
    bytes: u64,
}

impl Counted {
    /// Bytes, if there is room for them.
    pub(crate) fn take(pool: &Pool, bytes: u64) -> Option<Self> {
        pool.take_beside(bytes).then(|| Self { pool: pool.clone(), bytes })
    }

    /// What a disk of this name takes in the server's lists, if there is room for it.
    fn record(pool: &Pool, name: &str, record_bytes: u64) -> Result<Arc<Self>, Failure> {
        let taken = Self::take(pool, record_bytes + NAMES * name.len() as u64);
        let what = "the server's memory limit leaves no room for a disk or its name";
        taken.map(Arc::new).ok_or_else(|| Failure::new(Code::NoMemory, what))
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
    pub(crate) kind: DiskKind,
    /// A base's file.
    pub(crate) path: Option<String>,
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
            base_cache: bases::cache(&pool),
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
        let record = Counted::record(&self.pool, name, RECORD_BYTES)?;
        let ram = Arc::new(RamDisk::new(&self.pool, *size_bytes).map_err(|error| {
            let code = if matches!(error, NewError::Store(pagefold_disk::StoreError::Full)) {
                Code::NoMemory
            } else {
                Code::InvalidSize
            };
            Failure::new(code, error.to_string())
        })?);
        ram.set_limit(limit_bytes.unwrap_or(u64::MAX));
        let (limit_bytes, read_only, waits) = (*limit_bytes, *read_only, self.new_waits());
        let disk = Disk { kind: Kind::Ram(ram), limit_bytes, read_only, waits, _record: record };
        self.insert(&mut state, name, disk)
    }

    /// Serves a file. `tell` gets what happens to it later. Also returns how many bytes of zeros the disk has behind what the file holds.
    pub(crate) fn add_base(
        &self,
        file: &BaseFile,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(Found, u64), Failure> {
        let name = &file.name;
        // To open a file may take long: nobody waits for it.
        if self.lock().disks.contains_key(name) {
            return Err(Failure::name_in_use(name));
        }
        let base = Arc::new(bases::open(file, &self.base_cache, tell)?);
        let padding_bytes = base.padding_bytes();
        let kind = Kind::Base(base, file.to_string().into());
        let record = Counted::record(&self.pool, name, kind.record_bytes())?;
        let mut state = self.lock();
        if state.disks.contains_key(name) {
            return Err(Failure::name_in_use(name));
        }
        let disk = Disk { kind, limit_bytes: None, read_only: true, waits: None, _record: record };
        Ok((self.insert(&mut state, name, disk)?, padding_bytes))
    }

    /// The requests of a disk that wait for room, if they are to.
    fn new_waits(&self) -> Option<Arc<Waits>> {
        self.room.as_ref().map(|room| Arc::new(Waits::new(room)))
    }

    /// Serves a disk under a name that no other has.
    fn insert(&self, state: &mut State, name: &str, disk: Disk) -> Result<Found, Failure> {
        let device = disk.device();
        let export = if disk.read_only { Export::read_only(name, device) } else { Export::new(name, device) };
        self.exports.add(export).map_err(failure)?;
        let found = found(name, &disk, 0);
        state.disks.insert(name.to_owned(), disk);
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
        let ram = Arc::clone(self.lock().get(name)?.kind.ram(name, "be resized")?);
        let before_bytes = ram.size_bytes();
        if size_bytes < before_bytes && !shrink {
            let what =
                format!("disk '{name}' has {before_bytes} bytes: to lose what lies past {size_bytes}, say shrink");
            return Err(Failure::new(Code::WouldShrink, what));
        }
        ram.resize(size_bytes).map_err(|error| {
            let code = match error {
                BlockError::NoSpace => Code::NoMemory,
                // A RAM disk does no I/O: it says so of a size that cannot be.
                BlockError::Io(_) => Code::InvalidSize,
                _ => Code::Failed,
            };
            Failure::new(code, error.to_string())
        })?;
        self.signal_room();
        Ok(before_bytes)
    }

    pub(crate) fn rename(&self, name: &str, to: &str) -> Result<(), Failure> {
        let mut state = self.lock();
        let record = Counted::record(&self.pool, to, state.get(name)?.kind.record_bytes())?;
        self.exports.rename(name, to).map_err(failure)?;
        if let Some(disk) = state.disks.remove(name) {
            state.disks.insert(to.to_owned(), Disk { _record: record, ..disk });
        }
        Ok(())
    }

    pub(crate) fn reset(&self, name: &str) -> Result<Found, Failure> {
        let disk = self.lock().get(name)?.clone();
        disk.kind.ram(name, "be reset")?.reset().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
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
                disk.kind.ram(name, "have a limit")?.set_limit(bytes);
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
        for (name, bytes) in
            [("base_cache_bytes", self.base_cache.kept_bytes()), ("base_cache_limit", self.base_cache.limit_bytes())]
        {
            figures.insert(name.to_owned(), bytes.into());
        }
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
        let disks = state.disks.iter().filter_map(|(name, disk)| match &disk.kind {
            Kind::Ram(ram) => Some(Use {
                name: Some(name.clone()),
                limit_bytes: disk.limit_bytes?,
                spent_bytes: ram.stats().spent_bytes,
            }),
            Kind::Base(..) => None,
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
    let path = match &disk.kind {
        Kind::Ram(_) => None,
        Kind::Base(_, path) => Some(path.to_string()),
    };
    Found {
        name: name.to_owned(),
        size_bytes: disk.kind.size_bytes(),
        limit_bytes: disk.limit_bytes,
        read_only: disk.read_only,
        kind: disk.kind.told(),
        path,
        clients,
    }
}

fn figures(name: String, disk: &Disk) -> DiskStat {
    let waiting = disk.waiting().map(|waiting| ("waiting_requests".to_owned(), waiting.into()));
    let figures = match &disk.kind {
        Kind::Ram(ram) => limited(ram.stats().figures()).chain(waiting).collect(),
        Kind::Base(..) => Figures::new(),
    };
    let (kind, size_bytes) = (disk.kind.told(), disk.kind.size_bytes());
    DiskStat { name, size_bytes, limit_bytes: disk.limit_bytes, kind, figures }
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

    /// A page that is cut in two takes more memory than one word over and over.
    #[test]
    fn a_resize_without_memory_is_not_a_wrong_size() {
        let codec = crate::codec::of_pages("lz4").expect("a codec");
        let disks =
            Disks::new(Config { codec, limit_bytes: None, clients: Limits::default(), when_full: WhenFull::Error })
                .expect("a pool");
        let add = Add { name: "a".to_owned(), size_bytes: 4096, limit_bytes: None, read_only: false };
        disks.add(&add).expect("a disk");
        let Kind::Ram(ram) = disks.lock().get("a").expect("a disk").kind.clone() else { panic!("a RAM disk") };
        ram.write(0, &[7; 4096]).expect("no limit");
        disks.set_limit(Some("a"), Some(1)).expect("a limit");
        let code = |size_bytes| disks.resize("a", size_bytes, true).expect_err("a failure").code;
        assert_eq!(
            (code(513), code(u64::MAX - 511), code(512)),
            (Code::InvalidSize, Code::InvalidSize, Code::NoMemory)
        );
    }

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
