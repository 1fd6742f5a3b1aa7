//! A server in this process, and a peer that exchanges raw bytes with it.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pagefold_disk::BlockDevice;
use pagefold_serve::{
    Builder, Error, Export, Limits, Server, ServerHandle,
    protocol::{OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, Request, option, reply},
};

/// Whether the tests' clients use TLS. `tls::other_tests_pass_over_tls` runs them so.
#[cfg(feature = "tls")]
pub(crate) static OVER_TLS: std::sync::LazyLock<bool> =
    std::sync::LazyLock::new(|| std::env::var_os("TEST_OVER_TLS").is_some());

pub(crate) const HANDSHAKE: Duration = Duration::from_millis(400);
pub(crate) const IO: Duration = Duration::from_millis(400);

/// Returns the default limits after `change`.
pub(crate) fn limits_with(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

/// Returns limits with which a test of a timeout is quick.
pub(crate) fn quick() -> Limits {
    limits_with(|limits| {
        limits.handshake_timeout = HANDSHAKE;
        limits.io_timeout = IO;
    })
}

pub(crate) struct Running {
    pub(crate) path: PathBuf,
    pub(crate) handle: ServerHandle,
    thread: Option<JoinHandle<Result<(), Error>>>,
    _directory: tempfile::TempDir,
}

impl Running {
    pub(crate) fn start(builder: Builder) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        #[cfg(feature = "tls")]
        let builder = if *OVER_TLS { builder.tls_optional(crate::secure::certificates()) } else { builder };
        let server = builder.unix(&path).bind().unwrap();
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { path, handle, thread, _directory: directory }
    }

    pub(crate) fn of(device: Arc<dyn BlockDevice>) -> Self {
        Self::start(Server::builder().export(Export::new("disk", device)))
    }

    pub(crate) fn limited(device: Arc<dyn BlockDevice>, limits: Limits) -> Self {
        Self::start(Server::builder().export(Export::new("disk", device)).limits(limits))
    }

    pub(crate) fn stop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path.display())
    }

    /// Connects and receives the greeting; nothing has been negotiated.
    pub(crate) fn greet(&self) -> Raw {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut raw = Raw { stream };
        assert_eq!(raw.bytes(18), *b"NBDMAGICIHAVEOPT\0\x03");
        raw.send(&3_u32.to_be_bytes());
        #[cfg(feature = "tls")]
        if *OVER_TLS {
            crate::secure::ask(&mut raw);
            return crate::secure::carried(raw.stream, crate::secure::client(&crate::secure::PKI));
        }
        raw
    }

    /// Connects for transmission with structured replies and `base:allocation`.
    pub(crate) fn structured(&self) -> Raw {
        let mut raw = self.greet();
        raw.option(option::STRUCTURED_REPLY, b"");
        raw.expect_ack(option::STRUCTURED_REPLY);
        raw.option(option::SET_META_CONTEXT, &contexts(b"disk", &[b"base:allocation"]));
        assert_eq!(
            raw.option_reply(option::SET_META_CONTEXT),
            (reply::META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec())
        );
        raw.expect_ack(option::SET_META_CONTEXT);
        raw.go(b"disk");
        raw
    }

    /// Connects for transmission with simple replies.
    pub(crate) fn simple(&self) -> Raw {
        let mut raw = self.greet();
        raw.go(b"disk");
        raw
    }

    /// Checks that the server still serves others.
    pub(crate) fn assert_alive(&self) {
        let mut raw = self.simple();
        raw.request(0, 0, 77, 4096, 512);
        assert_eq!(raw.simple_reply(), (0, 77));
        raw.bytes(512);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

pub(crate) fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

pub(crate) fn info(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

/// A chunk of a structured reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    pub(crate) cookie: u64,
    pub(crate) payload: Vec<u8>,
}

impl Chunk {
    /// Returns the errno and the message of an error chunk.
    pub(crate) fn error(&self) -> (u32, String) {
        assert_eq!(self.kind, 0x8001, "not an error: {self:?}");
        let length = usize::from(u16::from_be_bytes(self.payload[4..6].try_into().unwrap()));
        assert_eq!(self.payload.len(), 6 + length);
        let errno = u32::from_be_bytes(self.payload[..4].try_into().unwrap());
        (errno, String::from_utf8(self.payload[6..].to_vec()).unwrap())
    }

    /// Returns the descriptors of a block status chunk.
    pub(crate) fn extents(&self) -> Vec<(u32, u32)> {
        assert_eq!(self.kind, 5, "not a block status: {self:?}");
        assert_eq!(self.payload[..4], [0, 0, 0, 1]);
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        self.payload[4..].chunks_exact(8).map(|pair| (number(&pair[..4]), number(&pair[4..]))).collect()
    }
}

pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
}

impl Raw {
    /// Receives something; returns whether the stream continues.
    pub(crate) fn try_receive(&mut self) -> bool {
        self.stream.read(&mut [0; 4096]).is_ok_and(|count| count != 0)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes(2).try_into().unwrap())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes(4).try_into().unwrap())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes(8).try_into().unwrap())
    }

    /// Checks that the server has closed the connection and sent nothing more.
    pub(crate) fn expect_end(&mut self) {
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("expected the end, got {other:?}"),
        }
    }

    /// Like `expect_end`, and checks that it took about as long as the timeout.
    pub(crate) fn expect_end_after(&mut self, timeout: Duration) {
        let start = Instant::now();
        self.expect_end();
        let waited = start.elapsed();
        assert!(waited >= timeout / 2, "dropped after {waited:?} already");
        assert!(waited < timeout + Duration::from_secs(8), "dropped after {waited:?} only");
    }

    pub(crate) fn option(&mut self, option: u32, data: &[u8]) {
        self.send(&OptionHeader { option, len_bytes: data.len() as u32 }.encode());
        self.send(data);
    }

    pub(crate) fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        let header: [u8; 20] = self.bytes(20).try_into().unwrap();
        assert_eq!(header[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        let header = OptionReplyHeader::parse(&header).unwrap();
        assert_eq!(header.option, option);
        (header.kind, self.bytes(header.len_bytes as usize))
    }

    pub(crate) fn expect_ack(&mut self, option: u32) {
        assert_eq!(self.option_reply(option), (reply::ACK, Vec::new()));
    }

    /// Chooses the export; returns its size and flags.
    pub(crate) fn go(&mut self, name: &[u8]) -> (u64, u16) {
        self.option(option::GO, &info(name, &[]));
        let (kind, data) = self.option_reply(option::GO);
        assert_eq!((kind, data.len(), &data[..2]), (reply::INFO, 12, &[0, 0][..]));
        self.expect_ack(option::GO);
        (u64::from_be_bytes(data[2..10].try_into().unwrap()), u16::from_be_bytes(data[10..].try_into().unwrap()))
    }

    pub(crate) fn request(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, len_bytes: u32) {
        self.send(&Request { flags, kind, cookie, offset, len_bytes: len_bytes.into() }.encode());
    }

    /// Returns the errno and the cookie.
    pub(crate) fn simple_reply(&mut self) -> (u32, u64) {
        assert_eq!(self.u32(), 0x6744_6698);
        (self.u32(), self.u64())
    }

    pub(crate) fn chunk(&mut self) -> Chunk {
        assert_eq!(self.u32(), 0x668e_33ef);
        let (flags, kind, cookie, len_bytes) = (self.u16(), self.u16(), self.u64(), self.u32());
        Chunk { flags, kind, cookie, payload: self.bytes(len_bytes as usize) }
    }

    /// Reads all chunks of the one reply that is due. Returns the data of a read from `offset`, or
    /// the error that ended it.
    pub(crate) fn structured_read(&mut self, cookie: u64, offset: u64) -> Result<Vec<u8>, u32> {
        let mut data = Vec::new();
        loop {
            let chunk = self.chunk();
            assert_eq!(chunk.cookie, cookie);
            match chunk.kind {
                0 => {}
                1 => {
                    let at = u64::from_be_bytes(chunk.payload[..8].try_into().unwrap());
                    assert_eq!(at, offset + data.len() as u64);
                    assert!(chunk.payload.len() > 8);
                    data.extend_from_slice(&chunk.payload[8..]);
                }
                _ => {
                    assert_eq!(chunk.flags, 1);
                    return Err(chunk.error().0);
                }
            }
            if chunk.flags == 1 {
                return Ok(data);
            }
        }
    }
}
