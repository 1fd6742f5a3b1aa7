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
    transport::Transport,
};

/// The number under which the eventfd is watched. Listeners have the numbers below, from
/// [`LEAST_LISTENER`] on; connections count from 0 and never reach them.
pub(crate) const WAKE: u64 = u64::MAX;
pub(crate) const LEAST_LISTENER: u64 = 1 << 63;

/// The events that wake a resting connection.
const DATA_OR_END: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

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
        let watched = self.watch(number, connection.transport(), DATA_OR_END);
        if watched.is_ok() {
            state.all.insert(number, Rester { connection: Arc::clone(connection), ends: None });
        }
        watched.is_ok()
    }

    /// Takes a connection whose socket had an event. Returns it with `true` if it has work, and with
    /// `false` if its peer has left and waits for nothing. Otherwise, returns `None`, and the
    /// connection continues to rest. The event may then be older than the rest: a connection that was
    /// [taken without an event](Self::take_parked) is still watched while it works.
    pub(crate) fn take_reported(&self, number: u64) -> Option<(Arc<Connection<Stream, G>>, bool)> {
        let mut state = self.lock();
        let connection = &state.all.get(&number)?.connection;
        let stream = connection.transport();
        // Before the data: after the end, none arrive.
        let has_ended = stream.has_ended();
        let has_work = has_work(connection);
        if !has_work && !has_ended && self.watch(number, stream, DATA_OR_END).is_ok() {
            return None;
        }
        state.all.remove(&number).map(|rester| (rester.connection, has_work))
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

/// Returns whether a resting connection has to work before it may end: its client waits for replies,
/// or has sent requests.
pub(crate) fn has_work<G: Keeper<Stream>>(connection: &Connection<Stream, G>) -> bool {
    connection.is_parked() || connection.is_busy() || connection.transport().has_data()
}

/// Converts the number of a socket to that under which it is watched, and back.
pub(crate) fn listener_number(number: u64) -> u64 {
    WAKE - 1 - number
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net::Shutdown, os::unix::net::UnixStream, time::Duration};

    use pagefold_disk::{BlockDevice, Error, Extent, Zeroes};
    use pagefold_executor::{Executor, Export, Memory};
    use rustix::{
        buffer::spare_capacity,
        event::{EventfdFlags, eventfd},
    };

    use super::*;
    use crate::{
        Limits,
        connection::{Common, Parked},
        protocol::Headers,
        session::Session,
        transport::{Socket, at_most_a_day},
    };

    struct Nothing;

    impl BlockDevice for Nothing {
        fn size_bytes(&self) -> u64 {
            0
        }

        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
            Ok(())
        }

        fn flush(&self) -> Result<(), Error> {
            Ok(())
        }

        fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
            Ok(())
        }

        fn write_zeroes(&self, _: u64, _: u64, _: Zeroes) -> Result<(), Error> {
            Ok(())
        }

        fn extents(&self, _: u64, _: u64, _: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
            Ok(())
        }
    }

    struct Keeps;

    impl Keeper<Stream> for Keeps {
        const RESTS: bool = true;

        fn watch(_: &Arc<Connection<Stream, Self>>) -> bool {
            true
        }

        fn nudge(&self) {}
    }

    /// Connections that rest under their numbers, with the other ends of their sockets.
    struct World {
        resting: Resting<Keeps>,
        peers: Vec<UnixStream>,
    }

    impl World {
        fn of(connections: u64) -> Self {
            let wake = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
            let resting = Resting::new(&wake).expect("an epoll");
            let memory = Memory::new(1 << 20, None);
            let common = Common::new(Limits::default(), Arc::new(Executor::new(1, memory)));
            let export = Export::new("disk", Arc::new(Nothing));
            let peers = (0..connections).map(|number| {
                let (ours, theirs) = UnixStream::pair().expect("a pair");
                let stream = Stream::new(Socket::new(ours));
                resting.add_stream(EventData::new_u64(number), &stream).expect("watched");
                let access = export.reopen().expect("an export");
                let session = Session { access, headers: Headers::Simple, contexts: Vec::new() };
                let connection = Connection::new(Arc::new(stream), session, Arc::clone(&common), Keeps);
                assert!(resting.add(number, &connection));
                theirs
            });
            let peers = peers.collect();
            Self { resting, peers }
        }

        /// Returns the numbers for which there are events.
        fn events(&self) -> Vec<u64> {
            let mut events: Vec<epoll::Event> = Vec::with_capacity(16);
            let now = at_most_a_day(Duration::ZERO);
            epoll::wait(&self.resting.epoll, spare_capacity(&mut events), Some(&now)).expect("events");
            events.iter().map(|event| event.data.u64()).collect()
        }

        fn park(&self, number: u64) {
            let input = vec![1];
            let parked = Parked { input, ..Parked::default() };
            self.resting.lock().all[&number].connection.adopt(parked, Vec::new());
        }

        /// Returns whether the connection that was reported has to work.
        fn take(&self, number: u64) -> Option<bool> {
            self.resting.take_reported(number).map(|(_, has_work)| has_work)
        }
    }

    #[test]
    fn an_event_from_before_it_rested_ends_no_connection() {
        let mut world = World::of(1);
        // It continues because it is parked, and is still watched.
        world.park(0);
        let [(0, connection)] = &world.resting.take_parked()[..] else { panic!("not parked") };
        world.peers[0].write_all(&[7]).expect("sent");
        let events = world.events();
        assert_eq!(events, [0], "it is not watched while it works");
        // Before the event is handled, it receives the data and rests.
        assert_eq!(connection.transport().recv(&mut [0; 8]).expect("received"), 1);
        connection.adopt(Parked::default(), Vec::new());
        assert!(world.resting.add(0, connection));
        assert_eq!(world.take(0), None);
        assert_eq!(world.resting.connections().len(), 1, "it does not rest any more");
        assert_eq!(world.events(), [0; 0]);
        world.peers[0].write_all(&[7]).expect("sent");
        assert_eq!(world.events(), [0]);
        assert_eq!(world.take(0), Some(true));
        assert_eq!(world.take(0), None, "it works");
    }

    #[test]
    fn a_peer_that_sends_no_more_gets_what_it_waits_for() {
        let mut world = World::of(4);
        world.park(1);
        world.peers[2].write_all(&[7]).expect("sent");
        world.peers[..3].iter().for_each(|peer| peer.shutdown(Shutdown::Write).expect("shut down"));
        let mut events = world.events();
        events.sort_unstable();
        assert_eq!(events, [0, 1, 2]);
        assert_eq!(world.take(0), Some(false), "it waits for nothing");
        assert_eq!(world.take(1), Some(true), "its request is parked");
        assert_eq!(world.take(2), Some(true), "its request is in the socket");
        assert_eq!(world.take(3), None);
    }
}
