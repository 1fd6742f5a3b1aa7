//! The transmission phase of one connection.
//!
//! One of the connection's threads is its leader. It alone receives:
//!
//! ```text
//! lead:
//!     loop
//!         for each request that lies whole in the input buffer
//!             small, and the device never blocks: run it now, its reply goes to the output buffer
//!             else: send the output buffer, take room for the request from the pool (wait while it is spent),
//!                   receive the payload; pass the lead on to a follower; run it; send its reply; become a follower
//!         send the output buffer
//!         receive as much as there is
//! ```
//!
//! So sixteen requests of 4 KiB that arrived together cost one receive and one send, and no thread is woken; and a
//! slow request holds up none. Followers are started when a leader finds none idle, and leave after a while without
//! work. At most one is on its way to the lead at a time; who is done before it comes takes the lead back. The measured
//! gains are in `docs/nbd.md`.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use memmap2::MmapMut;
use pagefold_disk::BlockDevice;

use crate::{
    Limits,
    export::Device,
    negotiate::{Ended, Session},
    pool::{Budget, Lent, Pool},
    protocol::{CHUNK_HEADER_BYTES, REQUEST_BYTES, Request, command, command_flag},
    request::{MAX_EXTENTS, REPLY_OVERHEAD_BYTES, Refusal, Replies, check, reply_bytes},
    transport::{Deadline, Transport},
};

/// Data of a request that the leader runs itself.
pub(crate) const INLINE_BYTES: u32 = 128 << 10;
/// Range of a TRIM, WRITE_ZEROES or BLOCK_STATUS that the leader runs itself.
const INLINE_RANGE_BYTES: u32 = 4 << 20;
/// What one receive can bring.
const INPUT_BYTES: usize = 256 << 10;
/// Replies that wait for the input buffer to be drained.
const OUTPUT_BYTES: usize = 256 << 10;
/// A large structured read is sent in chunks of this size, other replies between them.
const PIECE_BYTES: u32 = 256 << 10;
/// A follower without work leaves after this time.
const IDLE: Duration = Duration::from_secs(10);

const _: () = assert!(INLINE_BYTES as usize + REQUEST_BYTES <= INPUT_BYTES);
const _: () = assert!(INLINE_BYTES as usize + REPLY_OVERHEAD_BYTES <= OUTPUT_BYTES);
const _: () = assert!(CHUNK_HEADER_BYTES + 4 + 8 * MAX_EXTENTS <= OUTPUT_BYTES);

/// One connection in transmission, shared by its threads.
pub(crate) struct Connection<T, G> {
    transport: Arc<T>,
    session: Session,
    limits: Limits,
    /// The server stops: what has been received is answered, then the connection ends.
    stopping: Arc<AtomicBool>,
    pool: Arc<Pool>,
    roles: Mutex<Roles>,
    lead_is_free: Condvar,
    /// Held by whoever sends, from the first byte of a message to the last of another.
    sending: Mutex<()>,
    /// Lives as long as the connection; the last field, so that it is dropped last.
    _guard: G,
}

/// Exactly one thread holds the [`Leader`], or it waits here to be taken.
///
/// While it waits and nothing has ended, a thread is on its way to take it: `waking`, or all threads are at work and the
/// first that is done will.
struct Roles {
    free: Option<Box<Leader>>,
    /// A follower has been woken or started and has not come yet. Until it does, no other needs to be: with requests that
    /// are done sooner than a thread wakes, the thread that passed the lead on takes it back, and few are woken.
    waking: bool,
    idle: usize,
    threads: usize,
    ended: bool,
}

/// What only the leader uses.
struct Leader {
    input: Input,
    output: Replies<MmapMut>,
    /// Kept while requests are run one after another, and never while the peer is waited for.
    device: Option<Arc<Device>>,
    /// By then the connection ends, since its export was removed.
    farewell: Option<Deadline>,
    /// The server stops, and what had come by then has been received.
    drained: bool,
}

/// Received bytes: `bytes[start..end]` are to be parsed.
struct Input {
    bytes: MmapMut,
    start: usize,
    end: usize,
    /// For the request at the front, once a part of it has been received.
    deadline: Option<Deadline>,
}

/// A request that runs while another thread leads.
struct Task {
    request: Request,
    payload: Option<Lent>,
    replies: Replies<Lent>,
}

impl Input {
    fn new() -> io::Result<Self> {
        Ok(Self { bytes: MmapMut::map_anon(INPUT_BYTES)?, start: 0, end: 0, deadline: None })
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    fn unparsed(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn request(&self) -> Result<Option<Request>, Ended> {
        match self.unparsed().first_chunk() {
            Some(header) => Ok(Some(Request::parse(header)?)),
            None => Ok(None),
        }
    }

    /// The payload of the request at the front, once all of it is here.
    fn payload(&self, request: &Request) -> Option<&[u8]> {
        self.unparsed().get(REQUEST_BYTES..REQUEST_BYTES + request.len_bytes as usize)
    }

    fn consume(&mut self, len_bytes: usize) {
        self.start += len_bytes.min(self.len());
        self.deadline = None;
    }

    /// Room for more, after what is unparsed has been moved to the front.
    fn room(&mut self) -> &mut [u8] {
        if self.start != 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }
}

impl<T: Transport, G: Send + Sync + 'static> Connection<T, G> {
    /// Serves the session with the calling thread and followers, until the peer leaves or breaks the protocol. Other
    /// threads may still be at work when this returns; `guard` is dropped when the last has ended.
    pub(crate) fn serve(
        transport: Arc<T>,
        session: Session,
        limits: Limits,
        stopping: Arc<AtomicBool>,
        budget: Arc<Budget>,
        guard: G,
    ) -> Result<(), Ended> {
        let output = Replies::new(MmapMut::map_anon(OUTPUT_BYTES)?);
        let leader = Box::new(Leader { input: Input::new()?, output, device: None, farewell: None, drained: false });
        let connection = Arc::new(Self {
            transport,
            session,
            limits,
            stopping,
            pool: Pool::new(Limits::OWN_MEMORY_BYTES, limits.memory_per_connection_bytes, budget),
            roles: Mutex::new(Roles { free: Some(leader), waking: false, idle: 0, threads: 1, ended: false }),
            lead_is_free: Condvar::new(),
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
                    if self.run(task).is_err() {
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
    fn take_lead(&self) -> Option<Box<Leader>> {
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
                return None;
            }
            roles.idle += 1;
            let (after, timeout) = self.lead_is_free.wait_timeout(roles, IDLE).unwrap_or_else(PoisonError::into_inner);
            roles = after;
            roles.waking = false;
            roles.idle -= 1;
            waited = timeout.timed_out();
        }
    }

    /// Leaves the lead to a follower, or to whoever is ready first when all threads are busy.
    fn pass_lead(connection: &Arc<Self>, leader: Box<Leader>) {
        let mut roles = connection.roles.lock().unwrap_or_else(PoisonError::into_inner);
        roles.free = Some(leader);
        if roles.waking {
            return;
        }
        if roles.idle != 0 {
            roles.waking = true;
            drop(roles);
            connection.lead_is_free.notify_one();
        } else if roles.threads < connection.limits.threads_per_connection {
            roles.waking = true;
            roles.threads += 1;
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
            }
        }
    }

    /// Lets all threads finish what they run, and nothing more. `now` also closes the stream for them.
    fn end(&self, now: bool) {
        if now {
            self.transport.shutdown();
        }
        let mut roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
        roles.ended = true;
        roles.free = None;
        drop(roles);
        self.lead_is_free.notify_all();
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Ended> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.deadline(bytes.len()).send_all(&*self.transport, bytes)?)
    }

    /// The time that begins now for a message of `len_bytes`.
    fn deadline(&self, len_bytes: usize) -> Deadline {
        Deadline::of_message(len_bytes, self.limits.io_timeout)
    }

    /// Receives some bytes; 0 is the end. A silent peer is waited for while its export is there.
    fn recv_any(&self, buf: &mut [u8], farewell: &mut Option<Deadline>) -> io::Result<usize> {
        while !self.session.access.is_closed() {
            match self.transport.recv(buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The timeout may be what was left of a deadline; without a change this would be busy.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.transport.set_recv_timeout(self.limits.io_timeout)?;
                }
                result => return result,
            }
        }
        let deadline = farewell.get_or_insert_with(|| Deadline::after(self.limits.stop_grace));
        match deadline.recv(&*self.transport, buf) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(0),
            result => result,
        }
    }

    /// Whether the leader runs the request itself.
    fn is_quick(&self, request: &Request, device: &Device) -> bool {
        let limit_bytes = match request.kind {
            command::READ | command::WRITE => INLINE_BYTES,
            command::TRIM | command::WRITE_ZEROES | command::BLOCK_STATUS => INLINE_RANGE_BYTES,
            _ => u32::MAX,
        };
        request.len_bytes <= limit_bytes && !device.may_block()
    }

    /// Whether the reply to the request may come in several chunks.
    fn is_in_pieces(&self, request: &Request) -> bool {
        request.kind == command::READ
            && self.session.structured
            && request.flags & command_flag::DF == 0
            && request.len_bytes > PIECE_BYTES
    }

    fn run(&self, task: Task) -> Result<(), Ended> {
        let Task { request, payload, mut replies } = task;
        if !self.is_in_pieces(&request) {
            match self.session.access.device() {
                Some(device) => {
                    let payload = payload.as_ref().map_or(&[][..], |payload| payload.as_ref());
                    replies.execute(&request, &self.session, &device, payload);
                }
                None => replies.refuse(&request, &self.session, &Refusal::removed()),
            }
            // The payload's memory is free for the next request while this one's reply is sent.
            drop(payload);
            return self.send(replies.filled());
        }
        let mut piece = request;
        let mut left = request.len_bytes;
        while left != 0 {
            piece.len_bytes = left.min(PIECE_BYTES);
            left -= piece.len_bytes;
            let more = match self.session.access.device() {
                Some(device) => replies.execute_piece(&piece, &self.session, &device, left == 0),
                None => {
                    replies.refuse(&piece, &self.session, &Refusal::removed());
                    false
                }
            };
            self.send(replies.filled())?;
            if !more {
                break;
            }
            replies.clear();
            piece.offset += u64::from(piece.len_bytes);
        }
        Ok(())
    }
}

/// Ends the connection when its thread unwinds.
struct EndOnUnwind<'a, T: Transport, G: Send + Sync + 'static>(&'a Connection<T, G>);

impl<T: Transport, G: Send + Sync + 'static> Drop for EndOnUnwind<'_, T, G> {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

impl Leader {
    /// Serves until a request comes that another thread should not wait for, or the peer has left (`None`).
    fn lead<T: Transport, G: Send + Sync + 'static>(
        &mut self,
        connection: &Connection<T, G>,
    ) -> Result<Option<Task>, Ended> {
        let session = &connection.session;
        loop {
            while let Some(request) = self.input.request()? {
                if request.kind == command::DISC {
                    self.send(connection)?;
                    return Ok(None);
                }
                if self.output.room_bytes() < reply_bytes(&request).min(OUTPUT_BYTES) {
                    self.send(connection)?;
                }
                let writes = request.kind == command::WRITE;
                if self.device.is_none() {
                    self.device = session.access.device();
                }
                let device = self.device.as_deref().ok_or_else(Refusal::removed);
                let checked = device.and_then(|device| check(&request, session, device).map(|()| device));
                match checked {
                    Err(refusal) => {
                        self.input.consume(REQUEST_BYTES);
                        if writes {
                            self.skip(connection, request.len_bytes as usize)?;
                        }
                        self.output.refuse(&request, session, &refusal);
                    }
                    Ok(device) if !connection.is_quick(&request, device) => {
                        return self.take_task(connection, request).map(Some);
                    }
                    Ok(device) if writes => {
                        let Some(payload) = self.input.payload(&request) else { break };
                        self.output.execute(&request, session, device, payload);
                        self.input.consume(REQUEST_BYTES + request.len_bytes as usize);
                    }
                    Ok(device) => {
                        self.output.execute(&request, session, device, &[]);
                        self.input.consume(REQUEST_BYTES);
                    }
                }
            }
            self.send(connection)?;
            if !self.receive(connection)? {
                return Ok(None);
            }
        }
    }

    /// Sends the replies gathered so far, and lets go of the device.
    fn send<T: Transport, G: Send + Sync + 'static>(&mut self, connection: &Connection<T, G>) -> Result<(), Ended> {
        self.device = None;
        if !self.output.filled().is_empty() {
            connection.send(self.output.filled())?;
            self.output.clear();
        }
        Ok(())
    }

    /// Receives what there is; false when the peer, or the server, has ended the connection.
    fn receive<T: Transport, G: Send + Sync + 'static>(
        &mut self,
        connection: &Connection<T, G>,
    ) -> Result<bool, Ended> {
        let between_requests = self.input.len() == 0;
        if between_requests && connection.stopping.load(Ordering::Relaxed) {
            // What came before the stop is received once more. It does not block: the server shuts the socket down.
            if self.drained {
                return Ok(false);
            }
            self.drained = true;
        }
        let received = if between_requests {
            connection.recv_any(self.input.room(), &mut self.farewell)?
        } else {
            // As for the longest that is run from the input buffer.
            let whole = || connection.deadline(REQUEST_BYTES + INLINE_BYTES as usize);
            let deadline = *self.input.deadline.get_or_insert_with(whole);
            deadline.recv(&*connection.transport, self.input.room())?
        };
        self.input.end += received;
        Ok(received != 0)
    }

    /// Drops the payload of a write that is refused.
    fn skip<T: Transport, G: Send + Sync + 'static>(
        &mut self,
        connection: &Connection<T, G>,
        mut len_bytes: usize,
    ) -> Result<(), Ended> {
        let deadline = connection.deadline(len_bytes);
        loop {
            let dropped = len_bytes.min(self.input.len());
            self.input.consume(dropped);
            len_bytes -= dropped;
            if len_bytes == 0 {
                return Ok(());
            }
            self.send(connection)?;
            let received = deadline.recv(&*connection.transport, self.input.room())?;
            if received == 0 {
                return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            self.input.end += received;
        }
    }

    /// Makes the request at the front of the input a task: with its memory, and a write with its payload.
    fn take_task<T: Transport, G: Send + Sync + 'static>(
        &mut self,
        connection: &Connection<T, G>,
        request: Request,
    ) -> Result<Task, Ended> {
        self.send(connection)?;
        self.input.consume(REQUEST_BYTES);
        let payload = if request.kind == command::WRITE {
            let mut payload = connection.pool.lend(request.len_bytes as usize)?;
            let (have, missing) = payload.as_mut().split_at_mut(self.input.len().min(request.len_bytes as usize));
            have.copy_from_slice(self.input.unparsed().get(..have.len()).unwrap_or_default());
            self.input.consume(have.len());
            connection.deadline(missing.len()).recv_exact(&*connection.transport, missing)?;
            Some(payload)
        } else {
            None
        };
        let reply_bytes = if connection.is_in_pieces(&request) {
            PIECE_BYTES as usize + REPLY_OVERHEAD_BYTES
        } else {
            reply_bytes(&request)
        };
        Ok(Task { request, payload, replies: Replies::new(connection.pool.lend(reply_bytes)?) })
    }
}

/// Starts a thread of the server.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}
