//! Clients that use TLS, and those that break it.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Command,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pagefold_serve::{
    Builder, Certificates, CertificatesError, Error, Export, Limits, Refused, Server, ServerHandle,
    protocol::{OptionHeader, Request, command, option, reply},
};
use pagefold_testing::certificates::{Authority, Valid};
use proptest::prelude::*;
use rustls::ContentType;

use crate::{
    device::Ram,
    memory::{Strict, wait_until},
    raw::{IO, Running, contexts, info, quick},
    secure::{Forger, PKI, Pki, ask, carried, certificates, client, client_with, shake_hands},
};

/// A server on TCP, with one export.
struct OnTcp {
    port: u16,
    handle: ServerHandle,
    thread: Option<JoinHandle<Result<(), Error>>>,
    refused: mpsc::Receiver<String>,
}

impl OnTcp {
    fn start(make: impl FnOnce(Builder) -> Builder) -> Self {
        let (reports, refused) = mpsc::channel();
        let reports = std::sync::Mutex::new(reports);
        let builder = Server::builder().export(Export::new("disk", Ram::shared(1 << 20)));
        let builder = make(builder).when_refused(move |why| {
            if let (Refused::Tls { error, .. }, Ok(reports)) = (why, reports.lock()) {
                // Tests that do not care have left.
                let _ = reports.send(error.to_string());
            }
        });
        let server = builder.tcp(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let port = server.tcp_addresses().next().unwrap().port();
        let handle = server.handle();
        Self { port, handle, thread: Some(thread::spawn(move || server.run())), refused }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Connects, receives the greeting and sends the flags.
    fn greet(&self) -> Plain {
        let mut plain = Plain(self.connect());
        assert_eq!(plain.bytes(18), *b"NBDMAGICIHAVEOPT\0\x03");
        plain.0.write_all(&3_u32.to_be_bytes()).unwrap();
        plain
    }
}

impl Drop for OnTcp {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// A client on TCP before it uses TLS.
#[derive(Debug)]
struct Plain(TcpStream);

impl Plain {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Sends an option and returns the type of the reply.
    fn option(&mut self, option: u32, data: &[u8]) -> u32 {
        let header = OptionHeader { option, len_bytes: data.len() as u32 }.encode();
        self.0.write_all(&[&header[..], data].concat()).unwrap();
        let header = self.bytes(20);
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(number(8), option);
        self.bytes(number(16) as usize);
        number(12)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.read(&mut [0; 64]), Ok(1..))
    }
}

#[test]
fn tcp_requires_tls_unless_it_is_optional() {
    let server = OnTcp::start(|builder| builder.tls(certificates()));
    let mut plain = server.greet();
    let go = info(b"disk", &[]);
    for (option, data) in [
        (option::LIST, &b""[..]),
        (option::GO, &go),
        (option::INFO, &go),
        (option::STRUCTURED_REPLY, b""),
        (option::EXTENDED_HEADERS, b""),
        (option::SET_META_CONTEXT, &contexts(b"disk", &[b"base:allocation"])),
        (99, b"what?"),
    ] {
        assert_eq!(plain.option(option, data), reply::ERR_TLS_REQD, "option {option}");
    }
    assert_eq!(plain.option(option::STARTTLS, b"data"), reply::ERR_INVALID);
    assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
    let mut raw = carried(plain.0, client(&PKI));
    raw.option(option::STARTTLS, b"");
    assert_eq!(raw.option_reply(option::STARTTLS).0, reply::ERR_INVALID);
    raw.option(option::LIST, b"");
    assert_eq!(raw.option_reply(option::LIST).0, reply::SERVER);
    raw.expect_ack(option::LIST);
    raw.go(b"disk");
    raw.request(command::READ, 0, 1, 0, 512);
    assert_eq!(raw.simple_reply(), (0, 1));

    let mut plain = server.greet();
    plain.0.write_all(&OptionHeader { option: option::EXPORT_NAME, len_bytes: 4 }.encode()).unwrap();
    plain.0.write_all(b"disk").unwrap();
    assert!(plain.has_ended());
    let mut plain = server.greet();
    assert_eq!(plain.option(option::ABORT, b""), reply::ACK);
    assert!(plain.has_ended());
    drop(server);

    let server = OnTcp::start(|builder| builder.tls_optional(certificates()));
    let mut plain = server.greet();
    assert_eq!(plain.option(option::INFO, &go), reply::INFO);
    let mut plain = server.greet();
    assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
    carried(plain.0, client(&PKI)).go(b"disk");
}

#[test]
fn without_certificates_there_is_no_tls() {
    let server = OnTcp::start(|builder| builder);
    assert_eq!(server.greet().option(option::STARTTLS, b""), reply::ERR_UNSUP);
}

/// Both versions of the protocol, on a Unix socket, where TLS is never required.
#[test]
fn a_unix_socket_offers_tls() {
    let builder = Server::builder().export(Export::new("disk", Ram::shared(1 << 20))).tls(certificates());
    let server = Running::start(builder);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut raw = server.greet();
        ask(&mut raw);
        let mut raw = carried(raw.stream, client_with(&PKI, false, &[version]));
        raw.go(b"disk");
        raw.request(command::WRITE, 0, 1, 512, 512);
        raw.send(&[7; 512]);
        assert_eq!(raw.simple_reply(), (0, 1));
        raw.request(command::READ, 0, 2, 512, 512);
        assert_eq!(raw.simple_reply(), (0, 2));
        assert_eq!(raw.bytes(512), [7; 512]);
    }
    server.assert_alive();
}

/// Data before TLS could come from an attacker between client and server.
#[test]
fn plain_text_negotiation_is_discarded() {
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8192))).tls(certificates());
    let server = Running::start(builder);
    for extended in [false, true] {
        let mut raw = server.greet();
        let option = if extended { option::EXTENDED_HEADERS } else { option::STRUCTURED_REPLY };
        raw.option(option, b"");
        raw.expect_ack(option);
        raw.option(option::SET_META_CONTEXT, &contexts(b"disk", &[b"base:allocation"]));
        assert_eq!(raw.option_reply(option::SET_META_CONTEXT).0, reply::META_CONTEXT);
        raw.expect_ack(option::SET_META_CONTEXT);
        ask(&mut raw);
        let mut raw = carried(raw.stream, client(&PKI));
        raw.option(option::SET_META_CONTEXT, &contexts(b"disk", &[b"base:allocation"]));
        assert_eq!(raw.option_reply(option::SET_META_CONTEXT).0, reply::ERR_INVALID, "structured replies are on");
        raw.go(b"disk");
        raw.request(command::READ, 0, 1, 0, 16);
        assert_eq!(raw.simple_reply(), (0, 1));
        raw.bytes(16);
        raw.request(command::BLOCK_STATUS, 0, 2, 0, 16);
        assert_eq!(raw.simple_reply(), (22, 2), "a context is selected");
    }
}

/// Options that follow STARTTLS in plain text are neither answered nor taken for encrypted ones
/// (CVE-2021-3716 of nbdkit).
#[test]
fn options_smuggled_behind_starttls_are_not_run() {
    let server = OnTcp::start(|builder| builder.tls(certificates()));
    let starttls = OptionHeader { option: option::STARTTLS, len_bytes: 0 }.encode();
    let structured = OptionHeader { option: option::STRUCTURED_REPLY, len_bytes: 0 }.encode();
    let go = info(b"disk", &[]);
    let go = [&OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode()[..], &go].concat();
    for smuggled in [&structured[..], &go, &structured[..3], &[0], &[22, 3, 1, 0, 1, 0]] {
        // In one piece, and after the server has begun TLS.
        for pause in [false, true] {
            let mut plain = server.greet();
            plain.0.write_all(&starttls).unwrap();
            if pause {
                assert_eq!(plain.bytes(20)[12..16], reply::ACK.to_be_bytes());
            }
            plain.0.write_all(smuggled).unwrap();
            if !pause {
                assert_eq!(plain.bytes(20)[12..16], reply::ACK.to_be_bytes());
            }
            // A real client goes on with its handshake.
            let mut tls = client(&PKI);
            assert!(shake_hands(&mut tls, &mut plain.0).is_err(), "TLS began with {smuggled:?} before it");
        }
    }
    let mut plain = server.greet();
    assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
    carried(plain.0, client(&PKI)).go(b"disk");
}

#[test]
fn clients_must_have_a_certificate_where_it_is_asked_for() {
    let pki = Pki::new();
    let verify = |path: &Path| Arc::new(Certificates::read(path, true).unwrap());
    let attempt = |server: &OnTcp, mut tls: rustls::ClientConnection| -> io::Result<()> {
        let mut plain = server.greet();
        assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
        shake_hands(&mut tls, &mut plain.0)?;
        // With TLS 1.3, the client learns only now whether it was accepted.
        let mut stream = rustls::Stream::new(&mut tls, &mut plain.0);
        stream.write_all(&OptionHeader { option: option::LIST, len_bytes: 0 }.encode())?;
        stream.read_exact(&mut [0; 20])
    };
    let why = |server: &OnTcp| server.refused.recv_timeout(Duration::from_secs(30)).unwrap();
    let start = || OnTcp::start(|builder| builder.tls(verify(pki.path())));

    let server = start();
    attempt(&server, client(pki.path())).unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let error = attempt(&start(), client_with(pki.path(), false, &[version])).unwrap_err();
        assert!(
            error.to_string().contains("CertificateRequired") || error.to_string().contains("HandshakeFailure"),
            "{error}"
        );
    }
    let none = client_with(pki.path(), false, &[&rustls::version::TLS13]);
    attempt(&server, none).unwrap_err();
    assert!(why(&server).contains("no certificate"));

    // Of another authority, of a client's time that is over, and of one that was revoked.
    let others = tempfile::tempdir().unwrap();
    Authority::new().client(others.path(), Valid::Now);
    pki.authority.certificate(others.path());
    let server = start();
    attempt(&server, client(others.path())).unwrap_err();
    let found = why(&server);
    assert!(found.contains("invalid peer certificate"), "{found}");
    pki.authority.client(others.path(), Valid::Past);
    let server = start();
    attempt(&server, client(others.path())).unwrap_err();
    let found = why(&server);
    assert!(found.contains("expired"), "{found}");
    pki.authority.revoke(pki.path(), false);
    attempt(&start(), client(pki.path())).unwrap();
    pki.authority.revoke(pki.path(), true);
    let server = start();
    attempt(&server, client(pki.path())).unwrap_err();
    let found = why(&server);
    assert!(found.contains("Revoked"), "{found}");
    // A server's certificate is none of a client.
    fs::copy(pki.path().join("server-cert.pem"), others.path().join("client-cert.pem")).unwrap();
    fs::copy(pki.path().join("server-key.pem"), others.path().join("client-key.pem")).unwrap();
    fs::remove_file(pki.path().join("ca-crl.pem")).unwrap();
    attempt(&start(), client(others.path())).unwrap_err();
}

#[test]
fn a_client_that_does_not_trust_the_server_is_reported() {
    let server = OnTcp::start(|builder| builder.tls(certificates()));
    let others = Pki::new();
    let mut plain = server.greet();
    assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
    assert!(shake_hands(&mut client(others.path()), &mut plain.0).is_err());
    let why = server.refused.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(why.contains("alert"), "{why}");
}

#[test]
fn certificates_that_cannot_be_used_are_refused_with_the_reason() {
    let pki = Pki::new();
    let file = |name: &str| pki.path().join(name);
    let text = |error: &CertificatesError| {
        let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
        format!("{error}{cause}").replace(&*pki.path().to_string_lossy(), "DIR")
    };
    let refusal = |verify_peer| text(&Certificates::read(pki.path(), verify_peer).unwrap_err());
    Certificates::read(pki.path(), true).unwrap();
    for name in ["server-cert.pem", "server-key.pem", "ca-cert.pem"] {
        let kept = fs::read(file(name)).unwrap();
        fs::remove_file(file(name)).unwrap();
        assert_eq!(refusal(true), format!("cannot read DIR/{name}: No such file or directory (os error 2)"));
        for junk in [&b""[..], b"junk", &kept[..kept.len() / 2]] {
            fs::write(file(name), junk).unwrap();
            let refusal = refusal(true);
            assert!(refusal.contains(&format!("DIR/{name}")), "{refusal}");
        }
        fs::write(file(name), kept).unwrap();
    }
    // Without clients' certificates, a public authority may have signed the server's.
    let ca = fs::read(file("ca-cert.pem")).unwrap();
    fs::remove_file(file("ca-cert.pem")).unwrap();
    Certificates::read(pki.path(), false).unwrap();
    Authority::new().certificate(pki.path());
    assert_eq!(refusal(false), "DIR/server-cert.pem is not signed by DIR/ca-cert.pem, so no client would accept it");
    fs::write(file("ca-cert.pem"), ca).unwrap();
    let key = fs::read(file("server-key.pem")).unwrap();
    fs::copy(file("client-key.pem"), file("server-key.pem")).unwrap();
    assert_eq!(refusal(false), "DIR/server-key.pem is not the key of the certificate DIR/server-cert.pem");
    fs::write(file("server-key.pem"), key).unwrap();
    fs::write(file("ca-crl.pem"), "junk").unwrap();
    assert!(refusal(true).contains("DIR/ca-crl.pem"));
    fs::remove_file(file("ca-crl.pem")).unwrap();
    for (valid, why) in [(Valid::Past, "expired "), (Valid::Future, "is valid only in ")] {
        pki.authority.server(pki.path(), valid);
        let refusal = refusal(false);
        assert!(refusal.starts_with(&format!("the certificate DIR/server-cert.pem {why}")), "{refusal}");
    }
    pki.authority.server(pki.path(), Valid::Now);
    let found = Certificates::read(pki.path(), false).unwrap();
    assert_eq!(found.readable_key(), None);
    fs::set_permissions(file("server-key.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(found.readable_key(), Some(file("server-key.pem")));
}

#[test]
fn certificates_that_are_read_again_apply_to_new_clients() {
    let pki = Pki::new();
    let certificates = Arc::new(Certificates::read(pki.path(), false).unwrap());
    let server = OnTcp::start(|builder| builder.tls(Arc::clone(&certificates)));
    let connect = |directory: &Path| {
        let mut plain = server.greet();
        assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
        let mut tls = client(directory);
        shake_hands(&mut tls, &mut plain.0).map(|()| (plain, tls))
    };
    let (mut plain, mut tls) = connect(pki.path()).unwrap();
    // If files cannot be used, the earlier certificates stay.
    fs::write(pki.path().join("server-key.pem"), "junk").unwrap();
    certificates.read_again().unwrap_err();
    connect(pki.path()).unwrap();
    let next = Authority::new();
    next.server(pki.path(), Valid::Now);
    certificates.read_again().unwrap();
    next.client(pki.path(), Valid::Now);
    connect(pki.path()).unwrap();
    let old = Pki::new();
    connect(old.path()).unwrap_err();
    // A client that is connected stays.
    let mut stream = rustls::Stream::new(&mut tls, &mut plain.0);
    stream.write_all(&OptionHeader { option: option::LIST, len_bytes: 0 }.encode()).unwrap();
    stream.read_exact(&mut [0; 20]).unwrap();
}

/// Returns what a client sends in a handshake: its first message, and then the rest.
fn flights(server: &OnTcp) -> (rustls::ClientConnection, Vec<u8>, TcpStream) {
    let mut plain = server.greet();
    assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
    let mut tls = client(&PKI);
    let mut hello = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut hello).unwrap();
    }
    (tls, hello, plain.0)
}

#[test]
fn a_handshake_that_breaks_off_anywhere_leaves_nothing() {
    let account = Strict::new(400, 8);
    let server = OnTcp::start(|builder| builder.tls(certificates()).account(Arc::clone(&account) as _));
    let (_, hello, _) = flights(&server);
    for length in (0..hello.len()).step_by(7) {
        let (_, hello, mut wire) = flights(&server);
        wire.write_all(&hello[..length]).unwrap();
    }
    let rest_of = |server: &OnTcp| {
        let (mut tls, hello, mut wire) = flights(server);
        wire.write_all(&hello).unwrap();
        while tls.is_handshaking() {
            tls.read_tls(&mut wire).unwrap();
            tls.process_new_packets().unwrap();
        }
        let mut rest = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut rest).unwrap();
        }
        (rest, wire)
    };
    let (rest, _) = rest_of(&server);
    for length in (0..rest.len()).step_by(5) {
        let (rest, mut wire) = rest_of(&server);
        wire.write_all(&rest[..length.min(rest.len())]).unwrap();
    }
    wait_until("the memory comes back", || account.idle_bytes_taken() == 0);
    let mut plain = server.greet();
    assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
    carried(plain.0, client(&PKI)).go(b"disk");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Random bytes instead of a handshake, and a handshake with bytes changed.
    #[test]
    fn nonsense_instead_of_a_handshake_costs_only_its_connection(
        junk in proptest::collection::vec(any::<u8>(), 0..2000),
        changed in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let server = OnTcp::start(|builder| builder.tls(certificates()).limits(quick()));
        let (_, mut hello, mut wire) = flights(&server);
        for (at, byte) in &changed {
            *at.get_mut(&mut hello) = *byte;
        }
        // The server may have ended it before.
        let _ = wire.write_all(if changed.is_empty() { &junk } else { &hello });
        let _ = wire.shutdown(Shutdown::Write);
        let _ = wire.read_to_end(&mut Vec::new());
        let mut plain = server.greet();
        prop_assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
        carried(plain.0, client(&PKI)).go(b"disk");
    }
}

/// Returns a connection that has chosen the export, with its TLS in hand.
pub(crate) fn in_hand(server: &Running) -> (rustls::ClientConnection, UnixStream) {
    let mut raw = server.greet();
    ask(&mut raw);
    let mut tls = client(&PKI);
    shake_hands(&mut tls, &mut raw.stream).unwrap();
    let go = info(b"disk", &[]);
    let mut stream = rustls::Stream::new(&mut tls, &mut raw.stream);
    stream.write_all(&OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode()).unwrap();
    stream.write_all(&go).unwrap();
    stream.read_exact(&mut [0; 20 + 12 + 20]).unwrap();
    (tls, raw.stream)
}

pub(crate) fn sealed(tls: &mut rustls::ClientConnection, data: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    tls.writer().write_all(data).unwrap();
    while tls.wants_write() {
        tls.write_tls(&mut records).unwrap();
    }
    records
}

pub(crate) fn secure_server(device: Arc<Ram>, limits: Limits) -> Running {
    Running::start(Server::builder().export(Export::new("disk", device)).limits(limits).tls(certificates()))
}

#[test]
fn a_modified_record_ends_its_connection_without_a_write() {
    let device = Ram::shared(8192);
    let server = secure_server(Arc::clone(&device), Limits::default());
    let request = Request { flags: 0, kind: command::WRITE, cookie: 1, offset: 0, len_bytes: 4096 }.encode();
    let message = [&request[..], &[5; 4096]].concat();
    // Changes in the header, the content and the tag. The first byte, the kind, does not matter: a
    // record of another kind can be decrypted only if it was data.
    for at in [1, 3, 4, 5, 40, 4000, 4140] {
        let (mut tls, mut wire) = in_hand(&server);
        let mut records = sealed(&mut tls, &message);
        records[at] ^= 1;
        wire.write_all(&records).unwrap();
        // A longer record is waited for.
        wire.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = wire.read_to_end(&mut answer);
        assert!(device.bytes.lock().unwrap().iter().all(|&byte| byte == 0), "byte {at}");
    }
    // The same record again, and the records of a message in another order.
    let (mut tls, mut wire) = in_hand(&server);
    let records =
        sealed(&mut tls, &Request { flags: 0, kind: command::FLUSH, cookie: 1, offset: 0, len_bytes: 0 }.encode());
    wire.write_all(&[&records[..], &records].concat()).unwrap();
    let mut answer = Vec::new();
    let _ = wire.read_to_end(&mut answer);
    server.assert_alive();
}

#[test]
fn a_record_that_is_not_finished_is_given_up_and_silence_between_records_is_not() {
    let server = secure_server(Ram::shared(8192), quick());
    let flush = Request { flags: 0, kind: command::FLUSH, cookie: 1, offset: 0, len_bytes: 0 }.encode();
    let (mut idle, mut idle_wire) = in_hand(&server);
    let (mut tls, mut wire) = in_hand(&server);
    let records = sealed(&mut tls, &flush);
    for part in [&records[..3], &records[..20]] {
        let (_, mut wire) = in_hand(&server);
        wire.write_all(part).unwrap();
        let start = Instant::now();
        // The server says in TLS that it ends.
        assert!(wire.read_to_end(&mut Vec::new()).is_ok());
        assert!(start.elapsed() >= IO / 2, "given up too early");
    }
    // A record that arrives byte by byte is given up, too.
    let start = Instant::now();
    let long = sealed(&mut tls, &[0; 8000]);
    wire.write_all(&records).unwrap();
    for byte in long.chunks(1) {
        if wire.write_all(byte).is_err() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(25), "still served");
        thread::sleep(IO / 10);
    }
    idle_wire.write_all(&sealed(&mut idle, &flush)).unwrap();
    rustls::Stream::new(&mut idle, &mut idle_wire).read_exact(&mut [0; 16]).unwrap();
}

#[test]
fn a_client_that_changes_its_keys_is_served() {
    let server = secure_server(Ram::shared(8192), Limits::default());
    let (mut tls, mut wire) = in_hand(&server);
    for cookie in 0..100 {
        tls.refresh_traffic_keys().unwrap();
        let request = Request { flags: 0, kind: command::READ, cookie, offset: 0, len_bytes: 4096 }.encode();
        let mut stream = rustls::Stream::new(&mut tls, &mut wire);
        stream.write_all(&request).unwrap();
        let mut reply = [0; 16 + 4096];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[8..16], cookie.to_be_bytes());
    }
    // Without end, and without requests.
    for _ in 0..1000 {
        if tls.refresh_traffic_keys().is_err() || tls.write_tls(&mut wire).is_err() {
            break;
        }
    }
    server.assert_alive();
}

/// The option that chooses the export.
pub(crate) fn go() -> Vec<u8> {
    let go = info(b"disk", &[]);
    [&OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode()[..], &go].concat()
}

/// A message of TLS itself that continues in another record is possible, and no client sends it. While it
/// is incomplete, rustls could not encrypt a reply.
#[test]
fn a_change_of_keys_in_two_records_ends_its_connection() {
    let server = secure_server(Ram::shared(8192), Limits::default());
    let mut raw = server.greet();
    ask(&mut raw);
    let mut forger = Forger::new(&mut raw.stream, &rustls::version::TLS13);
    let read = Request { flags: 0, kind: command::READ, cookie: 5, offset: 0, len_bytes: 8192 }.encode();
    let sent = [
        forger.record(ContentType::ApplicationData, &go()),
        forger.record(ContentType::ApplicationData, &read.repeat(50)),
        // A third of a KeyUpdate.
        forger.record(ContentType::Handshake, &[24, 0]),
    ];
    raw.send(&sent.concat());
    // The first requests may be answered. The server does not wait for the rest.
    let ended = raw.stream.read_to_end(&mut Vec::new());
    assert!(!ended.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock), "it is still served");
    server.assert_alive();
}

/// A client of TLS 1.2 may ask for it once.
#[test]
fn a_second_handshake_is_refused() {
    let server = secure_server(Ram::shared(8192), Limits::default());
    let mut raw = server.greet();
    ask(&mut raw);
    let mut forger = Forger::new(&mut raw.stream, &rustls::version::TLS12);
    let mut hello = Vec::new();
    client_with(&PKI, false, &[&rustls::version::TLS12]).write_tls(&mut hello).unwrap();
    let read = Request { flags: 0, kind: command::READ, cookie: 5, offset: 0, len_bytes: 8192 }.encode();
    let sent = [
        forger.record(ContentType::ApplicationData, &go()),
        forger.record(ContentType::Handshake, &hello[5..]),
        forger.record(ContentType::ApplicationData, &read),
    ];
    raw.send(&sent.concat());
    // The option's replies, an alert and the data, each with what encryption adds.
    raw.bytes(20 + 12 + 20 + 2 + 16 + 8192);
    raw.send(&forger.record(ContentType::Handshake, &hello[5..]));
    let _ = raw.stream.read_to_end(&mut Vec::new());
    server.assert_alive();
}

/// Data that a client sends without waiting for the end of the negotiation are not lost.
#[test]
fn requests_in_the_record_that_ends_the_negotiation_are_answered() {
    let server = secure_server(Ram::shared(8192), Limits::default());
    let mut raw = server.greet();
    ask(&mut raw);
    let mut tls = client(&PKI);
    shake_hands(&mut tls, &mut raw.stream).unwrap();
    let go = info(b"disk", &[]);
    let read = Request { flags: 0, kind: command::READ, cookie: 5, offset: 0, len_bytes: 512 }.encode();
    let header = OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode();
    let mut stream = rustls::Stream::new(&mut tls, &mut raw.stream);
    stream.write_all(&[&header[..], &go, &read, &read].concat()).unwrap();
    let mut answers = vec![0; 20 + 12 + 20 + 2 * (16 + 512)];
    stream.read_exact(&mut answers).unwrap();
    assert_eq!(answers[60..68], 5_u64.to_be_bytes());
}

#[test]
fn clients_are_notified_of_the_end_of_the_server() {
    let mut server = secure_server(Ram::shared(8192), Limits::default());
    let (mut tls, mut wire) = in_hand(&server);
    server.stop();
    let mut stream = rustls::Stream::new(&mut tls, &mut wire);
    // An end that TLS had not announced would be an error.
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn memory_of_tls_is_counted_and_given_back() {
    const CLIENTS: u64 = 8;
    let account = Strict::new(100, 8);
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8 << 20))).tls(certificates());
    let server = Running::start(builder.account(Arc::clone(&account) as _));
    let mut all: Vec<_> = (0..CLIENTS).map(|_| in_hand(&server)).collect();
    let idle_bytes = account.idle_bytes_taken();
    assert!((CLIENTS * 8192..=CLIENTS * 20_480).contains(&idle_bytes), "{idle_bytes} bytes");
    // The account lets few of them work at a time.
    thread::scope(|scope| {
        for (tls, wire) in &mut all {
            scope.spawn(move || {
                let mut stream = rustls::Stream::new(tls, wire);
                for cookie in 0..20 {
                    let request = Request { flags: 0, kind: command::READ, cookie, offset: 0, len_bytes: 300_000 };
                    stream.write_all(&request.encode()).unwrap();
                    stream.read_exact(&mut vec![0; 16 + 300_000]).unwrap();
                }
            });
        }
    });
    drop(all);
    wait_until("the memory comes back", || account.idle_bytes_taken() == 0);
}

#[test]
fn a_client_that_openssl_makes_is_served_or_refused() {
    if Command::new("openssl").arg("version").output().is_err() {
        return pagefold_testing::skip("a_client_that_openssl_makes_is_served_or_refused", "openssl is not installed");
    }
    let server = OnTcp::start(|builder| builder.tls(certificates()));
    // It does not speak NBD: TLS without STARTTLS is refused.
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{}", server.port), "-brief"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let mut plain = server.greet();
    assert_eq!(plain.option(option::STARTTLS, b""), reply::ACK);
    carried(plain.0, client(&PKI)).go(b"disk");
}

/// The tests of requests and replies, with clients that use TLS.
#[test]
fn other_tests_pass_over_tls() {
    if *crate::raw::OVER_TLS {
        return;
    }
    let these = ["commands::", "contexts::", "extended::", "holes::", "overlap::", "waiting::", "errors::"];
    let output = Command::new(std::env::current_exe().unwrap()).args(these).env("TEST_OVER_TLS", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(" 0 passed"), "{text}");
}
