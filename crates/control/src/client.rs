//! A client of a server's control socket.

use std::{
    io,
    os::{fd::BorrowedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{net::sockopt::set_socket_passcred, process::Uid};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    Command, Failure, Greeting,
    lines::{Bounds, LineError, Lines, send, send_with},
    server::PROTOCOL,
};

/// Maximum length of an answer: a list of more disks than a server can have.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// How long a server may take to greet a client, which it does without waiting for any other.
const GREETING: Duration = Duration::from_secs(10);

/// Reasons why a command has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nothing listens on the path, or the system does not allow to connect.
    #[error("{} {}", if is_missing(source) { "no server is listening on" } else { "cannot connect to" }, path.display())]
    Connect {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The server reported a failure.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The server's protocol has a different version.
    #[error(
        "the server is pagefold {version} with control protocol {protocol}, but this program supports {PROTOCOL}: use pagefold {version}"
    )]
    Version {
        /// Protocol version of the server.
        protocol: u64,
        /// Program version of the server.
        version: String,
    },
    /// What listens on the path has accepted the connection, or will, but says nothing.
    #[error("the server on {} does not answer", .0.display())]
    Silent(PathBuf),
    /// The program that listens is not a pagefold server.
    #[error("{}: not a pagefold server: {what}", path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
        /// What it does differently.
        what: String,
    },
    /// The connection broke, or no answer arrived in time.
    #[error("the server did not reply")]
    Io(#[source] io::Error),
}

/// Returns whether the error means that nothing listens.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// A connection to a server's control socket.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    lines: Lines,
    time: Duration,
    next_id: u64,
}

/// A line that answers a request.
#[derive(Deserialize)]
struct Reply {
    id: Value,
    result: Option<Value>,
    error: Option<Failure>,
}

impl Client {
    /// Connects to the socket at `path`. Each answer must arrive within `time`, plus the duration
    /// that the command itself specifies.
    pub fn connect(path: &Path, time: Duration) -> Result<Self, ClientError> {
        let connect = |source| ClientError::Connect { path: path.into(), source };
        let stream = UnixStream::connect(path).map_err(connect)?;
        let mut client = Self { path: path.into(), stream, lines: Lines::default(), time, next_id: 1 };
        let line = match client.line(time.min(GREETING)) {
            Err(ClientError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(match client.lines.is_empty() {
                    true => ClientError::Silent(path.into()),
                    false => client.foreign("no greeting".to_owned()),
                });
            }
            line => line?,
        };
        let foreign = |error: serde_json::Error| client.foreign(error.to_string());
        let Greeting { name, protocol, version } = serde_json::from_slice(&line).map_err(foreign)?;
        match (name.as_str(), protocol) {
            ("pagefold", PROTOCOL) => Ok(client),
            ("pagefold", _) => Err(ClientError::Version { protocol, version }),
            _ => Err(client.foreign(format!("it calls itself {name:?}"))),
        }
    }

    /// Returns the user whose process answers. (The socket itself names who called `listen`, such as the
    /// service manager.)
    ///
    /// # Errors
    /// The server does not answer.
    pub fn server_user(&mut self) -> Result<Uid, ClientError> {
        set_socket_passcred(&self.stream, true).map_err(|error| ClientError::Io(error.into()))?;
        self.call::<Value>(&Command::List {})?;
        self.lines.sender().ok_or_else(|| self.foreign("its user is unknown".to_owned()))
    }

    /// Executes a command and returns its result: the record that the corresponding method of
    /// [`Manage`](crate::Manage) returns.
    pub fn call<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, ClientError> {
        self.call_with(command, None)
    }

    /// Like [`call`](Self::call), with a file that the command needs.
    pub fn call_with<T: DeserializeOwned>(
        &mut self,
        command: &Command,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<T, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        let request = request(id, command).map_err(|error| self.foreign(error.to_string()))?;
        let mut time = self.time;
        if let Command::Compact { seconds } = command {
            time = time.saturating_add(Duration::from_secs(*seconds));
        }
        // A server that refuses this client says why and closes the connection. Its message is read
        // even if nothing can be sent.
        let sent = match file {
            Some(file) => send_with(&self.stream, &request, file, time),
            None => send(&self.stream, &request, time),
        };
        let line = self.line(time).map_err(|error| match sent {
            Err(cause) => ClientError::Io(cause),
            Ok(()) => error,
        })?;
        let foreign = |error: serde_json::Error| self.foreign(error.to_string());
        match serde_json::from_slice(&line).map_err(foreign)? {
            Reply { error: Some(failure), .. } => Err(failure.into()),
            Reply { id: found, .. } if found != id => {
                Err(self.foreign(format!("it replied to request {found} instead of {id}")))
            }
            Reply { result, .. } => serde_json::from_value(result.unwrap_or_default()).map_err(foreign),
        }
    }

    /// Waits until the server closes the connection, which it does when it exits. Returns whether
    /// this happened within `time`.
    pub fn ends_within(&mut self, time: Duration) -> Result<bool, ClientError> {
        match self.line(time) {
            Err(ClientError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            // The server may have read no further request.
            Err(ClientError::Io(_)) => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Err(self.foreign("unexpected reply".to_owned())),
        }
    }

    fn foreign(&self, what: String) -> ClientError {
        ClientError::Foreign { path: self.path.clone(), what }
    }

    fn line(&mut self, time: Duration) -> Result<Vec<u8>, ClientError> {
        let bounds = Bounds { max_bytes: MAX_ANSWER_BYTES, time, idle: false };
        match self.lines.next(&self.stream, bounds) {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(ClientError::Io(io::ErrorKind::UnexpectedEof.into())),
            Err(LineError::TooSlow(_)) => Err(ClientError::Io(io::ErrorKind::TimedOut.into())),
            Err(LineError::TooLong(_)) => Err(self.foreign("incomplete reply".to_owned())),
            Err(LineError::Io(error)) => Err(ClientError::Io(error)),
        }
    }
}

/// Returns a request's line: the command's name and fields, and the id.
fn request(id: u64, command: &Command) -> Result<String, serde_json::Error> {
    let mut line = Map::from_iter([("id".to_owned(), Value::from(id))]);
    if let Value::Object(tagged) = serde_json::to_value(command)? {
        for (name, fields) in tagged {
            line.insert("command".to_owned(), Value::from(name));
            if let Value::Object(fields) = fields {
                line.extend(fields);
            }
        }
    }
    Ok(Value::Object(line).to_string())
}
