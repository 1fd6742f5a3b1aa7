//! Hands over the server of this process.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use pagefold_control::{Batch, Code, Failure, HandingOver};
use pagefold_disk::{ExportError, Precopy, RamDisk, export_disks, finish_disks, precopy_disks};
use pagefold_serve::{Handed, PauseError, Shared};
use rustix::net::sockopt::socket_peercred;

use super::{
    brake::Brake,
    channel::{Channel, Kind, PoolWriter},
    next::Next,
    pool_file::{self, MEMORY},
    record::{self, Ahead, ControlState, DiskState, PoolState, Record, TransportState, VERSION},
};
use crate::{
    HandedTransport, Server,
    backing::BaseDisk,
    disk::Disk,
    machine::Memory,
    memory_file::{mark_free, mark_taken},
    server::{Giving, Listened},
};

/// How long commands in progress may take to end. Clients of the disks do not wait for them.
pub(super) const COMMANDS: Duration = Duration::from_secs(10);

/// If the commands took longer, another round is sent before the pause.
const SOON: Duration = Duration::from_millis(20);

/// How long requests in progress may take to end. All clients wait for them.
pub(super) const REQUESTS: Duration = Duration::from_secs(1);

/// The maximum number of rounds before the pause. The pause begins earlier after a round of at most
/// [`FEW_BYTES`], or if rounds do not become shorter although clients wait.
const ROUNDS: u32 = 24;
const FEW_BYTES: u64 = 1 << 20;

/// The longest pause, which is also the longest time before it; this many stored bytes add a
/// second.
const PAUSE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: u64 = 128 << 20;

/// Interval between two checks whether the pause is too long, or the server stops.
const TICK: Duration = Duration::from_millis(50);

/// Begins to hand a server over to the process at the other end of `socket`; `ahead` says whether
/// that process can read the pool before the pause. If the handover fails, the server continues.
pub(crate) fn begin(server: &Server, socket: OwnedFd, ahead: bool) -> Result<HandingOver, Failure> {
    let failed = |what: String| Failure::new(Code::Failed, what);
    let listened = server.0.listened.get().ok_or_else(|| failed("the server does not listen yet".to_owned()))?;
    if let Some(obstacle) = obstacle(server, listened).or_else(|| lack_of_memory(server)) {
        return Err(failed(format!("the server cannot be handed over: {obstacle}")));
    }
    let peer = socket_peercred(&socket).map_err(|error| failed(format!("not a socket: {error}")))?;
    let channel = Channel::new(socket).map_err(|error| failed(error.to_string()))?;
    if listened.giving.begun.swap(true, Ordering::SeqCst) {
        return Err(Failure::new(Code::Busy, "the server is being handed over already"));
    }
    let server_of_thread = server.clone();
    let give = move || {
        let server = server_of_thread;
        let Some(listened) = server.0.listened.get() else { return };
        let pid = peer.pid.as_raw_pid().unsigned_abs();
        if let Err(why) = give(&server, listened, &channel, pid, ahead) {
            // The other process may be gone.
            let _ = channel.send(Kind::Failed, why.as_bytes());
            listened.giving.begun.store(false, Ordering::SeqCst);
            server.0.observer.warn(&format!("the server was not handed over to process {pid}, and continues: {why}"));
        }
    };
    if let Err(error) = thread::Builder::new().name("hand-over".to_owned()).spawn(give) {
        listened.giving.begun.store(false, Ordering::SeqCst);
        return Err(failed(format!("cannot start a thread: {error}")));
    }
    Ok(HandingOver { pid: std::process::id() })
}

/// Returns the reason why a server cannot be handed over, if there is one.
fn obstacle(server: &Server, listened: &Listened) -> Option<String> {
    if listened.ending.has_begun() {
        return Some("it is stopping".to_owned());
    }
    if server.0.disks.has_instants() {
        return Some("a disk is being frozen; try again when that is done".to_owned());
    }
    lack(server).or_else(|| listened.giving.obstacles.first())
}

/// Returns what another process would lack to continue with the disks.
pub(super) fn lack(server: &Server) -> Option<String> {
    let disks = server.0.disks.table().batch(Batch { after: None, most: usize::MAX });
    let is_device = |disk: &Disk| disk.backing.as_base().is_some_and(|base| base.record().is_none());
    if let Some((name, ..)) = disks.iter().find(|(_, disk, _)| is_device(disk)) {
        return Some(format!("base '{name}' is not a file with a UTF-8 path"));
    }
    None
}

/// Returns whether the other process has too little memory.
pub(super) fn lack_of_memory(server: &Server) -> Option<String> {
    let needed_bytes = stored_bytes(server);
    let memory = Memory::available().filter(|memory| memory.bytes < needed_bytes)?;
    let needed = pagefold_size::show(needed_bytes);
    Some(format!("for a while, both processes store {needed}, and less is left: {memory}"))
}

/// Returns the memory that the other process will need.
pub(super) fn stored_bytes(server: &Server) -> u64 {
    server.0.disks.table().pool.stats().spent_bytes
}

/// Returns how long the server may pause.
pub(super) fn longest_pause(server: &Server) -> Duration {
    longest(stored_bytes(server))
}

/// Returns how long handing over this number of stored bytes may take.
pub(super) fn longest(stored_bytes: u64) -> Duration {
    PAUSE + Duration::from_secs(stored_bytes / BYTES_PER_SECOND)
}

/// Hands the server over. Fails with the reason; the server then continues.
fn give(server: &Server, listened: &Listened, channel: &Channel, pid: u32, ahead: bool) -> Result<(), String> {
    let Giving { control, when_given, .. } = &listened.giving;
    let most = longest_pause(server);
    // Set again when the pause begins.
    let start = Mutex::new(Instant::now());
    let start_of = || start.lock().unwrap_or_else(PoisonError::into_inner);
    let mut next = Next::new(&listened.giving, pid);
    let (end, has_ended) = mpsc::channel::<()>();
    let is_late = AtomicBool::new(false);
    let given = thread::scope(|scope| {
        let watch = || {
            let has_ended = has_ended;
            while has_ended.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout) {
                is_late.store(start_of().elapsed() > most, Ordering::SeqCst);
                if is_late.load(Ordering::SeqCst) || listened.ending.has_begun() {
                    // Nothing sent later arrives, not even GO.
                    return channel.shut_down();
                }
            }
        };
        let watches = thread::Builder::new().name("hand-over-limit".to_owned()).spawn_scoped(scope, watch);
        watches.map_err(|error| format!("cannot start a thread: {error}"))?;
        let mut give = || {
            let mut brake = Brake::new(server.0.disks.exports());
            let mut precopied = if ahead { precopy(server, listened, channel, &mut next, &mut brake)? } else { None };
            let asked = Instant::now();
            let commands =
                control.get().map(|control| control.handle.pause(COMMANDS).ok_or("a command is in progress"));
            let commands = commands.transpose()?;
            if asked.elapsed() > SOON {
                round(server, channel, &mut precopied).map_err(broken)?;
            }
            // Checked again, because a command may have begun something. The other process already
            // has memory for what was sent.
            let lack = if precopied.is_none() { lack_of_memory(server) } else { None };
            if let Some(obstacle) = obstacle(server, listened).or(lack) {
                return Err(obstacle);
            }
            *start_of() = Instant::now();
            let paused = listened.server.pause(REQUESTS).map_err(|error: PauseError| error.to_string())?;
            let transports = listened.giving.transports.pause(REQUESTS)?;
            let ended = start_of().elapsed();
            let pause = Pause { sockets: paused.handed(), transports: &transports.handed };
            let sent_bytes = transfer(server, listened, channel, &pause, precopied.as_mut(), &mut next)?;
            // Memory of the rounds is freed only after clients use the other process.
            Ok((commands, paused, transports, sent_bytes, ended, precopied))
        };
        let given = give();
        drop(end);
        given
    });
    let (commands, paused, transports, sent_bytes, ended, _precopied) =
        given.map_err(|why| match is_late.load(Ordering::SeqCst) {
            _ if listened.ending.has_begun() => "the server is stopping".to_owned(),
            true => format!("it has taken more than {} s", most.as_secs()),
            false => why,
        })?;
    // From here on, the other process serves. This process may end once `when_given` has run.
    let [paused_ms, ended_ms] = [start_of().elapsed(), ended].map(|time| time.as_secs_f64() * 1e3);
    if let Some(notify) = when_given {
        notify(pid);
    }
    let sent = pagefold_size::show(sent_bytes);
    let line = format!(
        "handed over to process {pid}; clients paused for {paused_ms:.1} ms, of which {ended_ms:.1} until their \
         requests had ended; sent in the pause: {sent}"
    );
    server.0.observer.info(&line);
    if let Some(control) = control.get() {
        control.file.leave();
    }
    if let Some(commands) = commands {
        commands.give_away();
    }
    transports.give_away();
    paused.give_away();
    Ok(())
}

/// The parts of a paused server that are handed over.
pub(super) struct Pause<'a> {
    pub(super) sockets: &'a Handed<Shared>,
    pub(super) transports: &'a [HandedTransport],
}

/// Sends most of the pool while the server serves. Returns the state for sending the rest, or
/// `None` if the whole pool is to be sent in the pause.
fn precopy(
    server: &Server,
    listened: &Listened,
    channel: &Channel,
    next: &mut Next,
    brake: &mut Brake,
) -> Result<Option<Precopy>, String> {
    let pool = &server.0.disks.table().pool;
    let Ok(precopy) = Precopy::begin(pool) else { return Ok(None) };
    let pool = PoolState { codec: pool.codec_name(), dedupe: server.0.dedupe };
    let (limit_bytes, tls) = (server.0.disks.limit_bytes(), listened.giving.tls);
    let bases = Found::of(server).bases.iter().filter_map(|base| base.record()).collect();
    let ahead = Ahead { version: VERSION, pool, limit_bytes, tls, stores: next.is_stored(), bases };
    let text = serde_json::to_vec(&ahead).map_err(|error| error.to_string())?;
    channel.send(Kind::Ahead, &text).map_err(broken)?;
    next.arrives(channel)?;
    let mut precopied = Some(precopy);
    let mut last_bytes = u64::MAX;
    for _ in 0..ROUNDS {
        let sent_bytes = round(server, channel, &mut precopied).map_err(broken)?;
        let is_shorter = sent_bytes <= last_bytes / 2;
        if sent_bytes <= FEW_BYTES || !is_shorter && !brake.pull() {
            break;
        }
        last_bytes = sent_bytes;
    }
    Ok(precopied)
}

/// Sends what was written since the last round, and returns how much that was. Drops `precopied` if
/// clients need the memory that the rounds take.
fn round(server: &Server, channel: &Channel, precopied: &mut Option<Precopy>) -> io::Result<u64> {
    let Some(precopy) = precopied else { return Ok(0) };
    match precopy_disks(precopy, &Found::of(server).stored(), &mut PoolWriter::new(channel)) {
        Ok(sent_bytes) => return Ok(sent_bytes),
        Err(ExportError::Write(error)) => return Err(error),
        Err(_) => *precopied = None,
    }
    channel.send(Kind::Void, &[]).map(|()| 0)
}

/// Sends everything that is left, and GO once the other process is ready. Returns the bytes of the pool's
/// stream.
fn transfer(
    server: &Server,
    listened: &Listened,
    channel: &Channel,
    pause: &Pause<'_>,
    precopied: Option<&mut Precopy>,
    next: &mut Next,
) -> Result<u64, String> {
    let sent = send(server, listened, channel, pause, precopied, next.is_stored());
    let sent_bytes = sent.map_err(broken)??;
    let receive = || channel.receive().map_err(|error| format!("the other process is not ready: {error}"));
    let mut message = receive()?;
    // The file comes late, or the process has begun again. Clients wait.
    for _ in 0..2 {
        if message.kind == Kind::Memory {
            next.take(message)?;
            message = receive()?;
        }
    }
    match message.kind {
        Kind::Ready => {}
        Kind::Failed => return Err(String::from_utf8_lossy(&message.bytes).into_owned()),
        _ => return Err("the other process has sent an unknown message".to_owned()),
    }
    if listened.ending.has_begun() {
        return Err("the server is stopping".to_owned());
    }
    let kept = pool_file::file(server);
    let marked = next.free().and_then(|()| {
        let marked = kept.map_or(Ok(()), mark_taken);
        marked.map_err(|error| format!("its memory cannot be marked: {error}"))
    });
    let given = marked.and_then(|()| {
        let sent = channel.send(Kind::Go, &[]);
        sent.map_err(|error| format!("the other process has ended: {error}"))
    });
    match given {
        Ok(()) => next.serves(),
        Err(_) => {
            // This cannot fail: it is this process's own file. No client got an answer in between.
            let _ = kept.map(mark_free);
            next.forget();
        }
    }
    given.map(|()| sent_bytes)
}

/// Returns the message for a broken connection to the other process.
fn broken(error: io::Error) -> String {
    format!("the other process does not receive: {error}")
}

/// The disks of the pool's stream, and their bases.
pub(super) struct Found {
    bases: Vec<Arc<BaseDisk>>,
    disks: Vec<(String, Disk)>,
}

impl Found {
    /// Finds all disks of a server. The result stays valid only while the server pauses.
    pub(super) fn of(server: &Server) -> Self {
        let mut found = Self { bases: Vec::new(), disks: Vec::new() };
        for (name, disk, _) in server.0.disks.table().batch(Batch { after: None, most: usize::MAX }) {
            if let Some(base) = disk.base()
                && !found.bases.iter().any(|known| Arc::ptr_eq(known, base))
            {
                found.bases.push(Arc::clone(base));
            }
            found.disks.push((name, disk));
        }
        found
    }

    /// Returns the disks that have sockets of their own.
    pub(super) fn sockets(&self) -> Vec<(String, PathBuf)> {
        let path = |disk: &Disk| disk.socket.as_ref().map(|socket| socket.path.clone());
        self.disks.iter().filter_map(|(name, disk)| Some((name.clone(), path(disk)?))).collect()
    }

    /// Returns the disks in the order of the stream.
    pub(super) fn stored(&self) -> Vec<&RamDisk> {
        let bases = self.bases.iter().map(|base| &*base.pristine);
        bases.chain(self.disks.iter().filter_map(|(_, disk)| disk.backing.stored().map(|ram| &**ram))).collect()
    }
}

/// Sends everything, or what is left after rounds. Returns the bytes of the pool's stream. Fails in
/// two ways: the other process does not receive, or something cannot be sent.
fn send(
    server: &Server,
    listened: &Listened,
    channel: &Channel,
    pause: &Pause<'_>,
    precopied: Option<&mut Precopy>,
    stores: bool,
) -> io::Result<Result<u64, String>> {
    // Clients may have needed the memory that the rounds took.
    let has_ended = precopied.as_ref().is_some_and(|precopy| precopy.has_ended());
    if has_ended {
        channel.send(Kind::Void, &[])?;
    }
    let found = Found::of(server);
    let giving = &listened.giving;
    let mut record = match record(server, listened, pause, &found) {
        Ok(record) => record,
        Err(why) => return Ok(Err(why)),
    };
    record.stores = stores;
    // Without a store, the pool's file ends with this process.
    let memory = pool_file::file(server).filter(|_| stores);
    record.files.extend(memory.map(|_| MEMORY.to_owned()));
    let text = serde_json::to_vec(&record).map_err(io::Error::other)?;
    channel.send(Kind::Record, &text)?;
    let control = giving.control.get().map(|control| control.listener.as_fd());
    let Handed { listeners, clients, newcomers, .. } = pause.sockets;
    let sockets = listeners.iter().map(|(_, fd)| fd).chain(clients.iter().map(|(_, fd)| fd));
    let sockets = sockets.chain(newcomers.iter().map(|(_, fd)| fd)).map(|fd| fd.as_fd());
    let files = giving.belongings.files.iter().map(|(_, file)| file.as_fd()).chain(memory.map(File::as_fd));
    let transports = pause.transports.iter().flat_map(|transport| &transport.descriptors).map(|fd| fd.as_fd());
    let all: Vec<BorrowedFd<'_>> = sockets.chain(control).chain(files).chain(transports).collect();
    channel.send_descriptors(&all)?;
    let mut writer = PoolWriter::new(channel);
    let exported = match precopied.filter(|_| !has_ended) {
        Some(precopy) => finish_disks(precopy, &found.stored(), &mut writer).map(drop),
        None => export_disks(&server.0.disks.table().pool, &found.stored(), &mut writer),
    };
    if let Err(error) = exported {
        return Ok(Err(error.to_string()));
    }
    Ok(Ok(writer.end()?))
}

pub(super) fn record(server: &Server, listened: &Listened, pause: &Pause<'_>, found: &Found) -> Result<Record, String> {
    let Pause { sockets: handed, transports } = *pause;
    let (disks, giving) = (&server.0.disks, &listened.giving);
    let table = disks.table();
    let bases = found.bases.iter().map(|base| base.record().ok_or("a base is not a file with a UTF-8 path"));
    let disk_states = found.disks.iter().map(|(name, disk)| {
        let (number, _) = table.exports.get_numbered(name).ok_or_else(|| format!("disk '{name}' is not served"))?;
        let exported = table.exported(name);
        let base = disk.base();
        Ok(DiskState {
            name: name.clone(),
            number,
            kind: match disk.backing.kind() {
                pagefold_control::DiskKind::Base => record::Kind::Base,
                pagefold_control::DiskKind::Snapshot => record::Kind::Snapshot,
                _ => record::Kind::Ram,
            },
            base: base.and_then(|base| found.bases.iter().position(|known| Arc::ptr_eq(known, base))),
            origin: disk.origin.as_ref().map(|origin| origin.name.clone()),
            origin_number: disk.origin.as_ref().and_then(|origin| origin.number),
            age_ms: u64::try_from(disk.made.elapsed().as_millis()).unwrap_or(u64::MAX),
            limit_bytes: disk.limit_bytes,
            read_only: disk.read_only,
            quota: exported.quota,
        })
    });
    let control = giving.control.get().map(|control| ControlState {
        path: control.path.as_ref().and_then(|path| path.to_str()).map(str::to_owned),
        owns_file: control.file.is_there(),
        is_passed: control.is_passed,
    });
    Ok(Record {
        version: VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        pool: PoolState { codec: table.pool.codec_name(), dedupe: server.0.dedupe },
        bases: bases.collect::<Result<_, _>>()?,
        disks: disk_states.collect::<Result<_, String>>()?,
        id: table.id(),
        next_number: table.exports.next_number(),
        limit_bytes: disks.limit_bytes(),
        connections: listened.server.connections_limit() as u64,
        waits: table.room.is_some(),
        uptime_ms: u64::try_from(listened.start.elapsed().as_millis()).unwrap_or(u64::MAX),
        start_time_ns: listened.start_time.duration_since(UNIX_EPOCH).ok().and_then(|at| at.as_nanos().try_into().ok()),
        tls: giving.tls,
        stores: false,
        listeners: handed.listeners.iter().map(|(state, _)| state.clone()).collect(),
        clients: handed.clients.iter().map(|(state, _)| state.clone()).collect(),
        newcomers: handed.newcomers.iter().map(|(state, _)| state.clone()).collect(),
        control,
        files: giving.belongings.files.iter().map(|(name, _)| name.clone()).collect(),
        texts: giving.belongings.texts.clone(),
        transports: transports.iter().map(TransportState::of).collect(),
    })
}
