//! A new process takes a running server over, and its clients do not notice.

use std::{
    fs,
    io::{IoSlice, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixDatagram, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_control::{Client as Control, Command as Ask, HandingOver};
use pagefold_testing::programs;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::Value;

use crate::{
    fio::{load, succeeds},
    server::{Ended, Server, pagefold, run, run_to_fail},
};

/// Waits until a client has written.
fn is_busy(server: &Server, export: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.figure(export, "orig_data_size") == 0 {
        assert!(Instant::now() < deadline, "no client writes");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns what is known of all disks, without their ages and clients.
fn disks(server: &Server) -> Vec<Value> {
    let lines = run(&mut server.ask(&["disks", "--json"]));
    let disks = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    disks
        .map(|mut disk| {
            for key in ["age_seconds", "clients", "own_bytes", "changed_bytes"] {
                disk.as_object_mut().expect("an object").remove(key);
            }
            disk
        })
        .collect()
}

#[test]
fn clients_forks_and_snapshots_survive_three_take_overs() {
    let name = "clients_forks_and_snapshots_survive_three_take_overs";
    let Some([fio, nbdcopy]) = programs(name, ["fio", "nbdcopy"]) else { return };
    let mut server = Server::start(&["--export", "name=busy,size=64M", "--export", "name=kept,size=32M,limit=20M"]);
    let folder = server.folder().to_owned();
    let image = folder.join("image");
    crate::server::make_image(&image, 8);
    let copy = |from: &str, to: &str| run(Command::new(&nbdcopy).args([from, to]));
    let image_path = image.to_str().expect("a plain path");
    copy(image_path, &server.uri("kept"));
    fs::create_dir(folder.join("own")).expect("a folder");
    let own = folder.join("own/fork.sock");
    run(&mut server.ask(&["snapshot", "kept", "first"]));
    run(&mut server.ask(&["fork", "kept", "fork", "--socket", own.to_str().expect("a plain path")]));
    run(&mut server.ask(&["fork", "kept@first", "of-snapshot"]));
    run(&mut server.ask(&["add", "base", "--base", image_path]));
    run(&mut server.ask(&["fork", "base", "of-base"]));
    run(&mut server.ask(&["quota", "kept", "--connections", "7"]));
    run(&mut server.ask(&["limit", "123M"]));
    let before = disks(&server);
    let client = load(&fio, server.folder(), &server.uri("busy"), 4);
    is_busy(&server, "busy");
    for _ in 0..3 {
        let said = server.take_over(&[]);
        let line = said.lines().find(|line| line.contains("clients paused for")).expect("the line");
        println!("{line}");
        assert_eq!(disks(&server), before);
        // Sockets of single disks, and new clients.
        let uri = format!("nbd+unix:///?socket={}", own.display());
        for uri in [uri, server.uri("of-snapshot"), server.uri("of-base"), server.uri("kept@first")] {
            let back = folder.join("back");
            copy(&uri, back.to_str().expect("a plain path"));
            let (back, image) = (fs::read(back).expect("a file"), fs::read(&image).expect("a file"));
            assert!(back[..image.len()] == image && back[image.len()..].iter().all(|byte| *byte == 0), "{uri}");
        }
        // The client goes on for a while between two hand-overs.
        thread::sleep(Duration::from_millis(300));
    }
    succeeds(client);
    assert!(run(&mut server.ask(&["stat"])).contains("123 MiB"), "the limit was lost");
    run(&mut server.ask(&["drop", "fork"]));
    assert!(!own.exists(), "the last server owns the socket");
    // Numbers go on, so identities differ.
    run(&mut server.ask(&["fork", "kept", "fork"]));
    let old = before.iter().find(|disk| disk["name"] == "fork").expect("a disk")["id"].clone();
    assert!(disks(&server).iter().all(|disk| disk["id"] != old));
    let (status, _) = server.end(rustix::process::Signal::TERM);
    assert!(status.success());
}

/// A new process of the test's own, which ends at some step.
pub(crate) struct Impostor {
    socket: UnixStream,
    _control: Control,
}

impl Impostor {
    pub(crate) fn begin(control: &Path, pid: u32, ahead: bool) -> Self {
        let mut control = Control::connect(control, Duration::from_secs(30)).expect("a server");
        let (own, other) = UnixStream::pair().expect("sockets");
        let deadline = Instant::now() + Duration::from_secs(60);
        let handing: HandingOver = loop {
            match control.call_with(&Ask::TakeOver { ahead }, Some(other.as_fd())) {
                // It has not noticed yet that the one before is gone.
                Err(error) if error.to_string().contains("handed over already") && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(5));
                }
                begun => break begun.expect("it begins"),
            }
        };
        assert_eq!(handing.pid, pid);
        own.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Self { socket: own, _control: control }
    }

    /// Receives a message; returns its kind and its length.
    pub(crate) fn message(&mut self) -> (u32, usize) {
        let mut header = [0; 16];
        self.socket.read_exact(&mut header).expect("a header");
        assert_eq!(header[..4], *b"PFho");
        let kind = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        let len = u64::from_le_bytes(header[8..].try_into().expect("eight bytes")) as usize;
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).expect("its bytes");
        (kind, len)
    }

    pub(crate) fn all(&mut self) {
        while self.message() != (3, 0) {}
    }

    fn until(&mut self, kind: u32) {
        while self.message().0 != kind {}
    }

    /// Sends its memory.
    pub(crate) fn send_memory(&mut self, file: &OwnedFd) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let header = header(9);
        sendmsg(&self.socket, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL).expect("sent");
    }

    pub(crate) fn ready(&mut self) {
        self.socket.write_all(&header(4)).expect("sent");
    }

    pub(crate) fn shut_down_reading(&self) {
        self.socket.shutdown(Shutdown::Read).expect("a socket");
    }
}

/// An empty message.
fn header(kind: u32) -> Vec<u8> {
    [&b"PFho"[..], &kind.to_le_bytes(), &0_u64.to_le_bytes()].concat()
}

/// The server goes on, with its clients, whatever becomes of a process before that has said that it is
/// ready.
#[test]
fn a_new_process_that_ends_early_harms_no_client() {
    let Some([fio]) = programs("a_new_process_that_ends_early_harms_no_client", ["fio"]) else { return };
    let mut server = Server::start(&["--export", "name=busy,size=64M"]);
    let client = load(&fio, server.folder(), &server.uri("busy"), 3);
    is_busy(&server, "busy");
    let garbage: Vec<u8> = (0..100_000_u32).map(|number| (number * 7) as u8).collect();
    let unknown = header(77);
    // Each process may read the pool before the pause or not.
    for (ahead, step) in [false, true].into_iter().flat_map(|ahead| (0..9).map(move |step| (ahead, step))) {
        let mut impostor = Impostor::begin(&server.control(), server.pid(), ahead);
        match step {
            // It ends immediately, or within a message.
            0 => {}
            1 => impostor.socket.read_exact(&mut [0; 20]).expect("bytes"),
            // After the record, the descriptors, and a part of the pool; or after parts of the pool.
            2..=4 => (0..step - 1).for_each(|_| assert!(impostor.message().0 <= if ahead { 7 } else { 3 })),
            5 => impostor.until(1),
            6 => impostor.all(),
            7 => {
                impostor.all();
                // The server may have given up after the first of these.
                let _ = impostor.socket.write_all(&garbage);
            }
            _ => {
                impostor.all();
                let _ = impostor.socket.write_all(&unknown);
            }
        }
        drop(impostor);
        // The next one may find that this one was not noticed yet.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < deadline, "step {step}: the server still hands itself over");
            let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("a process");
            let names = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("comm")));
            if !names.flatten().any(|name| name.trim() == "hand-over") {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        assert!(server.is_running(), "step {step}");
        run(&mut server.ask(&["stat"]));
    }
    server.take_over(&[]);
    succeeds(client);
}

/// Writes are not refused because memory is kept for the process that reads the pool.
#[test]
fn a_client_that_needs_the_memory_has_the_pool_sent_in_the_pause() {
    let name = "a_client_that_needs_the_memory_has_the_pool_sent_in_the_pause";
    let Some([nbdcopy]) = programs(name, ["nbdcopy"]) else { return };
    let mut server = Server::start(&["--export", "name=kept,size=8M,limit=4500K"]);
    let image = server.folder().join("noise");
    let fill = |seed: u64| {
        let mut state = seed;
        let words = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state ^ state >> 29).to_le_bytes()
        });
        let noise: Vec<u8> = words.take(4 << 17).flatten().collect();
        fs::write(&image, &noise).expect("a file");
        run(Command::new(&nbdcopy).arg(&image).arg(server.uri("kept")));
        noise
    };
    fill(1);
    let mut impostor = Impostor::begin(&server.control(), server.pid(), true);
    assert_eq!(impostor.message().0, 7);
    assert_eq!(impostor.message().0, 3);
    // It reads no more for now, so the server waits to send the rest.
    let noise = fill(2);
    let mut kinds = vec![];
    while kinds.last() != Some(&(3, 0)) {
        kinds.push(impostor.message());
    }
    let void = kinds.iter().position(|&(kind, _)| kind == 8).expect("what was sent is void");
    assert_eq!(kinds[void + 1].0, 1, "the record follows");
    assert!(kinds[void..].iter().filter(|(kind, _)| *kind == 3).map(|(_, len)| len).sum::<usize>() > 4 << 20);
    drop(impostor);
    let back = server.folder().join("back");
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.ask(&["stat"]).output().is_ok_and(|output| !output.status.success()) {
        assert!(Instant::now() < deadline, "the server does not go on");
    }
    let take_over = server.take_over(&[]);
    println!("{take_over}");
    run(Command::new(&nbdcopy).arg(server.uri("kept")).arg(&back));
    assert!(fs::read(&back).expect("a file")[..4 << 20] == noise);
    // A server that is to stop does not wait for a process that reads no more.
    let mut impostor = Impostor::begin(&server.control(), server.pid(), true);
    assert_eq!((impostor.message().0, impostor.message().0), (7, 3));
    let (status, _) = server.end(rustix::process::Signal::TERM);
    assert!(status.success());
}

/// Once the other one is gone, the disks are only in the new process: it goes on although it cannot
/// notify its first process any more.
#[test]
fn a_new_process_serves_whatever_fails_afterwards() {
    let mut server = Server::start(&["--export", "name=kept,size=32M"]);
    let pid_file = server.folder().join("pid");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = pagefold();
    command
        .args(["serve", "--orphan", "0", "--take-over", "--detach", "--announce", "--pid-file"])
        .arg(&pid_file)
        .stdout(writer);
    server.take_over_with(command);
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(&pid_file).ok() != Some(format!("{}\n", server.pid())) {
        assert!(Instant::now() < deadline, "no pid file");
        thread::sleep(Duration::from_millis(5));
    }
    // The line about its first process comes after the file.
    run(&mut server.ask(&["add", "more", "--size", "1M"]));
    thread::sleep(Duration::from_millis(100));
    assert!(server.is_running());
    assert_eq!(disks(&server).len(), 2);
    // The file of a process that was taken over is removed.
    server.take_over(&[]);
    assert!(!pid_file.exists());
    // One that a next process has written is not.
    for _ in 0..3 {
        server.take_over(&["--pid-file", pid_file.to_str().expect("a plain path")]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::read_to_string(&pid_file).ok() != Some(format!("{}\n", server.pid())) {
            assert!(Instant::now() < deadline, "no pid file");
            thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(server.is_running());
}

#[test]
fn state_that_cannot_be_handed_over_is_named() {
    let server = Server::start(&["--size", "1M", "--run", "exec sleep 600"]);
    let refusal = |server: &Server, args: &[&str]| {
        let mut command = pagefold();
        run_to_fail(command.args(["serve", "--take-over"]).args(args).arg("--dir").arg(server.folder()))
    };
    let line = refusal(&server, &[]);
    assert!(line.contains("--run") && line.contains("cannot be handed over"), "{line}");
    run(&mut server.ask(&["stat"]));
    let none = tempfile::tempdir().expect("a folder");
    let mut command = pagefold();
    let line = run_to_fail(command.args(["serve", "--take-over", "--dir"]).arg(none.path()));
    assert!(line.contains("no server to take over"), "{line}");
    // Its command would outlive it, with this test's standard output.
    server.end(rustix::process::Signal::TERM);
}

/// The old process notifies a stand-in for systemd of the new main process. The new one, which has the
/// socket's name from the old one, notifies it that it is ready.
#[test]
fn a_service_manager_learns_the_new_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let dir = folder.path().join("place");
    let serve = |args: &[&str]| {
        let mut command = pagefold();
        command.arg("serve").args(args).arg("--dir").arg(&dir).stderr(Stdio::null());
        command
    };
    let mut first = Ended(serve(&["--size", "1M"]).env("NOTIFY_SOCKET", &path).spawn().expect("it starts"));
    let next = || {
        let mut text = [0; 256];
        let count = socket.recv(&mut text).expect("a message");
        String::from_utf8_lossy(&text[..count]).into_owned()
    };
    assert_eq!(next(), "READY=1");
    let second = Ended(serve(&["--take-over"]).spawn().expect("it starts"));
    // Both processes run for a moment.
    let mut messages = [next(), next()];
    messages.sort();
    let main = format!("MAINPID={}", second.0.id());
    assert_eq!(messages, [main.clone(), format!("{main}\nREADY=1")]);
    assert!(first.0.wait().expect("an end").success());
    assert_eq!(fs::read_to_string(dir.join("lock")).expect("a lock"), format!("{}\n", second.0.id()));
}
