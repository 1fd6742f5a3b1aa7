//! The disks of a server by name, and their exports, which clients see.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use pagefold_control::{Batch, Code, DiskQuota, DiskSocket, Failure, snapshot_name, split_snapshot_name};
use pagefold_disk::{Pool, Room, Waits};
use pagefold_executor::AllDone;
use pagefold_serve::{Export, ExportError, Exports, Quota, ServerHandle};

use crate::{
    WhenFull,
    disk::{Disk, Exported, FoundDisk},
    socket::ServedSocket,
};

/// The disks of a server, and the state that they share.
pub(crate) struct Table {
    pub(crate) pool: Pool,
    pub(crate) exports: Exports,
    /// The queue of waiting writes; `None` if writes fail instead.
    pub(crate) room: Option<Arc<Room>>,
    /// Changed together with `exports`, so that both have the same names.
    entries: Mutex<Entries>,
    /// Set once the server listens; the sockets of disks are open from then on.
    server: OnceLock<ServerHandle>,
    /// Differs from that of every other server.
    id: u64,
    /// Held while the pool's file gets a note of the disks.
    noting: Mutex<()>,
}

/// The names of a disk's snapshots begin with its own name. Snapshots exist as long as the disk.
pub(crate) struct Entries(BTreeMap<String, Disk>);

impl Table {
    pub(crate) fn new(pool: Pool, when_full: WhenFull) -> Self {
        // Each map's hasher has random keys.
        Self::with_id(pool, when_full, RandomState::new().build_hasher().finish())
    }

    /// Creates the table of a server that continues another one, with its identity.
    pub(crate) fn with_id(pool: Pool, when_full: WhenFull, id: u64) -> Self {
        Self {
            pool,
            exports: Exports::new(),
            room: (when_full == WhenFull::Wait).then(Arc::default),
            entries: Mutex::new(Entries(BTreeMap::new())),
            server: OnceLock::new(),
            id,
            noting: Mutex::default(),
        }
    }

    /// Locks out other threads that note the disks.
    pub(crate) fn noting(&self) -> MutexGuard<'_, ()> {
        self.noting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called once the server listens. Opens the sockets of disks that were created before.
    pub(crate) fn set_server(&self, server: ServerHandle) -> Result<(), Failure> {
        let entries = self.lock();
        // This method is called once.
        let server = self.server.get_or_init(|| server);
        entries.0.iter().try_for_each(|(name, disk)| match (&disk.socket, self.exports.get(name)) {
            (Some(socket), Some(export)) => socket.open(server, &export),
            _ => Ok(()),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries> {
        // A panic cannot leave a disk half created: each change of the map is one call.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new [`Waits`] for a disk if its requests should wait for room.
    pub(crate) fn new_waits(&self) -> Option<Arc<Waits>> {
        self.room.as_ref().map(|room| Arc::new(Waits::new(room)))
    }

    /// Makes requests that wait for room retry.
    pub(crate) fn signal_room(&self) {
        if let Some(room) = &self.room {
            room.signal();
        }
    }

    /// Serves a disk under a name that no other disk has, and with its quota from the start.
    pub(crate) fn insert(
        &self,
        entries: &mut Entries,
        name: &str,
        mut disk: Disk,
        socket: Option<&DiskSocket>,
        quota: DiskQuota,
    ) -> Result<FoundDisk, Failure> {
        self.exports.add(export_of(name, &disk, quota)).map_err(failure)?;
        if let (Some(socket), Some(export)) = (socket, self.exports.get(name)) {
            let opened = ServedSocket::new(self.server.get(), &export, socket);
            disk.socket = Some(Arc::new(opened.inspect_err(|_| drop(self.exports.remove(name)))?));
        }
        let found = disk.found(name, self.exported(name), 0);
        entries.0.insert(name.to_owned(), disk);
        Ok(found)
    }

    /// Adds a disk of another server, whose export had this number.
    pub(crate) fn adopt(&self, name: &str, disk: Disk, quota: DiskQuota, number: u64) -> Result<(), Failure> {
        let mut entries = self.lock();
        entries.check_free(name)?;
        self.exports.add_numbered(export_of(name, &disk, quota), number).map_err(failure)?;
        entries.0.insert(name.to_owned(), disk);
        Ok(())
    }

    /// Gives a disk the socket that it had in another server.
    pub(crate) fn adopt_socket(&self, name: &str, socket: ServedSocket) -> Result<(), Failure> {
        self.lock().get_mut(name)?.socket = Some(Arc::new(socket));
        Ok(())
    }

    /// Returns the number with which the identities of disks begin.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the identity of the disk whose export has this number.
    pub(crate) fn id_of(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.id)
    }

    /// Removes a disk from the lists. Also returns its export as it was.
    pub(crate) fn take(&self, entries: &mut Entries, name: &str) -> Result<(Disk, Exported), Failure> {
        entries.get(name)?;
        let disk = entries.0.remove(name).ok_or_else(|| Failure::no_such_disk(name))?;
        let exported = self.exported(name);
        self.exports.remove(name);
        Ok((disk, exported))
    }

    /// Gives an entry another name. `change` changes the entry.
    pub(crate) fn rename(
        &self,
        entries: &mut Entries,
        old: &str,
        new: String,
        change: impl FnOnce(Disk) -> Disk,
    ) -> Result<(), Failure> {
        self.exports.rename(old, &new).map_err(failure)?;
        if let Some(disk) = entries.0.remove(old) {
            entries.0.insert(new, change(disk));
        }
        Ok(())
    }

    /// Returns the number of an export's clients.
    pub(crate) fn clients(&self, name: &str) -> u64 {
        self.exports.get(name).map_or(0, |export| export.connections() as u64)
    }

    /// Returns the counts of the requests of a disk's clients.
    pub(crate) fn done(&self, name: &str) -> AllDone {
        self.exports.get(name).map_or_else(AllDone::default, |export| export.done())
    }

    /// Returns a disk's export as it is now; the default if there is none.
    pub(crate) fn exported(&self, name: &str) -> Exported {
        let Some((number, export)) = self.exports.get_numbered(name) else { return Exported::default() };
        let Quota { connections, bytes_per_second } = export.quota();
        Exported {
            id: self.id_of(number),
            clients: export.connections() as u64,
            quota: DiskQuota { connections: connections.map(|most| most as u64), bytes_per_second },
        }
    }

    /// Returns the disk `name` as it is described to clients.
    pub(crate) fn find(&self, name: &str) -> Result<FoundDisk, Failure> {
        let entries = self.lock();
        let (disk, snapshots) = (entries.get(name)?.clone(), entries.snapshots(name).count() as u64);
        drop(entries);
        Ok(disk.found(name, self.exported(name), snapshots))
    }

    /// Returns a batch of the current disks, with the number of snapshots of each. A disk that is
    /// removed in the meantime lives until the result is dropped.
    pub(crate) fn batch(&self, Batch { after, most }: Batch<'_>) -> Vec<(String, Disk, u64)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.lock();
        let disks = entries.0.range::<str, _>((start, Bound::Unbounded));
        let count = |name: &str| entries.snapshots(name).count() as u64;
        disks.take(most).map(|(name, disk)| (name.clone(), disk.clone(), count(name))).collect()
    }
}

/// Makes the export of a disk.
fn export_of(name: &str, disk: &Disk, quota: DiskQuota) -> Export {
    let device = disk.device();
    let export = if disk.read_only { Export::read_only(name, device) } else { Export::new(name, device) };
    export.with_quota(of_clients(quota))
}

impl Entries {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&String, &Disk)> {
        self.0.iter()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Fails if a disk has this name.
    pub(crate) fn check_free(&self, name: &str) -> Result<(), Failure> {
        if self.has(name) { Err(Failure::name_in_use(name)) } else { Ok(()) }
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Disk, Failure> {
        self.0.get(name).ok_or_else(|| match split_snapshot_name(name) {
            Some((disk, snapshot)) if self.has(disk) => {
                let known = self.snapshots(disk).filter_map(|(name, _)| split_snapshot_name(name));
                Failure::no_snapshot_among(disk, snapshot, known.map(|(_, snapshot)| snapshot))
            }
            _ => {
                let known = self.0.keys().map(String::as_str);
                Failure::no_disk_among(name, known.filter(|name| split_snapshot_name(name).is_none()))
            }
        })
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Result<&mut Disk, Failure> {
        self.get(name)?;
        self.0.get_mut(name).ok_or_else(|| Failure::no_such_disk(name))
    }

    /// Returns the snapshots of the disk `name`.
    pub(crate) fn snapshots(&self, name: &str) -> impl Iterator<Item = (&String, &Disk)> {
        let prefix = snapshot_name(name, "");
        let from = self.0.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        from.take_while(move |(name, _)| name.starts_with(&prefix))
    }

    /// Returns the names of the snapshots of the disk `name`.
    pub(crate) fn names_of_snapshots(&self, name: &str) -> Result<Vec<String>, Failure> {
        self.get(name)?;
        Ok(self.snapshots(name).map(|(name, _)| name.clone()).collect())
    }
}

/// Returns a quota as the transports take it.
pub(crate) fn of_clients(quota: DiskQuota) -> Quota {
    let DiskQuota { connections, bytes_per_second } = quota;
    Quota { connections: connections.map(|most| usize::try_from(most).unwrap_or(usize::MAX)), bytes_per_second }
}

fn failure(error: ExportError) -> Failure {
    match error {
        ExportError::Duplicate(name) => Failure::name_in_use(&name),
        ExportError::Unknown(name) => Failure::no_such_disk(&name),
        error => Failure::new(Code::InvalidName, error.to_string()),
    }
}
