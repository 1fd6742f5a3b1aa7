//! Why a client cannot be taken over.

/// Why the state of a client cannot be continued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The export does not exist.
    #[error("a client uses the export `{0}`, which does not exist")]
    NoExport(String),
    /// Its fields contradict each other or the protocol.
    #[error("the state of a client is not valid: {0}")]
    Invalid(&'static str),
    /// The descriptor is not that of such a socket.
    #[error("a descriptor is not {0}")]
    NotASocket(&'static str),
    /// There is no memory for it.
    #[error("the memory limit leaves no room for a client")]
    Memory,
    /// The system has failed.
    #[error("a client's socket cannot be watched: {0}")]
    System(String),
}
