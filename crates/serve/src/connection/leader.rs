//! The thread of a connection that receives.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Connection, INLINE_BYTES, Keeper, Task};
use crate::{
    change::{Attempt, Change, Pieces, to_page_end},
    export::Device,
    input::{Input, LARGE_INPUT_BYTES, SMALL_INPUT_BYTES},
    memory::Growing,
    negotiate::Ended,
    protocol::{EXTENDED_REQUEST_BYTES, Request, command},
    request::{REPLY_OVERHEAD_BYTES, Reading, Refusal, Replies, check, flush_if_asked, is_change, reply_bytes},
    transport::{Deadline, Pace, Transport},
    waiting::Payload,
};

/// Output buffer of an idle connection; it collects replies until the input has been processed.
const SMALL_OUTPUT_BYTES: usize = 8 << 10;
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
/// A connection without requests rests after this time.
const REST: Duration = Duration::from_millis(500);
/// The same while other connections wait for memory to work.
const REST_IF_SHORT: Duration = Duration::from_millis(1);
/// How long a connection may work while others wait for memory to work.
const TURN: Duration = Duration::from_millis(50);

const _: () = assert!(INLINE_BYTES as usize + EXTENDED_REQUEST_BYTES <= LARGE_INPUT_BYTES);
const _: () = assert!(INLINE_BYTES as usize + REPLY_OVERHEAD_BYTES <= LARGE_OUTPUT_BYTES);

/// State that only the leader uses.
pub(super) struct Leader<T> {
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
    /// When the connection began to work.
    since: Instant,
    /// Whether the request at the front has waited for its turn.
    is_paced: bool,
}

/// The remaining payload of a write.
struct Writing {
    pieces: Arc<Pieces>,
    left_bytes: u64,
    pace: Pace,
}

/// Why a thread stops leading.
pub(super) enum Led {
    /// Another thread has to take over while this one runs the task.
    Task(Task),
    /// There are no requests, or other connections wait for memory.
    Idle,
    /// The peer has left, or the server stops.
    End,
}

/// What came of receiving.
enum Received {
    Data,
    Idle,
    End,
}

impl Received {
    /// Returns what receiving `bytes` means.
    fn of(bytes: usize) -> Self {
        if bytes == 0 { Self::End } else { Self::Data }
    }
}

impl<T: Transport> Leader<T> {
    pub(super) fn new(transport: Arc<T>) -> io::Result<Self> {
        Ok(Self {
            input: Input::new(transport)?,
            output: Replies::new(Growing::new(SMALL_OUTPUT_BYTES)?),
            device: None,
            writing: None,
            deadline: None,
            farewell: None,
            drained: false,
            since: Instant::now(),
            is_paced: false,
        })
    }

    /// Serves until another thread has to take over, or nothing is left to be done.
    pub(super) fn lead<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<Led, Ended> {
        loop {
            if self.writing.is_some()
                && let Some(task) = self.write_more(connection)?
            {
                return Ok(Led::Task(task));
            }
            while let Some(request) = self.input.request(connection.headers())? {
                if request.kind == command::DISC {
                    self.send(connection)?;
                    return Ok(Led::End);
                }
                self.wait_for_turn(connection, &request)?;
                match self.begin(connection, request)? {
                    Begun::Done => (self.deadline, self.is_paced) = (None, false),
                    Begun::Task(task) => {
                        (self.deadline, self.is_paced) = (None, false);
                        return Ok(Led::Task(task));
                    }
                    Begun::Incomplete => break,
                }
            }
            self.send(connection)?;
            match self.receive(connection)? {
                Received::Data => {}
                Received::Idle => return Ok(Led::Idle),
                Received::End => return Ok(Led::End),
            }
        }
    }

    /// Waits until the request at the front may begin at the rate of its export.
    fn wait_for_turn<G: Keeper<T>>(&mut self, connection: &Connection<T, G>, request: &Request) -> Result<(), Ended> {
        let access = &connection.session.access;
        if std::mem::replace(&mut self.is_paced, true) {
            return Ok(());
        }
        let Some(start) = access.rate.begin(request) else { return Ok(()) };
        self.send(connection)?;
        // Nothing that ends the connection waits for this.
        access.rate.wait_until(start, &|| access.is_closed() || connection.is_ending());
        // The peer had to wait, so its time starts again.
        self.deadline = None;
        Ok(())
    }

    /// Runs the request at the front of the input, or replies why not.
    fn begin<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>, request: Request) -> Result<Begun, Ended> {
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
    fn begin_slow<G: Keeper<T>>(
        &mut self,
        connection: &Arc<Connection<T, G>>,
        request: Request,
    ) -> Result<Begun, Ended> {
        self.send(connection)?;
        self.input.consume(connection.headers().request_bytes());
        let lend = |len_bytes| connection.share.lend(len_bytes).map(Replies::new);
        match request.kind {
            command::WRITE => {
                let pieces = Pieces::new(request);
                let pace = Pace::begin(connection.common.limits.io_timeout);
                self.writing = Some(Writing { pieces, left_bytes: request.len_bytes, pace });
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
    fn write_more<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<Option<Task>, Ended> {
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
                self.input.receive_exact(writing.pace.next(piece_bytes), payload.as_mut())?;
                writing.pace.done(piece_bytes);
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
                if self.input.receive(writing.pace.next(SMALL_INPUT_BYTES).left()?, &connection.share)? == 0 {
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
                        writing.pace = Pace::begin(connection.common.limits.io_timeout);
                        result
                    }
                };
                if let Err(refusal) = result {
                    writing.pieces.fail(refusal);
                }
                self.input.consume(here_bytes);
                writing.pace.done(here_bytes);
                writing.left_bytes -= here_bytes as u64;
            }
            self.writing = Some(writing);
        }
        Ok(None)
    }

    /// Makes room for `len_bytes` in the output, or as much as possible.
    fn make_room<G: Keeper<T>>(&mut self, connection: &Connection<T, G>, len_bytes: usize) -> Result<(), Ended> {
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
    fn send<G: Keeper<T>>(&mut self, connection: &Connection<T, G>) -> Result<(), Ended> {
        self.device = None;
        if !self.output.filled().is_empty() {
            connection.send(self.output.filled())?;
            self.output.clear();
        }
        Ok(())
    }

    /// Receives whatever has arrived.
    fn receive<G: Keeper<T>>(&mut self, connection: &Connection<T, G>) -> Result<Received, Ended> {
        let share = &connection.share;
        let limits = &connection.common.limits;
        if connection.is_closed() {
            let farewell = self.farewell.get_or_insert_with(|| Deadline::after(limits.stop_grace));
            if farewell.left().is_err() {
                return Ok(Received::End);
            }
        }
        let turn_is_over = || G::RESTS && connection.common.memory.is_short() && self.since.elapsed() >= TURN;
        if self.input.len() != 0 {
            // A connection with many requests in flight can rest only where one of them ends.
            let most_bytes = if turn_is_over() { self.missing_bytes(connection)? } else { usize::MAX };
            // Allow the time for the longest request that runs from the input buffer.
            let whole = || connection.deadline(EXTENDED_REQUEST_BYTES + INLINE_BYTES as usize);
            let deadline = *self.deadline.get_or_insert_with(whole);
            return Ok(Received::of(self.input.receive_most(most_bytes, deadline.left()?, share)?));
        }
        if connection.common.stopping.load(Ordering::Relaxed) {
            // Data that arrived before the stop are received once more. This does not block: the
            // server shuts the socket down.
            if self.drained {
                return Ok(Received::End);
            }
            self.drained = true;
        }
        loop {
            if turn_is_over() {
                return Ok(Received::Idle);
            }
            let is_short = G::RESTS && connection.common.memory.is_short();
            let has_buffers = self.input.is_large() || self.output.buffer().is_large() || !share.is_empty();
            let timeout = if connection.is_closed() {
                let farewell = self.farewell.get_or_insert_with(|| Deadline::after(limits.stop_grace));
                match farewell.left() {
                    Ok(left) => left,
                    Err(_) => return Ok(Received::End),
                }
            } else if is_short {
                REST_IF_SHORT
            } else if G::RESTS || has_buffers {
                REST.min(limits.io_timeout)
            } else {
                // A silent peer may stay as long as its export exists.
                limits.io_timeout
            };
            match self.input.receive(timeout, share) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.input.shrink();
                    self.output.buffer().shrink();
                    share.trim();
                    if G::RESTS && !connection.is_closed() {
                        return Ok(Received::Idle);
                    }
                }
                result => return Ok(Received::of(result?)),
            }
        }
    }

    /// Returns how many bytes the request at the front lacks, at least 1.
    fn missing_bytes<G: Keeper<T>>(&self, connection: &Connection<T, G>) -> Result<usize, Ended> {
        let headers = connection.headers();
        let payload_bytes = self.input.request(headers)?.map_or(0, |request| request.payload_bytes(headers));
        let message_bytes = (headers.request_bytes() as u64).saturating_add(payload_bytes);
        Ok(usize::try_from(message_bytes).unwrap_or(usize::MAX).saturating_sub(self.input.len()).max(1))
    }

    /// Drops the payload of a refused request.
    fn skip<G: Keeper<T>>(&mut self, connection: &Connection<T, G>, len_bytes: u64) -> Result<(), Ended> {
        let mut left_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let mut pace = Pace::begin(connection.common.limits.io_timeout);
        loop {
            let dropped_bytes = left_bytes.min(self.input.len());
            self.input.consume(dropped_bytes);
            pace.done(dropped_bytes);
            left_bytes -= dropped_bytes;
            if left_bytes == 0 {
                return Ok(());
            }
            self.send(connection)?;
            if self.input.receive(pace.next(SMALL_INPUT_BYTES).left()?, &connection.share)? == 0 {
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
