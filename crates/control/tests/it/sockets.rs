//! Clients of a socket: our own, slow ones, and too many of them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pagefold_control::{
    Add, Client, ClientError, Code, Command, Compacted, DiskRecord, Failure, Limits, Listing, MAX_REQUEST_BYTES,
    Manage, Model, NewDevice, Resize, Resized, Server, ServerHandle, Stopping,
};
use pagefold_testing::skip_for_good;
use rustix::{
    process::{Uid, geteuid},
    thread::set_thread_res_uid,
};
use tempfile::TempDir;

const TIME: Duration = Duration::from_secs(60);

/// A server that stops when this value is dropped.
struct Running {
    folder: TempDir,
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(limits: Limits) -> Self {
        let folder = TempDir::new().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("a socket");
        let server =
            Server::new(listener, Arc::new(Model::new()) as Arc<dyn Manage>, "1.2.3", limits).expect("a server");
        let handle = server.handle();
        let thread = thread::spawn(move || server.run().expect("it serves"));
        Self { folder, handle, thread: Some(thread) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn client(&self) -> Client {
        Client::connect(&self.path(), TIME).expect("a client")
    }

    fn raw(&self) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(self.path()).expect("a socket");
        stream.set_read_timeout(Some(TIME)).expect("a timeout");
        let mut raw = BufReader::new(stream);
        assert_eq!(line(&mut raw), "{\"name\":\"pagefold\",\"protocol\":1,\"version\":\"1.2.3\"}\n");
        raw
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        self.thread.take().expect("a thread").join().expect("it ends");
    }
}

/// Returns the default limits after `change`.
fn limits_with(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

fn line(raw: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    raw.read_line(&mut line).expect("a line");
    line
}

#[test]
fn a_client_gets_records_and_failures() {
    let server = Running::start(Limits::default());
    let mut client = server.client();
    let add = Add { limit_bytes: Some(8192), read_only: true, ..Add::new("a \"b\"", 4096) };
    let record: DiskRecord = client.call(&Command::Add(add.clone())).expect("a disk");
    assert_eq!(
        (&record.name, record.size_bytes, record.limit_bytes, record.read_only),
        (&add.name, 4096, Some(8192), true)
    );
    let failed = client.call::<DiskRecord>(&Command::Add(add)).expect_err("a name in use");
    assert!(matches!(&failed, ClientError::Failed(Failure { code: Code::NameInUse, .. })), "{failed}");
    let name = record.name.clone();
    let resize = Command::Resize(Resize { name, size_bytes: 512, shrink: true, force: false });
    assert_eq!(client.call::<Resized>(&resize).expect("it shrinks").before_bytes, 4096);
    let _: Compacted = client.call(&Command::Compact { seconds: 1 }).expect("nothing to compact");
    let listing: Listing = client.call(&Command::List {}).expect("disks");
    assert_eq!(listing.disks, [DiskRecord { size_bytes: 512, ..record }]);
    let stopping: Stopping = client.call(&Command::Stop { force: false }).expect("it stops");
    assert_eq!(stopping, Stopping::default());
}

#[test]
fn a_command_gets_the_file_that_comes_with_it() {
    let server = Running::start(Limits::default());
    let mut client = server.client();
    let _: DiskRecord = client.call(&Command::Add(Add::new("a", 512))).expect("a disk");
    let device = Command::ServeDevice(NewDevice { name: "a".to_owned(), number: 7, queues: 1, depth: 1 });
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let _: Listing = client.call_with(&Command::List {}, Some(theirs.as_fd())).expect("disks");
    let failed = client.call::<DiskRecord>(&device).expect_err("no file");
    assert!(matches!(&failed, ClientError::Failed(Failure { code: Code::InvalidRequest, .. })), "{failed}");
    let record: DiskRecord = client.call_with(&device, Some(theirs.as_fd())).expect("a device");
    assert_eq!(record.device.as_deref(), Some("/dev/ublkb7"));
    // The server has closed all copies: the device's, and the one that no command needed.
    drop(theirs);
    ours.set_read_timeout(Some(TIME)).expect("a timeout");
    assert_eq!(ours.read(&mut [0]).expect("an end"), 0);
}

#[test]
fn lines_that_come_together_are_answered_in_order() {
    let server = Running::start(Limits::default());
    let mut raw = server.raw();
    let requests: String = (0..2000).map(|id| format!("{{\"id\":{id},\"command\":\"list\"}}\n\n \r\n")).collect();
    let mut stream = raw.get_ref().try_clone().expect("a clone");
    thread::scope(|scope| {
        scope.spawn(move || {
            stream.write_all(requests.as_bytes()).expect("requests");
            // One more line, without a line end.
            stream.write_all(b"{\"id\":2000,\"command\":\"list\"}").expect("a request");
            stream.shutdown(std::net::Shutdown::Write).expect("an end");
        });
        for id in 0..=2000 {
            assert_eq!(line(&mut raw), format!("{{\"id\":{id},\"result\":{{\"disks\":[]}}}}\n"));
        }
    });
    assert_eq!(line(&mut raw), "", "the server closes after the last");
}

#[test]
fn a_request_has_a_length_and_a_time() {
    let server = Running::start(limits_with(|limits| limits.request_time = Duration::from_millis(300)));
    // The longest valid request, padded with spaces.
    let mut raw = server.raw();
    let mut longest = b"{\"command\":\"list\"}".to_vec();
    longest.resize(MAX_REQUEST_BYTES - 1, b' ');
    longest.push(b'\n');
    raw.get_ref().write_all(&longest).expect("a request");
    assert!(line(&mut raw).contains("result"));
    longest.insert(0, b' ');
    // The server may close the connection before everything has arrived.
    let _ = raw.get_ref().write_all(&longest);
    assert!(line(&mut raw).contains("too-much"));
    // Silence between requests is allowed. Within a request it ends the connection, even if bytes
    // trickle in.
    let mut raw = server.raw();
    // Longer than a request may take.
    thread::sleep(Duration::from_millis(600));
    raw.get_ref().write_all(b"{\"command\":\"list\"}\n").expect("a request");
    assert!(line(&mut raw).contains("result"));
    let start = Instant::now();
    while raw.get_ref().write_all(b" ").is_ok() {
        assert!(start.elapsed() < TIME, "it is not ended");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(line(&mut raw).contains("too-much"));
}

#[test]
fn one_that_takes_no_answers_is_dropped() {
    let server = Running::start(limits_with(|limits| {
        limits.answer_time = Duration::from_millis(300);
        limits.clients = 1;
    }));
    let stream = UnixStream::connect(server.path()).expect("a socket");
    stream.set_write_timeout(Some(TIME)).expect("a timeout");
    let start = Instant::now();
    // Once answers fill the socket, the server stops reading and drops the client.
    while (&stream).write_all(&b"{\"command\":\"list\"}\n".repeat(1000)).is_ok() {
        assert!(start.elapsed() < TIME, "it is not dropped");
    }
    let _: Listing = server.client().call(&Command::List {}).expect("another is served");
}

#[test]
fn the_longest_idle_client_gives_way() {
    let server = Running::start(limits_with(|limits| limits.clients = 3));
    let mut first = server.raw();
    let mut others: Vec<_> = (0..2).map(|_| server.raw()).collect();
    first.get_ref().write_all(b"{\"command\":\"list\"}\n").expect("a request");
    line(&mut first);
    // The first was busy a moment ago, so the second is evicted.
    others.push(server.raw());
    assert_eq!(others.remove(0).read(&mut [0]).expect("an end"), 0);
    for mut raw in others.into_iter().chain([first]) {
        raw.get_ref().write_all(b"{\"command\":\"list\"}\n").expect("a request");
        assert!(line(&mut raw).contains("result"));
    }
}

#[test]
fn a_peer_that_is_not_a_server_is_reported() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("socket");
    let fails = |time| Client::connect(&path, time).expect_err("no server");
    assert!(matches!(fails(TIME), ClientError::Connect { .. }));
    let listener = UnixListener::bind(&path).expect("a socket");
    assert!(matches!(fails(Duration::from_millis(100)), ClientError::Silent(_)));
    drop(listener.accept());
    thread::scope(|scope| {
        let speaks = scope.spawn(|| {
            let (mut client, _) = listener.accept().expect("a client");
            client.write_all(b"NBDMAGIC").expect("a greeting");
            client
        });
        assert!(matches!(fails(Duration::from_secs(1)), ClientError::Foreign { .. }));
        drop(speaks.join());
    });
    for (greeting, what) in [
        (&b"NBDMAGICIHAVEOPT\0\x03"[..], "not a pagefold server"),
        (b"{\"name\":\"other\",\"protocol\":1,\"version\":\"1\"}\n", "\"other\""),
        (b"{\"name\":\"pagefold\",\"protocol\":2,\"version\":\"9.0\"}\n", "pagefold 9.0"),
        (b"", "did not reply"),
    ] {
        let error = thread::scope(|scope| {
            scope.spawn(|| listener.accept().expect("a client").0.write_all(greeting).expect("a greeting"));
            fails(TIME).to_string()
        });
        assert!(error.contains(what), "{error}");
    }
}

/// On a socket that the service manager, which is root, has opened, the server still answers as its
/// own user.
#[test]
fn a_servers_user_is_the_one_who_answers() {
    let server = Running::start(Limits::default());
    assert_eq!(server.client().server_user().expect("a user"), geteuid());
    if !geteuid().is_root() {
        return skip_for_good("a_servers_user_is_the_one_who_answers", "only root changes its user");
    }
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let other = Uid::from_raw(65_533);
    let user = thread::scope(|scope| {
        scope.spawn(|| {
            // Only of this thread.
            set_thread_res_uid(other, other, other).expect("root may");
            let (mut client, _) = listener.accept().expect("a client");
            client.write_all(b"{\"name\":\"pagefold\",\"protocol\":1,\"version\":\"1\"}\n").expect("a greeting");
            BufReader::new(client.try_clone().expect("a socket")).read_line(&mut String::new()).expect("a request");
            client.write_all(b"{\"id\":1,\"result\":{}}\n").expect("an answer");
        });
        Client::connect(&path, TIME).expect("a client").server_user()
    });
    assert_eq!(user.expect("a user"), other);
}

/// Clients that hold instants do not lock others out. If there are too many of them, other freezes
/// still get an answer.
#[test]
fn clients_with_instants_have_places_of_their_own() {
    let server = Running::start(limits_with(|limits| (limits.clients, limits.holders) = (2, 3)));
    let add = Add::new("a", 4096);
    let _: DiskRecord = server.client().call(&Command::Add(add)).expect("a disk");
    let freeze = Command::Freeze { name: "a".to_owned() };
    let hold = |_| {
        let mut client = server.client();
        let _: pagefold_control::Instant = client.call(&freeze).expect("an instant");
        client
    };
    let mut holders: Vec<_> = (0..3).map(hold).collect();
    let mut other = server.client();
    let failed = other.call::<pagefold_control::Instant>(&freeze);
    assert!(matches!(&failed, Err(ClientError::Failed(Failure { code: Code::Busy, .. }))), "{failed:?}");
    let _: Listing = other.call(&Command::List {}).expect("a list");
    let _: pagefold_control::Instant = holders[0].call(&freeze).expect("a second instant");
    drop(holders.pop());
    // The server notices a moment later that it has left.
    let start = std::time::Instant::now();
    while other.call::<pagefold_control::Instant>(&freeze).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "its place is not free");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_with_an_instant_is_not_idle() {
    let server = Running::start(limits_with(|limits| limits.clients = 2));
    let mut freezer = server.client();
    let add = Add::new("a", 4096);
    let _: DiskRecord = freezer.call(&Command::Add(add)).expect("a disk");
    let freeze = Command::Freeze { name: "a".to_owned() };
    let instant: pagefold_control::Instant = freezer.call(&freeze).expect("an instant");
    // Other clients come and go; the freezer is never evicted for them.
    let others: Vec<_> = (0..3).map(|_| server.client()).collect();
    let runs = Command::FrozenRuns { export: instant.export, offset_bytes: 0 };
    let _: pagefold_control::FrozenRuns = freezer.call(&runs).expect("its runs");
    drop(others);
    let failed = freezer.call::<pagefold_control::Instant>(&Command::Freeze { name: "b".to_owned() });
    assert!(matches!(&failed, Err(ClientError::Failed(Failure { code: Code::NoSuchDisk, .. }))), "{failed:?}");
}
