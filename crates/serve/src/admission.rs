//! Which connections a server serves.

use std::{
    collections::{BTreeMap, HashSet},
    fmt, io,
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pagefold_executor::{Export, Exports, Taken, has_part};
use rustix::event::epoll::EventData;

use crate::{
    Error,
    adopt_error::AdoptError,
    connection::{Common, Connection, Keeper},
    descriptors,
    handover::ClientState,
    listen::Listener,
    negotiate::{NoPlace, Security, Session},
    pause::Pause,
    peer::Peer,
    presence::{Presence, WhenClient},
    resting::Resting,
    sockets::{Opened, Sockets},
    stream::Stream,
    tls::Certificates,
    transport::{Socket, Transport},
};

/// Minimum interval between two reports of refused clients, for each reason.
const REPORT_PAUSE: Duration = Duration::from_secs(60);

/// Reasons why a client was not served. None of them ends the server.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The number of clients served has reached this limit,
    /// [`Limits::connections`](crate::Limits::connections).
    Full(usize),
    /// The process's limit of open files leaves no room for another client.
    Files,
    /// Accepting failed for lack of descriptors or memory. The connection stays in the queue.
    Accept(io::Error),
    /// No thread could be started for a client. Its requests wait.
    Thread(io::Error),
    /// The server's [`Account`](crate::Account) has no room for another connection.
    Memory,
    /// The server's [`Account`](crate::Account) has no room for another connection that works:
    /// requests wait until others are done.
    Work,
    /// A client's TLS handshake has failed.
    Tls {
        /// The client.
        peer: Peer,
        /// Why.
        error: io::Error,
    },
}

/// The names of the variants of [`Refused`].
const REASONS: [&str; 6] = ["connections", "accept", "thread", "memory", "work", "tls"];

/// The callback for refused clients.
#[derive(Clone, Default)]
pub(crate) struct WhenRefused(pub(crate) Option<Arc<dyn Fn(Refused) + Send + Sync>>);

impl fmt::Debug for WhenRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WhenRefused").field(&self.0.is_some()).finish()
    }
}

/// How a server uses TLS: it is offered on all sockets.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) certificates: Arc<Certificates>,
    /// Whether clients on the network may connect without TLS.
    pub(crate) is_optional: bool,
}

/// State shared by a server, its handles and its connections.
pub(crate) struct Control {
    pub(crate) common: Arc<Common>,
    tls: Option<Tls>,
    /// Written to wake the server's thread.
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) resting: Resting<Seat>,
    pub(crate) sockets: Sockets,
    pub(crate) pause: Pause,
    /// Set when the server no longer waits for connections and their requests.
    abandoned: AtomicBool,
    /// Connections that have not chosen an export.
    pub(crate) negotiating: AtomicUsize,
    connections: Mutex<Connections>,
    /// Signalled when a served connection has ended.
    ended: Condvar,
    when_refused: WhenRefused,
    when_client: WhenClient,
}

/// The connections that have chosen an export, by number, the oldest first.
struct Connections {
    /// Maximum number of connections without such a place.
    limit: usize,
    all: BTreeMap<u64, Admitted>,
    /// Number of those with one of the places for private exports.
    private: usize,
    /// Number of clients of other transports with a place.
    others: usize,
    /// Time of the last report of a refused client, for each reason.
    reported: [Option<Instant>; REASONS.len()],
    /// How often clients were refused or have to wait, for each reason.
    refused: [u64; REASONS.len()],
}

struct Admitted {
    stream: Arc<Stream>,
    private: bool,
}

/// A served connection's place among all. Dropping it frees the place.
pub(crate) struct Seat {
    control: Arc<Control>,
    number: u64,
    /// The connection's memory; `Some` until the seat is dropped.
    idle: Option<Taken>,
    presence: Option<Presence>,
}

/// The place of a client of another transport among the connections of a server. Dropping it frees the
/// place.
#[derive(Debug)]
pub struct OtherSeat(Arc<Control>);

impl Drop for OtherSeat {
    fn drop(&mut self) {
        self.0.lock().others -= 1;
    }
}

impl Connections {
    /// Returns whether there is no place for a connection to `export`, which has `own` connections
    /// already. Places for private exports do not count. `exports` is the number of exports.
    fn is_full(&self, export: &Export, own: usize, exports: usize) -> bool {
        let serving = self.all.len() - self.private + self.others;
        serving >= self.limit || !export.is_private() && !has_part(own, exports, serving, self.limit)
    }
}

/// A connection of a server.
pub(crate) type Served = Connection<Stream, Seat>;

impl Control {
    pub(crate) fn new(
        common: Arc<Common>,
        tls: Option<Tls>,
        wake: Arc<OwnedFd>,
        resting: Resting<Seat>,
        when_refused: WhenRefused,
        when_client: WhenClient,
    ) -> Self {
        let limit = common.limits.connections;
        Self {
            common,
            tls,
            wake,
            resting,
            sockets: Sockets::default(),
            pause: Pause::default(),
            abandoned: AtomicBool::new(false),
            negotiating: AtomicUsize::new(0),
            connections: Mutex::new(Connections {
                limit,
                all: BTreeMap::new(),
                private: 0,
                others: 0,
                reported: Default::default(),
                refused: Default::default(),
            }),
            ended: Condvar::new(),
            when_refused,
            when_client,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the server's thread.
    pub(crate) fn wake(&self) {
        wake(&self.wake);
    }

    /// Accepts clients on one more socket; returns its number.
    pub(crate) fn listen(&self, opened: Opened) -> Result<u64, Error> {
        let number = self.sockets.add(opened)?;
        // Another thread may already have closed all sockets.
        let watched = self.sockets.get(number).map_or(Ok(()), |opened| self.resting.listen(number, &opened.listener));
        watched.inspect_err(|_| self.sockets.remove(number))?;
        Ok(number)
    }

    /// Returns whether clients of a socket use TLS. On a Unix socket, the permissions of its file say
    /// who may connect, and no other process can listen in.
    pub(crate) fn security(&self, listener: &Listener) -> Security {
        match &self.tls {
            None => Security::Plain,
            Some(tls) if tls.is_optional || !listener.is_on_network() => Security::Offered,
            Some(_) => Security::Required,
        }
    }

    /// Begins TLS with a client that has asked for it.
    pub(crate) fn start_tls(&self, stream: &mut Arc<Stream>) -> io::Result<()> {
        let Common { executor, limits, .. } = &*self.common;
        let layer =
            self.tls.as_ref().map_or(Ok(None), |tls| tls.certificates.layer(executor.memory(), limits.io_timeout))?;
        match (layer, Arc::get_mut(stream)) {
            (Some(layer), Some(stream)) => {
                stream.start_tls(layer);
                Ok(())
            }
            _ => {
                self.report(Refused::Memory);
                Err(io::ErrorKind::OutOfMemory.into())
            }
        }
    }

    /// Ends every wait for connections, current and future.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        // Once the lock was taken, every thread has seen the flag or is waiting, and is notified.
        drop(self.lock());
        self.ended.notify_all();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Returns the current number of connections.
    pub(crate) fn connections(&self) -> usize {
        let connections = self.lock();
        connections.all.len() + connections.others + self.negotiating.load(Ordering::SeqCst)
    }

    /// Returns how many connections are served, not counting the places for private exports.
    pub(crate) fn limit(&self) -> usize {
        self.lock().limit
    }

    /// Sets how many connections are served, not counting the places for private exports; returns
    /// the previous number. Those above a smaller one continue.
    pub(crate) fn set_limit(&self, limit: usize) -> usize {
        std::mem::replace(&mut self.lock().limit, limit)
    }

    /// Gives a place to a connection that has chosen `export`, unless the export has its share. The
    /// export already counts the connection. `exports` is the number of exports. `idle` is the
    /// connection's memory, if it got any when it arrived.
    pub(crate) fn seat(
        self: &Arc<Self>,
        number: u64,
        stream: &Arc<Stream>,
        export: &Export,
        exports: usize,
        idle: Option<Taken>,
    ) -> Result<Seat, (NoPlace, Option<Taken>)> {
        // Read before the lock is taken, which others need to end their connections.
        let own = export.connections().saturating_sub(1);
        let mut connections = self.lock();
        if !export.is_private() && !descriptors::serves(&**stream) {
            drop(connections);
            self.report(Refused::Files);
            return Err((NoPlace::Files, idle));
        }
        let private = export.is_private() && connections.private < self.common.limits.private;
        let limit = connections.limit;
        if !private && connections.is_full(export, own, exports) {
            drop(connections);
            self.report(Refused::Full(limit));
            return Err((NoPlace::Full(limit), idle));
        }
        let Some(idle) = idle.or_else(|| self.common.executor.memory().take_idle()) else {
            drop(connections);
            self.report(Refused::Memory);
            return Err((NoPlace::Memory, None));
        };
        connections.private += usize::from(private);
        connections.all.insert(number, Admitted { stream: Arc::clone(stream), private });
        drop(connections);
        let presence = Presence::begin(&self.when_client, stream, export.name());
        Ok(Seat { control: Arc::clone(self), number, idle: Some(idle), presence })
    }

    /// Continues with a client of another server. The client rests until this server runs, and gets
    /// a place even above the limit.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        number: u64,
        state: ClientState,
        fd: OwnedFd,
        exports: &Exports,
    ) -> Result<(), AdoptError> {
        let name = state.export.clone();
        let export = exports.get(&name).ok_or_else(|| AdoptError::NoExport(name.clone()))?;
        let access = export.reopen().ok_or(AdoptError::NoExport(name))?;
        let stream = self.adopt_stream(number, fd)?;
        let idle = self.common.executor.memory().take_idle().ok_or(AdoptError::Memory)?;
        let session = Session { access, headers: state.headers, contexts: state.contexts.clone() };
        let (parked, output) = state.into_parked(&session)?;
        self.lock().all.insert(number, Admitted { stream: Arc::clone(&stream), private: false });
        let presence = Presence::begin(&self.when_client, &stream, export.name());
        let seat = Seat { control: Arc::clone(self), number, idle: Some(idle), presence };
        let connection = Connection::new(stream, session, Arc::clone(&self.common), seat);
        connection.adopt(parked, output);
        if self.resting.add(number, &connection) { Ok(()) } else { Err(AdoptError::System("it was closed".to_owned())) }
    }

    /// Registers a client of another server, without waiting for events yet.
    pub(crate) fn adopt_stream(&self, number: u64, fd: OwnedFd) -> Result<Arc<Stream>, AdoptError> {
        let stream = Stream::new(Socket::of_another(fd)?);
        let added = self.resting.add_stream(EventData::new_u64(number), &stream);
        added.map_err(|error| AdoptError::System(error.to_string()))?;
        Ok(Arc::new(stream))
    }

    /// Returns the number of places that are taken, not counting those of other transports, and how many
    /// of these clients use TLS.
    pub(crate) fn seats(&self) -> (usize, usize) {
        let connections = self.lock();
        let tls = connections.all.values().filter(|admitted| admitted.stream.has_tls()).count();
        (connections.all.len(), tls)
    }

    /// Gives a place to a client of another transport, unless `export` has its share. The export
    /// does not count the client yet. `exports` is the number of exports. Fails with the number of
    /// places.
    pub(crate) fn seat_other(self: &Arc<Self>, export: &Export, exports: usize) -> Result<OtherSeat, usize> {
        // Read before the lock is taken, which others need to end their connections.
        let own = export.connections();
        let mut connections = self.lock();
        let limit = connections.limit;
        if connections.is_full(export, own, exports) {
            drop(connections);
            self.report(Refused::Full(limit));
            return Err(limit);
        }
        connections.others += 1;
        Ok(OtherSeat(Arc::clone(self)))
    }

    /// Returns how often clients were refused or have to wait, by reason.
    pub(crate) fn refused(&self) -> [(&'static str, u64); REASONS.len()] {
        let counts = self.lock().refused;
        std::array::from_fn(|reason| (REASONS[reason], counts[reason]))
    }

    /// Counts a client that is not served. Reports why, unless that reason was reported within
    /// [`REPORT_PAUSE`].
    pub(crate) fn report(&self, why: Refused) {
        let reason = match why {
            Refused::Full(_) => 0,
            Refused::Accept(_) | Refused::Files => 1,
            Refused::Thread(_) => 2,
            Refused::Memory => 3,
            Refused::Work => 4,
            Refused::Tls { .. } => 5,
        };
        let mut connections = self.lock();
        connections.refused[reason] += 1;
        let reported = &mut connections.reported[reason];
        let due = reported.is_none_or(|reported| reported.elapsed() >= REPORT_PAUSE);
        if due {
            *reported = Some(Instant::now());
        }
        drop(connections);
        if let (WhenRefused(Some(notify)), true) = (&self.when_refused, due) {
            notify(why);
        }
    }

    /// Stops all connections from receiving data that has not arrived yet.
    pub(crate) fn shutdown_recv(&self) {
        self.lock().all.values().for_each(|admitted| admitted.stream.shutdown_recv());
    }

    /// Closes all connections but those with the numbers `kept`. Returns how many it has closed.
    pub(crate) fn shutdown_others(&self, kept: &HashSet<u64>) -> usize {
        let connections = self.lock();
        let others = connections.all.iter().filter(|(number, _)| !kept.contains(number));
        others.map(|(_, admitted)| admitted.stream.shutdown()).count()
    }

    /// Closes all connections that a process has made to a Unix socket. Returns how many these are.
    pub(crate) fn shutdown_of(&self, pid: u32) -> usize {
        let is_its = |stream: &Stream| matches!(stream.peer(), Peer::Process { pid: found, .. } if u32::try_from(found) == Ok(pid));
        let connections = self.lock();
        connections
            .all
            .values()
            .filter(|admitted| is_its(&admitted.stream))
            .map(|admitted| admitted.stream.shutdown())
            .count()
    }

    /// Closes all connections.
    pub(crate) fn shutdown(&self) {
        self.lock().all.values().for_each(|admitted| admitted.stream.shutdown());
    }

    /// Waits for at most `time` until no connection is left or they are abandoned. Returns whether
    /// either happened.
    pub(crate) fn wait_for_all(&self, time: Option<Duration>) -> bool {
        let mut connections = self.lock();
        let deadline = time.map(|time| Instant::now() + time);
        while !connections.all.is_empty() && !self.is_abandoned() {
            let Some(deadline) = deadline else {
                connections = self.ended.wait(connections).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            connections = self.ended.wait_timeout(connections, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("common", &self.common).finish_non_exhaustive()
    }
}

/// Wakes the thread that polls an eventfd.
pub(crate) fn wake(fd: &OwnedFd) {
    // A write to a full counter fails; then the thread has yet to see an earlier one.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Dropped first, because the server may end once this seat is gone.
        self.presence = None;
        self.idle = None;
        let mut connections = self.control.lock();
        let private = connections.all.remove(&self.number).is_some_and(|admitted| admitted.private);
        connections.private -= usize::from(private);
        drop(connections);
        self.control.ended.notify_all();
    }
}

impl Keeper<Stream> for Seat {
    const RESTS: bool = true;

    fn watch(connection: &Arc<Served>) -> bool {
        let seat = connection.keeper();
        let rests = seat.control.resting.add(seat.number, connection);
        // The pause for which its leader stopped may already have ended.
        if rests && connection.is_parked() {
            seat.nudge();
        }
        rests
    }

    fn nudge(&self) {
        self.control.resting.has_parked.store(true, Ordering::SeqCst);
        self.control.wake();
    }
}
