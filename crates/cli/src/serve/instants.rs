//! Disks as they were at one instant, served while somebody reads them.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_base::Base;
use pagefold_control::{BaseRecord, Code, Failure, FrozenRun, FrozenRuns, Instant, Stored};
use pagefold_disk::{BlockDevice, Error, Extent, Layer, RamDisk};
use pagefold_serve::{Export, Exports};

use super::disks::{BaseDisk, Counted, DiskBacking, Disks, RECORD_BYTES};

/// Maximum number of runs per answer: about 50 KiB of JSON.
const MAX_RUNS: usize = 1024;

/// Maximum number of bytes of a disk to examine per answer: takes some milliseconds if every page
/// has to be examined.
const MAX_LOOKED_AT_BYTES: u64 = 1 << 30;

/// Instants by the names of their exports.
pub(crate) struct Instants {
    exports: Exports,
    next: AtomicU64,
    sources: Mutex<BTreeMap<String, InstantSource>>,
}

/// The source of an instant's data.
#[derive(Clone)]
pub(crate) enum InstantSource {
    /// A fork that nobody writes.
    Ram(Arc<RamDisk>),
    /// A base, which never changes.
    Base(Arc<Base>),
}

/// An instant, which exists until this is dropped.
pub(crate) struct Held {
    instants: Arc<Instants>,
    export: String,
    /// Keeps the base accounted for while it is read.
    _base: Option<Arc<BaseDisk>>,
    _record: Arc<Counted>,
}

impl Disks {
    /// Serves a disk as it is at this instant, until the returned [`Held`] is dropped. The record
    /// does not contain the server's addresses yet.
    pub(crate) fn freeze(&self, name: &str) -> Result<(Instant, Held), Failure> {
        let disk = self.lock().get(name)?.clone();
        let source = match &disk.kind {
            DiskBacking::Ram(ram) => InstantSource::Ram(Arc::new(ram.fork().map_err(|error| {
                let code = if matches!(error, Error::NoSpace) { Code::NoMemory } else { Code::Failed };
                Failure::new(code, format!("disk '{name}' cannot be frozen: {error}"))
            })?)),
            DiskBacking::Snapshot(ram) => InstantSource::Ram(Arc::clone(ram)),
            DiskBacking::Base(file) => InstantSource::Base(Arc::clone(&file.base)),
        };
        // No disk's name begins like this, and only the control socket's users know the rest.
        let secret = secret()
            .map_err(|error| Failure::new(Code::Failed, format!("the system provides no random numbers: {error}")))?;
        let export = format!("@@{}-{secret:016x}", self.instants.next.fetch_add(1, Relaxed));
        let record = Counted::record(&self.pool, &export, RECORD_BYTES)?;
        let device = source.device();
        let size_bytes = device.size_bytes();
        // Its clients are served even if all connections are in use.
        let served = Export::read_only(export.clone(), device).private();
        self.instants.exports.add(served).map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        self.instants.lock().insert(export.clone(), source);
        let instant = Instant {
            name: name.to_owned(),
            export: export.clone(),
            size_bytes,
            sockets: Vec::new(),
            addresses: Vec::new(),
            base: disk.base().and_then(|file| told(&file.base)),
        };
        Ok((
            instant,
            Held { instants: Arc::clone(&self.instants), export, _base: disk.base().cloned(), _record: record },
        ))
    }

    /// Returns where the data of an instant are stored, starting at a byte, as far as fits into one
    /// answer.
    pub(crate) fn frozen_runs(&self, export: &str, offset_bytes: u64) -> Result<FrozenRuns, Failure> {
        let source = self.instants.lock().get(export).cloned();
        let source = source.ok_or_else(|| {
            Failure::new(Code::NoSuchDisk, format!("no instant is served as '{export}': its connection may have ended"))
        })?;
        let size_bytes = source.device().size_bytes();
        let len_bytes = size_bytes.saturating_sub(offset_bytes).min(MAX_LOOKED_AT_BYTES);
        let (mut runs, mut at) = (Vec::<FrozenRun>::new(), offset_bytes);
        if len_bytes > 0 {
            let each = &mut |len_bytes, stored| {
                let is_full = runs.len() == MAX_RUNS;
                match runs.last_mut() {
                    Some(last) if last.stored == stored => last.len_bytes += len_bytes,
                    _ if is_full => return false,
                    _ => runs.push(FrozenRun { len_bytes, stored }),
                }
                at += len_bytes;
                true
            };
            let failed = |error: Error| Failure::new(Code::Failed, error.to_string());
            source.runs(offset_bytes, len_bytes, each).map_err(failed)?;
        }
        Ok(FrozenRuns { runs, next_bytes: (at < size_bytes).then_some(at) })
    }
}

/// Returns a number that is hard to guess.
fn secret() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns what a client must know to read a base by itself; `None` if its path is not UTF-8.
fn told(base: &Base) -> Option<BaseRecord> {
    Some(BaseRecord {
        path: base.path().to_str()?.to_owned(),
        inside: base.inside().map(|inside| String::from_utf8(inside.to_vec())).transpose().ok()?,
        format: base.format().to_string(),
        identity: base.identity().to_owned(),
    })
}

impl Instants {
    pub(crate) fn new(exports: Exports) -> Self {
        Self { exports, next: AtomicU64::new(1), sources: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, InstantSource>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InstantSource {
    fn device(&self) -> Arc<dyn BlockDevice> {
        match self {
            Self::Ram(ram) => Arc::clone(ram) as _,
            Self::Base(base) => Arc::clone(base) as _,
        }
    }

    fn runs(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(u64, Stored) -> bool) -> Result<(), Error> {
        let below = |extent: &Extent| if extent.zero { Stored::BaseZeros } else { Stored::Base };
        match self {
            Self::Base(base) => base.extents(offset, len_bytes, &mut |extent| each(extent.len_bytes, below(&extent))),
            Self::Ram(ram) => ram.layered_extents(offset, len_bytes, &mut |extent, layer| {
                let stored = match layer {
                    Layer::Below => below(&extent),
                    Layer::Own if extent.zero => Stored::OwnZeros,
                    Layer::Own => Stored::Own,
                };
                each(extent.len_bytes, stored)
            }),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.instants.exports.remove(&self.export);
        let source = self.instants.lock().remove(&mem::take(&mut self.export));
        // Freeing a fork may take time, so no lock is held.
        drop(source);
    }
}
