//! The transmission phase of one connection.
//!
//! A connection that has requests has one thread of its own, its leader. Only the leader receives:
//!
//! ```text
//! lead:
//!     loop
//!         requests that were received whole, and of which a CPU that is spare could run some:
//!             share them: the leader and threads of the executor take one after another
//!         for each other request of which enough is in the input buffer
//!             small: run it until it would wait for storage; its reply goes to the output
//!                 buffer; a thread of the executor does the rest, and sends the reply
//!             a large write, for each piece of its payload: receive it; if a CPU is spare, a thread
//!                 of the executor writes it, otherwise the leader
//!             a large read: a thread of the executor runs it and sends its reply piece by piece
//!         send the output buffer
//!         receive whatever has arrived
//! ```
//!
//! Sixteen requests of 4 KiB that arrive together cost one receive and one send, and a request that
//! waits for storage delays no other. Reads that wait for the same storage run together. If no
//! thread of the executor is free, or without memory for a buffer, the leader runs the request
//! itself, in its small buffers: more slowly, but without waiting for other connections.
//!
//! If a change finds no room and the device supports waiting, the executor sets it aside.
//! `docs/targets.md` has the figures.
//!
//! A connection without requests rests: it gives up its thread and buffers, and its [`Keeper`]
//! resumes it when data arrive. If other connections wait for memory, a busy connection rests after
//! at most `TURN`, between two requests.
//!
//! While the server pauses, no further request begins. The leader stops between two requests or two
//! pieces of a write, and keeps received bytes that it has not used, and replies for which the
//! peer's socket has no room. When the pause ends, the connection continues with them, or they are
//! handed to another server.

mod batch;
mod common;
mod leader;
mod leading;
mod parked;
mod piece;
mod run;
mod state;
mod task;

use std::{
    cell::Cell,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, atomic::Ordering, mpsc},
};

use pagefold_executor::{Client, ClientLimits, Device, Taken, Working};

pub(crate) use self::{common::Common, parked::Parked};
use crate::{
    Limits,
    negotiate::{Ended, Session},
    protocol::Headers,
    transport::{Deadline, Transport},
};

/// Largest READ or WRITE that the leader runs itself, in bytes.
pub(crate) const INLINE_BYTES: u64 = 128 << 10;
/// Longest range of a TRIM, WRITE_ZEROES or BLOCK_STATUS that the leader runs itself.
const INLINE_RANGE_BYTES: u64 = 4 << 20;

/// The owner of resting connections, which resumes them.
pub(crate) trait Keeper<T>: Send + Sync + Sized + 'static {
    /// Whether connections can rest.
    const RESTS: bool;

    /// Calls [`Connection::resume`] when data arrive or the stream ends. Returns `false` if it will
    /// not.
    fn watch(connection: &Arc<Connection<T, Self>>) -> bool;

    /// Calls [`Connection::resume`] soon if the connection rests although it
    /// [can continue](Connection::is_parked).
    fn nudge(&self);
}

/// Keeps nothing; connections never rest.
impl<T> Keeper<T> for mpsc::Sender<()> {
    const RESTS: bool = false;

    fn watch(_: &Arc<Connection<T, Self>>) -> bool {
        false
    }

    fn nudge(&self) {}
}

/// One connection in transmission, shared by its threads.
pub(crate) struct Connection<T, G> {
    transport: Arc<T>,
    session: Session,
    common: Arc<Common>,
    client: Arc<Client>,
    /// The resources of the leader; `None` while the connection rests.
    work: Mutex<Option<Work>>,
    /// State that the last leader left because the server paused.
    parked: Mutex<Parked>,
    /// Held by the sending thread while it sends one or more whole messages.
    sending: Mutex<Unsent>,
    /// The last field, so that it is dropped last.
    keeper: G,
}

/// Messages for which the peer's socket had no room while the server paused.
#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// Reserved memory, at least as much as the bytes take.
    taken: Vec<Taken>,
}

impl Unsent {
    fn keep(&mut self, bytes: &[u8], taken: Option<Taken>) {
        self.bytes.extend_from_slice(bytes);
        self.taken.extend(taken);
    }

    /// Removes the bytes that were sent: all but the last `left_bytes`.
    fn sent(&mut self, left_bytes: usize) {
        if left_bytes == 0 {
            *self = Self::default();
        } else {
            self.bytes.drain(..self.bytes.len() - left_bytes);
        }
    }
}

/// The resources that a connection holds while it works.
struct Work {
    /// Counts the leader. Must be dropped before the memory is released.
    _working: Working,
    /// The reservation for the leader and its buffers.
    _taken: Option<Taken>,
}

impl<T: Transport, G: Keeper<T>> Connection<T, G> {
    /// Creates a connection that rests.
    pub(crate) fn new(transport: Arc<T>, session: Session, common: Arc<Common>, keeper: G) -> Arc<Self> {
        let Limits { threads_per_connection, memory_per_connection_bytes, .. } = common.limits;
        let limits = ClientLimits { threads: threads_per_connection, memory_bytes: memory_per_connection_bytes };
        Arc::new(Self {
            client: Client::of_access(&common.executor, Arc::clone(&session.access), limits),
            transport,
            session,
            common,
            work: Mutex::default(),
            parked: Mutex::default(),
            sending: Mutex::default(),
            keeper,
        })
    }

    /// Gives the leader's memory back to the account, after its buffers were dropped.
    fn end_work(&self) {
        let work = self.lock_work().take();
        // Buffers are unmapped first.
        self.client.keep_buffers(false);
        self.transport.rest();
        drop(work);
    }

    /// Makes the transport release its buffers if the connection rests or has ended. Called after a
    /// task.
    fn rest_if_idle(&self) {
        if !self.client.is_busy() && self.lock_work().is_none() {
            self.transport.rest();
        }
        if self.has_unsent() {
            // The pause for which it was kept may be over.
            self.keeper.nudge();
        }
    }

    fn lock_work(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn transport(&self) -> &T {
        &self.transport
    }

    pub(crate) fn keeper(&self) -> &G {
        &self.keeper
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns whether the export was removed.
    pub(crate) fn is_closed(&self) -> bool {
        self.session.access.is_closed()
    }

    /// Lets all threads finish their work. If `now`, also closes the stream.
    pub(crate) fn end(&self, now: bool) {
        if now {
            self.transport.shutdown();
        }
        self.client.end();
    }

    /// Returns whether requests must stop waiting for room.
    fn is_ending(&self) -> bool {
        self.common.stopping.load(Ordering::Relaxed) || self.client.has_ended() || self.transport.has_ended()
    }

    fn headers(&self) -> Headers {
        self.session.headers
    }

    fn device(&self) -> Option<Arc<Device>> {
        self.session.access.device()
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Ended> {
        self.send_more(&mut self.sending(), bytes)
    }

    fn sending(&self) -> MutexGuard<'_, Unsent> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends part of a message. The lock of `unsent` keeps other messages from being sent in
    /// between. If the server pauses, keeps what the peer's socket has no room for; without memory
    /// for that, waits for the peer.
    fn send_more(&self, unsent: &mut Unsent, bytes: &[u8]) -> Result<(), Ended> {
        self.send_kept(unsent, &|| self.common.is_pausing())?;
        let lend = || self.common.executor.memory().lend(bytes.len() as u64);
        if !unsent.bytes.is_empty() {
            if let Some(taken) = lend() {
                unsent.keep(bytes, Some(taken));
                return Ok(());
            }
            self.send_kept(unsent, &|| false)?;
        }
        let lent = Cell::new(None);
        let keeps = || {
            let taken = if self.common.is_pausing() { lend() } else { None };
            let keeps = taken.is_some();
            lent.set(taken);
            keeps
        };
        let left = self.deadline(bytes.len()).send_unless(&*self.transport, bytes, &keeps)?;
        if !left.is_empty() {
            unsent.keep(left, lent.take());
        }
        Ok(())
    }

    /// Sends what was kept while the server paused.
    fn send_unsent(&self) -> Result<(), Ended> {
        self.send_kept(&mut self.sending(), &|| self.common.is_pausing())
    }

    /// Sends what was kept; stops where the peer's socket has no room if `stops` returns true.
    fn send_kept(&self, unsent: &mut Unsent, stops: &dyn Fn() -> bool) -> Result<(), Ended> {
        if !unsent.bytes.is_empty() {
            let deadline = self.deadline(unsent.bytes.len());
            let left_bytes = deadline.send_unless(&*self.transport, &unsent.bytes, stops)?.len();
            unsent.sent(left_bytes);
        }
        Ok(())
    }

    /// Continues what another server has begun: `output` is to be sent before anything else.
    pub(crate) fn adopt(&self, parked: Parked, output: Vec<u8>) {
        *self.parked() = parked;
        // It is sent even without memory for it, because the peer waits for it.
        let taken = self.common.executor.memory().lend(output.len() as u64);
        *self.sending() = Unsent { bytes: output, taken: taken.into_iter().collect() };
    }

    /// Returns whether it can continue before data arrive. A thread that is sending now checks
    /// again when it has finished.
    pub(crate) fn is_parked(&self) -> bool {
        !self.parked().is_empty() || self.has_unsent() || self.transport.holds_data()
    }

    /// Returns whether a thread has left unsent bytes. Does not wait for a thread that is sending.
    fn has_unsent(&self) -> bool {
        match self.sending.try_lock() {
            Ok(unsent) => !unsent.bytes.is_empty(),
            Err(TryLockError::Poisoned(poisoned)) => !poisoned.into_inner().bytes.is_empty(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Returns whether threads run requests.
    pub(crate) fn is_busy(&self) -> bool {
        self.client.is_busy()
    }

    /// Returns what another server needs to continue a resting connection, which no thread uses.
    pub(crate) fn hand_over<R>(&self, read: impl FnOnce(&Arc<T>, &Session, &Parked, &[u8]) -> R) -> R {
        read(&self.transport, &self.session, &self.parked(), &self.sending().bytes)
    }

    /// Returns the deadline for a message of `len_bytes`, starting now.
    fn deadline(&self, len_bytes: usize) -> Deadline {
        Deadline::of_message(len_bytes, self.common.limits.io_timeout)
    }
}

/// Ends the connection if its thread unwinds.
struct EndOnUnwind<'a, T: Transport, G: Keeper<T>>(&'a Connection<T, G>);

impl<T: Transport, G: Keeper<T>> Drop for EndOnUnwind<'_, T, G> {
    fn drop(&mut self) {
        self.0.end(true);
    }
}
