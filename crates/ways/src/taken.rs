//! Continues the transports of another process.

use std::path::Path;

use pagefold_server::{TakenTransport, Transport, TransportError};

use crate::{SocketDirectory, sockets};

/// Returns the transport that continues what another process has handed over.
///
/// # Errors
/// The transport is unknown, or its state invalid.
pub fn taken(transport: TakenTransport) -> Result<Box<dyn Transport>, TransportError> {
    match transport.name.as_str() {
        sockets::NAME => Ok(Box::new(SocketDirectory::taken(transport)?)),
        name => Err(format!("the other process has handed over '{name}', which this version does not know").into()),
    }
}

/// Returns the directory that a transport continues, if it has one.
pub fn directory_of(transport: &TakenTransport) -> Option<&Path> {
    Some(Path::new(transport.state.get("directory")?.as_str()?))
}
