//! The server's own thread: it accepts clients, negotiates with them, and resumes connections that
//! rest when data arrive. Before its first request, no client needs another thread, except to
//! compute TLS handshakes.
//!
//! ```text
//! accepted → newcomer, until it has chosen an export
//!          → rests, until data arrive
//!          → ready, until there are memory and a thread
//!          → works, until it has no requests; then it rests again
//! ```

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use pagefold_executor::{Exports, Taken};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, Event, EventData, EventFlags},
    io::Errno,
};

use crate::{
    Error,
    admission::{Control, Refused, Served},
    connection::{Connection, Parked},
    descriptors,
    handover::{ClientState, Handed},
    handshakes::{Done, Handshakes},
    negotiate::{Ended, Negotiation, Session},
    newcomer::{Handshake, Newcomer, Place, Progress},
    pause::{Ask, Asked, LAST, PauseError, Shared},
    resting::{LEAST_LISTENER, Rester, WAKE, has_work, listener_number},
    sockets::Opened,
    stream::Stream,
    transport::{Transport, at_most_a_day},
};

/// Pause before the next attempt if the system refuses a descriptor, a thread or memory.
const SYSTEM_PAUSE: Duration = Duration::from_millis(100);

/// Pause before the next attempt if the account refuses memory to work. Connections that release
/// memory wake the thread earlier.
const WORK_PAUSE: Duration = Duration::from_millis(20);

/// A newcomer is not closed to make room before this time, so that many clients that connect at the
/// same instant are all served.
const LEAST_NEGOTIATION: Duration = Duration::from_millis(250);

/// Maximum number of newcomers without memory. They may negotiate, and are refused with a reason.
const MOST_UNPAID: usize = 8;

/// Pause between two checks whether anything is in progress.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// Events handled before the clock is read again.
const MOST_EVENTS: usize = 64;

/// A connection that has not chosen an export, or whose client has not received the answer yet.
struct Entry {
    since: Instant,
    negotiator: Negotiator,
}

/// The thread that continues a negotiation.
enum Negotiator {
    Here(Box<Newcomer>),
    /// A thread that computes TLS handshakes, and whether the newcomer has memory.
    Thread {
        has_memory: bool,
    },
}

impl Entry {
    fn has_memory(&self) -> bool {
        match &self.negotiator {
            Negotiator::Here(newcomer) => newcomer.has_memory(),
            Negotiator::Thread { has_memory } => *has_memory,
        }
    }

    fn is_paid(&self) -> bool {
        match &self.negotiator {
            Negotiator::Here(newcomer) => newcomer.is_paid(),
            Negotiator::Thread { has_memory } => *has_memory,
        }
    }
}

/// The state of the server's thread.
pub(crate) struct Events {
    control: Arc<Control>,
    /// All exports of the server.
    exports: Exports,
    /// Number of the next connection.
    next: u64,
    newcomers: BTreeMap<u64, Entry>,
    handshakes: Arc<Handshakes>,
    /// Connections with data that wait for memory and a thread, in the order of their arrival.
    ready: VecDeque<(u64, Arc<Served>)>,
    /// When to retry to let the first of them work.
    retry: Option<Instant>,
    /// When to accept clients again.
    deaf_until: Option<Instant>,
    /// Whether clients are not accepted because there are too many newcomers.
    is_full: bool,
    /// When to look for removed exports of resting connections.
    sweep: Instant,
}

impl Events {
    /// Serves the clients of `control`, which have numbers below `next`, and `newcomers`.
    pub(crate) fn new(control: Arc<Control>, exports: Exports, next: u64, newcomers: Vec<(u64, Newcomer)>) -> Self {
        let newcomers = newcomers.into_iter().map(|(number, newcomer)| {
            let negotiator = Negotiator::Here(Box::new(newcomer));
            (number, Entry { since: Instant::now(), negotiator })
        });
        Self {
            handshakes: Handshakes::new(Arc::clone(&control), exports.clone()),
            control,
            exports,
            next,
            newcomers: newcomers.collect(),
            ready: VecDeque::new(),
            retry: None,
            deaf_until: None,
            is_full: false,
            sweep: Instant::now(),
        }
    }

    /// Serves until the server is to stop.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        let control = Arc::clone(&self.control);
        let epoll = &control.resting.epoll;
        let failed = |error: Errno| Error::System { what: "wait for connections", source: error.into() };
        let mut events: Vec<Event> = Vec::with_capacity(MOST_EVENTS);
        self.go_on();
        self.start_ready();
        while !self.control.common.stopping.load(Ordering::SeqCst) {
            let timeout = self.next_time().map(|time| at_most_a_day(time.saturating_duration_since(Instant::now())));
            events.clear();
            match epoll::wait(epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
            for event in &events {
                self.handle(event.data.u64());
            }
            match self.control.pause.asked() {
                Ask::Nothing => {}
                Ask::GoOn => self.go_on(),
                Ask::Pause(asked) => {
                    if !self.pause(asked) {
                        break;
                    }
                    self.go_on();
                }
            }
            self.on_time(Instant::now());
            self.start_ready();
            self.control.negotiating.store(self.newcomers.len(), Ordering::SeqCst);
        }
        Ok(())
    }

    fn handle(&mut self, number: u64) {
        if number == WAKE {
            // This resets the eventfd to 0.
            let _ = rustix::io::read(&*self.control.wake, &mut [0; 8]);
            self.retry = None;
            for Done { number, newcomer, result } in self.handshakes.take_done() {
                // A newcomer that was closed while the thread computed is dropped here.
                if let Some(entry) = self.newcomers.get_mut(&number) {
                    entry.negotiator = Negotiator::Here(newcomer);
                    self.proceed(number, result);
                }
            }
            // After a pause, all connections that can continue do so.
            let Control { common, resting, .. } = &*self.control;
            if !common.is_pausing() && resting.has_parked.swap(false, Ordering::SeqCst) {
                self.ready.extend(resting.take_parked());
            }
        } else if number >= LEAST_LISTENER {
            self.accept(listener_number(number));
        } else if self.newcomers.contains_key(&number) {
            self.advance(number);
        } else {
            match self.control.resting.take_reported(number) {
                Some((connection, true)) => self.ready.push_back((number, connection)),
                Some((connection, false)) => connection.end(true),
                None => {}
            }
        }
    }

    /// Returns when the next thing is due even without an event.
    fn next_time(&self) -> Option<Instant> {
        let limits = &self.control.common.limits;
        let oldest = self.newcomers.first_key_value();
        let late = oldest.and_then(|(_, newcomer)| newcomer.since.checked_add(limits.handshake_timeout));
        let retry = if self.ready.is_empty() { None } else { self.retry };
        let sweep = (!self.control.resting.lock().all.is_empty()).then_some(self.sweep);
        [late, retry, self.deaf_until, sweep].into_iter().flatten().min()
    }

    fn on_time(&mut self, now: Instant) {
        let handshake_timeout = self.control.common.limits.handshake_timeout;
        while let Some((&oldest, entry)) = self.newcomers.first_key_value()
            && now.duration_since(entry.since) >= handshake_timeout
        {
            self.close(oldest);
        }
        let has_room = self.is_full && self.newcomers.len() < self.control.common.limits.negotiating;
        if self.deaf_until.is_some_and(|until| has_room || now >= until) {
            self.is_full = false;
            self.listen(None);
        }
        if now >= self.sweep {
            self.sweep(now);
        }
    }

    /// Ends connections that have rested since their exports were removed.
    fn sweep(&mut self, now: Instant) {
        let limits = &self.control.common.limits;
        let mut next = now.checked_add(limits.io_timeout);
        let mut ended = Vec::new();
        let mut state = self.control.resting.lock();
        state.all.retain(|_, rester| {
            if !rester.connection.is_closed() {
                return true;
            }
            let ends = rester.ends.or_else(|| now.checked_add(limits.stop_grace));
            rester.ends = ends;
            if ends.is_some_and(|ends| now >= ends) {
                ended.push(Arc::clone(&rester.connection));
                return false;
            }
            next = next.into_iter().chain(ends).min();
            true
        });
        drop(state);
        ended.iter().for_each(|connection| connection.end(true));
        // Later than any clock can show.
        self.sweep = next.unwrap_or(now + Duration::from_secs(86_400));
    }

    /// Accepts no clients until the given time, or accepts them again.
    fn listen(&mut self, deaf_until: Option<Instant>) {
        self.deaf_until = deaf_until;
        let events = if deaf_until.is_some() { EventFlags::empty() } else { EventFlags::IN };
        for (number, opened) in self.control.sockets.list() {
            // Modifying a watched descriptor needs no memory.
            let number = EventData::new_u64(listener_number(number));
            let _ = epoll::modify(&self.control.resting.epoll, opened.listener.as_fd(), number, events);
        }
    }

    fn accept(&mut self, number: u64) {
        if self.deaf_until.is_some() {
            // A socket that was opened in the meantime.
            return self.listen(self.deaf_until);
        }
        if !self.make_room() {
            return;
        }
        if self.control.common.is_pausing() {
            // The socket is reported again.
            return;
        }
        let Some(opened) = self.control.sockets.get(number) else { return };
        if !descriptors::accepts(&opened.listener) {
            self.control.report(Refused::Accept(Errno::MFILE.into()));
            return self.pause_for_system();
        }
        let Opened { listener, exports } = &*opened;
        let security = self.control.security(listener);
        let memory = Arc::clone(self.control.common.executor.memory());
        let negotiation = Negotiation::new(exports.clone(), memory, security);
        let stream = match listener.accept() {
            Ok(socket) => Arc::new(Stream::new(socket)),
            Err(error) => {
                // Pauses for lack of descriptors or memory, but not for a peer that left before it
                // was accepted.
                let code = error.raw_os_error().map(Errno::from_raw_os_error);
                if matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) {
                    self.control.report(Refused::Accept(error));
                    self.pause_for_system();
                }
                return;
            }
        };
        let number = self.next;
        self.next += 1;
        // Watched from now on, but not for any event yet.
        let added = epoll::add(&self.control.resting.epoll, &*stream, EventData::new_u64(number), EventFlags::ONESHOT);
        if let Err(error) = added {
            return self.control.report(Refused::Accept(error.into()));
        }
        let place = Place::None(self.memory_of_newcomer());
        let negotiator = Negotiator::Here(Box::new(Newcomer { stream, negotiation, place }));
        self.newcomers.insert(number, Entry { since: Instant::now(), negotiator });
        self.advance(number);
    }

    /// Closes the oldest newcomer, whose descriptor and memory others need, and accepts no client for a
    /// while.
    fn pause_for_system(&mut self) {
        self.close_oldest();
        self.listen(Some(Instant::now() + SYSTEM_PAUSE));
    }

    /// Closes the oldest newcomer if there are too many. Returns `false` if it is too young for
    /// that; clients then wait to be accepted.
    fn make_room(&mut self) -> bool {
        if self.newcomers.len() < self.control.common.limits.negotiating.max(1) {
            return true;
        }
        let due = self.close_oldest();
        if let Some(due) = due {
            self.is_full = true;
            self.listen(Some(due));
        }
        due.is_none()
    }

    /// Closes the oldest newcomer, or returns when its minimum time ends.
    fn close_oldest(&mut self) -> Option<Instant> {
        let (&oldest, entry) = self.newcomers.first_key_value()?;
        let due = entry.since + LEAST_NEGOTIATION;
        if due > Instant::now() {
            return Some(due);
        }
        self.close(oldest);
        None
    }

    /// Closes a newcomer. If a thread is computing for it, the result is dropped.
    fn close(&mut self, number: u64) {
        if let Some(Entry { negotiator: Negotiator::Thread { .. }, .. }) = self.newcomers.remove(&number) {
            self.handshakes.close(number);
        }
    }

    /// Returns the memory of one more newcomer. If there is none, the oldest newcomers are closed to
    /// make room; some may stay without memory.
    fn memory_of_newcomer(&mut self) -> Option<Taken> {
        loop {
            if let Some(idle) = self.control.common.executor.memory().take_idle() {
                return Some(idle);
            }
            let mut paid = self.newcomers.iter().filter(|(_, entry)| entry.has_memory());
            let oldest = paid.next().map(|(&number, _)| number);
            let Some(oldest) = oldest else { break };
            self.close(oldest);
        }
        let mut unpaid = self.newcomers.iter().filter(|(_, entry)| !entry.is_paid());
        if let Some((&oldest, _)) = unpaid.next()
            && unpaid.count() + 1 >= MOST_UNPAID
        {
            self.close(oldest);
        }
        None
    }

    /// Continues a negotiation.
    fn advance(&mut self, number: u64) {
        let Self { newcomers, control, exports, .. } = self;
        let Some(Entry { negotiator: Negotiator::Here(newcomer), .. }) = newcomers.get_mut(&number) else { return };
        let result = newcomer.progress(number, control, exports, Handshake::HandOn);
        self.proceed(number, result);
    }

    /// Makes a thread compute the server's part of a newcomer's handshake. If there is no thread
    /// for it, this one does it.
    fn shake_hands(&mut self, number: u64) {
        let Some(entry) = self.newcomers.get_mut(&number) else { return };
        let has_memory = entry.has_memory();
        let Negotiator::Here(newcomer) = std::mem::replace(&mut entry.negotiator, Negotiator::Thread { has_memory })
        else {
            return;
        };
        if let Err(mut newcomer) = self.handshakes.hand_on(number, newcomer) {
            let result = newcomer.progress(number, &self.control, &self.exports, Handshake::Compute);
            entry.negotiator = Negotiator::Here(newcomer);
            self.proceed(number, result);
        }
    }

    /// Acts on the progress of a newcomer.
    fn proceed(&mut self, number: u64, result: Result<Progress, Ended>) {
        let Some(Entry { negotiator: Negotiator::Here(newcomer), .. }) = self.newcomers.get(&number) else { return };
        match result {
            Ok(Progress::Handshake) => self.shake_hands(number),
            Ok(Progress::Waits(events)) => {
                if self.control.resting.watch(number, &newcomer.stream, events | EventFlags::RDHUP).is_err() {
                    self.newcomers.remove(&number);
                }
            }
            Ok(Progress::Chosen(session)) => {
                if let Some(Entry { negotiator: Negotiator::Here(newcomer), .. }) = self.newcomers.remove(&number)
                    && let Newcomer { stream, place: Place::Seat(seat), .. } = *newcomer
                {
                    let common = Arc::clone(&self.control.common);
                    let connection = Connection::new(stream, session, common, seat);
                    if connection.transport().holds_data() {
                        // Its first requests came together with the end of the negotiation.
                        self.ready.push_back((number, connection));
                    } else {
                        connection.transport().rest();
                        // If this fails, the connection is dropped, which ends it.
                        self.control.resting.add(number, &connection);
                    }
                }
            }
            Err(ended) => {
                if let Ended::Io(error) = ended
                    && newcomer.stream.has_tls()
                    && error.kind() == io::ErrorKind::InvalidData
                {
                    self.control.report(Refused::Tls { peer: newcomer.stream.peer(), error });
                }
                // All other outcomes concern only the peer.
                self.newcomers.remove(&number);
            }
        }
    }

    /// Starts work on connections with data, if memory and threads allow.
    fn start_ready(&mut self) {
        let memory = Arc::clone(self.control.common.executor.memory());
        if self.control.common.is_pausing() {
            return;
        }
        if self.retry.is_some_and(|retry| Instant::now() < retry) {
            return;
        }
        self.retry = None;
        while let Some((number, connection)) = self.ready.pop_front() {
            let more_bytes = connection.transport().more_work_bytes();
            let work = memory.take_work(more_bytes).or_else(|| {
                // From now on, memory that is released wakes this thread.
                memory.set_short(true);
                memory.take_work(more_bytes)
            });
            let Some(work) = work else {
                self.ready.push_front((number, connection));
                self.retry = Some(Instant::now() + WORK_PAUSE);
                return self.control.report(Refused::Work);
            };
            if let Err(error) = Connection::resume(&connection, work) {
                self.ready.push_front((number, connection));
                self.retry = Some(Instant::now() + SYSTEM_PAUSE);
                return self.control.report(Refused::Thread(error));
            }
        }
        memory.set_short(false);
    }

    /// Pauses until the pause ends. Returns whether the server continues.
    fn pause(&mut self, asked: Asked) -> bool {
        let found = self.settle(asked).and_then(|left_out| {
            let mut handed = self.hand_over(asked.leaves_out)?;
            handed.left_out += left_out;
            Ok(handed)
        });
        self.control.clone().pause.wait(asked, found)
    }

    /// Continues all clients after a pause.
    fn go_on(&mut self) {
        self.ready.extend(self.control.resting.take_parked());
        let waiting: Vec<_> = self.newcomers.keys().copied().collect();
        waiting.into_iter().for_each(|number| self.advance(number));
    }

    /// Waits until nothing is in progress. Returns how many clients it had to disconnect.
    fn settle(&mut self, Asked { mut deadline, leaves_out }: Asked) -> Result<usize, PauseError> {
        let mut disconnected = None;
        loop {
            let (seats, tls) = self.control.seats();
            let shakes = |entry: &&Entry| matches!(entry.negotiator, Negotiator::Thread { .. });
            let tls = tls + self.newcomers.values().filter(shakes).count();
            if tls > 0 && !leaves_out {
                return Err(PauseError::Tls(tls));
            }
            let resting = self.control.resting.connections();
            let seated = |entry: &&Entry| match &entry.negotiator {
                Negotiator::Here(newcomer) => matches!(newcomer.place, Place::Seat(_)),
                Negotiator::Thread { .. } => false,
            };
            let idle = resting.len() + self.ready.len() + self.newcomers.values().filter(seated).count();
            let ready = self.ready.iter().map(|(_, connection)| connection);
            // The list has one reference, and `resting` has another one to each resting connection.
            let busy = ready
                .map(|connection| (connection, 1))
                .chain(resting.iter().map(|connection| (connection, 2)))
                .find(|(connection, references)| Arc::strong_count(connection) > *references);
            if busy.is_none() && idle == seats {
                return Ok(disconnected.unwrap_or_default());
            }
            let is_late = Instant::now() >= deadline;
            if is_late && leaves_out && disconnected.is_none() {
                drop(resting);
                disconnected = Some(self.disconnect_busy());
                deadline = Instant::now() + LAST;
            } else if is_late || self.control.common.stopping.load(Ordering::SeqCst) {
                let busy = busy.and_then(|(connection, _)| self.export_of(connection));
                return Err(PauseError::Busy(busy.or_else(|| self.busy_export()).unwrap_or_default()));
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// Disconnects the clients that have requests in progress. Returns their number.
    fn disconnect_busy(&mut self) -> usize {
        let is_idle = |connection: &Arc<Served>| Arc::strong_count(connection) == 1;
        let mut idle: HashSet<u64> = self.newcomers.keys().copied().collect();
        let mut busy = Vec::new();
        let mut state = self.control.resting.lock();
        for (number, Rester { connection, ends }) in std::mem::take(&mut state.all) {
            if is_idle(&connection) {
                idle.insert(number);
                state.all.insert(number, Rester { connection, ends });
            } else {
                busy.push(connection);
            }
        }
        drop(state);
        for (number, connection) in std::mem::take(&mut self.ready) {
            if is_idle(&connection) {
                idle.insert(number);
                self.ready.push_back((number, connection));
            } else {
                busy.push(connection);
            }
        }
        busy.iter().for_each(|connection| connection.end(true));
        self.control.shutdown_others(&idle)
    }

    /// Returns the name of the export that a connection uses.
    fn export_of(&self, connection: &Served) -> Option<String> {
        let (exports, access) = (self.exports.list(), &connection.session().access);
        Some(exports.iter().find(|export| export.is_of(access))?.name().to_string())
    }

    /// Returns the name of an export with requests in progress.
    fn busy_export(&self) -> Option<String> {
        Some(self.exports.list().iter().find(|export| export.requests() > 0)?.name().to_string())
    }

    /// Returns the server's sockets and the states of its clients. A client that cannot be handed
    /// over is left out, or makes this fail.
    fn hand_over(&self, leaves_out: bool) -> Result<Handed<Shared>, PauseError> {
        let mut handed = Handed::<Shared>::default();
        for (_, opened) in self.control.sockets.list() {
            let only = opened.exports.only_one().map(|export| export.name().to_string());
            handed.listeners.push((opened.listener.state(only), opened));
        }
        let exports = self.exports.list();
        let name = |session: &Session| {
            let export = exports.iter().find(|export| export.is_of(&session.access))?;
            Some((export.name().to_string(), export.is_hidden()))
        };
        let resting = self.control.resting.connections();
        for connection in self.ready.iter().map(|(_, connection)| connection).chain(&resting) {
            connection.hand_over(|stream, session, parked, output| {
                match name(session) {
                    Some((name, false)) if !stream.has_tls() => {
                        handed.clients.push((ClientState::of(name, session, parked, output), Arc::clone(stream) as _));
                    }
                    Some(_) if leaves_out => handed.left_out += 1,
                    Some((_, false)) => return Err(PauseError::Tls(1)),
                    Some((name, true)) => return Err(PauseError::Export(name)),
                    // The export was removed: the connection ends.
                    None => {}
                }
                Ok(())
            })?;
        }
        for entry in self.newcomers.values() {
            let Negotiator::Here(newcomer) = &entry.negotiator else { continue };
            let Newcomer { stream, negotiation, .. } = &**newcomer;
            if stream.has_tls() || negotiation.is_tls() {
                if !leaves_out {
                    return Err(PauseError::Tls(1));
                }
                handed.left_out += 1;
                continue;
            }
            if let Some(state) = negotiation.state() {
                handed.newcomers.push((state, Arc::clone(stream) as _));
            } else if let Some((session, output)) = negotiation.begun()
                && let Some((name, _)) = name(session)
            {
                let state = ClientState::of(name, session, &Parked::default(), output);
                handed.clients.push((state, Arc::clone(stream) as _));
            }
        }
        Ok(handed)
    }

    /// Ends without closing any connection: another server continues with them.
    fn give_away(&mut self) {
        self.control.common.stopping.store(true, Ordering::SeqCst);
        self.handshakes.end();
        self.newcomers.clear();
        self.ready.clear();
        drop(self.control.resting.close());
        self.control.sockets.close();
    }

    /// Closes the listeners. Then lets requests that have arrived be answered, and ends all
    /// connections: gracefully, and forcibly after `grace`.
    pub(crate) fn finish(mut self, grace: Duration) {
        if self.control.pause.is_given() {
            return self.give_away();
        }
        self.control.pause.end();
        self.control.common.pausing.store(false, Ordering::SeqCst);
        // Clients cannot connect any more, and the sockets' files are gone.
        self.control.sockets.close();
        self.control.common.stopping.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + grace;
        self.newcomers.clear();
        self.handshakes.end();
        self.control.negotiating.store(0, Ordering::SeqCst);
        self.control.shutdown_recv();
        let mut state = self.control.resting.lock();
        state.closed = true;
        let resting = std::mem::take(&mut state.all);
        drop(state);
        for (number, Rester { connection, .. }) in resting {
            if has_work(&connection) {
                self.ready.push_back((number, connection));
            } else {
                connection.end(true);
            }
        }
        loop {
            self.retry = None;
            self.start_ready();
            let left = deadline.saturating_duration_since(Instant::now());
            if self.ready.is_empty() || left.is_zero() || self.control.is_abandoned() {
                break;
            }
            self.control.wait_for_all(Some(left.min(WORK_PAUSE)));
        }
        self.ready.clear();
        self.control.common.executor.memory().set_short(false);
        if !self.control.wait_for_all(Some(deadline.saturating_duration_since(Instant::now()))) {
            self.control.shutdown();
            self.control.wait_for_all(None);
        }
    }
}
