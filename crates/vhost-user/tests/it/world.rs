//! A server with one disk.

use std::{
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_disk::{BlockDevice, Error, Extent, Pool, PoolConfig, RamDisk, Waits, Zeroes};
use pagefold_executor::{Client, ClientLimits, Executor, Export, Exports, Memory};
use pagefold_vhost_user::{
    Config, Event, Listening, Notify, Open, Server, SocketState,
    client::{Client as Frontend, Options},
};
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;

/// The events of the socket, in order.
pub(crate) type Events = Arc<Mutex<Vec<Event>>>;

pub(crate) struct World {
    folder: TempDir,
    pub(crate) exports: Exports,
    server: Option<Server>,
    listening: Option<Listening>,
    pub(crate) events: Events,
}

pub(crate) const CONFIG: Config = Config { threads: 2, queues: 2 };

/// Returns an empty RAM disk.
pub(crate) fn ram_disk(size_bytes: u64) -> Arc<RamDisk> {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    Arc::new(RamDisk::new(&pool, size_bytes).expect("a disk"))
}

impl World {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self::of(Export::new("a disk", device))
    }

    pub(crate) fn of(export: Export) -> Self {
        let exports = Exports::new();
        exports.add(export).expect("a name");
        let folder = tempfile::tempdir().expect("a folder");
        let mut world = Self { folder, exports, server: None, listening: None, events: Events::default() };
        world.start();
        world
    }

    /// Starts a server, as one that takes the place of another does.
    pub(crate) fn start(&mut self) {
        let (open, notify) = self.callbacks();
        let server = Server::start(CONFIG, open, notify).expect("a server");
        let _ = std::fs::remove_file(self.path());
        let listener = UnixListener::bind(self.path()).expect("a socket");
        let export = self.exports.list().pop().expect("an export");
        self.listening = Some(server.listen(listener, export).expect("listening"));
        self.server = Some(server);
    }

    fn callbacks(&self) -> (Open, Notify) {
        let executor = Arc::new(Executor::new(8, Memory::new(64 << 20, None)));
        let limits = ClientLimits { threads: 8, memory_bytes: 8 << 20 };
        let open = Box::new(move |export: &Export| Client::open(&executor, export, limits));
        let events = Arc::clone(&self.events);
        let notify = Box::new(move |_: &str, event| events.lock().expect("no panic").push(event));
        (open, notify)
    }

    /// Pauses, and returns what another process would get.
    pub(crate) fn pause(&self) -> (String, Vec<OwnedFd>) {
        self.server().pause(Duration::from_secs(60)).expect("requests end");
        let (state, descriptors) = self.listening.as_ref().expect("a socket").hand_over().expect("descriptors");
        let copies = descriptors.iter().map(|fd| fd.as_fd().try_clone_to_owned().expect("a copy"));
        (serde_json::to_string(&state).expect("JSON"), copies.collect())
    }

    /// Makes a server of what another process would get. It serves once it goes on.
    pub(crate) fn taken(&self, state: &str, descriptors: Vec<OwnedFd>) -> Result<(Server, Listening), String> {
        let state: SocketState = serde_json::from_str(state).map_err(|error| error.to_string())?;
        let (open, notify) = self.callbacks();
        let server = Server::start_paused(CONFIG, open, notify).expect("a server");
        let export = self.exports.list().pop().expect("an export");
        let listening = server.listen_taken(export, &state, descriptors)?;
        Ok((server, listening))
    }

    /// Replaces the server by another one, which continues it.
    pub(crate) fn take_over(&mut self) {
        let (state, descriptors) = self.pause();
        let (server, listening) = self.taken(&state, descriptors).expect("a server");
        self.server().give_away();
        self.end();
        server.go_on();
        (self.server, self.listening) = (Some(server), Some(listening));
    }

    /// Ends the server and all connections.
    pub(crate) fn end(&mut self) {
        self.listening = None;
        self.server = None;
    }

    /// Closes the socket, but not the connections.
    pub(crate) fn close(&mut self) {
        self.listening = None;
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("a server")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("disk.sock")
    }

    pub(crate) fn client(&self, options: Options) -> Frontend {
        Frontend::connect(&self.path(), options).expect("a client")
    }

    /// Waits until an event has happened.
    pub(crate) fn wait_for_event(&self, is_it: impl Fn(&Event) -> bool) {
        wait_for("an event", || self.events.lock().expect("no panic").iter().any(&is_it));
    }
}

pub(crate) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A disk that can be made to wait, to fail and to panic.
pub(crate) struct Fickle {
    pub(crate) disk: Arc<RamDisk>,
    pub(crate) size_bytes: AtomicU64,
    /// Whether requests have to wait for storage.
    pub(crate) blocks: AtomicBool,
    pub(crate) is_full: AtomicBool,
    /// Bytes that can still be written before it is full.
    pub(crate) room_bytes: AtomicU64,
    /// Bytes that were written.
    pub(crate) written_bytes: AtomicU64,
    pub(crate) panics: AtomicBool,
    pub(crate) flushes: AtomicUsize,
    /// Reads that came together.
    pub(crate) together: AtomicUsize,
    pub(crate) waits: Option<Arc<Waits>>,
    gate: (Mutex<bool>, Condvar),
    /// Requests that wait at the gate.
    pub(crate) at_gate: AtomicUsize,
}

impl Fickle {
    pub(crate) fn new(size_bytes: u64, waits: Option<Arc<Waits>>) -> Arc<Self> {
        Arc::new(Self {
            disk: ram_disk(size_bytes),
            size_bytes: AtomicU64::new(size_bytes),
            blocks: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            room_bytes: AtomicU64::new(u64::MAX),
            written_bytes: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            flushes: AtomicUsize::new(0),
            together: AtomicUsize::new(0),
            waits,
            gate: (Mutex::new(true), Condvar::new()),
            at_gate: AtomicUsize::new(0),
        })
    }

    /// Opens or closes the gate at which requests wait that wait for storage.
    pub(crate) fn set_gate(&self, open: bool) {
        *self.gate.0.lock().expect("no panic") = open;
        self.gate.1.notify_all();
    }

    fn pass_gate(&self) {
        self.at_gate.fetch_add(1, SeqCst);
        let open = self.gate.0.lock().expect("no panic");
        drop(self.gate.1.wait_while(open, |open| !*open).expect("no panic"));
        self.at_gate.fetch_sub(1, SeqCst);
        assert!(!self.panics.load(SeqCst), "a device with a bug");
    }

    /// Takes room for a change.
    fn take_room(&self, len_bytes: u64) -> Result<(), Error> {
        let take = |room: u64| if room == u64::MAX { Some(room) } else { room.checked_sub(len_bytes) };
        if self.is_full.load(SeqCst) || self.room_bytes.fetch_update(SeqCst, SeqCst, take).is_err() {
            return Err(Error::NoSpace);
        }
        self.written_bytes.fetch_add(len_bytes, SeqCst);
        Ok(())
    }
}

impl BlockDevice for Fickle {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(SeqCst)
    }

    fn may_block(&self) -> bool {
        self.blocks.load(SeqCst)
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        self.waits.as_ref()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.pass_gate();
        self.disk.read(offset, buf)
    }

    fn read_together(&self, reads: &mut [pagefold_disk::Read<'_>]) {
        self.together.fetch_max(reads.len(), SeqCst);
        for read in reads {
            read.result = self.read(read.offset, read.buf);
        }
    }

    fn read_unit_bytes(&self) -> u64 {
        64 << 10
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.pass_gate();
        self.take_room(buf.len() as u64)?;
        self.disk.write(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        self.flushes.fetch_add(1, SeqCst);
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.disk.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        self.take_room(len_bytes)?;
        self.disk.write_zeroes(offset, len_bytes, zeroes)
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        self.disk.extents(offset, len_bytes, each)
    }
}
