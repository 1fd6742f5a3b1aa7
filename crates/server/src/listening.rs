//! A server that listens: its sockets, its threads, and its end.

use std::{
    fmt,
    net::SocketAddr,
    os::unix::net::UnixListener,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicBool, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use pagefold_control::{Limits as ControlLimits, Manage, Server as ControlServer, ServerHandle as ControlHandle};
use pagefold_executor::{ClientLimits, Executor, Memory};
use pagefold_serve::{
    ClientEvent, Error as NbdError, OwnFile, Passed, Permissions, Refused, Server as NbdServer, TakenSocket,
    listen_privately,
};

#[cfg(feature = "tls")]
use pagefold_serve::Certificates;

use crate::{
    Address, Belongings, DescriptorStore, Ending, Error, Host, Server, TakeOverError, Transport,
    address::absolute,
    ending::WhenStopping,
    error::no_thread,
    exporting::{Exporting, MetricsSocket, OpenMetrics},
    handover::{Incoming, discard, free, keep, leave, note, replace},
    server::{ControlSocket, Giving, Listened, OpenedControl, WhenGiven},
    socket::ServedSocket,
    transport::{Obstacles, Started},
    watch::Watch,
};

/// How long a server that no longer waits for requests waits for clients of its control socket.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Where a server listens: at least one address for NBD clients.
#[derive(Default)]
pub struct Sockets {
    passed: Option<Passed>,
    unix: Vec<(PathBuf, Permissions)>,
    tcp: Vec<SocketAddr>,
    vsock: Vec<(Option<u32>, u32)>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    control: Option<ControlPlace>,
    metrics: Vec<MetricsSocket>,
    transports: Vec<Box<dyn Transport>>,
    taken_transports: Vec<Box<dyn Transport>>,
    obstacles: Obstacles,
    when_stopping: Option<WhenStopping>,
    when_given: Option<WhenGiven>,
    gives_up: Option<GivesUp>,
    belongings: Belongings,
    store: Option<Arc<dyn DescriptorStore>>,
}

/// Returns a reason not to take a server over.
type GivesUp = Box<dyn Fn() -> Option<String> + Send + Sync>;

#[cfg(feature = "tls")]
struct Tls {
    certificates: Arc<Certificates>,
    is_optional: bool,
}

enum ControlPlace {
    Path(PathBuf),
    Open(UnixListener),
}

impl Sockets {
    /// Listens nowhere.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also listens on a Unix socket, to which only this process's user and root may connect. Its
    /// file is removed when the server stops.
    #[must_use]
    pub fn unix(self, path: impl Into<PathBuf>) -> Self {
        self.unix_for(path, Permissions::default())
    }

    /// Also listens on a Unix socket with these permissions.
    #[must_use]
    pub fn unix_for(mut self, path: impl Into<PathBuf>, permissions: Permissions) -> Self {
        self.unix.push((path.into(), permissions));
        self
    }

    /// Also listens on a TCP address. Without [TLS](Self::tls) and certificates of clients, anyone who
    /// can reach the address can use the disks.
    #[must_use]
    pub fn tcp(mut self, address: SocketAddr) -> Self {
        self.tcp.push(address);
        self
    }

    /// Also listens on a vsock port, for virtual machines on this host or, in a virtual machine,
    /// for the host. Without a context id, listens on all context ids of the machine.
    #[must_use]
    pub fn vsock(mut self, cid: Option<u32>, port: u32) -> Self {
        self.vsock.push((cid, port));
        self
    }

    /// Requires TLS on TCP and vsock, and offers it on Unix sockets.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, certificates: Arc<Certificates>) -> Self {
        self.tls = Some(Tls { certificates, is_optional: false });
        self
    }

    /// Offers TLS on all sockets and requires it on none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_optional(mut self, certificates: Arc<Certificates>) -> Self {
        self.tls = Some(Tls { certificates, is_optional: true });
        self
    }

    /// Also listens on sockets that the service manager passed.
    #[must_use]
    pub fn passed(mut self, passed: Passed) -> Self {
        self.passed = Some(passed);
        self
    }

    /// Lets clients of a Unix socket at `path` manage the disks. Only this process's user and root
    /// may connect.
    #[must_use]
    pub fn control(mut self, path: impl Into<PathBuf>) -> Self {
        self.control = Some(ControlPlace::Path(path.into()));
        self
    }

    /// Lets clients of a socket that is open already manage the disks.
    #[must_use]
    pub fn control_on(mut self, listener: UnixListener) -> Self {
        self.control = Some(ControlPlace::Open(listener));
        self
    }

    /// Serves metrics over HTTP on a Unix socket with these permissions.
    #[must_use]
    pub fn metrics_unix(mut self, path: impl Into<PathBuf>, permissions: Permissions) -> Self {
        self.metrics.push(MetricsSocket::Unix(path.into(), permissions));
        self
    }

    /// Serves metrics over HTTP on a TCP address. Anyone who can reach it learns the names of the disks,
    /// their sizes and how they are used.
    #[must_use]
    pub fn metrics_tcp(mut self, address: SocketAddr) -> Self {
        self.metrics.push(MetricsSocket::Tcp(address));
        self
    }

    /// Also serves the disks in another way.
    #[must_use]
    pub fn transport(mut self, transport: impl Transport + 'static) -> Self {
        self.transports.push(Box::new(transport));
        self
    }

    /// Continues a transport of the server that this one takes over, made from what
    /// [`Taken::take_transports`](crate::Taken::take_transports) has returned. It is started before
    /// the other server ends, and [goes on](Transport::go_on) afterwards.
    #[must_use]
    pub fn taken_transport(mut self, transport: Box<dyn Transport>) -> Self {
        self.taken_transports.push(transport);
        self
    }

    /// Calls `notify` once, when the server begins to stop.
    #[must_use]
    pub fn when_stopping(mut self, notify: impl Fn() + Send + Sync + 'static) -> Self {
        self.when_stopping = Some(Box::new(notify));
        self
    }

    /// Calls `notify` with the id of the process that the server was handed over to, once that
    /// serves.
    #[must_use]
    pub fn when_given(mut self, notify: impl Fn(u32) + Send + Sync + 'static) -> Self {
        self.when_given = Some(Box::new(notify));
        self
    }

    /// Prevents handing the server over while `obstacle` returns a reason.
    #[must_use]
    pub fn obstacle(self, obstacle: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.obstacles.add(obstacle);
        self
    }

    /// Calls `why` just before this server takes another over: if `why` returns a reason, the other
    /// continues.
    #[must_use]
    pub fn gives_up_if(mut self, why: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.gives_up = Some(Box::new(why));
        self
    }

    /// Leaves disks and clients in `store` when the server is asked to [leave](Server::leave).
    #[must_use]
    pub fn store(mut self, store: Arc<dyn DescriptorStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Hands these files and texts over with the server.
    #[must_use]
    pub fn belongings(mut self, belongings: Belongings) -> Self {
        self.belongings = belongings;
        self
    }
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("unix", &self.unix).field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

/// A server whose sockets are open. Clients can connect. Those of the control socket are served;
/// [`run`](Self::run) or [`start`](Self::start) serves those of the disks. Dropping this closes the
/// sockets and waits until the threads have ended.
#[derive(Debug)]
pub struct Listening {
    server: Server,
    ending: Ending,
    /// The NBD server, until it runs.
    nbd: Option<Nbd>,
    /// Whether the NBD server has ended without being asked to.
    has_failed: bool,
    transports: Arc<Started>,
    control: Option<Control>,
    // Must end before the files of its sockets are removed.
    _metrics: Exporting,
    // Dropped last: no thread of this server uses it anymore.
    _watch: Watch,
}

/// The server of NBD clients.
#[derive(Debug)]
enum Nbd {
    /// The NBD server does not run.
    Here(Box<NbdServer>),
    /// The NBD server continues another one, which has ended, in a separate thread.
    Thread(JoinHandle<Result<(), NbdError>>),
}

impl Nbd {
    /// Waits until the server has ended. Runs it if it is not running yet.
    fn run(self) -> Result<(), NbdError> {
        match self {
            Self::Here(server) => server.run(),
            Self::Thread(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        }
    }
}

/// A server of NBD clients with a thread that waits until it may run. If `begin` is dropped, the thread ends.
struct PreparedNbd {
    thread: JoinHandle<Result<(), NbdError>>,
    begin: mpsc::Sender<()>,
}

impl PreparedNbd {
    fn new(server: NbdServer) -> Result<Self, Error> {
        let (begin, may_begin) = mpsc::channel();
        let run = move || if may_begin.recv().is_ok() { server.run() } else { Ok(()) };
        let thread = thread::Builder::new().name("nbd".to_owned()).spawn(run).map_err(no_thread)?;
        Ok(Self { thread, begin })
    }
}

/// The control socket and its thread.
#[derive(Debug)]
struct Control {
    handle: ControlHandle,
    thread: JoinHandle<()>,
    path: Option<PathBuf>,
}

/// A control socket with a thread that waits until it may serve. If this is dropped, the thread ends.
struct Prepared {
    control: Control,
    socket: ControlSocket,
    begin: mpsc::Sender<()>,
}

impl Server {
    /// Opens sockets. The observer learns where the server listens, and its disks.
    ///
    /// # Errors
    /// An address cannot be listened on, or none was given: sockets that were opened are closed
    /// again, and their files removed. A transport cannot serve. Or the server has listened before.
    pub fn listen(&self, sockets: Sockets) -> Result<Listening, Error> {
        self.open(sockets, None)
    }

    /// Ends the server, but leaves its disks and clients in its [store](Sockets::store) for the
    /// process that [continues it](crate::Taken::from_store). If that fails, the server ends
    /// without them, and a text in the store says why. The observer learns `why` it ends. Returns
    /// false if the server has no store, does not listen, or ends already for another reason.
    pub fn leave(&self, why: &str) -> bool {
        leave(self, why)
    }

    /// Opens sockets, and takes over those of another process, which then ends.
    pub(crate) fn open(&self, sockets: Sockets, mut incoming: Option<Incoming>) -> Result<Listening, Error> {
        let Sockets {
            passed,
            unix,
            tcp,
            vsock,
            control,
            metrics,
            transports,
            taken_transports,
            obstacles,
            when_stopping,
            when_given,
            gives_up,
            belongings,
            store,
            ..
        } = sockets;
        if self.0.listened.get().is_some() {
            return Err(Error::Listening);
        }
        let clients = self.0.clients;
        let account = Arc::clone(self.0.disks.client_memory()) as _;
        let executor = Arc::new(Executor::new(clients.threads, Memory::new(clients.memory_bytes, Some(account))));
        let (refused_to, clients_to) = (self.0.observer.clone(), self.0.observer.clone());
        let events = Arc::clone(&self.0.events);
        let mut builder = NbdServer::builder()
            .limits(clients)
            .when_refused(move |why| refused_to.warn(&refusal(&why)))
            .when_client(move |ClientEvent { peer, export, begins, .. }| {
                events.clients.add(u64::from(begins));
                let does = if begins { "connected" } else { "disconnected" };
                clients_to.debug(&format!("{peer} {does}: disk '{export}'"));
            })
            .exports(self.0.disks.exports())
            .executor(Arc::clone(&executor));
        if let Some(passed) = passed {
            builder = builder.passed(passed);
        }
        if let Some(incoming) = &mut incoming {
            builder = builder.taken(incoming.take_sockets());
        }
        builder =
            unix.iter().fold(builder, |builder, (path, permissions)| builder.unix_for(absolute(path), *permissions));
        builder = tcp.iter().fold(builder, |builder, address| builder.tcp(*address));
        builder = vsock.iter().fold(builder, |builder, &(cid, port)| builder.vsock(cid, port));
        #[cfg(feature = "tls")]
        let (builder, tls, verifies_peers) = match sockets.tls {
            None => (builder, false, false),
            Some(Tls { certificates, is_optional: true }) => (builder.tls_optional(certificates), true, false),
            Some(Tls { certificates, is_optional: false }) => {
                let verifies_peers = certificates.verifies_peers();
                (builder.tls(certificates), true, verifies_peers)
            }
        };
        #[cfg(not(feature = "tls"))]
        let (tls, verifies_peers) = (false, false);
        let mut nbd = builder.bind()?;
        #[cfg(feature = "tls")]
        if tls {
            self.0.disks.client_memory().add_cost(pagefold_serve::TLS_IDLE_BYTES, pagefold_serve::TLS_WORK_BYTES);
        }
        let ending = Ending::new(nbd.handle(), self.0.observer.clone(), when_stopping);
        let (addresses, server, start) = (Address::all(&nbd, tls), nbd.handle(), Instant::now());
        let start_time = SystemTime::now();
        // A server that continues another one opens its metrics' sockets later: the other process
        // still has them.
        let is_new = incoming.is_none();
        let opened_metrics = if is_new { Some(OpenMetrics::open(&metrics)?) } else { None };
        let control = match incoming.as_mut().map(Incoming::take_control).transpose()?.flatten() {
            None => control.map(open_control).transpose()?,
            taken => taken,
        };
        let host = Host {
            exports: self.0.disks.exports(),
            server: nbd.handle(),
            executor,
            limits: ClientLimits {
                threads: clients.threads_per_connection,
                memory_bytes: clients.memory_per_connection_bytes,
            },
            observer: self.0.observer.clone(),
            ending: ending.clone(),
            files: Arc::default(),
            devices: Arc::default(),
            obstacles: Arc::new(obstacles),
        };
        let started = Arc::<Started>::default();
        // Until the other process ends, it serves the clients of these transports.
        let taken = started.start_taken(taken_transports, &host)?;
        let mut later = transports;
        if incoming.is_none() {
            later.drain(..).try_for_each(|transport| started.start(transport, &host))?;
        }
        let (files, devices, obstacles) =
            (Arc::clone(&host.files), Arc::clone(&host.devices), Arc::clone(&host.obstacles));
        let begun = AtomicBool::new(false);
        let giving = Giving {
            begun,
            control: OnceLock::new(),
            obstacles,
            belongings,
            when_given,
            store,
            leaving: OnceLock::new(),
            transports: Arc::clone(&started),
            tls,
        };
        let start = incoming.as_ref().map_or(start, Incoming::start);
        let start_time = incoming.as_ref().map_or(start_time, Incoming::start_time);
        let ends = ending.clone();
        let listened =
            Listened { addresses, server, ending: ends, verifies_peers, files, devices, start, start_time, giving };
        if self.0.listened.set(listened).is_err() {
            return Err(Error::Listening);
        }
        self.0.disks.set_server(nbd.handle()).map_err(Error::DiskSocket)?;
        for TakenSocket { export, path, socket } in nbd.take_own_sockets() {
            let adopted = self.0.disks.table().adopt_socket(&export, ServedSocket::taken(path, socket));
            adopted.map_err(|failure| TakeOverError::Invalid(failure.to_string()))?;
        }
        let control = control.map(|control| self.prepare_control(control)).transpose()?;
        let watch = Watch::start(self.clone(), ending.clone()).map_err(no_thread)?;
        let nbd = if let Some(incoming) = incoming {
            let PreparedNbd { thread, begin } = PreparedNbd::new(nbd)?;
            let (began, before) = (incoming.began(), incoming.process());
            let keeps = self.0.disks.table().pool.file().is_some();
            let kept = if before.is_some() { note(self) } else { keep(self) };
            // From here on, only this process has the disks, so nothing may fail.
            let confirmed =
                kept.map_err(TakeOverError::Cannot).and_then(|()| incoming.confirm(keeps, &|| gives_up.as_ref()?()));
            if let Err(error) = confirmed {
                drop(begin);
                // The thread ends without serving: the other process keeps its sockets.
                let _ = thread.join();
                return Err(error.into());
            }
            free(self);
            // The thread waits for this, and clients wait for the thread.
            let _ = begin.send(());
            taken.begin();
            let ms = began.elapsed().as_secs_f64() * 1e3;
            self.0.observer.debug(&format!("began to serve {ms:.1} ms after it received the list of disks"));
            if let Some(before) = before {
                replace(self, before);
            }
            // Started only now, because their clients change the disks: until here, the other
            // process could have continued with them.
            for transport in later {
                if let Err(error) = started.start(transport, &host) {
                    self.0.observer.error(&format!("the disks are served without this transport: {error}"));
                }
            }
            Nbd::Thread(thread)
        } else {
            taken.begin();
            keep(self).map_err(Error::Keep)?;
            Nbd::Here(Box::new(nbd))
        };
        let control = control.map(|control| self.serve_control(control));
        let exporting = match opened_metrics {
            Some(open) => Exporting::start(self, open)?,
            None => Exporting::when_free(self, metrics),
        };
        let listening = Listening {
            server: self.clone(),
            ending,
            nbd: Some(nbd),
            has_failed: false,
            transports: started,
            control,
            _metrics: exporting,
            _watch: watch,
        };
        self.log_start(listening.control_path());
        Ok(listening)
    }

    /// Starts the thread of the control socket, which serves once it is [asked to](Self::serve_control).
    fn prepare_control(&self, opened: OpenedControl) -> Result<Prepared, Error> {
        let OpenedControl { listener, file, path, is_passed } = opened;
        let failed = |source| Error::System { what: "cannot listen on the control socket", source };
        let kept = listener.try_clone().map_err(failed)?;
        let manage = Arc::new(self.clone()) as Arc<dyn Manage>;
        let server = ControlServer::new(listener, manage, env!("CARGO_PKG_VERSION"), ControlLimits::default());
        let server = server.map_err(failed)?;
        let (handle, observer) = (server.handle(), self.0.observer.clone());
        let (begin, may_begin) = mpsc::channel();
        let serve = move || {
            // Otherwise, the server does not listen: an error came in between.
            if may_begin.recv().is_ok()
                && let Err(error) = server.run()
            {
                observer.error(&format!("the control socket failed: {error}"));
            }
        };
        let thread = thread::Builder::new().name("control".to_owned()).spawn(serve).map_err(no_thread)?;
        let (file, handle_of_socket) = (OwnFile::new(file), handle.clone());
        let socket = ControlSocket { handle: handle_of_socket, listener: kept, path: path.clone(), file, is_passed };
        Ok(Prepared { control: Control { handle, thread, path }, socket, begin })
    }

    fn serve_control(&self, Prepared { control, socket, begin }: Prepared) -> Control {
        socket.file.own();
        if let Some(listened) = self.0.listened.get() {
            // The socket is set once.
            let _ = listened.giving.control.set(socket);
        }
        // The thread waits for this.
        let _ = begin.send(());
        control
    }
}

fn open_control(socket: ControlPlace) -> Result<OpenedControl, Error> {
    Ok(match socket {
        ControlPlace::Open(listener) => OpenedControl { listener, file: None, path: None, is_passed: true },
        ControlPlace::Path(path) => {
            let path = absolute(&path);
            let (listener, file) = listen_privately(&path)?;
            OpenedControl { listener, file: Some(file), path: Some(path), is_passed: false }
        }
    })
}

impl Listening {
    /// Returns how to end the server.
    pub fn ending(&self) -> Ending {
        self.ending.clone()
    }

    /// Returns the path of the control socket, if the server created it.
    pub fn control_path(&self) -> Option<&Path> {
        self.control.as_ref()?.path.as_deref()
    }

    /// Serves the disks in this thread until the server ends. The control socket is served until
    /// this value is dropped.
    ///
    /// # Errors
    /// The system failed.
    pub fn run(&mut self) -> Result<(), Error> {
        // A panic also ends the server.
        self.has_failed = true;
        let served = self.nbd.take().map_or(Ok(()), Nbd::run);
        self.has_failed = served.is_err();
        if self.was_given() {
            return Ok(served?);
        }
        self.ending.begin("the server failed");
        self.transports.stop();
        Ok(served?)
    }

    /// Returns whether the server has been handed over to another process, which serves its
    /// clients. This process only has to end.
    pub fn was_given(&self) -> bool {
        self.server.0.listened.get().is_some_and(|listened| listened.server.was_given())
    }

    /// Removes the disks' memory from the store. Keeps it if another process continues with it, or
    /// may do so because this server was not asked to end.
    fn discard(&self) {
        let is_left = |listened: &Listened| listened.giving.leaving.get().is_some();
        if !self.has_failed && !self.was_given() && !self.server.0.listened.get().is_some_and(is_left) {
            discard(&self.server);
        }
    }

    /// Serves the disks in a thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(mut self) -> Result<Running, Error> {
        let (server, ending) = (self.server.clone(), self.ending());
        let serve = move || self.run();
        let thread = thread::Builder::new().name("nbd".to_owned()).spawn(serve).map_err(no_thread)?;
        Ok(Running { server, ending, thread: Some(thread) })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ending.begin("the server does not start");
        if let Some(nbd @ Nbd::Thread(_)) = self.nbd.take() {
            // The server itself reports failures.
            let _ = nbd.run();
        }
        self.transports.stop();
        self.discard();
        let Some(Control { handle, thread, .. }) = self.control.take() else { return };
        handle.stop();
        if self.ending.is_forced() {
            // Threads that are stuck in a request are left behind. Clients get their answers first.
            let deadline = Instant::now() + LAST_ANSWERS;
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(2));
            }
        } else {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
        let Some(listened) = self.server.0.listened.get() else { return };
        listened.giving.control.get().iter().for_each(|socket| socket.file.remove());
    }
}

/// A server that serves its disks in a thread. Dropping this stops the server and waits for its
/// requests; the disks exist as long as the [`Server`].
#[derive(Debug)]
pub struct Running {
    server: Server,
    ending: Ending,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Running {
    /// Returns the addresses on which the server listens.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// Returns how to end the server.
    pub fn ending(&self) -> Ending {
        self.ending.clone()
    }

    /// Waits until a client or [`Ending`] ends the server.
    ///
    /// # Errors
    /// The system failed.
    pub fn wait(mut self) -> Result<(), Error> {
        self.join()
    }

    fn join(&mut self) -> Result<(), Error> {
        // A panic of the thread has already been reported.
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(Ok(()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ending.begin("the server was dropped");
        // No caller is left to get the error.
        let _ = self.join();
    }
}

fn refusal(why: &Refused) -> String {
    match why {
        Refused::Full(limit) => format!(
            "a client was refused: all {limit} connections that the server allows are in use; raise the number with \
             'pagefold limit --connections N'"
        ),
        Refused::Files => "a client was refused: the limit of open files leaves no room for it; raise it (ulimit -n, LimitNOFILE=) and \
             start the server again"
            .to_owned(),
        Refused::Accept(error) => format!("cannot accept clients; they wait until others disconnect: {error}"),
        Refused::Thread(error) => format!("requests wait: cannot start a thread: {error}"),
        Refused::Memory => {
            "a client was refused: the memory limit leaves no room for it; raise it with 'pagefold limit SIZE'"
                .to_owned()
        }
        Refused::Work => {
            "requests wait for each other: the memory limit is too small for these clients; raise it with 'pagefold \
             limit SIZE'"
                .to_owned()
        }
        Refused::Tls { peer, error } => format!("a client was refused: {peer}: TLS: {error}"),
        why => format!("a client was refused: {why:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        os::fd::BorrowedFd,
        sync::{Mutex, PoisonError},
    };

    use super::*;
    use crate::{Config, MemoryLimit};

    /// The names of what is stored.
    #[derive(Default)]
    struct Names(Mutex<Vec<String>>);

    impl Names {
        fn change(&self, change: impl FnOnce(&mut Vec<String>)) -> io::Result<()> {
            change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
            Ok(())
        }
    }

    impl DescriptorStore for Names {
        fn room(&self) -> usize {
            8
        }

        fn begins_within(&self, _: Duration) {}

        fn ends_within(&self, _: Duration) {}

        fn keep(&self, name: &str, _: BorrowedFd<'_>) -> io::Result<()> {
            self.change(|names| names.push(name.to_owned()))
        }

        fn settle(&self) -> io::Result<()> {
            Ok(())
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.change(|names| names.retain(|found| found != name))
        }
    }

    /// Only a server that was asked to end discards its disks.
    #[test]
    fn the_memory_of_a_server_that_fails_stays_in_its_store() {
        type End = fn() -> Result<(), NbdError>;
        let ends: [(End, usize); 3] =
            [(|| Ok(()), 0), (|| Err(NbdError::NoListener), 1), (|| panic!("the server's thread panics"), 1)];
        for (end, stored) in ends {
            let folder = tempfile::tempdir().expect("a folder");
            let store = Arc::new(Names::default());
            let sockets = Sockets::new().unix(folder.path().join("nbd.sock")).store(Arc::clone(&store) as _);
            let limit = MemoryLimit::Bytes(64 << 20);
            let config = Config { keep_memory: true, limit, ..Config::default() };
            let server = Server::new(config).expect("a server");
            let mut listening = server.listen(sockets).expect("it listens");
            assert_eq!(store.0.lock().expect("no panic").len(), 1);
            listening.nbd = Some(Nbd::Thread(thread::spawn(end)));
            let ended = thread::spawn(move || listening.run().is_ok()).join();
            assert_eq!(matches!(ended, Ok(true)), stored == 0);
            assert_eq!(store.0.lock().expect("no panic").len(), stored);
        }
    }
}
