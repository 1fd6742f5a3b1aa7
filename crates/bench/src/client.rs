//! Clients of servers: the commands and the requests that benches need.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use pagefold_control::{Add, Client, ClientError, Command, Fork};
use pagefold_serve::{
    open_export,
    protocol::{Request, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command},
};
use serde_json::Value;

/// How long a server may take for a command.
const TIME: Duration = Duration::from_secs(60);

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(10);

/// A connection to the control socket of a server.
pub(crate) struct Control(Client);

impl Control {
    /// Connects to a server that may have just been started: a socket's file exists before its server
    /// listens on it.
    pub(crate) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let deadline = Instant::now() + START;
        loop {
            match Client::connect(socket, TIME) {
                Err(ClientError::Connect { .. }) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(1));
                }
                connected => return Ok(Self(connected?)),
            }
        }
    }

    /// Makes a disk that starts as a copy of `from`.
    pub(crate) fn fork(&mut self, from: &str, name: &str) -> anyhow::Result<()> {
        self.call(&Command::Fork(Fork::new(from, [name]))).map(drop)
    }

    /// Adds an empty disk.
    pub(crate) fn add(&mut self, name: &str, size_bytes: u64) -> anyhow::Result<()> {
        self.call(&Command::Add(Add::new(name, size_bytes))).map(drop)
    }

    pub(crate) fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        self.call(&Command::Drop { name: name.to_owned(), snapshots: false, force: true }).map(drop)
    }

    /// Returns a figure of the server.
    pub(crate) fn figure(&mut self, name: &str) -> anyhow::Result<f64> {
        let stat = self.call(&Command::Stat { name: None })?;
        stat["server"]["figures"][name].as_f64().with_context(|| format!("the server has no figure {name}"))
    }

    fn call(&mut self, command: &Command) -> anyhow::Result<Value> {
        self.0.call(command).with_context(|| format!("{command:?}"))
    }
}

/// A connection to an export, which has one request in flight. Replies are simple.
pub(crate) struct Nbd(UnixStream);

impl Nbd {
    /// Connects to a server that listens.
    pub(crate) fn connect(socket: &Path, export: &str) -> anyhow::Result<Self> {
        let connect = || {
            let mut stream = UnixStream::connect(socket)?;
            open_export(&mut stream, export).map(|_| Self(stream))
        };
        connect().with_context(|| format!("{}, export '{export}'", socket.display()))
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
        let request = Request { flags: 0, kind, cookie: offset, offset, len_bytes: len_bytes as u64 };
        self.0.write_all(&[&request.encode()[..], data].concat())?;
        let mut header = [0; SIMPLE_REPLY_BYTES];
        self.0.read_exact(&mut header).context("the server has closed the connection")?;
        ensure!(header[..4] == SIMPLE_REPLY_MAGIC.to_be_bytes(), "unexpected reply from the server");
        ensure!(header[4..8] == [0; 4], "a request at {offset} failed");
        Ok(())
    }
}
