//! The server: listeners, connections, and an orderly stop.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::{
    Error, Export, Exports, Limits, Passed,
    connection::{Common, Connection, spawn},
    listen::{Listener, Permissions},
    memory::{Account, Memory},
    negotiate::negotiate,
    presence::{ClientEvent, Presence, WhenClient},
    quota::has_part,
    sockets::{Opened, Sockets},
    transport::{Deadline, Socket, Transport},
};

/// Pause before the next attempt if accepting fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a new client waits to be accepted while evicted connections have not ended yet.
const TURN_OUT_TIME: Duration = Duration::from_secs(1);

/// A negotiating client is not evicted before this time, so that many clients that connect at the
/// same instant are all served.
const LEAST_NEGOTIATION: Duration = Duration::from_millis(250);

/// Minimum interval between two reports of refused clients, for each reason.
const TELL_PAUSE: Duration = Duration::from_secs(60);

/// Builds a [`Server`].
#[derive(Debug, Default)]
pub struct Builder {
    exports: Exports,
    added: Vec<Export>,
    unix: Vec<(PathBuf, Permissions)>,
    tcp: Vec<SocketAddr>,
    passed: Option<Passed>,
    limits: Limits,
    account: SharedAccount,
    when_refused: WhenRefused,
    when_client: WhenClient,
}

/// Reasons why a client was not served. None of them ends the server.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The number of clients served has reached [`Limits::connections`], which is given here.
    Full(usize),
    /// Accepting failed for lack of descriptors or memory. The connection stays in the queue.
    Accept(io::Error),
    /// No thread could be started for it; its connection was closed.
    Thread(io::Error),
    /// The server's [`Account`] has no room for another connection; it was closed.
    Memory,
}

/// The callback for refused clients.
#[derive(Clone, Default)]
struct WhenRefused(Option<Arc<dyn Fn(Refused) + Send + Sync>>);

impl fmt::Debug for WhenRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WhenRefused").field(&self.0.is_some()).finish()
    }
}

/// The account that counts memory, if any.
#[derive(Clone, Default)]
struct SharedAccount(Option<Arc<dyn Account>>);

impl fmt::Debug for SharedAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedAccount").field(&self.0.is_some()).finish()
    }
}

impl Builder {
    /// Adds an export. Clients that name none get the first.
    #[must_use]
    pub fn export(mut self, export: Export) -> Self {
        self.added.push(export);
        self
    }

    /// Serves these exports, including those added later. By default, the server has a set of its
    /// own.
    #[must_use]
    pub fn exports(mut self, exports: Exports) -> Self {
        self.exports = exports;
        self
    }

    /// Listens on a Unix socket at `path`, to which only this process's user and root may connect.
    /// Its file is removed when the server stops.
    #[must_use]
    pub fn unix(self, path: impl Into<PathBuf>) -> Self {
        self.unix_for(path, Permissions::default())
    }

    /// Listens on a Unix socket at `path` with these permissions.
    #[must_use]
    pub fn unix_for(mut self, path: impl Into<PathBuf>, permissions: Permissions) -> Self {
        self.unix.push((path.into(), permissions));
        self
    }

    /// Listens on a TCP address. The protocol has no password: anyone who can reach the address can
    /// use the exports.
    #[must_use]
    pub fn tcp(mut self, address: SocketAddr) -> Self {
        self.tcp.push(address);
        self
    }

    /// Listens on sockets that the service manager passed.
    #[must_use]
    pub fn passed(mut self, passed: Passed) -> Self {
        self.passed = Some(passed);
        self
    }

    /// Bounds the resources that peers can consume.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Counts the memory of connections in `account`, in addition to [`Limits::memory_bytes`].
    #[must_use]
    pub fn account(mut self, account: Arc<dyn Account>) -> Self {
        self.account = SharedAccount(Some(account));
        self
    }

    /// Calls `tell` when a client begins to use an export and when it has ended. Clients wait for it.
    #[must_use]
    pub fn when_client(mut self, tell: impl Fn(ClientEvent) + Send + Sync + 'static) -> Self {
        self.when_client = WhenClient(Some(Arc::new(tell)));
        self
    }

    /// Calls `tell` when a client is not served, at most once a minute for each reason. Clients
    /// wait for the thread that calls it.
    #[must_use]
    pub fn when_refused(mut self, tell: impl Fn(Refused) + Send + Sync + 'static) -> Self {
        self.when_refused = WhenRefused(Some(Arc::new(tell)));
        self
    }

    /// Opens the listeners. Clients can connect from now on; [`Server::run`] serves them.
    ///
    /// # Errors
    /// No address was given, a name is invalid or used twice, or an address cannot be listened on:
    /// [`Error`] says which. Sockets that were already opened are closed again, and their files
    /// removed.
    pub fn bind(self) -> Result<Server, Error> {
        let exports = self.exports;
        for export in self.added {
            exports.add(export)?;
        }
        let sockets = Sockets::default();
        let add = |listener| sockets.add(Opened { listener, exports: exports.clone() });
        for (path, permissions) in &self.unix {
            add(Listener::unix(path, *permissions)?)?;
        }
        for &address in &self.tcp {
            add(Listener::tcp(address)?)?;
        }
        self.passed.into_iter().flat_map(Passed::into_listeners).try_for_each(|listener| add(listener).map(drop))?;
        if sockets.list().is_empty() {
            return Err(Error::NoListener);
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::System { what: "make an eventfd", source: error.into() })?;
        let control = Control {
            common: Common::new(self.limits, Memory::new(self.limits.memory_bytes, self.account.0)),
            wake,
            sockets,
            connections: Mutex::default(),
            abandoned: AtomicBool::new(false),
            place_free: Condvar::new(),
            when_refused: self.when_refused,
            when_client: self.when_client,
        };
        Ok(Server { exports, control: Arc::new(control) })
    }
}

/// An NBD server whose listeners are open.
#[derive(Debug)]
pub struct Server {
    exports: Exports,
    control: Arc<Control>,
}

/// State shared by the server, its handles and its connections.
struct Control {
    common: Arc<Common>,
    wake: OwnedFd,
    sockets: Sockets,
    connections: Mutex<Connections>,
    abandoned: AtomicBool,
    /// Signalled when a connection has ended or has chosen an export.
    place_free: Condvar,
    when_refused: WhenRefused,
    when_client: WhenClient,
}

/// Connections by number, the oldest first. `negotiating + serving + turned out = all.len()`.
#[derive(Default)]
struct Connections {
    next: u64,
    all: BTreeMap<u64, Admitted>,
    /// Time of the last report of a refused client, for each reason.
    told: [Option<Instant>; 4],
}

/// A connection that was accepted and has not ended.
struct Admitted {
    socket: Arc<Socket>,
    phase: Phase,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Negotiating,
    /// It was closed to make room for others, and its thread has not ended yet.
    TurnedOut,
    Serving,
}

impl Connections {
    fn count(&self, phase: Phase) -> usize {
        self.all.values().filter(|admitted| admitted.phase == phase).count()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("common", &self.common).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Handles may live longer than the sockets' files.
        self.control.sockets.close();
    }
}

/// Stops a server from any thread.
#[derive(Clone, Debug)]
pub struct ServerHandle(Arc<Control>);

impl ServerHandle {
    /// Asks the server to stop and returns at once; [`Server::run`] returns when it has stopped.
    ///
    /// No further connection is accepted. Received requests are answered. Then connections are
    /// closed, at the latest after [`Limits::stop_grace`].
    pub fn stop(&self) {
        self.0.common.stopping.store(true, Ordering::SeqCst);
        self.0.wake();
    }

    /// Like [`stop`](Self::stop), but [`Server::run`] no longer waits for connections or for requests
    /// that a device is working on. Their threads go on until the process ends.
    pub fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::SeqCst);
        self.stop();
        // A thread that has not seen the flag is not waiting yet, or waits now.
        drop(self.0.connections.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.place_free.notify_all();
    }

    /// Listens on a further Unix socket, whose clients see only `exports`, until the result is dropped
    /// or the server stops.
    ///
    /// # Errors
    /// Those of [`Builder::bind`] for a Unix socket, and [`Error::Stopping`].
    pub fn listen(&self, path: &Path, permissions: Permissions, exports: Exports) -> Result<OwnSocket, Error> {
        let listener = Listener::unix(path, permissions)?;
        let number = self.0.sockets.add(Opened { listener, exports })?;
        self.0.wake();
        Ok(OwnSocket { control: Arc::clone(&self.0), number })
    }

    /// Returns the current number of connections.
    pub fn connections(&self) -> usize {
        self.0.connections.lock().unwrap_or_else(PoisonError::into_inner).all.len()
    }
}

/// A socket that a server opened while it ran. Dropping this closes it and removes its file; clients
/// that are connected stay.
#[derive(Debug)]
pub struct OwnSocket {
    control: Arc<Control>,
    number: u64,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.control.sockets.remove(self.number);
        self.control.wake();
    }
}

/// A connection's entry in the server's list.
struct Admission {
    control: Arc<Control>,
    number: u64,
    /// Once it has chosen an export.
    presence: OnceLock<Option<Presence>>,
}

impl Admission {
    /// Lets the connection proceed after the handshake. If `limit` connections are already being
    /// served, or if `export`, which counts this one already, has its part of them, fails with that
    /// limit.
    fn begin(&self, limit: usize, export: &Export, exports: usize) -> Result<(), usize> {
        // Not under the lock, which others need to end their connections.
        let own = export.connections().saturating_sub(1);
        let mut connections = self.control.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let serving = connections.count(Phase::Serving);
        if serving >= limit || !has_part(own, exports, serving, limit) {
            drop(connections);
            self.control.tell(Refused::Full(limit));
            return Err(limit);
        }
        let socket = match connections.all.get_mut(&self.number) {
            Some(Admitted { phase: phase @ Phase::Negotiating, socket, .. }) => {
                *phase = Phase::Serving;
                Arc::clone(socket)
            }
            _ => return Err(limit),
        };
        drop(connections);
        self.presence.get_or_init(|| Presence::begin(&self.control.when_client, &socket, export.name()));
        self.control.place_free.notify_all();
        Ok(())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut connections = self.control.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.all.remove(&self.number);
        drop(connections);
        self.control.place_free.notify_all();
    }
}

impl Server {
    /// Creates a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a handle that stops this server.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(Arc::clone(&self.control))
    }

    /// Returns the TCP addresses, with the actual ports.
    pub fn tcp_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.control.sockets.list().into_iter().filter_map(|opened| opened.listener.tcp_address())
    }

    /// Returns a handle to the exports that this server serves.
    pub fn exports(&self) -> Exports {
        self.exports.clone()
    }

    /// Returns the paths of the Unix sockets, including passed ones.
    pub fn unix_paths(&self) -> impl Iterator<Item = PathBuf> {
        self.control.sockets.list().into_iter().filter_map(|opened| opened.listener.unix_path().map(Path::to_owned))
    }

    /// Serves until [`ServerHandle::stop`] is called. Then waits for the connections to finish, and
    /// for requests that a device is working on unless [`ServerHandle::abandon`] is called.
    pub fn run(self) -> Result<(), Error> {
        let result = self.accept_all();
        // From here on, nobody can connect, and the sockets' files are gone, even after an error.
        self.control.sockets.close();
        self.control.common.stopping.store(true, Ordering::SeqCst);
        self.control.finish(self.control.common.limits.stop_grace);
        result
    }

    fn accept_all(&self) -> Result<(), Error> {
        let wake = self.control.wake.as_fd();
        while !self.control.common.stopping.load(Ordering::SeqCst) {
            let sockets = self.control.sockets.list();
            let fds = sockets.iter().map(|opened| opened.listener.as_fd()).chain([wake]);
            let mut polled: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(Error::System { what: "wait for connections", source: error.into() }),
                Ok(_) => {}
            }
            // Once it has been read, it is written again only for another reason to look.
            let _ = rustix::io::read(wake, &mut [0; 8]);
            for (opened, polled) in sockets.iter().zip(&polled) {
                if !polled.revents().is_empty() {
                    self.accept_one(opened);
                }
            }
        }
        Ok(())
    }

    fn accept_one(&self, Opened { listener, exports }: &Opened) {
        let socket = match listener.accept() {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                // Lack of descriptors or memory is a reason to pause; a peer that left before it
                // was accepted is not.
                let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
                use rustix::io::Errno;
                if matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) {
                    self.control.tell(Refused::Accept(error));
                    std::thread::sleep(ACCEPT_PAUSE);
                }
                return;
            }
        };
        // If there are too many, the socket is dropped here and thereby closed.
        let Some(admission) = self.control.admit(&socket, self.control.common.limits.negotiating) else { return };
        let Some(least) = self.control.common.memory.take_least() else {
            return self.control.tell(Refused::Memory);
        };
        let (exports, all) = (exports.clone(), self.exports.clone());
        let common = Arc::clone(&self.control.common);
        // If no thread starts, the connection is closed: dropping the closure drops both.
        let spawned = spawn("nbd-connection", move || {
            let limits = common.limits;
            let deadline = Deadline::after(limits.handshake_timeout);
            let begin = |export: &Export| admission.begin(limits.connections, export, all.len());
            let session = negotiate(&*socket, &exports, &common.memory, deadline, &begin);
            // Once the admission is dropped, the server may be gone: nothing here may keep its
            // devices alive.
            drop((exports, all));
            if let Ok(session) = session {
                // Its outcome concerns only the peer.
                let _ = Connection::serve(socket, session, common, (least, admission));
            }
        });
        if let Err(error) = spawned {
            self.control.tell(Refused::Thread(error));
        }
    }
}

/// Serves one connected stream until it ends. For transports without a listener here, such as
/// standard input, a TLS stream, or memory in tests and fuzzers.
pub fn serve_stream<T: Transport>(stream: T, exports: &Exports, limits: Limits) {
    let (guard, all_threads_ended) = mpsc::channel::<()>();
    let stream = Arc::new(stream);
    let common = Common::new(limits, Memory::new(limits.memory_bytes, None));
    let deadline = Deadline::after(limits.handshake_timeout);
    if let Ok(session) = negotiate(&*stream, exports, &common.memory, deadline, &|_| Ok(())) {
        // Its outcome concerns only the peer.
        let _ = Connection::serve(stream, session, common, guard);
    } else {
        drop(guard);
    }
    // Nothing is ever sent: this returns when the last thread has dropped its sender.
    let _ = all_threads_ended.recv();
}

impl Control {
    /// Makes the accepting thread look at the sockets, and whether the server stops.
    fn wake(&self) {
        // This can fail only after 2^64 calls.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Reports why a client is not served, unless that reason was reported within [`TELL_PAUSE`].
    fn tell(&self, why: Refused) {
        let WhenRefused(Some(tell)) = &self.when_refused else { return };
        let reason = match why {
            Refused::Full(_) => 0,
            Refused::Accept(_) => 1,
            Refused::Thread(_) => 2,
            Refused::Memory => 3,
        };
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let told = &mut connections.told[reason];
        let due = told.is_none_or(|told| told.elapsed() >= TELL_PAUSE);
        if due {
            *told = Some(Instant::now());
        }
        drop(connections);
        if due {
            tell(why);
        }
    }

    /// Admits a connection. If too many are negotiating, waits until one of them has chosen an
    /// export or ended, or until the oldest has had [`LEAST_NEGOTIATION`] and is evicted.
    fn admit(self: &Arc<Self>, socket: &Arc<Socket>, limit: usize) -> Option<Admission> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads of evicted connections take a moment to end, longer on a busy machine.
        let many = |connections: &mut Connections| connections.count(Phase::TurnedOut) >= limit;
        let waited = self.place_free.wait_timeout_while(connections, TURN_OUT_TIME, many);
        let (mut connections, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        while connections.count(Phase::Negotiating) >= limit
            && let Some(oldest) = connections.all.values_mut().find(|admitted| admitted.phase == Phase::Negotiating)
        {
            let early = LEAST_NEGOTIATION.saturating_sub(oldest.since.elapsed());
            if early.is_zero() {
                oldest.socket.shutdown();
                oldest.phase = Phase::TurnedOut;
            } else {
                let waited = self.place_free.wait_timeout(connections, early);
                connections = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let number = connections.next;
        connections.next += 1;
        let admitted = Admitted { socket: Arc::clone(socket), phase: Phase::Negotiating, since: Instant::now() };
        connections.all.insert(number, admitted);
        Some(Admission { control: Arc::clone(self), number, presence: OnceLock::new() })
    }

    /// Ends all connections: gracefully, and forcibly after `grace`.
    fn finish(&self, grace: Duration) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.all.values().for_each(|admitted| admitted.socket.shutdown_recv());
        let deadline = Instant::now() + grace;
        while !connections.all.is_empty() && !self.abandoned.load(Ordering::SeqCst) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            connections = self.place_free.wait_timeout(connections, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        connections.all.values().for_each(|admitted| admitted.socket.shutdown());
        while !connections.all.is_empty() && !self.abandoned.load(Ordering::SeqCst) {
            connections = self.place_free.wait(connections).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
