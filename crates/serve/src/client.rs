//! A client that reads what another process serves.
//!
//! Nothing that the server sends is trusted. If the server breaks the protocol or exceeds the
//! timeout, the current call fails and the connection cannot be used again.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::protocol::{
    GREETING_BYTES, INIT_MAGIC, InfoQuery, InfoReply, MAX_OPTION_BYTES, OPTION_MAGIC, OPTION_REPLY_HEADER_BYTES,
    OptionHeader, OptionReplyHeader, Request, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command, handshake, option,
    reply,
};

/// Bytes per request: every server accepts this size, and no reply takes long.
const REQUEST_BYTES: usize = 1 << 20;

/// Requests in flight. All of them fit into a socket's buffers, so the client never blocks on a
/// server that waits for its replies to be read.
const MOST_REQUESTS: usize = 32;

/// A connection to an export, for reading.
pub struct Client {
    stream: Box<dyn Stream>,
    size_bytes: u64,
    next_cookie: u64,
}

/// An export that was opened on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its size.
    pub size_bytes: u64,
    /// Its transmission flags, as the protocol encodes them.
    pub flags: u16,
}

/// Negotiates on a new connection up to transmission: the next bytes are requests and their simple
/// replies.
///
/// # Errors
/// The connection broke, the peer is not an NBD server of this kind, it does not serve the export
/// now, or it has no export of this name ([`NotFound`](io::ErrorKind::NotFound)).
pub fn open_export(stream: &mut (impl Read + Write), export: &str) -> io::Result<Opened> {
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).map_err(closed)?;
    let magic = [INIT_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
    if greeting[..16] != magic[..] || flags & handshake::FIXED_NEWSTYLE == 0 {
        return Err(malformed("not an NBD server with fixed newstyle negotiation"));
    }
    let query = InfoQuery { name: export.as_bytes(), kinds: Vec::new() }.encode();
    let header = OptionHeader { option: option::GO, len_bytes: query.len() as u32 };
    let flags = u32::from(flags & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES));
    stream.write_all(&[&flags.to_be_bytes()[..], &header.encode(), &query].concat()).map_err(closed)?;
    let mut opened = None;
    loop {
        let mut header = [0; OPTION_REPLY_HEADER_BYTES];
        stream.read_exact(&mut header).map_err(closed)?;
        let OptionReplyHeader { option, kind, len_bytes } = OptionReplyHeader::parse(&header).map_err(malformed)?;
        if option != option::GO || len_bytes > MAX_OPTION_BYTES {
            return Err(malformed("unexpected reply from the server"));
        }
        let mut data = vec![0; len_bytes as usize];
        stream.read_exact(&mut data).map_err(closed)?;
        match kind {
            reply::ACK => return opened.ok_or_else(|| malformed("the server did not report the export's size")),
            reply::INFO => {
                if let InfoReply::Export { size_bytes, flags } = InfoReply::parse(&data).map_err(malformed)? {
                    opened = Some(Opened { size_bytes, flags });
                }
            }
            _ => {
                let why = String::from_utf8_lossy(&data).into_owned();
                let what = format!("the server does not serve the export '{export}': {why}");
                let is_unknown = kind == reply::ERR_UNKNOWN;
                let kind = if is_unknown { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
                return Err(io::Error::new(kind, what));
            }
        }
    }
}

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Returns the error for data that violate the protocol.
fn malformed(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Names the cause of the errors of a connection that the server has closed.
fn closed(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            io::Error::new(io::ErrorKind::ConnectionAborted, "the server closed the connection")
        }
        _ => error,
    }
}

impl Client {
    /// Connects to an export of the server at a Unix socket. While the client waits for a reply,
    /// data must arrive at least every `time`.
    pub fn unix(path: &Path, export: &str, time: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(time))?;
        stream.set_write_timeout(Some(time))?;
        Self::negotiate(Box::new(stream), export)
    }

    /// Like [`unix`](Self::unix), at a TCP address.
    pub fn tcp(address: SocketAddr, export: &str, time: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, time)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(time))?;
        stream.set_write_timeout(Some(time))?;
        Self::negotiate(Box::new(stream), export)
    }

    /// Returns the export's size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn negotiate(mut stream: Box<dyn Stream>, export: &str) -> io::Result<Self> {
        let Opened { size_bytes, .. } = open_export(&mut stream, export)?;
        Ok(Self { stream, size_bytes, next_cookie: 0 })
    }

    /// Fills `buf` from `offset`. After an error, `buf` holds unspecified bytes.
    ///
    /// # Errors
    /// The server cannot read the range; the next read may succeed. Or the connection broke, or the
    /// data received are not a valid reply.
    pub fn read(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_all(&mut [(offset, buf)])
    }

    /// Fills each buffer from its offset. Several requests are kept in flight, so a distant server
    /// does not cost a round trip per request. Otherwise like [`read`](Self::read).
    pub fn read_all(&mut self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        let requests = parts.iter_mut().flat_map(|(offset, buf)| {
            buf.chunks_mut(REQUEST_BYTES).zip((*offset..).step_by(REQUEST_BYTES)).map(|(part, at)| (at, part))
        });
        let mut requests = requests.peekable();
        // Unanswered requests, in the order in which they were sent.
        let mut asked: VecDeque<(u64, u64, &mut [u8])> = VecDeque::new();
        let (mut sent, mut refused) = (Vec::new(), None);
        while !asked.is_empty() || (refused.is_none() && requests.peek().is_some()) {
            sent.clear();
            let room = if refused.is_none() { MOST_REQUESTS - asked.len() } else { 0 };
            for (offset, buf) in requests.by_ref().take(room) {
                let cookie = self.next_cookie;
                self.next_cookie = cookie.wrapping_add(1);
                let len_bytes = buf.len() as u64;
                sent.extend(Request { flags: 0, kind: command::READ, cookie, offset, len_bytes }.encode());
                asked.push_back((cookie, offset, buf));
            }
            self.stream.write_all(&sent).map_err(closed)?;
            refused = refused.or(self.take_answer(&mut asked)?);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Waits for the reply to one of the requests and removes that request. Returns the server's
    /// error, if any.
    fn take_answer(&mut self, asked: &mut VecDeque<(u64, u64, &mut [u8])>) -> io::Result<Option<io::Error>> {
        let mut header = [0; SIMPLE_REPLY_BYTES];
        self.stream.read_exact(&mut header).map_err(closed)?;
        let [m0, m1, m2, m3, e0, e1, e2, e3, found @ ..] = header;
        let found = u64::from_be_bytes(found);
        let number = asked.iter().position(|(cookie, ..)| *cookie == found);
        let request = number.and_then(|number| asked.remove(number));
        let (true, Some((_, offset, buf))) = (u32::from_be_bytes([m0, m1, m2, m3]) == SIMPLE_REPLY_MAGIC, request)
        else {
            return Err(malformed("unexpected reply from the server"));
        };
        match u32::from_be_bytes([e0, e1, e2, e3]) {
            0 => self.stream.read_exact(buf).map(|()| None).map_err(closed),
            errno => {
                let error = io::Error::from_raw_os_error(errno.cast_signed());
                let len = buf.len();
                let what = format!("the server cannot read the {len} bytes from byte {offset}: {error}; see its log");
                Ok(Some(io::Error::new(error.kind(), what)))
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let request = Request { flags: 0, kind: command::DISC, cookie: 0, offset: 0, len_bytes: 0 };
        // The server may already be gone.
        let _ = self.stream.write_all(&request.encode());
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("size_bytes", &self.size_bytes).finish_non_exhaustive()
    }
}
