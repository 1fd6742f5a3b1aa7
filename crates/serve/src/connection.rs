//! The transmission phase of one connection.
//!
//! One of the connection's threads is its leader. It alone receives:
//!
//! ```text
//! lead:
//!     loop
//!         for each request of which enough lies in the input buffer
//!             small, and the device never blocks: run it now, its reply goes to the output buffer
//!             a large or slow write: send the output buffer; for each piece of the payload, larger ones while others are at work
//!                 receive it; pass the lead on to a follower; write it to the device; become a follower
//!                 whoever is done last with a piece sends the reply
//!             else: send the output buffer; pass the lead on; run it and send its reply, piece by piece; become a follower
//!         send the output buffer
//!         receive as much as there is
//! ```
//!
//! So sixteen requests of 4 KiB that arrived together cost one receive and one send, and no thread
//! is woken; and a slow request holds up none. A change that finds no room is put aside, where the
//! device has such wait (`waiting.rs`). Followers are started when a leader finds none idle, and
//! leave after a while without work. At most one is on its way to the lead at a time; who is done
//! before it comes takes the lead back. The measured gains are in `docs/nbd.md`.
//!
//! Buffers are small until the connection is busy, and small again when it is idle. Where there is
//! no memory for a large one, or for the buffer that a follower needs, the leader runs the request
//! itself, in the small ones: slower, and nobody waits for anybody.

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

/// Data of a request that the leader runs itself.
pub(crate) const INLINE_BYTES: u64 = 128 << 10;
/// Range of a TRIM, WRITE_ZEROES or BLOCK_STATUS that the leader runs itself.
const INLINE_RANGE_BYTES: u64 = 4 << 20;
/// Replies that wait for the input to be drained, of a connection that is not busy.
const SMALL_OUTPUT_BYTES: usize = 16 << 10;
/// The same of a busy one.
const LARGE_OUTPUT_BYTES: usize = 256 << 10;
/// A large request is run in pieces of this size, other replies between them.
const PIECE_BYTES: usize = 256 << 10;
/// A write is run in pieces of this size while other requests are at work, if there is memory. The
/// CPUs are busy then without pieces of one write at the same time, and each piece wakes a thread:
/// a fifth of the time that lz4 takes for 256 KiB.
const LARGE_PIECE_BYTES: usize = 1 << 20;
/// A read whose reply must be in one piece is read whole up to this size before any of it is sent,
/// if there is memory: then an error can be told.
const WHOLE_READ_BYTES: usize = 4 << 20;
/// A follower without work leaves after this time.
const FOLLOWER_IDLE: Duration = Duration::from_secs(1);
/// A connection without requests gives its large buffers back after this time.
const BUFFERS_IDLE: Duration = Duration::from_millis(500);

const _: () = assert!(INLINE_BYTES as usize + EXTENDED_REQUEST_BYTES <= LARGE_INPUT_BYTES);
const _: () = assert!(INLINE_BYTES as usize + REPLY_OVERHEAD_BYTES <= LARGE_OUTPUT_BYTES);

/// What the connections of a server share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) limits: Limits,
    /// The server stops: what has been received is answered, then connections end.
    pub(crate) stopping: AtomicBool,
    pub(crate) memory: Arc<Memory>,
    followers: AtomicUsize,
}

impl Common {
    pub(crate) fn new(limits: Limits, memory: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self { limits, stopping: AtomicBool::new(false), memory, followers: AtomicUsize::new(0) })
    }

    /// Leave for one more thread, until the result is dropped.
    fn follower(self: &Arc<Self>) -> Option<Follower> {
        let more = |followers| (followers < self.limits.threads).then_some(followers + 1);
        self.followers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let mut follower = Follower { common: Arc::clone(self), taken: None };
        follower.taken = Some(self.memory.take(THREAD_BYTES)?);
        Some(follower)
    }
}

/// A thread that counts.
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
    /// Held by whoever sends, from the first byte of a message to the last of another.
    sending: Mutex<()>,
    /// Lives as long as the connection; the last field, so that it is dropped last.
    _guard: G,
}

/// Exactly one thread holds the [`Leader`], or it waits here to be taken.
///
/// While it waits and nothing has ended, a thread is on its way to take it: `waking`, or all
/// threads are at work and the first that is done will.
struct Roles<T> {
    free: Option<Box<Leader<T>>>,
    /// A follower has been woken or started and has not come yet. Until it does, no other needs to
    /// be: with requests that are done sooner than a thread wakes, the thread that passed the lead
    /// on takes it back, and few are woken.
    waking: bool,
    idle: usize,
    threads: usize,
    /// One for each thread but one, which came with the connection. A thread that leaves takes any
    /// of them with it.
    leaves: Vec<Follower>,
    ended: bool,
}

/// What only the leader uses.
struct Leader<T> {
    input: Input<T>,
    output: Replies<Growing>,
    /// Kept while requests are run one after another, and never while the peer is waited for.
    device: Option<Arc<Device>>,
    /// The write whose payload is being received.
    writing: Option<Writing>,
    /// For the request at the front, once a part of it has been received.
    deadline: Option<Deadline>,
    /// By then the connection ends, since its export was removed.
    farewell: Option<Deadline>,
    /// The server stops, and what had come by then has been received.
    drained: bool,
}

/// The rest of a payload.
struct Writing {
    pieces: Arc<Pieces>,
    left_bytes: u64,
    deadline: Deadline,
}

/// What runs while another thread leads.
enum Task {
    Change { pieces: Arc<Pieces>, change: Change<Payload> },
    Read { reading: Reading, replies: Replies<Lent> },
    Other { request: Request, replies: Replies<Lent> },
}

impl<T: Transport, G: Send + Sync + 'static> Connection<T, G> {
    /// Serves the session with the calling thread and followers, until the peer leaves or breaks
    /// the protocol. Other threads may still be at work when this returns; `guard` is dropped when
    /// the last has ended.
    pub(crate) fn serve(transport: Arc<T>, session: Session, common: Arc<Common>, guard: G) -> Result<(), Ended> {
        let leader = Box::new(Leader {
            input: Input::new(Arc::clone(&transport))?,
            output: Replies::new(Growing::new(SMALL_OUTPUT_BYTES)?),
            device: None,
            writing: None,
            deadline: None,
            farewell: None,
            drained: false,
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

    /// The life of each of the connection's threads.
    fn work(self: Arc<Self>) {
        // A device that panics must not leave a connection without a leader.
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

    /// Waits for the lead; `None` when the thread is not needed any more.
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

    /// Leaves the lead to a follower, or to whoever is ready first when all threads are busy.
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
                // Without a follower, this thread takes the lead again when it is done.
                let mut roles = connection.roles.lock().unwrap_or_else(PoisonError::into_inner);
                roles.waking = false;
                roles.threads -= 1;
                roles.leaves.pop();
            }
        }
    }

    /// Lets all threads finish what they run, and nothing more. `now` also closes the stream for
    /// them.
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

    /// Whether a request should wait for room no longer.
    fn is_ending(&self) -> bool {
        self.common.stopping.load(Ordering::Relaxed)
            || self.transport.has_ended()
            || self.roles.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Whether a thread is at work for another request than a write of these pieces, which the
    /// calling thread receives.
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

    /// Sends a part of a message while no other message may come between.
    fn send_more(&self, _sending: &MutexGuard<'_, ()>, bytes: &[u8]) -> Result<(), Ended> {
        Ok(self.deadline(bytes.len()).send_all(&*self.transport, bytes)?)
    }

    /// The time that begins now for a message of `len_bytes`.
    fn deadline(&self, len_bytes: usize) -> Deadline {
        Deadline::of_message(len_bytes, self.common.limits.io_timeout)
    }

    /// Whether the leader runs the request itself.
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
        // Its memory is free for the next piece while the reply is sent.
        drop(change);
        let Some(result) = pieces.done(self.device().as_deref()) else { return Ok(()) };
        let mut replies = Replies::new([0; REPLY_OVERHEAD_BYTES]);
        replies.finish(&pieces.request, self.headers(), result);
        self.send(replies.filled())
    }

    /// Has a change wait for room while this thread goes on, if that is possible.
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
            // The thread may have slept again before it had this.
            waits.signal();
        }
        Ok(())
    }

    /// Tries what was put aside until nothing is left.
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

    /// Has this thread wait for room. The caller has a [`Waiting`](pagefold_disk::Waiting).
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

    /// Answers a read in as many parts as it takes, and leaves nothing in `replies`.
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

/// Ends the connection when its thread unwinds.
struct EndOnUnwind<'a, T: Transport, G: Send + Sync + 'static>(&'a Connection<T, G>);

impl<T: Transport, G: Send + Sync + 'static> Drop for EndOnUnwind<'_, T, G> {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

impl<T: Transport> Leader<T> {
    /// Serves until a request comes that another thread should not wait for, or the peer has left
    /// (`None`).
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
                match self.begin(connection, request)? {
                    Begun::Done => self.deadline = None,
                    Begun::Task(task) => {
                        self.deadline = None;
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

    /// Runs the request at the front of the input, or says why not.
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

    /// Makes a task of the request, or runs it here if there is no memory for one.
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

    /// Receives more of a write's payload: up to a piece, for a task, or all of it, for which there
    /// is no memory and which is written from the input buffer. Ends with `writing` empty, or a
    /// task.
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
                        // The peer had to wait.
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

    /// Makes the output have room for `len_bytes`, or all the room it can.
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

    /// Sends the replies gathered so far, and lets go of the device.
    fn send<G: Send + Sync + 'static>(&mut self, connection: &Connection<T, G>) -> Result<(), Ended> {
        self.device = None;
        if !self.output.filled().is_empty() {
            connection.send(self.output.filled())?;
            self.output.clear();
        }
        Ok(())
    }

    /// Receives what there is; false when the peer, or the server, has ended the connection.
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
            // As for the longest that is run from the input buffer.
            let whole = || connection.deadline(EXTENDED_REQUEST_BYTES + INLINE_BYTES as usize);
            let deadline = *self.deadline.get_or_insert_with(whole);
            return Ok(self.input.receive(deadline.left()?, share)? != 0);
        }
        if connection.common.stopping.load(Ordering::Relaxed) {
            // What came before the stop is received once more. It does not block: the server shuts
            // the socket down.
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
                // A silent peer is waited for while its export is there.
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

    /// Drops the payload of a write that is refused.
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

/// What became of the request at the front of the input.
enum Begun {
    /// It was run, and its reply is sent or in the output.
    Done,
    Task(Task),
    /// More of it has to be received.
    Incomplete,
}

/// Starts a thread of the server.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}
