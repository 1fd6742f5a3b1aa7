//! Exports to which NBD devices of the kernel are connected before they have a disk. Connecting
//! takes most of the time that it takes to give a disk a device.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use pagefold_disk::{BlockDevice, Error, Extent, Read, Waits, Zeroes};
use pagefold_executor::{Client, Device, Export};
use pagefold_server::{BindSpare, Host};
use rustix::io::Errno;

/// Maximum number of exports without a disk.
const MOST_FREE: usize = 1024;

/// Interval between two checks for exports that have lost their connections.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a device may take to connect to a new export.
const PATIENCE: u32 = 400;

/// The exports that are or were spare, and are connected.
#[derive(Clone, Default)]
pub(crate) struct Spares(Arc<Shared>);

#[derive(Default)]
struct Shared {
    last_number: AtomicU64,
    all: Mutex<Vec<Entry>>,
}

struct Entry {
    export: Arc<Export>,
    spare: Arc<Spare>,
    /// Checks left until it must be connected; 0 once it was.
    patience: u32,
}

/// A device that reads as zeros until it is bound to a disk, which it then keeps.
struct Spare {
    size_bytes: u64,
    bound: OnceLock<Bound>,
}

struct Bound {
    disk: Arc<Export>,
    client: Arc<Client>,
    waits: Option<Arc<Waits>>,
    may_block: bool,
    path: PathBuf,
}

impl Spares {
    /// Returns whether the server has spare exports.
    pub(crate) fn exist(&self) -> bool {
        !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an export, which ends with its last connection, and returns its name.
    pub(crate) fn add(&self, host: &Host, size_bytes: u64) -> Result<String, String> {
        let mut all = self.lock();
        if all.iter().filter(|entry| entry.spare.bound.get().is_none()).count() >= MOST_FREE {
            return Err(format!("{MOST_FREE} devices are already waiting for disks"));
        }
        let number = self.0.last_number.fetch_add(1, Relaxed);
        // Only those that may manage the server learn this name.
        let random = random().map_err(|error| format!("the system provides no random numbers: {error}"))?;
        let name = format!("spare-{number}-{random:016x}");
        let spare = Arc::new(Spare { size_bytes, bound: OnceLock::new() });
        let export = Export::new(name.clone(), Arc::clone(&spare) as _).hidden();
        host.exports().add(export).map_err(|error| error.to_string())?;
        let export = host.exports().get(&name).ok_or("the export has just been removed")?;
        if all.is_empty() {
            let (own, host_of_watch) = (self.clone(), host.clone());
            // The thread looks only once this one has stored the entry.
            let watch = move || {
                while own.prune(&host_of_watch) {
                    thread::sleep(PAUSE);
                }
            };
            if let Err(error) = thread::Builder::new().name("spare devices".to_owned()).spawn(watch) {
                host.exports().remove(&name);
                return Err(error.to_string());
            }
        }
        all.push(Entry { export, spare, patience: PATIENCE });
        Ok(name)
    }

    /// Removes exports that have lost their connections or their disks, and gives the others their disks'
    /// quotas. Returns whether any are left.
    fn prune(&self, host: &Host) -> bool {
        let mut all = self.lock();
        all.retain_mut(|entry| {
            let is_connected = entry.export.connections() > 0;
            entry.patience = if is_connected { 0 } else { entry.patience.saturating_sub(1) };
            let bound = entry.spare.bound.get();
            let has_lost_disk = bound.is_some_and(|bound| bound.disk.size_bytes().is_none());
            let stays = !has_lost_disk && (is_connected || entry.patience > 0);
            // Its clients have the disk's quota.
            if let Some(bound) = bound
                && entry.export.quota() != bound.disk.quota()
            {
                entry.export.set_quota(bound.disk.quota());
            }
            if !stays {
                host.exports().remove(&entry.export.name());
            }
            stays
        });
        !all.is_empty()
    }

    /// Binds an export to a disk, unless another is bound to it.
    pub(crate) fn bind(&self, host: &Host, disk: &Arc<Export>, bind: &BindSpare) -> Result<(), String> {
        let all = self.lock();
        let entry = all.iter().find(|entry| *entry.export.name() == *bind.export);
        let entry = entry.ok_or("no device waits for a disk under this name")?;
        if entry.spare.bound.get().is_some() {
            return Err("the device has a disk already".to_owned());
        }
        if let Some(path) = Self::find(&all, |of| Arc::ptr_eq(of, disk)) {
            return Err(format!("the disk is already served as {}", path.display()));
        }
        if disk.is_read_only() || disk.size_bytes() != Some(entry.spare.size_bytes) {
            return Err("the disk is read-only or has another size".to_owned());
        }
        let client = host.open(disk).map_err(|error| error.to_string())?;
        let device = client.device().ok_or("the disk has just been removed")?;
        entry.export.set_quota(disk.quota());
        let bound = Bound {
            disk: Arc::clone(disk),
            waits: device.waits().cloned(),
            may_block: device.may_block(),
            client,
            path: bind.device.clone().into(),
        };
        entry.spare.bound.set(bound).map_err(|_| "the device has a disk already".to_owned())
    }

    /// Ends the export that a device is connected to. Returns whether there is one.
    pub(crate) fn end(&self, host: &Host, device: &Path) -> bool {
        let all = self.lock();
        let is_it = |entry: &&Entry| entry.spare.bound.get().is_some_and(|bound| bound.path == device);
        all.iter().find(is_it).inspect(|entry| drop(host.exports().remove(&entry.export.name()))).is_some()
    }

    /// Returns the path of the device that serves this disk.
    pub(crate) fn of(&self, disk: &Arc<Export>) -> Option<PathBuf> {
        Self::find(&self.lock(), |of| Arc::ptr_eq(of, disk))
    }

    /// Returns the path of the device that serves the disk with this name.
    pub(crate) fn of_name(&self, name: &str) -> Option<PathBuf> {
        // The name of a removed disk may belong to another by now.
        Self::find(&self.lock(), |disk| *disk.name() == *name && disk.size_bytes().is_some())
    }

    /// A device without connections is gone.
    fn find(all: &[Entry], is_disk: impl Fn(&Arc<Export>) -> bool) -> Option<PathBuf> {
        let connected = all.iter().filter(|entry| entry.export.connections() > 0);
        let mut bound = connected.filter_map(|entry| entry.spare.bound.get());
        bound.find(|bound| is_disk(&bound.disk)).map(|bound| bound.path.clone())
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Spare {
    /// Returns the disk's device, or `None` before there is one.
    fn device(&self) -> Option<Result<Arc<Device>, Error>> {
        let bound = self.bound.get()?;
        Some(bound.client.device().ok_or_else(|| Error::Io(io::Error::from(Errno::SHUTDOWN))))
    }

    fn change<T>(&self, change: impl FnOnce(&Device) -> Result<T, Error>) -> Result<T, Error> {
        change(&*self.device().unwrap_or(Err(Error::ReadOnly))?)
    }
}

impl BlockDevice for Spare {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn may_block(&self) -> bool {
        self.bound.get().is_some_and(|bound| bound.may_block)
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        self.bound.get()?.waits.as_ref()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        match self.device() {
            Some(device) => device?.read(offset, buf),
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        match self.device() {
            Some(device) => device?.try_read(offset, buf),
            None => self.read(offset, buf).map(|()| buf.len()),
        }
    }

    fn read_together(&self, reads: &mut [Read<'_>]) {
        match self.device() {
            Some(Ok(device)) => device.read_together(reads),
            _ => reads.iter_mut().for_each(|read| read.result = self.read(read.offset, read.buf)),
        }
    }

    fn read_unit_bytes(&self) -> u64 {
        self.device().and_then(Result::ok).map_or(4096, |device| device.read_unit_bytes())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.change(|device| device.write(offset, buf))
    }

    fn try_write(&self, offset: u64, buf: &[u8]) -> Result<usize, Error> {
        self.change(|device| device.try_write(offset, buf))
    }

    fn flush(&self) -> Result<(), Error> {
        self.device().map_or(Ok(()), |device| device?.flush())
    }

    fn try_flush(&self) -> Result<bool, Error> {
        self.device().map_or(Ok(true), |device| device?.try_flush())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.change(|device| device.discard(offset, len_bytes))
    }

    fn try_discard(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        self.change(|device| device.try_discard(offset, len_bytes))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        self.change(|device| device.write_zeroes(offset, len_bytes, zeroes))
    }

    fn try_write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<bool, Error> {
        self.change(|device| device.try_write_zeroes(offset, len_bytes, zeroes))
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        match self.device() {
            Some(device) => device?.extents(offset, len_bytes, each),
            None => {
                each(Extent { len_bytes, hole: true, zero: true });
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pagefold_disk::{Pool, PoolConfig, RamDisk};
    use pagefold_executor::{ClientLimits, Executor, Exports, Memory};

    use super::*;

    #[test]
    fn a_spare_device_has_its_disk_for_good() {
        let exports = Exports::new();
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let ram = Arc::new(RamDisk::new(&pool, 8192).expect("a disk"));
        ram.write(4096, &[7; 4096]).expect("room");
        exports.add(Export::new("disk", Arc::clone(&ram) as _)).expect("a name");
        let disk = exports.get("disk").expect("a disk");
        let spare = Spare { size_bytes: 8192, bound: OnceLock::new() };
        let mut page = [1; 4096];
        spare.read(4096, &mut page).expect("zeros");
        assert_eq!(page, [0; 4096]);
        assert!(matches!(spare.write(0, &page), Err(Error::ReadOnly)));
        assert!(spare.try_flush().expect("nothing to flush"));

        let executor = Arc::new(Executor::new(1, Memory::new(1 << 20, None)));
        let client = Client::open(&executor, &disk, ClientLimits { threads: 1, memory_bytes: 1 << 20 });
        let bound = Bound {
            disk: Arc::clone(&disk),
            client: client.expect("a client"),
            waits: None,
            may_block: false,
            path: "/dev/nbd0".into(),
        };
        assert!(spare.bound.set(bound).is_ok());
        assert_eq!(disk.connections(), 1);
        spare.read(4096, &mut page).expect("a page");
        assert_eq!(page, [7; 4096]);
        spare.write(0, &page).expect("room");
        assert!(spare.try_discard(4096, 4096).expect("a page"));
        ram.read(0, &mut page).expect("a page");
        assert_eq!(page, [7; 4096]);
        // A disk that was dropped is gone, and its device fails.
        exports.remove("disk").expect("a disk");
        let mut reads = [Read::new(0, &mut page)];
        spare.read_together(&mut reads);
        assert!(matches!(reads[0].result, Err(Error::Io(_))));
        drop(spare);
        assert_eq!(disk.connections(), 0);
    }
}
