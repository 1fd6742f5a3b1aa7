//! TLS on a socket: what a connection receives and sends, as records.
//!
//! ```text
//! receiving: socket → records → session, which decrypts them → the caller, or `data` if it has no room
//! sending:   the caller → session, which encrypts → sealed → socket
//! ```
//!
//! One thread receives and another sends at the same time. Both need the session, which has one lock.
//! It is held while up to 64 KiB are encrypted, or while one record is decrypted, and never while a
//! thread waits for the peer.
//!
//! Locks are taken in this order: received or sealed, session.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagefold_executor::{Growing, Memory, Share, Taken};
use rustls::server::UnbufferedServerConnection;

use super::{
    records::{Records, SMALL_BYTES},
    session::{Sealed, Session},
};
use crate::transport::{Deadline, Socket, Transport};

/// Memory of an idle connection with TLS, in addition to that of a plain one: its keys, and the client's
/// certificates if they are asked for. During the handshake, it includes small buffers.
pub const IDLE_BYTES: u64 = 12 << 10;
/// The same while it works: a buffer for each direction, and two records that are being copied.
pub const WORK_BYTES: u64 = 72 << 10;
/// Buffer for records to be sent: one large record and a small one.
const SMALL_SEALED_BYTES: usize = 20 << 10;
/// The same while the connection is busy: enough for 64 KiB of data.
const LARGE_SEALED_BYTES: usize = 68 << 10;
/// Buffers of one connection in addition to its small ones.
const MOST_SHARE_BYTES: usize = 256 << 10;

/// TLS on one socket, as its server.
pub(crate) struct Layer {
    received: Mutex<Received>,
    sealed: Mutex<Outgoing>,
    session: Mutex<Session>,
    memory: Arc<Memory>,
    share: Arc<Share>,
    /// How long a client may take for a record that it has begun.
    record_time: Duration,
    /// Dropped last, when the rest is freed.
    _taken: Taken,
}

/// The received bytes.
#[derive(Default)]
struct Received {
    records: Records,
    /// Decrypted bytes for which the caller had no room; those before `start` are done with.
    data: Vec<u8>,
    start: usize,
    /// The client sends nothing more.
    ended: bool,
}

/// Encrypted bytes that have not been sent: `buffer[start..end]`.
#[derive(Default)]
struct Outgoing {
    buffer: Option<Growing>,
    start: usize,
    end: usize,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Received {
    fn holds_data(&self) -> bool {
        self.records.len() != 0 || self.start < self.data.len()
    }

    /// Moves decrypted bytes to the front of `buf` and returns their number.
    fn take(&mut self, buf: &mut [u8]) -> usize {
        let left = self.data.get(self.start..).unwrap_or_default();
        let count = left.len().min(buf.len());
        if let (Some(buf), Some(left)) = (buf.get_mut(..count), left.get(..count)) {
            buf.copy_from_slice(left);
        }
        self.start += count;
        if self.start == self.data.len() {
            self.data.clear();
            self.start = 0;
        }
        count
    }
}

impl Outgoing {
    fn unsent(&self) -> &[u8] {
        self.buffer.as_ref().and_then(|buffer| buffer.as_ref().get(self.start..self.end)).unwrap_or_default()
    }

    /// Encrypts as much of `bytes` as fits, after messages of TLS itself. Everything earlier has
    /// been sent. Returns how many bytes were taken.
    fn fill(&mut self, layer: &Layer, bytes: &[u8]) -> io::Result<usize> {
        (self.start, self.end) = (0, 0);
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => none.insert(Growing::new(SMALL_SEALED_BYTES)?),
        };
        if bytes.len() > SMALL_SEALED_BYTES {
            buffer.grow(&layer.share, LARGE_SEALED_BYTES, 0..0);
        }
        let Sealed { data_bytes, record_bytes } = lock(&layer.session).seal(bytes, buffer.as_mut())?;
        self.end = record_bytes;
        Ok(data_bytes)
    }
}

impl Layer {
    pub(super) fn new(
        connection: UnbufferedServerConnection,
        memory: &Arc<Memory>,
        record_time: Duration,
        taken: Taken,
    ) -> Self {
        Self {
            received: Mutex::default(),
            sealed: Mutex::default(),
            session: Mutex::new(Session::new(connection)),
            memory: Arc::clone(memory),
            share: Share::new(Arc::clone(memory), MOST_SHARE_BYTES),
            record_time,
            _taken: taken,
        }
    }

    pub(crate) fn is_in_handshake(&self) -> bool {
        lock(&self.session).is_in_handshake()
    }

    pub(crate) fn work_bytes(&self) -> u64 {
        WORK_BYTES
    }

    pub(crate) fn holds_data(&self) -> bool {
        lock(&self.received).holds_data()
    }

    pub(crate) fn try_recv(&self, socket: &Socket, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.recv_with(buf, &mut |room| socket.try_recv(room))
    }

    /// Receives some bytes. While a record is incomplete, the record's time limit applies instead
    /// of the socket's.
    pub(crate) fn recv(&self, socket: &Socket, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.recv_with(buf, &mut |room| socket.recv(room).map(Some)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.holds_data() => {}
                result => return result.map(Option::unwrap_or_default),
            }
        }
    }

    /// Receives with `receive`, which returns `None` if nothing has arrived, until there is some data.
    fn recv_with(
        &self,
        buf: &mut [u8],
        receive: &mut dyn FnMut(&mut [u8]) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        let mut received = lock(&self.received);
        loop {
            let found_bytes = self.open(&mut received, buf)?;
            if found_bytes != 0 || received.ended || buf.is_empty() {
                return Ok(Some(found_bytes));
            }
            let records = &mut received.records;
            if records.is_late(self.record_time) {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "a record takes too long"));
            }
            // While others wait for memory, the connection receives nothing that it would have to
            // keep after its turn.
            let is_in_handshake = self.is_in_handshake();
            let is_short = !is_in_handshake && self.memory.is_short();
            let most_bytes = if is_short { records.missing_bytes()? } else { usize::MAX };
            let room = records.room(&self.share, is_in_handshake)?;
            let most_bytes = room.len().min(most_bytes);
            let room = room.get_mut(..most_bytes).unwrap_or_default();
            if room.is_empty() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            match receive(room)? {
                None => return Ok(None),
                Some(0) if records.len() == 0 => return Ok(Some(0)),
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(bytes) => records.received(bytes),
            }
        }
    }

    /// Decrypts what has been received, until `buf` is full. Returns the bytes written to it. An
    /// error after some bytes is returned by the next call.
    fn open(&self, received: &mut Received, buf: &mut [u8]) -> io::Result<usize> {
        let mut found_bytes = received.take(buf);
        let Received { records, data, ended, .. } = received;
        while found_bytes < buf.len() && records.len() != 0 && !*ended {
            let mut session = lock(&self.session);
            let was_in_handshake = session.is_in_handshake();
            let len_bytes = match records.whole_bytes() {
                Ok(Some(record_bytes)) => {
                    if was_in_handshake {
                        records.len()
                    } else {
                        record_bytes
                    }
                }
                Ok(None) => break,
                Err(error) if found_bytes == 0 => return Err(session.fail(error)),
                Err(_) => break,
            };
            let mut keep = |bytes: &[u8]| {
                let room = buf.get_mut(found_bytes..).unwrap_or_default();
                let (now, later) = bytes.split_at(bytes.len().min(room.len()));
                if let Some(room) = room.get_mut(..now.len()) {
                    room.copy_from_slice(now);
                }
                found_bytes += now.len();
                data.extend_from_slice(later);
            };
            match session.open(records.front(len_bytes), &mut keep) {
                Ok(done_bytes) => records.consume(done_bytes),
                Err(error) if found_bytes == 0 => return Err(error),
                Err(_) => break,
            }
            *ended = session.has_ended();
            if was_in_handshake {
                if session.is_in_handshake() {
                    break;
                }
                // The rest must be a record that has begun: see `Session::open`.
                if records.whole_bytes()?.is_some() {
                    return Err(session.fail("a message of TLS itself continues after the handshake"));
                }
            }
        }
        Ok(found_bytes)
    }

    /// Sends the first part of `bytes`, as much as is encrypted together.
    pub(crate) fn send(&self, socket: &Socket, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
        let deadline = Deadline::after(timeout);
        let mut sealed = lock(&self.sealed);
        loop {
            let taken_bytes = sealed.fill(self, bytes)?;
            let sent = deadline.send_all(socket, sealed.unsent());
            (sealed.start, sealed.end) = (0, 0);
            if let Err(error) = sent {
                // Part of a record may have been sent: nothing can follow.
                lock(&self.session).fail("a record was not sent");
                return Err(error);
            }
            if taken_bytes != 0 || bytes.is_empty() {
                return Ok(taken_bytes);
            }
        }
    }

    pub(crate) fn try_send(&self, socket: &Socket, bytes: &[u8]) -> io::Result<Option<usize>> {
        if !self.try_flush(socket)? {
            return Ok(None);
        }
        let taken_bytes = lock(&self.sealed).fill(self, bytes)?;
        self.try_flush(socket)?;
        Ok(Some(taken_bytes))
    }

    pub(crate) fn try_flush(&self, socket: &Socket) -> io::Result<bool> {
        let mut sealed = lock(&self.sealed);
        loop {
            while !sealed.unsent().is_empty() {
                match socket.try_send(sealed.unsent())? {
                    Some(bytes) => sealed.start += bytes,
                    None => return Ok(false),
                }
            }
            if !lock(&self.session).has_control() {
                *sealed = Outgoing::default();
                return Ok(true);
            }
            sealed.fill(self, &[])?;
        }
    }

    /// Announces the end of the data, if that is possible without waiting. The socket is closed
    /// even if this fails.
    pub(crate) fn close(&self, socket: &Socket) {
        let Ok(sealed) = self.sealed.try_lock() else { return };
        let mut last = [0; 256];
        let bytes = lock(&self.session).close(&mut last);
        if sealed.unsent().is_empty()
            && let Some(last @ [_, ..]) = last.get(..bytes)
        {
            let _ = socket.try_send(last);
        }
    }

    pub(crate) fn rest(&self) {
        if let Ok(mut received) = self.received.try_lock() {
            received.records.rest();
            if received.data.is_empty() {
                received.data = Vec::new();
            }
        }
        if let Ok(mut sealed) = self.sealed.try_lock()
            && sealed.unsent().is_empty()
        {
            *sealed = Outgoing::default();
        }
        self.share.trim();
    }
}

const _: () = assert!(WORK_BYTES as usize >= SMALL_BYTES + SMALL_SEALED_BYTES + (32 << 10));
