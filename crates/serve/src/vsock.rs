//! Sockets between a host and its virtual machines.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use ::vsock::{VMADDR_CID_ANY, VMADDR_CID_HOST, VsockListener, VsockStream, get_local_cid};

/// Returns a socket that listens without blocking. Without a context id, it listens on all that the
/// machine has. `backlog` clients may wait to be accepted.
pub(crate) fn listen(cid: Option<u32>, port: u32, backlog: i32) -> io::Result<OwnedFd> {
    let listener = VsockListener::bind_with_cid_port(cid.unwrap_or(VMADDR_CID_ANY), port)?;
    rustix::net::listen(&listener, backlog)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// Returns the context id and the port of the other end of a connection.
pub(crate) fn peer(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let address = VsockStream::from(fd.try_clone_to_owned().ok()?).peer_addr().ok()?;
    Some((address.cid(), address.port()))
}

/// Returns the context id under which others reach a socket. A host without virtual machines may
/// not know its own, which is always the same.
pub(crate) fn reachable(cid: Option<u32>) -> u32 {
    let own = || get_local_cid().ok().filter(|&own| own != VMADDR_CID_ANY);
    cid.or_else(own).unwrap_or(VMADDR_CID_HOST)
}
