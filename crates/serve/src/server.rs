//! The server: listeners, connections, and an orderly stop.

use std::{
    fmt,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering, mpsc},
    time::Duration,
};

use pagefold_executor::{Account, Executor, Export, Exports, Memory};
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    Error, Limits, OtherSeat, Passed, Refused,
    admission::{Control, Tls, WhenRefused, wake},
    adopt_error::AdoptError,
    connection::{Common, Connection},
    events::Events,
    handover::Handed,
    listen::{Listener, Permissions},
    negotiate::negotiate,
    newcomer::Newcomer,
    pause::PauseError,
    paused::Paused,
    presence::{ClientEvent, WhenClient},
    resting::Resting,
    sockets::Opened,
    transport::{Deadline, Transport},
};

/// Builds a [`Server`].
#[derive(Debug, Default)]
pub struct Builder {
    exports: Exports,
    added: Vec<Export>,
    unix: Vec<(PathBuf, Permissions)>,
    tcp: Vec<SocketAddr>,
    vsock: Vec<(Option<u32>, u32)>,
    tls: Option<Tls>,
    passed: Option<Passed>,
    limits: Limits,
    account: SharedAccount,
    executor: Option<Arc<Executor>>,
    taken: Handed<OwnedFd>,
    when_refused: WhenRefused,
    when_client: WhenClient,
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

    /// Listens on a TCP address. Without [TLS](Self::tls) and certificates of clients, anyone who can
    /// reach the address can use the exports.
    #[must_use]
    pub fn tcp(mut self, address: SocketAddr) -> Self {
        self.tcp.push(address);
        self
    }

    /// Listens on a vsock port, for virtual machines on this host or, in a virtual machine, for the
    /// host. Without a context id, listens on all context ids of the machine. Any process in a
    /// virtual machine can connect.
    #[must_use]
    pub fn vsock(mut self, cid: Option<u32>, port: u32) -> Self {
        self.vsock.push((cid, port));
        self
    }

    /// Requires TLS on TCP and vsock, and offers it on Unix sockets, where the permissions of their
    /// files say who may connect.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, certificates: Arc<crate::Certificates>) -> Self {
        self.tls = Some(Tls { certificates, is_optional: false });
        self
    }

    /// Offers TLS on all sockets and requires it on none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_optional(mut self, certificates: Arc<crate::Certificates>) -> Self {
        self.tls = Some(Tls { certificates, is_optional: true });
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

    /// Runs requests on threads that are shared with other transports. Their number and memory are
    /// then limited by `executor`, whose memory has its own account.
    #[must_use]
    pub fn executor(mut self, executor: Arc<Executor>) -> Self {
        self.executor = Some(executor);
        self
    }

    /// Calls `notify` when a client begins to use an export, and when it ends. Clients wait for the
    /// call.
    #[must_use]
    pub fn when_client(mut self, notify: impl Fn(ClientEvent) + Send + Sync + 'static) -> Self {
        self.when_client = WhenClient(Some(Arc::new(notify)));
        self
    }

    /// Calls `notify` when a client is not served, at most once a minute for each reason. Clients
    /// wait for the thread that calls it.
    #[must_use]
    pub fn when_refused(mut self, notify: impl Fn(Refused) + Send + Sync + 'static) -> Self {
        self.when_refused = WhenRefused(Some(Arc::new(notify)));
        self
    }

    /// Continues with the sockets and the clients of another server, which must have ended when this one
    /// [runs](Server::run). The exports that they use must exist when the server is bound.
    #[must_use]
    pub fn taken(mut self, taken: Handed<OwnedFd>) -> Self {
        self.taken = taken;
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
        let mut listeners = Vec::new();
        for (path, permissions) in &self.unix {
            listeners.push(Listener::unix(path, *permissions)?);
        }
        for &address in &self.tcp {
            listeners.push(Listener::tcp(address)?);
        }
        for &(cid, port) in &self.vsock {
            listeners.push(Listener::vsock(cid, port)?);
        }
        listeners.extend(self.passed.into_iter().flat_map(Passed::into_listeners));
        if listeners.is_empty() && self.taken.listeners.is_empty() {
            return Err(Error::NoListener);
        }
        let failed = |error: std::io::Error| Error::System { what: "make an eventfd", source: error };
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(e.into()))?);
        let resting = Resting::new(&fd).map_err(failed)?;
        let released = Arc::clone(&fd);
        let executor = self.executor.unwrap_or_else(|| new_executor(self.limits, self.account.0));
        executor.memory().when_released(move || wake(&released));
        let common = Common::new(self.limits, executor);
        let control = Control::new(common, self.tls, fd, resting, self.when_refused, self.when_client);
        for listener in listeners {
            control.listen(Opened { listener, exports: exports.clone() })?;
        }
        let mut server =
            Server { exports, control: Arc::new(control), clients: 0, newcomers: Vec::new(), own: Vec::new() };
        server.take(self.taken)?;
        Ok(server)
    }
}

fn new_executor(limits: Limits, account: Option<Arc<dyn Account>>) -> Arc<Executor> {
    Arc::new(Executor::new(limits.threads, Memory::new(limits.memory_bytes, account)))
}

/// An NBD server whose listeners are open.
pub struct Server {
    exports: Exports,
    control: Arc<Control>,
    /// The clients taken over from another server: the number of the next one, and those that
    /// negotiate.
    clients: u64,
    newcomers: Vec<(u64, Newcomer)>,
    /// Sockets of single exports that were taken over.
    own: Vec<TakenSocket>,
}

/// A socket of a single export that was taken over from another server.
#[derive(Debug)]
pub struct TakenSocket {
    /// Name of the export.
    pub export: String,
    /// The socket's path.
    pub path: PathBuf,
    /// Closes the socket when it is dropped.
    pub socket: OwnSocket,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("exports", &self.exports).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Handles may live longer than the sockets' files.
        self.control.sockets.close();
        // Those of a server that has never run.
        self.control.resting.close();
    }
}

/// Stops a server from any thread.
#[derive(Clone, Debug)]
pub struct ServerHandle(Arc<Control>);

impl ServerHandle {
    /// Asks the server to stop and returns immediately; [`Server::run`] returns when it has stopped.
    ///
    /// No further connection is accepted. Received requests are answered. Then connections are
    /// closed, at the latest after [`Limits::stop_grace`].
    pub fn stop(&self) {
        self.0.common.stopping.store(true, Ordering::SeqCst);
        self.0.wake();
    }

    /// Like [`stop`](Self::stop), but [`Server::run`] no longer waits for connections or for requests
    /// that a device is working on. Their threads continue until the process ends.
    pub fn abandon(&self) {
        self.0.abandon();
        self.stop();
    }

    /// Waits until no request is in progress, and lets none begin. If requests have not ended after
    /// `patience`, or if the server's state cannot be handed over, fails, and the server continues.
    ///
    /// # Errors
    /// See [`PauseError`].
    pub fn pause(&self, patience: Duration) -> Result<Paused, PauseError> {
        Paused::begin(&self.0, patience, false)
    }

    /// Like `pause`, for a server that ends in any case: disconnects clients that cannot be handed
    /// over. These are clients with TLS, of exports that are not disks, or with requests that have
    /// not ended after `patience`.
    ///
    /// # Errors
    /// See [`PauseError`].
    pub fn pause_without(&self, patience: Duration) -> Result<Paused, PauseError> {
        Paused::begin(&self.0, patience, true)
    }

    /// Returns whether the server was [given away](Paused::give_away).
    pub fn was_given(&self) -> bool {
        self.0.pause.is_given()
    }

    /// Listens on a further Unix socket, whose clients see only `exports`, until the result is dropped
    /// or the server stops.
    ///
    /// # Errors
    /// Those of [`Builder::bind`] for a Unix socket, and [`Error::Stopping`].
    pub fn listen(&self, path: &Path, permissions: Permissions, exports: Exports) -> Result<OwnSocket, Error> {
        let listener = Listener::unix(path, permissions)?;
        let number = self.0.listen(Opened { listener, exports })?;
        Ok(OwnSocket { control: Arc::clone(&self.0), number })
    }

    /// Gives a client of another transport a seat among the connections, which it keeps until the result
    /// is dropped. It is about to use `export`, one of `exports`.
    ///
    /// # Errors
    /// Fails with [`Limits::connections`] if all are in use, or the export has its share of them.
    pub fn seat_other(&self, export: &Export, exports: usize) -> Result<OtherSeat, usize> {
        self.0.seat_other(export, exports)
    }

    /// Closes all connections that a process has made to a Unix socket, also those that it has
    /// passed on, for example to the kernel. Returns how many it has closed.
    pub fn disconnect(&self, pid: u32) -> usize {
        self.0.shutdown_of(pid)
    }

    /// Returns the current number of connections, with clients of other transports that have a
    /// [seat](Self::seat_other).
    pub fn connections(&self) -> usize {
        self.0.connections()
    }

    /// Returns the current value of [`Limits::connections`].
    pub fn connections_limit(&self) -> usize {
        self.0.limit()
    }

    /// Returns how often clients were refused or have to wait, by reason, as [`Refused`](crate::Refused)
    /// has them: `connections`, `accept`, `thread`, `memory`, `work` and `tls`.
    pub fn refused(&self) -> [(&'static str, u64); 6] {
        self.0.refused()
    }

    /// Changes [`Limits::connections`] and returns the previous number. If more connections exist,
    /// they continue, and further ones are refused.
    pub fn set_connections(&self, connections: usize) -> usize {
        self.0.set_limit(connections)
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
    }
}

impl Server {
    /// Creates a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Continues with the sockets and the clients of another server.
    fn take(&mut self, taken: Handed<OwnedFd>) -> Result<(), Error> {
        for (state, fd) in taken.listeners {
            let listener = Listener::of_state(&state, fd)?;
            let exports = match &state.export {
                None => self.exports.clone(),
                Some(name) => Exports::only(self.exports.get(name).ok_or_else(|| AdoptError::NoExport(name.clone()))?),
            };
            let path = listener.unix_path().map(Path::to_owned).unwrap_or_default();
            let number = self.control.listen(Opened { listener, exports })?;
            if let Some(export) = state.export {
                let socket = OwnSocket { control: Arc::clone(&self.control), number };
                self.own.push(TakenSocket { export, path, socket });
            }
        }
        for (state, fd) in taken.clients {
            self.control.adopt(self.clients, state, fd, &self.exports)?;
            self.clients += 1;
        }
        for (state, fd) in taken.newcomers {
            let newcomer = Newcomer::adopt(self.clients, state, fd, &self.control, &self.exports)?;
            self.newcomers.push((self.clients, newcomer));
            self.clients += 1;
        }
        Ok(())
    }

    /// Takes the sockets of single exports that were taken over from another server.
    pub fn take_own_sockets(&mut self) -> Vec<TakenSocket> {
        std::mem::take(&mut self.own)
    }

    /// Returns a handle that stops this server.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(Arc::clone(&self.control))
    }

    /// Returns the TCP addresses, with the actual ports.
    pub fn tcp_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.of_all().filter_map(|(_, opened)| opened.listener.tcp_address())
    }

    /// Returns the context ids, as others reach them, and the ports of vsock sockets.
    pub fn vsock_addresses(&self) -> impl Iterator<Item = (u32, u32)> {
        self.of_all().filter_map(|(_, opened)| opened.listener.vsock_address())
    }

    /// Returns a handle to the exports that this server serves.
    pub fn exports(&self) -> Exports {
        self.exports.clone()
    }

    /// Returns the paths of the Unix sockets, including passed ones.
    pub fn unix_paths(&self) -> impl Iterator<Item = PathBuf> {
        self.of_all().filter_map(|(_, opened)| opened.listener.unix_path().map(Path::to_owned))
    }

    /// Returns the sockets whose clients see all exports.
    fn of_all(&self) -> impl Iterator<Item = (u64, Arc<Opened>)> {
        self.control.sockets.list().into_iter().filter(|(_, opened)| opened.exports.only_one().is_none())
    }

    /// Serves until [`ServerHandle::stop`] is called. Then waits for the connections to finish, and
    /// for requests that a device is working on unless [`ServerHandle::abandon`] is called.
    ///
    /// Returns without closing any connection if the server was [given away](crate::Paused::give_away).
    pub fn run(mut self) -> Result<(), Error> {
        let grace = self.control.common.limits.stop_grace;
        let newcomers = std::mem::take(&mut self.newcomers);
        self.control.sockets.own_files();
        let mut events = Events::new(Arc::clone(&self.control), self.exports.clone(), self.clients, newcomers);
        let result = events.run();
        // The connections end even after an error.
        events.finish(grace);
        result
    }
}

/// Serves one connected stream until it ends. For transports without a listener here, such as
/// standard input, or memory in tests and fuzzers.
pub fn serve_stream<T: Transport>(stream: T, exports: &Exports, limits: Limits) {
    let (keeper, all_threads_ended) = mpsc::channel::<()>();
    let stream = Arc::new(stream);
    let common = Common::new(limits, new_executor(limits, None));
    let deadline = Deadline::after(limits.handshake_timeout);
    match negotiate(&*stream, exports, common.executor.memory(), deadline) {
        // How the connection ends concerns only the peer.
        Ok(session) => drop(Connection::serve(Connection::new(stream, session, common, keeper), None)),
        Err(_) => drop(keeper),
    }
    // Nothing is ever sent; this returns when the last thread has dropped its sender.
    let _ = all_threads_ended.recv();
}
