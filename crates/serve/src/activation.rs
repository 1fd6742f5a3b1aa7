//! Sockets passed by a service manager, using the protocol of `sd_listen_fds(3)`.

use std::{env, io, os::unix::net::UnixListener, process};

use listenfd::ListenFd;
use rustix::net::sockopt;

use crate::{Error, listen::Listener};

/// More sockets than any service has; a larger number is treated as an error in the environment.
const MAX_SOCKETS: u32 = 1024;

/// Sockets that a service manager passed to this process, in their order.
#[derive(Debug)]
pub struct Passed(Vec<(String, Listener)>);

impl Passed {
    /// Takes the passed sockets; returns `None` if there are none. A second call returns `None`,
    /// because the variables have been removed.
    ///
    /// Sockets passed to another process, for example to a shell that did not take them, are
    /// ignored: `LISTEN_PID` must be this process's id, and `LISTEN_FDS` a number above 0.
    ///
    /// # Errors
    /// [`Error::Activation`]: one of them is not a listening stream socket.
    pub fn take() -> Result<Option<Self>, Error> {
        if !is_for_us() {
            return Ok(None);
        }
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).map(|index| {
            let name = names.next().unwrap_or_default().to_owned();
            let listener = take(&mut passed, index).map_err(|source| Error::Activation { index, source })?;
            Ok((name, listener))
        });
        Ok(Some(Self(sockets.collect::<Result<_, Error>>()?)))
    }

    /// Takes the first Unix socket with this name (`FileDescriptorName=` in systemd's units,
    /// `LISTEN_FDNAMES`).
    pub fn take_unix(&mut self, name: &str) -> Option<UnixListener> {
        let is_it = |(found, listener): &(String, Listener)| found == name && listener.tcp_address().is_none();
        let index = self.0.iter().position(is_it)?;
        Some(self.0.remove(index).1.into_unix())
    }

    /// Returns whether no socket is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_listeners(self) -> impl Iterator<Item = Listener> {
        self.0.into_iter().map(|(_, listener)| listener)
    }
}

fn is_for_us() -> bool {
    let number = |name| env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    number("LISTEN_PID") == Some(process::id()) && number("LISTEN_FDS").is_some_and(|n| (1..=MAX_SOCKETS).contains(&n))
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
