//! Stopping a server.

use std::{
    fs,
    io::Write,
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::programs;
use rustix::process::Signal;

use crate::{
    forks::listed,
    server::{Ended, Server, is_ignored, make_image, pagefold, program, run, run_to_fail, send, under, wait},
};

#[test]
fn signals_that_end_it_end_it_cleanly() {
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        if is_ignored("signals_that_end_it_end_it_cleanly", signal) {
            continue;
        }
        let (status, messages) = Server::start(&["--size", "1M"]).end(signal);
        assert!(status.success(), "{signal:?}: {status}");
        assert!(messages.contains("nbd+unix:///?socket="), "{messages}");
    }
}

/// The signals that other servers take for commands change nothing.
#[test]
fn signals_without_a_meaning_do_not_end_it() {
    let server = Server::start(&["--size", "1M"]);
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM] {
        server.signal(signal);
        run(&mut server.ask(&["disks"]));
    }
    assert_eq!(server.end(Signal::TERM).0.code(), Some(0));
}

/// A busy client neither keeps the server from stopping nor loses an acknowledged write.
#[test]
fn it_ends_while_clients_work() {
    let Some([fio]) = programs("it_ends_while_clients_work", ["fio"]) else { return };
    let server = Server::start(&["--size", "64M"]);
    let client = Command::new(fio)
        .current_dir(server.folder())
        .args(["--name=busy", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=16", "--size=64M"])
        .args(["--time_based", "--runtime=30", &format!("--uri={}", server.uri(""))])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("fio starts");
    // fio's nbd engine does not always notice that the server has exited.
    let _client = Ended(client);
    while server.figure("", "orig_data_size") == 0 {
        thread::sleep(Duration::from_millis(20));
    }
    let (status, _) = server.end(Signal::TERM);
    assert!(status.success(), "{status}");
}

/// `nohup` makes the program ignore SIGHUP, which must remain ignored.
#[test]
fn a_signal_that_is_to_be_ignored_is() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let socket = folder.path().join("control.sock");
    let server = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" serve --size 1M --dir \"$1\"", env!("CARGO_BIN_EXE_pagefold")])
        .arg(folder.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell");
    let mut server = Ended(server);
    while UnixStream::connect(&socket).is_err() {
        assert!(server.0.try_wait().expect("a child").is_none(), "the server ended");
        thread::sleep(Duration::from_millis(5));
    }
    send(Signal::HUP, &server.0);
    run(pagefold().args(["stat", "--control"]).arg(&socket));
    send(Signal::TERM, &server.0);
    assert!(server.0.wait().expect("a child").success());
}

/// Closing a terminal does not end a server.
#[test]
fn sighup_opens_the_log_file_again() {
    if is_ignored("sighup_opens_the_log_file_again", Signal::HUP) {
        return;
    }
    let folder = tempfile::TempDir::new().expect("a folder");
    let (log, old) = (folder.path().join("log"), folder.path().join("log.1"));
    let server = Server::start(&["--size", "1M", "--log-file", log.to_str().expect("a plain path")]);
    fs::rename(&log, &old).expect("a log");
    server.signal(Signal::HUP);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&log).is_ok_and(|text| text.contains("received SIGHUP")) {
        assert!(Instant::now() < deadline, "the log file is not opened again");
        thread::sleep(Duration::from_millis(5));
    }
    run(&mut server.ask(&["stat"]));
    let (status, messages) = server.end(Signal::TERM);
    assert_eq!((status.code(), messages.as_str()), (Some(0), ""));
    let lines = fs::read_to_string(&old).expect("a log") + &fs::read_to_string(&log).expect("a log");
    for words in ["Z pagefold: listening on", "nbd+unix:///?socket=", "received SIGTERM, stopping"] {
        assert!(lines.contains(words), "{lines}");
    }
}

/// A log that may not grow does not end the server.
#[test]
fn a_limit_of_file_sizes_fails_writes_and_ends_nothing() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let log = at("log");
    let args = ["--size", "1M", "--log", "debug", "--log-file", log.to_str().expect("a plain path")];
    let mut server = Server::start_under("-f 8", &args);
    let size = || fs::metadata(&log).expect("a log").len();
    let mut before = 0;
    while size() > before {
        before = size();
        // Each command is a client, which is a line or two.
        (0..8).for_each(|_| drop(run(&mut server.ask(&["disks"]))));
    }
    assert!(server.is_running());
    let args = ["serve", "--size", "1M", "--log", "warn", "--run", "grep SigIgn: /proc/self/status"];
    let ignored = run(pagefold().args(args));
    let mask = ignored.trim().strip_prefix("SigIgn:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    assert_eq!(mask.map(|mask| mask >> (Signal::XFSZ.as_raw() - 1) & 1), Some(0), "{ignored}");
    let message = run_to_fail(under("-f 8").arg("pack").arg(program()).arg("-o").arg(at("image.erofs")));
    let words = format!("{}: writing the image: File too large", at("image.erofs").display());
    assert!(message.contains(&words), "{message}");
    assert!(!at("image.erofs").exists(), "part of an image was left behind");
    assert_eq!(server.end(Signal::TERM).0.code(), Some(0));
}

/// Its clients get errors, and none of them hangs. The next server in the directory can serve the
/// same files; forks are lost.
#[test]
fn a_server_that_is_killed_leaves_its_bases() {
    const FORKS: usize = 2;
    let test = "a_server_that_is_killed_leaves_its_bases";
    let Some([qemu_img, nbdcopy]) = programs(test, ["qemu-img", "nbdcopy"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("root.img");
    make_image(&disk, 32);
    let base = fs::read(&disk).expect("the disk");
    let disk = disk.to_str().expect("a plain path");
    let mut server = Server::start(&[disk]);
    let names: Vec<String> = (0..FORKS).map(|number| format!("job-{number}")).collect();
    run(server.ask(&["fork", "root", "copied"]).args(&names));
    let quiet = |command: &mut Command| Ended(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it"));
    // Each writes and reads far more than the time allows.
    let mut clients: Vec<Ended> = Vec::new();
    for name in &names {
        for what in [&["-w", "--flush-interval=100", "-d", "16"][..], &["-d", "16"]] {
            let mut command = Command::new(&qemu_img);
            command.args(["bench", "-f", "raw", "-c", "2000000000", "-s", "16384"]).args(what);
            clients.push(quiet(command.arg(server.uri(name))));
        }
    }
    let mut copy = quiet(Command::new(&nbdcopy).arg("-").arg(server.uri("copied")).stdin(Stdio::piped()));
    let mut input = copy.0.stdin.take().expect("a pipe");
    let other: Vec<u8> = base.iter().map(|byte| !byte).collect();
    input.write_all(&other[..16 << 20]).expect("nbdcopy reads");
    let is_idle = |disk: &serde_json::Value| disk["kind"] == "ram" && disk["changed_bytes"] == 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while listed(&server, &[]).iter().any(is_idle) {
        assert!(Instant::now() < deadline, "nothing is written");
        thread::sleep(Duration::from_millis(20));
    }
    let is_at_work = |child: &mut Child| child.try_wait().expect("a child").is_none();
    assert!(clients.iter_mut().chain([&mut copy]).all(|client| is_at_work(&mut client.0)));

    server.kill();
    for client in &mut clients {
        assert!(!wait(&mut client.0).success());
    }
    // It may have exited already.
    let _ = input.write_all(&other[16 << 20..]);
    drop(input);
    assert!(!wait(&mut copy.0).success());

    assert!(!server.start_again(&[disk]).success());
    let left: Vec<_> = listed(&server, &[]).iter().map(|disk| disk["name"].clone()).collect();
    assert_eq!(left, ["root"]);
    run(&mut server.ask(&["fork", "root", "job-0"]));
    let back = folder.path().join("back");
    for name in ["root", "job-0"] {
        run(Command::new(&nbdcopy).arg(server.uri(name)).arg(&back));
        assert!(fs::read(&back).expect("a copy") == base, "{name}");
        fs::remove_file(&back).expect("the copy");
    }
}
