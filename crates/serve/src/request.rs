//! One request: validation and execution.

use std::ops::Deref;

use pagefold_disk::{self as disk, BlockDevice, Change, Extent};
use pagefold_executor::{Device, Failed, Operation, Started};

use crate::{
    protocol::{
        Context, EXTENDED_CHUNK_HEADER_BYTES, Errno, Headers, MAX_PAYLOAD_BYTES, Request, SIMPLE_REPLY_BYTES,
        changed_state, chunk, command, command_flag, encode_chunk_header, encode_extended_chunk_header,
        encode_simple_reply, state,
    },
    session::Session,
};

/// Maximum number of extents per reply; a client asks again for the rest.
pub(crate) const MAX_EXTENTS: usize = 4096;
/// Longest error message in bytes.
const MAX_MESSAGE_BYTES: usize = 256;
/// Room that every reply needs in addition to its data.
pub(crate) const REPLY_OVERHEAD_BYTES: usize = 512;

/// Bytes of the offset at the start of a data or hole chunk's payload.
const OFFSET_BYTES: usize = 8;
/// Page size of devices: pieces of a request end at a page boundary.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Shortest run of zeros between data that is sent as a hole. A hole costs an extra chunk, and so
/// does the data after it: at 20 KiB, libnbd takes longer for these chunks than for the zeros.
const HOLE_BYTES: u64 = 32 << 10;
/// Shortest all-zero request that is answered with a hole. The reply has one chunk either way.
const WHOLE_HOLE_BYTES: u64 = 4096;

const _: () = assert!(EXTENDED_CHUNK_HEADER_BYTES + 6 + MAX_MESSAGE_BYTES <= REPLY_OVERHEAD_BYTES);
const _: () = assert!(EXTENDED_CHUNK_HEADER_BYTES + OFFSET_BYTES + 4 <= REPLY_OVERHEAD_BYTES);

/// The reason why a request fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    /// Returns the refusal for a removed export.
    pub(crate) fn removed() -> Self {
        Self::new(Errno::Shutdown, "the export was removed from the server; the connection will close")
    }

    /// Returns the refusal for a change that waited for room until its connection ended.
    pub(crate) fn ended() -> Self {
        Self::new(Errno::Shutdown, "the connection is closing, and the memory limit is still reached")
    }

    /// Translates the failure of a change to the protocol.
    pub(crate) fn of_change(failed: &Failed, request: &Request) -> Self {
        match failed {
            Failed::Device(error) => Self::of(error, request),
            Failed::Removed => Self::removed(),
            Failed::Ended => Self::ended(),
            failed => Self::new(Errno::of_linux(failed.errno()), failed.to_string()),
        }
    }

    /// Translates a device's error to the protocol.
    pub(crate) fn of(error: &disk::Error, request: &Request) -> Self {
        let grows = matches!(request.kind, command::WRITE | command::WRITE_ZEROES);
        let errno = match error {
            disk::Error::OutOfRange { .. } if grows => Errno::NoSpace,
            error => Errno::of_linux(error.errno()),
        };
        Self::new(errno, error.to_string())
    }
}

/// A request that has been received. Its only reply ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    request: Request,
    started: Started,
}

impl Arrived {
    pub(crate) fn new(request: Request, session: &Session) -> Self {
        let (operation, len_bytes) = match request.kind {
            command::READ => (Operation::Read, request.len_bytes),
            command::WRITE => (Operation::Write, request.len_bytes),
            command::TRIM => (Operation::Discard, request.len_bytes),
            command::WRITE_ZEROES => (Operation::WriteZeroes, request.len_bytes),
            command::FLUSH => (Operation::Flush, 0),
            _ => (Operation::Other, 0),
        };
        Self { request, started: session.access.activity.begin(operation, len_bytes) }
    }

    /// Counts the request.
    fn end(&self, session: &Session, is_ok: bool) {
        session.access.activity.end(self.started, is_ok);
    }
}

impl Deref for Arrived {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

/// Checks whether this session may make the request. Considers only the header.
pub(crate) fn check(request: &Request, session: &Session, device: &Device) -> Result<(), Refusal> {
    let known = match request.kind {
        command::READ if session.headers != Headers::Simple => command_flag::DF,
        command::WRITE if session.headers == Headers::Extended => command_flag::PAYLOAD_LEN,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        command::READ | command::WRITE | command::FLUSH | command::TRIM | command::CACHE => 0,
        other => return Err(Refusal::new(Errno::Inval, format!("unknown command {other}"))),
    };
    let unknown = request.flags & !(known | command_flag::FUA);
    if unknown != 0 {
        return Err(Refusal::new(Errno::Inval, format!("unknown flags {unknown:#x} for this command")));
    }
    if is_change(request) && device.read_only() {
        return Err(Refusal::of(&disk::Error::ReadOnly, request));
    }
    let carries = matches!(request.kind, command::READ | command::WRITE);
    if carries && request.len_bytes > u64::from(MAX_PAYLOAD_BYTES) {
        let errno = if request.flags & command_flag::DF != 0 { Errno::Overflow } else { Errno::Inval };
        return Err(Refusal::new(
            errno,
            format!("request of {} bytes exceeds the maximum of {MAX_PAYLOAD_BYTES}", request.len_bytes),
        ));
    }
    if request.kind == command::FLUSH {
        return match (request.offset, request.len_bytes) {
            (0, 0) => Ok(()),
            _ => Err(Refusal::new(Errno::Inval, "a flush must have offset and length 0")),
        };
    }
    let len_bytes = request.len_bytes;
    let size_bytes = device.size_bytes();
    if request.offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
        let offset = request.offset;
        return Err(Refusal::of(&disk::Error::OutOfRange { offset, len_bytes, size_bytes }, request));
    }
    if request.kind == command::READ && len_bytes == 0 {
        return Err(Refusal::new(Errno::Inval, "read of zero bytes"));
    }
    if request.kind == command::BLOCK_STATUS {
        if session.contexts.is_empty() {
            return Err(Refusal::new(Errno::Inval, "no metadata context was selected"));
        }
        if len_bytes == 0 {
            return Err(Refusal::new(Errno::Inval, "block status of zero bytes"));
        }
    }
    if request.kind == command::WRITE_ZEROES
        && request.flags & command_flag::FAST_ZERO != 0
        && request.flags & command_flag::NO_HOLE != 0
        && device.may_block()
    {
        return Err(Refusal::new(Errno::NotSup, "fast zeroing with NO_HOLE is not supported on this device"));
    }
    Ok(())
}

/// Outgoing replies: complete messages and at most one incomplete message. Never grows by itself.
#[derive(Debug)]
pub(crate) struct Replies<B> {
    bytes: B,
    filled: usize,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Replies<B> {
    pub(crate) fn new(bytes: B) -> Self {
        Self { bytes, filled: 0 }
    }

    /// Returns the bytes to be sent.
    pub(crate) fn filled(&self) -> &[u8] {
        self.bytes.as_ref().get(..self.filled).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }

    pub(crate) fn buffer(&mut self) -> &mut B {
        &mut self.bytes
    }

    /// Returns the number of bytes that can still be added.
    pub(crate) fn room_bytes(&self) -> usize {
        self.bytes.as_ref().len() - self.filled
    }

    /// Returns the next `len_bytes` of room. The caller has made sure that they fit.
    fn room(&mut self, len_bytes: usize) -> &mut [u8] {
        &mut self.bytes.as_mut()[self.filled..self.filled + len_bytes]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    /// Begins a chunk with a payload of `len_bytes`.
    fn chunk(&mut self, request: &Request, headers: Headers, flags: u16, kind: u16, len_bytes: u64) {
        let Request { cookie, offset, .. } = *request;
        if headers == Headers::Extended {
            self.push(&encode_extended_chunk_header(flags, kind, cookie, offset, len_bytes));
        } else {
            // A payload is never longer than a request's data.
            self.push(&encode_chunk_header(flags, kind, cookie, len_bytes as u32));
        }
    }

    /// Replies that `request` failed.
    pub(crate) fn refuse(&mut self, request: &Arrived, session: &Session, refusal: &Refusal) {
        request.end(session, false);
        let (errno, headers) = (refusal.errno as u32, session.headers);
        if headers == Headers::Simple {
            return self.push(&encode_simple_reply(errno, request.cookie));
        }
        let mut end = refusal.message.len().min(MAX_MESSAGE_BYTES);
        while !refusal.message.is_char_boundary(end) {
            end -= 1;
        }
        let message = refusal.message.as_bytes().get(..end).unwrap_or_default();
        self.chunk(request, headers, chunk::FLAG_DONE, chunk::ERROR, 6 + message.len() as u64);
        self.push(&errno.to_be_bytes());
        self.push(&(message.len() as u16).to_be_bytes());
        self.push(message);
    }

    /// Replies to `request`, which returns no data, with its result.
    pub(crate) fn finish(&mut self, request: &Arrived, session: &Session, result: Result<(), Refusal>) {
        if let Err(refusal) = result {
            return self.refuse(request, session, &refusal);
        }
        request.end(session, true);
        if session.headers == Headers::Extended {
            self.chunk(request, session.headers, chunk::FLAG_DONE, chunk::NONE, 0);
        } else {
            self.push(&encode_simple_reply(0, request.cookie));
        }
    }

    /// Answers a request that neither reads nor changes the device. There must be room for
    /// [`REPLY_OVERHEAD_BYTES`]. A block status returns as many extents as fit.
    pub(crate) fn execute(&mut self, request: &Arrived, session: &Session, device: Option<&Device>) {
        let result = device.ok_or_else(Refusal::removed).and_then(|device| match request.kind {
            command::BLOCK_STATUS => {
                let added = self.block_status(request, session, device).map(|()| request.end(session, true));
                added.map_err(|error| Refusal::of(&error, request))
            }
            kind => {
                // CACHE does nothing: the pages are in memory already.
                let flushed =
                    if kind == command::FLUSH { flush(request, device) } else { flush_if_asked(request, Some(device)) };
                flushed.map(|()| self.finish(request, session, Ok(())))
            }
        });
        if let Err(refusal) = result {
            self.refuse(request, session, &refusal);
        }
    }

    /// Adds a chunk per context. The contexts share the room equally.
    fn block_status(&mut self, request: &Request, session: &Session, device: &Device) -> Result<(), disk::Error> {
        let Session { headers, contexts, .. } = session;
        let extended = *headers == Headers::Extended;
        let (before_bytes, each_bytes) = if extended { (8, 16) } else { (4, 8) };
        let each_room = self.room_bytes() / contexts.len().max(1);
        let room = each_room.saturating_sub(headers.chunk_bytes() + before_bytes) / each_bytes;
        let limit = if request.flags & command_flag::REQ_ONE != 0 { 1 } else { MAX_EXTENTS.min(room) };
        // An error replaces all chunks.
        let statuses = contexts.iter().map(|&context| Ok((context, extents(request, device, context, limit)?)));
        let statuses = statuses.collect::<Result<Vec<_>, disk::Error>>()?;
        let mut left = statuses.len();
        for (context, extents) in statuses {
            left -= 1;
            let payload_bytes = before_bytes + each_bytes * extents.len();
            let kind = if extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
            let flags = if left == 0 { chunk::FLAG_DONE } else { 0 };
            self.chunk(request, *headers, flags, kind, payload_bytes as u64);
            self.push(&context.id().to_be_bytes());
            if extended {
                self.push(&(extents.len() as u32).to_be_bytes());
            }
            for (len_bytes, status) in extents {
                if extended {
                    self.push(&len_bytes.to_be_bytes());
                    self.push(&u64::from(status).to_be_bytes());
                } else {
                    // An extent is no longer than the request.
                    self.push(&(len_bytes as u32).to_be_bytes());
                    self.push(&status.to_be_bytes());
                }
            }
        }
        Ok(())
    }
}

/// A READ that is answered in as many parts as the reply buffer requires.
///
/// ```text
/// in chunks:    [header, data or hole] …   other replies may be sent between two parts
/// in one piece: [header, data] [data] …    nothing may be sent between two parts
///                                          (simple replies, and chunks that must not be split)
/// ```
///
/// A reply in chunks can report an error at any time. A reply in one piece can do so only instead
/// of its header; a later error breaks the connection.
#[derive(Debug)]
pub(crate) struct Reading {
    request: Arrived,
    headers: Headers,
    done_bytes: u64,
}

/// An error that occurred after it could no longer be reported.
#[derive(Debug, thiserror::Error)]
#[error("read failed after part of its reply was sent")]
pub(crate) struct ReadBroke;

impl Reading {
    pub(crate) fn new(request: Arrived, headers: Headers) -> Self {
        Self { request, headers, done_bytes: 0 }
    }

    /// Returns whether the reply's parts must be contiguous.
    pub(crate) fn is_in_one_piece(&self) -> bool {
        self.headers == Headers::Simple || self.request.flags & command_flag::DF != 0
    }

    /// Returns whether a part of the reply was added to replies.
    pub(crate) fn has_begun(&self) -> bool {
        self.done_bytes != 0
    }

    fn left_bytes(&self) -> u64 {
        self.request.len_bytes - self.done_bytes
    }

    /// Returns the request.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// Adds as much to `replies` as fits.
    pub(crate) fn fill<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        replies: &mut Replies<B>,
        session: &Session,
        device: Option<&Device>,
    ) -> Result<Filled, ReadBroke> {
        self.fill_with(replies, session, device, true, |device, at, data| device.read(at, data).map(|()| true))
    }

    /// Like `fill`, until it would wait for storage.
    pub(crate) fn try_fill<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        replies: &mut Replies<B>,
        session: &Session,
        device: Option<&Device>,
    ) -> Result<Filled, ReadBroke> {
        let read = |device: &Device, at, data: &mut [u8]| Ok(device.try_read(at, data)? == data.len());
        self.fill_with(replies, session, device, false, read)
    }

    /// Like `try_fill`, with `read`, which returns whether it has filled the data. Unless it
    /// `may_wait`, holes of a device that may block are sent as zeros, because looking for holes
    /// may wait for storage.
    pub(crate) fn fill_with<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        replies: &mut Replies<B>,
        session: &Session,
        device: Option<&Device>,
        may_wait: bool,
        read: impl Fn(&Device, u64, &mut [u8]) -> Result<bool, disk::Error>,
    ) -> Result<Filled, ReadBroke> {
        let result = match device {
            None => Err(Refusal::removed()),
            Some(device) if self.is_in_one_piece() => self.fill_piece(replies, device, &read),
            Some(device) => self.fill_chunks(replies, device, may_wait || !device.may_block(), &read),
        };
        match result {
            Ok(false) => Ok(Filled::Blocks),
            Ok(true) if self.left_bytes() == 0 => {
                self.request.end(session, true);
                Ok(Filled::All)
            }
            Ok(true) => Ok(Filled::Part),
            Err(_) if self.is_in_one_piece() && self.done_bytes != 0 => {
                self.request.end(session, false);
                Err(ReadBroke)
            }
            Err(refusal) => {
                replies.refuse(&self.request, session, &refusal);
                Ok(Filled::All)
            }
        }
    }

    /// Returns how much to read next into `room_bytes`: at most up to a page boundary, so that no
    /// page is read twice.
    fn next_bytes(&self, room_bytes: usize) -> usize {
        let room_bytes = room_bytes as u64;
        let left_bytes = self.left_bytes();
        if left_bytes <= room_bytes {
            return left_bytes as usize;
        }
        let past_bytes = (self.request.offset + self.done_bytes + room_bytes) % PAGE_BYTES;
        if past_bytes < room_bytes { (room_bytes - past_bytes) as usize } else { room_bytes as usize }
    }

    fn fill_piece<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        replies: &mut Replies<B>,
        device: &Device,
        read: &impl Fn(&Device, u64, &mut [u8]) -> Result<bool, disk::Error>,
    ) -> Result<bool, Refusal> {
        let Request { offset, len_bytes, cookie, .. } = *self.request;
        let begins = self.done_bytes == 0;
        let header_bytes = match self.headers {
            _ if !begins => 0,
            Headers::Simple => SIMPLE_REPLY_BYTES,
            headers => headers.chunk_bytes() + OFFSET_BYTES,
        };
        let next_bytes = self.next_bytes(replies.room_bytes().saturating_sub(header_bytes));
        // The data are read first: the header depends on whether that succeeds.
        let data = replies.room(header_bytes + next_bytes).get_mut(header_bytes..).unwrap_or_default();
        let failed = |error| Refusal::of(&error, &self.request);
        if !read(device, offset + self.done_bytes, data).map_err(failed)? {
            return Ok(false);
        }
        match self.headers {
            _ if !begins => {}
            Headers::Simple => replies.push(&encode_simple_reply(0, cookie)),
            headers => {
                let payload_bytes = OFFSET_BYTES as u64 + len_bytes;
                replies.chunk(&self.request, headers, chunk::FLAG_DONE, chunk::OFFSET_DATA, payload_bytes);
                replies.push(&offset.to_be_bytes());
            }
        }
        replies.filled += next_bytes;
        self.done_bytes += next_bytes as u64;
        Ok(true)
    }

    fn fill_chunks<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        replies: &mut Replies<B>,
        device: &Device,
        finds_holes: bool,
        read: &impl Fn(&Device, u64, &mut [u8]) -> Result<bool, disk::Error>,
    ) -> Result<bool, Refusal> {
        let header_bytes = self.headers.chunk_bytes() + OFFSET_BYTES;
        while self.left_bytes() != 0 {
            let room_bytes = replies.room_bytes().saturating_sub(REPLY_OVERHEAD_BYTES);
            if (room_bytes as u64) < self.left_bytes().min(PAGE_BYTES) {
                break;
            }
            let at = self.request.offset + self.done_bytes;
            let window_bytes = self.next_bytes(room_bytes);
            let failed = |error| Refusal::of(&error, &self.request);
            let least_bytes = if window_bytes as u64 == self.request.len_bytes { WHOLE_HOLE_BYTES } else { HOLE_BYTES };
            let run = match finds_holes {
                true => first_run(device, at, window_bytes as u64, least_bytes).map_err(failed)?,
                false => RunKind::Data(window_bytes as u64),
            };
            let (RunKind::Zeros(run_bytes) | RunKind::Data(run_bytes)) = run;
            let flags = if run_bytes == self.left_bytes() { chunk::FLAG_DONE } else { 0 };
            if let RunKind::Zeros(_) = run {
                replies.chunk(&self.request, self.headers, flags, chunk::OFFSET_HOLE, OFFSET_BYTES as u64 + 4);
                replies.push(&at.to_be_bytes());
                replies.push(&(run_bytes as u32).to_be_bytes());
            } else {
                let data_bytes = run_bytes as usize;
                let data = replies.room(header_bytes + data_bytes).get_mut(header_bytes..).unwrap_or_default();
                if !read(device, at, data).map_err(failed)? {
                    return Ok(false);
                }
                let payload_bytes = OFFSET_BYTES as u64 + run_bytes;
                replies.chunk(&self.request, self.headers, flags, chunk::OFFSET_DATA, payload_bytes);
                replies.push(&at.to_be_bytes());
                replies.filled += data_bytes;
            }
            self.done_bytes += run_bytes;
        }
        Ok(true)
    }
}

/// How much of a READ's reply was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// All that was left, or an error.
    All,
    /// As much as fits. The replies must be sent before the rest is added.
    Part,
    /// The next part would wait for storage.
    Blocks,
}

/// The content of a chunk, with its length in bytes.
enum RunKind {
    Zeros(u64),
    Data(u64),
}

/// Returns the first run of a range: zeros or data. Finds every run of zeros of at least twice
/// [`HOLE_BYTES`] and some of the shorter ones. A range of zeros only is one run if it has at least
/// `least_bytes`.
fn first_run(device: &Device, offset: u64, len_bytes: u64, least_bytes: u64) -> Result<RunKind, disk::Error> {
    if len_bytes < least_bytes {
        return Ok(RunKind::Data(len_bytes));
    }
    // Checking every page would take 10 % of the time to read it. One probe per [`HOLE_BYTES`]
    // finds every run of zeros of twice that length.
    let mut found = false;
    for at in (0..len_bytes).step_by(HOLE_BYTES as usize) {
        device.extents(offset + at, PAGE_BYTES.min(len_bytes - at), &mut |extent| {
            found |= extent.zero;
            !found
        })?;
        if found {
            break;
        }
    }
    if !found {
        return Ok(RunKind::Data(len_bytes));
    }
    // The run begins with `data_bytes` of data, followed by `zero_bytes` of zeros.
    let (mut data_bytes, mut zero_bytes) = (0, 0);
    let mut each = |extent: Extent| {
        if extent.zero {
            zero_bytes += extent.len_bytes;
            return data_bytes == 0 || zero_bytes < HOLE_BYTES;
        }
        if data_bytes == 0 && zero_bytes >= HOLE_BYTES {
            return false;
        }
        data_bytes += zero_bytes + extent.len_bytes;
        zero_bytes = 0;
        true
    };
    device.extents(offset, len_bytes, &mut each)?;
    let run = if zero_bytes >= len_bytes {
        RunKind::Zeros(len_bytes)
    } else if zero_bytes < HOLE_BYTES {
        RunKind::Data(len_bytes)
    } else if data_bytes == 0 {
        RunKind::Zeros(zero_bytes.min(len_bytes))
    } else {
        RunKind::Data(data_bytes.min(len_bytes))
    };
    Ok(run)
}

/// Returns the buffer size best suited for the reply to `request`, which has not been checked yet.
pub(crate) fn reply_bytes(request: &Request) -> usize {
    let payload_bytes = match request.kind {
        command::READ => usize::try_from(request.len_bytes).unwrap_or(usize::MAX),
        command::BLOCK_STATUS => 16 * MAX_EXTENTS,
        _ => 0,
    };
    payload_bytes.saturating_add(REPLY_OVERHEAD_BYTES)
}

/// Flushes the device if the request has the FUA flag.
pub(crate) fn flush_if_asked(request: &Request, device: Option<&Device>) -> Result<(), Refusal> {
    if request.flags & command_flag::FUA == 0 {
        return Ok(());
    }
    flush(request, device.ok_or_else(Refusal::removed)?)
}

fn flush(request: &Request, device: &Device) -> Result<(), Refusal> {
    device.flush().map_err(|error| Refusal::of(&error, request))
}

/// Returns whether the request changes the device.
pub(crate) fn is_change(request: &Request) -> bool {
    matches!(request.kind, command::WRITE | command::TRIM | command::WRITE_ZEROES)
}

/// The bytes of a range whose status one reply describes if the device may block: finding out may take
/// a step for each block of a base. A client asks again for the rest.
const MOST_STATUS_BYTES: u64 = 4 << 30;

/// Returns the range's extents in a context as (bytes, status). Adjacent extents with the same
/// status are merged. There is at least one extent, and at most `limit`.
fn extents(request: &Request, device: &Device, context: Context, limit: usize) -> Result<Vec<(u64, u32)>, disk::Error> {
    let Request { offset, len_bytes, .. } = *request;
    let len_bytes = if device.may_block() { len_bytes.min(MOST_STATUS_BYTES) } else { len_bytes };
    let mut extents: Vec<(u64, u32)> = Vec::new();
    let mut left = len_bytes;
    let mut each = |len_bytes: u64, status: u32| {
        let len_bytes = len_bytes.min(left);
        let count = extents.len();
        match extents.last_mut() {
            Some(last) if last.1 == status => last.0 += len_bytes,
            _ if count == limit || len_bytes == 0 => return false,
            _ => extents.push((len_bytes, status)),
        }
        left -= len_bytes;
        left != 0
    };
    match context {
        Context::Allocation => device.extents(offset, len_bytes, &mut |extent: Extent| {
            let hole = if extent.hole { state::HOLE } else { 0 };
            each(extent.len_bytes, hole | if extent.zero { state::ZERO } else { 0 })
        })?,
        Context::Changed => device.changes(offset, len_bytes, &mut |change: Change| {
            each(change.len_bytes, if change.changed { changed_state::CHANGED } else { 0 })
        })?,
    }
    if extents.is_empty() {
        // The device reported nothing, for example because it has shrunk. Assume no hole, and
        // assume that the range has changed.
        let unknown = if context == Context::Changed { changed_state::CHANGED } else { 0 };
        extents.push((len_bytes, unknown));
    }
    Ok(extents)
}
