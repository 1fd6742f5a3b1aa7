//! A server's control socket, with one thread per client.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    net::sockopt::socket_peercred,
    process::geteuid,
};
use serde_json::Value;

use crate::{
    Code, Failure, Greeting, MAX_REQUEST_BYTES, Manage,
    dispatch::{Holding, answer_in_parts, refusal},
    gate::{Gate, Pause},
    lines::{Bounds, LineError, Lines, Sending, send},
};

/// Version of the protocol, which changes only if existing programs would otherwise fail.
pub(crate) const PROTOCOL: u64 = 1;

/// How long a new client waits for the end of a client that is closed to make room.
const MAKE_ROOM_TIME: Duration = Duration::from_secs(1);

/// Pause before the next attempt if accepting fails, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds on the resources of clients. Start from [`Limits::default`] and change fields.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of clients. When a further one connects, the client that has been idle
    /// longest is closed. If none is idle, the new one gets an error.
    pub clients: usize,
    /// Maximum number of clients that hold an instant of a disk, in addition. They are never closed
    /// to make room. The others cannot freeze a disk.
    pub holders: usize,
    /// Time within which a request must be complete, from its first byte. Between requests, a
    /// client may be silent indefinitely.
    pub request_time: Duration,
    /// Time within which a client must read an answer.
    pub answer_time: Duration,
    /// When the server stops, clients that have not finished after this time are closed.
    pub stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 16,
            holders: 64,
            request_time: Duration::from_secs(10),
            answer_time: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
        }
    }
}

/// A listening control socket.
pub struct Server {
    listener: UnixListener,
    shared: Arc<ServerCore>,
}

/// State shared by the server, its handles and its clients' threads.
struct ServerCore {
    disks: Arc<dyn Manage>,
    greeting: String,
    limits: Limits,
    stopping: AtomicBool,
    wake: OwnedFd,
    gate: Arc<Gate>,
    /// Held while a request is parsed, which needs up to 50 times the request's size in memory.
    parsing: Mutex<()>,
    clients: Mutex<Clients>,
    client_ended: Condvar,
}

/// Clients by number.
#[derive(Default)]
struct Clients {
    next: u64,
    all: BTreeMap<u64, Client>,
}

struct Client {
    stream: Arc<UnixStream>,
    /// Start of the idle time; `None` while a request is answered or after the client was evicted.
    idle_since: Option<Instant>,
    /// Whether it holds an instant of a disk.
    holds: bool,
}

impl Clients {
    /// Returns the number of clients that hold no instant.
    fn others(&self) -> usize {
        self.all.values().filter(|client| !client.holds).count()
    }
}

/// Stops a server from any thread.
#[derive(Clone)]
pub struct ServerHandle(Arc<ServerCore>);

impl Server {
    /// Lets the clients of `listener` manage `disks`. `version` is the program's, for the greeting.
    ///
    /// Only clients of this process's user and of root are served, whatever the socket's mode.
    pub fn new(listener: UnixListener, disks: Arc<dyn Manage>, version: &str, limits: Limits) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let greeting = Greeting { name: "pagefold".to_owned(), protocol: PROTOCOL, version: version.to_owned() };
        let shared = ServerCore {
            disks,
            greeting: serde_json::to_string(&greeting).map_err(io::Error::other)?,
            limits,
            stopping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            gate: Arc::default(),
            parsing: Mutex::default(),
            clients: Mutex::default(),
            client_ended: Condvar::new(),
        };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Returns a handle that stops this server.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(Arc::clone(&self.shared))
    }

    /// Serves until [`ServerHandle::stop`] is called. Received requests are answered first, within
    /// [`Limits::stop_grace`].
    pub fn run(self) -> io::Result<()> {
        let Self { listener, shared } = self;
        let result = shared.accept_all(&listener);
        drop(listener);
        shared.stopping.store(true, Ordering::SeqCst);
        shared.finish();
        result
    }
}

impl ServerHandle {
    /// Waits until commands in progress end. Until the result is dropped, no further command begins
    /// and no client connects. Returns `None` if commands have not ended within `patience`.
    pub fn pause(&self, patience: Duration) -> Option<Pause> {
        self.0.gate.pause(patience)
    }

    /// Asks the server to stop and returns immediately.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        // Fails only after 2^64 calls.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").finish_non_exhaustive()
    }
}

impl ServerCore {
    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>, listener: &UnixListener) -> io::Result<()> {
        let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        while !self.stopping.load(Ordering::SeqCst) {
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            let Some(_inside) = self.gate.pass() else { return Ok(()) };
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
        Ok(())
    }

    fn admit(self: &Arc<Self>, stream: UnixStream) {
        // On failure, the stream is closed by being dropped.
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        let Ok(peer) = socket_peercred(&stream) else { return };
        if peer.uid != geteuid() && !peer.uid.is_root() {
            let what = "only the server's user and root may manage it";
            return self.refuse(&stream, &Failure::new(Code::NotAllowed, what));
        }
        let stream = Arc::new(stream);
        let Some(number) = self.enter(&stream) else {
            let what = format!("{} clients are connected already: retry later", self.limits.clients);
            return self.refuse(&stream, &Failure::new(Code::Busy, what));
        };
        let entry = ClientEntry { shared: Arc::clone(self), number };
        let spawned = thread::Builder::new().name("control-client".to_owned()).spawn(move || {
            // Its outcome concerns only the client.
            let _ = entry.shared.serve(entry.number, &stream);
        });
        // If no thread starts, dropping the closure drops the entry and the stream.
        drop(spawned);
    }

    /// Notifies a client that it is not served. Does not block on a client that reads nothing: its
    /// socket has room for a line.
    fn refuse(&self, stream: &UnixStream, failure: &Failure) {
        let _ = send(stream, &self.greeting, MAKE_ROOM_TIME);
        let _ = send(stream, &refusal(&Value::Null, failure), MAKE_ROOM_TIME);
    }

    /// Adds a client to the list, evicting an idle one if necessary. Returns `None` if all are
    /// busy.
    fn enter(&self, stream: &Arc<UnixStream>) -> Option<u64> {
        let mut clients = self.lock();
        if clients.others() >= self.limits.clients {
            let idle = clients.all.values_mut().filter(|client| client.idle_since.is_some());
            let longest = idle.min_by_key(|client| client.idle_since)?;
            longest.idle_since = None;
            // The evicted client may already be gone.
            let _ = longest.stream.shutdown(std::net::Shutdown::Both);
            let full = |clients: &mut Clients| clients.others() >= self.limits.clients;
            let waited = self.client_ended.wait_timeout_while(clients, MAKE_ROOM_TIME, full);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            clients = guard;
            if timeout.timed_out() {
                return None;
            }
        }
        let number = clients.next;
        clients.next += 1;
        let idle_since = Some(Instant::now());
        clients.all.insert(number, Client { stream: Arc::clone(stream), idle_since, holds: false });
        Some(number)
    }

    /// Returns whether a client may hold instants. If so, it counts as a holder.
    fn may_hold(&self, number: u64) -> bool {
        let mut clients = self.lock();
        let holders = clients.all.values().filter(|client| client.holds).count();
        let Some(client) = clients.all.get_mut(&number) else { return false };
        client.holds |= holders < self.limits.holders;
        client.holds
    }

    fn set_idle(&self, number: u64, idle_since: Option<Instant>) {
        if let Some(client) = self.lock().all.get_mut(&number) {
            client.idle_since = idle_since;
            // A freeze may have failed.
            client.holds &= idle_since.is_none();
        }
    }

    fn serve(&self, number: u64, stream: &UnixStream) -> io::Result<()> {
        let Limits { request_time, answer_time, .. } = self.limits;
        send(stream, &self.greeting, answer_time)?;
        let bounds = Bounds { max_bytes: MAX_REQUEST_BYTES, time: request_time, idle: true };
        let mut lines = Lines::default();
        let mut held = Vec::new();
        loop {
            let line = match lines.next(stream, bounds) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(()),
                Err(LineError::Io(error)) => return Err(error),
                Err(error) => {
                    let failure = Failure::new(Code::TooMuch, format!("{error}; closing the connection"));
                    return send(stream, &refusal(&Value::Null, &failure), answer_time);
                }
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            self.set_idle(number, None);
            let Some(inside) = self.gate.pass() else { return Ok(()) };
            let mut sending = None;
            let may_hold = || self.may_hold(number);
            let mut holding = Holding { held: &mut held, may_hold: &may_hold, passed: lines.take_passed() };
            answer_in_parts(line, &*self.disks, &self.parsing, &mut holding, &mut |part| {
                sending.get_or_insert_with(|| Sending::begin(stream, answer_time)).part(part)
            })?;
            drop(inside);
            // A client for which something is held is not idle, even if it is silent.
            if held.is_empty() {
                self.set_idle(number, Some(Instant::now()));
            }
        }
    }

    /// Ends all clients: gracefully, and forcibly after the grace period.
    fn finish(&self) {
        use std::net::Shutdown;
        let mut clients = self.lock();
        for how in [Shutdown::Read, Shutdown::Both] {
            clients.all.values().for_each(|client| drop(client.stream.shutdown(how)));
            let some = |clients: &mut Clients| !clients.all.is_empty();
            let waited = self.client_ended.wait_timeout_while(clients, self.limits.stop_grace, some);
            clients = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A client's entry in the list, removed when its thread ends.
struct ClientEntry {
    shared: Arc<ServerCore>,
    number: u64,
}

impl Drop for ClientEntry {
    fn drop(&mut self) {
        self.shared.lock().all.remove(&self.number);
        self.shared.client_ended.notify_all();
    }
}
