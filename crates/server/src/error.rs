//! Reasons why a server cannot listen, and texts of errors.

use std::{error, io, net::SocketAddr};

use pagefold_control::{ClientError, Failure};

/// Why a transport cannot serve.
pub type TransportError = Box<dyn error::Error + Send + Sync>;

/// Why a server cannot listen or has stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server cannot listen for NBD clients, or serve them.
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
    /// Another server cannot be taken over.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    /// The server cannot note which disks it keeps in memory for the next process.
    #[error("cannot record the list of disks: {0}")]
    Keep(String),
    /// The server cannot listen for clients that ask for metrics.
    #[error("cannot serve metrics on {address}")]
    Metrics {
        /// The address that cannot be used.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The system failed.
    #[error("{what}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Why a server cannot be taken over. It continues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// The server cannot be reached, or refuses.
    #[error(transparent)]
    Asking(#[from] ClientError),
    /// The server has found that something cannot be handed over.
    #[error("the server cannot be taken over: {0}")]
    Refused(String),
    /// The connection to the server broke.
    #[error("the server has not handed over everything")]
    Broken(#[source] io::Error),
    /// The other server has sent an invalid record.
    #[error("what the server hands over is not valid: {0}")]
    Invalid(String),
    /// This program cannot continue something that was handed over.
    #[error("this program cannot continue: {0}")]
    Cannot(String),
    /// Its clients can use TLS, and this program has no certificates.
    #[error("clients of the running server may use TLS, which needs certificates")]
    NoCertificates,
    /// The previous server has ended and could not leave its disks.
    #[error("the disks of the previous server are lost: {0}")]
    Lost(String),
    /// The server has not announced its end, and its process still exists.
    #[error("the previous server has not handed over its disks")]
    NotGiven,
}

/// Formats an error with its causes on one line, omitting each cause that the text already ends with,
/// and each text with which its cause begins.
pub fn message(error: &dyn error::Error) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        shown.pop_if(|last| text.strip_prefix(&**last).is_some_and(|rest| rest.starts_with(": ")));
        if shown.last().is_none_or(|last| !last.ends_with(&text)) {
            shown.push(text);
        }
        next = error.source();
    }
    shown.join(": ")
}

pub(crate) fn no_thread(source: io::Error) -> Error {
    Error::System { what: "cannot start a thread", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with this text and this cause.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Chain(&'static str, #[source] Option<Box<Chain>>);

    #[test]
    fn causes_are_shown_once() {
        for (texts, shown) in [
            (&["a", "opening a: no such file", "no such file"][..], "a: opening a: no such file"),
            (&["b", "a", "a: no such file"], "b: a: no such file"),
            (&["a", "b"], "a: b"),
        ] {
            let chain = texts.iter().rev().fold(None, |cause, text| Some(Box::new(Chain(text, cause))));
            assert_eq!(message(&chain.expect("an error")), shown);
        }
    }
}
