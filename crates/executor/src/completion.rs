//! How a client's changes end.

use std::sync::Arc;

use pagefold_disk::Error;
use rustix::io::Errno;

use crate::client::Client;

/// Why a change failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// The device has refused it.
    #[error(transparent)]
    Device(#[from] Error),
    /// The export was removed (ESHUTDOWN).
    #[error("the export was removed")]
    Removed,
    /// The client left or the server stops before there was room (ESHUTDOWN).
    #[error("the client is leaving, and the memory limit is still reached")]
    Ended,
}

impl Failed {
    /// Returns Linux's number for the error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Device(error) => error.errno(),
            Self::Removed | Self::Ended => Errno::SHUTDOWN.raw_os_error(),
        }
    }
}

/// The owner of a change, to call when the change has ended: a transport replies. It is dropped
/// without a result if the device panics.
pub trait Completion: Send + 'static {
    /// Returns the client that made the change.
    fn client(&self) -> &Arc<Client>;

    /// Returns whether the change must not wait for room any longer.
    fn is_ending(&self) -> bool {
        self.client().has_ended()
    }

    /// Takes the result, at most once. It may wait for the peer, as long as it has a time limit.
    fn done(&mut self, result: Result<(), Failed>);
}

/// A completion that was called. It may keep a transport from ending, so a thread drops it last.
#[allow(dead_code, reason = "what it holds is only dropped")]
pub(crate) enum Called<C> {
    Own(C),
    Boxed(Box<dyn Completion>),
    /// The completion will be called later.
    Not,
}
