//! Sockets that a service manager passes, by the protocol of `sd_listen_fds(3)`.

use std::{env, io, process};

use listenfd::ListenFd;
use rustix::net::sockopt;

use crate::{Error, listen::Listener};

/// More sockets than any service has; a larger number is not meant.
const MAX_SOCKETS: u32 = 1024;

/// Whether sockets were passed to this very process: `LISTEN_PID` is its id, and `LISTEN_FDS` a number above 0.
///
/// What was passed to another process, say to a shell that did not take it, is not ours. Once the sockets are taken, the
/// variables are gone.
pub(crate) fn is_for_us() -> bool {
    let number = |name| env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    number("LISTEN_PID") == Some(process::id()) && number("LISTEN_FDS").is_some_and(|n| (1..=MAX_SOCKETS).contains(&n))
}

/// Takes the passed sockets.
pub(crate) fn listeners() -> Result<Vec<Listener>, Error> {
    if !is_for_us() {
        return Err(Error::NoActivation);
    }
    let mut passed = ListenFd::from_env();
    (0..passed.len())
        .map(|index| take(&mut passed, index).map_err(|source| Error::Activation { index, source }))
        .collect()
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<Listener> {
    // A socket of another kind stays in `passed`.
    if let Ok(Some(listener)) = passed.take_tcp_listener(index) {
        listener.set_nonblocking(true)?;
        does_listen(&listener)?;
        let address = listener.local_addr()?;
        return Ok(Listener::passed(listener.into(), Some(address)));
    }
    let listener = passed.take_unix_listener(index)?.ok_or(io::ErrorKind::NotFound)?;
    listener.set_nonblocking(true)?;
    does_listen(&listener)?;
    Ok(Listener::passed(listener.into(), None))
}

/// A connected socket, say of a unit with `Accept=yes`, can never be accepted from, though it is often ready.
fn does_listen(socket: impl std::os::fd::AsFd) -> io::Result<()> {
    if sockopt::socket_acceptconn(socket)? {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"))
    }
}
