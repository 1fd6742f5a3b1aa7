//! A device with a name, which can be removed while a server runs.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pagefold_disk::{BlockDevice, Checked};

use crate::{
    activity::{Activities, Activity, AllDone, Latencies},
    quota::{Quota, RateLimit},
};

/// A device as a connection uses it: it checks every request.
pub type Device = Checked<Arc<dyn BlockDevice>>;

/// A device with a name.
pub struct Export {
    name: Mutex<Arc<str>>,
    read_only: bool,
    pub(crate) hidden: bool,
    private: bool,
    rate: Arc<RateLimit>,
    /// The histograms of the set that the export was added to.
    pub(crate) latencies: Option<Arc<Latencies>>,
    state: Mutex<ExportState>,
}

/// Taking `device` removes the export permanently; every access is then closed.
struct ExportState {
    device: Option<Arc<dyn BlockDevice>>,
    accesses: Vec<Weak<Access>>,
    activities: Activities,
    quota: Quota,
}

/// The remains of a removed export.
pub(crate) struct Left {
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
    /// Whether a connection that uses this access has chosen the export.
    is_seated: AtomicBool,
    /// The rate of the export's clients.
    pub rate: Arc<RateLimit>,
    /// Counts the connection's requests.
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

    /// Sets the quota that its clients have from the start.
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

    pub(crate) fn set_name(&self, name: Arc<str>) {
        *lock(&self.name) = name;
    }

    /// Returns whether the export refuses every change.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether its content never changes, like a base's or a snapshot's. Another read-only
    /// export's content may be replaced by its server.
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

    /// Returns the quota of its clients.
    pub fn quota(&self) -> Quota {
        lock(&self.state).quota
    }

    /// Sets the quota of its clients, and returns the previous one. If more connections exist than
    /// a smaller number permits, they stay.
    pub fn set_quota(&self, quota: Quota) -> Quota {
        let mut state = lock(&self.state);
        if quota.bytes_per_second != state.quota.bytes_per_second {
            self.rate.set(quota.bytes_per_second);
        }
        std::mem::replace(&mut state.quota, quota)
    }

    /// Sets how long each read and write of its clients waits, apart from the quota: a server that
    /// sends its disks elsewhere must send faster than clients write.
    pub fn brake(&self, wait: Option<Duration>) {
        self.rate.brake(wait);
    }

    /// Counts a connection that has chosen the export with `access`. If the export already has as
    /// many connections as it may have, fails with that number.
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
        // In addition to the access, each thread that uses the device has a reference to it.
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

    /// Gives a connection that another server has accepted access to the device, unless the export
    /// has been removed. It counts as one of the export's connections, even above their maximum.
    pub fn reopen(&self) -> Option<Arc<Access>> {
        let access = self.open()?;
        access.is_seated.store(true, Ordering::Relaxed);
        Some(access)
    }

    /// Returns whether `access` is one to this export.
    pub fn is_of(&self, access: &Arc<Access>) -> bool {
        lock(&self.state).accesses.iter().any(|own| own.as_ptr() == Arc::as_ptr(access))
    }

    /// Returns the counts of its clients' requests since it was added.
    pub fn done(&self) -> AllDone {
        lock(&self.state).activities.done()
    }

    /// Returns whether this export still exists.
    pub(crate) fn exists(&self) -> bool {
        lock(&self.state).device.is_some()
    }

    /// Returns whether the device tracks which of its ranges have changed.
    pub fn knows_changes(&self) -> bool {
        lock(&self.state).device.as_ref().is_some_and(|device| device.knows_changes())
    }

    /// Keeps later clients from the export. Also returns its clients' activities.
    pub(crate) fn leave(&self) -> (Left, Activities) {
        let mut state = lock(&self.state);
        let left = Left { device: state.device.take(), accesses: std::mem::take(&mut state.accesses) };
        (left, std::mem::take(&mut state.activities))
    }
}

impl Left {
    /// Keeps later requests from the device, which is dropped with the last request that uses it.
    pub(crate) fn close(self) {
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
