//! A small client: what does a server offer?
//!
//! It negotiates and never transmits. The server is not trusted: every wait ends at the deadline, and no reply is
//! larger than [`MAX_REPLY_BYTES`] or comes more often than [`MAX_REPLIES`] times, and all replies that one client hears
//! have [`MAX_REPLIES_BYTES`] at most. What a server says is cut to about a hundred characters in errors.

use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    path::PathBuf,
    time::Duration,
};

use crate::{
    protocol::{
        GREETING_BYTES, INIT_MAGIC, InfoQuery, InfoReply, MAX_STRING_BYTES, Malformed, OPTION_MAGIC,
        OPTION_REPLY_HEADER_BYTES, OptionHeader, OptionReplyHeader, handshake, info, option, parse_server_reply, reply,
    },
    transport::{Deadline, Socket},
};

/// Bytes of one reply at most.
pub const MAX_REPLY_BYTES: u32 = 64 << 10;
/// Replies to one option at most.
pub const MAX_REPLIES: usize = 10_000;
/// Bytes of all replies to one client at most.
pub const MAX_REPLIES_BYTES: usize = 4 << 20;
/// Characters of a server's string that an error quotes.
const QUOTED_CHARS: usize = 100;

/// Why a server could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The server does not answer in time.
    #[error("the server does not answer in time")]
    Timeout,
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// The server closed the connection before it said anything.
    #[error("the server closed the connection at once: it may have reached its limit on connections")]
    ClosedAtOnce,
    /// What answers does not follow the protocol.
    #[error("this is not an NBD server, or it breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The server refuses.
    #[error("the server refuses: {message} (reply {kind:#x})")]
    Refused {
        /// The reply's type.
        kind: u32,
        /// What the server says about it, cut when it is long.
        message: String,
    },
    /// No such export.
    #[error("the server has no export named `{}`", quoted(.0))]
    UnknownExport(String),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Timeout } else { Self::Io(error) }
    }
}

impl From<Malformed> for ClientError {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Magic(_) => Self::Protocol("a magic number is wrong"),
            Malformed::Lengths => Self::Protocol("lengths contradict each other"),
        }
    }
}

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Target {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address as `host:port`.
    Tcp(String),
}

/// What a server says about an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name as the server has it, if it says.
    pub name: Option<String>,
    /// A line about it, if the server says one.
    pub description: Option<String>,
    /// Bytes.
    pub size_bytes: u64,
    /// [`transmission`](crate::protocol::transmission) flags.
    pub flags: u16,
    /// Least, preferred and largest block, if it says.
    pub block_sizes_bytes: Option<(u32, u32, u32)>,
}

/// A connection in negotiation.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    deadline: Deadline,
    /// How much the server may still say.
    left_bytes: usize,
}

impl Client {
    /// Connects. Everything that is done with the client must be done within `timeout`.
    pub fn connect(target: &Target, timeout: Duration) -> Result<Self, ClientError> {
        let deadline = Deadline::after(timeout);
        let socket = match target {
            Target::Unix(path) => Socket::connect_unix(path, timeout).map_err(|source| match source.kind() {
                io::ErrorKind::WouldBlock => ClientError::Timeout,
                _ => ClientError::Connect { address: path.display().to_string(), source },
            })?,
            Target::Tcp(address) => connect_tcp(address, timeout)
                .map_err(|source| ClientError::Connect { address: address.clone(), source })?,
        };
        let client = Self { socket, deadline, left_bytes: MAX_REPLIES_BYTES };
        client.greet()?;
        Ok(client)
    }

    fn greet(&self) -> Result<(), ClientError> {
        let mut greeting = [0; GREETING_BYTES];
        self.deadline.recv_exact(&self.socket, &mut greeting).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => ClientError::ClosedAtOnce,
            _ => error.into(),
        })?;
        let mut expected = [0; 16];
        expected[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
        expected[8..].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        let (magic, flags) = greeting.split_at(16);
        if magic != expected {
            return Err(ClientError::Protocol("the greeting is not that of a newstyle server"));
        }
        let &[high, low] = flags else { return Err(ClientError::Protocol("the greeting is short")) };
        let offered = u16::from_be_bytes([high, low]);
        if offered & handshake::FIXED_NEWSTYLE == 0 {
            return Err(ClientError::Protocol("the server is too old to be asked"));
        }
        let flags = offered & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        self.deadline.send_all(&self.socket, &u32::from(flags).to_be_bytes())?;
        Ok(())
    }

    fn ask(&self, option: u32, data: &[u8]) -> Result<(), ClientError> {
        let len_bytes = u32::try_from(data.len()).map_err(|_| ClientError::Protocol("the question is too long"))?;
        let mut message = OptionHeader { option, len_bytes }.encode().to_vec();
        message.extend_from_slice(data);
        self.deadline.send_all(&self.socket, &message)?;
        Ok(())
    }

    /// Hears the replies to `option` up to the last, which is not told to `each`.
    fn hear(
        &mut self,
        option: u32,
        mut each: impl FnMut(u32, &[u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        for _ in 0..MAX_REPLIES {
            let mut header = [0; OPTION_REPLY_HEADER_BYTES];
            self.deadline.recv_exact(&self.socket, &mut header)?;
            let header = OptionReplyHeader::parse(&header)?;
            if header.option != option {
                return Err(ClientError::Protocol("a reply is to another option"));
            }
            if header.len_bytes > MAX_REPLY_BYTES {
                return Err(ClientError::Protocol("a reply is too long"));
            }
            let reply_bytes = OPTION_REPLY_HEADER_BYTES + header.len_bytes as usize;
            self.left_bytes = (self.left_bytes.checked_sub(reply_bytes))
                .ok_or(ClientError::Protocol("its replies are too long together"))?;
            let mut data = vec![0; header.len_bytes as usize];
            self.deadline.recv_exact(&self.socket, &mut data)?;
            if header.kind & reply::ERROR_BIT != 0 {
                return Err(ClientError::Refused { kind: header.kind, message: quoted(&text(&data)) });
            }
            if header.kind == reply::ACK {
                return Ok(());
            }
            each(header.kind, &data)?;
        }
        Err(ClientError::Protocol("there is no end of replies"))
    }

    /// The names of the exports.
    pub fn list(&mut self) -> Result<Vec<String>, ClientError> {
        self.ask(option::LIST, b"")?;
        let mut names = Vec::new();
        self.hear(option::LIST, |kind, data| {
            if kind == reply::SERVER {
                names.push(string(parse_server_reply(data)?)?);
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// What the server says about one export; the empty name is the default one.
    pub fn info(&mut self, name: &str) -> Result<ExportInfo, ClientError> {
        if name.len() > MAX_STRING_BYTES {
            return Err(ClientError::UnknownExport(name.into()));
        }
        let kinds = vec![info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
        self.ask(option::INFO, &InfoQuery { name: name.as_bytes(), kinds }.encode())?;
        let mut found = ExportInfo::default();
        let mut has_size = false;
        let heard = self.hear(option::INFO, |kind, data| {
            if kind != reply::INFO {
                return Ok(());
            }
            match InfoReply::parse(data)? {
                InfoReply::Export { size_bytes, flags } => {
                    (found.size_bytes, found.flags) = (size_bytes, flags);
                    has_size = true;
                }
                InfoReply::Name(name) => found.name = Some(string(name)?),
                InfoReply::Description(line) => found.description = Some(string(line)?),
                InfoReply::BlockSize { min_bytes, preferred_bytes, max_bytes } => {
                    found.block_sizes_bytes = Some((min_bytes, preferred_bytes, max_bytes));
                }
                InfoReply::Other(_) => {}
            }
            Ok(())
        });
        match heard {
            Err(ClientError::Refused { kind: reply::ERR_UNKNOWN, .. }) => Err(ClientError::UnknownExport(name.into())),
            Err(error) => Err(error),
            Ok(()) if has_size => Ok(found),
            Ok(()) => Err(ClientError::Protocol("the server does not say the export's size")),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A server that is gone needs no farewell.
        let _ = self.ask(option::ABORT, b"");
    }
}

fn connect_tcp(address: &str, timeout: Duration) -> io::Result<Socket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                let socket = Socket::new(stream);
                socket.set_tcp_options()?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A server's string, within the protocol's limit.
fn string(bytes: &[u8]) -> Result<String, ClientError> {
    if bytes.len() > MAX_STRING_BYTES {
        return Err(ClientError::Protocol("a string is longer than 4096 bytes"));
    }
    Ok(text(bytes))
}

/// The part of a string that an error tells.
fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(QUOTED_CHARS).collect();
    if quoted.len() < text.len() {
        quoted.push('\u{2026}');
    }
    quoted
}

/// A server's string for people: control characters would let it drive the terminal.
fn text(bytes: &[u8]) -> String {
    let replaced = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    String::from_utf8_lossy(bytes).chars().map(replaced).collect()
}
