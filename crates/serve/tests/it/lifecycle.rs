use std::{
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use pagefold_serve::{Error, Export, Permissions, Server, SocketFile, listen_with, protocol::command};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::{
    device::Ram,
    raw::{Running, limits_with},
};

fn bind(path: &std::path::Path) -> Result<Server, Error> {
    Server::builder().export(Export::new("disk", Ram::shared(8192))).unix(path).bind()
}

#[test]
fn stop_finishes_requests_in_flight_and_removes_the_socket() {
    let device = Ram::gated(1 << 20);
    let mut server = Running::of(Arc::clone(&device) as _);
    let (mut raw, mut idle) = (server.simple(), server.simple());
    raw.request(command::WRITE, 0, 1, 0, 4);
    raw.send(b"last");
    while device.gate.waiting() == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    server.handle.stop();
    idle.expect_end();
    assert!(!server.path.exists());
    device.gate.open();
    assert_eq!(raw.simple_reply(), (0, 1));
    raw.expect_end();
    server.stop();
    assert_eq!(&device.bytes.lock().unwrap()[..4], b"last");
    assert_eq!(Arc::strong_count(&device), 1, "a thread still holds the device");
}

#[test]
fn stop_answers_sent_requests_and_ends_peers_in_the_handshake() {
    let mut server = Running::of(Ram::shared(1 << 20));
    let mut negotiating = server.greet();
    let mut raw = server.simple();
    for cookie in 0..50 {
        raw.request(command::READ, 0, cookie, 0, 512);
    }
    server.stop();
    // Several threads may have answered.
    let mut cookies = Vec::new();
    for _ in 0..50 {
        let (errno, cookie) = raw.simple_reply();
        assert_eq!(errno, 0);
        cookies.push(cookie);
        raw.bytes(512);
    }
    cookies.sort_unstable();
    assert_eq!(cookies, (0..50).collect::<Vec<_>>());
    raw.expect_end();
    negotiating.expect_end();
}

#[test]
fn stop_answers_requests_that_arrived_while_the_leader_worked() {
    let device = Ram::shared(1 << 20);
    device.gate.close();
    let mut server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 0, 512);
    while device.gate.waiting() == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    raw.request(command::READ, 0, 2, 512, 512);
    server.handle.stop();
    // The server shuts the socket down a moment later; data that have arrived by then stay.
    std::thread::sleep(Duration::from_millis(50));
    device.gate.open();
    for cookie in [1, 2] {
        assert_eq!(raw.simple_reply(), (0, cookie));
        raw.bytes(512);
    }
    raw.expect_end();
    server.stop();
}

#[test]
fn stop_does_not_wait_for_a_peer_that_does_not_read() {
    let limits = limits_with(|limits| limits.stop_grace = Duration::from_millis(300));
    let mut server = Running::limited(Ram::shared(33 << 20), limits);
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 0, 32 << 20);
    raw.bytes(1);
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(25), "took {:?}", start.elapsed());
}

/// A burst of clients that connect without blocking gets no error before the server accepts them.
#[test]
fn many_clients_may_wait_to_be_accepted() {
    const BURST: usize = 400;
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a limit of the system");
    let most = most.trim().parse().map_or(BURST, |most| BURST.min(most));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let (_listener, _file) = listen_with(&path, Permissions::default()).expect("a socket");
    let address = SocketAddrUnix::new(&path).expect("a short path");
    let connect = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&client, &address).map(|()| client)
    };
    let waiting: Vec<_> = (0..most).map_while(|_| connect().ok()).collect();
    assert_eq!(waiting.len(), most);
}

#[test]
fn a_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = bind(&path).unwrap();
    assert_eq!(server.unix_paths().collect::<Vec<_>>(), std::slice::from_ref(&path));
    UnixStream::connect(&path).unwrap();
    drop(server);
    assert!(!path.exists());
}

#[test]
fn an_address_in_use_is_a_clear_error_and_stays_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let _first = bind(&path).unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, Error::PathInUse(_)), "{error}");
    assert!(error.to_string().contains("address in use") && error.to_string().contains("nbd.sock"));
    UnixStream::connect(&path).unwrap();

    let export = || Export::new("disk", Ram::shared(8192));
    let first = Server::builder().export(export()).tcp(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let address = first.tcp_addresses().next().unwrap();
    let error = Server::builder().export(export()).tcp(address).bind().unwrap_err();
    assert!(matches!(error, Error::AddressInUse(found) if found == address), "{error}");
}

#[test]
fn one_of_many_servers_that_start_on_a_stale_socket_wins() {
    const STARTS: usize = 4;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    for round in 0..500 {
        drop(UnixListener::bind(&path).unwrap());
        let start = Barrier::new(STARTS);
        let ends: Vec<Result<Server, Error>> = std::thread::scope(|scope| {
            let start_one = || {
                start.wait();
                bind(&path)
            };
            let starts: Vec<_> = (0..STARTS).map(|_| scope.spawn(start_one)).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let (winners, losers): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
        assert_eq!(winners.len(), 1, "round {round}: {losers:?}");
        for loser in losers {
            assert!(matches!(loser, Err(Error::PathInUse(_))), "round {round}: {loser:?}");
        }
        UnixStream::connect(&path).unwrap();
        drop(winners);
        assert!(!path.exists());
    }
}

#[test]
fn a_directory_that_stays_locked_is_an_error_after_a_while() {
    use rustix::fs::{FlockOperation, flock};
    let directory = tempfile::tempdir().unwrap();
    let held = std::fs::File::open(directory.path()).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let error = bind(&directory.path().join("nbd.sock")).unwrap_err();
    assert!(matches!(error, Error::Unix { .. }), "{error:?}");
}

#[test]
fn a_file_that_is_not_a_socket_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    std::fs::write(&path, "precious").unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, Error::NotASocket(_)), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn an_invalid_path_is_a_clear_error() {
    let error = bind(std::path::Path::new("/nonexistent/nbd.sock")).unwrap_err();
    assert_eq!(error.to_string(), "cannot listen on /nonexistent/nbd.sock");
    // The cause is the error's source and is not repeated in its text.
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("No such file"), "{cause}");
    let folder = tempfile::TempDir::new().unwrap();
    let of = |len: usize| folder.path().join("x".repeat(len - 1 - folder.path().as_os_str().len()));
    assert!(bind(&of(107)).is_ok());
    let error = bind(&of(108)).unwrap_err().to_string();
    assert!(error.ends_with("has 108 bytes, the maximum is 107: choose a shorter one"), "{error}");
}

#[test]
fn another_servers_socket_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let server = bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(server);
    assert!(path.exists());
}

#[test]
fn several_listeners_serve_one_device() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().join("a.sock"), directory.path().join("b.sock")];
    let server = Server::builder()
        .export(Export::new("disk", Ram::shared(8192)))
        .unix(&paths[0])
        .unix(&paths[1])
        .tcp(([127, 0, 0, 1], 0).into())
        .bind()
        .unwrap();
    let address = server.tcp_addresses().next().unwrap();
    let handle = server.handle();
    let running = std::thread::spawn(move || server.run());
    for path in &paths {
        assert_eq!(read_greeting(UnixStream::connect(path).unwrap()), *b"NBDMAGIC");
    }
    assert_eq!(read_greeting(std::net::TcpStream::connect(address).unwrap()), *b"NBDMAGIC");
    handle.stop();
    running.join().unwrap().unwrap();
}

fn read_greeting(mut stream: impl std::io::Read) -> [u8; 8] {
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).unwrap();
    greeting
}

#[test]
fn names_that_clients_could_not_show_or_distinguish_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bind = |names: &[&str]| {
        let builder =
            names.iter().fold(Server::builder(), |builder, name| builder.export(Export::new(*name, Ram::shared(8192))));
        builder.unix(folder.path().join("socket")).bind().map(drop).map_err(|error| error.to_string())
    };
    assert!(bind(&["a\nb\u{1b}[31m"]).unwrap_err().contains(r#""a\nb\u{1b}[31m""#));
    assert!(bind(&["a", "a"]).unwrap_err().contains("`a`"));
    assert!(bind(&[&"a".repeat(4097)]).unwrap_err().contains("4097"));
    assert_eq!(bind(&["", "a b/ü?", &"a".repeat(4096)]), Ok(()));
}

/// A server that continues another one removes only what that one has created, although it has not looked before.
#[test]
fn a_file_that_another_server_knows_is_removed_unless_it_was_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let take_over = |replace: &dyn Fn()| {
        let (_listener, mut file) = listen_with(&path, Permissions::default()).expect("a socket");
        let mut known = SocketFile::known_to_another(path.clone(), file.inode());
        assert!(known.is_there());
        drop(SocketFile::known_to_another(path.clone(), file.inode()));
        assert!(file.is_there(), "it is not owned");
        file.leave();
        known.own();
        replace();
    };
    take_over(&|| {});
    assert!(!path.exists());
    take_over(&|| std::fs::remove_file(&path).expect("a file"));
    let replace = || {
        std::fs::remove_file(&path).expect("a file");
        drop(UnixListener::bind(&path).expect("a socket"));
    };
    take_over(&replace);
    assert!(path.exists(), "it is another server's");
}
