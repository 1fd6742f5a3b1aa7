//! Ways to a server's disks other than NBD.

use std::{
    fmt,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use pagefold_control::{BindSpare, NewDevice};
use pagefold_executor::{Client, ClientLimits, Executor, Export, Exports, OpenError};
use pagefold_serve::{ServerHandle, Shared};
use serde_json::value::RawValue;

use crate::{Ending, Observer, TransportError};

/// A way to a server's disks, added with [`Sockets::transport`](crate::Sockets::transport).
///
/// It follows the exports with [`Exports::watch`], and opens one for each of its clients with
/// [`Host::open`]. As for NBD, a disk with a client is in use.
pub trait Transport: Send {
    /// Begins to serve, in threads of its own. When this returns, clients can use the disks that
    /// exist.
    ///
    /// # Errors
    /// The transport cannot serve. The server then does not listen.
    fn start(&mut self, host: &Host) -> Result<(), TransportError>;

    /// Ends serving: accepts no more requests, disconnects clients, and returns when their requests
    /// are done or [`Ending::is_forced`] is true. Called once when the server ends, unless `start`
    /// failed. The disks still exist.
    fn stop(&mut self);

    /// Finishes the requests in progress, and begins no others until [`go_on`](Self::go_on) or
    /// [`give_away`](Self::give_away). Returns what another process needs to continue, or `None`,
    /// the default, if there is nothing to continue.
    ///
    /// # Errors
    /// Requests have not ended within `patience`, or cannot be handed over; the text says why. The
    /// transport continues.
    fn pause(&mut self, patience: Duration) -> Result<Option<HandedTransport>, String> {
        let _ = patience;
        Ok(None)
    }

    /// Ends a pause, or begins to serve what was taken over. It cannot fail: only this process
    /// serves the clients.
    fn go_on(&mut self) {}

    /// Ends, but leaves clients to the process that takes them over, or from which they were taken
    /// over.
    fn give_away(&mut self) {}
}

/// What a paused transport hands over to another process.
pub struct HandedTransport {
    /// The name by which the other process finds the transport that can continue.
    pub name: &'static str,
    /// The state without its descriptors, as JSON. A field that a later version adds needs a default.
    pub state: Box<RawValue>,
    /// Those that belong to the state.
    pub descriptors: Vec<Shared>,
}

/// What another process has handed over. A transport that is made from this is passed to
/// [`Sockets::taken_transport`](crate::Sockets::taken_transport).
#[derive(Debug)]
pub struct TakenTransport {
    /// The name that its transport has given.
    pub name: String,
    /// Unchecked JSON.
    pub state: Box<RawValue>,
    /// Those that belong to the state, unchecked.
    pub descriptors: Vec<OwnedFd>,
}

impl fmt::Debug for HandedTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedTransport").field("name", &self.name).field("state", &self.state).finish_non_exhaustive()
    }
}

/// Disks as files.
pub trait DiskFiles: Send + Sync {
    /// Returns the path of the disk with this name, if it has one.
    fn of(&self, disk: &str) -> Option<PathBuf>;

    /// Makes changes of an open file fail rather than wait for room. Returns whether this transport
    /// has the file.
    fn end(&self, file: &Path) -> bool;
}

/// The disks as files, once a transport has announced them.
#[derive(Default)]
pub(crate) struct FileServer(OnceLock<Box<dyn DiskFiles>>);

impl FileServer {
    pub(crate) fn of(&self, disk: &str) -> Option<PathBuf> {
        self.0.get()?.of(disk)
    }

    pub(crate) fn end(&self, file: &Path) -> bool {
        self.0.get().is_some_and(|files| files.end(file))
    }
}

/// A check that returns why something cannot be handed over now, if so.
type Obstacle = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Checks for obstacles to handing a server over.
#[derive(Default)]
pub(crate) struct Obstacles(Mutex<Vec<Obstacle>>);

impl Obstacles {
    pub(crate) fn add(&self, obstacle: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(obstacle));
    }

    /// Returns the first obstacle.
    pub(crate) fn first(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().find_map(|obstacle| obstacle())
    }
}

/// Serves disks through block devices that clients of the control socket have created.
pub trait Devices: Send + Sync {
    /// Serves an export as the device that is open as `file`. When this returns, the device can be
    /// started.
    ///
    /// # Errors
    /// It cannot be served; the text says why.
    fn serve(&self, export: &Arc<Export>, device: &NewDevice, file: OwnedFd) -> Result<(), String>;

    /// Makes requests of a device fail instead of waiting for room. Returns whether this transport
    /// serves the device.
    fn end(&self, device: &Path) -> bool;

    /// Adds an export that is not yet a disk's, and returns its name.
    ///
    /// # Errors
    /// There can be no more such exports; the text says why.
    fn spare(&self, size_bytes: u64) -> Result<String, String>;

    /// Makes such an export the disk's.
    ///
    /// # Errors
    /// It already belongs to another disk, does not fit, or the disk cannot be opened; the text
    /// says why.
    fn bind(&self, export: &Arc<Export>, bind: &BindSpare) -> Result<(), String>;

    /// Returns the path of the device that serves the export with this name, if one does.
    fn of(&self, disk: &str) -> Option<PathBuf>;
}

/// The server of devices, once a transport has announced it.
#[derive(Default)]
pub(crate) struct DeviceServer {
    devices: OnceLock<Box<dyn Devices>>,
    fault: Mutex<Option<String>>,
}

impl DeviceServer {
    pub(crate) fn get(&self) -> Option<&dyn Devices> {
        self.devices.get().map(|devices| &**devices)
    }

    pub(crate) fn of(&self, disk: &str) -> Option<PathBuf> {
        self.get()?.of(disk)
    }

    /// Returns what has gone wrong in the kernel; sets it if `why` is given.
    pub(crate) fn fault(&self, why: Option<String>) -> Option<String> {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if why.is_some() {
            *fault = why;
        }
        fault.clone()
    }
}

/// What a server offers a transport.
#[derive(Clone)]
pub struct Host {
    pub(crate) exports: Exports,
    pub(crate) server: ServerHandle,
    pub(crate) executor: Arc<Executor>,
    pub(crate) limits: ClientLimits,
    pub(crate) observer: Observer,
    pub(crate) ending: Ending,
    pub(crate) files: Arc<FileServer>,
    pub(crate) devices: Arc<DeviceServer>,
    pub(crate) obstacles: Arc<Obstacles>,
}

impl Host {
    /// Adds a check: the server cannot be handed over while `obstacle` returns a reason.
    pub fn announce_obstacle(&self, obstacle: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.obstacles.add(obstacle);
    }

    /// Returns the server's exports: its disks, under their names.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Returns the threads for requests, and the memory of clients.
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// Returns the observer for the transport's log lines.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Returns how to end the server, and whether it ends.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Announces the transport that shows disks as files. Only the first such announcement counts.
    pub fn announce_files(&self, files: impl DiskFiles + 'static) {
        // Later announcements are ignored.
        let _ = self.files.0.set(Box::new(files));
    }

    /// Announces the transport that serves disks as block devices. Only the first such announcement
    /// counts.
    pub fn announce_devices(&self, devices: impl Devices + 'static) {
        // Later announcements are ignored.
        let _ = self.devices.devices.set(Box::new(devices));
    }

    /// Opens an export for a client, which counts as one of the server's connections. Its disk is in use
    /// as long as the client exists.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, export: &Export) -> Result<Arc<Client>, OpenError> {
        let seat = self.server.seat_other(export, self.exports.count()).map_err(OpenError::ServerFull)?;
        Client::open_in(&self.executor, export, self.limits, seat)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("exports", &self.exports.count()).finish_non_exhaustive()
    }
}

/// The transports that were started. They are stopped when this is dropped.
#[derive(Default)]
pub(crate) struct Started(Mutex<Vec<Box<dyn Transport>>>);

/// Transports that pause. They continue when this is dropped.
pub(crate) struct PausedTransports<'a> {
    started: &'a Started,
    pub(crate) handed: Vec<HandedTransport>,
}

impl PausedTransports<'_> {
    /// Leaves all clients to another process.
    pub(crate) fn give_away(self) {
        self.started.give_away();
    }
}

impl Drop for PausedTransports<'_> {
    fn drop(&mut self) {
        self.started.go_on();
    }
}

/// Waiting transports that continue those of another process. Dropping this gives them away.
pub(crate) struct WaitingTransports<'a> {
    started: &'a Started,
    waiting: Vec<Box<dyn Transport>>,
}

impl WaitingTransports<'_> {
    /// Makes them serve.
    pub(crate) fn begin(mut self) {
        let mut started = self.started.lock();
        started.extend(self.waiting.drain(..).map(|mut transport| {
            transport.go_on();
            transport
        }));
    }
}

impl Drop for WaitingTransports<'_> {
    fn drop(&mut self) {
        self.waiting.drain(..).for_each(|mut transport| transport.give_away());
    }
}

impl Started {
    /// Starts transports that continue those of another process. If one cannot, none does.
    pub(crate) fn start_taken(
        &self,
        transports: Vec<Box<dyn Transport>>,
        host: &Host,
    ) -> Result<WaitingTransports<'_>, TransportError> {
        let mut taken = WaitingTransports { started: self, waiting: Vec::new() };
        for mut transport in transports {
            transport.start(host)?;
            taken.waiting.push(transport);
        }
        Ok(taken)
    }

    /// Starts a transport.
    pub(crate) fn start(&self, mut transport: Box<dyn Transport>, host: &Host) -> Result<(), TransportError> {
        transport.start(host)?;
        self.lock().push(transport);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Box<dyn Transport>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses all of them. If one cannot pause, all continue.
    pub(crate) fn pause(&self, patience: Duration) -> Result<PausedTransports<'_>, String> {
        let mut paused = PausedTransports { started: self, handed: Vec::new() };
        let deadline = Instant::now() + patience;
        for transport in self.lock().iter_mut() {
            paused.handed.extend(transport.pause(deadline.saturating_duration_since(Instant::now()))?);
        }
        Ok(paused)
    }

    /// Makes them continue, or begin.
    pub(crate) fn go_on(&self) {
        self.lock().iter_mut().for_each(|transport| transport.go_on());
    }

    /// Ends them, and leaves their clients to another process.
    pub(crate) fn give_away(&self) {
        self.lock().drain(..).for_each(|mut transport| transport.give_away());
    }

    /// Stops them. When this returns, they have stopped, even if another thread is stopping them.
    pub(crate) fn stop(&self) {
        self.lock().drain(..).for_each(|mut transport| transport.stop());
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Started").field(&self.lock().len()).finish()
    }
}
