//! Byte streams that NBD runs over.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};

use crate::{adopt_error::AdoptError, peer::Peer, vsock};

/// A connected, ordered, bidirectional byte stream, used by several threads: at most one receives
/// and one sends at a time, and any may shut it down.
pub trait Transport: Send + Sync + 'static {
    /// Receives some bytes; 0 means the end of the stream. [`io::ErrorKind::WouldBlock`] means that
    /// the receive timeout has expired.
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Receives what has arrived without waiting; `None` if that is nothing, and 0 at the end of the
    /// stream.
    fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends part of `bytes` as soon as there is room. [`io::ErrorKind::WouldBlock`] means that
    /// there was no room for `timeout`.
    fn send(&self, bytes: &[u8], timeout: Duration) -> io::Result<usize>;

    /// Sets how long `recv` waits.
    fn set_recv_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Shuts down both directions: calls blocked in `recv` or `send` return.
    fn shutdown(&self);

    /// Returns whether the peer will send nothing beyond what has already arrived. A transport that
    /// does not know returns `false`.
    fn has_ended(&self) -> bool {
        false
    }

    /// Returns whether it holds data that have arrived and that `recv` has not returned. The kernel
    /// does not report such data. Only the receiving thread calls this.
    fn holds_data(&self) -> bool {
        false
    }

    /// Returns whether a `send` that found no room has sent nothing, so that it can be repeated.
    /// Otherwise nothing can be sent after it.
    fn can_send_again(&self) -> bool {
        true
    }

    /// Returns buffers that are empty. Any thread may call this at any time.
    fn rest(&self) {}
}

/// A connected Unix or TCP socket.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Wraps a connected stream socket.
    pub fn new(fd: impl Into<OwnedFd>) -> Self {
        Self(fd.into())
    }

    /// Takes a client's socket over from another server.
    pub(crate) fn of_another(fd: OwnedFd) -> Result<Self, AdoptError> {
        let is_stream = sockopt::socket_type(&fd).is_ok_and(|kind| kind == SocketType::STREAM);
        let listens = sockopt::socket_acceptconn(&fd).unwrap_or(true);
        if is_stream && !listens { Ok(Self(fd)) } else { Err(AdoptError::NotASocket("a client's socket")) }
    }

    /// Connects to a Unix socket. Fails with [`io::ErrorKind::WouldBlock`] if no server accepts within
    /// `timeout`.
    pub(crate) fn connect_unix(path: &Path, timeout: Duration) -> io::Result<Self> {
        let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let socket = Self(fd);
        // On Linux, the send timeout also limits the wait for a place in the listener's queue.
        sockopt::set_socket_timeout(&socket.0, sockopt::Timeout::Send, Some(for_socket(timeout)))?;
        net::connect(&socket.0, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    /// Sends small messages immediately and detects peers that have vanished. Fails on non-TCP sockets.
    pub(crate) fn set_tcp_options(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.0, true)?;
        sockopt::set_socket_keepalive(&self.0, true)?;
        sockopt::set_tcp_keepidle(&self.0, Duration::from_secs(60))?;
        sockopt::set_tcp_keepintvl(&self.0, Duration::from_secs(10))?;
        sockopt::set_tcp_keepcnt(&self.0, 6)?;
        Ok(())
    }

    /// Returns who is at the other end.
    pub(crate) fn peer(&self) -> Peer {
        match net::getpeername(&self.0).ok().flatten() {
            Some(address) if address.address_family() == AddressFamily::UNIX => sockopt::socket_peercred(&self.0)
                .map_or(Peer::Unknown, |found| Peer::Process { pid: found.pid.as_raw_pid(), uid: found.uid.as_raw() }),
            Some(address) if address.address_family() == AddressFamily::VSOCK => {
                vsock::peer(self.0.as_fd()).map_or(Peer::Unknown, |(cid, port)| Peer::Vsock { cid, port })
            }
            Some(address) => SocketAddr::try_from(address).map_or(Peer::Unknown, Peer::Address),
            None => Peer::Unknown,
        }
    }

    /// Sends as much of `bytes` as there is room for without waiting; `None` if there is none.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        loop {
            match net::send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => return Ok(Some(sent)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns whether data have arrived that were not received.
    pub(crate) fn has_data(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        net::recv(&self.0, &mut [0], flags).is_ok_and(|(received, _)| received != 0)
    }

    /// Stops receiving, except for data that have already arrived.
    pub(crate) fn shutdown_recv(&self) {
        // The peer may already be gone.
        let _ = net::shutdown(&self.0, Shutdown::Read);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Clamps a timeout to what the kernel accepts: 0 would mean to wait forever, and very long ones do
/// not fit.
fn for_socket(timeout: Duration) -> Duration {
    timeout.clamp(Duration::from_millis(1), Duration::from_secs(86_400))
}

pub(crate) fn at_most_a_day(timeout: Duration) -> Timespec {
    let timeout = timeout.min(Duration::from_secs(86_400));
    Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) }
}

impl Transport for Socket {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (received, _) = net::recv(&self.0, buf, RecvFlags::empty())?;
        Ok(received)
    }

    fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match net::recv(&self.0, &mut *buf, RecvFlags::DONTWAIT) {
                Ok((received, _)) => return Ok(Some(received)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// This has its own timeout: the kernel's restarts whenever there is room for a part of
    /// `bytes`.
    fn send(&self, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
        let deadline = Deadline::after(timeout);
        loop {
            match net::send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {}
                result => return Ok(result?),
            }
            let left = deadline.left().map_err(|_| io::ErrorKind::WouldBlock)?;
            let mut polled = [PollFd::new(&self.0, PollFlags::OUT)];
            match poll(&mut polled, Some(&at_most_a_day(left))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn set_recv_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(for_socket(timeout)))?)
    }

    fn shutdown(&self) {
        // The peer may already be gone.
        let _ = net::shutdown(&self.0, Shutdown::Both);
    }

    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::RDHUP)];
        poll(&mut polled, Some(&at_most_a_day(Duration::ZERO))).is_ok_and(|ready| ready != 0)
    }
}

/// Minimum average rate at which a peer must send or read a message, in bytes per second, in
/// addition to the time that it may be silent.
const LEAST_BYTES_PER_SECOND: u64 = 64 << 10;

/// The interval at which threads that wait for a peer check whether the server pauses.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// A peer's time for a phase or a message: how long it may be silent, and when it must be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// `None` is later than any clock can show.
    end: Option<Instant>,
    silence: Duration,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { end: Instant::now().checked_add(timeout), silence: timeout }
    }

    /// Returns the deadline for a message: `io_timeout`, plus more for a long one. The peer may be
    /// silent for at most `io_timeout`.
    pub(crate) fn of_message(len_bytes: usize, io_timeout: Duration) -> Self {
        Self { silence: io_timeout, ..Self::after(io_timeout.saturating_add(transfer_time(len_bytes))) }
    }

    /// Returns how long the next step may take.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let Some(end) = self.end else { return Ok(self.silence) };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.min(self.silence)) }
    }

    /// Receives some bytes before the deadline; 0 means the end of the stream. Changes the
    /// transport's receive timeout.
    pub(crate) fn recv<T: Transport + ?Sized>(self, transport: &T, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            transport.set_recv_timeout(self.left()?)?;
            match transport.recv(buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                result => return result,
            }
        }
    }

    /// Sends all of `bytes` before the deadline.
    pub(crate) fn send_all<T: Transport + ?Sized>(self, transport: &T, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match transport.send(bytes, self.left()?) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends `bytes` before the deadline. If there is no room for a part of them and `stops` returns
    /// true, returns that part.
    pub(crate) fn send_unless<'a, T: Transport + ?Sized>(
        self,
        transport: &T,
        mut bytes: &'a [u8],
        stops: &dyn Fn() -> bool,
    ) -> io::Result<&'a [u8]> {
        if !transport.can_send_again() {
            return self.send_all(transport, bytes).map(|()| &[][..]);
        }
        let mut silence: Option<Deadline> = None;
        while !bytes.is_empty() {
            let left = self.left()?;
            let left = match silence {
                Some(silence) => left.min(silence.left()?),
                None => left,
            };
            match transport.send(bytes, left.min(TICK)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => (bytes, silence) = (bytes.get(sent..).unwrap_or_default(), None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stops() {
                        break;
                    }
                    silence.get_or_insert_with(|| Self::after(self.silence.saturating_sub(TICK)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }
}

/// The time limit of a long message that is exchanged in parts. A peer may be silent for the usual
/// time; after that, one whose average rate is below [`LEAST_BYTES_PER_SECOND`] is dropped, however
/// long the message is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    begin: Instant,
    io_timeout: Duration,
    done_bytes: usize,
}

impl Pace {
    pub(crate) fn begin(io_timeout: Duration) -> Self {
        Self { begin: Instant::now(), io_timeout, done_bytes: 0 }
    }

    /// Returns the deadline of the next `bytes`.
    pub(crate) fn next(&self, bytes: usize) -> Deadline {
        let transfer = transfer_time(self.done_bytes.saturating_add(bytes));
        let end = self.begin.checked_add(self.io_timeout.saturating_add(transfer));
        Deadline { end, silence: self.io_timeout }
    }

    pub(crate) fn done(&mut self, bytes: usize) {
        self.done_bytes = self.done_bytes.saturating_add(bytes);
    }
}

fn transfer_time(bytes: usize) -> Duration {
    Duration::from_millis((bytes as u64).saturating_mul(1000) / LEAST_BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream, thread};

    use super::*;

    #[test]
    fn a_message_that_is_read_too_slowly_is_given_up_though_some_of_it_is_always_read() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let reader = thread::spawn(move || {
            let mut piece = vec![0; 64 << 10];
            let mut read = 0;
            while let Ok(count @ 1..) = theirs.read(&mut piece) {
                read += count;
                thread::sleep(Duration::from_millis(20));
            }
            read
        });
        let socket = Socket::new(ours);
        let message = vec![1; 32 << 20];
        let deadline = Deadline { silence: Duration::from_secs(60), ..Deadline::after(Duration::from_millis(300)) };
        let start = Instant::now();
        let error = deadline.send_all(&socket, &message).expect_err("32 MiB were read in 300 ms");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(5), "given up after {:?}", start.elapsed());
        drop(socket);
        assert!(reader.join().expect("the reader") > 0);
    }

    #[test]
    fn long_messages_have_more_time_and_no_time_is_too_long() {
        let io_timeout = Duration::from_secs(1);
        let left = |len_bytes| {
            let deadline = Deadline::of_message(len_bytes, io_timeout);
            deadline.end.expect("an end").saturating_duration_since(Instant::now()).as_secs()
        };
        assert!(left(0) <= 1 && (2..=3).contains(&left(128 << 10)));
        assert!((512..=513).contains(&left(32 << 20)));
        let mut pace = Pace::begin(io_timeout);
        let left = |pace: &Pace, bytes| pace.next(bytes).end.expect("an end").saturating_duration_since(Instant::now());
        assert!(left(&pace, 64 << 10) <= Duration::from_secs(2), "a slow peer has no more time for a longer message");
        pace.done(32 << 20);
        assert!(left(&pace, 0) > Duration::from_secs(500));
        let endless = Deadline::of_message(1, Duration::MAX);
        assert_eq!(endless.left().expect("time"), Duration::MAX);
    }
}
