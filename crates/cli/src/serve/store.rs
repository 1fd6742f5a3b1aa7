//! The service manager's store of file descriptors, which outlives this process: `FDSTORE=1` of
//! `sd_notify(3)`.

use std::{
    io::{self, ErrorKind, IoSlice, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixDatagram,
    },
    sync::{Mutex, PoisonError},
    time::Duration,
};

use pagefold_server::DescriptorStore;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

use super::notify::Manager;

/// How long the manager may take to receive a message, and to have handled all of them.
const PATIENCE: Duration = Duration::from_secs(10);
const ALL: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The store of the service manager that runs this server.
pub(super) struct ManagersStore {
    manager: Manager,
    /// Connected with the first message: before, the manager may not be known.
    socket: Mutex<Option<UnixDatagram>>,
}

impl ManagersStore {
    pub(super) fn new(manager: Manager) -> Self {
        Self { manager, socket: Mutex::default() }
    }

    fn connect(&self) -> io::Result<UnixDatagram> {
        let address = self.manager.address()?.ok_or(io::ErrorKind::NotFound)?;
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    fn send(&self, state: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = &*socket {
            match Self::send_on(socket, state, file) {
                // A manager that was started again has another one.
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
        // As below.
        let _ = self.send(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()), None);
    }

    fn ends_within(&self, time: Duration) {
        // The manager has its own limit.
        let _ = self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", time.as_micros()), None);
    }

    fn keep(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        // A connection stays also if the other end closes it: the next process has to know.
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), Some(file))
    }

    fn settle(&self) -> io::Result<()> {
        let (mut reader, writer) = io::pipe()?;
        self.send("BARRIER=1", Some(writer.as_fd()))?;
        drop(writer);
        // The manager closes it once it has handled what was sent before.
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
