//! Named devices, added and removed while a server runs.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use pagefold_disk::{BlockDevice, Checked};

use crate::{
    activity::{Activities, Activity, AllDone, Latencies, Removed},
    quota::{Quota, RateLimit},
    watch::{Event, Watch, Watchers},
};

/// Longest name of an export in bytes: what NBD allows.
pub const MAX_NAME_BYTES: usize = 4096;

/// Why an export cannot be added or renamed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Two exports have the same name.
    #[error("duplicate export name `{0}`: give each export its own name")]
    Duplicate(String),
    /// No export has the name that is to be changed.
    #[error("no export named `{0}`")]
    Unknown(String),
    /// A name is too long.
    #[error("export name of {0} bytes: at most {MAX_NAME_BYTES} are allowed")]
    TooLong(usize),
    /// Two exports have the same number, or it is the greatest.
    #[error("export number {0} cannot be used")]
    Number(u64),
    /// A name contains control characters, which clients and logs cannot show.
    #[error("export name with control characters: {0:?}")]
    Control(String),
}

/// A device as a connection uses it: it checks every request.
pub type Device = Checked<Arc<dyn BlockDevice>>;

/// A device with a name.
pub struct Export {
    name: Mutex<Arc<str>>,
    read_only: bool,
    hidden: bool,
    private: bool,
    rate: Arc<RateLimit>,
    /// Of the set that the export was added to.
    latencies: Option<Arc<Latencies>>,
    state: Mutex<ExportState>,
}

/// Taking `device` removes the export permanently; every access is then closed.
struct ExportState {
    device: Option<Arc<dyn BlockDevice>>,
    accesses: Vec<Weak<Access>>,
    activities: Activities,
    quota: Quota,
}

/// What an export that was removed leaves.
struct Left {
    device: Option<Arc<dyn BlockDevice>>,
    accesses: Vec<Weak<Access>>,
}

impl ExportState {
    fn connections(&self) -> usize {
        let accesses = self.accesses.iter().filter_map(Weak::upgrade);
        accesses.filter(|access| access.is_seated.load(Ordering::Relaxed)).count()
    }
}

/// One connection's access to its export's device, closed when the export is removed.
///
/// Each connection has its own reference count, which its requests change. Connections to the same
/// export therefore share no cache line for it. Nothing holds the device while waiting for a peer,
/// so a removed device lives only as long as its last request.
pub struct Access {
    device: Mutex<Option<Arc<Device>>>,
    /// Whether a connection has chosen the export with it.
    is_seated: AtomicBool,
    /// The rate of the export's clients.
    pub rate: Arc<RateLimit>,
    /// What the connection does.
    pub activity: Arc<Activity>,
}

impl Access {
    /// Returns the device, or `None` once the export has been removed.
    pub fn device(&self) -> Option<Arc<Device>> {
        lock(&self.device).clone()
    }

    /// Returns whether the export has been removed.
    pub fn is_closed(&self) -> bool {
        lock(&self.device).is_none()
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Access").field(&lock(&self.device).is_some()).finish()
    }
}

/// Locks a mutex. A panic cannot leave the data of any of these locks half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Export {
    /// Serves `device` as `name`. The empty name is an ordinary name.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        let read_only = device.read_only();
        Self::made(name.into(), device, read_only)
    }

    /// Serves `device` as `name` and refuses every change.
    pub fn read_only(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self::made(name.into(), device, true)
    }

    /// Keeps the export from lists. Only clients that know the name can
    /// use it, so the name should be hard to guess.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// [Hides](Self::hidden) the export, and lets clients use it although
    /// all the places for connections are in use: it has places of its own.
    #[must_use]
    pub fn private(mut self) -> Self {
        self.private = true;
        self.hidden()
    }

    /// Bounds what its clients may take from the start.
    #[must_use]
    pub fn with_quota(self, quota: Quota) -> Self {
        self.set_quota(quota);
        self
    }

    /// Returns whether the export is kept from lists.
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// Returns whether the export has places of its own.
    pub fn is_private(&self) -> bool {
        self.private
    }

    fn made(name: String, device: Arc<dyn BlockDevice>, read_only: bool) -> Self {
        let state = ExportState {
            device: Some(device),
            accesses: Vec::new(),
            activities: Activities::default(),
            quota: Quota::default(),
        };
        let (name, rate) = (Mutex::new(name.into()), Arc::default());
        Self { name, read_only, hidden: false, private: false, rate, latencies: None, state: Mutex::new(state) }
    }

    /// Returns the name that clients ask for.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&lock(&self.name))
    }

    /// Returns whether the export refuses every change.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether its content never changes, as that of a base or a snapshot. That of another
    /// export that refuses every change may be replaced by its server.
    pub fn never_changes(&self) -> bool {
        lock(&self.state).device.as_ref().is_some_and(|device| device.read_only())
    }

    /// Returns the number of open connections that have chosen this export.
    pub fn connections(&self) -> usize {
        lock(&self.state).connections()
    }

    /// Returns the size of the device, or `None` once the export has been removed.
    pub fn size_bytes(&self) -> Option<u64> {
        let device = lock(&self.state).device.clone()?;
        Some(device.size_bytes())
    }

    /// Returns what its clients may take.
    pub fn quota(&self) -> Quota {
        lock(&self.state).quota
    }

    /// Sets what its clients may take; returns what they might before. Connections above a smaller
    /// number stay.
    pub fn set_quota(&self, quota: Quota) -> Quota {
        let mut state = lock(&self.state);
        if quota.bytes_per_second != state.quota.bytes_per_second {
            self.rate.set(quota.bytes_per_second);
        }
        std::mem::replace(&mut state.quota, quota)
    }

    /// Counts a connection that has chosen the export with `access`. Fails with the number of
    /// connections that the export may have if it has as many.
    pub fn seat(&self, access: &Access) -> Result<(), usize> {
        let state = lock(&self.state);
        match state.quota.connections.filter(|&most| state.connections() >= most) {
            Some(most) => Err(most),
            None => {
                access.is_seated.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Returns the number of requests that the device is working on.
    pub fn requests(&self) -> usize {
        let state = lock(&self.state);
        let accesses = state.accesses.iter().filter_map(Weak::upgrade);
        // Besides the access, each thread that uses the device has a reference to it.
        accesses.map(|access| lock(&access.device).as_ref().map_or(0, |device| Arc::strong_count(device) - 1)).sum()
    }

    fn checked(&self, device: Arc<dyn BlockDevice>) -> Device {
        if self.read_only { Checked::read_only(device) } else { Checked::new(device) }
    }

    /// Gives one more connection access to the device, unless the export has been removed.
    pub fn open(&self) -> Option<Arc<Access>> {
        let mut state = lock(&self.state);
        let device = self.checked(state.device.clone()?);
        let access = Arc::new(Access {
            device: Mutex::new(Some(Arc::new(device))),
            is_seated: AtomicBool::new(false),
            rate: Arc::clone(&self.rate),
            activity: state.activities.begin(self.latencies.clone()),
        });
        state.accesses.retain(|access| access.strong_count() != 0);
        state.accesses.push(Arc::downgrade(&access));
        Some(access)
    }

    /// Gives a connection that another server has accepted access to the device, unless the export has
    /// been removed. It counts as one of the export's, however many there are.
    pub fn reopen(&self) -> Option<Arc<Access>> {
        let access = self.open()?;
        access.is_seated.store(true, Ordering::Relaxed);
        Some(access)
    }

    /// Returns whether `access` is one to this export.
    pub fn is_of(&self, access: &Arc<Access>) -> bool {
        lock(&self.state).accesses.iter().any(|own| own.as_ptr() == Arc::as_ptr(access))
    }

    /// Returns what its clients have done since it was added.
    pub fn done(&self) -> AllDone {
        lock(&self.state).activities.done()
    }

    /// Returns whether it has not been removed.
    fn exists(&self) -> bool {
        lock(&self.state).device.is_some()
    }

    /// Returns whether the device tracks which of its ranges have changed.
    pub fn knows_changes(&self) -> bool {
        lock(&self.state).device.as_ref().is_some_and(|device| device.knows_changes())
    }

    /// Keeps later clients from the export. Also returns what its clients do.
    fn leave(&self) -> (Left, Activities) {
        let mut state = lock(&self.state);
        let left = Left { device: state.device.take(), accesses: std::mem::take(&mut state.accesses) };
        (left, std::mem::take(&mut state.activities))
    }
}

impl Left {
    /// Keeps later requests from the device, which is dropped with the last request that uses it.
    fn close(self) {
        let Self { device, accesses } = self;
        // Dropping a device may take time, so no lock is held.
        for access in accesses.iter().filter_map(Weak::upgrade) {
            let device = lock(&access.device).take();
            drop(device);
        }
        let waits = device.as_ref().and_then(|device| device.waits().cloned());
        drop(device);
        // Waiting requests now fail instead of waiting for room.
        if let Some(waits) = waits {
            waits.signal();
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("name", &self.name()).field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// The exports of a server, each with its own name. Clones are handles to the same exports, so
/// exports can be added, removed and renamed while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    table: Arc<RwLock<ExportTable>>,
    /// If set, the set is this export alone, whatever its name, and the table is empty.
    only: Option<Arc<Export>>,
}

/// `numbers` and `by_age` refer to the same exports.
#[derive(Debug, Default)]
struct ExportTable {
    numbers: HashMap<Arc<str>, u64>,
    /// Keyed by number; the oldest export has the lowest.
    by_age: BTreeMap<u64, Arc<Export>>,
    next_number: u64,
    watchers: Watchers,
    latencies: Arc<Latencies>,
    removed: Removed,
}

impl Exports {
    /// Creates an empty set. Until an export is added, a server refuses every client's choice.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a set that always has just this export, under its current name and as the default.
    /// Once it has been removed from the set that it came from, clients are refused.
    pub fn only(export: Arc<Export>) -> Self {
        Self { table: Arc::default(), only: Some(export) }
    }

    /// Adds an export. Clients may choose it from now on.
    ///
    /// # Errors
    /// [`ExportError::Duplicate`], or the name is longer than 4096 bytes or has control characters.
    pub fn add(&self, export: Export) -> Result<(), ExportError> {
        let table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let number = table.next_number;
        Self::add_to(table, export, number)
    }

    /// Adds an export with this number, which no other one may ever have had. Later ones get higher
    /// numbers.
    ///
    /// # Errors
    /// As [`add`](Self::add), and [`ExportError::Number`].
    pub fn add_numbered(&self, export: Export, number: u64) -> Result<(), ExportError> {
        let table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if number == u64::MAX || table.by_age.contains_key(&number) {
            return Err(ExportError::Number(number));
        }
        Self::add_to(table, export, number)
    }

    fn add_to(
        mut table: RwLockWriteGuard<'_, ExportTable>,
        mut export: Export,
        number: u64,
    ) -> Result<(), ExportError> {
        let name = export.name();
        check_name(&name)?;
        if table.numbers.contains_key(&name) {
            return Err(ExportError::Duplicate(name.to_string()));
        }
        table.next_number = table.next_number.max(number + 1);
        export.latencies = Some(Arc::clone(&table.latencies));
        let export = Arc::new(export);
        if !export.hidden {
            let (name, export) = (Arc::clone(&name), Arc::clone(&export));
            table.watchers.tell(&Event::Added { number, name, export });
        }
        table.numbers.insert(name, number);
        table.by_age.insert(number, export);
        Ok(())
    }

    /// Returns the number that the next export gets.
    pub fn next_number(&self) -> u64 {
        self.table.read().unwrap_or_else(PoisonError::into_inner).next_number
    }

    /// Leaves out the numbers below `number`.
    pub fn skip_numbers(&self, number: u64) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.next_number = table.next_number.max(number);
    }

    /// Returns the export that this set is, if it is always just [one](Self::only).
    pub fn only_one(&self) -> Option<&Arc<Export>> {
        self.only.as_ref()
    }

    /// Returns what reports the exports that clients may see: those that exist now, and each that
    /// comes, goes or gets another name. A set of [only](Self::only) one export never changes.
    pub fn watch(&self) -> Watch {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = table.by_age.iter().map(|(number, export)| (*number, Arc::clone(export))).collect();
        let only = self.only.iter().filter(|only| only.exists()).map(|only| (0, Arc::clone(only)));
        let seen = all.into_iter().chain(only).filter(|(_, export)| !export.hidden);
        let events = seen.map(|(number, export)| Event::Added { number, name: export.name(), export });
        table.watchers.add(events.collect())
    }

    /// Removes the export with exactly this name; returns `None` if there is none.
    ///
    /// Requests that have reached the device finish. Its clients' later requests fail with
    /// ESHUTDOWN, and their connections end soon after. The server drops the device when the last
    /// request is done, which may be after this returns.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let (name, number) = table.numbers.remove_entry(name)?;
        let export = table.by_age.remove(&number)?;
        if !export.hidden {
            table.watchers.tell(&Event::Removed { number, name, export: Arc::clone(&export) });
        }
        // While the table is locked, so that what was done is always counted once.
        let (left, activities) = export.leave();
        table.removed.lock().add(activities);
        drop(table);
        left.close();
        Some(export)
    }

    /// Renames an export for clients that connect from now on. Existing connections continue.
    ///
    /// # Errors
    /// [`ExportError::Unknown`], and those of [`Exports::add`]. On failure, nothing has changed.
    pub fn rename(&self, old: &str, new: &str) -> Result<(), ExportError> {
        check_name(new)?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let unknown = || ExportError::Unknown(old.to_owned());
        let number = table.numbers.get(old).copied().ok_or_else(unknown)?;
        if old == new {
            return Ok(());
        }
        if table.numbers.contains_key(new) {
            return Err(ExportError::Duplicate(new.to_owned()));
        }
        let name: Arc<str> = new.into();
        let export = table.by_age.get(&number).map(Arc::clone).ok_or_else(unknown)?;
        *lock(&export.name) = Arc::clone(&name);
        table.numbers.remove(old);
        table.numbers.insert(Arc::clone(&name), number);
        if !export.hidden {
            table.watchers.tell(&Event::Renamed { number, before: old.into(), name });
        }
        Ok(())
    }

    /// Returns what clients of all exports have done, also of those that were removed.
    pub fn done(&self) -> AllDone {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut sum = table.removed.lock().done();
        table.by_age.values().for_each(|export| sum.add(&export.done()));
        sum
    }

    /// Returns how long their requests took.
    pub fn latencies(&self) -> Arc<Latencies> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner).latencies)
    }

    /// Returns the number of exports.
    pub fn count(&self) -> usize {
        self.only.as_ref().map_or_else(|| self.table.read().unwrap_or_else(PoisonError::into_inner).by_age.len(), |_| 1)
    }

    /// Returns the current exports, the oldest first.
    pub fn list(&self) -> Vec<Arc<Export>> {
        if let Some(only) = &self.only {
            return only.exists().then(|| Arc::clone(only)).into_iter().collect();
        }
        self.table.read().unwrap_or_else(PoisonError::into_inner).by_age.values().cloned().collect()
    }

    /// Returns up to `most` exports that clients may see, with their numbers: the oldest that are
    /// younger than the one with the number `after`.
    pub fn list_after(&self, after: Option<u64>, most: usize) -> Vec<(u64, Arc<Export>)> {
        if let Some(only) = &self.only {
            let found = (after.is_none() && only.exists()).then(|| (0, Arc::clone(only)));
            return found.into_iter().take(most).collect();
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let seen = table.by_age.range((start, Bound::Unbounded)).filter(|(_, export)| !export.hidden);
        seen.take(most).map(|(number, export)| (*number, Arc::clone(export))).collect()
    }

    /// Returns the export with exactly this name.
    pub fn get(&self, name: &str) -> Option<Arc<Export>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.numbers.get(name).and_then(|number| table.by_age.get(number)).cloned()
    }

    /// Returns the export with exactly this name, and its number, which no other export ever has.
    pub fn get_numbered(&self, name: &str) -> Option<(u64, Arc<Export>)> {
        if let Some(only) = &self.only {
            return (only.exists() && *only.name() == *name).then(|| (0, Arc::clone(only)));
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let number = *table.numbers.get(name)?;
        Some((number, Arc::clone(table.by_age.get(&number)?)))
    }

    /// Returns the export with this number.
    pub fn numbered(&self, number: u64) -> Option<Arc<Export>> {
        if let Some(only) = &self.only {
            return (number == 0 && only.exists()).then(|| Arc::clone(only));
        }
        self.table.read().unwrap_or_else(PoisonError::into_inner).by_age.get(&number).cloned()
    }

    /// Returns the export with this name. If the name is empty and no export has the empty name,
    /// returns the oldest export that is not hidden.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Export>> {
        let name = str::from_utf8(name).ok()?;
        if let Some(only) = &self.only {
            return (only.exists() && (name.is_empty() || *only.name() == *name)).then(|| Arc::clone(only));
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let export = match table.numbers.get(name) {
            Some(number) => table.by_age.get(number),
            None if name.is_empty() => table.by_age.values().find(|export| !export.hidden),
            None => None,
        };
        export.cloned()
    }
}

fn check_name(name: &str) -> Result<(), ExportError> {
    if name.len() > MAX_NAME_BYTES {
        return Err(ExportError::TooLong(name.len()));
    }
    if name.contains(char::is_control) {
        return Err(ExportError::Control(name.to_owned()));
    }
    Ok(())
}
