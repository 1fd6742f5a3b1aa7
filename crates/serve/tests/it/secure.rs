//! Clients that use TLS.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    thread,
    time::Duration,
};

use pagefold_serve::{
    Certificates,
    protocol::{option, reply},
};
use pagefold_testing::certificates::{Authority, Valid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, RootCertStore,
    SupportedCipherSuite,
    crypto::{
        cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage},
        ring,
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::raw::Raw;

/// An authority, and a directory with the files of a server and of a client.
pub(crate) struct Pki {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) authority: Authority,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        authority.server(directory.path(), Valid::Now);
        authority.client(directory.path(), Valid::Now);
        Self { directory, authority }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// The files of a server and of a client that trust each other, for all tests without special
/// needs. They are kept for later runs.
pub(crate) static PKI: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = folder.join("certificates");
    if !kept.exists() {
        let made = tempfile::tempdir_in(folder).unwrap();
        let authority = Authority::new();
        authority.server(made.path(), Valid::Now);
        authority.client(made.path(), Valid::Now);
        // Another process may have been faster.
        let _ = fs::rename(made.path(), &kept);
    }
    kept
});

pub(crate) fn certificates() -> Arc<Certificates> {
    Arc::new(Certificates::read(&*PKI, false).unwrap())
}

/// Returns the TLS of a client that trusts the authority in `directory`, and has the client's
/// certificate that is there.
pub(crate) fn client(directory: &Path) -> ClientConnection {
    client_with(directory, true, &[&rustls::version::TLS13, &rustls::version::TLS12])
}

pub(crate) fn client_with(
    directory: &Path,
    has_certificate: bool,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConnection {
    client_of(client_config(directory, has_certificate, versions))
}

fn client_of(config: ClientConfig) -> ClientConnection {
    ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
}

fn client_config(
    directory: &Path,
    has_certificate: bool,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let file = |name: &str| directory.join(name);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca-cert.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    if has_certificate {
        let chain = CertificateDer::pem_file_iter(file("client-cert.pem")).unwrap().collect::<Result<_, _>>().unwrap();
        builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(file("client-key.pem")).unwrap()).unwrap()
    } else {
        builder.with_no_client_auth()
    }
}

/// Encrypts what no client sends.
pub(crate) struct Forger {
    encrypter: Box<dyn MessageEncrypter>,
    /// Number of the next record.
    number: u64,
}

impl Forger {
    /// Does the handshake of a client, and takes its keys.
    pub(crate) fn new(wire: &mut (impl Read + Write), version: &'static rustls::SupportedProtocolVersion) -> Self {
        let mut config = client_config(&PKI, false, &[version]);
        config.enable_secret_extraction = true;
        let mut tls = client_of(config);
        shake_hands(&mut tls, wire).unwrap();
        let suite = tls.negotiated_cipher_suite().unwrap();
        let (number, secrets) = tls.dangerous_extract_secrets().unwrap().tx;
        let (key, iv, is_gcm) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } | ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                (key, iv, true)
            }
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv, false),
            _ => panic!("an unknown cipher"),
        };
        let encrypter = match suite {
            SupportedCipherSuite::Tls13(suite) => suite.aead_alg.encrypter(key, iv),
            SupportedCipherSuite::Tls12(suite) => {
                let (fixed, explicit) = iv.as_ref().split_at(if is_gcm { 4 } else { 12 });
                suite.aead_alg.encrypter(key, fixed, explicit)
            }
        };
        Self { encrypter, number }
    }

    pub(crate) fn record(&mut self, typ: ContentType, bytes: &[u8]) -> Vec<u8> {
        let payload = OutboundChunks::Single(bytes);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        self.number += 1;
        self.encrypter.encrypt(message, self.number - 1).unwrap().encode()
    }
}

/// A socket of any kind.
pub(crate) trait Wire: Read + Write + AsFd + Send + 'static {
    fn set_nonblocking(&self) -> io::Result<()>;
    fn close(&self);
}

impl Wire for UnixStream {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Wire for TcpStream {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Asks for TLS on a connection on which nothing but the flags was sent.
pub(crate) fn ask(raw: &mut Raw) {
    raw.option(option::STARTTLS, b"");
    assert_eq!(raw.option_reply(option::STARTTLS), (reply::ACK, Vec::new()));
}

/// Does the handshake.
pub(crate) fn shake_hands(tls: &mut ClientConnection, wire: &mut (impl Read + Write)) -> io::Result<()> {
    while tls.is_handshaking() || tls.wants_write() {
        tls.complete_io(wire)?;
    }
    Ok(())
}

/// Returns a connection whose bytes a thread carries in TLS, on a connection that has
/// [asked](ask) for it.
pub(crate) fn carried<W: Wire>(mut wire: W, mut tls: ClientConnection) -> Raw {
    shake_hands(&mut tls, &mut wire).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    ours.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    thread::spawn(move || {
        // Either side may leave at any time.
        let _ = carry(&mut wire, theirs, tls);
        wire.close();
    });
    Raw { stream: ours }
}

fn carry<W: Wire>(wire: &mut W, mut plain: UnixStream, mut tls: ClientConnection) -> io::Result<()> {
    wire.set_nonblocking()?;
    plain.set_nonblocking(true)?;
    tls.set_buffer_limit(None);
    let (mut data, mut start) = (vec![0; 64 << 10], 0);
    let mut end = 0;
    let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    loop {
        let flag = |is_set: bool, flag: PollFlags| if is_set { flag } else { PollFlags::empty() };
        let of_wire = flag(start == end, PollFlags::IN) | flag(tls.wants_write(), PollFlags::OUT);
        let of_plain = flag(!tls.wants_write(), PollFlags::IN) | flag(start != end, PollFlags::OUT);
        let mut polled = [PollFd::new(&*wire, of_wire), PollFd::new(&plain, of_plain)];
        poll(&mut polled, Some(&Timespec { tv_sec: 120, tv_nsec: 0 }))?;
        if tls.wants_write() {
            match tls.write_tls(wire) {
                Err(error) if !would_block(&error) => return Err(error),
                _ => {}
            }
        }
        if !tls.wants_write() {
            let mut taken = vec![0; 64 << 10];
            match plain.read(&mut taken) {
                Ok(0) => {
                    tls.send_close_notify();
                    tls.write_tls(wire)?;
                    return Ok(());
                }
                Ok(count) => tls.writer().write_all(&taken[..count])?,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if start == end {
            match tls.read_tls(wire) {
                Ok(_) => _ = tls.process_new_packets().map_err(io::Error::other)?,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error),
            }
            start = 0;
            end = match tls.reader().read(&mut data) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if would_block(&error) => 0,
                Err(error) => return Err(error),
            };
        }
        if start != end {
            match plain.write(&data[start..end]) {
                Ok(count) => start += count,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
