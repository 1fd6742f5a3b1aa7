//! Messages of the vhost-user protocol, and the socket that they travel on.
//!
//! ```text
//! u32 request | u32 flags | u32 size | body of `size` bytes       (in the machine's byte order)
//! ```
//!
//! File descriptors arrive with a message's first byte.

use std::{
    io::{self, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};

const HEADER_BYTES: usize = 12;
/// Longest body of a message.
const MAX_BODY_BYTES: usize = 4096;
/// File descriptors that a message may carry.
pub(crate) const MAX_FILES: usize = 32;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Requests of a frontend.
pub(crate) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// The request of a backend, on a separate socket: that the frontend read the configuration again.
const CONFIG_CHANGED: u32 = 2;

/// Why a message is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the frontend closed the connection within a message")]
    Short,
    #[error("message {0} has version {1}; only version 1 is known")]
    Version(u32, u32),
    #[error("message {0} has {1} bytes; at most {MAX_BODY_BYTES} are allowed")]
    TooLong(u32, usize),
    #[error("message {0} carries more than {MAX_FILES} file descriptors")]
    TooManyFiles(u32),
}

/// A message from the frontend.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) request: u32,
    pub(crate) needs_reply: bool,
    pub(crate) body: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Message {
    /// Returns the 32-bit word at this position of the body.
    pub(crate) fn u32(&self, at: usize) -> Option<u32> {
        word(&self.body, at)
    }

    /// Returns the 64-bit word at this position of the body.
    pub(crate) fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.body.get(at..at + 8)?.try_into().ok()?))
    }

    /// Takes the only file descriptor; `None` if there is another number of them.
    pub(crate) fn only_file(&mut self) -> Option<OwnedFd> {
        if self.files.len() == 1 { self.files.pop() } else { None }
    }

    /// Sends the reply.
    pub(crate) fn reply(&self, socket: &UnixStream, body: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let bytes = encode(self.request, VERSION | REPLY, body);
        let Some(file) = file else { return (&*socket).write_all(&bytes) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        // The space suffices for one descriptor.
        let _ = control.push(SendAncillaryMessage::ScmRights(&files));
        let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        (&*socket).write_all(&bytes[sent..])
    }
}

fn encode(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    // Bodies are short.
    for word in [request, flags, u32::try_from(body.len()).unwrap_or(u32::MAX)] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Asks the frontend to read the configuration again. A frontend whose socket is full has not read
/// the last such request yet, and needs no other.
pub(crate) fn send_config_changed(channel: BorrowedFd<'_>) {
    let bytes = encode(CONFIG_CHANGED, VERSION, &[]);
    let _ = rustix::net::send(channel, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// What has come of the next message.
#[derive(Debug)]
pub(crate) enum Arrival {
    Message(Message),
    /// Not all of it.
    Part,
    /// The frontend has left.
    End,
}

/// The next message, of which a part has come.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Arriving {
    /// Continues with what another process has received. Returns `None` if that cannot be a part of a message.
    pub(crate) fn continued(bytes: Vec<u8>, files: Vec<OwnedFd>) -> Option<Self> {
        let arriving = Self { bytes, files };
        let needed_bytes = arriving.needed_bytes().ok()?;
        let is_part = arriving.bytes.len() < needed_bytes && arriving.files.len() <= MAX_FILES;
        (is_part && (arriving.files.is_empty() || !arriving.bytes.is_empty())).then_some(arriving)
    }

    /// Returns what has come.
    pub(crate) fn parts(&self) -> (&[u8], &[OwnedFd]) {
        (&self.bytes, &self.files)
    }

    /// Returns the bytes of the message, or of its header as long as that is not known.
    fn needed_bytes(&self) -> Result<usize, WireError> {
        let words = (word(&self.bytes, 0), word(&self.bytes, 4), word(&self.bytes, 8));
        let (Some(request), Some(flags), Some(size)) = words else { return Ok(HEADER_BYTES) };
        if flags & VERSION_MASK != VERSION {
            return Err(WireError::Version(request, flags & VERSION_MASK));
        }
        match size as usize {
            size if size > MAX_BODY_BYTES => Err(WireError::TooLong(request, size)),
            size => Ok(HEADER_BYTES + size),
        }
    }

    /// Receives what has come of the message, and waits for nothing.
    pub(crate) fn receive(&mut self, socket: &UnixStream) -> Result<Arrival, WireError> {
        loop {
            let (start, needed_bytes) = (self.bytes.len(), self.needed_bytes()?);
            if start == needed_bytes {
                return Ok(Arrival::Message(self.take()));
            }
            self.bytes.resize(needed_bytes, 0);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let got = recvmsg(socket, &mut [IoSliceMut::new(&mut self.bytes[start..])], &mut control, flags);
            self.bytes.truncate(start + got.as_ref().map_or(0, |got| got.bytes));
            let got = match got {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(Arrival::Part),
                got => got.map_err(io::Error::from)?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    self.files.extend(more);
                }
            }
            if got.flags.contains(ReturnFlags::CTRUNC) || self.files.len() > MAX_FILES {
                return Err(WireError::TooManyFiles(word(&self.bytes, 0).unwrap_or_default()));
            }
            if got.bytes == 0 {
                return if start == 0 { Ok(Arrival::End) } else { Err(WireError::Short) };
            }
        }
    }

    /// Takes the message, which is complete.
    fn take(&mut self) -> Message {
        let Self { mut bytes, files } = std::mem::take(self);
        let body = bytes.split_off(HEADER_BYTES);
        let [request, flags] = [0, 4].map(|at| word(&bytes, at).unwrap_or_default());
        Message { request, needs_reply: flags & NEED_REPLY != 0, body, files }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(bytes: &[u8]) -> Result<Option<Message>, WireError> {
        let (mut ours, theirs) = UnixStream::pair().expect("sockets");
        ours.write_all(bytes).expect("a message");
        drop(ours);
        match Arriving::default().receive(&theirs)? {
            Arrival::Message(message) => Ok(Some(message)),
            Arrival::Part => panic!("the end is a part"),
            Arrival::End => Ok(None),
        }
    }

    #[test]
    fn a_message_that_is_cut_or_too_long_is_refused() {
        let whole = encode(request::SET_FEATURES, VERSION | NEED_REPLY, &7_u64.to_ne_bytes());
        let message = received(&whole).expect("a message").expect("no end");
        assert!(message.needs_reply && message.files.is_empty());
        assert_eq!((message.request, message.u64(0), message.u64(1), message.u32(8)), (2, Some(7), None, None));
        assert!(matches!(received(&[]), Ok(None)));
        for len in 1..whole.len() {
            assert!(matches!(received(&whole[..len]), Err(WireError::Short)), "{len} bytes");
        }
        let long = encode(request::SET_FEATURES, VERSION, &[0; MAX_BODY_BYTES + 1]);
        assert!(matches!(received(&long), Err(WireError::TooLong(2, _))));
        assert!(matches!(received(&encode(2, 2, &[])), Err(WireError::Version(2, 2))));
    }
}
