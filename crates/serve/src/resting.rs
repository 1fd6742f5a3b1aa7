//! Connections that rest, and the epoll with which the server's thread waits for all of them.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Instant,
};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::{
    Error,
    connection::{Connection, Keeper},
    listen::Listener,
    stream::Stream,
};

/// The number under which the eventfd is watched. Listeners have the numbers below, from
/// [`LEAST_LISTENER`] on; connections count from 0 and never reach them.
pub(crate) const WAKE: u64 = u64::MAX;
pub(crate) const LEAST_LISTENER: u64 = 1 << 63;

/// Connections that rest, and the epoll that watches them.
pub(crate) struct Resting<G> {
    pub(crate) epoll: OwnedFd,
    /// Whether some may be able to continue before data arrive.
    pub(crate) has_parked: AtomicBool,
    state: Mutex<RestingState<G>>,
}

pub(crate) struct RestingState<G> {
    /// No connection may rest any more.
    pub(crate) closed: bool,
    pub(crate) all: BTreeMap<u64, Rester<G>>,
}

/// A connection that rests.
pub(crate) struct Rester<G> {
    pub(crate) connection: Arc<Connection<Stream, G>>,
    /// When the connection is to end, if its export was removed.
    pub(crate) ends: Option<Instant>,
}

impl<G: Keeper<Stream>> Resting<G> {
    pub(crate) fn new(wake: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            epoll,
            has_parked: AtomicBool::new(false),
            state: Mutex::new(RestingState { closed: false, all: BTreeMap::new() }),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RestingState<G>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a listening socket.
    pub(crate) fn listen(&self, number: u64, listener: &Listener) -> Result<(), Error> {
        let number = EventData::new_u64(listener_number(number));
        epoll::add(&self.epoll, listener.as_fd(), number, EventFlags::IN)
            .map_err(|error| Error::System { what: "wait for connections", source: error.into() })
    }

    /// Lets a connection rest until data arrive. Returns `false` if the server stops.
    pub(crate) fn add(&self, number: u64, connection: &Arc<Connection<Stream, G>>) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        // Under the lock, so that no event finds the connection missing.
        let watched = self.watch(number, connection.transport(), EventFlags::IN | EventFlags::RDHUP);
        if watched.is_ok() {
            state.all.insert(number, Rester { connection: Arc::clone(connection), ends: None });
        }
        watched.is_ok()
    }

    /// Ends resting: returns the resting connections, and accepts no more of them.
    pub(crate) fn close(&self) -> Vec<Arc<Connection<Stream, G>>> {
        let mut state = self.lock();
        state.closed = true;
        std::mem::take(&mut state.all).into_values().map(|rester| rester.connection).collect()
    }

    /// Watches a client's socket, though for nothing yet.
    pub(crate) fn add_stream(&self, number: EventData, stream: &Stream) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, stream, number, EventFlags::ONESHOT)
    }

    /// Returns the connections that rest.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection<Stream, G>>> {
        self.lock().all.values().map(|rester| Arc::clone(&rester.connection)).collect()
    }

    /// Takes the connections that can continue before data arrive.
    pub(crate) fn take_parked(&self) -> Vec<(u64, Arc<Connection<Stream, G>>)> {
        let mut state = self.lock();
        let parked: Vec<_> =
            state.all.iter().filter(|(_, rester)| rester.connection.is_parked()).map(|(&number, _)| number).collect();
        parked.into_iter().filter_map(|number| Some((number, state.all.remove(&number)?.connection))).collect()
    }

    /// Reports the next event of a socket that is already being watched.
    pub(crate) fn watch(&self, number: u64, stream: &Stream, events: EventFlags) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, stream, EventData::new_u64(number), events | EventFlags::ONESHOT)
    }
}

/// Converts the number of a socket to that under which it is watched, and back.
pub(crate) fn listener_number(number: u64) -> u64 {
    WAKE - 1 - number
}
