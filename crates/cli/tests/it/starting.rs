//! Starting and stopping a server together with other programs: its own command, its parent, a
//! service manager.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::net::{UnixDatagram, UnixStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{programs, skip_for_good};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

use crate::server::{Ended, Server, connects, pagefold, run, send, wait};

#[test]
fn a_command_has_the_server_and_its_status_is_the_servers() {
    let Some([nbdinfo]) = programs("a_command_has_the_server", ["nbdinfo"]) else { return };
    let nbdinfo = nbdinfo.display();
    let program = env!("CARGO_BIN_EXE_pagefold");
    let script = format!(
        "{nbdinfo} --size \"$uri\" && {program} stat --control \"$control\" 'a b' --json && \
         test -S \"$unixsocket\" && test \"$nbd\" = \"nbd:unix:$unixsocket:exportname=a b\" && exit 7"
    );
    let output =
        pagefold().args(["serve", "--export", "name=a b,size=3M", "--run", &script]).output().expect("a start");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(said.starts_with("3145728\n") && said.contains("size_bytes"), "{said}");

    let status = |script: &str| {
        let output = pagefold().args(["serve", "--size", "1M", "--run", script]).output().expect("a start");
        output.status.code().unwrap_or_else(|| panic!("{output:?}"))
    };
    assert_eq!((status("true"), status("kill -9 $$"), status("no-such-program")), (0, 137, 127));
}

#[test]
fn a_server_has_no_huge_pages_and_its_command_may() {
    let own = fs::read_to_string("/proc/self/status").expect("a running test");
    let Some(own) = own.lines().find(|line| line.starts_with("THP_enabled:")) else {
        return skip_for_good("a_server_has_no_huge_pages_and_its_command_may", "this kernel has none");
    };
    // The server allows huge pages while it starts the command.
    let script = "for look in $(seq 500); do grep -q 'THP_enabled:.0' /proc/$PPID/status && break; sleep 0.01; done; \
                  grep -h THP_enabled /proc/self/status /proc/$PPID/status";
    let output = pagefold().args(["serve", "--size", "1M", "--run", script]).output().expect("a start");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{own}\nTHP_enabled:\t0\n"), "{output:?}");
}

/// If standard error has no reader, messages are lost and the server continues.
#[test]
fn a_server_whose_messages_are_not_read_continues() {
    let server = Server::start(&[]);
    // More than fits into a pipe.
    let name = "n".repeat(1500);
    for _ in 0..40 {
        run(&mut server.ask(&["add", &name, "--size", "1M"]));
        run(&mut server.ask(&["remove", &name]));
    }
    let (status, said) = server.end(Signal::TERM);
    assert!(status.success() && said.len() > 32 << 10, "{status} {}", said.len());
}

/// Servers that run commands have separate directories, which are removed when they exit.
#[test]
fn commands_run_side_by_side_and_leave_nothing() {
    let folder = TempDir::new().expect("a folder");
    let start = |_| {
        let args = ["serve", "--size", "1M", "--run", "echo \"$unixsocket\"; sleep 0.3"];
        let mut command = pagefold();
        command.args(args).env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().expect("pagefold starts")
    };
    let children: Vec<_> = (0..3).map(start).collect();
    let mut sockets: Vec<_> = children
        .into_iter()
        .map(|child| String::from_utf8(child.wait_with_output().expect("a child").stdout).expect("text"))
        .collect();
    sockets.dedup();
    assert_eq!(sockets.len(), 3, "{sockets:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "something was left");
}

#[test]
fn a_signal_ends_the_server_and_its_command() {
    let args = ["serve", "--size", "1M", "--run", "echo $$; exec sleep 600"];
    let child = pagefold().args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("pagefold starts");
    let mut child = Ended(child);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let shell = Pid::from_raw(line.trim().parse().expect("a number")).expect("a process");
    send(Signal::TERM, &child.0);
    assert_eq!(wait(&mut child.0).code(), Some(143));
    assert!(test_kill_process(shell).is_err(), "the command lives");
}

#[test]
fn it_ends_with_its_parent() {
    let folder = TempDir::new().expect("a folder");
    let program = env!("CARGO_BIN_EXE_pagefold");
    let script = "\"$0\" serve --size 1M --exit-with-parent --dir \"$1\" & echo $!; wait";
    let mut parent = Command::new("sh");
    parent.args(["-c", script, program]).arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut parent = Ended(parent.spawn().expect("a shell"));
    let mut line = String::new();
    BufReader::new(parent.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let server: i32 = line.trim().parse().expect("a number");
    let socket = folder.path().join("control.sock");
    connects(&socket, &mut parent.0);
    send(Signal::KILL, &parent.0);
    parent.0.wait().expect("a child");
    let deadline = Instant::now() + Duration::from_secs(60);
    // It removes its sockets, as after any orderly stop.
    while socket.exists() {
        if Instant::now() > deadline {
            let _ = kill_process(Pid::from_raw(server).expect("a process"), Signal::KILL);
            panic!("it outlives its parent");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_process_id_is_written_when_clients_can_connect() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("pid");
    let server = Server::start(&["--size", "1M", "--pid-file", path.to_str().expect("a plain path")]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < deadline, "there is no file");
        thread::sleep(Duration::from_millis(5));
    }
    let pid = fs::read_to_string(&path).expect("a file");
    assert!(server.proc("status").contains(&format!("Pid:\t{}\n", pid.trim())), "{pid}");
    assert!(server.end(Signal::TERM).0.success());
    assert!(!path.exists(), "the file was left behind");
    let mut command = pagefold();
    command.args(["serve", "--size", "1M", "--pid-file", "/nonexistent/pid", "--dir"]).arg(folder.path());
    let message = String::from_utf8(command.output().expect("a start").stderr).expect("text");
    assert!(message.contains("cannot write /nonexistent/pid"), "{message}");
}

#[test]
fn levels_choose_the_lines() {
    let lines = |level: &str| {
        let server = Server::start(&["--size", "1M", "--log", level]);
        run(&mut server.ask(&["disks"]));
        run(&mut server.ask(&["add", "a", "--size", "1M"]));
        drop(pagefold_serve::Client::unix(&server.socket(), "a", Duration::from_secs(60)).expect("a disk"));
        server.end(Signal::TERM).1
    };
    let (warn, info, debug) = (lines("warn"), lines("info"), lines("debug"));
    assert_eq!(warn, "");
    assert!(info.contains("listening on ") && info.contains("disk 'a'") && !info.contains("control: list"), "{info}");
    let own = format!("process {} of user {} ", std::process::id(), rustix::process::getuid().as_raw());
    for words in ["control: list", &format!("{own}connected: disk 'a'"), &format!("{own}disconnected: disk 'a'")] {
        assert!(debug.contains(words), "{debug}");
    }
    assert!(!info.contains("connected"), "{info}");
    assert!(info.lines().all(|line| line.get(19..).is_some_and(|text| text.starts_with("Z pagefold: "))), "{info}");
    assert!(info.contains("received SIGTERM, stopping"), "{info}");
}

#[test]
fn the_journal_gets_priorities() {
    let folder = TempDir::new().expect("a folder");
    let log = folder.path().join("log");
    let script = "exec 2>\"$1\"; export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); \
        exec \"$0\" serve --size 1M --run true --max-connections 9000000";
    run(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_pagefold")]).arg(&log));
    let text = fs::read_to_string(&log).expect("a log");
    assert!(text.contains("<6>listening on ") && text.contains("<4>9000000 connections may need"), "{text}");
    assert!(text.lines().all(|line| line.starts_with('<')), "{text}");
    // A stream that is not the journal's gets no priorities.
    let output = pagefold().args(["serve", "--run", "true"]).env("JOURNAL_STREAM", "1:2").output().expect("a start");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Z pagefold: listening"), "{output:?}");
}

#[test]
fn a_limit_that_is_near_is_logged_once() {
    let Some([qemu_io]) = programs("a_limit_that_is_near_is_logged_once", ["qemu-io"]) else { return };
    let server = Server::start(&["--export", "name=a,size=64M,limit=4M"]);
    let image = server.folder().join("image");
    crate::server::make_image(&image, 16);
    let command = format!("write -s {} 0 16M", image.display());
    for _ in 0..2 {
        let _ = Command::new(&qemu_io).args(["-f", "raw", "-c", &command, &server.uri("a")]).output().expect("qemu-io");
        // The server looks at limits once a second.
        thread::sleep(Duration::from_millis(1500));
    }
    let (_, messages) = server.end(Signal::TERM);
    assert_eq!(messages.matches("of its limit of 4 MiB").count(), 1, "{messages}");
    assert!(messages.contains("disk 'a' uses") && messages.contains("pagefold limit 'a' SIZE"), "{messages}");
}

#[test]
fn a_service_manager_is_notified() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let said = || {
        let mut buf = [0; 100];
        let len = manager.recv(&mut buf).expect("a message");
        String::from_utf8_lossy(&buf[..len]).into_owned()
    };
    let mut command = pagefold();
    command.args(["serve", "--size", "1M", "--dir"]).arg(folder.path().join("place")).env("NOTIFY_SOCKET", &path);
    let mut child = Ended(command.stderr(Stdio::null()).spawn().expect("pagefold starts"));
    assert_eq!(said(), "READY=1");
    for name in ["place/nbd.sock", "place/control.sock"] {
        UnixStream::connect(folder.path().join(name)).expect("a server that is ready");
    }
    send(Signal::TERM, &child.0);
    assert_eq!(said(), "STOPPING=1");
    assert!(wait(&mut child.0).success());
    manager.set_nonblocking(true).expect("a flag");
    assert!(manager.recv(&mut [0; 100]).is_err(), "it is notified once");
}

#[test]
fn passed_sockets_are_used_by_name() {
    let test = "passed_sockets_are_used_by_name";
    let Some([activate, nbdinfo]) = programs(test, ["systemd-socket-activate", "nbdinfo"]) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (data, control) = (at("data"), at("control"));
    let child = Command::new(activate)
        .arg("--listen")
        .arg(&data)
        .arg("--listen")
        .arg(&control)
        .args(["--fdname=data:control", env!("CARGO_BIN_EXE_pagefold"), "serve", "--size", "5M", "--dir"])
        .arg(at("unused"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("systemd-socket-activate starts");
    let mut child = Ended(child);
    connects(&data, &mut child.0);
    let uri = format!("nbd+unix:///?socket={}", data.display());
    assert_eq!(run(Command::new(nbdinfo).args(["--size", &uri])).trim(), "5242880");
    let said = run(pagefold().args(["disks", "", "--control"]).arg(&control));
    assert!(said.contains(&uri), "{said}");
    assert!(!at("unused").exists(), "no directory is needed");
    send(Signal::TERM, &child.0);
    let status = wait(&mut child.0);
    let mut messages = String::new();
    let _ = child.0.stderr.take().expect("a pipe").read_to_string(&mut messages);
    assert!(status.success(), "{status}: {messages}");
    assert!(data.exists() && control.exists(), "sockets belong to who passed them");
}
