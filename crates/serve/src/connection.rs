//! The transmission phase of one connection.
//!
//! One of the connection's threads is its leader. Only the leader receives:
//!
//! ```text
//! lead:
//!     loop
//!         for each request of which enough is in the input buffer
//!             small, and the device never blocks: run it now; its reply goes to the output buffer
//!             a large or slow write: send the output buffer; for each piece of the payload
//!                 receive it; pass the lead to a follower; write it to the device;
//!                 become a follower
//!                 the last thread to finish a piece sends the reply
//!             else: send the output buffer; pass the lead; run it and send its reply,
//!                 piece by piece; become a follower
//!         send the output buffer
//!         receive whatever has arrived
//! ```
//!
//! Sixteen requests of 4 KiB that arrive together cost one receive and one send and wake no thread,
//! and a slow request delays no other. Pieces of a write are larger while others are running. If a
//! change finds no room and the device supports waiting, it is set aside (`waiting.rs`). A leader
//! that finds no idle follower starts one; followers exit after being idle for a while. At most one
//! follower is on its way to take the lead; a thread that finishes before it arrives takes the lead
//! back. `docs/nbd.md` has the measured gains.
//!
//! Buffers are small unless the connection is busy. Without memory for a large buffer, or for a
//! follower's buffer, the leader runs the request in the small buffers: slower, but without
//! waiting.
//!
//! A connection without requests rests: it gives its threads and buffers up, and its [`Keeper`]
//! resumes it when data arrive. While other connections wait for memory to work, it rests after
//! `TURN` at the latest, between two requests.

mod leader;

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use pagefold_disk::{BlockDevice, Waits};

use self::leader::{Leader, Led};
use crate::{
    Limits,
    change::{Attempt, Change, Pieces},
    export::Device,
    memory::{Lent, Memory, Share, THREAD_BYTES, Taken},
    negotiate::{Ended, Session},
    protocol::{Headers, Request, command},
    request::{REPLY_OVERHEAD_BYTES, Reading, Refusal, Replies},
    transport::{Deadline, Transport},
    waiting::{ASIDE_BYTES, Aside, Payload, RECHECK, RETRY_PAUSE, Stalled},
};

/// Largest READ or WRITE that the leader runs itself, in bytes.
pub(crate) const INLINE_BYTES: u64 = 128 << 10;
/// Longest range of a TRIM, WRITE_ZEROES or BLOCK_STATUS that the leader runs itself.
const INLINE_RANGE_BYTES: u64 = 4 << 20;
/// A follower exits after being idle for this time.
const FOLLOWER_IDLE: Duration = Duration::from_secs(1);

/// State shared by all connections of a server.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) limits: Limits,
    /// The server is stopping: received requests are answered, then connections end.
    pub(crate) stopping: AtomicBool,
    pub(crate) memory: Arc<Memory>,
    followers: AtomicUsize,
}

impl Common {
    pub(crate) fn new(limits: Limits, memory: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self { limits, stopping: AtomicBool::new(false), memory, followers: AtomicUsize::new(0) })
    }

    /// Reserves one more thread, until the result is dropped. Returns `None` if there are too many
    /// or memory is short.
    fn follower(self: &Arc<Self>) -> Option<Follower> {
        let more = |followers| (followers < self.limits.threads).then_some(followers + 1);
        self.followers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let mut follower = Follower { common: Arc::clone(self), taken: None };
        follower.taken = Some(self.memory.lend(THREAD_BYTES)?);
        Some(follower)
    }
}

/// The reservation of an additional thread.
struct Follower {
    common: Arc<Common>,
    taken: Option<Taken>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.taken = None;
        self.common.followers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What lives as long as a connection, and resumes it when it rests.
pub(crate) trait Keeper<T>: Send + Sync + Sized + 'static {
    /// Whether connections can rest.
    const RESTS: bool;

    /// Calls [`Connection::resume`] when data arrive or the stream ends. Returns `false` if it will
    /// not.
    fn watch(connection: &Arc<Connection<T, Self>>) -> bool;
}

/// Keeps nothing; connections never rest.
impl<T> Keeper<T> for mpsc::Sender<()> {
    const RESTS: bool = false;

    fn watch(_: &Arc<Connection<T, Self>>) -> bool {
        false
    }
}

/// One connection in transmission, shared by its threads.
pub(crate) struct Connection<T, G> {
    transport: Arc<T>,
    session: Session,
    common: Arc<Common>,
    share: Arc<Share>,
    roles: Mutex<Roles<T>>,
    lead_is_free: Condvar,
    /// Changes that wait for room.
    aside: Aside,
    /// Held by the sending thread while it sends one or more whole messages.
    sending: Mutex<()>,
    /// The last field, so that it is dropped last.
    keeper: G,
}

/// A connection that rests has no thread and no [`Leader`]. Otherwise, the leader is held by exactly
/// one thread, or is here to be taken.
///
/// While it is here and the connection lasts, some thread will take it: a follower on its way
/// (`waking`), or if all are busy, the first to finish.
struct Roles<T> {
    free: Option<Box<Leader<T>>>,
    /// A follower has been woken or started and has not arrived yet; until then, no other is woken.
    /// If requests finish sooner than a thread wakes, the one that passed the lead takes it back.
    waking: bool,
    idle: usize,
    threads: usize,
    /// One per thread but the connection's first. An exiting thread removes any one of them.
    leaves: Vec<Follower>,
    /// The reservation for the leader's buffers and the first thread.
    work: Option<Taken>,
    ended: bool,
}

/// Work that runs while another thread leads.
enum Task {
    Change { pieces: Arc<Pieces>, change: Change<Payload> },
    Read { reading: Reading, replies: Replies<Lent> },
    Other { request: Request, replies: Replies<Lent> },
}

impl<T: Transport, G: Keeper<T>> Connection<T, G> {
    /// Creates a connection that rests.
    pub(crate) fn new(transport: Arc<T>, session: Session, common: Arc<Common>, keeper: G) -> Arc<Self> {
        Arc::new(Self {
            transport,
            session,
            share: Share::new(Arc::clone(&common.memory), common.limits.memory_per_connection_bytes),
            common,
            roles: Mutex::new(Roles {
                free: None,
                waking: false,
                idle: 0,
                threads: 0,
                leaves: Vec::new(),
                work: None,
                ended: false,
            }),
            lead_is_free: Condvar::new(),
            aside: Aside::default(),
            sending: Mutex::new(()),
            keeper,
        })
    }

    /// Serves on the calling thread and followers until the peer leaves or violates the protocol, or
    /// until the connection rests. Other threads may still be busy when this returns.
    pub(crate) fn serve(connection: Arc<Self>, work: Option<Taken>) -> io::Result<()> {
        connection.begin_work(work)?;
        connection.work();
        Ok(())
    }

    /// Lets a connection that rests work in a new thread. On failure, it still rests.
    pub(crate) fn resume(connection: &Arc<Self>, work: Taken) -> io::Result<()> {
        connection.begin_work(Some(work))?;
        let body = Arc::clone(connection);
        let spawned = spawn("nbd-connection", move || body.work());
        if spawned.is_err() {
            connection.end_work(&mut connection.roles());
        }
        spawned
    }

    fn begin_work(&self, work: Option<Taken>) -> io::Result<()> {
        let leader = Leader::new(Arc::clone(&self.transport))?;
        let mut roles = self.roles();
        roles.free = Some(Box::new(leader));
        roles.threads = 1;
        roles.work = work;
        Ok(())
    }

    fn end_work(&self, roles: &mut Roles<T>) {
        roles.free = None;
        roles.threads = 0;
        // Buffers are unmapped first.
        self.share.trim();
        roles.work = None;
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

    fn roles(&self) -> MutexGuard<'_, Roles<T>> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Main loop of each of the connection's threads.
    fn work(self: Arc<Self>) {
        // If a device panics, the connection must not be left without a leader.
        let unwinding = EndOnUnwind(&self);
        while let Some(mut leader) = self.take_lead() {
            match leader.lead(&self) {
                Ok(Led::Task(task)) => {
                    Self::pass_lead(&self, leader);
                    if Self::run(&self, task).is_err() {
                        self.end(true);
                    }
                }
                Ok(Led::Idle) => {
                    if Self::rest(&self, leader) {
                        break;
                    }
                }
                Ok(Led::End) => self.end(false),
                Err(_) => self.end(true),
            }
        }
        std::mem::forget(unwinding);
    }

    /// Gives up the lead because there are no requests or others wait for memory. Returns whether
    /// the calling thread must end: the connection rests, or another thread has the lead.
    fn rest(connection: &Arc<Self>, leader: Box<Leader<T>>) -> bool {
        let mut roles = connection.roles();
        if roles.ended {
            return false;
        }
        if roles.threads > 1 {
            roles.free = Some(leader);
            if !connection.common.memory.is_short() {
                return false;
            }
            // The last of the threads lets the connection rest.
            roles.threads -= 1;
            let leave = roles.leaves.pop();
            drop(roles);
            connection.lead_is_free.notify_one();
            drop(leave);
            return true;
        }
        drop(leader);
        connection.end_work(&mut roles);
        drop(roles);
        if G::watch(connection) {
            return true;
        }
        if connection.begin_work(None).is_err() {
            connection.end(true);
        }
        false
    }

    /// Waits for the lead; returns `None` when the thread is no longer needed.
    fn take_lead(&self) -> Option<Box<Leader<T>>> {
        let mut roles = self.roles();
        let mut waited = false;
        loop {
            if !roles.ended
                && let Some(leader) = roles.free.take()
            {
                return Some(leader);
            }
            if roles.ended || waited {
                roles.threads -= 1;
                let leave = roles.leaves.pop();
                drop(roles);
                drop(leave);
                return None;
            }
            roles.idle += 1;
            let (after, timeout) =
                self.lead_is_free.wait_timeout(roles, FOLLOWER_IDLE).unwrap_or_else(PoisonError::into_inner);
            roles = after;
            roles.waking = false;
            roles.idle -= 1;
            waited = timeout.timed_out();
        }
    }

    /// Passes the lead to a follower or, if all are busy, to the first thread that becomes ready.
    fn pass_lead(connection: &Arc<Self>, leader: Box<Leader<T>>) {
        let mut roles = connection.roles.lock().unwrap_or_else(PoisonError::into_inner);
        roles.free = Some(leader);
        if roles.waking {
            return;
        }
        if roles.idle != 0 {
            roles.waking = true;
            drop(roles);
            connection.lead_is_free.notify_one();
        } else if roles.threads < connection.common.limits.threads_per_connection
            && let Some(leave) = connection.common.follower()
        {
            roles.waking = true;
            roles.threads += 1;
            roles.leaves.push(leave);
            drop(roles);
            let follower = Arc::clone(connection);
            let body = move || {
                follower.roles.lock().unwrap_or_else(PoisonError::into_inner).waking = false;
                follower.work();
            };
            if spawn("nbd-follower", body).is_err() {
                // Without a follower, this thread takes the lead back when it is done.
                let mut roles = connection.roles.lock().unwrap_or_else(PoisonError::into_inner);
                roles.waking = false;
                roles.threads -= 1;
                roles.leaves.pop();
            }
        }
    }

    /// Lets all threads finish their work but start no more. If `now`, also closes the stream.
    pub(crate) fn end(&self, now: bool) {
        if now {
            self.transport.shutdown();
        }
        let mut roles = self.roles();
        roles.ended = true;
        roles.free = None;
        drop(roles);
        self.lead_is_free.notify_all();
        self.aside.wake();
    }

    /// Returns whether requests must stop waiting for room.
    fn is_ending(&self) -> bool {
        self.common.stopping.load(Ordering::Relaxed)
            || self.transport.has_ended()
            || self.roles.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Returns whether a thread is busy with a request other than the write of these pieces, whose
    /// payload the calling thread receives.
    fn is_busy_beside(&self, pieces: &Pieces) -> bool {
        let roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
        roles.threads - roles.idle > pieces.holders()
    }

    fn headers(&self) -> Headers {
        self.session.headers
    }

    fn device(&self) -> Option<Arc<Device>> {
        self.session.access.device()
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Ended> {
        self.send_more(&self.sending(), bytes)
    }

    fn sending(&self) -> MutexGuard<'_, ()> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends part of a message. `_sending` keeps other messages from coming in between.
    fn send_more(&self, _sending: &MutexGuard<'_, ()>, bytes: &[u8]) -> Result<(), Ended> {
        Ok(self.deadline(bytes.len()).send_all(&*self.transport, bytes)?)
    }

    /// Returns the deadline for a message of `len_bytes`, starting now.
    fn deadline(&self, len_bytes: usize) -> Deadline {
        Deadline::of_message(len_bytes, self.common.limits.io_timeout)
    }

    /// Returns whether the leader runs the request itself.
    fn is_quick(&self, request: &Request, device: &Device) -> bool {
        let limit_bytes = match request.kind {
            command::READ | command::WRITE => INLINE_BYTES,
            command::TRIM | command::WRITE_ZEROES | command::BLOCK_STATUS => INLINE_RANGE_BYTES,
            _ => u64::MAX,
        };
        request.len_bytes <= limit_bytes && !device.may_block()
    }

    fn run(connection: &Arc<Self>, task: Task) -> Result<(), Ended> {
        match task {
            Task::Change { pieces, mut change } => match change.attempt(connection.device().as_deref()) {
                Attempt::Done(result) => connection.finish(change, &pieces, result),
                Attempt::NoRoom(waits) => Self::put_aside(connection, change, pieces, &waits),
            },
            Task::Read { reading, mut replies } => connection.read(reading, &mut replies),
            Task::Other { request, mut replies } => {
                replies.execute(&request, &connection.session, connection.device().as_deref());
                connection.send(replies.filled())
            }
        }
    }

    /// Ends a piece of a change, and replies if it is the last.
    fn finish<B>(&self, change: Change<B>, pieces: &Pieces, result: Result<(), Refusal>) -> Result<(), Ended> {
        if let Err(refusal) = result {
            pieces.fail(refusal);
        }
        // Its memory is then free for the next piece while the reply is sent.
        drop(change);
        let Some(result) = pieces.done(self.device().as_deref()) else { return Ok(()) };
        let mut replies = Replies::new([0; REPLY_OVERHEAD_BYTES]);
        replies.finish(&pieces.request, self.headers(), result);
        self.send(replies.filled())
    }

    /// Sets a change aside to wait for room; if that is impossible, waits in this thread.
    fn put_aside(
        connection: &Arc<Self>,
        mut change: Change<Payload>,
        pieces: Arc<Pieces>,
        waits: &Arc<Waits>,
    ) -> Result<(), Ended> {
        let waiting = waits.begin();
        let seen = waits.seen();
        if let Attempt::Done(result) = change.attempt(connection.device().as_deref()) {
            return connection.finish(change, &pieces, result);
        }
        let start = || {
            let Some(taken) = connection.common.memory.lend(THREAD_BYTES + ASIDE_BYTES) else { return false };
            let (other, waits) = (Arc::clone(connection), Arc::clone(waits));
            let body = move || {
                let _taken = taken;
                other.wait_for_room(&waits);
            };
            spawn("nbd-waiter", body).is_ok()
        };
        if let Err(stalled) = connection.aside.put(Stalled { change, pieces, waiting }, waits, start) {
            let Stalled { mut change, pieces, waiting } = *stalled;
            let result = connection.outlast(&mut change, waits);
            drop(waiting);
            return connection.finish(change, &pieces, result);
        }
        if waits.seen() != seen {
            // The waiting thread may have gone back to sleep before this change was queued.
            waits.signal();
        }
        Ok(())
    }

    /// Retries the changes that were set aside until none is left.
    fn wait_for_room(&self, waits: &Waits) {
        let unwinding = EndOnUnwind(self);
        let mut held = VecDeque::new();
        while self.aside.gather(&mut held) {
            let seen = waits.seen();
            let ending = self.is_ending();
            let mut left = VecDeque::with_capacity(held.len());
            let mut gained = false;
            for Stalled { mut change, pieces, waiting } in held.drain(..) {
                let result = match change.attempt(self.device().as_deref()) {
                    Attempt::Done(result) => result,
                    Attempt::NoRoom(_) if ending => Err(Refusal::ended()),
                    Attempt::NoRoom(_) => {
                        left.push_back(Stalled { change, pieces, waiting });
                        continue;
                    }
                };
                gained = true;
                drop(waiting);
                if self.finish(change, &pieces, result).is_err() {
                    self.end(true);
                }
            }
            held = left;
            if !gained {
                thread::sleep(RETRY_PAUSE);
                waits.sleep(seen, RECHECK);
            }
        }
        std::mem::forget(unwinding);
    }

    /// Waits for room in this thread. The caller has a [`Waiting`](pagefold_disk::Waiting).
    fn outlast<B: AsRef<[u8]>>(&self, change: &mut Change<B>, waits: &Waits) -> Result<(), Refusal> {
        loop {
            let seen = waits.seen();
            if let Attempt::Done(result) = change.attempt(self.device().as_deref()) {
                return result;
            }
            if self.is_ending() {
                return Err(Refusal::ended());
            }
            thread::sleep(RETRY_PAUSE);
            waits.sleep(seen, RECHECK);
        }
    }

    /// Answers a read in the necessary number of parts, and leaves nothing in `replies`.
    fn read<B: AsRef<[u8]> + AsMut<[u8]>>(&self, mut reading: Reading, replies: &mut Replies<B>) -> Result<(), Ended> {
        let mut sending = None;
        loop {
            let more = reading.fill(replies, self.device().as_deref())?;
            let guard = sending.take().unwrap_or_else(|| self.sending());
            self.send_more(&guard, replies.filled())?;
            replies.clear();
            if !more {
                return Ok(());
            }
            sending = reading.is_in_one_piece().then_some(guard);
        }
    }
}

/// Ends the connection if its thread unwinds.
struct EndOnUnwind<'a, T: Transport, G: Keeper<T>>(&'a Connection<T, G>);

impl<T: Transport, G: Keeper<T>> Drop for EndOnUnwind<'_, T, G> {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

/// Starts a thread of the server.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}
