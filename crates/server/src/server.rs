//! A server of disks, before and while it listens.

use std::{
    io,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::{Instant, SystemTime},
};

use pagefold_control::{
    Batch, DiskKind, DiskQuota, DiskRecord, DiskSocket, Failure, Manage, ServerHandle as ControlHandle, check_name,
};
use pagefold_disk::{BlockDevice, Checked, NewPoolError};
use pagefold_serve::{Limits, OwnFile, ServerHandle, SocketFile, unix_uri};

use crate::{
    Address, BaseFile, Belongings, Config, DescriptorStore, Frozen, Level, MemoryLimit, Observer,
    config::WhenConnections,
    disk::{Exported, FoundDisk},
    disks::{Disks, DisksConfig, TakenConfig},
    ending::Ending,
    events::Events,
    machine,
    memory_file::memory_file,
    transport::{DeviceServer, FileServer, Obstacles, Started},
};

/// A server of disks: compressed RAM disks, files as read-only disks, and forks and snapshots of
/// them. Its methods are those of [`Manage`](pagefold_control::Manage), which clients of the control
/// socket call too. [`listen`](Server::listen) lets clients connect.
///
/// All clones are the same server. Disks exist until they are dropped or all clones are.
#[derive(Clone)]
pub struct Server(pub(crate) Arc<ServerCore>);

pub(crate) struct ServerCore {
    pub(crate) disks: Disks,
    pub(crate) observer: Observer,
    pub(crate) events: Arc<Events>,
    pub(crate) clients: Limits,
    /// Paths of the program's own files.
    pub(crate) files: Vec<String>,
    pub(crate) when_connections: Option<WhenConnections>,
    /// Whether equal pages are stored once.
    pub(crate) dedupe: bool,
    /// A line about the memory limit, for when the server listens.
    limit_line: Option<(Level, String)>,
    pub(crate) listened: OnceLock<Listened>,
}

/// A server's sockets, and how to end it.
pub(crate) struct Listened {
    pub(crate) addresses: Vec<Address>,
    pub(crate) server: ServerHandle,
    pub(crate) ending: Ending,
    /// Whether clients on TCP and vsock must have certificates.
    pub(crate) verifies_peers: bool,
    pub(crate) files: Arc<FileServer>,
    pub(crate) devices: Arc<DeviceServer>,
    /// When it began to listen.
    pub(crate) start: Instant,
    /// The same by the system's clock, which may be changed.
    pub(crate) start_time: SystemTime,
    pub(crate) giving: Giving,
}

/// The state that is needed to hand the server over to another process.
pub(crate) struct Giving {
    /// Whether a handover has begun.
    pub(crate) begun: AtomicBool,
    /// The control socket, once it is served.
    pub(crate) control: OnceLock<ControlSocket>,
    pub(crate) obstacles: Arc<Obstacles>,
    pub(crate) belongings: Belongings,
    pub(crate) when_given: Option<WhenGiven>,
    /// Where the server leaves its disks when it is asked to end.
    pub(crate) store: Option<Arc<dyn DescriptorStore>>,
    /// When it began to leave them there.
    pub(crate) leaving: OnceLock<Instant>,
    pub(crate) transports: Arc<Started>,
    /// Whether clients can use TLS.
    pub(crate) tls: bool,
}

/// Called with the id of the process that has taken over.
pub(crate) type WhenGiven = Box<dyn Fn(u32) + Send + Sync>;

/// A control socket that is not served yet.
pub(crate) struct OpenedControl {
    pub(crate) listener: UnixListener,
    pub(crate) file: Option<SocketFile>,
    pub(crate) path: Option<PathBuf>,
    /// Whether a service manager has passed it.
    pub(crate) is_passed: bool,
}

/// A control socket that is served.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    pub(crate) handle: ControlHandle,
    pub(crate) listener: UnixListener,
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: OwnFile,
    /// Whether a service manager has passed it.
    pub(crate) is_passed: bool,
}

impl Server {
    /// Creates a server without disks, which does not listen yet.
    ///
    /// # Errors
    /// See [`NewPoolError`].
    pub fn new(config: Config) -> Result<Self, NewPoolError> {
        if let Some(why) = machine::lack_of_address_space() {
            return Err(NewPoolError::AddressSpace(io::Error::other(why)));
        }
        let file = config.keep_memory.then(|| memory_file("pagefold-pool")).transpose();
        let file = file.map_err(NewPoolError::AddressSpace)?;
        let Config {
            codec,
            dedupe,
            limit,
            base_cache_bytes,
            when_full,
            clients,
            files,
            observer,
            open,
            when_connections,
            ..
        } = config;
        let (limit_bytes, limit_line) = memory_limit(limit);
        let disks =
            Disks::new(DisksConfig { codec, dedupe, limit_bytes, file, base_cache_bytes, clients, when_full, open })?;
        let listened = OnceLock::new();
        let events = Arc::default();
        let core =
            ServerCore { disks, observer, events, clients, files, when_connections, limit_line, dedupe, listened };
        Ok(Self(Arc::new(core)))
    }

    /// Creates a server that continues another one, without its disks.
    pub(crate) fn taken(config: Config, taken: TakenConfig) -> Self {
        let Config { observer, dedupe, when_connections, clients, files, .. } = config;
        let (disks, listened) = (Disks::taken(taken), OnceLock::new());
        let events = Arc::default();
        let core = ServerCore {
            disks,
            observer,
            events,
            clients,
            files,
            when_connections,
            limit_line: None,
            dedupe,
            listened,
        };
        Self(Arc::new(core))
    }

    /// Serves a file as a read-only disk.
    ///
    /// # Errors
    /// The name is invalid or in use, the file cannot be opened as a disk, or the limit leaves no
    /// room for it.
    pub fn serve_file(&self, file: &BaseFile) -> Result<DiskRecord, Failure> {
        self.serve_on(file, None, DiskQuota::default())
    }

    /// Serves a device of the program as a read-only disk, which can be forked as one of a file can.
    /// Its content must never change.
    ///
    /// # Errors
    /// The name is invalid or in use, the size is not a multiple of 512, or the limit leaves no room
    /// for it.
    pub fn serve_device(&self, name: &str, device: Arc<dyn BlockDevice>) -> Result<DiskRecord, Failure> {
        check_name(name)?;
        let found = self.0.disks.add_device(name, Arc::new(Checked::read_only(device)))?;
        self.log_disk(&found);
        Ok(self.record(found))
    }

    /// Returns a disk's device, with which the program itself reads and writes it. Writes beyond a
    /// limit fail, also if those of clients wait. The device exists even after its disk was dropped.
    ///
    /// # Errors
    /// No disk has this name.
    pub fn device(&self, name: &str) -> Result<Checked<Arc<dyn BlockDevice>>, Failure> {
        let (device, read_only) = self.0.disks.device(name)?;
        Ok(if read_only { Checked::read_only(device) } else { Checked::new(device) })
    }

    /// Freezes a disk as it is now, to be saved as an image. The disk stays in use.
    ///
    /// # Errors
    /// No disk has this name, or the limit leaves no room.
    pub fn frozen(&self, name: &str) -> Result<Frozen, Failure> {
        let (instant, held) = self.freeze(name)?;
        let device = self.0.disks.frozen_device(&instant.export)?;
        let (server, export) = (self.clone(), instant.export.clone());
        let runs = move |offset| Ok(server.frozen_runs(&export, offset)?);
        Ok(Frozen::of_server(instant, held, runs, device))
    }

    /// Returns the name of the disk for clients that name none: the oldest.
    pub fn first_name(&self) -> String {
        self.0.disks.exports().list().first().map_or_else(String::new, |export| export.name().to_string())
    }

    /// Returns the addresses on which the server listens. Empty before it does.
    pub fn addresses(&self) -> &[Address] {
        self.0.listened.get().map_or(&[], |listened| &listened.addresses)
    }

    /// Serves a file, and reports later events of it.
    pub(crate) fn serve_on(
        &self,
        file: &BaseFile,
        socket: Option<&DiskSocket>,
        quota: DiskQuota,
    ) -> Result<DiskRecord, Failure> {
        check_name(&file.name)?;
        let (name, observer) = (file.name.clone(), self.0.observer.clone());
        let warn = move |line: &str| observer.warn(&format!("base '{name}': {line}"));
        let (found, padding_bytes) = self.0.disks.add_base(file, socket, quota, warn)?;
        if padding_bytes > 0 {
            let (name, size_bytes) = (&found.name, found.size_bytes - padding_bytes);
            self.0.observer.warn(&format!(
                "base '{name}': its {size_bytes} bytes are not a multiple of 512: {padding_bytes} bytes of zeros follow \
                 them"
            ));
        }
        self.log_disk(&found);
        Ok(self.record(found))
    }

    /// Logs where the server listens, its limits and its disks.
    pub(crate) fn log_start(&self, control: Option<&Path>) {
        let observer = &self.0.observer;
        for address in self.addresses() {
            observer.info(&format!("listening on {address}"));
            let is_exposed = match address {
                Address::Unix(_) => false,
                Address::Tcp { address, .. } => !address.ip().is_loopback(),
                Address::Vsock { .. } => true,
            };
            if is_exposed && !self.0.listened.get().is_some_and(|listened| listened.verifies_peers) {
                observer.warn(&format!(
                    "{address} may be reached from other machines, and NBD has no password: everyone who reaches it \
                     can read and write every disk; --tls-certificates DIR with --tls-verify-peer lets only clients \
                     with certificates connect"
                ));
            }
        }
        if let Some(path) = control {
            observer.info(&format!("control socket {}", path.display()));
        }
        let client_warning = self.0.disks.client_memory().warning().map(|warning| (Level::Warn, warning));
        self.0.limit_line.iter().chain(&client_warning).for_each(|(level, line)| observer.log(*level, line));
        self.0.disks.list(Batch { after: None, most: usize::MAX }).iter().for_each(|disk| self.log_disk(disk));
    }

    /// Returns what is wrong with the server's new limit, and logs it.
    pub(crate) fn limit_warnings(&self, limit_bytes: Option<u64>) -> Vec<String> {
        let memory = limit_bytes.and_then(|bytes| machine::Memory::find()?.warning(bytes));
        let warnings: Vec<_> = memory.into_iter().chain(self.0.disks.client_memory().warning()).collect();
        warnings.iter().for_each(|warning| self.0.observer.warn(warning));
        warnings
    }

    /// Returns a disk's URIs: of its own socket, and of all addresses.
    pub(crate) fn uris(&self, export: &str, own: Option<&Path>) -> Vec<String> {
        let own = own.map(|path| unix_uri(path, export));
        own.into_iter().chain(self.addresses().iter().map(|address| address.uri(export))).collect()
    }

    /// Returns the path of a disk as a file.
    fn file(&self, disk: &str) -> Option<String> {
        self.0.listened.get()?.files.of(disk)?.into_os_string().into_string().ok()
    }

    /// Returns the path of a disk as a block device.
    fn device_path(&self, disk: &str) -> Option<String> {
        self.0.listened.get()?.devices.of(disk)?.into_os_string().into_string().ok()
    }

    pub(crate) fn record(&self, found: FoundDisk) -> DiskRecord {
        let Exported { id, clients, quota } = found.exported;
        DiskRecord {
            id,
            max_connections: quota.connections,
            bytes_per_second: quota.bytes_per_second,
            uris: self.uris(&found.name, found.socket.as_deref()),
            socket: found.socket.map(|path| path.display().to_string()),
            file: self.file(&found.name),
            device: self.device_path(&found.name),
            name: found.name,
            size_bytes: found.size_bytes,
            limit_bytes: found.limit_bytes,
            read_only: found.read_only,
            kind: found.kind,
            path: found.path,
            devices: found.devices,
            identity: found.identity,
            from: found.from,
            from_id: found.from_number.map(|number| self.0.disks.table().id_of(number)),
            age_seconds: found.age.as_secs(),
            changed_bytes: found.changed_bytes,
            own_bytes: found.own_bytes,
            snapshots: found.snapshots,
            clients,
        }
    }

    /// Logs a disk's name and its addresses.
    pub(crate) fn log_disk(&self, found: &FoundDisk) {
        let mut of = if found.read_only { ", read-only" } else { "" }.to_owned();
        match (&found.from, &found.path) {
            (Some(from), _) => of += &format!(", forked from '{from}'"),
            (None, Some(path)) => of += &format!(", of {path}"),
            (None, None) => {}
        }
        let quota = found.exported.quota;
        if !quota.is_none() {
            of += &format!(", {quota}");
        }
        let what = match found.kind {
            DiskKind::Base => "base",
            DiskKind::Snapshot => "snapshot",
            _ => "disk",
        };
        for uri in self.uris(&found.name, found.socket.as_deref()) {
            self.0.observer.info(&format!(
                "{what} '{}', {}{of}: '{uri}'",
                found.name,
                pagefold_size::written(found.size_bytes)
            ));
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

/// Returns the server's memory limit in bytes. Also returns a line that says so, or what is wrong
/// with it.
fn memory_limit(limit: MemoryLimit) -> (Option<u64>, Option<(Level, String)>) {
    match (limit, machine::Memory::find()) {
        (MemoryLimit::None, _) => (None, Some((Level::Info, "no memory limit".to_owned()))),
        (MemoryLimit::Bytes(bytes), memory) => {
            let warning = memory.and_then(|memory| memory.warning(bytes));
            (Some(bytes), warning.map(|warning| (Level::Warn, warning)))
        }
        (MemoryLimit::Half, Some(memory)) => {
            let bytes = memory.half_bytes();
            let shown = pagefold_size::show(bytes);
            let line = format!("memory limit {shown}, half of {memory}; 'pagefold limit SIZE' sets another");
            (Some(bytes), Some((Level::Info, line)))
        }
        (MemoryLimit::Half, None) => {
            let line = "no memory limit: the system does not say how much memory there is; set one with 'pagefold limit \
                        SIZE'";
            (None, Some((Level::Warn, line.to_owned())))
        }
    }
}
