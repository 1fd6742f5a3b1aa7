//! Messages between the two processes.
//!
//! ```text
//! magic: 4 │ kind: 4 │ length: 8 │ length bytes          numbers are little-endian
//! ```
//!
//! Descriptors come with the header of a message of their own.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        UCred, recvmsg, sendmsg, sockopt::set_socket_passcred,
    },
};

use super::STEP;

/// Starts every message.
const MAGIC: [u8; 4] = *b"PFho";

const HEADER_BYTES: usize = 16;

/// Descriptors of one message, as many as Linux passes.
const MOST_DESCRIPTORS: usize = 253;

/// The longest message: a record of more disks and clients than a server can have.
const MOST_BYTES: u64 = 1 << 30;

/// Bytes of the pool's stream that are one message.
const PART_BYTES: usize = 1 << 20;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// JSON.
    Record = 1,
    Descriptors = 2,
    /// A part of the stream; an empty one is its end.
    Pool = 3,
    /// The new process has everything and can serve.
    Ready = 4,
    /// The server never serves again.
    Go = 5,
    /// A text that says why the sender gives up.
    Failed = 6,
    /// JSON: the part of the record that is needed to read the pool first.
    Ahead = 7,
    /// The part of the pool that was sent is void: the record follows, and then the whole pool.
    Void = 8,
    /// The file in memory in which the new process creates the pool, or no file.
    Memory = 9,
}

impl Kind {
    fn of(number: u32) -> Option<Self> {
        let all = [Self::Record, Self::Descriptors, Self::Pool, Self::Ready, Self::Go, Self::Failed];
        let all = all.into_iter().chain([Self::Ahead, Self::Void, Self::Memory]);
        all.into_iter().find(|&kind| kind as u32 == number)
    }
}

/// A received message.
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The process that has sent it, according to the kernel.
    pub(crate) sender: Option<UCred>,
}

/// The header of a message.
struct Head {
    kind: Kind,
    len_bytes: u64,
    descriptors: Vec<OwnedFd>,
    sender: Option<UCred>,
}

/// One end of the socket.
pub(crate) struct Channel(UnixStream);

impl Channel {
    /// Sends and receives on a connected socket.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(STEP))?;
        stream.set_write_timeout(Some(STEP))?;
        Ok(Self(stream))
    }

    /// Stops both ends from sending. What has been sent can still be received.
    pub(crate) fn shut_down(&self) {
        // This fails if the other end is closed.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Makes the kernel add the sender's identity.
    pub(crate) fn know_sender(&self) -> io::Result<()> {
        Ok(set_socket_passcred(&self.0, true)?)
    }

    pub(crate) fn send(&self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        self.send_with(kind, bytes, &[])
    }

    pub(crate) fn send_descriptors(&self, all: &[BorrowedFd<'_>]) -> io::Result<()> {
        all.chunks(MOST_DESCRIPTORS).try_for_each(|some| self.send_with(Kind::Descriptors, &[], some))
    }

    pub(crate) fn send_with(&self, kind: Kind, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&(kind as u32).to_le_bytes());
        header[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent = loop {
            match sendmsg(&self.0, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                result => break result?,
            }
        };
        self.write_all(header.get(sent..).unwrap_or_default())?;
        self.write_all(bytes)
    }

    /// Like the standard library's `write`, but without a signal if the other end is closed.
    fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for at most `time`. Returns whether a message begins to arrive or the other end is
    /// closed.
    pub(crate) fn is_readable_within(&self, time: Duration) -> bool {
        wait_for(&[self.as_fd()], time)
    }

    /// Receives the next message. Memory is taken as its bytes arrive.
    pub(crate) fn receive(&self) -> io::Result<Message> {
        let head = self.receive_head()?;
        self.receive_rest(head)
    }

    fn receive_rest(&self, head: Head) -> io::Result<Message> {
        let Head { kind, len_bytes, descriptors, sender } = head;
        let mut bytes = Vec::new();
        let read = (&self.0).take(len_bytes).read_to_end(&mut bytes)?;
        if (read as u64) < len_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Message { kind, bytes, descriptors, sender })
    }

    fn receive_head(&self) -> io::Result<Head> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut header = [0; HEADER_BYTES];
        let (mut descriptors, mut sender, mut received) = (Vec::new(), None, 0);
        while received < HEADER_BYTES {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS), ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let room = &mut [IoSliceMut::new(&mut header[received..])];
            let got = match recvmsg(&self.0, room, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            for message in control.drain() {
                match message {
                    RecvAncillaryMessage::ScmRights(files) => descriptors.extend(files),
                    RecvAncillaryMessage::ScmCredentials(found) => sender = Some(found),
                    _ => {}
                }
            }
            if got.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            received += got.bytes;
        }
        let (magic, rest) = header.split_at(4);
        let number = rest.first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
        let len_bytes = rest.last_chunk().map_or(0, |len| u64::from_le_bytes(*len));
        let kind =
            Kind::of(number).filter(|_| magic == MAGIC).ok_or_else(|| invalid("a message of an unknown kind"))?;
        if len_bytes > MOST_BYTES {
            return Err(invalid("a message is longer than possible"));
        }
        Ok(Head { kind, len_bytes, descriptors, sender })
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of these is readable or has ended. Returns whether one is.
pub(super) fn wait_for(all: &[BorrowedFd<'_>], time: Duration) -> bool {
    let deadline = Instant::now() + time;
    let mut polled: Vec<_> = all.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut polled, Some(&left)) {
            Err(Errno::INTR) => {}
            result => return result.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Sends a stream.
pub(crate) struct PoolWriter<'a> {
    channel: &'a Channel,
    sent_bytes: u64,
}

impl Write for PoolWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = bytes.get(..PART_BYTES).unwrap_or(bytes);
        if !part.is_empty() {
            self.channel.send(Kind::Pool, part)?;
        }
        self.sent_bytes += part.len() as u64;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> PoolWriter<'a> {
    pub(crate) fn new(channel: &'a Channel) -> Self {
        Self { channel, sent_bytes: 0 }
    }

    /// Ends the stream. Returns how many bytes of it were sent.
    pub(crate) fn end(self) -> io::Result<u64> {
        self.channel.send(Kind::Pool, &[]).map(|()| self.sent_bytes)
    }
}

/// Receives a stream, and passes on messages between its parts.
pub(crate) struct PoolReader<'a> {
    channel: &'a Channel,
    other: &'a mut dyn FnMut(Message) -> io::Result<()>,
    /// Bytes of the current message that have not been read.
    left_bytes: u64,
    has_ended: bool,
    is_void: bool,
}

impl<'a> PoolReader<'a> {
    pub(crate) fn new(channel: &'a Channel, other: &'a mut dyn FnMut(Message) -> io::Result<()>) -> Self {
        Self { channel, other, left_bytes: 0, has_ended: false, is_void: false }
    }

    /// Returns whether the sender has said that the stream will not be completed.
    pub(crate) fn is_void(&self) -> bool {
        self.is_void
    }
}

impl Read for PoolReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.left_bytes == 0 && !self.has_ended {
            let head = self.channel.receive_head()?;
            match head.kind {
                Kind::Pool => {
                    self.left_bytes = head.len_bytes;
                    self.has_ended = head.len_bytes == 0;
                }
                Kind::Failed => {
                    let message = self.channel.receive_rest(head)?;
                    return Err(io::Error::other(String::from_utf8_lossy(&message.bytes)));
                }
                Kind::Void => {
                    self.is_void = true;
                    return Err(io::Error::other("the stream is void"));
                }
                _ => (self.other)(self.channel.receive_rest(head)?)?,
            }
        }
        let most = usize::try_from(self.left_bytes).unwrap_or(usize::MAX).min(buf.len());
        if most == 0 {
            return Ok(0);
        }
        let count = (&self.channel.0).read(buf.get_mut(..most).unwrap_or_default())?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left_bytes -= count as u64;
        Ok(count)
    }
}
