//! Disks as they were at one instant, served while a client reads them.

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

use pagefold_control::{Code, Failure, FrozenRun, FrozenRuns, Instant};
use pagefold_disk::Pool;
use pagefold_serve::{Export, Exports};

use crate::{
    backing::{Backing, BaseDisk},
    counted::Counted,
    disk::{Disk, RECORD_BYTES},
};

/// Maximum number of runs per answer: about 50 KiB of JSON.
const MAX_RUNS: usize = 1024;

/// Maximum number of bytes of a disk to examine per answer: takes some milliseconds if every page
/// has to be examined.
const MAX_LOOKED_AT_BYTES: u64 = 1 << 30;

/// Instants by the names of their exports.
pub(crate) struct Instants {
    exports: Exports,
    next: AtomicU64,
    contents: Mutex<BTreeMap<String, Backing>>,
}

/// An instant, which exists until this is dropped.
pub(crate) struct HeldInstant {
    instants: Arc<Instants>,
    export: String,
    /// Keeps the base accounted for while it is read.
    _base: Option<Arc<BaseDisk>>,
    _record: Arc<Counted>,
}

impl Instants {
    pub(crate) fn new(exports: Exports) -> Self {
        Self { exports, next: AtomicU64::new(1), contents: Mutex::default() }
    }

    /// Serves the disk `name` as it is at this instant, until the returned [`HeldInstant`] is
    /// dropped. The record does not contain the server's addresses yet.
    pub(crate) fn hold(
        self: &Arc<Self>,
        pool: &Pool,
        name: &str,
        disk: &Disk,
    ) -> Result<(Instant, HeldInstant), Failure> {
        let content = disk.backing.frozen(name)?;
        // No disk's name has this prefix, and only users of the control socket learn the rest.
        let secret = secret()
            .map_err(|error| Failure::new(Code::Failed, format!("the system provides no random numbers: {error}")))?;
        let export = format!("@@{}-{secret:016x}", self.next.fetch_add(1, Relaxed));
        let record = Counted::record(pool, &export, RECORD_BYTES)?;
        let size_bytes = content.size_bytes();
        // Clients of the instant are served even if all connections are in use.
        let served = Export::read_only(export.clone(), content.device(None)).private();
        self.exports.add(served).map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        self.lock().insert(export.clone(), content);
        let instant = Instant {
            name: name.to_owned(),
            export: export.clone(),
            size_bytes,
            sockets: Vec::new(),
            addresses: Vec::new(),
            base: disk.base().and_then(|base| base.record()),
        };
        let base = disk.base().cloned();
        Ok((instant, HeldInstant { instants: Arc::clone(self), export, _base: base, _record: record }))
    }

    /// Returns what an instant contains.
    pub(crate) fn content(&self, export: &str) -> Result<Backing, Failure> {
        let content = self.lock().get(export).cloned();
        content.ok_or_else(|| {
            Failure::new(Code::NoSuchDisk, format!("no instant is served as '{export}': its connection may have ended"))
        })
    }

    /// Returns where the data of an instant are stored, starting at a byte, up to the length of one
    /// answer.
    pub(crate) fn runs(&self, export: &str, offset_bytes: u64) -> Result<FrozenRuns, Failure> {
        let content = self.content(export)?;
        let size_bytes = content.size_bytes();
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
            content.runs(offset_bytes, len_bytes, each)?;
        }
        Ok(FrozenRuns { runs, next_bytes: (at < size_bytes).then_some(at) })
    }

    /// Returns whether any disk is frozen.
    pub(crate) fn exist(&self) -> bool {
        !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Backing>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a number that is hard to guess.
fn secret() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Drop for HeldInstant {
    fn drop(&mut self) {
        self.instants.exports.remove(&self.export);
        let content = self.instants.lock().remove(&mem::take(&mut self.export));
        // Freeing a fork may take time, so no lock is held.
        drop(content);
    }
}
