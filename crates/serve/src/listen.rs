//! Listening sockets.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, chownat, fchmod, flock, fstat, open},
    io::{Errno, ioctl_fionbio},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname, socket_with, sockopt,
    },
    process::geteuid,
};

use crate::{
    Error, adopt_error::AdoptError, error::MAX_UNIX_PATH_BYTES, handover::ListenerState, transport::Socket, vsock,
};

/// How long to wait for a connection to a socket that may be stale.
const PROBE: Duration = Duration::from_millis(500);
/// How long to wait while another server keeps a socket's directory locked.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Pause between two attempts to lock the directory.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Clients that may wait to be accepted: a burst of a whole CI farm. The kernel allows fewer if
/// `net.core.somaxconn` is smaller.
const BACKLOG: i32 = 4096;

/// Mode and group of the file of a Unix socket that a server creates, whatever the umask. By
/// default, only the server's user may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Mode of the file. Connecting needs the permission to write.
    pub mode: u32,
    /// Group of the file; the process's by default. Only root may choose a group that the process's
    /// user does not belong to.
    pub group: Option<u32>,
}

impl Default for Permissions {
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

/// A listening socket. Dropping it removes the Unix socket's file, if it created one.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Dropped before the socket: the open socket keeps the file's inode number from being reused
    /// for another server's file.
    file: OwnFile,
    fd: OwnedFd,
    tcp: Option<SocketAddr>,
    /// Context id and port of a vsock socket.
    vsock: Option<(u32, u32)>,
    /// Path of a Unix socket that has one.
    path: Option<PathBuf>,
    /// Whether a service manager has passed it.
    is_passed: bool,
}

/// The file of a listening socket, if the server has created it.
#[derive(Debug, Default)]
pub struct OwnFile(Mutex<Option<SocketFile>>);

impl OwnFile {
    /// Holds this file.
    pub fn new(file: Option<SocketFile>) -> Self {
        Self(Mutex::new(file))
    }

    fn lock(&self) -> MutexGuard<'_, Option<SocketFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the server has created the file, and it is still there.
    pub fn is_there(&self) -> bool {
        self.lock().as_ref().is_some_and(SocketFile::is_there)
    }

    /// Takes the file over from another server.
    pub fn own(&self) {
        self.lock().iter_mut().for_each(SocketFile::own);
    }

    /// Leaves the file to another server.
    pub fn leave(&self) {
        self.lock().iter_mut().for_each(SocketFile::leave);
    }

    /// Removes the file.
    pub fn remove(&self) {
        let file = self.lock().take();
        // Removing a file may take time, so the lock is released first.
        drop(file);
    }
}

/// The file of a Unix socket created here, removed when this value is dropped. The file is
/// identified by its inode, so another server's file is not removed.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
    is_owned: bool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_owned {
            return;
        }
        // Without the lock, the file stays and the next server finds it stale.
        let Ok(_lock) = lock_directory(&self.path) else { return };
        if self.is_there() {
            // The file may already be gone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl SocketFile {
    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file is still there, and was not replaced.
    pub fn is_there(&self) -> bool {
        let is_this = |found: &fs::Metadata| found.file_type().is_socket() && (found.dev(), found.ino()) == self.inode;
        fs::symlink_metadata(&self.path).is_ok_and(|found| is_this(&found))
    }

    /// Returns the device and the number of the file's inode.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// Describes a file by what another server knows of it, without looking whether it is still there. Dropping
    /// this removes it only once this is [owned](Self::own).
    pub fn known_to_another(path: PathBuf, inode: (u64, u64)) -> Self {
        Self { path, inode, is_owned: false }
    }

    /// Describes the file of a socket that another server has created. Dropping this removes it
    /// only once this is [owned](Self::own).
    ///
    /// # Errors
    /// There is no socket at `path`.
    pub fn of_another(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        if !found.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a socket"));
        }
        Ok(Self { path: path.into(), inode: (found.dev(), found.ino()), is_owned: false })
    }

    /// Takes the file over: it is removed when this is dropped.
    pub fn own(&mut self) {
        self.is_owned = true;
    }

    /// Leaves the file to another server.
    pub fn leave(&mut self) {
        self.is_owned = false;
    }

    /// Gives the file another name in the same directory. Clients that are connected do not notice.
    ///
    /// # Errors
    /// The system's.
    pub fn rename(&mut self, path: &Path) -> io::Result<()> {
        let _lock = lock_directory(&self.path)?;
        fs::rename(&self.path, path)?;
        self.path = path.into();
        Ok(())
    }
}

/// Listens on a Unix socket with these permissions, for purposes other than NBD. A file left by a
/// server that has exited is replaced.
///
/// # Errors
/// Those of [`Builder::bind`](crate::Builder::bind) for a Unix socket.
pub fn listen_with(path: &Path, permissions: Permissions) -> Result<(UnixListener, SocketFile), Error> {
    make(path, permissions)
}

/// Listens on a Unix socket to which only this process's user may connect, for purposes other than
/// NBD. A file left by a server that has exited is replaced.
///
/// # Errors
/// Those of [`Builder::bind`](crate::Builder::bind) for a Unix socket.
pub fn listen_privately(path: &Path) -> Result<(UnixListener, SocketFile), Error> {
    make(path, Permissions::default())
}

/// Creates a Unix socket. If several servers find the same stale file, only one of them replaces
/// it.
fn make(path: &Path, permissions: Permissions) -> Result<(UnixListener, SocketFile), Error> {
    if path.as_os_str().len() > MAX_UNIX_PATH_BYTES {
        return Err(Error::PathTooLong(path.into()));
    }
    let failed = |source| Error::Unix { path: path.into(), source };
    // Held from the probe to `listen`: until it listens, a new socket looks stale to another
    // server.
    let _lock = lock_directory(path).map_err(failed)?;
    let listener = match listen(path, permissions) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            listen(path, permissions).map_err(failed)?
        }
        result => result.map_err(failed)?,
    };
    let found = fs::symlink_metadata(path).map_err(failed)?;
    let file = SocketFile { path: path.into(), inode: (found.dev(), found.ino()), is_owned: true };
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((listener, file))
}

/// Creates the socket. No client can connect before the file has its permissions, since the socket does
/// not listen before.
fn listen(path: &Path, permissions: Permissions) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the file the mode of the socket that is bound to it, less the umask.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let listens = permit(path, permissions).and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?));
    if let Err(error) = listens {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(socket.into())
}

/// Sets mode and group of the file of a socket, but not of a file that has replaced it.
fn permit(path: &Path, Permissions { mode, group }: Permissions) -> io::Result<()> {
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_uid != geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file has replaced the socket"));
    }
    // A mode or group that is already right is not set, since a filter of system calls may forbid
    // it.
    if let Some(group) = group.filter(|group| *group != found.st_gid) {
        chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    if found.st_mode & 0o7777 != mode {
        // A descriptor of this kind has no other way to change the mode.
        fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

impl Listener {
    /// Listens on a Unix socket.
    pub(crate) fn unix(path: &Path, permissions: Permissions) -> Result<Self, Error> {
        let (listener, file) = make(path, permissions)?;
        let file = OwnFile::new(Some(file));
        Ok(Self { file, fd: listener.into(), tcp: None, vsock: None, path: Some(path.into()), is_passed: false })
    }

    /// Returns the socket's file. Clients that connect before it is removed are still accepted.
    pub(crate) fn file(&self) -> &OwnFile {
        &self.file
    }

    /// Listens on a TCP address; port 0 means any free port.
    pub(crate) fn tcp(address: SocketAddr) -> Result<Self, Error> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => Error::AddressInUse(address),
            _ => Error::Tcp { address, source },
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        // The standard library has allowed 128 to wait.
        rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (file, fd) = (OwnFile::default(), listener.into());
        Ok(Self { file, fd, tcp: Some(address), vsock: None, path: None, is_passed: false })
    }

    /// Listens on a vsock port, for virtual machines on this host or, in a virtual machine, for the
    /// host. Without a context id, listens on all context ids of the machine.
    pub(crate) fn vsock(cid: Option<u32>, port: u32) -> Result<Self, Error> {
        let fd = vsock::listen(cid, port, BACKLOG).map_err(|source| Error::Vsock { port, source })?;
        let vsock = Some((vsock::reachable(cid), port));
        Ok(Self { file: OwnFile::default(), fd, tcp: None, vsock, path: None, is_passed: false })
    }

    /// Takes over a socket that already listens. Its file is left alone.
    pub(crate) fn passed(fd: OwnedFd, tcp: Option<SocketAddr>, path: Option<PathBuf>) -> Self {
        Self { file: OwnFile::default(), fd, tcp, vsock: None, path, is_passed: true }
    }

    /// Takes over a socket of another server, whose file stays until it is [owned](OwnFile::own).
    pub(crate) fn of_state(state: &ListenerState, fd: OwnedFd) -> Result<Self, AdoptError> {
        let not_listening = AdoptError::NotASocket("a listening socket");
        let listens = sockopt::socket_acceptconn(&fd).unwrap_or(false);
        let is_stream = sockopt::socket_type(&fd).is_ok_and(|kind| kind == SocketType::STREAM);
        let address = getsockname(&fd).ok().filter(|_| listens && is_stream).ok_or(not_listening)?;
        ioctl_fionbio(&fd, true).map_err(|error| AdoptError::System(error.to_string()))?;
        let tcp = SocketAddr::try_from(address.clone()).ok();
        let vsock = state.vsock.filter(|_| address.address_family() == AddressFamily::VSOCK);
        let path = state.path.clone().filter(|_| address.address_family() == AddressFamily::UNIX);
        // A file that was removed or replaced does not belong to this server.
        let file = path.as_ref().filter(|_| state.owns_file).and_then(|path| SocketFile::of_another(path).ok());
        Ok(Self { file: OwnFile::new(file), fd, tcp, vsock, path, is_passed: state.is_passed })
    }

    pub(crate) fn state(&self, export: Option<String>) -> ListenerState {
        let Self { file, path, vsock, is_passed, .. } = self;
        ListenerState { path: path.clone(), owns_file: file.is_there(), is_passed: *is_passed, vsock: *vsock, export }
    }

    /// Returns the TCP address, with the actual port.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Returns the context id under which others reach a vsock socket, and its port.
    pub(crate) fn vsock_address(&self) -> Option<(u32, u32)> {
        self.vsock
    }

    /// Returns whether processes of other systems can connect.
    pub(crate) fn is_on_network(&self) -> bool {
        self.tcp.is_some() || self.vsock.is_some()
    }

    /// Converts a Unix socket to the standard library's type. It must be a Unix socket.
    pub(crate) fn into_unix(self) -> UnixListener {
        self.fd.into()
    }

    /// Returns the path of the Unix socket.
    pub(crate) fn unix_path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Accepts a waiting connection; never blocks.
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

/// Locks the directory of `path` against other servers that start or stop there, until the result
/// is dropped.
///
/// If the directory cannot be locked (it is unreadable, or its file system has no such locks),
/// returns `None` and the caller proceeds without a lock. Fails with [`io::ErrorKind::TimedOut`] if
/// another process keeps it locked.
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

/// Removes the file of a socket on which no server listens. The caller has locked the directory.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Unix { path: path.into(), source };
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(Error::NotASocket(path.into()));
    }
    match Socket::connect_unix(path, PROBE) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(failed),
        Ok(_) => Err(Error::PathInUse(path.into())),
        // The listener's queue is full, so it has an owner.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Error::PathInUse(path.into())),
        Err(source) => Err(failed(source)),
    }
}
