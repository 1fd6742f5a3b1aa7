//! The side of the process that continues.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pagefold_codec::by_name;
use pagefold_control::{Client, ClientError, Code, Command, DiskSocket, HandingOver, check_name, split_snapshot_name};
use pagefold_disk::{BlockDevice, ImportedDisks, Pool, PoolConfig};
use pagefold_serve::{Handed, ListenerState, SocketFile};
use rustix::{
    fs::fstat,
    net::UCred,
    process::{Pid, PidfdFlags, geteuid, pidfd_open},
};

use super::{
    STEP,
    bases::{Opened, OpenedBases},
    channel::{Channel, Kind, Message, PoolReader, wait_for},
    give::longest,
    patient::Patient,
    pool_file::{self, MEMORY},
    record::{Ahead, ControlState, DiskState, Kind as DiskKind, PoolState, Record, TransportState, VERSION},
    store::{Left, LeftDisks, State, remove_all},
};
use crate::{
    Belongings, Config, DescriptorStore, MemoryLimit, Server, TakeOverError, TakenTransport, WhenFull,
    backing::{Backing, BaseDisk},
    counted::Counted,
    disk::{Disk, Origin as DiskOrigin, RECORD_BYTES},
    disks::TakenConfig,
    memory_file::mark_taken,
    server::OpenedControl,
    socket,
};

/// How long the server's process may take to end after the connection to it broke.
const END: Duration = Duration::from_secs(2);

/// Why this process does not serve although the other one is gone.
const KILLED: &str = "the server was killed before it gave its disks away; the next process that its service manager \
                      starts continues with them";

/// Interval between two checks whether this process gives up.
const TICK: Duration = Duration::from_millis(50);

/// State received from the other process, kept until that process has ended.
pub(crate) struct Incoming {
    origin: Origin,
    sockets: Handed<OwnedFd>,
    control: Option<(ControlState, OwnedFd)>,
    start: Instant,
    start_time: SystemTime,
    /// When the record arrived, or reading it began.
    began: Instant,
}

/// Where a server comes from.
enum Origin {
    Process {
        channel: Channel,
        /// Readable when the process is gone.
        process: OwnedFd,
        pid: u32,
        /// The process's memory, if that outlives it.
        memory: Option<OwnedFd>,
    },
    Store {
        store: Arc<dyn DescriptorStore>,
        /// The files that are to be marked as taken.
        memory: Vec<OwnedFd>,
        /// The names of everything that is stored.
        names: BTreeSet<String>,
    },
}

/// A server that continues another, paused one, and the other state received from that.
pub(crate) struct Received {
    pub(crate) server: Server,
    pub(crate) incoming: Incoming,
    pub(crate) belongings: Belongings,
    pub(crate) transports: Vec<TakenTransport>,
    pub(crate) program: String,
    /// The process, unless it has ended.
    pub(crate) pid: Option<Pid>,
    /// Number of clients whose connections are missing.
    pub(crate) lost: usize,
    /// Whether the other process was killed, so that its sockets are to be opened again.
    pub(crate) was_killed: bool,
}

/// Asks the server of `client` to hand itself over, and restores everything. If the result is
/// dropped, that server continues.
pub(crate) fn receive(client: &mut Client, config: Config) -> Result<Received, TakeOverError> {
    let (own, other) = UnixStream::pair().map_err(TakeOverError::Broken)?;
    let channel = Channel::new(own.into()).map_err(TakeOverError::Broken)?;
    channel.know_sender().map_err(TakeOverError::Broken)?;
    let mut ask = |ahead| client.call_with(&Command::TakeOver { ahead }, Some(other.as_fd()));
    let HandingOver { .. } = match ask(true) {
        // A server that does not know the field.
        Err(ClientError::Failed(failure)) if failure.code == Code::InvalidRequest => ask(false),
        asked => asked,
    }?;
    drop(other);
    let parts = receive_parts(&channel, config).inspect_err(|error| {
        // The server may be gone, or may have sent its reason for giving up.
        let _ = channel.send(Kind::Failed, error.to_string().as_bytes());
    })?;
    let (mut parts, Sender { process, pid, at }) = parts;
    let memory = parts.belongings.take_file(MEMORY);
    let origin = Origin::Process { channel, process, pid: pid.as_raw_pid().unsigned_abs(), memory };
    Ok(parts.received(origin, Some(pid), at))
}

/// Continues the server that has left these files in a store. If the result is dropped, they stay
/// there.
pub(crate) fn restore(
    stored: Vec<(String, OwnedFd)>,
    store: &Arc<dyn DescriptorStore>,
    mut config: Config,
) -> Result<Received, TakeOverError> {
    let names: BTreeSet<String> = stored.iter().map(|(name, _)| name.clone()).collect();
    let left = Left::find(stored).inspect_err(|error| {
        if matches!(error, TakeOverError::Lost(_)) {
            // The next process may begin with empty disks. This one ends now, and a service manager
            // may ignore messages of a process that has ended.
            names.iter().for_each(|name| drop(store.remove(name)));
            let _ = store.settle();
        }
    })?;
    let began = Instant::now();
    let stored_bytes: u64 = left.memory.iter().map(stored_bytes).sum();
    store.begins_within(longest(stored_bytes));
    let patient = Patient::begin(&mut config.open, store, &config.observer);
    let origin = Origin::Store { store: Arc::clone(store), memory: left.memory, names };
    let mut bases = OpenedBases::default();
    let state = match left.disks {
        LeftDisks::State(state) => state,
        LeftDisks::Pool(killed) => {
            let record = killed.record();
            check(record, &config)?;
            let mut made = |pool: &Pool| bases.open(pool, &record.bases, &config);
            let pool = pool_config(&record.pool, None, pool_file::new_file(&config)?)?;
            let imported = killed.import(pool, &mut made);
            let imported = imported.map_err(|error| bases.failed.take().unwrap_or(error))?;
            let server = make_server(config, record, Content { imported, bases })?;
            killed.complete(&server)?;
            patient.end();
            let parts = Parts::of(killed.into_record(), server, Vec::new())?;
            return Ok(Received { was_killed: true, ..parts.received(origin, None, began) });
        }
    };
    let (state, record) = State::read(state)?;
    check(&record, &config)?;
    let files = Left::numbered(left.files, count(&record))?;
    let mut stream = state.pool();
    let mut made = |pool: &Pool| bases.open(pool, &record.bases, &config);
    let pool = pool_config(&record.pool, None, pool_file::new_file(&config)?)?;
    let imported = ImportedDisks::read(pool, &mut stream, &mut made);
    let imported =
        imported.map_err(|error| bases.failed.take().unwrap_or_else(|| TakeOverError::Cannot(error.to_string())))?;
    end_of(&mut stream)?;
    drop(stream);
    let server = make_server(config, &record, Content { imported, bases })?;
    patient.end();
    let parts = Parts::of(record, server, files)?;
    Ok(parts.received(origin, None, began))
}

/// Returns the bytes of a file in memory.
fn stored_bytes(file: &OwnedFd) -> u64 {
    fstat(file).map_or(0, |found| u64::try_from(found.st_blocks).unwrap_or(0) * 512)
}

/// What the received messages contain.
struct Parts {
    server: Server,
    sockets: Handed<OwnedFd>,
    control: Option<(ControlState, OwnedFd)>,
    belongings: Belongings,
    transports: Vec<TakenTransport>,
    start: Instant,
    start_time: SystemTime,
    program: String,
}

/// The record and the descriptors that have arrived.
#[derive(Default)]
struct Arrived {
    record: Option<Record>,
    sender: Option<Sender>,
    descriptors: Vec<OwnedFd>,
}

/// The process that has sent a record.
struct Sender {
    /// Readable when it is gone.
    process: OwnedFd,
    pid: Pid,
    /// When the record arrived.
    at: Instant,
}

impl Arrived {
    /// Takes a message that contains a part of the record or descriptors.
    fn add(&mut self, message: Message, config: &Config) -> Result<(), TakeOverError> {
        match (message.kind, &self.record) {
            (Kind::Record, None) => {
                let at = Instant::now();
                let (process, pid) = sender(message.sender)?;
                self.sender = Some(Sender { process, pid, at });
                let record: Record = serde_json::from_slice(&message.bytes).map_err(invalid)?;
                check(&record, config)?;
                self.record = Some(record);
            }
            (Kind::Descriptors, Some(record)) => {
                if message.descriptors.is_empty() {
                    return Err(TakeOverError::Invalid("descriptors are missing".to_owned()));
                }
                self.descriptors.extend(message.descriptors);
                if self.descriptors.len() > count(record) {
                    return Err(TakeOverError::Invalid("more descriptors than sockets".to_owned()));
                }
            }
            (Kind::Failed, _) => return Err(refused(&message.bytes)),
            _ => return Err(TakeOverError::Invalid("a message out of order".to_owned())),
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.record.as_ref().is_some_and(|record| self.descriptors.len() == count(record))
    }
}

/// Checks that this program can continue with a record.
fn check(record: &Record, config: &Config) -> Result<(), TakeOverError> {
    check_version(record.version, record.tls, config)?;
    // The descriptors of clients belong to this process now.
    let allow = config.when_connections.as_ref();
    let connections = usize::try_from(record.connections).unwrap_or(usize::MAX);
    if let Some(warning) = allow.and_then(|allow| allow(connections.max(record.clients.len()))) {
        config.observer.warn(&warning);
    }
    Ok(())
}

/// Returns the number of descriptors of each kind, in their order.
fn counts(record: &Record) -> [usize; 6] {
    let Record { listeners, clients, newcomers, control, files, transports, .. } = record;
    // If the sum overflows, the record cannot be completed.
    let of_transports = transports.iter().fold(0, |sum: usize, state| sum.saturating_add(state.descriptors));
    let control = usize::from(control.is_some());
    [listeners.len(), clients.len(), newcomers.len(), control, files.len(), of_transports]
}

/// Returns the number of all descriptors.
fn count(record: &Record) -> usize {
    counts(record).iter().fold(0, |sum: usize, count| sum.saturating_add(*count))
}

fn check_version(version: u32, tls: bool, config: &Config) -> Result<(), TakeOverError> {
    if version != VERSION {
        let what = format!("the server's record has version {version}, this program's {VERSION}");
        return Err(TakeOverError::Cannot(what));
    }
    if tls && !config.has_certificates { Err(TakeOverError::NoCertificates) } else { Ok(()) }
}

fn receive_parts(channel: &Channel, config: Config) -> Result<(Parts, Sender), TakeOverError> {
    let mut arrived = Arrived::default();
    let first = channel.receive().map_err(TakeOverError::Broken)?;
    let imported = if first.kind == Kind::Ahead {
        sender(first.sender)?;
        let ahead: Ahead = serde_json::from_slice(&first.bytes).map_err(invalid)?;
        check_version(ahead.version, ahead.tls, &config)?;
        read_pool(channel, &config, &ahead, &mut arrived)?
    } else {
        arrived.add(first, &config)?;
        None
    };
    let is_ahead = imported.is_some();
    while !is_ahead && !arrived.is_complete() {
        arrived.add(channel.receive().map_err(TakeOverError::Broken)?, &config)?;
    }
    let imported = match (imported, &arrived.record) {
        (Some(imported), _) => imported,
        (None, Some(Record { version, pool, limit_bytes, tls, stores, bases, .. })) => {
            let (pool, bases) = (pool.clone(), bases.clone());
            let (limit_bytes, tls, stores) = (*limit_bytes, *tls, *stores);
            let ahead = Ahead { version: *version, pool, limit_bytes, tls, stores, bases };
            let imported = read_pool(channel, &config, &ahead, &mut arrived)?;
            imported.ok_or_else(|| TakeOverError::Invalid("the pool is void".to_owned()))?
        }
        (None, None) => return Err(TakeOverError::Invalid("the record is missing".to_owned())),
    };
    let is_complete = arrived.is_complete();
    let Arrived { record: Some(record), sender: Some(sender), descriptors } = arrived else {
        return Err(TakeOverError::Invalid("the record is missing".to_owned()));
    };
    if !is_complete {
        return Err(TakeOverError::Invalid("descriptors are missing".to_owned()));
    }
    let server = make_server(config, &record, imported)?;
    Ok((Parts::of(record, server, descriptors.into_iter().map(Some).collect())?, sender))
}

impl Parts {
    /// Joins a record with its descriptors. Only those of clients may be missing.
    fn of(record: Record, server: Server, descriptors: Vec<Option<OwnedFd>>) -> Result<Self, TakeOverError> {
        let [listeners, clients, newcomers, control, files, of_transports] = counts(&record);
        let mut descriptors = descriptors.into_iter();
        let mut next = |count: usize| descriptors.by_ref().take(count).collect::<Vec<_>>();
        let needed = |what: &str, all: Vec<Option<OwnedFd>>| {
            let all: Option<Vec<_>> = all.into_iter().collect();
            all.ok_or_else(|| TakeOverError::Invalid(format!("{what} is missing")))
        };
        let listeners = record.listeners.into_iter().zip(needed("a listening socket", next(listeners))?).collect();
        let (clients, newcomers) = (next(clients), next(newcomers));
        let left_out = clients.iter().chain(&newcomers).filter(|socket| socket.is_none()).count();
        let clients = record.clients.into_iter().zip(clients).filter_map(|(state, fd)| Some((state, fd?)));
        let newcomers = record.newcomers.into_iter().zip(newcomers).filter_map(|(state, fd)| Some((state, fd?)));
        let sockets = Handed { listeners, clients: clients.collect(), newcomers: newcomers.collect(), left_out };
        let control = record.control.zip(needed("the control socket", next(control))?.pop());
        let files = record.files.into_iter().zip(needed("the lock of the server's directory", next(files))?).collect();
        let belongings = Belongings { files, texts: record.texts };
        let mut descriptors = needed("a descriptor of a transport", next(of_transports))?.into_iter();
        let taken = record.transports.into_iter().map(|TransportState { name, state, descriptors: count }| {
            TakenTransport { name, state, descriptors: descriptors.by_ref().take(count).collect() }
        });
        let transports = taken.collect();
        let now = Instant::now();
        let uptime = Duration::from_millis(record.uptime_ms);
        let start = now.checked_sub(uptime).unwrap_or(now);
        // The start time stays the same: with another one, metrics would look like another
        // server's.
        let start_time = match record.start_time_ns {
            Some(time) => UNIX_EPOCH.checked_add(Duration::from_nanos(time)),
            None => SystemTime::now().checked_sub(uptime),
        };
        let start_time = start_time.unwrap_or(UNIX_EPOCH);
        Ok(Self { server, sockets, control, belongings, transports, start, start_time, program: record.program })
    }

    fn received(self, origin: Origin, pid: Option<Pid>, began: Instant) -> Received {
        let Self { server, sockets, control, belongings, transports, start, start_time, program } = self;
        let lost = sockets.left_out;
        let incoming = Incoming { origin, sockets, control, start, start_time, began };
        Received { server, incoming, belongings, transports, program, pid, lost, was_killed: false }
    }
}

impl Incoming {
    pub(crate) fn take_sockets(&mut self) -> Handed<OwnedFd> {
        std::mem::take(&mut self.sockets)
    }

    /// Returns the number of clients of NBD that have chosen an export.
    pub(crate) fn clients(&self) -> usize {
        self.sockets.clients.len()
    }

    /// Takes the control socket.
    pub(crate) fn take_control(&mut self) -> Result<Option<OpenedControl>, TakeOverError> {
        let Some((ControlState { path, owns_file, is_passed }, fd)) = self.control.take() else { return Ok(None) };
        let listener = UnixListener::from(fd);
        listener.local_addr().map_err(|error| TakeOverError::Invalid(format!("the control socket: {error}")))?;
        let file = path.as_deref().filter(|_| owns_file).and_then(|path| SocketFile::of_another(path.as_ref()).ok());
        Ok(Some(OpenedControl { listener, file, path: path.map(Into::into), is_passed }))
    }

    /// Returns the process that hands the server over, if it has not ended.
    pub(crate) fn process(&self) -> Option<u32> {
        match &self.origin {
            Origin::Process { pid, .. } => Some(*pid),
            Origin::Store { .. } => None,
        }
    }

    /// Returns when the first server began to listen.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Returns when its record arrived.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Returns when the first server began to listen, by the clock of the system.
    pub(crate) fn start_time(&self) -> SystemTime {
        self.start_time
    }

    /// Announces that this process can serve, and returns when it may, because the other never
    /// serves again. Fails if `gives_up` returns a reason first. `keeps` says whether the memory of
    /// this process outlives it.
    pub(crate) fn confirm(self, keeps: bool, gives_up: &dyn Fn() -> Option<String>) -> Result<(), TakeOverError> {
        self.confirm_within(STEP, keeps, gives_up)
    }

    /// Like `confirm`, but the answer may take `time`.
    fn confirm_within(
        self,
        time: Duration,
        keeps: bool,
        gives_up: &dyn Fn() -> Option<String>,
    ) -> Result<(), TakeOverError> {
        if let Some(why) = gives_up() {
            return Err(TakeOverError::Cannot(why));
        }
        let (channel, process, memory) = match self.origin {
            Origin::Process { channel, process, memory, .. } => (channel, process, memory),
            Origin::Store { store, memory, names } => {
                memory.iter().try_for_each(mark_taken).map_err(TakeOverError::Broken)?;
                // No process continues with a marked state, even if it is still in the store.
                remove_all(&store, names);
                return Ok(());
            }
        };
        channel.send(Kind::Ready, &[]).map_err(TakeOverError::Broken)?;
        let deadline = Instant::now() + time;
        let mut why = None;
        while why.is_none()
            && Instant::now() < deadline
            && !wait_for(&[channel.as_fd(), process.as_fd()], TICK.min(time))
        {
            why = gives_up();
        }
        // What has been sent can still be received, and nothing more can be sent.
        channel.shut_down();
        match channel.receive() {
            Ok(message) if message.kind == Kind::Go => Ok(()),
            Ok(message) if message.kind == Kind::Failed => Err(refused(&message.bytes)),
            Ok(_) => Err(TakeOverError::Invalid("an unknown message".to_owned())),
            Err(_) if let Some(why) = why => Err(TakeOverError::Cannot(why)),
            // The other process has not sent GO and can no longer send it. Unless it is gone, it
            // continues to serve.
            Err(_) if wait_for(&[process.as_fd()], END) => match memory {
                // The manager has the memory of both, and does not know yet that this process
                // belongs to the service.
                Some(_) if keeps => Err(TakeOverError::Cannot(KILLED.to_owned())),
                memory => memory.map_or(Ok(()), mark_taken).map_err(TakeOverError::Broken),
            },
            Err(_) => Err(TakeOverError::NotGiven),
        }
    }
}

fn invalid(error: impl std::fmt::Display) -> TakeOverError {
    TakeOverError::Invalid(error.to_string())
}

fn refused(bytes: &[u8]) -> TakeOverError {
    TakeOverError::Refused(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns what becomes readable when the sender's process ends.
fn sender(sender: Option<UCred>) -> Result<(OwnedFd, Pid), TakeOverError> {
    let sender = sender.ok_or_else(|| TakeOverError::Invalid("the sender is unknown".to_owned()))?;
    if sender.uid != geteuid() && !sender.uid.is_root() {
        return Err(TakeOverError::Invalid(format!("the sender is a process of user {}", sender.uid.as_raw())));
    }
    let process = pidfd_open(sender.pid, PidfdFlags::empty());
    Ok((process.map_err(|error| TakeOverError::Broken(error.into()))?, sender.pid))
}

/// The disks of a server, and their bases.
struct Content {
    imported: ImportedDisks,
    bases: OpenedBases,
}

/// Opens the bases, then reads the pool. Returns `None` if the sender says that its stream will not
/// be completed. Messages between the parts of the stream go to `arrived`.
fn read_pool(
    channel: &Channel,
    config: &Config,
    ahead: &Ahead,
    arrived: &mut Arrived,
) -> Result<Option<Content>, TakeOverError> {
    let memory = pool_file::new_file(config)?;
    if ahead.stores {
        // The other process stores this one's memory, and marks it as free when this process is
        // ready.
        memory.iter().try_for_each(mark_taken).map_err(TakeOverError::Broken)?;
        let files: Vec<_> = memory.iter().map(File::as_fd).collect();
        channel.send_with(Kind::Memory, &[], &files).map_err(TakeOverError::Broken)?;
    }
    let pool = pool_config(&ahead.pool, ahead.limit_bytes, memory)?;
    let mut failed = None;
    let mut add = |message| {
        arrived.add(message, config).map_err(|error| {
            let text = error.to_string();
            failed = Some(error);
            io::Error::other(text)
        })
    };
    let mut reader = PoolReader::new(channel, &mut add);
    let mut bases = OpenedBases::default();
    let mut made = |pool: &Pool| bases.open(pool, &ahead.bases, config);
    let imported = ImportedDisks::read(pool, &mut reader, &mut made);
    if reader.is_void() {
        return Ok(None);
    }
    let ended = imported.is_ok().then(|| end_of(&mut reader));
    if let Some(failed) = failed.or(bases.failed.take()) {
        return Err(failed);
    }
    let imported = imported.map_err(|error| TakeOverError::Cannot(error.to_string()))?;
    ended.transpose()?;
    Ok(Some(Content { imported, bases }))
}

/// Checks that a pool's stream has ended.
fn end_of(stream: &mut dyn Read) -> Result<(), TakeOverError> {
    match io::copy(stream, &mut io::sink()).map_err(TakeOverError::Broken)? {
        0 => Ok(()),
        _ => Err(TakeOverError::Invalid("the pool is followed by other bytes".to_owned())),
    }
}

fn pool_config(
    PoolState { codec, dedupe }: &PoolState,
    limit_bytes: Option<u64>,
    memory: Option<File>,
) -> Result<PoolConfig, TakeOverError> {
    let codec = by_name(codec).map_err(|error| TakeOverError::Cannot(error.to_string()))?;
    let pool = PoolConfig::default().codec(codec).dedupe(*dedupe).memory_limit(limit_bytes.unwrap_or(u64::MAX));
    Ok(memory.into_iter().fold(pool, PoolConfig::kept_in))
}

/// Makes the server with its disks.
fn make_server(mut config: Config, record: &Record, content: Content) -> Result<Server, TakeOverError> {
    let Content { imported, mut bases } = content;
    let opened = record.bases.iter().map(|record| bases.get(record, &config)).collect::<Result<Vec<_>, _>>()?;
    let lacks = || TakeOverError::Invalid("the pool is missing".to_owned());
    let base_caches = bases.into_caches().ok_or_else(lacks)?;
    config.codec = by_name(&record.pool.codec).map_err(|error| TakeOverError::Cannot(error.to_string()))?;
    config.dedupe = record.pool.dedupe;
    config.limit = record.limit_bytes.map_or(MemoryLimit::None, MemoryLimit::Bytes);
    config.when_full = if record.waits { WhenFull::Wait } else { WhenFull::Error };
    config.clients.connections = usize::try_from(record.connections).unwrap_or(usize::MAX);
    // The limit may have been changed while the pool was read.
    let limited = imported.pool().set_memory_limit(record.limit_bytes.unwrap_or(u64::MAX));
    limited.map_err(|error| TakeOverError::Cannot(error.to_string()))?;
    let taken = TakenConfig {
        pool: imported.pool().clone(),
        id: record.id,
        limit_bytes: record.limit_bytes,
        base_caches,
        clients: config.clients,
        when_full: config.when_full,
        open: Arc::clone(&config.open),
    };
    let server = Server::taken(config, taken);
    make_disks(&server, record, imported, opened)?;
    server.0.disks.exports().skip_numbers(record.next_number);
    Ok(server)
}

/// Makes the disks of `record`.
fn make_disks(
    server: &Server,
    record: &Record,
    imported: ImportedDisks,
    opened: Vec<Opened>,
) -> Result<(), TakeOverError> {
    let lacks = || TakeOverError::Invalid("the pool lacks a disk".to_owned());
    let disks = &server.0.disks;
    let pool = &disks.table().pool;
    let mut asked = 0;
    let rams = imported.restore(Some(&disks.base_caches().pages), |at| {
        // The disks of the bases come first.
        let (base, _) = opened.get(at).filter(|_| at == asked).ok_or_else(lacks)?;
        asked += 1;
        Ok::<Arc<dyn BlockDevice>, TakeOverError>(Arc::clone(base) as _)
    })?;
    if asked != opened.len() {
        return Err(lacks());
    }
    let sockets = record.listeners.iter().filter_map(|socket| Some((socket.export()?, socket)));
    let sockets: HashMap<&str, &ListenerState> = sockets.collect();
    let mut rams = rams.into_iter();
    let mut bases = Vec::new();
    for (base, opened_as) in opened {
        let pristine = rams.next().ok_or_else(lacks)?;
        bases.push(Backing::of_taken_file(pool, base, &opened_as, pristine).map_err(invalid)?);
    }
    for disk in &record.disks {
        let base = disk.base.map(|index| bases.get(index).ok_or_else(lacks)).transpose()?;
        let backing = match disk.kind {
            DiskKind::Base => base.cloned().ok_or_else(lacks)?,
            DiskKind::Ram | DiskKind::Snapshot => {
                let ram = rams.next().ok_or_else(lacks)?;
                let below = base.and_then(Backing::as_base).map(|base| Arc::as_ptr(&base.device));
                if ram.base().map(Arc::as_ptr).map(<*const _>::cast::<()>) != below.map(<*const _>::cast::<()>) {
                    return Err(TakeOverError::Invalid(format!("the disk '{}' has another base", disk.name)));
                }
                Backing::of_taken(ram, disk.kind == DiskKind::Snapshot, disk.limit_bytes)
            }
        };
        add(server, disk, sockets.get(&*disk.name).copied(), backing, base.and_then(Backing::as_base))?;
    }
    if rams.next().is_some() {
        return Err(TakeOverError::Invalid("the pool has more disks".to_owned()));
    }
    Ok(())
}

/// Adds a disk with its origin and its limits.
fn add(
    server: &Server,
    disk: &DiskState,
    socket: Option<&ListenerState>,
    backing: Backing,
    base: Option<&Arc<BaseDisk>>,
) -> Result<(), TakeOverError> {
    let DiskState { name, number, limit_bytes, read_only, quota, .. } = disk;
    let plain = split_snapshot_name(name).map_or(&**name, |(plain, _)| plain);
    check_name(plain).map_err(invalid)?;
    let table = server.0.disks.table();
    let base = base.filter(|_| disk.kind != DiskKind::Base);
    let number_of = disk.origin_number;
    let origin = |name: &String| DiskOrigin { name: name.clone(), number: number_of, base: base.cloned() };
    let origin = disk.origin.as_ref().map(origin).map(Arc::new);
    let path = socket
        .and_then(|socket| Some(DiskSocket { path: socket.path()?.to_str()?.to_owned(), mode: None, group: None }));
    let origin_bytes = origin.as_ref().map_or(0, |origin| DiskOrigin::record_bytes(&origin.name));
    let record_bytes = RECORD_BYTES + origin_bytes + socket::asked_bytes(path.as_ref());
    let counted = Counted::record(&table.pool, name, record_bytes).map_err(invalid)?;
    let now = Instant::now();
    let made = now.checked_sub(Duration::from_millis(disk.age_ms)).unwrap_or(now);
    let waits = if disk.kind == DiskKind::Ram { table.new_waits() } else { None };
    let disk = Disk {
        origin,
        made,
        limit_bytes: *limit_bytes,
        read_only: *read_only,
        waits,
        ..Disk::read_only(backing, counted)
    };
    table.adopt(name, disk, *quota, *number).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        process::{Child, Command},
    };

    use super::*;
    use crate::memory_file::{is_free, memory_file};

    /// State received from a process, and the other end of its socket.
    fn incoming(process: &Child) -> (Incoming, Channel) {
        let (own, other) = UnixStream::pair().expect("sockets");
        let [channel, other] = [own, other].map(|end| Channel::new(end.into()).expect("a channel"));
        let process = pidfd_open(Pid::from_child(process), PidfdFlags::empty()).expect("a process");
        let (sockets, control, start, start_time) = (Handed::default(), None, Instant::now(), UNIX_EPOCH);
        let origin = Origin::Process { channel, process, pid: 0, memory: None };
        (Incoming { origin, sockets, control, start, start_time, began: start }, other)
    }

    /// Two processes never serve at the same time; if one is gone, the other serves.
    #[test]
    fn a_process_serves_only_if_the_other_one_never_does() {
        let mut other_process = Command::new("sleep").arg("600").spawn().expect("a process");
        let (asks, other) = incoming(&other_process);
        other.send(Kind::Go, &[]).expect("sent");
        asks.confirm(false, &|| None).expect("it may serve");
        assert_eq!(other.receive().expect("a message").kind, Kind::Ready);

        let (asks, other) = incoming(&other_process);
        other.send(Kind::Failed, b"no").expect("sent");
        assert!(matches!(asks.confirm(false, &|| None), Err(TakeOverError::Refused(why)) if why == "no"));

        let (asks, other) = incoming(&other_process);
        other.send(Kind::Pool, &[]).expect("sent");
        assert!(matches!(asks.confirm(false, &|| None), Err(TakeOverError::Invalid(_))));

        // The other process has read that this one is ready, and sends nothing.
        let (asks, other) = incoming(&other_process);
        let end = std::thread::spawn(move || drop(other.receive()));
        assert!(matches!(asks.confirm(false, &|| None), Err(TakeOverError::NotGiven)));
        end.join().expect("a message");

        // The other process is too slow: its later sends fail, so it continues to serve.
        let (asks, other) = incoming(&other_process);
        assert!(matches!(asks.confirm_within(Duration::from_millis(1), false, &|| None), Err(TakeOverError::NotGiven)));
        assert_eq!(other.receive().expect("a message").kind, Kind::Ready);
        assert!(other.send(Kind::Go, &[]).is_err());

        // It gives up before or after it is ready.
        let (asks, other) = incoming(&other_process);
        assert!(
            matches!(asks.confirm(false, &|| Some("why".to_owned())), Err(TakeOverError::Cannot(why)) if why == "why")
        );
        assert!(other.receive().is_err());
        let (asks, other) = incoming(&other_process);
        let asked = Cell::new(0);
        let gives_up = || (asked.replace(asked.get() + 1) > 0).then(|| "why".to_owned());
        assert!(matches!(asks.confirm(false, &gives_up), Err(TakeOverError::Cannot(why)) if why == "why"));
        assert_eq!(other.receive().expect("a message").kind, Kind::Ready);
        assert!(other.send(Kind::Go, &[]).is_err());

        // The process ends. If a service manager has the memory of both, it starts another process.
        for (is_kept, keeps) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut other_process = Command::new("sleep").arg("600").spawn().expect("a process");
            let (mut asks, other) = incoming(&other_process);
            let file = memory_file("memory").expect("a file");
            if let (Origin::Process { memory, .. }, true) = (&mut asks.origin, is_kept) {
                *memory = Some(file.try_clone().expect("a copy").into());
            }
            let end = std::thread::spawn(move || {
                drop(other.receive());
                other_process.kill().expect("a process");
                other_process.wait().expect("an end");
            });
            assert_eq!(asks.confirm(keeps, &|| None).is_ok(), !(is_kept && keeps), "{is_kept} {keeps}");
            assert_eq!(is_free(&file), !is_kept || keeps, "{is_kept} {keeps}");
            end.join().expect("an end");
        }
        other_process.kill().expect("a process");
        other_process.wait().expect("an end");
    }

    /// Random bytes are refused, and take no memory before they arrive.
    #[test]
    fn random_messages_are_refused() {
        let mut state = 1_u64;
        for round in 0..200 {
            let (own, other) = UnixStream::pair().expect("sockets");
            let channel = Channel::new(own.into()).expect("a channel");
            channel.know_sender().expect("a flag");
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .take(100)
            .collect();
            if round % 2 == 0 {
                // A record of some length.
                bytes[..16].copy_from_slice(b"PFho\x01\0\0\0\x50\0\0\0\0\0\0\0");
                bytes[4] = if round % 3 == 0 { 7 } else { 1 };
                bytes[8] = round as u8;
                bytes[12] = if round % 4 == 0 { 0 } else { 0x3f };
            }
            std::io::Write::write_all(&mut &other, &bytes).expect("sent");
            drop(other);
            assert!(receive_parts(&channel, Config::default()).is_err());
        }
    }
}
