//! Data that a connection has received and not parsed yet.

use std::{
    io,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use pagefold_executor::{Growing, Lent, Polling, Share};
use rustix::thread::sched_yield;

use crate::{
    connection::Common,
    protocol::{Headers, Malformed, Request},
    transport::{Deadline, TICK, Transport},
};

/// Room for a request of 4 KiB with its payload, or for hundreds without payloads.
pub(crate) const SMALL_INPUT_BYTES: usize = 8 << 10;
/// Bytes that one receive can return while the connection is busy.
pub(crate) const LARGE_INPUT_BYTES: usize = 256 << 10;

/// Received bytes: `buffer[start..end]` have not been parsed.
pub(crate) struct Input<T> {
    source: Source<T>,
    buffer: Growing,
    start: usize,
    end: usize,
}

/// Where bytes are received from.
struct Source<T> {
    transport: Arc<T>,
    common: Arc<Common>,
    /// The longest wait between two checks whether the server pauses.
    tick: Duration,
    /// Bytes that were received and given back, to be received again before those of the transport.
    /// The first `replayed_bytes` of them have been.
    replay: Vec<u8>,
    replayed_bytes: usize,
    /// The transport's current receive timeout. Setting it costs a system call, so a timeout
    /// shorter than needed stays in place until it expires.
    armed: Option<Duration>,
    /// Whether the client seems to wait for each reply. If so, polling briefly for its next request
    /// is worthwhile.
    is_expected: bool,
    polling: Polling,
}

/// The error of a thread that would wait for the peer while the server pauses. Nothing that was received
/// is lost.
pub(crate) const PAUSED: io::ErrorKind = io::ErrorKind::WouldBlock;

impl<T: Transport> Input<T> {
    /// Receives from `transport`. `rests` says whether the connection can pause.
    pub(crate) fn new(transport: Arc<T>, common: &Arc<Common>, rests: bool) -> io::Result<Self> {
        let source = Source {
            transport,
            common: Arc::clone(common),
            tick: if rests { TICK } else { Duration::MAX },
            replay: Vec::new(),
            replayed_bytes: 0,
            armed: None,
            is_expected: false,
            polling: Polling::default(),
        };
        Ok(Self { source, buffer: Growing::new(SMALL_INPUT_BYTES)?, start: 0, end: 0 })
    }

    /// Receives `bytes` before all others.
    pub(crate) fn replay(&mut self, bytes: Vec<u8>) {
        (self.source.replay, self.source.replayed_bytes) = (bytes, 0);
    }

    /// Returns whether bytes can be received without the transport.
    pub(crate) fn has_replay(&self) -> bool {
        self.source.has_left()
    }

    /// Takes all bytes that have not been consumed.
    pub(crate) fn take_unconsumed(&mut self) -> Vec<u8> {
        let mut bytes = self.unparsed().to_vec();
        bytes.extend_from_slice(self.source.left());
        self.consume(self.len());
        self.replay(Vec::new());
        bytes
    }

    /// Sets whether the client seems to wait for each reply before it sends its next request.
    pub(crate) fn expect_next(&mut self, is_expected: bool) {
        self.source.is_expected = is_expected;
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns the bytes that have been received and not consumed.
    pub(crate) fn unparsed(&self) -> &[u8] {
        self.buffer.as_ref().get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the request at the front, once its header has been received.
    pub(crate) fn request(&self, headers: Headers) -> Result<Option<Request>, Malformed> {
        parse(self.unparsed(), headers)
    }

    pub(crate) fn consume(&mut self, len_bytes: usize) {
        self.start += len_bytes.min(self.len());
    }

    /// Moves bytes to the front of `target` and returns their number.
    pub(crate) fn take(&mut self, target: &mut [u8]) -> usize {
        let count = self.len().min(target.len());
        if let (Some(target), Some(unparsed)) = (target.get_mut(..count), self.unparsed().get(..count)) {
            target.copy_from_slice(unparsed);
        }
        self.consume(count);
        count
    }

    /// Returns whether `len_bytes` fit. If needed and memory allows, the buffer grows first.
    pub(crate) fn fits(&mut self, len_bytes: usize, share: &Arc<Share>) -> bool {
        if len_bytes > self.buffer.as_ref().len() {
            self.grow(share);
        }
        len_bytes <= self.buffer.as_ref().len()
    }

    fn grow(&mut self, share: &Arc<Share>) {
        if self.buffer.grow(share, LARGE_INPUT_BYTES, self.start..self.end) {
            self.end -= self.start;
            self.start = 0;
        }
    }

    pub(crate) fn is_large(&self) -> bool {
        self.buffer.is_large()
    }

    /// Takes the buffer with the first `len_bytes` that have not been parsed, and returns it with
    /// their range. Returns `None`, and changes nothing, if the buffer is the small one, or if
    /// there is no memory for the bytes received after them.
    pub(crate) fn detach(&mut self, len_bytes: usize, share: &Arc<Share>) -> Option<(Lent, Range<usize>)> {
        let bytes = self.start..self.start + len_bytes.min(self.len());
        let buffer = self.buffer.replace(share, bytes.end..self.end)?;
        (self.start, self.end) = (0, self.end - bytes.end);
        Some((buffer, bytes))
    }

    /// Returns the large buffer, but only if everything has been parsed.
    pub(crate) fn shrink(&mut self) {
        if self.len() == 0 {
            self.buffer.shrink();
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives some bytes after the unparsed ones; 0 means the end of the stream. Fails with
    /// [`io::ErrorKind::TimedOut`] after `timeout`.
    pub(crate) fn receive(&mut self, timeout: Duration, share: &Arc<Share>) -> io::Result<usize> {
        self.receive_most(usize::MAX, timeout, share)
    }

    /// Like `receive`, for at most `most_bytes`.
    pub(crate) fn receive_most(
        &mut self,
        most_bytes: usize,
        timeout: Duration,
        share: &Arc<Share>,
    ) -> io::Result<usize> {
        if self.start != 0 {
            self.buffer.as_mut().copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.as_mut().get_mut(self.end..).unwrap_or_default();
        let most_bytes = room.len().min(most_bytes);
        let room = room.get_mut(..most_bytes).unwrap_or_default();
        let received = self.source.receive(timeout, room)?;
        self.end += received;
        if self.end == self.buffer.as_ref().len() {
            // The buffer was filled, so more data may arrive together next time.
            self.grow(share);
        }
        Ok(received)
    }

    /// Fills `target` before the deadline, first from the unparsed bytes. After a failure, the
    /// bytes that it took are received again.
    pub(crate) fn receive_exact(&mut self, deadline: Deadline, target: &mut [u8]) -> io::Result<()> {
        let mut filled = self.take(target);
        while let Some(rest @ [_, ..]) = target.get_mut(filled..) {
            match deadline.left().and_then(|left| self.source.receive(left, rest)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => filled += received,
                Err(error) => {
                    let mut again = target.get(..filled).unwrap_or_default().to_vec();
                    again.extend_from_slice(self.source.left());
                    self.replay(again);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Returns the request at the start of `bytes`, if its header is there.
pub(crate) fn parse(bytes: &[u8], headers: Headers) -> Result<Option<Request>, Malformed> {
    match headers {
        Headers::Extended => bytes.first_chunk().map(Request::parse_extended).transpose(),
        Headers::Simple | Headers::Structured => bytes.first_chunk().map(Request::parse).transpose(),
    }
}

impl<T: Transport> Source<T> {
    /// Returns the bytes that are to be received again.
    fn left(&self) -> &[u8] {
        self.replay.get(self.replayed_bytes..).unwrap_or_default()
    }

    /// Receives some bytes; 0 means the end of the stream. Fails with [`io::ErrorKind::TimedOut`] after
    /// `timeout`, and with [`PAUSED`] if nothing has arrived and the server pauses.
    fn receive(&mut self, timeout: Duration, room: &mut [u8]) -> io::Result<usize> {
        if self.has_left() {
            return Ok(self.receive_again(room));
        }
        if let Some(received) = self.look(room)? {
            return Ok(received);
        }
        let timer = timeout.min(self.tick);
        if self.armed.is_none_or(|armed| armed > timer) {
            self.transport.set_recv_timeout(timer)?;
            self.armed = Some(timer);
        }
        let asleep = Instant::now();
        let mut start = None;
        loop {
            match self.transport.recv(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.common.is_pausing() {
                        return Err(PAUSED.into());
                    }
                    let waited = self.armed.unwrap_or_default();
                    let start: Instant =
                        *start.get_or_insert_with(|| Instant::now().checked_sub(waited).unwrap_or_else(Instant::now));
                    let left = timeout.saturating_sub(start.elapsed());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    let timer = left.min(self.tick);
                    if self.armed != Some(timer) {
                        self.transport.set_recv_timeout(timer)?;
                        self.armed = Some(timer);
                    }
                }
                result => {
                    self.polling.slept(asleep.elapsed());
                    return result;
                }
            }
        }
    }

    /// Receives some bytes if they arrive soon and no other thread needs this CPU.
    fn look(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let most = self.polling.time();
        if most.is_zero() || !self.is_expected || !self.common.executor.may_poll() {
            return Ok(None);
        }
        let start = Instant::now();
        let received = loop {
            let received = self.transport.try_recv(room)?;
            if received.is_some() || start.elapsed() >= most {
                break received;
            }
            // The client may be waiting for this CPU.
            sched_yield();
        };
        self.polling.looked(start.elapsed());
        Ok(received)
    }

    fn has_left(&self) -> bool {
        !self.replay.is_empty()
    }

    fn receive_again(&mut self, room: &mut [u8]) -> usize {
        let left = self.left();
        let count = left.len().min(room.len());
        if let (Some(room), Some(left)) = (room.get_mut(..count), left.get(..count)) {
            room.copy_from_slice(left);
        }
        self.replayed_bytes += count;
        if self.left().is_empty() {
            (self.replay, self.replayed_bytes) = (Vec::new(), 0);
        }
        count
    }
}
