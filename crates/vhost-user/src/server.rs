//! Sockets of disks, each for one frontend at a time.

use std::{
    collections::HashMap,
    fmt, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pagefold_executor::{Client, Export, OpenError};
use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
    net::{AddressFamily, SocketType, sockopt},
};

use crate::{
    session::{Handle, Left, Session, SessionError, late},
    state::{Handed, SocketState},
    worker::Context,
};

/// Number of the eventfd in events. Sockets are numbered from 1.
const WAKE: u64 = 0;

/// Interval between two checks of the sizes of disks that frontends use.
const SIZE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Pause after the system could not accept a frontend.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An event on a disk's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A frontend has connected.
    Connected,
    /// A frontend has left.
    Disconnected,
    /// A frontend is not or no longer served: it broke the protocol, or something is missing.
    Refused(String),
    /// A guest's driver broke this queue, which stays stopped until the driver starts it again.
    QueueBroken(u16, String),
}

/// Reports what happens to the export with this name. Frontends wait for it.
pub type Notify = Box<dyn Fn(&str, Event) + Send + Sync>;

/// A descriptor that belongs to a [`SocketState`].
pub type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// Opens an export for a frontend.
pub type Open = Box<dyn Fn(&Export) -> Result<Arc<Client>, OpenError> + Send + Sync>;

/// The resources that a server may use for each frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of threads for one frontend's queues.
    pub threads: usize,
    /// Number of queues that guests should use. A frontend can use up to 64.
    pub queues: u16,
}

impl Default for Config {
    /// Returns as many as there are CPUs, at most 4.
    fn default() -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from).min(4);
        Self { threads: cpus, queues: cpus as u16 }
    }
}

/// Serves disks to vhost-user frontends. When this is dropped, all are disconnected, and their
/// requests have ended.
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    config: Config,
    open: Open,
    notify: Notify,
    epoll: OwnedFd,
    wake: OwnedFd,
    stopping: AtomicBool,
    state: Mutex<State>,
    /// Notified when a frontend has left, and when a pause begins or ends.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    sockets: HashMap<u64, Socket>,
    sessions: HashMap<u64, Arc<Handle>>,
    last_number: u64,
    /// Sockets that were taken over without a frontend, until this serves.
    idle: Vec<Idle>,
    /// Whether frontends are neither accepted nor served.
    pauses: bool,
    /// Whether the thread that accepts frontends has seen this.
    is_parked: bool,
    /// Whether this continues another process, which may still serve the frontends.
    waits_for_another: bool,
    /// What paused frontends hand over, by the numbers of their sockets.
    handed: HashMap<u64, Handed>,
}

/// A socket on which a disk is served.
struct Socket {
    listener: Arc<UnixListener>,
    export: Arc<Export>,
    reports: Reports,
}

/// A socket that was taken over, and accepts frontends once this serves.
struct Idle {
    number: u64,
    /// Why the frontend that it had is not continued.
    ended: Option<String>,
}

/// Bounds reports that a frontend or its guest can cause at any rate.
#[derive(Debug, Default)]
struct Reports {
    /// Time of the first report of the last minute.
    since: Option<Instant>,
    count: u32,
}

impl Reports {
    const PERIOD: Duration = Duration::from_secs(60);
    const MOST: u32 = 10;

    /// Returns whether there may be another report.
    fn may_have(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= Self::PERIOD) {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count += 1;
        self.count <= Self::MOST
    }
}

/// A disk's socket. When this is dropped, no frontend can connect to it any more. A connected
/// frontend stays when its export is removed, so that its guest gets errors and does not hang.
pub struct Listening {
    shared: Arc<Shared>,
    number: u64,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let socket = self.shared.lock().sockets.remove(&self.number);
        drop(socket);
    }
}

impl Listening {
    /// While the server [pauses](Server::pause), returns what another process needs to continue the
    /// socket and its frontend, with its descriptors.
    ///
    /// # Errors
    /// The socket does not exist any more.
    pub fn hand_over(&self) -> io::Result<(SocketState, Vec<Descriptor>)> {
        let mut state = self.shared.lock();
        let socket = state.sockets.get(&self.number).ok_or(io::ErrorKind::NotFound)?;
        let mut descriptors = vec![Arc::clone(&socket.listener) as Descriptor];
        let frontend = state.handed.remove(&self.number).map(|handed| {
            descriptors.extend(handed.descriptors.into_iter().map(|fd| Arc::new(fd) as Descriptor));
            handed.state
        });
        Ok((SocketState { frontend }, descriptors))
    }
}

impl Server {
    /// Starts a server without sockets.
    ///
    /// # Errors
    /// The system failed.
    pub fn start(config: Config, open: Open, notify: Notify) -> io::Result<Self> {
        Self::start_with(config, open, notify, State::default())
    }

    /// Starts a server that continues another process's. It serves after [`go_on`](Self::go_on). If
    /// it is dropped before that, it leaves the frontends to the other process.
    ///
    /// # Errors
    /// The system failed.
    pub fn start_paused(config: Config, open: Open, notify: Notify) -> io::Result<Self> {
        Self::start_with(config, open, notify, State { pauses: true, waits_for_another: true, ..State::default() })
    }

    fn start_with(config: Config, open: Open, notify: Notify, state: State) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let shared = Arc::new(Shared {
            config,
            open,
            notify,
            epoll,
            wake,
            stopping: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("vhost-user".to_owned()).spawn(move || accept_all(&of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Serves an export on a socket. Further frontends wait until the one that is served leaves.
    ///
    /// # Errors
    /// The system failed.
    pub fn listen(&self, listener: UnixListener, export: Arc<Export>) -> io::Result<Listening> {
        let listening = self.add(listener, export)?;
        self.shared.accept_next(listening.number)?;
        Ok(listening)
    }

    /// Continues a socket of another process, and its frontend.
    ///
    /// # Errors
    /// What was handed over is incomplete or invalid, or the system failed; the text says why.
    pub fn listen_taken(
        &self,
        export: Arc<Export>,
        state: &SocketState,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Listening, String> {
        let mut descriptors = descriptors.into_iter();
        let incomplete = || "a descriptor is missing".to_owned();
        let listener = UnixListener::from(descriptors.next().ok_or_else(incomplete)?);
        if !sockopt::socket_acceptconn(&listener).unwrap_or(false) {
            return Err("a socket does not listen".to_owned());
        }
        let listening = self.add(listener, Arc::clone(&export)).map_err(|error| error.to_string())?;
        if let Some(frontend) = &state.frontend {
            let socket = descriptors.next().ok_or_else(incomplete)?;
            if !is_connection(&socket) {
                return Err("a virtual machine's connection is not one".to_owned());
            }
            let connecting = Connecting::open(&self.shared, listening.number, socket.into(), &export)?;
            let restore = |session: &mut Session| session.restore(frontend, &mut descriptors);
            match connecting.prepare(restore) {
                Ok(prepared) => prepared.spawn(Session::serve_later)?,
                // It finds its connection closed once the other process has ended.
                Err(error) if error.is_of_frontend() => {
                    descriptors.by_ref().for_each(drop);
                    self.leave_idle(listening.number, Some(error.to_string()));
                }
                Err(error) => return Err(error.to_string()),
            }
        } else {
            self.leave_idle(listening.number, None);
        }
        if descriptors.next().is_some() { Err("there are too many descriptors".to_owned()) } else { Ok(listening) }
    }

    fn leave_idle(&self, number: u64, ended: Option<String>) {
        self.shared.lock().idle.push(Idle { number, ended });
    }

    /// Adds a socket, which accepts no frontend yet.
    fn add(&self, listener: UnixListener, export: Arc<Export>) -> io::Result<Listening> {
        listener.set_nonblocking(true)?;
        let mut state = self.shared.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.sockets.insert(number, Socket { listener: Arc::new(listener), export, reports: Reports::default() });
        Ok(Listening { shared: Arc::clone(&self.shared), number })
    }

    /// Returns the number of frontends that are connected.
    pub fn frontends(&self) -> usize {
        self.shared.lock().sessions.len()
    }

    /// Finishes the requests in progress, and begins no others until [`go_on`](Self::go_on) or
    /// [`give_away`](Self::give_away). Frontends that connect wait.
    ///
    /// # Errors
    /// Requests have not ended within `patience`, or a frontend cannot be handed over; the text
    /// says why. The server continues.
    pub fn pause(&self, patience: Duration) -> Result<(), String> {
        let paused = self.try_pause(Instant::now() + patience);
        if paused.is_err() {
            self.go_on();
        }
        paused
    }

    fn try_pause(&self, deadline: Instant) -> Result<(), String> {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.pauses = true;
        shared.wake();
        while !state.is_parked {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("a virtual machine is connecting".to_owned());
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let sessions: Vec<_> = state.sessions.iter().map(|(number, handle)| (*number, Arc::clone(handle))).collect();
        let exports = sessions.iter().map(|(number, _)| {
            let socket = state.sockets.get(number).ok_or("a virtual machine uses a disk that was removed")?;
            Ok(socket.export.name())
        });
        let names: Vec<_> = exports.collect::<Result<_, String>>()?;
        drop(state);
        sessions.iter().for_each(|(_, handle)| handle.gate.ask(deadline));
        for ((number, handle), name) in sessions.iter().zip(names) {
            if let Some(handed) = handle.gate.wait_until_paused(deadline, &late(&name))? {
                shared.lock().handed.insert(*number, handed);
            }
        }
        Ok(())
    }

    /// Ends a pause, or begins to serve what it has taken over.
    pub fn go_on(&self) {
        let mut state = self.shared.lock();
        (state.pauses, state.waits_for_another) = (false, false);
        state.handed.clear();
        state.sessions.values().for_each(|handle| handle.gate.go_on());
        self.shared.changed.notify_all();
    }

    /// Ends the paused server, but leaves its frontends to another process.
    pub fn give_away(&self) {
        self.shared.stopping.store(true, Release);
        let mut state = self.shared.lock();
        state.pauses = false;
        state.handed.clear();
        state.sockets.clear();
        state.sessions.values().for_each(|handle| handle.gate.give_away());
        self.shared.wake();
        self.shared.changed.notify_all();
        while !state.sessions.is_empty() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Disconnects all frontends once running requests end. Returns whether all have left within
    /// `grace`.
    pub fn stop(&self, grace: Duration) -> bool {
        if self.shared.lock().waits_for_another {
            self.give_away();
            return true;
        }
        self.go_on();
        self.shared.stopping.store(true, Release);
        self.shared.wake();
        let deadline = Instant::now().checked_add(grace);
        let mut state = self.shared.lock();
        state.sockets.clear();
        state.sessions.values().for_each(|handle| handle.close());
        while !state.sessions.is_empty() {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::MAX);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the thread that accepts frontends check what it is to do.
    fn wake(&self) {
        // The counter cannot be full.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits while the server pauses.
    fn park(&self) {
        let mut state = self.lock();
        while state.pauses {
            state.is_parked = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_parked = false;
    }

    /// Reports an event that a frontend caused, unless its socket had many such reports recently.
    fn report(&self, number: u64, export: &Export, event: Event) {
        let mut state = self.lock();
        let may = state.sockets.get_mut(&number).is_some_and(|socket| socket.reports.may_have(Instant::now()));
        drop(state);
        if may {
            (self.notify)(&export.name(), event);
        }
    }

    /// Accepts the next frontend of a socket when it connects. This fails only for a socket that is not watched yet.
    fn accept_next(&self, number: u64) -> io::Result<()> {
        let state = self.lock();
        let Some(Socket { listener, .. }) = state.sockets.get(&number) else { return Ok(()) };
        let (data, flags) = (epoll::EventData::new_u64(number), epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        match epoll::modify(&self.epoll, listener, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.epoll, listener, data, flags)?),
            result => Ok(result?),
        }
    }

    /// As `accept_next`, while the server serves.
    fn accept_later(&self, number: u64) {
        if let Err(error) = self.accept_next(number) {
            self.refuse(number, format!("frontends cannot connect any more: {error}"));
        }
    }

    /// Reports that a socket's frontend is not served.
    fn refuse(&self, number: u64, why: String) {
        let export = self.lock().sockets.get(&number).map(|socket| Arc::clone(&socket.export));
        if let Some(export) = export {
            self.report(number, &export, Event::Refused(why));
        }
    }

    /// Lets frontends connect to sockets that were taken over without one.
    fn begin_idle(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        for Idle { number, ended } in idle {
            if let Some(why) = ended {
                self.refuse(number, why);
            }
            self.accept_later(number);
        }
    }
}

/// Returns whether the file can be a connection. A blocking one is needed, and another file could be one that its
/// other users do not want to block.
fn is_connection(file: &OwnedFd) -> bool {
    sockopt::socket_domain(file) == Ok(AddressFamily::UNIX) && sockopt::socket_type(file) == Ok(SocketType::STREAM)
}

/// Accepts frontends until the server stops.
fn accept_all(shared: &Arc<Shared>) {
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
    loop {
        shared.park();
        if shared.stopping.load(Acquire) {
            return;
        }
        shared.begin_idle();
        let handles: Vec<_> = shared.lock().sessions.values().cloned().collect();
        handles.iter().for_each(|handle| handle.check_size());
        let timeout = (!handles.is_empty()).then_some(&SIZE_PAUSE);
        drop(handles);
        // Waiting fails only if a signal interrupts it.
        let Ok(count) = epoll::wait(&shared.epoll, &mut events[..], timeout) else { continue };
        for event in &events[..count] {
            let number = event.data.u64();
            if number == WAKE {
                // This does not block; the loop checks what to do.
                let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
            } else if !accept(shared, number) {
                shared.accept_later(number);
            }
        }
    }
}

/// Accepts a frontend on a socket. Returns false if the socket should accept the next one.
fn accept(shared: &Arc<Shared>, number: u64) -> bool {
    let state = shared.lock();
    let Some(Socket { listener, export, .. }) = state.sockets.get(&number) else { return true };
    let (accepted, export) = (listener.accept(), Arc::clone(export));
    drop(state);
    let begun = match accepted {
        Ok((socket, _)) => begin(shared, number, socket, &export),
        // The frontend left before it was accepted.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
        Err(error) => {
            // The frontend waits, most likely until there are file descriptors again.
            thread::sleep(ACCEPT_PAUSE);
            Err(error.to_string())
        }
    };
    begun.map_err(|why| shared.report(number, &export, Event::Refused(why))).is_ok()
}

/// Serves a frontend in a thread.
fn begin(shared: &Arc<Shared>, number: u64, socket: UnixStream, export: &Arc<Export>) -> Result<(), String> {
    let connecting = Connecting::open(shared, number, socket, export)?;
    let prepared = connecting.prepare(|_| Ok(())).map_err(|error| error.to_string())?;
    (shared.notify)(&export.name(), Event::Connected);
    prepared.spawn(Session::serve)
}

/// A frontend that is to be served.
struct Connecting {
    connected: Connected,
    handle: Arc<Handle>,
    socket: UnixStream,
    client: Arc<Client>,
}

/// A frontend that a thread can serve.
struct Prepared {
    /// Dropped first, so that no request of this frontend runs when the next one connects.
    session: Session,
    socket: UnixStream,
    connected: Connected,
}

impl Connecting {
    fn open(shared: &Arc<Shared>, number: u64, socket: UnixStream, export: &Arc<Export>) -> Result<Self, String> {
        let system = |error: io::Error| error.to_string();
        socket.set_nonblocking(false).map_err(system)?;
        let client = (shared.open)(export).map_err(|error| error.to_string())?;
        let handle = Arc::new(Handle::new(&client, &socket).map_err(system)?);
        let mut state = shared.lock();
        if shared.stopping.load(Acquire) {
            return Err("the server stops".to_owned());
        }
        state.sessions.insert(number, Arc::clone(&handle));
        drop(state);
        let connected = Connected { shared: Arc::clone(shared), number, export: Arc::clone(export) };
        Ok(Self { connected, handle, socket, client })
    }

    fn prepare(self, restore: impl FnOnce(&mut Session) -> Result<(), SessionError>) -> Result<Prepared, SessionError> {
        let Self { connected, handle, socket, client } = self;
        let (shared, export, number) = (Arc::clone(&connected.shared), Arc::clone(&connected.export), connected.number);
        let Config { threads, queues } = shared.config;
        let context = Arc::new(Context {
            export: Arc::clone(&export),
            client,
            write_back: AtomicBool::new(true),
            report_broken: Box::new(move |queue, why| {
                shared.report(number, &export, Event::QueueBroken(queue, why.to_string()));
            }),
        });
        let mut prepared = Prepared { session: Session::new(context, handle, threads, queues), socket, connected };
        restore(&mut prepared.session)?;
        Ok(prepared)
    }
}

impl Prepared {
    /// Serves it in a thread.
    fn spawn(self, serve: impl FnOnce(&mut Session, &UnixStream) -> Served + Send + 'static) -> Result<(), String> {
        let serve = move || {
            let Self { mut session, socket, connected } = self;
            let served = serve(&mut session, &socket);
            drop(session);
            connected.report(served);
        };
        let spawned = thread::Builder::new().name("vhost frontend".to_owned()).spawn(serve);
        spawned.map(drop).map_err(|error| error.to_string())
    }
}

/// How serving a frontend has ended.
type Served = Result<Left, SessionError>;

/// A frontend that is connected, until its thread ends.
struct Connected {
    shared: Arc<Shared>,
    number: u64,
    export: Arc<Export>,
}

impl Connected {
    fn report(&self, served: Served) {
        match served {
            Ok(Left::Given) => return,
            Ok(Left::Closed) => {}
            Err(error) => self.shared.report(self.number, &self.export, Event::Refused(error.to_string())),
        }
        (self.shared.notify)(&self.export.name(), Event::Disconnected);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        // The next frontend may be the only one that the export may have: this is the last use of the client.
        let left = self.shared.lock().sessions.remove(&self.number);
        left.iter().for_each(|handle| handle.gate.end());
        drop(left);
        self.shared.changed.notify_all();
        self.shared.accept_later(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_a_few_reports_a_minute() {
        let (start, mut reports) = (Instant::now(), Reports::default());
        let mut count = |after| (0..100).filter(|_| reports.may_have(start + Duration::from_secs(after))).count();
        assert_eq!([0, 59, 60, 61, 1000].map(&mut count), [10, 0, 10, 0, 10]);
    }
}
