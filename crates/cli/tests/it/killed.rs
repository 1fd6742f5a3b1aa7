//! A server that is killed, whose disks' memory its service manager keeps.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    path::Path,
    process::Stdio,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    parked::{Manager, Service},
    server::{Ended, make_image, pagefold, wait},
    take_over::Impostor,
};

/// A connection that may break.
struct Client(UnixStream);

const READ: u16 = 0;
const WRITE: u16 = 1;

impl Client {
    fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.read_exact(&mut [0; 18])?;
        let name = [&3_u32.to_be_bytes(), &b"IHAVEOPT"[..], &1_u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()];
        stream.write_all(&[&name.concat(), export.as_bytes()].concat())?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Self(stream))
    }

    fn request(&mut self, kind: u16, offset: u64, len: usize, payload: &[u8]) -> io::Result<()> {
        let header = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 2], &kind.to_be_bytes(), &[0; 8]].concat();
        let header = [&header[..], &offset.to_be_bytes(), &(len as u32).to_be_bytes(), payload].concat();
        self.0.write_all(&header)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply[4..8], [0; 4], "the request failed");
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, bytes.len(), bytes)
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.request(READ, offset, bytes.len(), &[])?;
        self.0.read_exact(bytes)
    }
}

/// Pages of the disks that clients write, and the clients, each with pages of its own.
const PAGES: u64 = 256;
const CLIENTS: u64 = 3;
const PAGE: usize = 4096;

/// For each page of a disk, the version that was sent last, and the one that was acknowledged last.
type Versions = Mutex<Vec<[u64; 2]>>;

/// The page of a version; 0 is what the disk had.
fn page_of(version: u64, page: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    let mut state = version << 20 | page;
    let random = PAGE / (1 + version as usize % 4);
    for word in bytes[..random / 8 * 8].as_chunks_mut().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *word = state.to_le_bytes();
    }
    bytes
}

/// Writes until the server is gone.
fn load(socket: &Path, disks: &[(&str, Versions)], client: u64, first: u64) {
    let clients = disks.iter().map(|(disk, _)| Client::connect(socket, disk));
    let Ok(mut clients) = clients.collect::<io::Result<Vec<_>>>() else { return };
    let mut state = first + client;
    for version in first.. {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = (state >> 33) % (PAGES / CLIENTS) * CLIENTS + client;
        let at = (state >> 25) as usize % disks.len();
        let set = |which: usize| disks[at].1.lock().expect("no panic")[page as usize][which] = version;
        set(0);
        if clients[at].write(page * PAGE as u64, &page_of(version, page)).is_err() {
            return;
        }
        set(1);
    }
}

/// Checks that each page is the last that was acknowledged, or one sent since, and goes on from there.
fn verify(socket: &Path, disks: &[(&str, Versions)], base: &[u8]) -> usize {
    let mut written = 0;
    for (disk, versions) in disks {
        let mut client = Client::connect(socket, disk).expect("the disk is served");
        for (page, versions) in (0..).zip(versions.lock().expect("no panic").iter_mut()) {
            let mut bytes = [0; PAGE];
            client.read(page * PAGE as u64, &mut bytes).expect("a page");
            let is = |version: u64| match version {
                0 => bytes == base[page as usize * PAGE..][..PAGE],
                _ => bytes == page_of(version, page),
            };
            let found = versions.iter().copied().find(|version| is(*version));
            let found = found.unwrap_or_else(|| panic!("page {page} of '{disk}' is none of {versions:?}"));
            *versions = [found, found];
            written += usize::from(found > 0);
        }
    }
    written
}

impl Service {
    fn kill(&mut self) {
        self.0.0.kill().expect("a process");
        self.0.0.wait().expect("an end");
    }
}

impl Manager {
    /// Waits until only the memory of the process that serves is stored.
    fn keeps_the_memory(&self, service: &Service) {
        self.keeps(&[format!("pagefold-{}-pool", service.0.0.id())]);
    }
}

#[test]
fn disks_outlive_servers_that_are_killed_under_load() {
    let manager = Manager::new();
    let (image, own, more) = (manager.path("image"), manager.path("own.sock"), manager.path("more.sock"));
    make_image(&image, 1);
    let base = fs::read(&image).expect("an image");
    let [image_path, own_path, more_path] = [&image, &own, &more].map(|path| path.to_str().expect("a plain path"));
    let args = ["--keep-memory", "--export", "name=ram,size=1M", "--unix", more_path, image_path];
    let mut service = manager.start(&args);
    let ask = |args: &[&str]| manager.ask(args);
    ask(&["fork", "image", "fork", "--socket", own_path, "--mode", "0640"]);
    ask(&["limit", "200M"]);
    ask(&["quota", "fork", "--connections", "9"]);
    let versions = || Mutex::new(vec![[0; 2]; PAGES as usize]);
    let disks = [("fork", versions())];
    let socket = manager.path("nbd.sock");
    let list = || ask(&["disks", "--columns", "name,size,from,kind,limit"]);
    for round in 0..6_u64 {
        thread::scope(|scope| {
            let disks = &disks;
            for client in 0..CLIENTS {
                let (socket, first) = (&socket, (round + 1) << 24);
                scope.spawn(move || load(socket, disks, client, first));
            }
            // Commands that were answered have happened.
            let number = round.to_string();
            ask(&["snapshot", "fork", &number]);
            ask(&["fork", "fork", &format!("of-{number}"), "--limit", "50M"]);
            ask(&["add", "gone", "--size", "1M"]);
            ask(&["drop", "gone"]);
            if round > 1 {
                ask(&["drop", &format!("of-{}", round - 2)]);
            }
            let before = list();
            thread::sleep(Duration::from_micros(10_000 + round * 37_123));
            service.kill();
            service = manager.start(&args);
            assert_eq!(list(), before, "round {round}");
        });
        manager.keeps_the_memory(&service);
        let written = verify(&socket, &disks, &base);
        assert!(written > 10, "round {round}: {written} pages were written");
        // The sockets are where they were.
        let mode =
            |path: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).expect("a file").permissions());
        assert_eq!(mode(&own) & 0o777, 0o640);
        for (path, export) in [(&own, ""), (&more, "fork@0")] {
            Client::connect(path, export).expect("it is served").read(0, &mut [0; PAGE]).expect("a page");
        }
    }
    let said = ask(&["stat"]);
    assert!(said.contains("200 MiB"), "the limit was lost: {said}");
    // A restart, and another kill.
    service.stop();
    assert!(!manager.names().iter().any(|name| name.ends_with("-pool")), "the pool would be stored three times");
    let mut service = manager.start(&args);
    manager.keeps_the_memory(&service);
    verify(&socket, &disks, &base);
    service.kill();
    let service = manager.start(&args);
    verify(&socket, &disks, &base);
    ask(&["stop"]);
    drop(service);
    manager.forgets_all();
}

impl Manager {
    /// Starts a process that takes the service over.
    fn takes_over(&self) -> Service {
        let mut next = pagefold();
        next.args(["serve", "--take-over", "--keep-memory", "--control"]).arg(self.path("control.sock"));
        Service(Ended(next.stderr(Stdio::piped()).spawn().expect("it starts")))
    }

    fn write(&self, byte: u8) {
        let mut client = Client::connect(&self.path("nbd.sock"), "a").expect("a disk");
        client.write(0, &[byte; PAGE]).expect("a reply");
    }

    fn first_page(&self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        Client::connect(&self.path("nbd.sock"), "a").expect("a disk").read(0, &mut page).expect("a page");
        page
    }
}

/// The service manager has the memory of a process before that process serves.
#[test]
fn a_process_that_is_killed_right_after_a_take_over_has_left_its_disks() {
    let manager = Manager::new();
    let args = ["--keep-memory", "--export", "name=a,size=1M"];
    let mut service = manager.start(&args);
    for round in 1..5 {
        let mut next = manager.takes_over();
        wait(&mut service.0.0);
        manager.write(round);
        next.kill();
        service = manager.start(&args);
        assert_eq!(manager.first_page(), [round; PAGE]);
    }
    manager.keeps_the_memory(&service);
}

/// Whenever one of the two processes or both are killed, and the survivor a moment later, nothing that was
/// acknowledged is lost.
#[test]
fn disks_outlive_processes_that_are_killed_during_a_take_over_under_load() {
    let manager = Manager::new();
    let args = ["--keep-memory", "--export", "name=a,size=1M"];
    let (socket, base) = (manager.path("nbd.sock"), vec![0; PAGES as usize * PAGE]);
    let disks = [("a", Mutex::new(vec![[0; 2]; PAGES as usize]))];
    let mut service = manager.start(&args);
    let (mut state, mut shortest, mut longest) = (7_u64, Duration::MAX, Duration::ZERO);
    for round in 0..24_u64 {
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (socket, disks, first) = (&socket, &disks, (round + 1) << 24);
                scope.spawn(move || load(socket, disks, client, first));
            }
            thread::sleep(Duration::from_millis(20));
            let start = Instant::now();
            let mut next = manager.takes_over();
            let random = |state: &mut u64, below: u64| {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 33) % below
            };
            if round < 3 {
                // The others are killed within the time that this takes.
                wait(&mut service.0.0);
                (shortest, longest) = (shortest.min(start.elapsed()), longest.max(start.elapsed() * 3 / 2));
            } else {
                let between = (longest - shortest / 2).as_micros() as u64;
                thread::sleep(shortest / 2 + Duration::from_micros(random(&mut state, between)));
            }
            match round % 3 {
                0 => next.kill(),
                1 => service.kill(),
                _ => {}
            }
            // The survivor goes on for a while.
            thread::sleep(Duration::from_millis(random(&mut state, 40)));
            service.kill();
            next.kill();
        });
        service = manager.start(&args);
        verify(&socket, &disks, &base);
        manager.keeps_the_memory(&service);
    }
}

/// A new process of the test's own, of which the service manager has the memory until it ends.
#[test]
fn the_memory_of_a_process_that_does_not_serve_is_not_used() {
    let manager = Manager::new();
    let args = ["--keep-memory", "--export", "name=a,size=1M"];
    let mut service = manager.start(&args);
    let own = format!("pagefold-{}-pool", service.0.0.id());
    let next = format!("pagefold-{}-pool", std::process::id());
    let is_free = |name: &str| {
        let store = manager.store();
        let (_, file) = store.all.iter().find(|(found, _)| found == name).expect("it is stored");
        rustix::fs::fstat(file).expect("a file").st_mode & 0o700 != 0
    };
    let memory = || {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::fchmod(&file, rustix::fs::Mode::empty()).expect("a mode");
        file
    };
    for step in 0..4 {
        manager.write(step + 1);
        let mut impostor = Impostor::begin(&manager.path("control.sock"), service.0.0.id(), true);
        assert_eq!(impostor.message().0, 7);
        impostor.send_memory(&memory());
        if step == 1 {
            // It begins once more.
            impostor.send_memory(&memory());
        }
        impostor.all();
        if step != 1 {
            manager.keeps(&[own.clone(), next.clone()]);
            assert!(is_free(&own) && !is_free(&next));
        }
        match step {
            // It ends, or is killed before it is ready.
            0 | 1 => drop(impostor),
            // It does not hear that it may serve.
            2 => {
                impostor.shut_down_reading();
                impostor.ready();
            }
            _ => {
                impostor.ready();
                assert_eq!(impostor.message().0, 5);
                assert!(!is_free(&own) && is_free(&next));
                break;
            }
        }
        manager.keeps(std::slice::from_ref(&own));
        assert!(is_free(&own), "step {step}");
        assert_eq!(manager.first_page(), [step + 1; PAGE]);
    }
    wait(&mut service.0.0);
}

/// A server whose manager cannot store the memory of both goes on.
#[test]
fn a_server_is_taken_over_only_if_the_memory_of_both_is_kept() {
    let manager = Manager::with_room(1);
    let args = ["--keep-memory", "--export", "name=a,size=1M"];
    let service = manager.start(&args);
    manager.write(1);
    let mut next = manager.takes_over();
    assert!(!wait(&mut next.0.0).success());
    let said = next.messages();
    assert!(said.contains("FileDescriptorStoreMax="), "{said}");
    assert_eq!(manager.first_page(), [1; PAGE]);
    manager.keeps_the_memory(&service);
}

/// A process that was taken over does not come back, and the other one's disks outlive it.
#[test]
fn only_the_memory_of_the_process_that_served_last_is_used() {
    let manager = Manager::new();
    let args = ["--keep-memory", "--export", "name=a,size=1M"];
    let mut first = manager.start(&args);
    manager.write(1);
    let mut next = manager.takes_over();
    let line = format!("MAINPID={}", next.0.0.id());
    manager.waits_for(&mut next, &line);
    manager.waits_for(&mut next, "READY=1");
    assert!(wait(&mut first.0.0).success());
    manager.write(2);
    manager.keeps_the_memory(&next);
    next.kill();
    let service = manager.start(&args);
    assert_eq!(manager.first_page(), [2; PAGE]);
    manager.keeps_the_memory(&service);
}

/// A process without the option removes the memory of the one that it has taken over.
#[test]
fn memory_is_not_kept_for_a_process_that_does_without() {
    let manager = Manager::new();
    let first = manager.start(&["--keep-memory", "--export", "name=a,size=1M"]);
    manager.keeps_the_memory(&first);
    let mut next = pagefold();
    next.args(["serve", "--take-over", "--control"]).arg(manager.path("control.sock"));
    let mut next = Service(Ended(next.stderr(Stdio::piped()).spawn().expect("it starts")));
    let line = format!("MAINPID={}", next.0.0.id());
    manager.waits_for(&mut next, &line);
    manager.forgets_all();
    drop(first);
}

/// Whatever of it was stored when it was killed, the next one has the disks.
#[test]
fn a_server_that_is_killed_while_it_leaves_has_left_its_disks() {
    for handled in 0..6 {
        let manager = Manager::new();
        let args = ["--keep-memory", "--export", "name=a,size=1M"];
        let service = manager.start(&args);
        let mut client = Client::connect(&manager.path("nbd.sock"), "a").expect("a disk");
        client.write(0, &[7; PAGE]).expect("a reply");
        manager.is_killed_after(service, handled);
        let service = manager.start(&args);
        let mut page = [0; PAGE];
        let mut client = Client::connect(&manager.path("nbd.sock"), "a").expect("a disk");
        client.read(0, &mut page).expect("a page");
        assert_eq!(page, [7; PAGE], "after {handled} messages");
        manager.keeps_the_memory(&service);
    }
}

/// Memory that is not sound is refused by its name, and stays.
#[test]
fn memory_that_is_not_sound_is_refused() {
    let manager = Manager::new();
    let args = ["--keep-memory", "--export", "name=a,size=1M"];
    let mut service = manager.start(&args);
    let socket = manager.path("nbd.sock");
    Client::connect(&socket, "a").expect("a disk").write(0, &page_of(1, 0)).expect("a reply");
    let name = format!("pagefold-{}-pool", service.0.0.id());
    service.kill();
    let file = || {
        let found = manager.store().all.iter().find(|(found, _)| *found == name).map(|(_, file)| file.try_clone());
        File::from(found.expect("the memory").expect("a copy"))
    };
    let word = |at: u64| {
        let mut word = [0; 8];
        file().read_exact_at(&mut word, at).expect("a word");
        word
    };
    // The magic number, the version, where the heap is.
    for at in [0, 8, 112] {
        let before = word(at);
        file().write_all_at(&u64::from_le_bytes(before).wrapping_add(1 << 20).to_le_bytes(), at).expect("memory");
        let said = manager.fails(&args);
        assert!(said.contains("the memory of the pool is not sound"), "{at}: {said}");
        assert!(said.contains(if at < 16 { &name } else { "" }) && !said.contains("panicked"), "{at}: {said}");
        assert!(manager.names().contains(&name), "{at}: it was removed");
        file().write_all_at(&before, at).expect("memory");
    }
    // A note is damaged, then there is none.
    let notes = [0, 256 << 20].map(|note| u64::from_le_bytes(word(40)) + note);
    let heads = notes.map(|at| {
        let mut head = [0; 20];
        file().read_exact_at(&mut head, at).expect("a note");
        head
    });
    for wrong in [1 << 40, 0] {
        for at in notes {
            file().write_all_at(&[&u64::to_le_bytes(wrong)[..], &[0; 12]].concat(), at).expect("memory");
        }
        assert!(manager.fails(&args).contains(&name) && manager.names().contains(&name), "{wrong}");
    }
    for (at, head) in notes.into_iter().zip(heads) {
        file().write_all_at(&head, at).expect("memory");
    }
    let other: OwnedFd = File::open("/dev/null").expect("a file").into();
    let sound = std::mem::replace(&mut manager.store().all[0].1, other);
    assert!(manager.fails(&args).contains(&name));
    manager.store().all[0].1 = sound;
    let _service = manager.start(&args);
    let mut page = [0; PAGE];
    Client::connect(&socket, "a").expect("a disk").read(0, &mut page).expect("a page");
    assert!(page == page_of(1, 0));
}

#[test]
fn memory_is_kept_only_where_something_keeps_it() {
    let output = pagefold().args(["serve", "--size", "1M", "--keep-memory"]).output().expect("an end");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("no service manager that stores"), "{said}");
}
