//! Streams of bytes that NBD runs over.

use std::{io, os::fd::OwnedFd, path::Path, time::Duration};

use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

/// A connected, ordered stream of bytes in both directions, used by several threads: at most one receives and one sends
/// at a time, any may shut it down.
pub trait Transport: Send + Sync + 'static {
    /// Receives some bytes; 0 is the end. [`io::ErrorKind::WouldBlock`] means that the receive timeout has passed.
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Sends some of `bytes`. [`io::ErrorKind::WouldBlock`] means that the send timeout has passed.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Sets how long `recv` waits.
    fn set_recv_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Sets how long `send` waits.
    fn set_send_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Ends both directions at once: what is waiting in `recv` or `send` returns.
    fn shutdown(&self);
}

/// A connected Unix or TCP socket.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Takes a connected stream socket.
    pub fn new(fd: impl Into<OwnedFd>) -> Self {
        Self(fd.into())
    }

    /// Connects to a Unix socket. When nobody accepts within `timeout`, [`io::ErrorKind::WouldBlock`].
    pub(crate) fn connect_unix(path: &Path, timeout: Duration) -> io::Result<Self> {
        let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let socket = Self(fd);
        // Linux waits for a place in the listener's queue as long as for room to send.
        socket.set_send_timeout(timeout)?;
        net::connect(&socket.0, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    /// Sends small messages at once and notices peers that vanished. Fails on what is not TCP.
    pub(crate) fn set_tcp_options(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.0, true)?;
        sockopt::set_socket_keepalive(&self.0, true)?;
        sockopt::set_tcp_keepidle(&self.0, Duration::from_secs(60))?;
        sockopt::set_tcp_keepintvl(&self.0, Duration::from_secs(10))?;
        sockopt::set_tcp_keepcnt(&self.0, 6)?;
        Ok(())
    }

    /// Nothing more is received, except for what has come already.
    pub(crate) fn shutdown_recv(&self) {
        // A peer that is gone has nothing to be shut down.
        let _ = net::shutdown(&self.0, Shutdown::Read);
    }
}

/// A timeout that the kernel takes for one: 0 would mean to wait for ever.
fn at_least_a_millisecond(timeout: Duration) -> Duration {
    timeout.max(Duration::from_millis(1))
}

impl Transport for Socket {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (received, _) = net::recv(&self.0, buf, RecvFlags::empty())?;
        Ok(received)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn set_recv_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(at_least_a_millisecond(timeout)))?)
    }

    fn set_send_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, Some(at_least_a_millisecond(timeout)))?)
    }

    fn shutdown(&self) {
        // A peer that is gone has nothing to be shut down.
        let _ = net::shutdown(&self.0, Shutdown::Both);
    }
}

/// Sends all of `bytes`.
pub(crate) fn send_all<T: Transport + ?Sized>(transport: &T, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match transport.send(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A peer's time to finish a phase, as a point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(std::time::Instant);

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(std::time::Instant::now() + timeout)
    }

    fn left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Fills `buf` before the deadline.
    pub(crate) fn recv_exact<T: Transport + ?Sized>(self, transport: &T, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            transport.set_recv_timeout(self.left()?)?;
            match transport.recv(buf) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => buf = buf.get_mut(received..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends all of `bytes` before the deadline.
    pub(crate) fn send_all<T: Transport + ?Sized>(self, transport: &T, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            transport.set_send_timeout(self.left()?)?;
            match transport.send(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
