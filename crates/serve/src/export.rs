//! Named devices, which come and go while a server runs.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
};

use pagefold_disk::{BlockDevice, Checked};

use crate::{
    Error,
    protocol::{MAX_STRING_BYTES, transmission},
};

/// A device whose requests are checked, as a connection uses it.
pub(crate) type Device = Checked<Arc<dyn BlockDevice>>;

/// A device under a name.
pub struct Export {
    name: Mutex<Arc<str>>,
    read_only: bool,
    state: Mutex<ExportState>,
}

/// An export is removed once and for all when `device` is taken; then every access has been closed.
struct ExportState {
    device: Option<Arc<dyn BlockDevice>>,
    accesses: Vec<Weak<Access>>,
}

/// One connection's way to its export's device, closed when the export is removed.
///
/// The reference count that requests change is the connection's own, so connections of one export
/// share no cache line for it. Nobody keeps the device while waiting for a peer: then a removed
/// device lives as long as its last request.
pub(crate) struct Access(Mutex<Option<Arc<Device>>>);

impl Access {
    /// The device; `None` once the export was removed.
    pub(crate) fn device(&self) -> Option<Arc<Device>> {
        lock(&self.0).clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).is_none()
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Access").field(&lock(&self.0).is_some()).finish()
    }
}

/// None of these locks guards data that a panic could leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Export {
    /// Serves `device` as `name`; the empty name is a name like any other.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        let read_only = device.read_only();
        Self::made(name.into(), device, read_only)
    }

    /// Serves `device` as `name` and refuses every change.
    pub fn read_only(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self::made(name.into(), device, true)
    }

    fn made(name: String, device: Arc<dyn BlockDevice>, read_only: bool) -> Self {
        let state = ExportState { device: Some(device), accesses: Vec::new() };
        Self { name: Mutex::new(name.into()), read_only, state: Mutex::new(state) }
    }

    /// The name that clients ask for.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&lock(&self.name))
    }

    /// Whether it refuses every change.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Connections that have chosen it and not ended.
    pub fn connections(&self) -> usize {
        lock(&self.state).accesses.iter().filter(|access| access.strong_count() != 0).count()
    }

    fn checked(&self, device: Arc<dyn BlockDevice>) -> Device {
        if self.read_only { Checked::read_only(device) } else { Checked::new(device) }
    }

    /// Lets one more connection use the device, unless the export was removed.
    pub(crate) fn open(&self) -> Option<Arc<Access>> {
        let mut state = lock(&self.state);
        let device = self.checked(state.device.clone()?);
        let access = Arc::new(Access(Mutex::new(Some(Arc::new(device)))));
        state.accesses.retain(|access| access.strong_count() != 0);
        state.accesses.push(Arc::downgrade(&access));
        Some(access)
    }

    /// Whether its device knows what of it was changed.
    pub(crate) fn knows_changes(&self) -> bool {
        lock(&self.state).device.as_ref().is_some_and(|device| device.knows_changes())
    }

    /// Lets no later request reach the device, which is dropped with the last that has.
    fn close(&self) {
        let mut state = lock(&self.state);
        let device = state.device.take();
        let accesses = std::mem::take(&mut state.accesses);
        drop(state);
        // A device may take its time to be dropped: no lock is held then.
        for access in accesses.iter().filter_map(Weak::upgrade) {
            let device = lock(&access.0).take();
            drop(device);
        }
        let waits = device.as_ref().and_then(|device| device.waits().cloned());
        drop(device);
        // What waits for room waits for nothing any more.
        if let Some(waits) = waits {
            waits.signal();
        }
    }

    /// The export's transmission flags for a client that negotiated `structured` replies or not.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::CAN_MULTI_CONN
            | transmission::SEND_CACHE;
        flags |= if self.read_only {
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

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("name", &self.name()).field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// The exports of a server, each with its own name. Clones are handles to the same exports, so they
/// can be added, removed and renamed while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Exports(Arc<RwLock<ExportTable>>);

/// `numbers` and `by_age` name the same exports.
#[derive(Debug, Default)]
struct ExportTable {
    numbers: HashMap<Arc<str>, u64>,
    /// By number; the least was added first.
    by_age: BTreeMap<u64, Arc<Export>>,
    next_number: u64,
}

impl Exports {
    /// No exports yet. Until one is added, a server refuses every client's choice.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an export: clients may choose it from now on.
    ///
    /// # Errors
    /// [`Error::DuplicateExport`], or the name is longer than 4096 bytes or has control characters.
    pub fn add(&self, export: Export) -> Result<(), Error> {
        let name = export.name();
        check_name(&name)?;
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if table.numbers.contains_key(&name) {
            return Err(Error::DuplicateExport(name.to_string()));
        }
        let number = table.next_number;
        table.next_number += 1;
        table.numbers.insert(name, number);
        table.by_age.insert(number, Arc::new(export));
        Ok(())
    }

    /// Removes the export of exactly this name; `None` if there is none.
    ///
    /// Requests that have reached the device finish. Later ones of its clients fail with ESHUTDOWN,
    /// and their connections end soon. The server drops the device when the last request is done,
    /// which may be after this returns.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let number = table.numbers.remove(name)?;
        let export = table.by_age.remove(&number)?;
        drop(table);
        export.close();
        Some(export)
    }

    /// Gives an export another name, for clients that come from now on. Its connections go on.
    ///
    /// # Errors
    /// [`Error::UnknownExport`], and those of [`Exports::add`]. Nothing has changed then.
    pub fn rename(&self, old: &str, new: &str) -> Result<(), Error> {
        check_name(new)?;
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let unknown = || Error::UnknownExport(old.to_owned());
        let number = table.numbers.get(old).copied().ok_or_else(unknown)?;
        if old == new {
            return Ok(());
        }
        if table.numbers.contains_key(new) {
            return Err(Error::DuplicateExport(new.to_owned()));
        }
        let name: Arc<str> = new.into();
        *lock(&table.by_age.get(&number).ok_or_else(unknown)?.name) = Arc::clone(&name);
        table.numbers.remove(old);
        table.numbers.insert(name, number);
        Ok(())
    }

    /// The exports of this moment, the one that was added first first.
    pub fn list(&self) -> Vec<Arc<Export>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_age.values().cloned().collect()
    }

    /// The export of exactly this name.
    pub fn get(&self, name: &str) -> Option<Arc<Export>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.numbers.get(name).and_then(|number| table.by_age.get(number)).cloned()
    }

    /// The export of this name; the one that was added first when the name is empty and no export
    /// has the empty name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<Arc<Export>> {
        let name = str::from_utf8(name).ok()?;
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let export = match table.numbers.get(name) {
            Some(number) => table.by_age.get(number),
            None if name.is_empty() => table.by_age.values().next(),
            None => None,
        };
        export.cloned()
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.len() > MAX_STRING_BYTES {
        return Err(Error::NameTooLong(name.len()));
    }
    if name.contains(char::is_control) {
        return Err(Error::ControlInName(name.to_owned()));
    }
    Ok(())
}
