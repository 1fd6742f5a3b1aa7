//! Named devices.

use std::{
    fmt,
    sync::{Arc, Mutex, TryLockError},
    thread,
    time::{Duration, Instant},
};

use pagefold_disk::{BlockDevice, Checked, Compacted};

use crate::{
    Error,
    protocol::{MAX_STRING_BYTES, transmission},
};

/// What one request to compact works at most.
const COMPACT_TIME: Duration = Duration::from_secs(2);

/// A device under a name.
pub struct Export {
    name: String,
    device: Checked<Arc<dyn BlockDevice>>,
    /// Held by whoever has the device compacted; it says when the next may.
    next_compaction: Mutex<Instant>,
}

impl Export {
    /// Serves `device` as `name`; the empty name is a name like any other.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self::checked(name.into(), Checked::new(device))
    }

    /// Serves `device` as `name` and refuses every change.
    pub fn read_only(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self::checked(name.into(), Checked::read_only(device))
    }

    fn checked(name: String, device: Checked<Arc<dyn BlockDevice>>) -> Self {
        Self { name, device, next_compaction: Mutex::new(Instant::now()) }
    }

    /// The name that clients ask for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Has the device compacted; `Err` when somebody else does so now.
    ///
    /// After each time there is a rest of the same length, for which the next waits. So peers that ask for it again and
    /// again take half of one CPU at most, and each of them at most four seconds and `time_left`, less than half of which
    /// it works.
    pub(crate) fn compact(&self, time_left: Duration) -> Result<Option<Compacted>, Busy> {
        let mut next = match self.next_compaction.try_lock() {
            Ok(next) => next,
            // It guards no data that could be half changed.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Busy),
        };
        let rest = next.saturating_duration_since(Instant::now());
        let time = COMPACT_TIME.min(time_left / 4);
        if rest > time_left / 2 {
            return Err(Busy);
        }
        thread::sleep(rest);
        let start = Instant::now();
        let done = self.device.compact(time);
        let took = start.elapsed();
        *next = Instant::now().checked_add(took).unwrap_or(start);
        Ok(done)
    }

    pub(crate) fn device(&self) -> &Checked<Arc<dyn BlockDevice>> {
        &self.device
    }

    /// The export's transmission flags for a client that negotiated `structured` replies or not.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::CAN_MULTI_CONN
            | transmission::SEND_CACHE;
        flags |= if self.device.read_only() {
            transmission::READ_ONLY
        } else {
            transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO
        };
        if structured {
            flags |= transmission::SEND_DF;
        }
        flags
    }
}

/// Somebody else has the export compacted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy;

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("name", &self.name).field("size_bytes", &self.device.size_bytes()).finish()
    }
}

/// The exports of a server: at least one, each with its own name.
#[derive(Clone, Debug)]
pub struct Exports(Arc<[Arc<Export>]>);

impl Exports {
    /// Checks the names.
    pub fn new(exports: impl IntoIterator<Item = Export>) -> Result<Self, Error> {
        let exports: Arc<[Arc<Export>]> = exports.into_iter().map(Arc::new).collect();
        if exports.is_empty() {
            return Err(Error::NoExport);
        }
        for (index, export) in exports.iter().enumerate() {
            if export.name.len() > MAX_STRING_BYTES {
                return Err(Error::NameTooLong(export.name.len()));
            }
            if export.name.contains(char::is_control) {
                return Err(Error::ControlInName(export.name.clone()));
            }
            if exports.iter().take(index).any(|before| before.name == export.name) {
                return Err(Error::DuplicateExport(export.name.clone()));
            }
        }
        Ok(Self(exports))
    }

    /// The export of this name; the first one when the name is empty and no export has the empty name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&Arc<Export>> {
        let named = self.0.iter().find(|export| export.name.as_bytes() == name);
        named.or_else(|| if name.is_empty() { self.0.first() } else { None })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.0.iter()
    }
}
