//! The disks of a server, created, changed and removed while it serves them.
//!
//! Only this file knows how a disk is implemented.

use std::{
    collections::BTreeMap,
    ops::Bound,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use pagefold_base::{Base, Cache};
use pagefold_codec::Codec;
use pagefold_control::{
    Add, Batch, Code, DiskKind, DiskSocket, DiskStat, Failure, Figures, MAX_NAME_BYTES, Resize, snapshot_name,
    split_snapshot_name,
};
use pagefold_disk::{
    BlockDevice, DiskStats, Error as BlockError, Figure, NewDiskError, NewPoolError, Patient, Pool, PoolConfig,
    RamDisk, Room, Waits,
};
use pagefold_serve::{Export, ExportError, Exports, Limits, ServerHandle};

use super::{
    bases::{self, BaseFile},
    clients::ClientMemory,
    forks::not_made,
    instants::Instants,
    process::anonymous_bytes,
    sockets::{self, ServedSocket},
};
use crate::size;

/// Bytes that a disk needs in addition to its table: its entries in the server's lists. Its name is
/// stored `NAMES` times on top.
pub(super) const RECORD_BYTES: u64 = 384;
const NAMES: u64 = 3;

/// Additional bytes for a fork's origin, without the origin's name.
const ORIGIN_BYTES: u64 = 96;

/// Configuration shared by all disks.
pub(crate) struct DisksConfig {
    pub(crate) codec: Arc<dyn Codec>,
    /// Whether equal pages are stored once.
    pub(crate) dedupe: bool,
    /// Maximum memory of the disks and their clients.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) clients: Limits,
    pub(crate) when_full: WhenFull,
}

/// What happens to writes beyond a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WhenFull {
    /// They fail with ENOSPC
    Error,
    /// They wait until there is room
    Wait,
}

/// Disks by name, and their exports.
pub(crate) struct Disks {
    exports: Exports,
    pub(super) pool: Pool,
    client_memory: Arc<ClientMemory>,
    base_cache: Cache,
    /// Where writes wait, if they wait.
    room: Option<Arc<Room>>,
    pub(super) instants: Arc<Instants>,
    /// Changed together with `exports`, so that both have the same names.
    state: Mutex<DisksState>,
    /// Set once the server listens.
    pub(super) server: OnceLock<ServerHandle>,
    /// Held while a disk is resized, starting before its size is read.
    resizing: Mutex<()>,
    /// Held while the disks are compacted.
    pub(super) compacting: Mutex<()>,
}

/// The names of a disk's snapshots begin with its own name. Snapshots exist as long as the disk.
pub(super) struct DisksState {
    disks: BTreeMap<String, Disk>,
    limit_bytes: Option<u64>,
}

#[derive(Clone)]
pub(super) struct Disk {
    pub(super) kind: DiskBacking,
    pub(super) origin: Option<Arc<Origin>>,
    pub(super) made: Instant,
    pub(super) limit_bytes: Option<u64>,
    pub(super) read_only: bool,
    pub(super) waits: Option<Arc<Waits>>,
    /// A socket on which only this disk is served.
    pub(super) socket: Option<Arc<ServedSocket>>,
    /// Counts the memory of the entry until the disk is removed.
    pub(super) _record: Arc<Counted>,
}

/// The implementation of a disk.
#[derive(Clone)]
pub(super) enum DiskBacking {
    /// Compressed pages that clients write.
    Ram(Arc<RamDisk>),
    /// The content of a RAM disk at one instant.
    Snapshot(Arc<RamDisk>),
    /// A read-only file.
    Base(Arc<BaseDisk>),
}

/// A base that is served or that disks are stacked on.
pub(super) struct BaseDisk {
    pub(super) base: Arc<Base>,
    /// A disk on top of the base that never changes. Forks of the base are forked from it and share
    /// what is known about the base's pages.
    pub(super) pristine: RamDisk,
    /// The file, as users name it.
    path: String,
    _record: Arc<Counted>,
}

/// The origin of a fork.
pub(super) struct Origin {
    /// Name of the forked disk at the time of the fork.
    pub(super) name: String,
    /// The base below.
    pub(super) base: Option<Arc<BaseDisk>>,
}

impl Origin {
    /// Returns the bytes that an origin needs if the forked disk has this name.
    pub(super) fn record_bytes(name: &str) -> u64 {
        ORIGIN_BYTES + name.len() as u64
    }
}

impl DiskBacking {
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Ram(ram) | Self::Snapshot(ram) => ram.size_bytes(),
            Self::Base(file) => file.base.size_bytes(),
        }
    }

    /// Returns the kind that clients of the control socket see.
    fn told(&self) -> DiskKind {
        match self {
            Self::Ram(_) => DiskKind::Ram,
            Self::Snapshot(_) => DiskKind::Snapshot,
            Self::Base(_) => DiskKind::Base,
        }
    }

    /// Returns the RAM disk. Fails if `name` is of another kind, for which the operation `asked` is
    /// not possible.
    pub(super) fn ram(&self, name: &str, asked: &str) -> Result<&Arc<RamDisk>, Failure> {
        let kind = match self {
            Self::Ram(ram) => return Ok(ram),
            Self::Snapshot(_) => "snapshot",
            Self::Base(_) => "base",
        };
        let what = format!("disk '{name}' is a {kind} and read-only: it cannot {asked}");
        Err(Failure::new(Code::ReadOnly, what))
    }
}

impl Disk {
    /// Returns the device that clients use.
    fn device(&self) -> Arc<dyn BlockDevice> {
        match (&self.kind, &self.waits) {
            (DiskBacking::Ram(ram), Some(waits)) => Arc::new(Patient::new(Arc::clone(ram), Arc::clone(waits))),
            (DiskBacking::Ram(ram) | DiskBacking::Snapshot(ram), _) => Arc::clone(ram) as _,
            (DiskBacking::Base(file), _) => Arc::clone(&file.base) as _,
        }
    }

    /// Returns the base that it is, or that is below it.
    pub(super) fn base(&self) -> Option<&Arc<BaseDisk>> {
        match &self.kind {
            DiskBacking::Base(file) => Some(file),
            DiskBacking::Ram(_) | DiskBacking::Snapshot(_) => self.origin.as_ref()?.base.as_ref(),
        }
    }

    /// Returns the bytes that it needs in the server's lists in addition to its name.
    fn record_bytes(&self) -> u64 {
        let origin_bytes = self.origin.as_ref().map_or(0, |origin| Origin::record_bytes(&origin.name));
        RECORD_BYTES + origin_bytes + sockets::record_bytes(self.socket.as_ref().map(|socket| &*socket.path))
    }

    /// Returns whether it is stacked on this base.
    fn is_over(&self, file: &Arc<BaseDisk>) -> bool {
        self.origin.is_some() && self.base().is_some_and(|base| Arc::ptr_eq(base, file))
    }

    /// Returns the number of requests that wait for room; `None` if they fail instead.
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
    /// Reserves bytes if there is room for them.
    pub(crate) fn take(pool: &Pool, bytes: u64) -> Option<Self> {
        pool.take_beside(bytes).then(|| Self { pool: pool.clone(), bytes })
    }

    /// Reserves the memory of a disk with this name in the server's lists, if there is room.
    pub(super) fn record(pool: &Pool, name: &str, record_bytes: u64) -> Result<Arc<Self>, Failure> {
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

/// The state of a disk at one moment.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) read_only: bool,
    pub(crate) kind: DiskKind,
    /// The file of the base that it is, or that is below it.
    pub(crate) path: Option<String>,
    pub(crate) from: Option<String>,
    pub(crate) age: Duration,
    /// Bytes of the pages that it has written itself; below, the memory that they use.
    pub(crate) changed_bytes: u64,
    pub(crate) own_bytes: u64,
    pub(crate) snapshots: u64,
    pub(crate) clients: u64,
    /// Its own socket.
    pub(crate) socket: Option<PathBuf>,
}

/// Figures of all disks together.
pub(crate) struct Total {
    pub(crate) codec: String,
    pub(crate) disks: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) figures: Figures,
}

/// Memory use that has a limit.
pub(crate) struct Use {
    /// Name of the disk; `None` for all disks together.
    pub(crate) name: Option<String>,
    pub(crate) spent_bytes: u64,
    pub(crate) limit_bytes: u64,
}

impl Disks {
    pub(crate) fn new(config: DisksConfig) -> Result<Self, NewPoolError> {
        let DisksConfig { codec, dedupe, limit_bytes, clients, when_full } = config;
        let pool =
            Pool::new(PoolConfig::default().codec(codec).dedupe(dedupe).memory_limit(limit_bytes.unwrap_or(u64::MAX)))?;
        let client_memory = Arc::new(ClientMemory::new(pool.clone(), clients, limit_bytes));
        let exports = Exports::new();
        Ok(Self {
            instants: Arc::new(Instants::new(exports.clone())),
            exports,
            base_cache: bases::cache(&pool),
            pool,
            client_memory,
            room: (when_full == WhenFull::Wait).then(Arc::default),
            state: Mutex::new(DisksState { disks: BTreeMap::new(), limit_bytes }),
            server: OnceLock::new(),
            resizing: Mutex::new(()),
            compacting: Mutex::new(()),
        })
    }

    /// To be called once the server listens; disks can then have sockets of their own.
    pub(crate) fn set_server(&self, server: ServerHandle) {
        // It is called once.
        let _ = self.server.set(server);
    }

    /// Returns the exports that a server serves.
    pub(crate) fn exports(&self) -> Exports {
        self.exports.clone()
    }

    /// Returns the account of the clients' memory.
    pub(crate) fn client_memory(&self) -> &Arc<ClientMemory> {
        &self.client_memory
    }

    pub(crate) fn add(&self, disk: &Add) -> Result<Found, Failure> {
        let Add { name, size_bytes, limit_bytes, read_only, socket } = disk;
        let mut state = self.lock();
        if state.disks.contains_key(name) {
            return Err(Failure::name_in_use(name));
        }
        let record = Counted::record(&self.pool, name, RECORD_BYTES + socket_bytes(socket.as_ref()))?;
        let ram = Arc::new(RamDisk::new(&self.pool, *size_bytes).map_err(|error| {
            let code = if matches!(error, NewDiskError::Store(pagefold_disk::StoreError::Full)) {
                Code::NoMemory
            } else {
                Code::InvalidSize
            };
            Failure::new(code, error.to_string())
        })?);
        ram.set_limit(limit_bytes.unwrap_or(u64::MAX));
        let (limit_bytes, read_only, waits) = (*limit_bytes, *read_only, self.new_waits());
        let (kind, made) = (DiskBacking::Ram(ram), Instant::now());
        let disk = Disk { kind, origin: None, made, limit_bytes, read_only, waits, socket: None, _record: record };
        self.insert(&mut state, name, disk, socket.as_ref())
    }

    /// Serves a file. `tell` receives its later events. Also returns the number of zeros with which
    /// the disk is padded beyond the file's content.
    pub(crate) fn add_base(
        &self,
        file: &BaseFile,
        socket: Option<&DiskSocket>,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(Found, u64), Failure> {
        let name = &file.name;
        // Opening a file may take long, so no lock is held.
        if self.lock().disks.contains_key(name) {
            return Err(Failure::name_in_use(name));
        }
        let base = Arc::new(bases::open(file, &self.base_cache, tell)?);
        let padding_bytes = base.padding_bytes();
        let pristine = RamDisk::over(&self.pool, Arc::clone(&base) as _).map_err(not_made)?;
        let path = file.to_string();
        // Forks of the base keep it longer than the server's lists do.
        let held = Counted::record(&self.pool, "", base.table_bytes() + path.len() as u64)?;
        let record = Counted::record(&self.pool, name, RECORD_BYTES + socket_bytes(socket))?;
        let mut state = self.lock();
        if state.disks.contains_key(name) {
            return Err(Failure::name_in_use(name));
        }
        let kind = DiskBacking::Base(Arc::new(BaseDisk { base, pristine, path, _record: held }));
        let disk = Disk {
            kind,
            origin: None,
            made: Instant::now(),
            limit_bytes: None,
            read_only: true,
            waits: None,
            socket: None,
            _record: record,
        };
        Ok((self.insert(&mut state, name, disk, socket)?, padding_bytes))
    }

    /// Returns a new [`Waits`] for a disk, if its requests are to wait for room.
    pub(super) fn new_waits(&self) -> Option<Arc<Waits>> {
        self.room.as_ref().map(|room| Arc::new(Waits::new(room)))
    }

    /// Serves a disk under a name that no other disk has.
    pub(super) fn insert(
        &self,
        state: &mut DisksState,
        name: &str,
        mut disk: Disk,
        socket: Option<&DiskSocket>,
    ) -> Result<Found, Failure> {
        let device = disk.device();
        let export = if disk.read_only { Export::read_only(name, device) } else { Export::new(name, device) };
        self.exports.add(export).map_err(failure)?;
        if let (Some(socket), Some(export)) = (socket, self.exports.get(name)) {
            let opened = self.open_socket(&export, socket);
            disk.socket = Some(Arc::new(opened.inspect_err(|_| drop(self.exports.remove(name)))?));
        }
        let found = found(name, &disk, 0, 0);
        state.disks.insert(name.to_owned(), disk);
        Ok(found)
    }

    /// Removes a disk. Also returns how many disks still use the dropped base.
    pub(crate) fn remove(&self, name: &str, with_snapshots: bool, force: bool) -> Result<(Found, u64), Failure> {
        let snapshots = self.lock().names_of_snapshots(name)?;
        if with_snapshots || snapshots.is_empty() {
            snapshots.iter().chain([&name.to_owned()]).try_for_each(|name| self.check_unused(name, force))?;
        }
        let mut state = self.lock();
        let snapshots = state.names_of_snapshots(name)?;
        if !snapshots.is_empty() && !with_snapshots {
            let count = if let [_] = snapshots[..] { "1 snapshot" } else { &format!("{} snapshots", snapshots.len()) };
            let what = format!(
                "disk '{name}' has {count}, such as '{}': drop them first, or together with the disk (--snapshots)",
                snapshots[0]
            );
            return Err(Failure::new(Code::HasSnapshots, what));
        }
        let (removed, clients) = state.remove(name, &self.exports)?;
        let mut gone = vec![removed];
        for snapshot in &snapshots {
            gone.push(state.remove(snapshot, &self.exports)?.0);
        }
        let disk = &gone[0];
        let over = match &disk.kind {
            DiskBacking::Base(file) => state.disks.values().filter(|other| other.is_over(file)).count() as u64,
            DiskBacking::Ram(_) | DiskBacking::Snapshot(_) => 0,
        };
        // This may be the last reference. Freeing a disk takes time, so the lock is released first.
        drop(state);
        let found = found(name, disk, clients, snapshots.len() as u64);
        drop(gone);
        self.signal_room();
        Ok((found, over))
    }

    /// Resizes a disk and returns its previous size.
    pub(crate) fn resize(&self, resize: &Resize) -> Result<u64, Failure> {
        let Resize { name, size_bytes, shrink, force } = resize;
        let size_bytes = *size_bytes;
        // The other disks are not locked: a shrinking disk first frees its pages.
        let ram = Arc::clone(self.lock().get(name)?.kind.ram(name, "be resized")?);
        if *shrink && size_bytes < ram.size_bytes() {
            self.check_unused(name, *force)?;
        }
        let _turn = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let before_bytes = ram.size_bytes();
        if size_bytes < before_bytes && !shrink {
            let what = format!(
                "disk '{name}' has {}: shrinking it loses the data past {}; set shrink (--shrink) to allow this",
                size::show(before_bytes),
                size::show(size_bytes)
            );
            return Err(Failure::new(Code::WouldShrink, what));
        }
        ram.resize(size_bytes).map_err(|error| {
            let code = match error {
                BlockError::NoSpace => Code::NoMemory,
                // A RAM disk does no I/O; it reports an impossible size this way.
                BlockError::Io(_) => Code::InvalidSize,
                _ => Code::Failed,
            };
            Failure::new(code, error.to_string())
        })?;
        self.signal_room();
        Ok(before_bytes)
    }

    /// Renames a disk and its snapshots. Returns the disk's own socket, which it keeps.
    pub(crate) fn rename(&self, name: &str, to: &str) -> Result<Option<PathBuf>, Failure> {
        let mut state = self.lock();
        let disk = (name.to_owned(), to.to_owned(), state.get(name)?.record_bytes());
        // Without a disk there are no snapshots of it: if the disk's new name is free, so are those
        // of its snapshots.
        let snapshots = state.snapshots(name).map(|(old, snapshot)| {
            let new = format!("{to}{}", &old[name.len()..]);
            (old.clone(), new, snapshot.record_bytes())
        });
        let all: Vec<_> = std::iter::once(disk).chain(snapshots).collect();
        if let Some((_, new, _)) = all.iter().find(|(_, new, _)| new.len() > MAX_NAME_BYTES) {
            let what = format!("a snapshot would get a name of {} bytes: NBD allows {MAX_NAME_BYTES}", new.len());
            return Err(Failure::new(Code::InvalidName, what));
        }
        let records = all.iter().map(|(_, new, bytes)| Counted::record(&self.pool, new, *bytes));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        // Only the first can fail.
        for ((old, new, _), record) in all.into_iter().zip(records) {
            self.exports.rename(&old, &new).map_err(failure)?;
            if let Some(disk) = state.disks.remove(&old) {
                state.disks.insert(new, Disk { _record: record, ..disk });
            }
        }
        Ok(state.get(to)?.socket.as_ref().map(|socket| socket.path.clone()))
    }

    pub(crate) fn reset(&self, name: &str, force: bool) -> Result<Found, Failure> {
        let disk = self.lock().get(name)?.clone();
        let ram = disk.kind.ram(name, "be reset")?;
        self.check_unused(name, force)?;
        ram.reset().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        self.signal_room();
        Ok(found(name, &disk, self.clients(name), self.lock().snapshots(name).count() as u64))
    }

    /// Sets the limit of a disk or of all disks together; returns the previous one, and the memory
    /// that counts against the limit.
    pub(crate) fn set_limit(
        &self,
        name: Option<&str>,
        limit_bytes: Option<u64>,
    ) -> Result<(Option<u64>, u64), Failure> {
        let mut state = self.lock();
        let bytes = limit_bytes.unwrap_or(u64::MAX);
        let (limit, spent_bytes) = match name {
            Some(name) => {
                state.get(name)?;
                let disk = state.disks.get_mut(name).ok_or_else(|| Failure::no_such_disk(name))?;
                let ram = disk.kind.ram(name, "have a limit")?;
                ram.set_limit(bytes);
                let spent_bytes = ram.stats().spent_bytes;
                (&mut disk.limit_bytes, spent_bytes)
            }
            None => {
                self.pool
                    .set_memory_limit(bytes)
                    .map_err(|error| Failure::new(Code::InvalidLimit, error.to_string()))?;
                self.client_memory.set_limit(limit_bytes);
                (&mut state.limit_bytes, self.pool.stats().spent_bytes)
            }
        };
        let before_bytes = std::mem::replace(limit, limit_bytes);
        self.signal_room();
        Ok((before_bytes, spent_bytes))
    }

    /// Makes requests that wait for room retry.
    pub(super) fn signal_room(&self) {
        if let Some(room) = &self.room {
            room.signal();
        }
    }

    /// Returns a batch of disks in the order of their names.
    pub(crate) fn list(&self, batch: Batch<'_>) -> Vec<Found> {
        let disks = self.batch(batch).into_iter();
        disks.map(|(name, disk, snapshots)| found(&name, &disk, self.clients(&name), snapshots)).collect()
    }

    /// Returns the disk `name`.
    pub(super) fn find(&self, name: &str) -> Result<Found, Failure> {
        let state = self.lock();
        let (disk, snapshots) = (state.get(name)?.clone(), state.snapshots(name).count() as u64);
        drop(state);
        Ok(found(name, &disk, self.clients(name), snapshots))
    }

    /// Returns the figures of a batch of disks in the order of their names.
    pub(crate) fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat> {
        self.batch(batch).into_iter().map(|(name, disk, _)| figures(name, &disk)).collect()
    }

    /// Returns the figures of the disk `name`.
    pub(crate) fn stat(&self, name: &str) -> Result<DiskStat, Failure> {
        let disk = self.lock().get(name)?.clone();
        Ok(figures(name.to_owned(), &disk))
    }

    /// Returns the figures of all disks together.
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

    /// Returns the memory use of everything that has a limit: individual disks, and all disks
    /// together.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let state = self.lock();
        let disks = state.disks.iter().filter_map(|(name, disk)| match &disk.kind {
            DiskBacking::Ram(ram) => Some(Use {
                name: Some(name.clone()),
                limit_bytes: disk.limit_bytes?,
                spent_bytes: ram.stats().spent_bytes,
            }),
            DiskBacking::Snapshot(_) | DiskBacking::Base(_) => None,
        });
        let all = state.limit_bytes.map(|limit_bytes| Use {
            name: None,
            spent_bytes: self.pool.stats().spent_bytes,
            limit_bytes,
        });
        disks.chain(all).collect()
    }

    /// Returns each disk with requests that wait for room, and their number.
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

    pub(super) fn lock(&self) -> MutexGuard<'_, DisksState> {
        // A panic cannot leave a disk half created: each change of the maps is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a batch of the current disks, with the number of snapshots of each. A disk that is
    /// removed in the meantime lives until the result is dropped.
    fn batch(&self, Batch { after, most }: Batch<'_>) -> Vec<(String, Disk, u64)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let state = self.lock();
        let disks = state.disks.range::<str, _>((start, Bound::Unbounded));
        let count = |name: &str| state.snapshots(name).count() as u64;
        disks.take(most).map(|(name, disk)| (name.clone(), disk.clone(), count(name))).collect()
    }
}

impl DisksState {
    pub(super) fn get(&self, name: &str) -> Result<&Disk, Failure> {
        self.disks.get(name).ok_or_else(|| match split_snapshot_name(name) {
            Some((disk, snapshot)) if self.disks.contains_key(disk) => {
                let known = self.snapshots(disk).filter_map(|(name, _)| split_snapshot_name(name));
                Failure::no_snapshot_among(disk, snapshot, known.map(|(_, snapshot)| snapshot))
            }
            _ => self.none(name),
        })
    }

    /// Returns the failure for a missing disk.
    fn none(&self, name: &str) -> Failure {
        let known = self.disks.keys().map(String::as_str);
        Failure::no_disk_among(name, known.filter(|name| split_snapshot_name(name).is_none()))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.disks.contains_key(name)
    }

    /// Returns the snapshots of the disk `name`.
    pub(super) fn snapshots(&self, name: &str) -> impl Iterator<Item = (&String, &Disk)> {
        let prefix = snapshot_name(name, "");
        let from = self.disks.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        from.take_while(move |(name, _)| name.starts_with(&prefix))
    }

    /// Returns the names of the snapshots of the disk `name`.
    fn names_of_snapshots(&self, name: &str) -> Result<Vec<String>, Failure> {
        self.get(name)?;
        Ok(self.snapshots(name).map(|(name, _)| name.clone()).collect())
    }

    /// Removes a disk from the lists. Also returns the number of clients that it had.
    pub(super) fn remove(&mut self, name: &str, exports: &Exports) -> Result<(Disk, u64), Failure> {
        self.get(name)?;
        let disk = self.disks.remove(name).ok_or_else(|| Failure::no_such_disk(name))?;
        let export = exports.remove(name);
        Ok((disk, export.map_or(0, |export| export.connections() as u64)))
    }
}

/// Returns the bytes that a disk's own socket needs in the server's lists.
pub(super) fn socket_bytes(socket: Option<&DiskSocket>) -> u64 {
    sockets::record_bytes(socket.map(|socket| Path::new(&socket.path)))
}

pub(super) fn found(name: &str, disk: &Disk, clients: u64, snapshots: u64) -> Found {
    let stats = match &disk.kind {
        DiskBacking::Ram(ram) | DiskBacking::Snapshot(ram) => ram.stats(),
        DiskBacking::Base(_) => DiskStats::default(),
    };
    Found {
        name: name.to_owned(),
        size_bytes: disk.kind.size_bytes(),
        limit_bytes: disk.limit_bytes,
        read_only: disk.read_only,
        kind: disk.kind.told(),
        path: disk.base().map(|file| file.path.clone()),
        from: disk.origin.as_ref().map(|origin| origin.name.clone()),
        age: disk.made.elapsed(),
        changed_bytes: stats.orig_data_size,
        own_bytes: stats.spent_bytes,
        snapshots,
        clients,
        socket: disk.socket.as_ref().map(|socket| socket.path.clone()),
    }
}

fn figures(name: String, disk: &Disk) -> DiskStat {
    let waiting = disk.waiting().map(|waiting| ("waiting_requests".to_owned(), waiting.into()));
    let figures = match &disk.kind {
        DiskBacking::Ram(ram) | DiskBacking::Snapshot(ram) => limited(ram.stats().figures()).chain(waiting).collect(),
        DiskBacking::Base(_) => Figures::new(),
    };
    let (kind, size_bytes) = (disk.kind.told(), disk.kind.size_bytes());
    DiskStat { name, size_bytes, limit_bytes: disk.limit_bytes, kind, figures }
}

/// Converts the figures without the limit, which has its own field.
fn limited(figures: impl Iterator<Item = Figure>) -> impl Iterator<Item = (String, serde_json::Value)> {
    let figures = figures.filter(|figure| figure.name != "mem_limit");
    figures.map(|figure| (figure.name.to_owned(), figure.value.into()))
}

pub(super) fn failure(error: ExportError) -> Failure {
    match error {
        ExportError::Duplicate(name) => Failure::name_in_use(&name),
        ExportError::Unknown(name) => Failure::no_such_disk(&name),
        error => Failure::new(Code::InvalidName, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU64, sync::atomic::Ordering, thread};

    use super::*;

    fn disks() -> Disks {
        let codec = crate::codec::of_pages("lz4").expect("a codec");
        let (clients, when_full) = (Limits::default(), WhenFull::Error);
        Disks::new(DisksConfig { codec, dedupe: false, limit_bytes: None, clients, when_full }).expect("a pool")
    }

    /// A page that is cut needs more memory than one word that is repeated.
    #[test]
    fn a_resize_without_memory_is_not_a_wrong_size() {
        let disks = disks();
        let add = Add { name: "a".to_owned(), size_bytes: 4096, limit_bytes: None, read_only: false, socket: None };
        disks.add(&add).expect("a disk");
        let DiskBacking::Ram(ram) = disks.lock().get("a").expect("a disk").kind.clone() else { panic!("a RAM disk") };
        ram.write(0, &[7; 4096]).expect("no limit");
        disks.set_limit(Some("a"), Some(1)).expect("a limit");
        let resize = |size_bytes| Resize { name: "a".to_owned(), size_bytes, shrink: true, force: false };
        let code = |size_bytes| disks.resize(&resize(size_bytes)).expect_err("a failure").code;
        assert_eq!(
            (code(513), code(u64::MAX - 511), code(512)),
            (Code::InvalidSize, Code::InvalidSize, Code::NoMemory)
        );
    }

    /// If several threads grow a disk at the same time, none makes it smaller than another has made
    /// it.
    #[test]
    fn a_disk_that_many_grow_never_shrinks() {
        let disks = disks();
        let add = Add { name: "a".to_owned(), size_bytes: 512, limit_bytes: None, read_only: false, socket: None };
        disks.add(&add).expect("a disk");
        let size_bytes = || disks.list(Batch { after: None, most: 1 })[0].size_bytes;
        let largest = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (disks, largest, now_bytes) = (&disks, &largest, &size_bytes);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let size_bytes = now_bytes() + (thread + 1) * 512;
                        let resize = Resize { name: "a".to_owned(), size_bytes, shrink: false, force: false };
                        match disks.resize(&resize) {
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
