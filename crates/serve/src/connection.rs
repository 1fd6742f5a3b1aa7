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

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use pagefold_disk::{BlockDevice, Waits};

use crate::{
    Limits,
    change::{Attempt, Change, Pieces, to_page_end},
    export::Device,
    input::{Input, LARGE_INPUT_BYTES},
    memory::{Growing, Lent, Memory, Share, THREAD_BYTES, Taken},
    negotiate::{Ended, Session},
    protocol::{EXTENDED_REQUEST_BYTES, Headers, Request, command},
    request::{REPLY_OVERHEAD_BYTES, Reading, Refusal, Replies, check, flush_if_asked, is_change, reply_bytes},
    transport::{Deadline, Transport},
    waiting::{ASIDE_BYTES, Aside, Payload, RECHECK, RETRY_PAUSE, Stalled},
};

/// Largest READ or WRITE that the leader runs itself, in bytes.
pub(crate) const INLINE_BYTES: u64 = 128 << 10;
/// Longest range of a TRIM, WRITE_ZEROES or BLOCK_STATUS that the leader runs itself.
const INLINE_RANGE_BYTES: u64 = 4 << 20;
/// Output buffer of an idle connection; it collects replies until the input has been processed.
const SMALL_OUTPUT_BYTES: usize = 16 << 10;
/// Output buffer of a busy connection.
const LARGE_OUTPUT_BYTES: usize = 256 << 10;
/// Size of the pieces in which a large request runs; other replies are sent between them.
const PIECE_BYTES: usize = 256 << 10;
/// Size of a write's pieces while other requests keep the CPUs busy, if there is memory: each piece
/// wakes a thread, which costs a fifth of the time that lz4 takes for 256 KiB.
const LARGE_PIECE_BYTES: usize = 1 << 20;
/// A reply in one piece is read completely before it is sent, so that an error can be reported, up
/// to this size and if there is memory.
const WHOLE_READ_BYTES: usize = 4 << 20;
/// A follower exits after being idle for this time.
const FOLLOWER_IDLE: Duration = Duration::from_secs(1);
/// A connection without requests returns its large buffers after this time.
const BUFFERS_IDLE: Duration = Duration::from_millis(500);

const _: () = assert!(INLINE_BYTES as usize + EXTENDED_REQUEST_BYTES <= LARGE_INPUT_BYTES);
const _: () = assert!(INLINE_BYTES as usize + REPLY_OVERHEAD_BYTES <= LARGE_OUTPUT_BYTES);

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
        follower.taken = Some(self.memory.take(THREAD_BYTES)?);
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
    /// Lives as long as the connection. The last field, so that it is dropped last.
    _guard: G,
}

/// The [`Leader`] is held by exactly one thread, or is here to be taken.
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
    ended: bool,
}

/// State that only the leader uses.
struct Leader<T> {
    input: Input<T>,
    output: Replies<Growing>,
    /// Held while requests run one after another, but never while waiting for the peer.
    device: Option<Arc<Device>>,
    /// The write whose payload is being received.
    writing: Option<Writing>,
    /// Deadline of the request at the front, once part of it has been received.
    deadline: Option<Deadline>,
    /// When the connection ends after its export was removed.
    farewell: Option<Deadline>,
    /// The server is stopping, and everything that had arrived before has been received.
    drained: bool,
    /// Whether the request at the front has waited for its turn.
    is_paced: bool,
}

/// The remaining payload of a write.
struct Writing {
    pieces: Arc<Pieces>,
    left_bytes: u64,
    deadline: Deadline,
}

/// Work that runs while another thread leads.
enum Task {
    Change { pieces: Arc<Pieces>, change: Change<Payload> },
    Read { reading: Reading, replies: Replies<Lent> },
    Other { request: Request, replies: Replies<Lent> },
}

impl<T: Transport, G: Send + Sync + 'static> Connection<T, G> {
    /// Serves the session on the calling thread and followers until the peer leaves or violates the
    /// protocol. Other threads may still be busy when this returns. `guard` is dropped when the
    /// last thread has ended.
    pub(crate) fn serve(transport: Arc<T>, session: Session, common: Arc<Common>, guard: G) -> Result<(), Ended> {
        let leader = Box::new(Leader {
            input: Input::new(Arc::clone(&transport))?,
            output: Replies::new(Growing::new(SMALL_OUTPUT_BYTES)?),
            device: None,
            writing: None,
            deadline: None,
            farewell: None,
            drained: false,
            is_paced: false,
        });
        let connection = Arc::new(Self {
            transport,
            session,
            share: Share::new(Arc::clone(&common.memory), common.limits.memory_per_connection_bytes),
            common,
            roles: Mutex::new(Roles {
                free: Some(leader),
                waking: false,
                idle: 0,
                threads: 1,
                leaves: Vec::new(),
                ended: false,
            }),
            lead_is_free: Condvar::new(),
            aside: Aside::default(),
            sending: Mutex::new(()),
            _guard: guard,
        });
        connection.work();
        Ok(())
    }

    /// Main loop of each of the connection's threads.
    fn work(self: Arc<Self>) {
        // If a device panics, the connection must not be left without a leader.
        let unwinding = EndOnUnwind(&self);
        while let Some(mut leader) = self.take_lead() {
            match leader.lead(&self) {
                Ok(Some(task)) => {
                    Self::pass_lead(&self, leader);
                    if Self::run(&self, task).is_err() {
                        self.end(true);
                    }
                }
                Ok(None) => self.end(false),
                Err(_) => self.end(true),
            }
        }
        std::mem::forget(unwinding);
    }

    /// Waits for the lead; returns `None` when the thread is no longer needed.
    fn take_lead(&self) -> Option<Box<Leader<T>>> {
        let mut roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn end(&self, now: bool) {
        if now {
            self.transport.shutdown();
        }
        let mut roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
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
            let Some(taken) = connection.common.memory.take(THREAD_BYTES + ASIDE_BYTES) else { return false };
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
struct EndOnUnwind<'a, T: Transport, G: Send + Sync + 'static>(&'a Connection<T, G>);

impl<T: Transport, G: Send + Sync + 'static> Drop for EndOnUnwind<'_, T, G> {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

impl<T: Transport> Leader<T> {
    /// Serves until another thread has to take over (returns the task to run), or until the peer
    /// has left or the server stops (returns `None`).
    fn lead<G: Send + Sync + 'static>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<Option<Task>, Ended> {
        loop {
            if self.writing.is_some()
                && let Some(task) = self.write_more(connection)?
            {
                return Ok(Some(task));
            }
            while let Some(request) = self.input.request(connection.headers())? {
                if request.kind == command::DISC {
                    self.send(connection)?;
                    return Ok(None);
                }
                self.pace(connection, &request)?;
                match self.begin(connection, request)? {
                    Begun::Done => (self.deadline, self.is_paced) = (None, false),
                    Begun::Task(task) => {
                        (self.deadline, self.is_paced) = (None, false);
                        return Ok(Some(task));
                    }
                    Begun::Incomplete => break,
                }
            }
            self.send(connection)?;
            if !self.receive(connection)? {
                return Ok(None);
            }
        }
    }

    /// Waits until the request at the front may begin at the rate of its export.
    fn pace<G: Send + Sync + 'static>(
        &mut self,
        connection: &Connection<T, G>,
        request: &Request,
    ) -> Result<(), Ended> {
        let access = &connection.session.access;
        if std::mem::replace(&mut self.is_paced, true) {
            return Ok(());
        }
        let Some(start) = access.pace.begin(request) else { return Ok(()) };
        self.send(connection)?;
        // Nothing that ends the connection waits for this.
        access.pace.wait_until(start, &|| access.is_closed() || connection.is_ending());
        // The peer had to wait, so its time starts again.
        self.deadline = None;
        Ok(())
    }

    /// Runs the request at the front of the input, or replies why not.
    fn begin<G: Send + Sync + 'static>(
        &mut self,
        connection: &Arc<Connection<T, G>>,
        request: Request,
    ) -> Result<Begun, Ended> {
        let headers = connection.headers();
        let header_bytes = headers.request_bytes();
        let payload_bytes = request.payload_bytes(headers);
        if payload_bytes > u64::from(u32::MAX) {
            return Err(Ended::PayloadTooBig(payload_bytes));
        }
        self.make_room(connection, reply_bytes(&request))?;
        if self.device.is_none() {
            self.device = connection.device();
        }
        let device = self.device.as_deref().ok_or_else(Refusal::removed);
        let checked = device.and_then(|device| check(&request, &connection.session, device).map(|()| device));
        match checked {
            Err(refusal) => {
                self.input.consume(header_bytes);
                self.skip(connection, payload_bytes)?;
                self.output.refuse(&request, headers, &refusal);
                Ok(Begun::Done)
            }
            Ok(device) if !connection.is_quick(&request, device) => self.begin_slow(connection, request),
            Ok(device) if request.kind == command::READ => {
                self.input.consume(header_bytes);
                let mut reading = Reading::new(request, headers);
                if reading.fill(&mut self.output, Some(device))? {
                    self.device = None;
                    connection.read(reading, &mut self.output)?;
                }
                Ok(Begun::Done)
            }
            Ok(device) => {
                let message_bytes = header_bytes + payload_bytes as usize;
                if let Some(payload) = self.input.unparsed().get(header_bytes..message_bytes) {
                    if is_change(&request) {
                        match Change::new(request, request.offset, payload).attempt(Some(device)) {
                            Attempt::Done(result) => {
                                let result = result.and_then(|()| flush_if_asked(&request, Some(device)));
                                self.output.finish(&request, headers, result);
                            }
                            Attempt::NoRoom(_) => return self.begin_slow(connection, request),
                        }
                    } else {
                        self.output.execute(&request, &connection.session, Some(device));
                    }
                    self.input.consume(message_bytes);
                    return Ok(Begun::Done);
                }
                if self.input.fits(message_bytes, &connection.share) {
                    return Ok(Begun::Incomplete);
                }
                self.begin_slow(connection, request)
            }
        }
    }

    /// Turns the request into a task, or runs it here if there is no memory for a task.
    fn begin_slow<G: Send + Sync + 'static>(
        &mut self,
        connection: &Arc<Connection<T, G>>,
        request: Request,
    ) -> Result<Begun, Ended> {
        self.send(connection)?;
        self.input.consume(connection.headers().request_bytes());
        let lend = |len_bytes| connection.share.lend(len_bytes).map(Replies::new);
        match request.kind {
            command::WRITE => {
                let deadline = connection.deadline(request.len_bytes as usize);
                let pieces = Pieces::new(request);
                self.writing = Some(Writing { pieces, left_bytes: request.len_bytes, deadline });
                Ok(self.write_more(connection)?.map_or(Begun::Done, Begun::Task))
            }
            command::READ => {
                let reading = Reading::new(request, connection.headers());
                let whole = Some(reply_bytes(&request)).filter(|&whole_bytes| whole_bytes <= WHOLE_READ_BYTES);
                let whole = whole.filter(|_| reading.is_in_one_piece()).and_then(lend);
                let piece_bytes = reply_bytes(&request).min(PIECE_BYTES + REPLY_OVERHEAD_BYTES);
                if let Some(replies) = whole.or_else(|| lend(piece_bytes)) {
                    return Ok(Begun::Task(Task::Read { reading, replies }));
                }
                connection.read(reading, &mut self.output)?;
                Ok(Begun::Done)
            }
            command::TRIM | command::WRITE_ZEROES => {
                let change = Change::new(request, request.offset, Payload(None));
                Ok(Begun::Task(Task::Change { pieces: Pieces::new(request), change }))
            }
            _ => {
                if let Some(replies) = lend(reply_bytes(&request)) {
                    return Ok(Begun::Task(Task::Other { request, replies }));
                }
                self.output.execute(&request, &connection.session, connection.device().as_deref());
                Ok(Begun::Done)
            }
        }
    }

    /// Receives more of a write's payload. With memory for a buffer, returns a task for one piece.
    /// Otherwise, writes from the input buffer, without a task. On return, there is a task or
    /// `writing` is `None`.
    fn write_more<G: Send + Sync + 'static>(
        &mut self,
        connection: &Arc<Connection<T, G>>,
    ) -> Result<Option<Task>, Ended> {
        while let Some(mut writing) = self.writing.take() {
            let request = writing.pieces.request;
            if writing.pieces.has_failed() {
                self.skip(connection, writing.left_bytes)?;
                writing.left_bytes = 0;
            }
            if writing.left_bytes == 0 {
                if let Some(result) = writing.pieces.done(connection.device().as_deref()) {
                    self.make_room(connection, REPLY_OVERHEAD_BYTES)?;
                    self.output.finish(&request, connection.headers(), result);
                }
                return Ok(None);
            }
            let offset = request.offset + (request.len_bytes - writing.left_bytes);
            let lend = |most_bytes: usize| {
                let piece_bytes = to_page_end(offset, writing.left_bytes, most_bytes as u64);
                connection.share.lend(piece_bytes).map(|payload| (piece_bytes, payload))
            };
            let large = connection.is_busy_beside(&writing.pieces).then(|| lend(LARGE_PIECE_BYTES)).flatten();
            if let Some((piece_bytes, mut payload)) = large.or_else(|| lend(PIECE_BYTES)) {
                self.input.receive_exact(writing.deadline, payload.as_mut())?;
                writing.left_bytes -= piece_bytes as u64;
                let change = Change::new(request, offset, Payload(Some(payload)));
                if writing.left_bytes == 0 {
                    return Ok(Some(Task::Change { pieces: writing.pieces, change }));
                }
                let pieces = writing.pieces.hold();
                self.writing = Some(writing);
                return Ok(Some(Task::Change { pieces, change }));
            }
            let here_bytes = to_page_end(offset, writing.left_bytes, self.input.len() as u64);
            let here = self.input.unparsed().get(..here_bytes).unwrap_or_default();
            if here.is_empty() {
                if self.input.receive(writing.deadline.left()?, &connection.share)? == 0 {
                    return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
                }
            } else {
                let mut change = Change::new(request, offset, here);
                let result = match change.attempt(connection.device().as_deref()) {
                    Attempt::Done(result) => result,
                    Attempt::NoRoom(waits) => {
                        let waiting = waits.begin();
                        let result = connection.outlast(&mut change, &waits);
                        drop(waiting);
                        // The peer had to wait, so its time starts again.
                        writing.deadline = connection.deadline(writing.left_bytes as usize);
                        result
                    }
                };
                if let Err(refusal) = result {
                    writing.pieces.fail(refusal);
                }
                self.input.consume(here_bytes);
                writing.left_bytes -= here_bytes as u64;
            }
            self.writing = Some(writing);
        }
        Ok(None)
    }

    /// Makes room for `len_bytes` in the output, or as much as possible.
    fn make_room<G: Send + Sync + 'static>(
        &mut self,
        connection: &Connection<T, G>,
        len_bytes: usize,
    ) -> Result<(), Ended> {
        if self.output.room_bytes() < len_bytes {
            let filled = 0..self.output.filled().len();
            self.output.buffer().grow(&connection.share, LARGE_OUTPUT_BYTES, filled);
            if self.output.room_bytes() < len_bytes {
                self.send(connection)?;
            }
        }
        Ok(())
    }

    /// Sends the collected replies and releases the device.
    fn send<G: Send + Sync + 'static>(&mut self, connection: &Connection<T, G>) -> Result<(), Ended> {
        self.device = None;
        if !self.output.filled().is_empty() {
            connection.send(self.output.filled())?;
            self.output.clear();
        }
        Ok(())
    }

    /// Receives whatever has arrived. Returns `false` if either side has ended the connection.
    fn receive<G: Send + Sync + 'static>(&mut self, connection: &Connection<T, G>) -> Result<bool, Ended> {
        let share = &connection.share;
        let limits = &connection.common.limits;
        if connection.session.access.is_closed() {
            let farewell = self.farewell.get_or_insert_with(|| Deadline::after(limits.stop_grace));
            if farewell.left().is_err() {
                return Ok(false);
            }
        }
        if self.input.len() != 0 {
            // Allow the time for the longest request that runs from the input buffer.
            let whole = || connection.deadline(EXTENDED_REQUEST_BYTES + INLINE_BYTES as usize);
            let deadline = *self.deadline.get_or_insert_with(whole);
            return Ok(self.input.receive(deadline.left()?, share)? != 0);
        }
        if connection.common.stopping.load(Ordering::Relaxed) {
            // Data that arrived before the stop are received once more. This does not block: the
            // server shuts the socket down.
            if self.drained {
                return Ok(false);
            }
            self.drained = true;
        }
        loop {
            let is_large = self.input.is_large() || self.output.buffer().is_large() || !share.is_empty();
            let timeout = if connection.session.access.is_closed() {
                let farewell = self.farewell.get_or_insert_with(|| Deadline::after(limits.stop_grace));
                match farewell.left() {
                    Ok(left) => left,
                    Err(_) => return Ok(false),
                }
            } else if is_large {
                BUFFERS_IDLE.min(limits.io_timeout)
            } else {
                // A silent peer may stay as long as its export exists.
                limits.io_timeout
            };
            match self.input.receive(timeout, share) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.input.shrink();
                    self.output.buffer().shrink();
                    share.trim();
                }
                result => return Ok(result? != 0),
            }
        }
    }

    /// Drops the payload of a refused request.
    fn skip<G: Send + Sync + 'static>(&mut self, connection: &Connection<T, G>, len_bytes: u64) -> Result<(), Ended> {
        let mut left_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let deadline = connection.deadline(left_bytes);
        loop {
            let dropped_bytes = left_bytes.min(self.input.len());
            self.input.consume(dropped_bytes);
            left_bytes -= dropped_bytes;
            if left_bytes == 0 {
                return Ok(());
            }
            self.send(connection)?;
            if self.input.receive(deadline.left()?, &connection.share)? == 0 {
                return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// The result of trying to run the request at the front of the input.
enum Begun {
    /// It was run. Its reply has been sent or is in the output.
    Done,
    Task(Task),
    /// More of it must be received first.
    Incomplete,
}

/// Starts a thread of the server.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}
