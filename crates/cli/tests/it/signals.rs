//! Ending a server.

use std::{
    os::unix::net::UnixStream,
    process::{Command, Stdio},
};

use pagefold_testing::programs;
use rustix::process::Signal;

use crate::server::{Ended, Server, is_ignored, pagefold, run, send};

#[test]
fn sigterm_and_sigint_end_it_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        if is_ignored("sigterm_and_sigint_end_it_cleanly", signal) {
            continue;
        }
        let (status, messages) = Server::start(&["--size", "1M"]).end(signal);
        assert!(status.success(), "{signal:?}: {status}");
        assert!(messages.contains("nbd+unix:///?socket="), "{messages}");
    }
}

/// A client in the middle of its work neither stops the server from ending nor loses an answered write.
#[test]
fn it_ends_while_clients_work() {
    let Some([fio]) = programs("it_ends_while_clients_work", ["fio"]) else { return };
    let server = Server::start(&["--size", "64M"]);
    let client = Command::new(fio)
        .current_dir(server.folder())
        .args(["--name=busy", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=16", "--size=64M"])
        .args(["--time_based", "--runtime=30", &format!("--uri={}", server.uri(""))])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("fio starts");
    // fio's nbd engine does not always notice that the server has gone.
    let _client = Ended(client);
    while server.figure("", "orig_data_size") == 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (status, _) = server.end(Signal::TERM);
    assert!(status.success(), "{status}");
}

/// `nohup` has the hangup ignored, and so it stays.
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
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    send(Signal::HUP, &server.0);
    run(pagefold().args(["stat", "--control"]).arg(&socket));
    send(Signal::TERM, &server.0);
    assert!(server.0.wait().expect("a child").success());
}
