//! The service manager of a process, such as systemd, using the protocol of `sd_notify(3)`: what
//! the process reports to it, and the descriptors that it stores, which outlive the process
//! (`FDSTORE=1`).

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, ErrorKind, IoSlice, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd},
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

use crate::DescriptorStore;

/// How long a manager may take to receive a notification.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it may take to receive a message of the store, and to handle all of them.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
const ALL: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The service manager of a server, if it has one. All clones are the same.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager(Arc<ManagerState>);

#[derive(Debug, Default)]
struct ManagerState {
    /// The name of its socket.
    socket: OnceLock<OsString>,
    /// How many descriptors it stores for the service.
    room: OnceLock<usize>,
}

impl ServiceManager {
    /// Returns the manager that has started this process.
    pub fn of_environment() -> Self {
        let manager = Self::default();
        // Fails only if it is set, which it is not yet.
        env::var_os("NOTIFY_SOCKET").into_iter().for_each(|socket| _ = manager.0.socket.set(socket));
        // systemd sets this variable from version 254 on; for earlier ones, the package's unit
        // does.
        let room = env::var("FDSTORE").ok().and_then(|room| room.parse().ok());
        room.into_iter().for_each(|room| _ = manager.0.room.set(room));
        manager
    }

    /// Uses another server's socket, and its manager's store, unless this process has its own.
    pub fn take(&self, socket: &str, room: usize) {
        let _ = self.0.socket.set(socket.into());
        let _ = self.0.room.set(room);
    }

    /// Returns the name of its socket.
    pub fn socket(&self) -> Option<&OsStr> {
        self.0.socket.get().map(|socket| &**socket)
    }

    /// Returns how many descriptors it stores for this service; 0 if it stores none, or does not say so.
    pub fn store_room(&self) -> usize {
        self.0.room.get().copied().filter(|_| self.socket().is_some()).unwrap_or(0)
    }

    /// Returns its store of descriptors.
    pub fn store(&self) -> Arc<dyn DescriptorStore> {
        Arc::new(ManagersStore { manager: self.clone(), socket: Mutex::default() })
    }

    /// Returns the address of its socket.
    fn address(&self) -> io::Result<Option<SocketAddr>> {
        let Some(name) = self.socket() else { return Ok(None) };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
        };
        address.map(Some)
    }

    /// Sends `state` to it. Failures are ignored: it has its own timeout.
    pub fn notify(&self, state: &str) {
        if let (Ok(Some(address)), Ok(socket)) = (self.address(), UnixDatagram::unbound()) {
            // A manager that does not receive does not delay the server for long.
            let _ = socket.set_write_timeout(Some(PATIENCE));
            let _ = socket.send_to_addr(state.as_bytes(), &address);
        }
    }
}

/// The store of the service manager that runs this server.
struct ManagersStore {
    manager: ServiceManager,
    /// Connected with the first message: before, the manager may not be known.
    socket: Mutex<Option<UnixDatagram>>,
}

impl ManagersStore {
    fn connect(&self) -> io::Result<UnixDatagram> {
        let address = self.manager.address()?.ok_or(io::ErrorKind::NotFound)?;
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(STORE_PATIENCE))?;
        Ok(socket)
    }

    fn send(&self, state: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = &*socket {
            match Self::send_on(socket, state, file) {
                // A restarted manager has a new socket.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotConnected) => {}
                sent => return sent,
            }
        }
        Self::send_on(socket.insert(self.connect()?), state, file)
    }

    fn send_on(socket: &UnixDatagram, state: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files
            && !control.push(SendAncillaryMessage::ScmRights(files))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            match sendmsg(socket, &[IoSlice::new(state.as_bytes())], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }
}

impl DescriptorStore for ManagersStore {
    fn room(&self) -> usize {
        self.manager.store_room()
    }

    fn begins_within(&self, time: Duration) {
        // A failure is ignored: the manager has its own limit.
        let _ = self.send(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()), None);
    }

    fn ends_within(&self, time: Duration) {
        // As above.
        let _ = self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", time.as_micros()), None);
    }

    fn keep(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        // A connection is kept even if the other end closes it: the next process must learn of it.
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), Some(file))
    }

    fn settle(&self) -> io::Result<()> {
        let (mut reader, writer) = io::pipe()?;
        self.send("BARRIER=1", Some(writer.as_fd()))?;
        drop(writer);
        // The manager closes the descriptor once it has handled all earlier messages.
        let mut polled = [PollFd::new(&reader, PollFlags::IN)];
        let ready = loop {
            match poll(&mut polled, Some(&ALL)) {
                Err(Errno::INTR) => {}
                result => break result?,
            }
        };
        if ready == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if reader.read(&mut [0])? == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None)
    }
}
