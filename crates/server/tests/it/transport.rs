//! A further transport of a server: calls of this process.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex, Weak,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pagefold_disk::BlockDevice;
use pagefold_executor::{Change, Client, Completion, Event, Export, Failed, OpenError, Scratch, Stopper};
use pagefold_server::{
    Add, BaseFile, Code, Host, Manage, Resize, Server, Sockets, Transport, TransportError, WhenFull,
};

use crate::{config, images, nbd};

/// Shows a file for each disk.
#[derive(Clone, Default)]
struct Files(Arc<State>);

#[derive(Default)]
struct State {
    host: Mutex<Option<Host>>,
    files: Mutex<BTreeMap<String, Arc<Export>>>,
    clients: Mutex<Vec<Weak<Client>>>,
    mirror: Mutex<Option<(Stopper, JoinHandle<()>)>>,
}

impl Transport for Files {
    fn start(&mut self, host: &Host) -> Result<(), TransportError> {
        *self.0.host.lock().unwrap() = Some(host.clone());
        let mut watch = host.exports().watch();
        let (stopper, state) = (watch.stopper(), Arc::clone(&self.0));
        let follow = move |event| {
            let mut files = state.files.lock().unwrap();
            match event {
                Event::Added { name, export, .. } => _ = files.insert(name.to_string(), export),
                Event::Removed { name, .. } => _ = files.remove(&*name),
                Event::Renamed { before, name, .. } => {
                    let export = files.remove(&*before).expect("it was added");
                    files.insert(name.to_string(), export);
                }
            }
        };
        // Those that exist are there when this returns.
        std::iter::from_fn(|| watch.take()).for_each(&follow);
        let mirror = thread::spawn(move || std::iter::from_fn(|| watch.wait()).for_each(follow));
        *self.0.mirror.lock().unwrap() = Some((stopper, mirror));
        Ok(())
    }

    fn stop(&mut self) {
        let (stopper, mirror) = self.0.mirror.lock().unwrap().take().expect("it was started");
        stopper.stop();
        mirror.join().expect("no panic");
        self.0.clients.lock().unwrap().iter().filter_map(Weak::upgrade).for_each(|client| client.end());
        *self.0.host.lock().unwrap() = None;
    }
}

/// Receives what a call returns.
type Answer<T> = Receiver<Result<T, i32>>;

/// Sends the end of a change.
struct Reply(Arc<Client>, Sender<Result<(), i32>>);

impl Completion for Reply {
    fn client(&self) -> &Arc<Client> {
        &self.0
    }

    fn done(&mut self, result: Result<(), Failed>) {
        let _ = self.1.send(result.map_err(|failed| failed.errno()));
    }
}

impl Files {
    fn open(&self, name: &str) -> Arc<Client> {
        let export = Arc::clone(&self.0.files.lock().unwrap()[name]);
        let client = self.0.host.lock().unwrap().as_ref().expect("it runs").open(&export).expect("a client");
        self.0.clients.lock().unwrap().push(Arc::downgrade(&client));
        client
    }

    /// Begins a read. Also returns whether this thread did all of it.
    fn read(client: &Arc<Client>, offset: u64, len: usize) -> (Answer<Vec<u8>>, bool) {
        let (sender, receiver) = mpsc::channel();
        let mut bytes = vec![0; len];
        let tried = client
            .device()
            .ok_or(ESHUTDOWN)
            .and_then(|device| device.try_read(offset, &mut bytes).map_err(|error| error.errno()));
        if tried.is_ok_and(|done| done < len) {
            let other = Arc::clone(client);
            let read = move |_: &mut Scratch| {
                let read = other
                    .device()
                    .ok_or(ESHUTDOWN)
                    .and_then(|device| device.read(offset, &mut bytes).map_err(|error| error.errno()));
                let _ = sender.send(read.map(|()| bytes));
            };
            // Without a free thread, this one waits.
            let _ = client.hand_on(read).map_err(|read| read(&mut Scratch::default()));
            return (receiver, false);
        }
        sender.send(tried.map(|_| bytes)).expect("a receiver");
        (receiver, true)
    }

    fn write(client: &Arc<Client>, offset: u64, bytes: &[u8]) -> Answer<()> {
        let (sender, receiver) = mpsc::channel();
        Change::write(offset, bytes).start(Reply(Arc::clone(client), sender));
        receiver
    }
}

const ESHUTDOWN: i32 = 108;

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come");
        thread::sleep(Duration::from_millis(2));
    }
}

fn answer<T>(answer: &Answer<T>) -> Result<T, i32> {
    answer.recv_timeout(Duration::from_secs(60)).expect("an answer")
}

fn waiting(server: &Server) -> u64 {
    server.server().figures["waiting_requests"].as_u64().expect("a number")
}

#[test]
fn a_transport_shows_disks_and_has_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = images::filled();
    images::serve_image(&server, "disk", &folder.path().join("disk.erofs"));
    let (files, socket) = (Files::default(), folder.path().join("nbd.sock"));
    let names = || files.0.files.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    let sockets = Sockets::new().unix(&socket).transport(files.clone());
    let running = server.listen(sockets).expect("it listens").start().expect("a thread");
    assert_eq!(names(), ["disk", "fork", "image"]);
    server.add(&Add::new("new", 1 << 20)).expect("a disk");
    wait_for("the new disk", || names() == ["disk", "fork", "image", "new"]);

    // The asking thread answers hits, and a thread of the executor misses.
    let (disk, image) = (files.open("disk"), files.open("image"));
    let mut expected = vec![0; 64 << 10];
    server.device("disk").expect("a disk").read(5 * 4096, &mut expected).expect("its content");
    // The image's clusters are not decoded yet.
    for (client, is_hit) in [(&disk, true), (&image, false)] {
        let (found, is_here) = Files::read(client, 5 * 4096, expected.len());
        assert!(answer(&found).expect("its content") == expected);
        assert_eq!(is_here, is_hit);
    }
    assert_eq!(answer(&Files::write(&disk, 100, &[9; 10_000])), Ok(()));
    assert_eq!(answer(&Files::read(&disk, 100, 10_000).0), Ok(vec![9; 10_000]));
    assert_eq!(answer(&Files::write(&image, 0, &[9])), Err(1), "EPERM");
    assert_eq!(answer(&Files::write(&disk, 3 << 20, &[9])), Err(22), "EINVAL");

    // A disk with such a client is in use.
    let code = |result: Result<(), pagefold_server::Failure>| result.expect_err("it is in use").code;
    assert_eq!(code(server.drop("disk", false, false).map(drop)), Code::InUse);
    let shrink = Resize { name: "disk".to_owned(), size_bytes: 4096, shrink: true, force: false };
    assert_eq!(code(server.resize(&shrink).map(drop)), Code::InUse);
    let clients = server.list(pagefold_control::Batch { after: None, most: 1 })[0].clients;
    assert_eq!(clients, 1);
    drop(disk);
    server.resize(&shrink).expect("it is free");

    server.rename("image", "base").expect("a name");
    wait_for("the new name", || names() == ["base", "disk", "fork", "new"]);
    server.drop("base", false, true).expect("a disk");
    wait_for("its end", || names() == ["disk", "fork", "new"]);
    assert_eq!(answer(&Files::read(&image, 0, 512).0), Err(ESHUTDOWN));
    drop(running);
}

/// Clients of all transports share the connections that a server allows.
#[test]
fn clients_of_a_transport_are_among_the_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = crate::server();
    for name in ["a", "b"] {
        server.add(&Add::new(name, 1 << 20)).expect("a disk");
    }
    let (files, socket) = (Files::default(), folder.path().join("nbd.sock"));
    let sockets = Sockets::new().unix(&socket).transport(files.clone());
    let running = server.listen(sockets).expect("it listens").start().expect("a thread");
    server.limit_connections(4).expect("a number");
    let mut clients: Vec<_> = ["a", "a", "b", "b"].iter().map(|name| files.open(name)).collect();
    assert_eq!(server.server().figures["connections"].as_u64(), Some(4));
    let export = Arc::clone(&files.0.files.lock().unwrap()["a"]);
    let open = || files.0.host.lock().unwrap().as_ref().expect("it runs").open(&export);
    assert_eq!(open().map(drop), Err(OpenError::ServerFull(4)));
    let connect = || pagefold_serve::Client::unix(&socket, "a", Duration::from_secs(60));
    let refused = connect().map(drop).expect_err("all are in use");
    assert!(format!("{refused:?}").contains("all 4 connections that this server allows"), "{refused:?}");
    clients.pop();
    // The last place is not for the disk that has its share already.
    assert_eq!(nbd::write(&socket, "b", 0, &[9; 512]), Ok(vec![9; 512]));
    clients.clear();
    wait_for("the last connection's end", || server.server().figures["connections"].as_u64() == Some(0));
    drop(running);
}

#[test]
fn changes_over_a_transport_wait_for_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = config();
    config.when_full = WhenFull::Wait;
    let server = Server::new(config).expect("a server");
    for name in ["a", "b", "c"] {
        server.add(&Add::new(name, 1 << 20)).expect("a disk");
    }
    let files = Files::default();
    let sockets = Sockets::new().unix(folder.path().join("nbd.sock")).transport(files.clone());
    let running = server.listen(sockets).expect("it listens").start().expect("a thread");
    let clients = ["a", "b", "c"].map(|name| {
        server.limit(Some(name), Some(8192)).expect("a limit");
        files.open(name)
    });
    let bytes = images::page(1).repeat(16);
    let answers = clients.each_ref().map(|client| Files::write(client, 0, &bytes));
    wait_for("three writes to wait", || waiting(&server) == 3);
    // Reads continue, and one thread waits for all changes.
    assert!(answer(&Files::read(&clients[0], 512 << 10, 512).0).is_ok());
    server.limit(Some("a"), None).expect("no limit");
    assert_eq!(answer(&answers[0]), Ok(()));
    server.drop("b", false, true).expect("a disk");
    assert_eq!(answer(&answers[1]), Err(ESHUTDOWN));
    assert_eq!(waiting(&server), 1);
    drop(running);
    assert_eq!(answer(&answers[2]), Err(ESHUTDOWN));
}

#[test]
fn a_transport_that_cannot_start_keeps_the_server_from_listening() {
    struct Broken;
    impl Transport for Broken {
        fn start(&mut self, _: &Host) -> Result<(), TransportError> {
            Err("no such folder".into())
        }

        fn stop(&mut self) {
            panic!("it was not started");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (server, socket, files) = (crate::server(), folder.path().join("nbd.sock"), Files::default());
    let file = folder.path().join("base.img");
    fs::write(&file, [7; 4096]).expect("a file");
    server.serve_file(&BaseFile::new("base", &file)).expect("a base");
    let sockets = Sockets::new().unix(&socket).transport(files.clone()).transport(Broken);
    let error = server.listen(sockets).expect_err("it cannot start");
    assert_eq!(error.to_string(), "no such folder");
    assert!(files.0.mirror.lock().unwrap().is_none() && !socket.exists(), "it was stopped");
    let running = server.listen(Sockets::new().unix(&socket).transport(files.clone())).expect("it listens");
    assert_eq!(files.0.files.lock().unwrap().len(), 1);
    drop(running);
    assert!(files.0.mirror.lock().unwrap().is_none());
}
