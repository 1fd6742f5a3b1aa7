//! Sockets of disks, each for one frontend at a time.

use std::{
    collections::HashMap,
    fmt, io,
    os::{
        fd::OwnedFd,
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
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::{
    session::{Handle, Session},
    worker::Context,
};

/// Number of the eventfd in events. Sockets are numbered from 1.
const WAKE: u64 = 0;

/// Interval between two checks of the sizes of disks that frontends use.
const SIZE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// How long no frontend is accepted after the system could not.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An event on a disk's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A frontend has connected.
    Connected,
    /// A frontend has left.
    Disconnected,
    /// A frontend is not served, or not any longer: it broke the protocol, or something is missing.
    Refused(String),
    /// A guest's driver broke this queue, which stops until the driver starts it again.
    QueueBroken(u16, String),
}

/// Reports what happens to the export with this name. Frontends wait for it.
pub type Notify = Box<dyn Fn(&str, Event) + Send + Sync>;

/// Opens an export for a frontend.
pub type Open = Box<dyn Fn(&Export) -> Result<Arc<Client>, OpenError> + Send + Sync>;

/// What a server may use for each frontend.
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
    /// Notified when a frontend has left.
    left: Condvar,
}

#[derive(Default)]
struct State {
    sockets: HashMap<u64, Socket>,
    sessions: HashMap<u64, Arc<Handle>>,
    last_number: u64,
}

/// A socket on which a disk is served.
struct Socket {
    listener: UnixListener,
    export: Arc<Export>,
    reports: Reports,
}

/// Bounds reports that a frontend or its guest can cause at any rate.
#[derive(Debug, Default)]
struct Reports {
    /// When the first of the last minute was.
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

impl Server {
    /// Starts a server without sockets.
    ///
    /// # Errors
    /// The system failed.
    pub fn start(config: Config, open: Open, notify: Notify) -> io::Result<Self> {
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
            state: Mutex::default(),
            left: Condvar::new(),
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
        listener.set_nonblocking(true)?;
        let mut state = self.shared.lock();
        state.last_number += 1;
        let number = state.last_number;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&self.shared.epoll, &listener, epoll::EventData::new_u64(number), flags)?;
        state.sockets.insert(number, Socket { listener, export, reports: Reports::default() });
        Ok(Listening { shared: Arc::clone(&self.shared), number })
    }

    /// Returns the number of frontends that are connected.
    pub fn frontends(&self) -> usize {
        self.shared.lock().sessions.len()
    }

    /// Disconnects all frontends, after the requests that run. Returns whether all had left after
    /// `grace`.
    pub fn stop(&self, grace: Duration) -> bool {
        self.shared.stopping.store(true, Release);
        // The counter cannot be full.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        let deadline = Instant::now().checked_add(grace);
        let mut state = self.shared.lock();
        state.sockets.clear();
        state.sessions.values().for_each(|handle| handle.close());
        while !state.sessions.is_empty() {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            state = self.shared.left.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
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

    /// Reports what a frontend has caused, unless there were many such reports of its socket recently.
    fn report(&self, number: u64, export: &Export, event: Event) {
        let mut state = self.lock();
        let may = state.sockets.get_mut(&number).is_some_and(|socket| socket.reports.may_have(Instant::now()));
        drop(state);
        if may {
            (self.notify)(&export.name(), event);
        }
    }

    /// Lets the next frontend connect.
    fn accept_next(&self, number: u64) {
        if let Some(socket) = self.lock().sockets.get(&number) {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            // The listener is watched, so this cannot fail.
            let _ = epoll::modify(&self.epoll, &socket.listener, epoll::EventData::new_u64(number), flags);
        }
    }
}

/// Accepts frontends until the server stops.
fn accept_all(shared: &Arc<Shared>) {
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
    while !shared.stopping.load(Acquire) {
        let handles: Vec<_> = shared.lock().sessions.values().cloned().collect();
        handles.iter().for_each(|handle| handle.check_size());
        let timeout = (!handles.is_empty()).then_some(&SIZE_PAUSE);
        drop(handles);
        // Waiting fails only if a signal interrupts it.
        let Ok(count) = epoll::wait(&shared.epoll, &mut events[..], timeout) else { continue };
        for event in &events[..count] {
            let number = event.data.u64();
            if number != WAKE && !accept(shared, number) {
                shared.accept_next(number);
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

/// A frontend that is connected, until its thread ends.
struct Connected {
    shared: Arc<Shared>,
    number: u64,
    export: Arc<Export>,
    /// `None` once the session has it, which ends before this.
    client: Option<Arc<Client>>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        // The next frontend may be the only one that the export may have.
        self.client = None;
        self.shared.lock().sessions.remove(&self.number);
        self.shared.left.notify_all();
        self.shared.accept_next(self.number);
    }
}

/// Serves a frontend in a thread.
fn begin(shared: &Arc<Shared>, number: u64, socket: UnixStream, export: &Arc<Export>) -> Result<(), String> {
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
    let connected = Connected { shared: Arc::clone(shared), number, export: Arc::clone(export), client: Some(client) };
    let serve = move || connected.serve(handle, &socket);
    thread::Builder::new().name("vhost frontend".to_owned()).spawn(serve).map(drop).map_err(system)
}

impl Connected {
    fn serve(mut self, handle: Arc<Handle>, socket: &UnixStream) {
        let Some(client) = self.client.take() else { return };
        let Shared { config, notify, .. } = &*self.shared;
        let (shared, export, number) = (Arc::clone(&self.shared), Arc::clone(&self.export), self.number);
        let context = Arc::new(Context {
            export: Arc::clone(&self.export),
            client,
            write_back: AtomicBool::new(true),
            report_broken: Box::new(move |queue, why| {
                shared.report(number, &export, Event::QueueBroken(queue, why.to_string()));
            }),
        });
        notify(&self.export.name(), Event::Connected);
        let mut session = Session::new(context, handle, config.threads, config.queues);
        let served = session.serve(socket);
        // When the next frontend connects, no request of this one runs any longer.
        drop(session);
        if let Err(error) = served {
            self.shared.report(self.number, &self.export, Event::Refused(error.to_string()));
        }
        notify(&self.export.name(), Event::Disconnected);
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
