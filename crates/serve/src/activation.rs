//! Descriptors that a service manager passes as `sd_listen_fds(3)` describes: sockets, and those
//! that an earlier process of the service has stored.
#![allow(unsafe_code)] // descriptors that were open when the process began

use std::{
    env, io,
    os::{
        fd::{BorrowedFd, FromRawFd, OwnedFd},
        unix::net::UnixListener,
    },
    process,
};

use listenfd::ListenFd;
use rustix::{
    io::{FdFlags, fcntl_getfd, fcntl_setfd},
    net::sockopt,
};

use crate::{Error, listen::Listener};

/// An upper bound on the number of descriptors that any service has. A larger number is treated as
/// an error in the environment.
const MAX_DESCRIPTORS: u32 = 1 << 16;

/// Descriptors that a service manager passed to this process, in their order.
#[derive(Debug, Default)]
pub struct Passed {
    sockets: Vec<(String, Listener)>,
    stored: Vec<(String, OwnedFd)>,
}

/// Returns whether a name is that of a stored descriptor, `pagefold-PROCESS-WHAT`. By default,
/// systemd names a passed socket after its unit.
fn is_stored(name: &str) -> bool {
    Passed::parts_of(name).is_some()
}

impl Passed {
    /// The prefix of the names of descriptors that an earlier process of the service has stored.
    const STORED: &str = "pagefold-";

    /// Returns the name of a descriptor that this process stores.
    pub fn name_of(process: u32, what: &str) -> String {
        format!("{}{process}-{what}", Self::STORED)
    }

    /// Parses a descriptor's name: the process that has stored it, and the rest of the name.
    pub fn parts_of(name: &str) -> Option<(u32, &str)> {
        let (process, what) = name.strip_prefix(Self::STORED)?.split_once('-')?;
        let is_number = process.bytes().all(|byte| byte.is_ascii_digit());
        process.parse().ok().filter(|_| is_number).map(|process| (process, what))
    }

    /// Takes the passed descriptors; returns `None` if there are none. A second call returns `None`,
    /// because the variables have been removed.
    ///
    /// Descriptors passed to another process, for example to a shell that did not take them, are
    /// ignored: `LISTEN_PID` must be this process's id, and `LISTEN_FDS` a number above 0.
    ///
    /// # Errors
    /// [`Error::Activation`]: one of them is not open, or was not [stored](Self::parts_of) and is not a
    /// listening stream socket.
    pub fn take() -> Result<Option<Self>, Error> {
        if !is_for_us() {
            return Ok(None);
        }
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let mut all = Self::default();
        for index in 0..passed.len() {
            let name = names.next().unwrap_or_default().to_owned();
            let failed = |source| Error::Activation { index, source };
            if is_stored(&name) {
                all.stored.push((name, take_stored(&mut passed, index).map_err(failed)?));
            } else {
                all.sockets.push((name, take(&mut passed, index).map_err(failed)?));
            }
        }
        Ok(Some(all))
    }

    /// Takes the descriptors that an earlier process of the service has stored, with their names.
    pub fn take_stored(&mut self) -> Vec<(String, OwnedFd)> {
        std::mem::take(&mut self.stored)
    }

    /// Takes the first Unix socket with this name (`FileDescriptorName=` in systemd's units,
    /// `LISTEN_FDNAMES`).
    pub fn take_unix(&mut self, name: &str) -> Option<UnixListener> {
        let is_it = |(found, listener): &(String, Listener)| found == name && listener.tcp_address().is_none();
        let index = self.sockets.iter().position(is_it)?;
        Some(self.sockets.remove(index).1.into_unix())
    }

    /// Returns whether no socket is left.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    pub(crate) fn into_listeners(self) -> impl Iterator<Item = Listener> {
        self.sockets.into_iter().map(|(_, listener)| listener)
    }
}

fn is_for_us() -> bool {
    let number = |name| env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    number("LISTEN_PID") == Some(process::id())
        && number("LISTEN_FDS").is_some_and(|n| (1..=MAX_DESCRIPTORS).contains(&n))
}

/// Takes a descriptor of any kind.
fn take_stored(passed: &mut ListenFd, index: usize) -> io::Result<OwnedFd> {
    let number = passed.take_raw_fd(index)?.ok_or(io::ErrorKind::NotFound)?;
    // SAFETY: it is used for this call only, which fails if nothing is open under this number.
    fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: it is open. The service manager opened it for this process before the process
    // started, and `passed` returns it once, so nothing else in the process owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<Listener> {
    // A socket of another kind stays in `passed`.
    if let Ok(Some(listener)) = passed.take_tcp_listener(index) {
        listener.set_nonblocking(true)?;
        does_listen(&listener)?;
        let address = listener.local_addr()?;
        return Ok(Listener::passed(listener.into(), Some(address), None));
    }
    let listener = passed.take_unix_listener(index)?.ok_or(io::ErrorKind::NotFound)?;
    listener.set_nonblocking(true)?;
    does_listen(&listener)?;
    let path = listener.local_addr()?.as_pathname().map(Into::into);
    Ok(Listener::passed(listener.into(), None, path))
}

/// Fails if the socket does not listen. A connected socket, for example of a unit with
/// `Accept=yes`, often polls as ready, but nothing can ever be accepted from it.
fn does_listen(socket: impl std::os::fd::AsFd) -> io::Result<()> {
    if sockopt::socket_acceptconn(socket)? {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"))
    }
}
