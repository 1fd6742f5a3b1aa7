//! One request: what is allowed, and how it is carried out.

use std::io;

use pagefold_disk::{self as disk, BlockDevice, Extent, Zeroes};

use crate::{
    export::Device,
    negotiate::Session,
    protocol::{
        BASE_ALLOCATION_ID, CHUNK_HEADER_BYTES, DATA_CHUNK_HEADER_BYTES, Errno, MAX_PAYLOAD_BYTES, Request,
        SIMPLE_REPLY_BYTES, chunk, command, command_flag, encode_chunk_header, encode_data_chunk_header,
        encode_simple_reply, state,
    },
};

/// Extents in one answer at most; a client asks again for the rest.
pub(crate) const MAX_EXTENTS: usize = 4096;
/// Bytes of the longest message of an error.
const MAX_MESSAGE_BYTES: usize = 256;
/// Room that every reply needs besides the data it carries.
pub(crate) const REPLY_OVERHEAD_BYTES: usize = 512;

const _: () = assert!(CHUNK_HEADER_BYTES + 6 + MAX_MESSAGE_BYTES <= REPLY_OVERHEAD_BYTES);

/// Why a request fails.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) message: String,
}

impl Refusal {
    fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    /// The export was removed.
    pub(crate) fn removed() -> Self {
        Self::new(Errno::Shutdown, "the export was removed from the server; this connection ends soon")
    }

    /// A device's error in the protocol's terms.
    fn of(error: &disk::Error, request: &Request) -> Self {
        let grows = matches!(request.kind, command::WRITE | command::WRITE_ZEROES);
        let errno = match error {
            disk::Error::NoSpace => Errno::NoSpace,
            disk::Error::ReadOnly => Errno::Perm,
            disk::Error::OutOfRange { .. } if grows => Errno::NoSpace,
            disk::Error::OutOfRange { .. } => Errno::Inval,
            disk::Error::Corrupt { .. } => Errno::Io,
            disk::Error::Io(error) => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    Errno::NoSpace
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Errno::Perm,
                io::ErrorKind::OutOfMemory => Errno::NoMem,
                io::ErrorKind::Unsupported => Errno::NotSup,
                _ => Errno::Io,
            },
        };
        Self::new(errno, error.to_string())
    }
}

/// Whether the request is one that this session may make. Looks at the header alone.
pub(crate) fn check(request: &Request, session: &Session, device: &Device) -> Result<(), Refusal> {
    let known = match request.kind {
        command::READ if session.structured => command_flag::DF,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        command::READ | command::WRITE | command::FLUSH | command::TRIM | command::CACHE => 0,
        other => return Err(Refusal::new(Errno::Inval, format!("command {other} is not known"))),
    };
    let unknown = request.flags & !(known | command_flag::FUA);
    if unknown != 0 {
        return Err(Refusal::new(Errno::Inval, format!("flags {unknown:#x} are not known for this command")));
    }
    let changes = matches!(request.kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if changes && device.read_only() {
        return Err(Refusal::of(&disk::Error::ReadOnly, request));
    }
    let carries = matches!(request.kind, command::READ | command::WRITE);
    if carries && request.len_bytes > MAX_PAYLOAD_BYTES {
        let errno = if request.flags & command_flag::DF != 0 { Errno::Overflow } else { Errno::Inval };
        return Err(Refusal::new(errno, format!("{} bytes are more than the largest request", request.len_bytes)));
    }
    if request.kind == command::FLUSH {
        return match (request.offset, request.len_bytes) {
            (0, 0) => Ok(()),
            _ => Err(Refusal::new(Errno::Inval, "a flush has neither offset nor length")),
        };
    }
    let len_bytes = u64::from(request.len_bytes);
    let size_bytes = device.size_bytes();
    if request.offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
        let offset = request.offset;
        return Err(Refusal::of(&disk::Error::OutOfRange { offset, len_bytes, size_bytes }, request));
    }
    if request.kind == command::BLOCK_STATUS {
        if !session.allocation {
            return Err(Refusal::new(Errno::Inval, "no metadata context was selected"));
        }
        if len_bytes == 0 {
            return Err(Refusal::new(Errno::Inval, "the status of no bytes was asked for"));
        }
    }
    if request.kind == command::WRITE_ZEROES
        && request.flags & command_flag::FAST_ZERO != 0
        && request.flags & command_flag::NO_HOLE != 0
        && device.may_block()
    {
        return Err(Refusal::new(Errno::NotSup, "zeros that stay allocated are not fast on this device"));
    }
    Ok(())
}

/// Replies on their way out. Holds whole messages only; never grows.
#[derive(Debug)]
pub(crate) struct Replies<B> {
    bytes: B,
    filled: usize,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Replies<B> {
    pub(crate) fn new(bytes: B) -> Self {
        Self { bytes, filled: 0 }
    }

    /// The messages.
    pub(crate) fn filled(&self) -> &[u8] {
        self.bytes.as_ref().get(..self.filled).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Bytes that can still be added.
    pub(crate) fn room_bytes(&self) -> usize {
        self.bytes.as_ref().len() - self.filled
    }

    /// The next `len_bytes` of room; the caller has made sure that they are there.
    fn room(&mut self, len_bytes: usize) -> &mut [u8] {
        &mut self.bytes.as_mut()[self.filled..self.filled + len_bytes]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    /// Answers that `request` failed.
    pub(crate) fn refuse(&mut self, request: &Request, session: &Session, refusal: &Refusal) {
        let errno = refusal.errno as u32;
        if !session.structured {
            return self.push(&encode_simple_reply(errno, request.cookie));
        }
        let mut end = refusal.message.len().min(MAX_MESSAGE_BYTES);
        while !refusal.message.is_char_boundary(end) {
            end -= 1;
        }
        let message = refusal.message.as_bytes().get(..end).unwrap_or_default();
        let len_bytes = 6 + message.len() as u32;
        self.push(&encode_chunk_header(chunk::FLAG_DONE, chunk::ERROR, request.cookie, len_bytes));
        self.push(&errno.to_be_bytes());
        self.push(&(message.len() as u16).to_be_bytes());
        self.push(message);
    }

    /// Answers `request`, a write's data being `payload`. There must be room for [`reply_bytes`].
    pub(crate) fn execute(&mut self, request: &Request, session: &Session, device: &Device, payload: &[u8]) {
        let result = match request.kind {
            command::READ => self.read(request, session, device, chunk::FLAG_DONE),
            command::BLOCK_STATUS => self.block_status(request, device),
            _ => change(request, device, payload).map(|()| self.push(&encode_simple_reply(0, request.cookie))),
        };
        if let Err(error) = result {
            self.refuse(request, session, &Refusal::of(&error, request));
        }
    }

    /// Answers one piece of a large read with a data chunk; returns whether more pieces may follow.
    pub(crate) fn execute_piece(&mut self, piece: &Request, session: &Session, device: &Device, last: bool) -> bool {
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        match self.read(piece, session, device, flags) {
            Ok(()) => true,
            Err(error) => {
                self.refuse(piece, session, &Refusal::of(&error, piece));
                false
            }
        }
    }

    /// Reads from the device straight into the reply; the header is put before the data once they are there.
    fn read(&mut self, request: &Request, session: &Session, device: &Device, flags: u16) -> Result<(), disk::Error> {
        let len_bytes = request.len_bytes as usize;
        if len_bytes == 0 {
            // A data chunk holds at least one byte.
            if session.structured {
                self.push(&encode_chunk_header(chunk::FLAG_DONE, chunk::NONE, request.cookie, 0));
            } else {
                self.push(&encode_simple_reply(0, request.cookie));
            }
            return Ok(());
        }
        let header_bytes = if session.structured { DATA_CHUNK_HEADER_BYTES } else { SIMPLE_REPLY_BYTES };
        let (header, data) = self.room(header_bytes + len_bytes).split_at_mut(header_bytes);
        device.read(request.offset, data)?;
        if session.structured {
            let encoded = encode_data_chunk_header(flags, request.cookie, request.offset, request.len_bytes);
            header.copy_from_slice(&encoded);
        } else {
            header.copy_from_slice(&encode_simple_reply(0, request.cookie));
        }
        self.filled += header_bytes + len_bytes;
        Ok(())
    }

    fn block_status(&mut self, request: &Request, device: &Device) -> Result<(), disk::Error> {
        let limit = if request.flags & command_flag::REQ_ONE != 0 { 1 } else { MAX_EXTENTS };
        let extents = extents(request, device, limit)?;
        let payload_bytes = 4 + 8 * extents.len() as u32;
        self.push(&encode_chunk_header(chunk::FLAG_DONE, chunk::BLOCK_STATUS, request.cookie, payload_bytes));
        self.push(&BASE_ALLOCATION_ID.to_be_bytes());
        for (len_bytes, status) in extents {
            self.push(&len_bytes.to_be_bytes());
            self.push(&status.to_be_bytes());
        }
        Ok(())
    }
}

/// Bytes that the reply to `request` takes at most.
pub(crate) fn reply_bytes(request: &Request) -> usize {
    REPLY_OVERHEAD_BYTES
        + match request.kind {
            command::READ => request.len_bytes as usize,
            command::BLOCK_STATUS => 8 * MAX_EXTENTS,
            _ => 0,
        }
}

fn change(request: &Request, device: &Device, payload: &[u8]) -> Result<(), disk::Error> {
    let len_bytes = u64::from(request.len_bytes);
    match request.kind {
        command::WRITE => device.write(request.offset, payload)?,
        command::TRIM => device.discard(request.offset, len_bytes)?,
        command::WRITE_ZEROES => {
            let keep = request.flags & command_flag::NO_HOLE != 0;
            let zeroes = if keep { Zeroes::Allocated } else { Zeroes::MayUnmap };
            device.write_zeroes(request.offset, len_bytes, zeroes)?;
        }
        command::FLUSH => return device.flush(),
        // CACHE: there is nothing nearer than where the pages are.
        _ => return Ok(()),
    }
    if request.flags & command_flag::FUA != 0 { device.flush() } else { Ok(()) }
}

/// The range's extents as (bytes, status), neighbours of one status joined, at least one and at most `limit`.
fn extents(request: &Request, device: &Device, limit: usize) -> Result<Vec<(u32, u32)>, disk::Error> {
    let mut extents: Vec<(u32, u32)> = Vec::new();
    let mut left = request.len_bytes;
    let mut each = |extent: Extent| {
        let len_bytes = u32::try_from(extent.len_bytes).unwrap_or(u32::MAX).min(left);
        let status = if extent.hole { state::HOLE } else { 0 } | if extent.zero { state::ZERO } else { 0 };
        let count = extents.len();
        match extents.last_mut() {
            Some(last) if last.1 == status => last.0 += len_bytes,
            _ if count == limit || len_bytes == 0 => return false,
            _ => extents.push((len_bytes, status)),
        }
        left -= len_bytes;
        left != 0
    };
    device.extents(request.offset, u64::from(request.len_bytes), &mut each)?;
    if extents.is_empty() {
        // Status 0 claims nothing.
        extents.push((request.len_bytes, 0));
    }
    Ok(extents)
}
