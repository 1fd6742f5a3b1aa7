//! The disks of a server, which are created, changed and removed while it serves them. All
//! operations of other modules on disks are here.
//!
//! `backing.rs` knows how a disk is implemented, `table.rs` which disks there are.

use std::{
    fs::File,
    io::ErrorKind,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use pagefold_codec::Codec;
use pagefold_control::{
    Add, Batch, Changes, Code, Compacted, DiskKind, DiskQuota, DiskSocket, DiskStat, Failure, Figures, Fork,
    FrozenRuns, Instant, MAX_NAME_BYTES, Resize,
};
use pagefold_disk::{BlockDevice, Error as BlockError, NewPoolError, Pool, PoolConfig, PoolStats};
use pagefold_executor::{AllDone, Latencies};
use pagefold_serve::{Exports, Limits, ServerHandle};
use pagefold_storage::Open;

use crate::{
    WhenFull,
    backing::Backing,
    bases::{self, BaseCaches, BaseFile},
    client_memory::ClientMemory,
    compaction::Compaction,
    counted::Counted,
    disk::{Disk, FoundDisk, Measured, RECORD_BYTES, limited},
    instants::{HeldInstant, Instants},
    process::anonymous_bytes,
    socket,
    table::Table,
};

/// Configuration shared by all disks.
pub(crate) struct DisksConfig {
    pub(crate) codec: Arc<dyn Codec>,
    /// Whether equal pages are stored once.
    pub(crate) dedupe: bool,
    /// Maximum memory of the disks and their clients.
    pub(crate) limit_bytes: Option<u64>,
    /// The file in memory that holds the disks; `None` means private memory.
    pub(crate) file: Option<File>,
    /// Maximum memory for the content of bases; `None` means a quarter of the limit.
    pub(crate) base_cache_bytes: Option<u64>,
    pub(crate) clients: Limits,
    pub(crate) when_full: WhenFull,
    /// Opens what bases are read from.
    pub(crate) open: Arc<Open>,
}

/// The configuration of another server's disks.
pub(crate) struct TakenConfig {
    pub(crate) pool: Pool,
    /// The number with which the disks' identities begin.
    pub(crate) id: u64,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) base_caches: BaseCaches,
    pub(crate) clients: Limits,
    pub(crate) when_full: WhenFull,
    pub(crate) open: Arc<Open>,
}

/// The disks of a server.
pub(crate) struct Disks {
    table: Table,
    client_memory: Arc<ClientMemory>,
    base_caches: BaseCaches,
    open: Arc<Open>,
    instants: Arc<Instants>,
    compaction: Compaction,
    /// Number of clusters decoded for bases that have been removed. It changes only together with
    /// the list of disks.
    decoded_before: AtomicU64,
    /// The limit of all disks together; held while it is set.
    limit_bytes: Mutex<Option<u64>>,
    /// Held while a disk is resized, starting before its size is read.
    resizing: Mutex<()>,
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
        let DisksConfig { codec, dedupe, limit_bytes, file, base_cache_bytes, clients, when_full, open } = config;
        let pool = PoolConfig::default().codec(codec).dedupe(dedupe).memory_limit(limit_bytes.unwrap_or(u64::MAX));
        let pool = Pool::new(file.into_iter().fold(pool, PoolConfig::kept_in))?;
        let table = Table::new(pool, when_full);
        let base_caches = BaseCaches::new(&table.pool, base_cache_bytes);
        Ok(Self::of_table(table, clients, limit_bytes, base_caches, open))
    }

    fn of_table(
        table: Table,
        clients: Limits,
        limit_bytes: Option<u64>,
        base_caches: BaseCaches,
        open: Arc<Open>,
    ) -> Self {
        let pool = table.pool.clone();
        Self {
            client_memory: Arc::new(ClientMemory::new(pool, clients, limit_bytes)),
            base_caches,
            open,
            instants: Arc::new(Instants::new(table.exports.clone())),
            compaction: Compaction::default(),
            decoded_before: AtomicU64::new(0),
            limit_bytes: Mutex::new(limit_bytes),
            resizing: Mutex::new(()),
            table,
        }
    }

    /// Continues the disks of another server, whose pool this is.
    pub(crate) fn taken(config: TakenConfig) -> Self {
        let TakenConfig { pool, id, limit_bytes, base_caches, clients, when_full, open } = config;
        // The limit may have been changed while the pool was read.
        base_caches.follow(&pool);
        Self::of_table(Table::with_id(pool, when_full, id), clients, limit_bytes, base_caches, open)
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Returns whether any disk is frozen.
    pub(crate) fn has_instants(&self) -> bool {
        self.instants.exist()
    }

    /// To be called once the server listens. Opens the sockets of disks that were created before.
    pub(crate) fn set_server(&self, server: ServerHandle) -> Result<(), Failure> {
        self.table.set_server(server)
    }

    /// Returns the exports that a server serves.
    pub(crate) fn exports(&self) -> Exports {
        self.table.exports.clone()
    }

    /// Returns the account of the clients' memory.
    pub(crate) fn client_memory(&self) -> &Arc<ClientMemory> {
        &self.client_memory
    }

    /// Returns the device that clients of the disk `name` use, and whether it is read-only.
    pub(crate) fn device(&self, name: &str) -> Result<(Arc<dyn BlockDevice>, bool), Failure> {
        let entries = self.table.lock();
        let disk = entries.get(name)?;
        Ok((disk.device(), disk.read_only))
    }

    pub(crate) fn add(&self, disk: &Add) -> Result<FoundDisk, Failure> {
        let Add { name, size_bytes, limit_bytes, read_only, socket, quota } = disk;
        let mut entries = self.table.lock();
        entries.check_free(name)?;
        let record_bytes = RECORD_BYTES + socket::asked_bytes(socket.as_ref());
        let record = Counted::record(&self.table.pool, name, record_bytes)?;
        let backing = Backing::empty(&self.table.pool, *size_bytes, *limit_bytes)?;
        let (limit_bytes, read_only, waits) = (*limit_bytes, *read_only, self.table.new_waits());
        let disk = Disk { limit_bytes, read_only, waits, ..Disk::read_only(backing, record) };
        self.table.insert(&mut entries, name, disk, socket.as_ref(), *quota)
    }

    /// Serves a file. `warn` receives its later events. Also returns the number of zeros with which
    /// the disk is padded beyond the file's content.
    pub(crate) fn add_base(
        &self,
        file: &BaseFile,
        socket: Option<&DiskSocket>,
        quota: DiskQuota,
        warn: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(FoundDisk, u64), Failure> {
        let name = &file.name;
        // Opening a file may take long, so no lock is held.
        self.table.lock().check_free(name)?;
        let pool = &self.table.pool;
        let base = bases::open(file, &*self.open, &self.base_caches, warn)?;
        let padding_bytes = base.padding_bytes();
        let backing = Backing::of_file(pool, &self.base_caches, base, file)?;
        Ok((self.insert_base(name, backing, socket, quota)?, padding_bytes))
    }

    /// Serves a device of the program, whose content never changes.
    pub(crate) fn add_device(&self, name: &str, device: Arc<dyn BlockDevice>) -> Result<FoundDisk, Failure> {
        let backing = Backing::of_device(&self.table.pool, &self.base_caches, device)?;
        self.insert_base(name, backing, None, DiskQuota::default())
    }

    fn insert_base(
        &self,
        name: &str,
        backing: Backing,
        socket: Option<&DiskSocket>,
        quota: DiskQuota,
    ) -> Result<FoundDisk, Failure> {
        let is_kept = self.table.pool.file().is_some();
        if is_kept && backing.as_base().is_none_or(|base| base.record().is_none()) {
            let what = "the next process cannot open it (--keep-memory): it must be a file whose path is UTF-8";
            return Err(Failure::new(Code::Failed, format!("base '{name}': {what}")));
        }
        let record = Counted::record(&self.table.pool, name, RECORD_BYTES + socket::asked_bytes(socket))?;
        let mut entries = self.table.lock();
        entries.check_free(name)?;
        self.table.insert(&mut entries, name, Disk::read_only(backing, record), socket, quota)
    }

    /// Creates disks that all have the content of another at one instant.
    pub(crate) fn fork(&self, fork: &Fork) -> Result<Vec<FoundDisk>, Failure> {
        self.table.fork(fork)
    }

    /// Keeps the content of a disk at one instant under a separate name.
    pub(crate) fn snapshot(&self, name: &str, snapshot: &str) -> Result<FoundDisk, Failure> {
        self.table.snapshot(name, snapshot)
    }

    /// Restores a disk to one of its snapshots.
    pub(crate) fn rollback(
        &self,
        name: &str,
        snapshot: &str,
        force: bool,
        note_first: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<FoundDisk, Failure> {
        let _turn = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        self.table.rollback(name, snapshot, force, note_first)
    }

    /// Returns changed ranges of a disk, as many as fit into one answer.
    pub(crate) fn changes(&self, name: &str, offset: u64) -> Result<Changes, Failure> {
        self.table.changes(name, offset)
    }

    /// Serves a disk as it is at this instant, until the returned [`HeldInstant`] is dropped.
    pub(crate) fn freeze(&self, name: &str) -> Result<(Instant, HeldInstant), Failure> {
        let disk = self.table.lock().get(name)?.clone();
        self.instants.hold(&self.table.pool, name, &disk)
    }

    /// Returns where the data of an instant are stored, as many runs as fit into one answer.
    pub(crate) fn frozen_runs(&self, export: &str, offset_bytes: u64) -> Result<FrozenRuns, Failure> {
        self.instants.runs(export, offset_bytes)
    }

    /// Returns the device of an instant.
    pub(crate) fn frozen_device(&self, export: &str) -> Result<Arc<dyn BlockDevice>, Failure> {
        Ok(self.instants.content(export)?.device(None))
    }

    /// Frees the memory in the holes of the disks' storage, for at most about `time` and while
    /// `goes_on` returns true.
    pub(crate) fn compact(&self, time: Duration, goes_on: &dyn Fn() -> bool) -> Result<Compacted, Failure> {
        self.compaction.run(&self.table.pool, time, goes_on)
    }

    /// Removes a disk. Also returns how many disks still use the dropped base.
    pub(crate) fn remove(&self, name: &str, with_snapshots: bool, force: bool) -> Result<(FoundDisk, u64), Failure> {
        let snapshots = self.table.lock().names_of_snapshots(name)?;
        if with_snapshots || snapshots.is_empty() {
            snapshots.iter().chain([&name.to_owned()]).try_for_each(|name| self.table.check_unused(name, force))?;
        }
        let mut entries = self.table.lock();
        let snapshots = entries.names_of_snapshots(name)?;
        if !snapshots.is_empty() && !with_snapshots {
            let count = if let [_] = snapshots[..] { "1 snapshot" } else { &format!("{} snapshots", snapshots.len()) };
            let what = format!(
                "disk '{name}' has {count}, such as '{}': drop them first, or together with the disk (--snapshots)",
                snapshots[0]
            );
            return Err(Failure::new(Code::HasSnapshots, what));
        }
        let (removed, exported) = self.table.take(&mut entries, name)?;
        let mut gone = vec![removed];
        for snapshot in &snapshots {
            gone.push(self.table.take(&mut entries, snapshot)?.0);
        }
        let disk = &gone[0];
        self.decoded_before.fetch_add(disk.backing.decoded_clusters().unwrap_or(0), Relaxed);
        let over =
            disk.backing.as_base().map_or(0, |base| entries.iter().filter(|(_, other)| other.is_over(base)).count());
        // This may be the last reference. Freeing a disk takes time, so the lock is released first.
        drop(entries);
        let found = disk.found(name, exported, snapshots.len() as u64);
        drop(gone);
        self.table.signal_room();
        Ok((found, over as u64))
    }

    /// Resizes a disk and returns its previous size. Calls `note_first` before the disk gets larger.
    pub(crate) fn resize(&self, resize: &Resize, note_first: &dyn Fn() -> Result<(), Failure>) -> Result<u64, Failure> {
        let Resize { name, size_bytes, shrink, force } = resize;
        let size_bytes = *size_bytes;
        // The other disks are not locked: a shrinking disk first frees its pages.
        let ram = Arc::clone(self.table.lock().get(name)?.backing.ram(name, "be resized")?);
        if *shrink && size_bytes < ram.size_bytes() {
            self.table.check_unused(name, *force)?;
        }
        let _turn = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let before_bytes = ram.size_bytes();
        if size_bytes < before_bytes && !shrink {
            let what = format!(
                "disk '{name}' has {}: shrinking it loses the data past {}; set shrink (--shrink) to allow this",
                pagefold_size::written(before_bytes),
                pagefold_size::written(size_bytes)
            );
            return Err(Failure::new(Code::WouldShrink, what));
        }
        let resized = ram.may_become(size_bytes, || {
            if size_bytes > before_bytes {
                note_first()?;
            }
            Ok(ram.resize(size_bytes))
        });
        resized?.map_err(|error| {
            let code = match &error {
                BlockError::NoSpace => Code::NoMemory,
                // The disk reports an impossible size with this error. Other errors are those of
                // its base.
                BlockError::Io(error) if error.kind() == ErrorKind::InvalidInput => Code::InvalidSize,
                _ => Code::Failed,
            };
            Failure::new(code, error.to_string())
        })?;
        self.table.signal_room();
        Ok(before_bytes)
    }

    /// Renames a disk and its snapshots. Returns the disk's own socket, which it keeps.
    pub(crate) fn rename(&self, name: &str, to: &str) -> Result<Option<PathBuf>, Failure> {
        let mut entries = self.table.lock();
        let disk = (name.to_owned(), to.to_owned(), entries.get(name)?.record_bytes());
        // Only a disk has snapshots: if the disk's new name is free, so are those of its snapshots.
        let snapshots = entries.snapshots(name).map(|(old, snapshot)| {
            let new = format!("{to}{}", &old[name.len()..]);
            (old.clone(), new, snapshot.record_bytes())
        });
        let all: Vec<_> = std::iter::once(disk).chain(snapshots).collect();
        if let Some((_, new, _)) = all.iter().find(|(_, new, _)| new.len() > MAX_NAME_BYTES) {
            let what = format!("a snapshot would get a name of {} bytes: NBD allows {MAX_NAME_BYTES}", new.len());
            return Err(Failure::new(Code::InvalidName, what));
        }
        let records = all.iter().map(|(_, new, bytes)| Counted::record(&self.table.pool, new, *bytes));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        // Only the first renaming can fail.
        for ((old, new, _), record) in all.into_iter().zip(records) {
            self.table.rename(&mut entries, &old, new, |disk| Disk { _record: record, ..disk })?;
        }
        Ok(entries.get(to)?.socket.as_ref().map(|socket| socket.path.clone()))
    }

    pub(crate) fn reset(&self, name: &str, force: bool) -> Result<FoundDisk, Failure> {
        let disk = self.table.lock().get(name)?.clone();
        let ram = disk.backing.ram(name, "be reset")?;
        self.table.check_unused(name, force)?;
        ram.reset().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        self.table.signal_room();
        let snapshots = self.table.lock().snapshots(name).count() as u64;
        Ok(disk.found(name, self.table.exported(name), snapshots))
    }

    /// Sets the limit of a disk or of all disks together; returns the previous one, and the memory
    /// that counts against the limit.
    pub(crate) fn set_limit(
        &self,
        name: Option<&str>,
        limit_bytes: Option<u64>,
    ) -> Result<(Option<u64>, u64), Failure> {
        let bytes = limit_bytes.unwrap_or(u64::MAX);
        let (before_bytes, spent_bytes) = match name {
            Some(name) => {
                let mut entries = self.table.lock();
                let disk = entries.get_mut(name)?;
                let ram = disk.backing.ram(name, "have a limit")?;
                ram.set_limit(bytes);
                let spent_bytes = ram.stats().spent_bytes;
                (std::mem::replace(&mut disk.limit_bytes, limit_bytes), spent_bytes)
            }
            None => {
                let mut limit = self.limit();
                let pool = &self.table.pool;
                pool.set_memory_limit(bytes).map_err(|error| Failure::new(Code::InvalidLimit, error.to_string()))?;
                self.client_memory.set_limit(limit_bytes);
                self.base_caches.follow(pool);
                (std::mem::replace(&mut *limit, limit_bytes), pool.stats().spent_bytes)
            }
        };
        self.table.signal_room();
        Ok((before_bytes, spent_bytes))
    }

    fn limit(&self) -> MutexGuard<'_, Option<u64>> {
        self.limit_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a batch of disks in the order of their names.
    pub(crate) fn list(&self, batch: Batch<'_>) -> Vec<FoundDisk> {
        let disks = self.table.batch(batch).into_iter();
        disks.map(|(name, disk, snapshots)| disk.found(&name, self.table.exported(&name), snapshots)).collect()
    }

    /// Returns the figures of a batch of disks in the order of their names.
    pub(crate) fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat> {
        let disks = self.table.batch(batch).into_iter();
        let stat = |(name, disk, _): (String, Disk, u64)| {
            let done = self.table.done(&name);
            disk.stat(name, &done)
        };
        disks.map(stat).collect()
    }

    /// Returns the figures of a batch of disks for metrics, in the order of their names.
    pub(crate) fn measured(&self, batch: Batch<'_>) -> Vec<Measured> {
        let measured = |(name, disk, _): (String, Disk, u64)| {
            let export = self.table.exports.get(&name);
            let (clients, done) =
                export.map_or_else(Default::default, |export| (export.connections() as u64, export.done()));
            disk.measured(name, clients, done)
        };
        self.table.batch(batch).into_iter().map(measured).collect()
    }

    /// Returns the number of disks of each kind: those that clients write, snapshots and bases.
    pub(crate) fn kinds(&self) -> [u64; 3] {
        let mut kinds = [0; 3];
        for (_, disk) in self.table.lock().iter() {
            let kind = match disk.backing.kind() {
                DiskKind::Snapshot => 1,
                DiskKind::Base => 2,
                _ => 0,
            };
            kinds[kind] += 1;
        }
        kinds
    }

    /// Returns the counts of all clients' requests, including those to removed disks.
    pub(crate) fn done(&self) -> AllDone {
        self.table.exports.done()
    }

    /// Returns how long their requests took.
    pub(crate) fn latencies(&self) -> Arc<Latencies> {
        self.table.exports.latencies()
    }

    /// Returns the name of the codec.
    pub(crate) fn codec(&self) -> String {
        self.table.pool.codec_name()
    }

    /// Returns the limit of all disks together.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        *self.limit()
    }

    /// Returns the memory and the contents of all disks together.
    pub(crate) fn pool_stats(&self) -> PoolStats {
        self.table.pool.stats()
    }

    /// Returns the caches of bases.
    pub(crate) fn base_caches(&self) -> &BaseCaches {
        &self.base_caches
    }

    /// Returns the number of clusters that were decoded for bases, also for those that were removed.
    pub(crate) fn decoded_clusters(&self) -> u64 {
        let entries = self.table.lock();
        let decoded: u64 = entries.iter().filter_map(|(_, disk)| disk.backing.decoded_clusters()).sum();
        decoded + self.decoded_before.load(Relaxed)
    }

    /// Returns the figures of the disk `name`.
    pub(crate) fn stat(&self, name: &str) -> Result<DiskStat, Failure> {
        let disk = self.table.lock().get(name)?.clone();
        Ok(disk.stat(name.to_owned(), &self.table.done(name)))
    }

    /// Returns the figures of all disks together.
    pub(crate) fn total(&self) -> Total {
        let mut figures: Figures = limited(self.table.pool.stats().figures()).collect();
        figures.insert("client_bytes".to_owned(), self.client_memory.taken_bytes().into());
        figures.extend(self.base_caches.figures());
        if let Some(bytes) = anonymous_bytes() {
            figures.insert("process_bytes".to_owned(), bytes.into());
        }
        let entries = self.table.lock();
        let decoded: u64 = entries.iter().filter_map(|(_, disk)| disk.backing.decoded_clusters()).sum();
        figures.insert("base_decoded_clusters".to_owned(), decoded.into());
        if self.table.room.is_some() {
            let waiting: u64 = entries.iter().filter_map(|(_, disk)| disk.waiting()).sum();
            figures.insert("waiting_requests".to_owned(), waiting.into());
        }
        Total {
            codec: self.table.pool.codec_name(),
            disks: entries.iter().len() as u64,
            limit_bytes: *self.limit(),
            figures,
        }
    }

    /// Returns the memory use of everything that has a limit: individual disks, and all disks
    /// together.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let entries = self.table.lock();
        let disks = entries.iter().filter_map(|(name, disk)| {
            let limit_bytes = disk.limit_bytes?;
            Some(Use { name: Some(name.clone()), spent_bytes: disk.backing.limited_bytes()?, limit_bytes })
        });
        let limit_bytes = *self.limit();
        let all = limit_bytes.map(|limit_bytes| Use {
            name: None,
            // Clean pages are evicted when room is needed.
            spent_bytes: self.table.pool.stats().needed_bytes(),
            limit_bytes,
        });
        disks.chain(all).collect()
    }

    /// Returns each disk with requests that wait for room, and their number.
    pub(crate) fn waiting(&self) -> Vec<(String, u64)> {
        if self.table.room.is_none() {
            return Vec::new();
        }
        let entries = self.table.lock();
        entries
            .iter()
            .filter_map(|(name, disk)| Some((name.clone(), disk.waiting()?)))
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    /// Sets what an export's clients may take.
    pub(crate) fn set_quota(&self, name: &str, quota: DiskQuota) -> Result<FoundDisk, Failure> {
        self.table.set_quota(name, quota)
    }

    /// Returns the disk `name` as it is described to clients.
    pub(crate) fn find(&self, name: &str) -> Result<FoundDisk, Failure> {
        self.table.find(name)
    }

    /// Returns the disks that are working on requests.
    pub(crate) fn busy(&self) -> Vec<pagefold_control::BusyDisk> {
        self.table.busy()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, thread};

    use super::*;

    fn disks() -> Disks {
        let codec = Arc::new(pagefold_codec::Lz4);
        let (clients, when_full) = (Limits::default(), WhenFull::Error);
        let open = Arc::new(pagefold_storage::open);
        let config = DisksConfig {
            codec,
            dedupe: false,
            limit_bytes: None,
            file: None,
            base_cache_bytes: None,
            clients,
            when_full,
            open,
        };
        Disks::new(config).expect("a pool")
    }

    /// Resizing to 512 bytes cuts the disk's page: it is no longer one repeated word, so it needs
    /// memory.
    #[test]
    fn a_resize_without_memory_is_not_a_wrong_size() {
        let disks = disks();
        let add = Add::new("a", 4096);
        disks.add(&add).expect("a disk");
        disks.device("a").expect("a disk").0.write(0, &[7; 4096]).expect("no limit");
        disks.set_limit(Some("a"), Some(1)).expect("a limit");
        let resize = |size_bytes| Resize { name: "a".to_owned(), size_bytes, shrink: true, force: false };
        let code = |size_bytes| disks.resize(&resize(size_bytes), &|| Ok(())).expect_err("a failure").code;
        assert_eq!(
            (code(513), code(u64::MAX - 511), code(512)),
            (Code::InvalidSize, Code::InvalidSize, Code::NoMemory)
        );
    }

    /// A renamed disk keeps its identity; a later disk of the old name has another one.
    #[test]
    fn an_identity_is_that_of_one_disk() {
        let disks = disks();
        let id = |name: &str| disks.table.exported(name).id;
        let made = disks.add(&Add::new("a", 4096)).expect("a disk").exported.id;
        disks.snapshot("a", "s").expect("a snapshot");
        let snapshot = id("a@s");
        assert!(!made.is_empty() && made != snapshot);
        disks.rename("a", "b").expect("a free name");
        disks.add(&Add::new("a", 4096)).expect("a disk");
        assert_eq!((id("b"), id("b@s")), (made.clone(), snapshot.clone()));
        assert!(id("a") != made && id("a") != snapshot);
        let (dropped, _) = disks.remove("b", true, false).expect("a disk");
        assert_eq!(dropped.exported.id, made);
        disks.rename("a", "b").expect("a free name");
        assert_ne!(id("b"), made);
        let other = super::tests::disks();
        assert_ne!(other.add(&Add::new("a", 4096)).expect("a disk").exported.id, made);
    }

    /// A client that connects as soon as a disk exists is bound by the disk's quota.
    #[test]
    fn no_disk_is_without_its_quota() {
        let disks = disks();
        let quota = DiskQuota { connections: Some(3), bytes_per_second: Some(1 << 20) };
        disks.add(&Add { quota, ..Add::new("a", 4096) }).expect("a disk");
        assert_eq!(disks.table.exported("a").quota, quota);
        let exports = disks.exports();
        thread::scope(|scope| {
            let last = "fork-199";
            scope.spawn(|| {
                while exports.get(last).is_none() {
                    for export in exports.list() {
                        assert_eq!(export.quota().connections, Some(3), "{}", export.name());
                    }
                }
            });
            for number in 0..100 {
                let names = [format!("fork-{number}"), format!("fork-{}", 100 + number)];
                let forks = disks.fork(&Fork { quota, ..Fork::new("a", names) }).expect("forks");
                assert_eq!(forks.len(), 2);
            }
        });
        // A fork inherits no settings from the disk that it is forked from.
        disks.fork(&Fork::new("a", ["b"])).expect("a fork");
        assert_eq!(disks.table.exported("b").quota, DiskQuota::default());
    }

    /// If several threads grow a disk at the same time, none makes it smaller than another has made
    /// it.
    #[test]
    fn a_disk_that_many_grow_never_shrinks() {
        let disks = disks();
        let add = Add::new("a", 512);
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
                        match disks.resize(&resize, &|| Ok(())) {
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
