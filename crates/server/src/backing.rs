//! What backs a disk: compressed pages that clients write, the content of such a disk at one
//! instant, or a file.
//!
//! Only this file knows how a disk is implemented.

use std::{path::PathBuf, sync::Arc};

use pagefold_base::Base;
use pagefold_control::{BaseRecord, Code, DiskKind, Failure, Stored};
use pagefold_disk::{
    BlockDevice, Change, DiskStats, Error, Extent, Layer, NewDiskError, Patient, Pool, RamDisk, StoreError, Waits,
};

use crate::{
    bases::{BaseCaches, BaseFile},
    counted::Counted,
};

/// A disk without its name.
#[derive(Clone)]
pub(crate) struct Backing(Kind);

#[derive(Clone)]
enum Kind {
    /// Compressed pages that clients write.
    Ram(Arc<RamDisk>),
    /// The content of a RAM disk at one instant.
    Snapshot(Arc<RamDisk>),
    /// A read-only file, or a device of the program.
    Base(Arc<BaseDisk>),
}

/// A base that is served or that disks are stacked on.
pub(crate) struct BaseDisk {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// An unmodified disk over the base. Forks of the base are forked from it and share its digests
    /// of the base's pages.
    pub(crate) pristine: Arc<RamDisk>,
    /// The same as `device`, if the base is a file.
    file: Option<OpenFile>,
    _record: Arc<Counted>,
}

struct OpenFile {
    base: Arc<Base>,
    /// The file, as users name it.
    path: String,
    /// The files with data of the image.
    devices: Vec<PathBuf>,
}

impl BaseDisk {
    /// Returns the file, as users name it.
    pub(crate) fn path(&self) -> Option<&str> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// Returns the file's devices, as users name them.
    pub(crate) fn devices(&self) -> Vec<String> {
        let devices = self.file.iter().flat_map(|file| &file.devices);
        devices.map(|device| pagefold_storage::shown(device)).collect()
    }

    /// Returns what identifies the open file and its devices.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.file.as_ref().map(|file| file.base.identity())
    }

    /// Returns what a client needs to read the base itself; `None` if it is not a file, or if its
    /// path is not UTF-8.
    pub(crate) fn record(&self) -> Option<BaseRecord> {
        let OpenFile { base, devices, .. } = self.file.as_ref()?;
        Some(BaseRecord {
            path: base.path().to_str()?.to_owned(),
            inside: base.inside().map(|inside| String::from_utf8(inside.to_vec())).transpose().ok()?,
            devices: devices.iter().map(|device| Some(device.to_str()?.to_owned())).collect::<Option<_>>()?,
            format: base.format().to_string(),
            identity: base.identity().to_owned(),
        })
    }
}

impl Backing {
    /// Creates an empty RAM disk.
    pub(crate) fn empty(pool: &Pool, size_bytes: u64, limit_bytes: Option<u64>) -> Result<Self, Failure> {
        let ram = RamDisk::new(pool, size_bytes).map_err(not_made)?;
        ram.set_limit(limit_bytes.unwrap_or(u64::MAX));
        Ok(Self(Kind::Ram(Arc::new(ram))))
    }

    /// Creates a disk that serves `base`, which is in `file`.
    pub(crate) fn of_file(pool: &Pool, caches: &BaseCaches, base: Base, file: &BaseFile) -> Result<Self, Failure> {
        let made = |device| RamDisk::over_cached(pool, device, &caches.pages).map(Arc::new).map_err(not_made);
        Self::of_open_file(pool, Arc::new(base), file, made)
    }

    fn of_open_file(
        pool: &Pool,
        base: Arc<Base>,
        file: &BaseFile,
        make: impl FnOnce(Arc<dyn BlockDevice>) -> Result<Arc<RamDisk>, Failure>,
    ) -> Result<Self, Failure> {
        let (path, devices) = (file.to_string(), file.devices.clone());
        let paths_bytes = devices.iter().map(|device| device.as_os_str().len()).sum::<usize>() + path.len();
        let record_bytes = base.table_bytes() + paths_bytes as u64;
        let device: Arc<dyn BlockDevice> = Arc::clone(&base) as _;
        let pristine = make(Arc::clone(&device))?;
        Self::over(pool, device, pristine, Some(OpenFile { base, path, devices }), record_bytes)
    }

    /// Creates a base of a device of the program, whose content never changes.
    pub(crate) fn of_device(pool: &Pool, caches: &BaseCaches, device: Arc<dyn BlockDevice>) -> Result<Self, Failure> {
        let pristine = RamDisk::over_cached(pool, Arc::clone(&device), &caches.pages).map_err(not_made)?;
        Self::over(pool, device, Arc::new(pristine), None, 0)
    }

    fn over(
        pool: &Pool,
        device: Arc<dyn BlockDevice>,
        pristine: Arc<RamDisk>,
        file: Option<OpenFile>,
        record_bytes: u64,
    ) -> Result<Self, Failure> {
        // The record lives as long as forks of the base, even after the base has left the server's
        // lists.
        let record = Counted::record(pool, "", record_bytes)?;
        Ok(Self(Kind::Base(Arc::new(BaseDisk { device, pristine, file, _record: record }))))
    }

    /// Continues a disk that another process has handed over: a RAM disk or a snapshot.
    pub(crate) fn of_taken(ram: Arc<RamDisk>, is_snapshot: bool, limit_bytes: Option<u64>) -> Self {
        if is_snapshot {
            return Self(Kind::Snapshot(ram));
        }
        ram.set_limit(limit_bytes.unwrap_or(u64::MAX));
        Self(Kind::Ram(ram))
    }

    /// Opens `file` again as a base, whose unmodified disk another process has handed over.
    pub(crate) fn of_taken_file(
        pool: &Pool,
        base: Arc<Base>,
        file: &BaseFile,
        pristine: Arc<RamDisk>,
    ) -> Result<Self, Failure> {
        Self::of_open_file(pool, base, file, |_| Ok(pristine))
    }

    /// Returns the disk in memory; `None` for a base.
    pub(crate) fn stored(&self) -> Option<&Arc<RamDisk>> {
        match &self.0 {
            Kind::Ram(ram) | Kind::Snapshot(ram) => Some(ram),
            Kind::Base(_) => None,
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        match &self.0 {
            Kind::Ram(ram) | Kind::Snapshot(ram) => ram.size_bytes(),
            Kind::Base(base) => base.device.size_bytes(),
        }
    }

    /// Returns the kind that clients of the control socket see.
    pub(crate) fn kind(&self) -> DiskKind {
        match &self.0 {
            Kind::Ram(_) => DiskKind::Ram,
            Kind::Snapshot(_) => DiskKind::Snapshot,
            Kind::Base(_) => DiskKind::Base,
        }
    }

    /// Returns the device that clients use. If `waits` is given, its changes wait for room.
    pub(crate) fn device(&self, waits: Option<&Arc<Waits>>) -> Arc<dyn BlockDevice> {
        match (&self.0, waits) {
            (Kind::Ram(ram), Some(waits)) => Arc::new(Patient::new(Arc::clone(ram), Arc::clone(waits))),
            (Kind::Ram(ram) | Kind::Snapshot(ram), _) => Arc::clone(ram) as _,
            (Kind::Base(base), _) => Arc::clone(base) as _,
        }
    }

    /// Returns how many clusters were decoded for a base.
    pub(crate) fn decoded_clusters(&self) -> Option<u64> {
        Some(self.as_base()?.file.as_ref()?.base.decoded_clusters())
    }

    /// Returns the base; `None` for a disk in memory.
    pub(crate) fn as_base(&self) -> Option<&Arc<BaseDisk>> {
        match &self.0 {
            Kind::Base(base) => Some(base),
            Kind::Ram(_) | Kind::Snapshot(_) => None,
        }
    }

    /// Returns the RAM disk that clients write. Fails if `name` is of another kind, for which the
    /// operation `asked` is not possible.
    pub(crate) fn ram(&self, name: &str, asked: &str) -> Result<&Arc<RamDisk>, Failure> {
        let kind = match &self.0 {
            Kind::Ram(ram) => return Ok(ram),
            Kind::Snapshot(_) => "snapshot",
            Kind::Base(_) => "base",
        };
        let what = format!("disk '{name}' is a {kind} and read-only: it cannot {asked}");
        Err(Failure::new(Code::ReadOnly, what))
    }

    /// Returns whether both are the same RAM disk that clients write.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Kind::Ram(ram), Kind::Ram(same)) if Arc::ptr_eq(ram, same))
    }

    /// Returns the figures of a disk in memory.
    pub(crate) fn stats(&self) -> Option<DiskStats> {
        match &self.0 {
            Kind::Ram(ram) | Kind::Snapshot(ram) => Some(ram.stats()),
            Kind::Base(_) => None,
        }
    }

    /// Returns the bytes that count against the limit of a disk that clients write.
    pub(crate) fn limited_bytes(&self) -> Option<u64> {
        match &self.0 {
            Kind::Ram(ram) => Some(ram.stats().spent_bytes),
            Kind::Snapshot(_) | Kind::Base(_) => None,
        }
    }

    /// Creates RAM disks that all have this content at one instant, and this limit.
    pub(crate) fn forks(&self, count: usize, limit_bytes: Option<u64>) -> Result<Vec<Self>, Failure> {
        let mut rams: Vec<Arc<RamDisk>> = Vec::with_capacity(count);
        for _ in 0..count {
            let ram = match (&self.0, rams.first()) {
                (Kind::Base(base), _) => base.pristine.fork(),
                // All forks show the instant at which the first was created.
                (_, Some(first)) => first.fork(),
                (Kind::Ram(ram) | Kind::Snapshot(ram), None) => ram.fork(),
            };
            let ram = ram.map_err(failed)?;
            ram.set_limit(limit_bytes.unwrap_or(u64::MAX));
            rams.push(Arc::new(ram));
        }
        Ok(rams.into_iter().map(|ram| Self(Kind::Ram(ram))).collect())
    }

    /// Keeps the content of the RAM disk `name` at this instant, for rollbacks.
    pub(crate) fn snapshot(&self, name: &str) -> Result<Self, Failure> {
        let kept = self.ram(name, "have snapshots")?.snapshot().map_err(failed)?;
        Ok(Self(Kind::Snapshot(Arc::new(kept))))
    }

    /// Restores the RAM disk `name` to one of its snapshots.
    pub(crate) fn become_as(&self, name: &str, kept: &Self) -> Result<(), Failure> {
        let ram = self.ram(name, "be rolled back")?;
        match &kept.0 {
            Kind::Snapshot(kept) => ram.become_as(kept).map_err(failed),
            Kind::Ram(_) | Kind::Base(_) => Ok(()),
        }
    }

    /// Returns the content of the disk `name` at this instant, which never changes.
    pub(crate) fn frozen(&self, name: &str) -> Result<Self, Failure> {
        match &self.0 {
            Kind::Ram(ram) => match ram.fork() {
                Ok(fork) => Ok(Self(Kind::Snapshot(Arc::new(fork)))),
                Err(error) => {
                    let what = format!("disk '{name}' cannot be frozen: {error}");
                    Err(Failure::new(failed(error).code, what))
                }
            },
            Kind::Snapshot(_) | Kind::Base(_) => Ok(self.clone()),
        }
    }

    /// Passes the ranges in `offset..offset + len_bytes` to `each`, and whether they have changed
    /// since the disk was created, until it returns false.
    pub(crate) fn changes(
        &self,
        offset: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(Change) -> bool,
    ) -> Result<(), Failure> {
        match &self.0 {
            Kind::Ram(ram) | Kind::Snapshot(ram) => ram.changes(offset, len_bytes, each).map_err(failed),
            Kind::Base(_) => {
                each(Change { len_bytes, changed: false });
                Ok(())
            }
        }
    }

    /// Passes the lengths of the runs in `offset..offset + len_bytes` to `each`, and where their data
    /// are stored, until it returns false.
    pub(crate) fn runs(
        &self,
        offset: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(u64, Stored) -> bool,
    ) -> Result<(), Failure> {
        let below = |extent: &Extent| if extent.zero { Stored::BaseZeros } else { Stored::Base };
        let passed = match &self.0 {
            Kind::Base(base) => {
                base.device.extents(offset, len_bytes, &mut |extent| each(extent.len_bytes, below(&extent)))
            }
            Kind::Ram(ram) | Kind::Snapshot(ram) => ram.layered_extents(offset, len_bytes, &mut |extent, layer| {
                let stored = match layer {
                    Layer::Below => below(&extent),
                    Layer::Own if extent.zero => Stored::OwnZeros,
                    Layer::Own => Stored::Own,
                };
                each(extent.len_bytes, stored)
            }),
        };
        passed.map_err(|error| Failure::new(Code::Failed, error.to_string()))
    }
}

fn failed(error: Error) -> Failure {
    let code = if matches!(error, Error::NoSpace) { Code::NoMemory } else { Code::Failed };
    Failure::new(code, error.to_string())
}

fn not_made(error: NewDiskError) -> Failure {
    let is_full = matches!(error, NewDiskError::Store(StoreError::Full));
    Failure::new(if is_full { Code::NoMemory } else { Code::InvalidSize }, error.to_string())
}
