//! The thread of a connection that receives.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use pagefold_executor::{Attempt, Change, Device, Growing, Payload, Storage};

use super::{
    Common, Connection, INLINE_BYTES, Keeper,
    batch::Batch,
    parked::{Parked, Unfinished},
    piece::Piece,
    run::is_small,
    task::Task,
};
use crate::{
    input::{Input, LARGE_INPUT_BYTES, PAUSED, SMALL_INPUT_BYTES, parse},
    negotiate::Ended,
    pieces::{Pieces, to_page_end, whole_change},
    protocol::{EXTENDED_REQUEST_BYTES, Request, command},
    request::{Arrived, REPLY_OVERHEAD_BYTES, Reading, Refusal, Replies, check, is_change, reply_bytes},
    transport::{Deadline, Pace, Transport},
};

/// Output buffer of an idle connection; it collects replies until the input has been processed.
const SMALL_OUTPUT_BYTES: usize = 8 << 10;
/// Output buffer of a busy connection.
const LARGE_OUTPUT_BYTES: usize = 256 << 10;
/// Size of the pieces in which a large request runs; other replies are sent between them.
const PIECE_BYTES: usize = 256 << 10;
/// Size of a write's pieces while CPUs are spare: handing one on costs a tenth of the time that lz4
/// takes for it.
const SPREAD_PIECE_BYTES: usize = 64 << 10;
/// Up to this size, and if there is memory, a reply in one piece is read completely before it is
/// sent, so that an error can still be reported.
const WHOLE_READ_BYTES: usize = 4 << 20;
/// Minimum bytes of requests that are worth sharing between threads; bytes of writes count twice.
const SHARED_BYTES: u64 = 16 << 10;
/// The same for a single request.
const DISPATCHED_BYTES: u64 = 8 << 10;
/// After a batch for which no helper came in time, the next two batches are not shared. Each
/// further such batch doubles that number, up to this power of two.
const MOST_PAUSE: u32 = 6;
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
    /// Reads that must wait for storage, until they are handed on.
    reads: Vec<Reading>,
    /// The device, held while requests run one after another, but never while waiting for the peer.
    device: Option<Arc<Device>>,
    /// The request whose payload the next bytes belong to, while the server pauses.
    unfinished: Option<Unfinished>,
    /// Deadline of the request at the front, once part of it has been received.
    deadline: Option<Deadline>,
    /// When the connection is to end because its export was removed.
    farewell: Option<Deadline>,
    /// The server is stopping, and everything that had arrived before has been received.
    drained: bool,
    /// When the connection began to work.
    since: Instant,
    /// Whether the rate of the export has admitted the request at the front.
    is_paced: bool,
    /// When the rate admits it; `None` once it has.
    turn: Option<Instant>,
    /// The request at the front, once it was seen. Receiving the rest of it counts as part of its
    /// time.
    arrived: Option<Arrived>,
    /// Requests that were begun since the last receive.
    begun: usize,
    /// Batches in a row for which no helper came in time.
    alone: u32,
    /// Batches that will therefore not be shared.
    pause: u32,
}

/// Why a thread stops leading.
pub(super) enum Led {
    /// There are no requests, or other connections wait for memory.
    Idle,
    /// The peer has left, or the server stops.
    End,
    /// The server pauses: the connection has to be [parked](Leader::park).
    Paused,
}

/// The result of receiving.
enum Received {
    Data,
    Idle,
    End,
}

impl Received {
    /// Returns the result of receiving `bytes`.
    fn of(bytes: usize) -> Self {
        if bytes == 0 { Self::End } else { Self::Data }
    }
}

impl<T: Transport> Leader<T> {
    /// Receives from `transport`. `rests`: whether the connection can pause.
    pub(super) fn new(transport: Arc<T>, common: &Arc<Common>, rests: bool) -> io::Result<Self> {
        Ok(Self {
            input: Input::new(transport, common, rests)?,
            output: Replies::new(Growing::new(SMALL_OUTPUT_BYTES)?),
            reads: Vec::new(),
            device: None,
            unfinished: None,
            deadline: None,
            farewell: None,
            drained: false,
            since: Instant::now(),
            is_paced: false,
            turn: None,
            arrived: None,
            begun: 0,
            alone: 0,
            pause: 0,
        })
    }

    /// Continues where a leader has stopped.
    pub(super) fn resume(&mut self, parked: Parked) {
        let Parked { input, unfinished, arrived, is_paced, turn } = parked;
        self.input.replay(input);
        (self.unfinished, self.arrived, self.is_paced, self.turn) = (unfinished, arrived, is_paced, turn);
    }

    /// Takes the state that is left after [`Led::Paused`].
    pub(super) fn park(&mut self) -> Parked {
        let (unfinished, arrived) = (self.unfinished.take(), self.arrived.take());
        let (is_paced, turn) = (self.is_paced, self.turn);
        Parked { input: self.input.take_unconsumed(), unfinished, arrived, is_paced, turn }
    }

    /// Serves until nothing is left to be done.
    pub(super) fn lead<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<Led, Ended> {
        match self.serve(connection) {
            Err(Ended::Io(error)) if error.kind() == PAUSED => {
                self.send(connection)?;
                Ok(Led::Paused)
            }
            result => result,
        }
    }

    fn serve<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<Led, Ended> {
        connection.send_unsent()?;
        if let Some(unfinished) = self.unfinished.take() {
            self.write(connection, unfinished)?;
        }
        loop {
            check_pause(connection)?;
            self.share(connection)?;
            while let Some(request) = self.input.request(connection.headers())? {
                if request.kind == command::DISC {
                    self.send(connection)?;
                    return Ok(Led::End);
                }
                let arrived = *self.arrived.get_or_insert_with(|| Arrived::new(request, &connection.session));
                self.wait_for_turn(connection, &arrived)?;
                check_pause(connection)?;
                match self.begin(connection, arrived)? {
                    Begun::Done => {
                        self.begun += 1;
                        (self.deadline, self.is_paced, self.arrived) = (None, false, None);
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

    /// Runs the requests that have been received whole. If there are several, shares them with
    /// threads that have a spare CPU.
    fn share<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<(), Ended> {
        let headers = connection.headers();
        let header_bytes = headers.request_bytes();
        let unparsed = self.input.unparsed();
        let Ok(Some(first)) = parse(unparsed, headers) else { return Ok(()) };
        let executor = &connection.common.executor;
        if connection.session.access.rate.is_set() || !executor.has_spare_cpu() {
            return Ok(());
        }
        let is_alert = executor.is_alert();
        // A single request goes to a helper if others of the connection are in progress. A
        // connection with one request at a time would only pay for the helper.
        let is_dispatcher = is_alert && connection.client.is_busy();
        let is_single = unparsed.len() as u64 <= first.payload_bytes(headers).saturating_add(header_bytes as u64);
        if is_single && !is_dispatcher {
            return Ok(());
        }
        if self.pause > 0 && !is_alert {
            self.pause -= 1;
            return Ok(());
        }
        let (mut requests, mut at, mut cost_bytes) = (Vec::new(), 0, 0);
        while let Some(Ok(Some(request))) = unparsed.get(at..).map(|bytes| parse(bytes, headers)) {
            let payload_bytes = request.payload_bytes(headers);
            if request.kind == command::DISC || !is_small(&request) || payload_bytes > INLINE_BYTES {
                break;
            }
            let start = at + header_bytes;
            let end = start + payload_bytes as usize;
            if end > unparsed.len() {
                break;
            }
            cost_bytes += match request.kind {
                command::READ => request.len_bytes,
                command::WRITE => 2 * request.len_bytes,
                _ => 0,
            };
            requests.push((request, start..end));
            at = end;
        }
        let is_worth_it = requests.len() >= 2 && cost_bytes >= SHARED_BYTES;
        let is_dispatched = requests.len() == 1 && is_dispatcher && cost_bytes >= DISPATCHED_BYTES;
        if !is_worth_it && !is_dispatched {
            return Ok(());
        }
        let Some(thread) = connection.client.reserve_spare() else { return Ok(()) };
        let has_payload = requests.iter().any(|(_, payload)| !payload.is_empty());
        let input = if has_payload {
            let Some((input, bytes)) = self.input.detach(at, connection.client.share()) else { return Ok(()) };
            for (_, payload) in &mut requests {
                *payload = payload.start + bytes.start..payload.end + bytes.start;
            }
            Some(input)
        } else {
            self.input.consume(at);
            None
        };
        self.make_room(connection, LARGE_OUTPUT_BYTES)?;
        // The first request may have been seen before all of it had arrived.
        let mut front = self.arrived.take();
        let mut arrived = |request| front.take().unwrap_or_else(|| Arrived::new(request, &connection.session));
        let requests = requests.into_iter().map(|(request, payload)| (arrived(request), payload)).collect();
        self.begun += usize::from(!is_dispatched) + 1;
        let batch = thread.share(|in_progress| Batch::new(connection, requests, input, in_progress));
        (self.deadline, self.is_paced) = (None, false);
        if is_dispatched {
            return Ok(());
        }
        let is_alone = batch.run(&mut self.output, &mut self.reads)?;
        if !is_alone {
            (self.alone, self.pause) = (0, 0);
        } else if !is_alert {
            self.alone = (self.alone + 1).min(MOST_PAUSE);
            self.pause = 1 << self.alone;
        }
        Ok(())
    }

    /// Waits until the request at the front may begin at the rate of its export.
    fn wait_for_turn<G: Keeper<T>>(
        &mut self,
        connection: &Arc<Connection<T, G>>,
        request: &Request,
    ) -> Result<(), Ended> {
        let access = &connection.session.access;
        if !std::mem::replace(&mut self.is_paced, true) {
            self.turn = access.rate.begin(cost_bytes(request));
        }
        let Some(start) = self.turn else { return Ok(()) };
        self.send(connection)?;
        // The wait stops early if the connection is to end.
        access
            .rate
            .wait_until(start, &|| access.is_closed() || connection.is_ending() || connection.common.is_pausing());
        // If the server pauses, the request waits for the rest of the time afterwards.
        check_pause(connection)?;
        self.turn = None;
        // The peer had to wait, so its time starts again.
        self.deadline = None;
        Ok(())
    }

    /// Runs the request at the front of the input, or replies why not.
    fn begin<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>, request: Arrived) -> Result<Begun, Ended> {
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
        let device = match device.and_then(|device| check(&request, &connection.session, device).map(|()| device)) {
            Ok(device) => device,
            Err(refusal) => {
                self.input.consume(header_bytes);
                let pieces = Pieces::new(request);
                pieces.fail(refusal);
                self.write(connection, Unfinished { pieces, left_bytes: payload_bytes })?;
                return Ok(Begun::Done);
            }
        };
        let spreads = request.kind == command::WRITE
            && payload_bytes > SPREAD_PIECE_BYTES as u64
            && connection.common.executor.has_spare_cpu();
        if !spreads && is_small(&request) {
            let message_bytes = header_bytes + payload_bytes as usize;
            if let Some(payload) = self.input.unparsed().get(header_bytes..message_bytes) {
                Connection::run_small(connection, request, payload, device, &mut self.output, &mut self.reads)?;
                self.input.consume(message_bytes);
                return Ok(Begun::Done);
            }
            if self.input.fits(message_bytes, connection.client.share()) {
                return Ok(Begun::Incomplete);
            }
        }
        self.send(connection)?;
        self.input.consume(header_bytes);
        match request.kind {
            command::WRITE => {
                let (pieces, left_bytes) = (Pieces::new(request), request.len_bytes);
                self.write(connection, Unfinished { pieces, left_bytes })?;
            }
            command::READ => self.read(connection, request)?,
            _ => {
                let pieces = Pieces::new(request);
                let change = whole_change(&request, Payload::default());
                match (is_change(&request), connection.client.reserve()) {
                    (true, Some(thread)) => Connection::hand_on(connection, thread, Task::Change { pieces, change }),
                    (true, None) => change.finish(Piece::new(connection, pieces)),
                    (false, Some(thread)) => Connection::hand_on(connection, thread, Task::Other(request)),
                    (false, None) => {
                        self.output.execute(&request, &connection.session, connection.device().as_deref());
                    }
                }
            }
        }
        Ok(Begun::Done)
    }

    /// Hands a large read on.
    fn read<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>, request: Arrived) -> Result<(), Ended> {
        let reading = Reading::new(request, connection.headers());
        let lend = |len_bytes| connection.client.share().lend(len_bytes).map(Replies::new);
        let whole = Some(reply_bytes(&request)).filter(|&whole_bytes| whole_bytes <= WHOLE_READ_BYTES);
        let whole = whole.filter(|_| reading.is_in_one_piece()).and_then(lend);
        let piece_bytes = reply_bytes(&request).min(PIECE_BYTES + REPLY_OVERHEAD_BYTES);
        if let Some(thread) = connection.client.reserve()
            && let Some(replies) = whole.or_else(|| lend(piece_bytes))
        {
            Connection::hand_on(connection, thread, Task::LargeRead { reading, replies });
            return Ok(());
        }
        connection.read(reading, &mut self.output)
    }

    /// Receives a large write's payload, piece by piece. Threads with a spare CPU write the pieces;
    /// without one, or without memory for a buffer, this thread does. After a failed write, the
    /// rest of the payload is dropped. Replies once the whole payload was received.
    fn write<G: Keeper<T>>(
        &mut self,
        connection: &Arc<Connection<T, G>>,
        mut unfinished: Unfinished,
    ) -> Result<(), Ended> {
        if let Err(ended) = self.receive_payload(connection, &mut unfinished) {
            // Its header is no longer at the front.
            (self.unfinished, self.arrived, self.is_paced) = (Some(unfinished), None, false);
            return Err(ended);
        }
        let Unfinished { pieces, .. } = unfinished;
        if let Some(result) = pieces.done(connection.device().as_deref()) {
            self.make_room(connection, REPLY_OVERHEAD_BYTES)?;
            self.output.finish(&pieces.request, &connection.session, result);
        }
        Ok(())
    }

    fn receive_payload<G: Keeper<T>>(
        &mut self,
        connection: &Arc<Connection<T, G>>,
        Unfinished { pieces, left_bytes }: &mut Unfinished,
    ) -> Result<(), Ended> {
        let request = pieces.request;
        let mut pace = Pace::begin(connection.common.limits.io_timeout);
        while *left_bytes != 0 {
            check_pause(connection)?;
            if pieces.has_failed() {
                return self.skip(connection, left_bytes);
            }
            let offset = request.offset + (request.len_bytes - *left_bytes);
            let is_spread = connection.common.executor.has_spare_cpu();
            let most_bytes = if is_spread { SPREAD_PIECE_BYTES } else { PIECE_BYTES };
            let piece_bytes = to_page_end(offset, *left_bytes, most_bytes as u64);
            let done_bytes = if let Some(mut payload) = connection.client.share().lend(piece_bytes) {
                self.input.receive_exact(pace.next(piece_bytes), payload.as_mut())?;
                let change = Change::write(offset, Payload::from(payload));
                Self::write_piece(connection, pieces, change);
                piece_bytes
            } else {
                let here_bytes = to_page_end(offset, *left_bytes, self.input.len() as u64);
                let here = self.input.unparsed().get(..here_bytes).unwrap_or_default();
                if here.is_empty() {
                    if self.input.receive(pace.next(SMALL_INPUT_BYTES).left()?, connection.client.share())? == 0 {
                        return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
                    }
                    continue;
                }
                let mut change = Change::write(offset, here);
                let attempt = change.attempt(connection.device().as_deref(), Storage::Wait);
                let result = match attempt {
                    Attempt::Done(result) => result,
                    Attempt::Blocks => Ok(()),
                    Attempt::NoRoom(waits) => {
                        let waiting = waits.begin();
                        let result = connection.client.outlast(&mut change, &waits, &|| connection.is_ending());
                        drop(waiting);
                        // The peer had to wait, so its time starts again.
                        pace = Pace::begin(connection.common.limits.io_timeout);
                        result
                    }
                };
                if let Err(failed) = result {
                    pieces.fail(Refusal::of_change(&failed, &request));
                }
                self.input.consume(here_bytes);
                here_bytes
            };
            pace.done(done_bytes);
            *left_bytes -= done_bytes as u64;
        }
        Ok(())
    }

    /// Writes a piece, or hands it on.
    fn write_piece<G: Keeper<T>>(
        connection: &Arc<Connection<T, G>>,
        pieces: &Arc<Pieces>,
        mut change: Change<Payload>,
    ) {
        let mut thread = connection.client.reserve_spare();
        if thread.is_none() {
            match change.attempt(connection.device().as_deref(), Storage::DoNotWait) {
                Attempt::Done(Ok(())) => return,
                Attempt::Done(Err(failed)) => return pieces.fail(Refusal::of_change(&failed, &pieces.request)),
                Attempt::NoRoom(_) | Attempt::Blocks => thread = connection.client.reserve(),
            }
        }
        let pieces = pieces.hold();
        match thread {
            Some(thread) => Connection::hand_on(connection, thread, Task::Change { pieces, change }),
            None => change.finish(Piece::new(connection, pieces)),
        }
    }

    /// Makes room for `len_bytes` in the output, or as much as possible.
    fn make_room<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>, len_bytes: usize) -> Result<(), Ended> {
        if self.output.room_bytes() < len_bytes {
            let filled = 0..self.output.filled().len();
            self.output.buffer().grow(connection.client.share(), LARGE_OUTPUT_BYTES, filled);
            if self.output.room_bytes() < len_bytes {
                self.send(connection)?;
            }
        }
        Ok(())
    }

    /// Hands on the reads that must wait, sends the collected replies, and releases the device.
    fn send<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<(), Ended> {
        self.device = None;
        Connection::hand_reads_on(connection, &mut self.reads, &mut self.output)?;
        if !self.output.filled().is_empty() {
            connection.send(self.output.filled())?;
            self.output.clear();
        }
        Ok(())
    }

    /// Receives whatever has arrived.
    fn receive<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>) -> Result<Received, Ended> {
        let share = connection.client.share();
        let limits = &connection.common.limits;
        let begun = std::mem::take(&mut self.begun);
        self.input.expect_next(begun <= 1 && !connection.client.is_busy());
        if connection.is_closed() {
            let farewell = self.farewell.get_or_insert_with(|| Deadline::after(limits.stop_grace));
            if farewell.left().is_err() {
                return Ok(Received::End);
            }
        }
        let turn_is_over =
            || G::RESTS && connection.common.executor.memory().is_short() && self.since.elapsed() >= TURN;
        if self.input.len() != 0 {
            // A connection can rest only between two requests, so once its turn is over it receives
            // no more than the rest of the current one.
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
            if turn_is_over() && !connection.transport.holds_data() && !self.input.has_replay() {
                return Ok(Received::Idle);
            }
            let is_short = G::RESTS && connection.common.executor.memory().is_short();
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
    fn missing_bytes<G: Keeper<T>>(&self, connection: &Arc<Connection<T, G>>) -> Result<usize, Ended> {
        let headers = connection.headers();
        let payload_bytes = self.input.request(headers)?.map_or(0, |request| request.payload_bytes(headers));
        let message_bytes = (headers.request_bytes() as u64).saturating_add(payload_bytes);
        Ok(usize::try_from(message_bytes).unwrap_or(usize::MAX).saturating_sub(self.input.len()).max(1))
    }

    /// Drops the payload of a refused request.
    fn skip<G: Keeper<T>>(&mut self, connection: &Arc<Connection<T, G>>, left_bytes: &mut u64) -> Result<(), Ended> {
        let mut pace = Pace::begin(connection.common.limits.io_timeout);
        loop {
            let dropped_bytes = usize::try_from(*left_bytes).unwrap_or(usize::MAX).min(self.input.len());
            self.input.consume(dropped_bytes);
            pace.done(dropped_bytes);
            *left_bytes -= dropped_bytes as u64;
            if *left_bytes == 0 {
                return Ok(());
            }
            check_pause(connection)?;
            self.send(connection)?;
            if self.input.receive(pace.next(SMALL_INPUT_BYTES).left()?, connection.client.share())? == 0 {
                return Err(Ended::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// Returns [`PAUSED`] as an error if the server pauses.
fn check_pause<T: Transport, G: Keeper<T>>(connection: &Connection<T, G>) -> Result<(), Ended> {
    if connection.common.is_pausing() { Err(Ended::Io(PAUSED.into())) } else { Ok(()) }
}

/// The result of trying to run the request at the front of the input.
enum Begun {
    /// It was run or handed on. Its reply has been sent, is in the output, or is left to another
    /// thread.
    Done,
    /// More of it must be received first.
    Incomplete,
}

/// Returns the bytes that a request counts against the rate of its export.
fn cost_bytes(request: &Request) -> u64 {
    match request.kind {
        command::READ | command::WRITE | command::CACHE => request.len_bytes,
        _ => 0,
    }
}
