//! A client for servers: the control socket's JSON, and the part of NBD that reads and writes need.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use pagefold_serve::protocol::{
    GREETING_BYTES, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_HEADER_BYTES, OPTION_REPLY_MAGIC, REQUEST_BYTES,
    REQUEST_MAGIC, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command, handshake, option, reply,
};
use serde_json::{Value, json};

/// Maximum size of a server's reply to an option.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// Connects to a server that may have just been started: a socket's file exists before its server
/// listens on it.
fn connected(socket: &Path) -> anyhow::Result<UnixStream> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let connection = UnixStream::connect(socket);
        if connection.is_ok() || Instant::now() >= deadline {
            return connection.with_context(|| format!("no server at {}", socket.display()));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Encodes a request without its payload.
pub(crate) fn request_header(kind: u16, cookie: u64, offset: u64, len_bytes: u32) -> [u8; REQUEST_BYTES] {
    let mut header = [0; REQUEST_BYTES];
    header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&len_bytes.to_be_bytes());
    header
}

/// A connection to the control socket of a server.
pub(crate) struct Control(BufReader<UnixStream>);

impl Control {
    pub(crate) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let mut control = Self(BufReader::new(connected(socket)?));
        ensure!(control.line()?["name"] == "pagefold", "no pagefold server listens there");
        Ok(control)
    }

    /// Makes a disk that starts as a copy of `from`.
    pub(crate) fn fork(&mut self, from: &str, name: &str) -> anyhow::Result<()> {
        self.call(&json!({ "command": "fork", "from": from, "names": [name] })).map(drop)
    }

    /// Adds an empty disk.
    pub(crate) fn add(&mut self, name: &str, size_bytes: u64) -> anyhow::Result<()> {
        self.call(&json!({ "command": "add", "name": name, "size_bytes": size_bytes })).map(drop)
    }

    pub(crate) fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        self.call(&json!({ "command": "remove", "name": name, "force": true })).map(drop)
    }

    /// Returns a figure of the server.
    pub(crate) fn figure(&mut self, name: &str) -> anyhow::Result<f64> {
        let stat = self.call(&json!({ "command": "stat" }))?;
        stat["server"]["figures"][name].as_f64().with_context(|| format!("the server has no figure {name}"))
    }

    fn call(&mut self, request: &Value) -> anyhow::Result<Value> {
        self.0.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut answer = self.line()?;
        match &answer["error"] {
            Value::Null => Ok(answer["result"].take()),
            error => bail!("{request}: {}", error["message"].as_str().unwrap_or("failed")),
        }
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// A connection to an export, which has one request in flight. Replies are simple.
pub(crate) struct Nbd(UnixStream);

impl Nbd {
    pub(crate) fn connect(socket: &Path, export: &str) -> anyhow::Result<Self> {
        let mut client = Self(connected(socket)?);
        let greeting: [u8; GREETING_BYTES] = client.receive()?;
        ensure!(greeting[..8] == INIT_MAGIC.to_be_bytes(), "no NBD server listens there");

        let mut hello = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(option::GO.to_be_bytes());
        // The length of the name, the name, and zero information requests.
        hello.extend((4 + export.len() as u32 + 2).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend(0u16.to_be_bytes());
        client.0.write_all(&hello)?;
        loop {
            let header: [u8; OPTION_REPLY_HEADER_BYTES] = client.receive()?;
            ensure!(header[..8] == OPTION_REPLY_MAGIC.to_be_bytes(), "unexpected reply from the server");
            let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let len = word(16) as usize;
            ensure!(len <= MAX_REPLY_BYTES, "the server's reply is too long");
            let mut data = vec![0; len];
            client.0.read_exact(&mut data)?;
            match word(12) {
                reply::ACK => return Ok(client),
                reply::INFO => {}
                kind => bail!("no export {export:?}: {kind:#x}: {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    /// Returns the socket, on which no request is in flight.
    pub(crate) fn into_stream(self) -> UnixStream {
        self.0
    }

    pub(crate) fn read(&mut self, offset: u64, buf: &mut [u8]) -> anyhow::Result<()> {
        self.ask(command::READ, offset, buf.len(), &[])?;
        Ok(self.0.read_exact(buf)?)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        self.ask(command::WRITE, offset, bytes.len(), bytes)
    }

    fn ask(&mut self, kind: u16, offset: u64, len_bytes: usize, data: &[u8]) -> anyhow::Result<()> {
        let mut request = request_header(kind, offset, offset, len_bytes as u32).to_vec();
        request.extend(data);
        self.0.write_all(&request)?;
        let header: [u8; SIMPLE_REPLY_BYTES] = self.receive()?;
        ensure!(header[..4] == SIMPLE_REPLY_MAGIC.to_be_bytes(), "unexpected reply from the server");
        ensure!(header[4..8] == [0; 4], "a request at {offset} failed");
        Ok(())
    }

    fn receive<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).context("the server has closed the connection")?;
        Ok(bytes)
    }
}
