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
//! waits for storage delays no other. Reads that wait for storage and have something in common run
//! together. If no thread of the executor is free, or without memory for a buffer, the leader runs
//! the request itself, in its small buffers: slower, but without waiting for others.
//!
//! If a change finds no room and the device supports waiting, it is set aside by the executor.
//! `docs/nbd.md` has the measured gains.
//!
//! A connection without requests rests: it gives its thread and buffers up, and its [`Keeper`]
//! resumes it when data arrive. While other connections wait for memory to work, it rests after
//! `TURN` at the latest, between two requests.
//!
//! While the server pauses, no further request begins. The leader stops between two requests or two
//! pieces of a write, and leaves the bytes that it has received and not used; replies for which the
//! peer's socket has no room are kept. Both are sent on, or handed to another server, when the pause
//! ends.

mod batch;
mod common;
mod leader;
mod leading;
mod parked;
mod piece;
mod run;
mod state;
mod task;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, atomic::Ordering, mpsc};

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
/// Replies of one connection that are kept while the server pauses; a thread with a further one waits
/// for the peer.
const MOST_KEPT_BYTES: usize = 64 << 20;
/// Longest range of a TRIM, WRITE_ZEROES or BLOCK_STATUS that the leader runs itself.
const INLINE_RANGE_BYTES: u64 = 4 << 20;

/// What lives as long as a connection, and resumes it when it rests.
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
    /// What the leader holds; `None` while the connection rests.
    work: Mutex<Option<Work>>,
    /// What the last leader left because the server paused.
    parked: Mutex<Parked>,
    /// Held by the sending thread while it sends one or more whole messages. Contains those for which
    /// the peer's socket had no room while the server paused.
    sending: Mutex<Vec<u8>>,
    /// The last field, so that it is dropped last.
    keeper: G,
}

/// What a connection holds while it works.
struct Work {
    /// Counts the leader. Dropped before the memory is released.
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

    /// Releases what the leader held, which has been dropped.
    fn end_work(&self) {
        let work = self.lock_work().take();
        // Buffers are unmapped first.
        self.client.keep_buffers(false);
        self.transport.rest();
        drop(work);
    }

    /// Lets the transport release its buffers if the connection rests or has ended. To be called after
    /// a task.
    fn rest_if_idle(&self) {
        if !self.client.is_busy() && self.lock_work().is_none() {
            self.transport.rest();
        }
        if self.has_unsent() {
            // The pause for which it was kept may have ended.
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

    fn sending(&self) -> MutexGuard<'_, Vec<u8>> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends part of a message. `unsent`, which is locked, keeps other messages from coming in between.
    fn send_more(&self, unsent: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Ended> {
        if unsent.is_empty() {
            let left = self.send_or_keep(0, bytes)?;
            unsent.extend_from_slice(left);
        } else {
            unsent.extend_from_slice(bytes);
            let left_bytes = self.send_or_keep(unsent.len(), unsent)?.len();
            unsent.drain(..unsent.len() - left_bytes);
        }
        Ok(())
    }

    /// Sends what was kept while the server paused.
    fn send_unsent(&self) -> Result<(), Ended> {
        self.send_more(&mut self.sending(), &[])
    }

    /// Sends `bytes`. If the server pauses, stops where the peer's socket has no room, and returns the
    /// rest. There are `kept_bytes` already.
    fn send_or_keep<'a>(&self, kept_bytes: usize, bytes: &'a [u8]) -> Result<&'a [u8], Ended> {
        let keeps = || self.common.is_pausing() && kept_bytes < MOST_KEPT_BYTES;
        Ok(self.deadline(bytes.len()).send_unless(&*self.transport, bytes, &keeps)?)
    }

    /// Continues what another server has begun: `output` is to be sent before anything else.
    pub(crate) fn adopt(&self, parked: Parked, output: Vec<u8>) {
        *self.parked() = parked;
        *self.sending() = output;
    }

    /// Returns whether it can continue without anything that arrives. A thread that is sending at this
    /// moment looks again when it is done.
    pub(crate) fn is_parked(&self) -> bool {
        !self.parked().is_empty() || self.has_unsent() || self.transport.holds_data()
    }

    /// Returns whether a thread that has sent left something; never waits for one that sends.
    fn has_unsent(&self) -> bool {
        match self.sending.try_lock() {
            Ok(unsent) => !unsent.is_empty(),
            Err(TryLockError::Poisoned(poisoned)) => !poisoned.into_inner().is_empty(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Passes what another server needs to continue a connection that rests.
    pub(crate) fn hand_over<R>(&self, read: impl FnOnce(&Arc<T>, &Session, &Parked, &[u8]) -> R) -> R {
        read(&self.transport, &self.session, &self.parked(), &self.sending())
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
