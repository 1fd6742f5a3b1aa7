//! Servers in the background, servers that are starting, and servers that hang.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{copy_program, programs, skip_for_good};
use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use tempfile::TempDir;

use crate::server::{Ended, Server, is_ignored, pagefold, run, run_to_fail};

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The command prints the addresses and returns when clients can connect; its log continues in a
/// file.
#[test]
fn a_detached_server_is_ready_when_the_command_returns() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let args = ["serve", "--detach", "--size", "1M", "--dir", "place", "--unix", "more", "--pid-file", "pid"];
    let output =
        pagefold().current_dir(folder.path()).args(args).args(["--log-file", "log"]).output().expect("a start");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    for name in ["place/nbd.sock", "more"] {
        assert!(said.contains(&format!("nbd+unix:///?socket={}", text(&at(name)))), "{said}");
    }
    let place = at("place");
    let ask = |args: &[&str]| run(pagefold().args(args).arg("--dir").arg(&place));
    ask(&["add", "a", "--size", "1M"]);
    let pid: i32 = fs::read_to_string(at("pid")).expect("a file").trim().parse().expect("a number");
    let pid = Pid::from_raw(pid).expect("a process");
    let link = |name: &str| fs::read_link(format!("/proc/{}/{name}", pid.as_raw_nonzero())).expect("a link");
    assert_eq!(
        ["cwd", "fd/0", "fd/1", "fd/2"].map(link).each_ref().map(|path| text(path)),
        ["/", "/dev/null", "/dev/null", "/dev/null"]
    );
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).expect("a name");
    assert_eq!(name, "pagefold\n");
    assert_eq!(ask(&["stop"]), "the server has ended\n");
    until("the process lives", || test_kill_process(pid).is_err());
    let log = fs::read_to_string(at("log")).expect("a log");
    for words in ["listening on", "disk 'a'", "a client asked for it, stopping"] {
        assert!(log.contains(words), "{log}");
    }
    assert!(["more", "pid", "place/nbd.sock"].iter().all(|name| !at(name).exists()), "a file was left behind");
}

/// Errors are shown and the exit status is the server's.
#[test]
fn a_detached_server_that_does_not_start_says_why() {
    let server = Server::start(&["--size", "1M"]);
    let start = |args: &[&str], status: i32, why: &str| {
        let output = pagefold().args(["serve", "--detach"]).args(args).output().expect("a start");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(why) && said.lines().all(|line| line.starts_with("pagefold: ")), "{said}");
    };
    let place = ["--dir", text(server.folder())];
    start(&[&["--size", "1M"], &place[..]].concat(), 1, "already uses");
    start(&[&["--size", "7"], &place[..]].concat(), 2, "multiple of 512");
    start(&["--size", "1M", "--dir", "/proc/none"], 1, "/proc/none");
    start(&["--size", "1M", "--log-file", "/nonexistent/log", "--dir", "/proc/none"], 1, "/nonexistent/log");
}

/// A command that a shell starts next to the server, or while a base is being opened, waits for it.
#[test]
fn commands_wait_for_a_server_that_is_starting() {
    let folder = TempDir::new().expect("a folder");
    let place = folder.path().join("place");
    let script = "\"$0\" serve --size 1M --dir \"$1\" 2>/dev/null & \"$0\" fork '' job --dir \"$1\"; wait";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_pagefold")]).arg(&place).stdout(Stdio::null());
    let shell = Ended(shell.spawn().expect("a shell"));
    until("it is not forked", || {
        let output = pagefold().args(["disks", "job", "--dir"]).arg(&place).output().expect("a start");
        output.status.success()
    });
    run(pagefold().args(["stop", "--dir"]).arg(&place));
    drop(shell);
}

/// Commands wait for a directory that an unfinished start has locked, but only while it is locked.
#[test]
fn a_lock_without_a_server_is_waited_for_while_it_is_held() {
    let folder = TempDir::new().expect("a folder");
    let lock = fs::File::create(folder.path().join("lock")).expect("a file");
    lock.lock().expect("a lock");
    let mut asking = pagefold();
    asking.args(["disks", "--dir"]).arg(folder.path()).stderr(Stdio::piped());
    let mut child = Ended(asking.spawn().expect("a start"));
    // Longer than a command waits if nothing shows that a server is starting.
    thread::sleep(Duration::from_millis(1500));
    assert!(child.0.try_wait().expect("a child").is_none(), "it did not wait");
    drop(lock);
    until("it waits for nothing", || child.0.try_wait().expect("a child").is_some());
    // A command that ends a server does not wait for one to appear.
    let message = run_to_fail(pagefold().args(["stop", "--dir"]).arg(folder.path()));
    assert!(message.contains("no server is listening on"), "{message}");
}

/// A server that is stopped is still a server, whose disks are there.
#[test]
fn a_server_that_does_not_answer_is_named_with_its_process() {
    let server = Server::start(&["--size", "1M"]);
    server.signal(Signal::STOP);
    let mut commands = [&["disks"][..], &["stop"], &["serve", "--take-over", "--size", "1M"]]
        .map(|args| Ended(server.ask(args).stderr(Stdio::piped()).spawn().expect("a start")));
    // Each waits for an answer, all at the same time.
    let statuses = commands.each_mut().map(|command| command.0.wait().expect("a child").code());
    let messages = commands.map(Ended::messages);
    server.signal(Signal::CONT);
    let process = format!("does not answer: process {} may be busy", server.pid());
    for (status, message) in statuses.into_iter().zip(messages) {
        assert!(status == Some(1) && message.contains(&process) && message.contains("kill -9"), "{message}");
    }
    run(&mut server.ask(&["stop"]));
}

/// A socket that another user may not reach is not reported as one without a server.
#[test]
fn a_server_of_another_user_is_not_denied() {
    let test = "a_server_of_another_user_is_not_denied";
    if !geteuid().is_root() {
        return skip_for_good(test, "it takes root to be two users");
    }
    let server = Server::start(&["--size", "1M"]);
    let folder = TempDir::new().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let program = folder.path().join("pagefold");
    copy_program(env!("CARGO_BIN_EXE_pagefold"), &program);
    let mut command = Command::new(&program);
    command.args(["disks", "--dir"]).arg(server.folder()).current_dir("/").uid(65534).gid(65534);
    let message = run_to_fail(&mut command);
    assert!(message.contains("cannot connect to") && message.contains("Permission denied"), "{message}");
    assert!(message.contains("only root and the user of that server") && !message.contains("no server"), "{message}");
}

/// A base on a FUSE file system whose storage hangs: nbdkit's file, whose reads take an hour.
struct Hanging {
    folder: TempDir,
    nbdkit: Ended,
    nbdfuse: Ended,
}

impl Hanging {
    fn start(test: &str) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            skip_for_good(test, "this kernel has no /dev/fuse");
            return None;
        }
        let [nbdkit, nbdfuse] = programs(test, ["nbdkit", "nbdfuse"])?;
        let folder = TempDir::new().expect("a folder");
        let socket = folder.path().join("socket");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("a file");
        // Reads past the middle take an hour. The arguments of pread are the handle, the count and
        // the offset.
        let script = "if [ $(($4 + $3)) -gt 524288 ]; then sleep 3600; fi; head -c $3 /dev/zero";
        let mut command = Command::new(nbdkit);
        command.args(["-f", "-U", text(&socket), "eval", "get_size=echo 1048576"]);
        command.arg(format!("pread={script}")).process_group(0).stderr(Stdio::null());
        let nbdkit = Ended(command.spawn().expect("nbdkit starts"));
        until("nbdkit listens", || socket.exists());
        let mut command = Command::new(nbdfuse);
        command.arg(&file).arg(format!("nbd+unix:///?socket={}", text(&socket))).stderr(Stdio::null());
        let nbdfuse = Ended(command.spawn().expect("nbdfuse starts"));
        let started = Self { folder, nbdkit, nbdfuse };
        let is_mounted = || fs::metadata(started.file()).is_ok_and(|file| file.len() == 1 << 20);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_mounted() {
            if Instant::now() > deadline {
                pagefold_testing::skip(test, "nbdfuse does not mount");
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Some(started)
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("file")
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3").arg("-uz").arg(self.file()).stderr(Stdio::null()).status();
        let _ = kill_process(Pid::from_child(&self.nbdfuse.0), Signal::KILL);
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.nbdkit.0), Signal::KILL);
    }
}

/// The server says what it waits for, and a second signal, or 'stop --force', ends it.
#[test]
fn a_server_whose_base_hangs_ends_at_the_second_signal() {
    let test = "a_server_whose_base_hangs_ends_at_the_second_signal";
    if is_ignored(test, Signal::TERM) {
        return;
    }
    let Some([qemu_io]) = programs(test, ["qemu-io"]) else { return };
    for (by_command, drops) in [(false, false), (true, false), (false, true)] {
        let Some(hanging) = Hanging::start(test) else { return };
        let base = format!("hanging={}", text(&hanging.file()));
        let log = hanging.folder.path().join("log");
        let server = Server::start(&["--format", "raw", &base, "--log-file", text(&log)]);
        // Dropped in reverse order: while the storage hangs, not even a killed server can be waited for.
        let (mut server, _hanging) = (server, hanging);
        run(&mut server.ask(&["fork", "hanging", "job"]));
        let mut reader = Command::new(&qemu_io);
        reader
            .args(["-f", "raw", "-c", "read 768k 4k", &server.uri("job")])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _reader = Ended(reader.spawn().expect("qemu-io starts"));
        let says = |words: &str| fs::read_to_string(&log).expect("a log").contains(words);
        until("nothing is read", || {
            let clients: serde_json::Value =
                serde_json::from_str(run(&mut server.ask(&["disks", "job", "--json"])).trim()).expect("JSON");
            clients["clients"] == 1
        });
        // The request of the client that has just connected arrives.
        thread::sleep(Duration::from_millis(500));
        let awaited = if drops {
            run(&mut server.ask(&["drop", "job", "--force"]));
            "or for requests of a disk that was removed"
        } else {
            "waiting for 1 request of disk 'job' (over "
        };
        if by_command {
            let mut stop = server.ask(&["stop"]);
            let stop = Ended(stop.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a start"));
            until("nothing is waited for", || says(awaited));
            assert!(server.is_running());
            assert_eq!(run(&mut server.ask(&["stop", "--force"])), "the server has ended\n");
            let output = stop.messages();
            assert!(output.contains(awaited), "{output}");
        } else {
            server.signal(Signal::TERM);
            until("nothing is waited for", || says(awaited));
            assert!(server.is_running());
            server.signal(Signal::TERM);
        }
        assert_eq!(server.wait().code(), Some(1));
        assert!(says("ending without waiting for requests") && !server.control().exists());
    }
}
