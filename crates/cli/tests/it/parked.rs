//! A server that ends leaves its disks and clients with its service manager, a stand-in for systemd here,
//! and the next process continues.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{IoSliceMut, Read, Seek, Write},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{
            fs::FileExt,
            net::{UnixDatagram, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use command_fds::{CommandFdExt, FdMapping};
use pagefold_testing::programs;
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::set_socket_passcred},
    process::Signal,
};
use tempfile::TempDir;

use crate::{
    fio::{load, succeeds},
    guest::Machine,
    server::{Ended, is_ignored, make_image, pagefold, run, send, wait},
};

/// What a manager does with the files that it gets.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) all: Vec<(String, OwnedFd)>,
    /// How many it stores at most.
    room: usize,
    /// It stores nothing with names that end so.
    loses: Option<&'static str>,
    /// It removes nothing.
    keeps_all: bool,
    /// The service's process: from others, it takes no files.
    main: u32,
    /// How many messages about files it handles before it falls silent.
    left: Option<usize>,
    /// Messages that were neither about files nor barriers.
    said: VecDeque<String>,
}

/// A service manager with a service: sockets, a store, and at most one process.
pub(crate) struct Manager {
    folder: TempDir,
    sockets: Vec<(&'static str, OwnedFd)>,
    store: Arc<Mutex<Store>>,
}

impl Manager {
    pub(crate) fn new() -> Self {
        Self::with_room(64)
    }

    /// Makes one that stores at most `room` descriptors.
    pub(crate) fn with_room(room: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        set_socket_passcred(&socket, true).expect("a socket");
        let listen = |name: &str| UnixListener::bind(folder.path().join(name)).expect("a socket").into();
        let sockets = vec![("nbd", listen("nbd.sock")), ("control", listen("control.sock"))];
        let store = Arc::new(Mutex::new(Store { room, ..Store::default() }));
        let handler = Arc::clone(&store);
        // It ends with the tests.
        thread::spawn(move || handle(&socket, &handler));
        Self { folder, sockets, store }
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every message of a process that has ended is handled, as systemd does before it starts
    /// the next one.
    fn handles_all(&self) {
        const LAST: &str = "LAST=1";
        let socket = UnixDatagram::unbound().expect("a socket");
        if socket.send_to(LAST.as_bytes(), self.path("notify")).is_err() {
            // No process can have sent anything either.
            return;
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.store().said.iter().all(|said| said != LAST) {
            assert!(Instant::now() < deadline, "the manager does not handle its messages");
            thread::sleep(Duration::from_millis(1));
        }
        self.store().said.retain(|said| said != LAST);
    }

    /// Starts a process, which gets the sockets and all that is stored, in the order of systemd: what was
    /// stored last comes first.
    fn spawn(&self, args: &[&str]) -> Service {
        self.handles_all();
        let mut store = self.store();
        let sockets = self.sockets.iter().map(|(name, file)| (*name, file));
        let all = sockets.chain(store.all.iter().rev().map(|(name, file)| (&**name, file)));
        let all: Vec<_> = all.map(|(name, file)| (name, file.try_clone().expect("a copy"))).collect();
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_pagefold"), "serve"]);
        command.args(args).stderr(Stdio::piped());
        command.env("LISTEN_FDS", all.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        command.env("NOTIFY_SOCKET", self.path("notify")).env("FDSTORE", store.room.to_string());
        let numbered = all.into_iter().zip(3..).map(|((_, parent_fd), child_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(numbered.collect()).expect("numbers");
        let service = Service(Ended(command.spawn().expect("it starts")));
        store.main = service.0.0.id();
        service
    }

    /// Starts a process that serves.
    pub(crate) fn start(&self, args: &[&str]) -> Service {
        self.store().said.clear();
        let mut service = self.spawn(args);
        self.waits_for(&mut service, "READY=1");
        service
    }

    pub(crate) fn waits_for(&self, service: &mut Service, line: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.store().said.iter().any(|said| said.lines().any(|found| found == line)) {
            if service.0.0.try_wait().expect("a child").is_some() {
                panic!("it ended: {}", service.messages());
            }
            assert!(Instant::now() < deadline, "it does not say {line}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts a process that must fail, and returns what it says.
    pub(crate) fn fails(&self, args: &[&str]) -> String {
        let mut service = self.spawn(args);
        let status = wait(&mut service.0.0);
        let said = service.messages();
        assert!(status.code() == Some(1), "{status}: {said}");
        said
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path("nbd.sock").display())
    }

    pub(crate) fn ask(&self, args: &[&str]) -> String {
        run(pagefold().args(args).arg("--dir").arg(self.folder.path()))
    }

    /// Waits until nothing is stored.
    pub(crate) fn forgets_all(&self) {
        self.keeps(&[]);
    }

    /// Waits until only that is stored.
    pub(crate) fn keeps(&self, names: &[String]) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.names() != names {
            assert!(Instant::now() < deadline, "something stays in the store: {:?}", self.names());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks a process to end, and kills it when `handled` of its messages about files were handled, or when it
    /// has ended.
    pub(crate) fn is_killed_after(&self, mut service: Service, handled: usize) {
        self.store().left = Some(handled);
        send(Signal::TERM, &service.0.0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.store().left != Some(0) && service.0.0.try_wait().expect("a child").is_none() {
            assert!(Instant::now() < deadline, "{handled}: it sends less");
            thread::sleep(Duration::from_millis(2));
        }
        send(Signal::KILL, &service.0.0);
        wait(&mut service.0.0);
        self.store().left = None;
    }

    /// Returns the names of what is stored.
    pub(crate) fn names(&self) -> Vec<String> {
        self.store().all.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// A process of a service, killed when it is dropped.
pub(crate) struct Service(pub(crate) Ended);

impl Service {
    /// Lets it end as systemd does. Returns what it has said.
    pub(crate) fn stop(mut self) -> String {
        send(Signal::TERM, &self.0.0);
        let status = wait(&mut self.0.0);
        let said = self.messages();
        assert!(status.success(), "{status}: {said}");
        said
    }

    pub(crate) fn messages(&mut self) -> String {
        let mut text = String::new();
        self.0.0.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
        text
    }
}

/// Returns whether both are one file.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let of = |file: &OwnedFd| rustix::fs::fstat(file).map(|found| (found.st_dev, found.st_ino));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

/// Handles messages as systemd does.
fn handle(socket: &UnixDatagram, store: &Mutex<Store>) {
    loop {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut [IoSliceMut::new(&mut text)];
        let Ok(got) = recvmsg(socket, room, &mut control, RecvFlags::CMSG_CLOEXEC) else { return };
        let (mut files, mut sender) = (Vec::new(), 0);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(some) => files.extend(some),
                RecvAncillaryMessage::ScmCredentials(found) => sender = found.pid.as_raw_pid().unsigned_abs(),
                _ => {}
            }
        }
        let text = String::from_utf8_lossy(&text[..got.bytes]).into_owned();
        let has = |line: &str| text.lines().any(|found| found == line);
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_owned();
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        if !(has("FDSTORE=1") || has("FDSTOREREMOVE=1") || has("BARRIER=1")) {
            let main = text.lines().find_map(|line| line.strip_prefix("MAINPID=")?.parse().ok());
            store.main = main.filter(|_| sender == store.main).unwrap_or(store.main);
            store.said.push_back(text);
            continue;
        }
        if sender != store.main && !has("BARRIER=1") {
            continue;
        }
        if let Some(left) = &mut store.left {
            if *left == 0 {
                // It closes what it does not store, but not what a barrier waits for.
                if has("BARRIER=1") {
                    files.into_iter().for_each(std::mem::forget);
                }
                continue;
            }
            *left -= 1;
        }
        if has("FDSTORE=1") {
            assert!(has("FDPOLL=0"), "systemd would close connections that the peer has closed");
            let loses = store.loses.is_some_and(|end| name.ends_with(end));
            let is_stored = |file: &OwnedFd| store.all.iter().any(|(_, stored)| is_same(stored, file));
            for file in files.into_iter().filter(|file| !loses && !is_stored(file)).collect::<Vec<_>>() {
                // It closes what is one too many.
                assert!(store.all.len() < store.room, "{name} does not fit: {} are stored", store.all.len());
                store.all.push((name.clone(), file));
            }
        } else if has("FDSTOREREMOVE=1") && !store.keeps_all {
            store.all.retain(|(found, _)| *found != name);
        }
    }
}

#[test]
fn clients_forks_and_snapshots_survive_three_restarts() {
    let name = "clients_forks_and_snapshots_survive_three_restarts";
    let Some([fio, nbdcopy]) = programs(name, ["fio", "nbdcopy"]) else { return };
    let manager = Manager::new();
    let (image, own) = (manager.path("image"), manager.path("own.sock"));
    make_image(&image, 8);
    let [image_path, own_path] = [&image, &own].map(|path| path.to_str().expect("a plain path"));
    let unix = manager.path("unix.sock");
    let args = ["--export", "name=busy,size=64M", "--export", "name=kept,size=32M", "--unix"];
    let args = [&args[..], &[unix.to_str().expect("a plain path")]].concat();
    let mut service = manager.start(&args);
    let copy = |from: &str, to: &str| run(Command::new(&nbdcopy).args([from, to]));
    copy(image_path, &manager.uri("kept"));
    manager.ask(&["snapshot", "kept", "first"]);
    manager.ask(&["fork", "kept", "fork", "--socket", own_path]);
    manager.ask(&["add", "base", "--base", image_path]);
    manager.ask(&["fork", "base", "of-base"]);
    manager.ask(&["limit", "123M"]);
    let disks = || manager.ask(&["disks", "--columns", "name,size,from,kind"]);
    let before = disks();
    let client = load(&fio, manager.folder.path(), &manager.uri("busy"), 4);
    for round in 0..3 {
        // The client writes in this time.
        thread::sleep(Duration::from_millis(300));
        let said = service.stop();
        println!("{}", said.lines().find(|line| line.contains("to the next process in")).expect("the line"));
        // The options have no effect: what they describe is there.
        service = manager.start(if round == 1 { &[] } else { &args });
        manager.forgets_all();
        assert_eq!(disks(), before);
        let unix = |path: &Path, export: &str| format!("nbd+unix:///{export}?socket={}", path.display());
        for uri in [unix(&own, ""), unix(&manager.path("unix.sock"), "kept@first"), manager.uri("of-base")] {
            let back = manager.path("back");
            copy(&uri, back.to_str().expect("a plain path"));
            let (back, image) = (fs::read(back).expect("a file"), fs::read(&image).expect("a file"));
            assert!(back[..image.len()] == image && back[image.len()..].iter().all(|byte| *byte == 0), "{uri}");
        }
    }
    succeeds(client);
    assert!(manager.ask(&["stat"]).contains("123 MiB"), "the limit was lost");
    manager.ask(&["drop", "fork"]);
    assert!(!own.exists(), "the last server owns the socket");
    // Other ways to end it leave nothing.
    if is_ignored(name, Signal::INT) {
        manager.ask(&["stop"]);
    } else {
        send(Signal::INT, &service.0.0);
    }
    assert!(wait(&mut service.0.0).success());
    manager.forgets_all();
    let service = manager.start(&[]);
    assert!(manager.ask(&["disks"]).lines().count() <= 1, "there are disks");
    manager.ask(&["stop"]);
    drop(service);
    manager.forgets_all();
}

/// A process that has taken another one over has its manager from that one. Without a store, nothing is
/// left; sockets in a directory, and its lock, are kept too.
#[test]
fn a_server_in_a_directory_that_was_taken_over_leaves_its_disks() {
    let manager = Manager { sockets: Vec::new(), ..Manager::new() };
    let dir = manager.path("place");
    let place = ["--dir", dir.to_str().expect("a plain path")];
    let with = |args: &[&'static str]| [args, &place].concat();
    let ask = |args: &[&str]| run(pagefold().args(args).args(place));
    let mut first = manager.start(&with(&["--size", "1M"]));
    let mut next = pagefold();
    let next = next.arg("serve").args(with(&["--take-over"])).stderr(Stdio::piped());
    let mut next = Service(Ended(next.spawn().expect("it starts")));
    let line = format!("MAINPID={}", next.0.0.id());
    manager.waits_for(&mut next, &line);
    // The manager believes only the process before.
    assert!(wait(&mut first.0.0).success());
    ask(&["add", "more", "--size", "2M"]);
    next.stop();
    manager.handles_all();
    assert!(dir.join("control.sock").exists() && manager.names().len() > 3, "{:?}", manager.names());
    // No other server gets the place.
    let mut other = pagefold();
    let other = other.arg("serve").args(place).output().expect("an end");
    assert!(String::from_utf8_lossy(&other.stderr).contains("already uses"));
    let last = manager.start(&place);
    assert_eq!(fs::read_to_string(dir.join("lock")).expect("a lock"), format!("{}\n", last.0.0.id()));
    assert!(ask(&["disks"]).contains("more"));
    let said = last.stop();
    assert!(said.contains("left 2 disks and 0 clients"), "{said}");
}

/// Of a server that ends, only connections may be missing.
#[test]
fn a_store_that_loses_something() {
    let Some([nbdcopy]) = programs("a_store_that_loses_something", ["nbdcopy"]) else { return };
    for (loses, words) in
        [("-state", "the state of the previous server is missing"), ("-0", "a listening socket is missing")]
    {
        let manager = Manager::new();
        let unix = manager.path("unix.sock");
        let args = ["--size", "1M", "--unix", unix.to_str().expect("a plain path")];
        let service = manager.start(&args);
        manager.store().loses = Some(loses);
        service.stop();
        let said = manager.fails(&args);
        assert!(said.contains(words), "{loses}: {said}");
    }
    // A client is idle when its connection is lost.
    let manager = Manager::new();
    let image = manager.path("image");
    make_image(&image, 1);
    let image_path = image.to_str().expect("a plain path");
    let service = manager.start(&["--size", "1M"]);
    run(Command::new(&nbdcopy).args([image_path, &manager.uri("")]));
    let mut clients: Vec<_> = (0..3).map(|_| client(&manager)).collect();
    manager.store().loses = Some("-1");
    service.stop();
    let mut service = manager.start(&["--size", "1M"]);
    let alive = clients.iter_mut().map(|client| read(client).is_ok()).filter(|is_alive| *is_alive).count();
    assert_eq!(alive, 2, "one was lost");
    let back = manager.path("back");
    run(Command::new(&nbdcopy).args([&manager.uri(""), back.to_str().expect("a plain path")]));
    assert!(fs::read(back).expect("a file") == fs::read(image).expect("a file"));
    manager.ask(&["stop"]);
    wait(&mut service.0.0);
    assert!(service.messages().contains("the connections of 1 clients were not kept"));
}

/// Connects to the only disk.
fn client(manager: &Manager) -> pagefold_serve::Client {
    pagefold_serve::Client::unix(&manager.path("nbd.sock"), "", Duration::from_secs(60)).expect("a client")
}

fn read(client: &mut pagefold_serve::Client) -> std::io::Result<()> {
    client.read(0, &mut [0; 4096])
}

/// Makes a file in memory with this content.
fn memory_file(content: &[u8], seals: SealFlags) -> OwnedFd {
    let file = memfd_create("state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file");
    let mut file = File::from(file);
    file.write_all(content).expect("room");
    file.rewind().expect("a file");
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    fcntl_add_seals(&file, seals).expect("seals");
    file.into()
}

/// What is not a state is refused, however it came into the store, and stays there.
#[test]
fn states_that_are_not_sound_are_refused() {
    let manager = Manager::new();
    let service = manager.start(&["--export", "name=a,size=1M", "--export", "name=b,size=1M"]);
    let mut disk = client_of(&manager, "a");
    disk.read(0, &mut [0; 512]).expect("a reply");
    service.stop();
    let state = manager.names().iter().position(|name| name.ends_with("-state")).expect("a state");
    let sound = {
        let file = File::from(manager.store().all[state].1.try_clone().expect("a copy"));
        let mut content = vec![0; file.metadata().expect("a file").len() as usize];
        file.read_exact_at(&mut content, 0).expect("its content");
        content
    };
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    let json = 16 + u64::from_le_bytes(sound[8..16].try_into().expect("eight bytes")) as usize;
    let cut = |len: usize| memory_file(&sound[..len], all);
    let changed = |at: usize| {
        let mut content = sound.clone();
        content[at] ^= 0x55;
        memory_file(&content, all)
    };
    let mut cases: Vec<(String, OwnedFd)> = vec![
        ("not sealed".to_owned(), memory_file(&sound, SealFlags::empty())),
        ("may be written".to_owned(), memory_file(&sound, SealFlags::SHRINK | SealFlags::GROW)),
        ("a file on disk".to_owned(), tempfile::tempfile().expect("a file").into()),
        ("a socket".to_owned(), UnixDatagram::unbound().expect("a socket").into()),
        ("longer".to_owned(), memory_file(&[&sound[..], b"more"].concat(), all)),
    ];
    for len in [0, 7, 15, 16, 100, json - 1, json, json + 1, json + 40, sound.len() - 20, sound.len() - 1] {
        cases.push((format!("{len} bytes"), cut(len)));
    }
    for at in [0, 8, 14, 15, 20, json / 2, json + 3, json + 9, (json + sound.len()) / 2, sound.len() - 1] {
        cases.push((format!("byte {at} changed"), changed(at)));
    }
    let name = manager.names()[state].clone();
    for (what, file) in cases {
        let before = std::mem::replace(&mut manager.store().all[state].1, file);
        let said = manager.fails(&[]);
        assert!(said.contains("cannot continue with what the service manager stores"), "{what}: {said}");
        assert!(!said.contains("panicked"), "{what}: {said}");
        assert!(manager.names().contains(&name), "{what}: it was removed");
        manager.store().all[state].1 = before;
    }
    // Two states.
    let copy = memory_file(&sound, all);
    manager.store().all.push(("pagefold-1-state".to_owned(), copy));
    assert!(manager.fails(&[]).contains("several servers"));
    manager.store().all.pop();
    // A start that fails later leaves everything, and so do other descriptors of this kind.
    manager.store().all.push(("pagefold-1-7".to_owned(), File::open("/dev/null").expect("a file").into()));
    let sockets =
        Manager { sockets: Vec::new(), store: Arc::clone(&manager.store), folder: TempDir::new().expect("a folder") };
    let said = sockets.fails(&[]);
    assert!(said.contains("no address"), "{said}");
    let _service = manager.start(&[]);
    disk.read(0, &mut [0; 512]).expect("the first client is served");
    manager.forgets_all();
}

fn client_of(manager: &Manager, export: &str) -> pagefold_serve::Client {
    pagefold_serve::Client::unix(&manager.path("nbd.sock"), export, Duration::from_secs(60)).expect("a client")
}

/// Whenever a server is killed while it leaves its disks, the next one has them, or says that they are
/// lost. It begins with empty disks only when it is started once more.
#[test]
fn a_server_that_is_killed_while_it_leaves_its_disks() {
    // It sends the text that disks are lost, the state, a client, the removal of the text, and a barrier.
    for handled in 0..5 {
        let manager = Manager::new();
        let service = manager.start(&["--export", "name=a,size=1M"]);
        let mut disk = client_of(&manager, "a");
        manager.is_killed_after(service, handled);
        match handled {
            // It has said nothing yet.
            0 => _ = manager.start(&["--export", "name=b,size=1M"]),
            1 => {
                let said = manager.fails(&["--export", "name=b,size=1M"]);
                assert!(said.contains("it was killed") || said.contains("killed while it left them"), "{said}");
                assert!(said.contains("start the service once more"), "{said}");
                manager.forgets_all();
                let _service = manager.start(&["--export", "name=b,size=1M"]);
                assert!(manager.ask(&["disks"]).contains('b'));
            }
            _ => {
                let _service = manager.start(&["--export", "name=b,size=1M"]);
                assert!(manager.ask(&["disks", "--columns", "name"]).contains('a'), "after {handled} messages");
                // Its connection was stored third.
                assert_eq!(disk.read(0, &mut [0; 512]).is_ok(), handled >= 3, "after {handled} messages");
                manager.forgets_all();
            }
        }
    }
}

/// A base that comes later, such as one on a network, is waited for, and the manager hears of it.
#[test]
fn a_base_that_is_not_there_yet_is_waited_for() {
    let manager = Manager::new();
    let (image, away) = (manager.path("image"), manager.path("away"));
    make_image(&image, 1);
    let service = manager.start(&[image.to_str().expect("a plain path")]);
    manager.ask(&["fork", "image", "fork"]);
    let mut disk = client_of(&manager, "fork");
    service.stop();
    fs::rename(&image, &away).expect("a file");
    manager.store().said.clear();
    let mut service = manager.spawn(&[]);
    // For what is stored, and then for the base.
    let deadline = Instant::now() + Duration::from_secs(60);
    while manager.store().said.iter().filter(|said| said.starts_with("EXTEND_TIMEOUT_USEC=")).count() < 3 {
        assert!(Instant::now() < deadline && service.0.0.try_wait().expect("a child").is_none());
        thread::sleep(Duration::from_millis(2));
    }
    fs::rename(&away, &image).expect("a file");
    manager.waits_for(&mut service, "READY=1");
    read(&mut disk).expect("the client is served");
    let said = service.stop();
    assert!(said.contains("the start waits for the base") && said.contains("left 2 disks and 1 clients"), "{said}");
    // What replaces it is refused immediately, and everything stays.
    make_image(&image, 2);
    let said = manager.fails(&[]);
    assert!(said.contains("the file was replaced or changed"), "{said}");
    assert!(!manager.names().is_empty());
}

/// Virtual machines are disconnected, and so are clients for which there is no room. Disks stay.
#[test]
fn what_cannot_be_left_keeps_nothing_else_back() {
    let Some([nbdcopy]) = programs("what_cannot_be_left_keeps_nothing_else_back", ["nbdcopy"]) else { return };
    let manager = Manager::with_room(3);
    let (image, vms) = (manager.path("image"), manager.path("vms"));
    make_image(&image, 1);
    let args = ["--export", "name=a,size=1M", "--vhost-user", vms.to_str().expect("a plain path")];
    let service = manager.start(&args);
    run(Command::new(&nbdcopy).args([image.to_str().expect("a plain path"), &manager.uri("a")]));
    let mut clients: Vec<_> = (0..3).map(|_| client_of(&manager, "a")).collect();
    let said = service.stop();
    assert!(said.contains("2 clients lose their connections") && !vms.join("a.sock").exists(), "{said}");
    let _service = manager.start(&args);
    assert!(vms.join("a.sock").exists());
    assert_eq!(clients.iter_mut().filter_map(|client| read(client).ok()).count(), 1);
    let back = manager.path("back");
    run(Command::new(&nbdcopy).args([&manager.uri("a"), back.to_str().expect("a plain path")]));
    assert!(fs::read(back).expect("a file") == fs::read(image).expect("a file"));
}

/// A server that cannot leave its disks says so, and the next one does not begin with empty disks unasked.
#[test]
fn disks_that_are_lost_are_not_replaced_by_empty_ones_unasked() {
    let manager = Manager::with_room(1);
    let unix = manager.path("unix.sock");
    let args = ["--size", "1M", "--unix", unix.to_str().expect("a plain path")];
    let said = manager.start(&args).stop();
    assert!(said.contains("the disks are lost") && said.contains("FileDescriptorStoreMax="), "{said}");
    let said = manager.fails(&args);
    assert!(said.contains("3 descriptors are needed") && said.contains("start the service once more"), "{said}");
    drop(manager.start(&args));
    manager.forgets_all();
}

/// No process continues with a state that another process has continued with.
#[test]
fn a_state_that_was_taken_is_not_taken_again() {
    let manager = Manager::new();
    let service = manager.start(&["--size", "1M"]);
    service.stop();
    manager.store().keeps_all = true;
    let mut service = manager.start(&[]);
    send(Signal::KILL, &service.0.0);
    wait(&mut service.0.0);
    assert!(!manager.names().is_empty());
    let said = manager.fails(&[]);
    assert!(said.contains("the process that continued with them has ended"), "{said}");
}

/// Writes a number to the next sector, without the guest's cache, and compares it and the one before.
const WRITES: &str = "
number() { dd if=/dev/vda bs=512 skip=$1 count=1 2>/dev/null | head -n 1; }
(
last=0
while :; do
    n=$((last + 1))
    echo $n | dd of=/dev/vda bs=512 seek=$n conv=notrunc,fsync 2>/dev/null
    echo 3 >/proc/sys/vm/drop_caches
    if [ $(number $n) = $n ] && { [ $last = 0 ] || [ $(number $last) = $last ]; }; then
        echo \"wrote: $n\"
    else
        echo \"lost: $n\"
    fi
    last=$n
done
) &
read -r line
kill $!
";

/// A virtual machine connects again to the next server, and hands over its log of the requests that were
/// in flight: nothing is lost and nothing fails.
#[test]
fn a_guest_goes_on_after_a_restart() {
    let test = "a_guest_goes_on_after_a_restart";
    let Some(machine) = Machine::find(test) else { return };
    let manager = Manager::new();
    let vms = manager.path("vms");
    let args = ["--export", "name=a,size=16M", "--vhost-user", vms.to_str().expect("a plain path")];
    let mut service = manager.start(&args);
    let mut guest = machine.start_vhost_user(&vms.join("a.sock"), WRITES);
    let mut next = || -> u64 {
        let written = guest.wait_for_either("wrote: ", "lost: ");
        written.expect("nothing is lost").parse().expect("a number")
    };
    for _ in 0..3 {
        let before = next();
        let start = Instant::now();
        service.stop();
        service = manager.start(&args);
        while next() < before + 5 {}
        println!("the guest's next five writes took {} ms", start.elapsed().as_millis());
    }
    guest.say("stop");
    guest.end();
    drop(service);
}
