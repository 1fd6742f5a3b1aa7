//! Sockets to listen on.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
    net::{SocketFlags, accept_with},
};

use crate::{Error, error::MAX_UNIX_PATH_BYTES, transport::Socket};

/// How long a socket that may be stale is asked whether it is.
const PROBE: Duration = Duration::from_millis(500);
/// How long another server may keep the directory of a socket locked.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Between two tries to lock it.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// A listening socket; a Unix socket's file that it made goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Dropped before the socket, which keeps the file's inode number from being given to another server's file.
    file: Option<SocketFile>,
    fd: OwnedFd,
    tcp: Option<SocketAddr>,
}

/// The file of a Unix socket, known by its inode so that another server's file is not removed.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock the file stays, and the next server finds it stale.
        let Ok(_lock) = lock_directory(&self.path) else { return };
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.inode) {
            // Gone already is as good as removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Listens on a Unix socket. A file left by a server that is gone is replaced: of several servers that find it, one.
    pub(crate) fn unix(path: &Path) -> Result<Self, Error> {
        if path.as_os_str().len() > MAX_UNIX_PATH_BYTES {
            return Err(Error::PathTooLong(path.into()));
        }
        let failed = |source| Error::Unix { path: path.into(), source };
        // From the probe to `listen`: before it listens, a new socket looks stale to another server.
        let _lock = lock_directory(path).map_err(failed)?;
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path).map_err(failed)?
            }
            result => result.map_err(failed)?,
        };
        let found = fs::symlink_metadata(path).map_err(failed)?;
        let file = SocketFile { path: path.into(), inode: (found.dev(), found.ino()) };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { fd: listener.into(), tcp: None, file: Some(file) })
    }

    /// Listens on a TCP address; port 0 is any free one.
    pub(crate) fn tcp(address: SocketAddr) -> Result<Self, Error> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => Error::AddressInUse(address),
            _ => Error::Tcp { address, source },
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { fd: listener.into(), tcp: Some(address), file: None })
    }

    /// Takes over a socket that listens already; nothing is done to its file.
    pub(crate) fn passed(fd: OwnedFd, tcp: Option<SocketAddr>) -> Self {
        Self { file: None, fd, tcp }
    }

    /// The TCP address, with the port that was chosen.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// The path of the Unix socket that was made.
    pub(crate) fn unix_path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Takes a connection that waits; never blocks.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        let socket = Socket::new(accept_with(&self.fd, SocketFlags::CLOEXEC)?);
        if self.tcp.is_some() {
            socket.set_tcp_options()?;
        }
        Ok(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Locks the directory of `path` against other servers that start or stop there, until the result is dropped.
///
/// A directory that cannot be locked (it may not be read, or its file system has no such locks) is used without.
/// Fails with [`io::ErrorKind::TimedOut`] when another process keeps it locked.
fn lock_directory(path: &Path) -> io::Result<Option<OwnedFd>> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let Ok(fd) = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(None);
    };
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(fd)),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "another process keeps its directory locked"));
            }
            Err(_) => return Ok(None),
        }
    }
}

/// Removes a socket's file that nobody listens on. The directory is locked.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Unix { path: path.into(), source };
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(Error::NotASocket(path.into()));
    }
    match Socket::connect_unix(path, PROBE) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(failed),
        Ok(_) => Err(Error::PathInUse(path.into())),
        // Its queue is full, so it has an owner.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Error::PathInUse(path.into())),
        Err(source) => Err(failed(source)),
    }
}
