//! Lines on a socket, bounded in length and time.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
    process::Uid,
};

/// Maximum length of a request in bytes, including the line end.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Bytes per read.
const CHUNK_BYTES: usize = 8 << 10;

/// Reasons why a line could not be received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    /// The line is longer than allowed.
    #[error("a line has more than {0} bytes")]
    TooLong(usize),
    /// The line was not complete in time.
    #[error("incomplete line after {} s", .0.as_secs_f32())]
    TooSlow(Duration),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Bounds of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum length in bytes, including the line end.
    pub(crate) max_bytes: usize,
    /// Time within which the line must be complete.
    pub(crate) time: Duration,
    /// Whether the time starts with the line's first byte, rather than immediately.
    pub(crate) idle: bool,
}

/// Received data that have not been consumed.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// The last file that arrived with the data.
    passed: Option<OwnedFd>,
    /// The sender of the last bytes, if the socket requests it from the kernel.
    sender: Option<Uid>,
}

impl Lines {
    /// Returns whether no data were received that have not been consumed.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next line without its end, or `None` when the peer sends no more. An
    /// unterminated rest at the end of the stream is a line.
    pub(crate) fn next(&mut self, stream: &UnixStream, bounds: Bounds) -> Result<Option<Vec<u8>>, LineError> {
        let mut start = (!bounds.idle || !self.bytes.is_empty()).then(Instant::now);
        let mut looked_bytes = 0;
        loop {
            if let Some(at) = self.bytes[looked_bytes..].iter().position(|&byte| byte == b'\n') {
                let rest = self.bytes.split_off(looked_bytes + at + 1);
                let mut line = std::mem::replace(&mut self.bytes, rest);
                line.pop();
                return if line.len() < bounds.max_bytes {
                    Ok(Some(line))
                } else {
                    Err(LineError::TooLong(bounds.max_bytes))
                };
            }
            looked_bytes = self.bytes.len();
            if looked_bytes >= bounds.max_bytes {
                return Err(LineError::TooLong(bounds.max_bytes));
            }
            let left = start.map(|start| bounds.time.saturating_sub(start.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(LineError::TooSlow(bounds.time));
            }
            stream.set_read_timeout(left)?;
            let mut chunk = [0; CHUNK_BYTES];
            match self.receive(stream, &mut chunk) {
                Ok(0) if self.bytes.is_empty() => return Ok(None),
                Ok(0) => return Ok(Some(std::mem::take(&mut self.bytes))),
                Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
                // On a timeout, the next iteration finds that no time is left.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            start = start.or_else(|| Some(Instant::now()));
        }
    }

    /// Returns the file that came with the lines so far, if one did.
    pub(crate) fn take_passed(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    /// Returns the user who sent the last bytes, if the socket requests it from the kernel.
    pub(crate) fn sender(&self) -> Option<Uid> {
        self.sender
    }

    fn receive(&mut self, stream: &UnixStream, chunk: &mut [u8]) -> Result<usize, Errno> {
        // Further files are closed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(stream, &mut [IoSliceMut::new(chunk)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(files) => self.passed = files.last().or(self.passed.take()),
                RecvAncillaryMessage::ScmCredentials(sender) => self.sender = Some(sender.uid),
                _ => {}
            }
        }
        Ok(received.bytes)
    }
}

/// Sends a line and its end within `time`.
pub(crate) fn send(stream: &UnixStream, line: &str, time: Duration) -> io::Result<()> {
    let sending = Sending::begin(stream, time);
    sending.part(line)?;
    sending.part("\n")
}

/// Like [`send`], with a file.
pub(crate) fn send_with(stream: &UnixStream, line: &str, file: BorrowedFd<'_>, time: Duration) -> io::Result<()> {
    let sending = Sending::begin(stream, time);
    stream.set_write_timeout(Some(time))?;
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let sent = sendmsg(stream, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    sending.part(line.get(sent..).unwrap_or_default())?;
    sending.part("\n")
}

/// A line that is sent in parts, with a time limit for all of them.
pub(crate) struct Sending<'a> {
    stream: &'a UnixStream,
    start: Instant,
    time: Duration,
}

impl<'a> Sending<'a> {
    /// Starts the time.
    pub(crate) fn begin(stream: &'a UnixStream, time: Duration) -> Self {
        Self { stream, start: Instant::now(), time }
    }

    pub(crate) fn part(&self, part: &str) -> io::Result<()> {
        let mut bytes = part.as_bytes();
        while !bytes.is_empty() {
            let left = self.time.saturating_sub(self.start.elapsed());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_write_timeout(Some(left))?;
            let mut target = self.stream;
            match target.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
