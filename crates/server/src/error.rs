//! Reasons why a server cannot listen, and errors in words.

use std::{error, io};

use pagefold_control::Failure;

/// Why a transport cannot serve.
pub type TransportError = Box<dyn error::Error + Send + Sync>;

/// Why a server cannot listen or has stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot listen for NBD clients, or serve them.
    #[error(transparent)]
    Serve(#[from] pagefold_serve::Error),
    /// A transport cannot serve.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The socket of a disk that was created before cannot be opened.
    #[error(transparent)]
    DiskSocket(Failure),
    /// A server listens once: it listens already, or has stopped.
    #[error("the server listens already, or has stopped")]
    Listening,
    /// The system failed.
    #[error("{what}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Formats an error with its causes, omitting each cause that the text already ends with.
pub(crate) fn message(error: &dyn error::Error) -> String {
    let mut message = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
        next = cause.source();
    }
    message
}
