//! Commands to a running server with connected clients.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{programs, skip_for_good};
use serde_json::{Value, json};

use crate::server::{Ended, Server, pagefold, run, run_to_fail};

/// A connection to the control socket, as any program could open it.
pub(crate) struct Control {
    lines: BufReader<UnixStream>,
}

impl Control {
    pub(crate) fn open(server: &Server) -> Self {
        let stream = UnixStream::connect(server.control()).expect("a control socket");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut control = Self { lines: BufReader::new(stream) };
        let greeting = control.line();
        assert_eq!((&greeting["name"], &greeting["protocol"]), (&"pagefold".into(), &1.into()));
        control
    }

    pub(crate) fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    pub(crate) fn send(&mut self, request: &Value) {
        let mut stream = self.lines.get_ref();
        stream.write_all(format!("{request}\n").as_bytes()).expect("a request is sent");
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.line()
    }

    /// Returns the result of a command that must succeed.
    pub(crate) fn done(&mut self, request: &Value) -> Value {
        let mut answer = self.ask(request);
        assert!(answer["error"].is_null(), "{request}: {answer}");
        answer["result"].take()
    }

    /// Returns the error code of a command that must fail.
    pub(crate) fn fails(&mut self, request: &Value) -> String {
        let answer = self.ask(request);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.len() > 5, "{request}: {answer}");
        answer["error"]["code"].as_str().expect("a code").to_owned()
    }
}

#[test]
fn disks_come_and_go() {
    let server = Server::start(&[]);
    let mut control = Control::open(&server);
    assert_eq!(control.done(&json!({"command": "list"})), json!({"disks": []}));
    let added = control.done(&json!({"id": 1, "command": "add", "name": "a", "size_bytes": 1 << 20}));
    let expected = json!({"name": "a", "id": added["id"], "size_bytes": 1 << 20, "limit_bytes": null, "read_only": false, "kind": "ram",
        "path": null, "devices": [], "identity": null, "from": null, "from_id": null, "age_seconds": added["age_seconds"], "changed_bytes": 0, "own_bytes": 0,
        "snapshots": 0, "clients": 0, "max_connections": null, "bytes_per_second": null, "socket": null, "file": null,
        "device": null, "uris": [server.uri("a")]});
    assert_eq!(added, expected);
    let limited =
        json!({"command": "add", "name": "b/ü", "size_bytes": 4 << 20, "limit_bytes": 1 << 20, "read_only": true});
    let added = control.done(&limited);
    assert_eq!((&added["limit_bytes"], &added["read_only"]), (&(1 << 20).into(), &true.into()));
    assert!(added["uris"][0].as_str().expect("a URI").contains("b%2F%C3%BC?"), "{added}");

    assert_eq!(control.fails(&json!({"command": "add", "name": "a", "size_bytes": 512})), "name-in-use");
    assert_eq!(control.fails(&json!({"command": "add", "name": "c", "size_bytes": 0})), "invalid-size");
    assert_eq!(control.fails(&json!({"command": "add", "name": "c", "size_bytes": 513})), "invalid-size");
    assert_eq!(control.fails(&json!({"command": "add", "name": "c\n", "size_bytes": 512})), "invalid-name");
    assert_eq!(control.fails(&json!({"command": "add", "name": "c".repeat(4097), "size_bytes": 512})), "invalid-name");
    assert_eq!(control.fails(&json!({"command": "rename", "name": "a", "to": "b/ü"})), "name-in-use");
    assert_eq!(control.fails(&json!({"command": "rename", "name": "a", "to": "\u{7f}"})), "invalid-name");
    for command in ["remove", "reset", "stat"] {
        assert_eq!(control.fails(&json!({"command": command, "name": "c"})), "no-such-disk", "{command}");
    }
    assert_eq!(control.fails(&json!({"command": "resize", "name": "c", "size_bytes": 512})), "no-such-disk");
    assert_eq!(control.fails(&json!({"command": "resize", "name": "a", "size_bytes": 512})), "would-shrink");
    assert_eq!(control.fails(&json!({"command": "limit", "name": "c", "limit_bytes": null})), "no-such-disk");
    assert_eq!(control.fails(&json!({"command": "rename", "name": "c", "to": "d"})), "no-such-disk");

    assert_eq!(control.done(&json!({"command": "rename", "name": "a", "to": "c"}))["name"], "c");
    let names = |listing: Value| -> Vec<String> {
        let disks = listing["disks"].as_array().expect("disks").iter();
        disks.map(|disk| disk["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(control.done(&json!({"command": "list"}))), ["b/ü", "c"]);
    let stat = control.done(&json!({"command": "stat"}));
    assert_eq!((&stat["server"]["disks"], stat["disks"].as_array().map(Vec::len)), (&2.into(), Some(2)));
    let stat = control.done(&json!({"command": "stat", "name": "c"}));
    assert_eq!((&stat["disks"][0]["name"], stat["disks"].as_array().map(Vec::len)), (&"c".into(), Some(1)));
    assert_eq!(control.done(&json!({"command": "remove", "name": "c"}))["size_bytes"], 1 << 20);
    assert_eq!(names(control.done(&json!({"command": "list"}))), ["b/ü"]);
    // The name is free again.
    control.done(&json!({"command": "add", "name": "c", "size_bytes": 512}));
}

#[test]
fn hostile_lines_get_an_error_and_others_are_served() {
    let server = Server::start(&["--size", "1M"]);
    let mut control = Control::open(&server);
    let mut raw = |line: &[u8]| {
        control.lines.get_ref().write_all(&[line, b"\n"].concat()).expect("a line is sent");
        control.line()
    };
    let deep = [b"[".repeat(60_000), b"]".repeat(5_000)].concat();
    let nested = [b"{\"id\":".repeat(10_000), b"1".to_vec()].concat();
    for line in [&b"\xff\xfe\0"[..], b"{", b"[]", b"null", b"{}", b"{\"command\":1}", b"\"list\"", &deep, &nested] {
        let answer = raw(line);
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &"invalid-request".into()), "{answer}");
    }
    for (line, id, code, word) in [
        (r#"{"id":1,"command":"frob"}"#, json!(1), "unknown-command", "'frob'"),
        (r#"{"id":"x","command":"list","foo":1}"#, json!("x"), "invalid-request", "`foo`"),
        (r#"{"id":2,"command":"list","command":"stop"}"#, Value::Null, "invalid-request", "`command`"),
        (r#"{"id":{},"command":"stop"}"#, Value::Null, "invalid-request", "`id`"),
        (r#"{"id":3,"command":"add","name":"a"}"#, json!(3), "invalid-request", "`size_bytes`"),
        (r#"{"id":4,"command":"add","name":"a","size_bytes":-1}"#, json!(4), "invalid-request", "`size_bytes`"),
        (r#"{"id":5,"command":"add","name":7,"size_bytes":512}"#, json!(5), "invalid-request", "`name`"),
        (r#"{"id":6,"command":"add","name":"a","size_bytes":1e99}"#, json!(6), "invalid-request", "`size_bytes`"),
        (r#"{"id":7,"command":"limit"}"#, json!(7), "invalid-request", "`limit_bytes`"),
        (
            r#"{"id":8,"command":"resize","name":"","size_bytes":512,"shrink":"yes"}"#,
            json!(8),
            "invalid-request",
            "`shrink`",
        ),
    ] {
        let answer = raw(line.as_bytes());
        let message = answer["error"]["message"].as_str().expect("a message");
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &code.into()), "{answer}");
        assert!(message.contains(word), "{line}: {message}");
    }
    // A line that is too long ends its own connection, and no other.
    let mut long = UnixStream::connect(server.control()).expect("a control socket");
    let _ = long.write_all(&vec![b' '; 100_000]);
    let mut lines = BufReader::new(long).lines().map_while(Result::ok);
    assert!(lines.nth(1).is_some_and(|line| line.contains("too-much")), "no error");
    let _ = lines.count();
    assert_eq!(control.done(&json!({"command": "list"}))["disks"].as_array().map(Vec::len), Some(1));
}

/// Clients that hold connections do not lock others out: the connection that was idle longest is
/// closed.
#[test]
fn idle_clients_give_way() {
    let server = Server::start(&["--size", "1M"]);
    let idle: Vec<_> = (0..40).map(|_| Control::open(&server)).collect();
    assert!(run(&mut server.ask(&["disks"])).contains("1 MiB"));
    let mut last = idle.into_iter().next_back().expect("40 of them");
    last.done(&json!({"command": "list"}));
}

#[test]
fn limits_that_are_too_small_are_shown_as_people_write_them() {
    let server = Server::start(&["--export", "name=a,size=1M"]);
    for (args, needs) in [
        (&["limit", "1K"][..], "a single page needs "),
        (&["limit", "a", "1K"], "a disk with a single page needs 8 KiB"),
        (&["add", "b", "--size", "1M", "--limit", "1K"], "a disk with a single page needs 8 KiB"),
        (&["fork", "a", "b", "--limit", "1K"], "a disk with a single page needs 8 KiB"),
    ] {
        let message = run_to_fail(&mut server.ask(args));
        let what = format!("memory limit of 1 KiB is too small: {needs}");
        assert!(message.contains(&what) && message.ends_with("KiB\n"), "{args:?}: {message}");
    }
    let message = run_to_fail(&mut server.ask(&["limit", "0"]));
    assert!(message.contains("memory limit of 0 B is too small"), "{message}");
}

#[test]
fn commands_report_their_effects() {
    let server = Server::start(&["--export", "name=a,size=1M", "--memory-limit", "1G"]);
    let said = |args: &[&str]| run(&mut server.ask(args));
    let listing = said(&["disks"]);
    let words: Vec<_> = listing.lines().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>()).collect();
    assert_eq!(words, [["NAME", "SIZE", "CHANGED"], ["a", "1", "MiB"]]);
    let listing = said(&["disks", "a"]);
    assert!(listing.starts_with("'a'  1 MiB, 0 B changed in 0 B, made "), "{listing}");
    assert!(listing.ends_with(&format!("  '{}'\n", server.uri("a"))), "{listing}");
    assert_eq!(
        said(&["add", "b", "--size", "2M", "--limit", "1M"]),
        format!("added 'b', 2 MiB: '{}'\n", server.uri("b"))
    );
    assert!(said(&["disks", "b"]).contains("'b'  2 MiB, limit 1 MiB, "));
    assert_eq!(said(&["rename", "b", "c"]), format!("renamed 'b' to 'c': '{}'\n", server.uri("c")));
    assert_eq!(said(&["reset", "c"]), "reset 'c'\n");
    assert_eq!(said(&["limit", "a", "none"]), "changed the limit of 'a' from none to none\n");
    assert_eq!(said(&["limit", "none"]), "changed the server's limit from 1 GiB to none\n");
    assert_eq!(said(&["limit", "--connections", "200"]), "changed the maximum number of connections from 128 to 200\n");
    assert_eq!(said(&["resize", "c", "2M"]), "resized 'c' from 2 MiB to 2 MiB\n");
    assert_eq!(said(&["drop", "c"]), "dropped 'c', 2 MiB\n");
    for args in [&["drop", "c"][..], &["disks", "c"], &["remove", "c"]] {
        assert!(run_to_fail(&mut server.ask(args)).contains("no disk named 'c'"), "{args:?}");
    }
    assert!(run_to_fail(&mut server.ask(&["resize", "a", "512K"])).contains("shrink"));
    for args in [
        &["add", "d", "--size", "1M", "--json"][..],
        &["rename", "d", "e", "--json"],
        &["resize", "e", "1M", "--json"],
        &["reset", "e", "--json"],
        &["limit", "e", "none", "--json"],
        &["disks", "--json"],
        &["remove", "e", "--json"],
    ] {
        let line: Value = serde_json::from_str(said(args).lines().last().expect("a line")).expect("JSON");
        assert!(line["name"] == "d" || line["name"] == "e", "{args:?}: {line}");
    }
    for args in [&["stat", "--json"][..], &["compact", "--json"]] {
        for line in said(args).lines() {
            let figure: Value = serde_json::from_str(line).expect("JSON");
            let keys = ["bench", "case", "subject", "metric", "value", "unit"];
            assert!(keys.iter().all(|key| !figure[key].is_null()), "{line}");
        }
    }
}

/// A client reads and writes while other disks are added and removed, and while its own disk is
/// renamed.
#[test]
fn a_rename_and_other_disks_do_not_disturb_a_client() {
    let Some([fio]) = programs("a_rename_and_other_disks_do_not_disturb_a_client", ["fio"]) else { return };
    let server = Server::start(&["--export", "name=busy,size=32M"]);
    let client = Command::new(fio)
        .current_dir(server.folder())
        .args(["--name=busy", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=8", "--size=32M"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--time_based", "--runtime=3"])
        .arg(format!("--uri={}", server.uri("busy")))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fio starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.figure("busy", "orig_data_size") == 0 {
        assert!(Instant::now() < deadline, "fio does not write");
        thread::sleep(Duration::from_millis(10));
    }
    let mut control = Control::open(&server);
    for round in 0..40 {
        control.done(&json!({"command": "add", "name": "other", "size_bytes": 1 << 30}));
        let (old, new) = if round % 2 == 0 { ("busy", "renamed") } else { ("renamed", "busy") };
        control.done(&json!({"command": "rename", "name": old, "to": new}));
        control.done(&json!({"command": "compact", "seconds": 1}));
        control.done(&json!({"command": "remove", "name": "other"}));
    }
    let listing = control.done(&json!({"command": "list"}));
    assert!(listing["disks"][0]["clients"].as_u64() >= Some(1), "{listing}");
    let output = client.wait_with_output().expect("a child");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn clients_of_a_removed_disk_get_an_error_and_do_not_hang() {
    let test = "clients_of_a_removed_disk_get_an_error_and_do_not_hang";
    let Some([qemu_io, nbdinfo]) = programs(test, ["qemu-io", "nbdinfo"]) else { return };
    let server = Server::start(&["--export", "name=gone,size=16M", "--export", "name=stays,size=16M"]);
    let mut child = Command::new(qemu_io)
        .args(["-f", "raw", &server.uri("gone")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("qemu-io starts");
    let mut commands = child.stdin.take().expect("a pipe");
    commands.write_all(b"write -P 1 0 64k\nread -P 1 0 64k\n").expect("a command");
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.figure("gone", "orig_data_size") < 64 << 10 {
        assert!(Instant::now() < deadline, "qemu-io does not write");
        thread::sleep(Duration::from_millis(10));
    }
    let line = run_to_fail(&mut server.ask(&["remove", "gone"]));
    assert!(line.contains("disk 'gone' has 1 client: disconnect it first") && line.contains("--force"), "{line}");
    run(&mut server.ask(&["remove", "gone", "--force"]));
    commands.write_all(b"read 0 4k\nquit\n").expect("a command");
    drop(commands);
    let mut child = Ended(child);
    while child.0.try_wait().expect("a child").is_none() {
        assert!(Instant::now() < deadline, "qemu-io hangs");
        thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    let (mut out, mut errors) = (child.0.stdout.take().expect("a pipe"), child.0.stderr.take().expect("a pipe"));
    std::io::Read::read_to_string(&mut out, &mut said).expect("text");
    std::io::Read::read_to_string(&mut errors, &mut said).expect("text");
    assert!(said.contains("read failed"), "{said}");
    run_to_fail(Command::new(&nbdinfo).arg(server.uri("gone")));
    run(Command::new(&nbdinfo).arg(server.uri("stays")));
}

#[test]
fn a_reset_disk_reads_as_zeros_for_its_client() {
    let Some([qemu_io]) = programs("a_reset_disk_reads_as_zeros_for_its_client", ["qemu-io"]) else { return };
    let server = Server::start(&["--export", "name=a,size=16M"]);
    let uri = server.uri("a");
    run(Command::new(&qemu_io).args(["-f", "raw", "-c", "write -P 7 0 16M", &uri]));
    assert_eq!(server.figure("a", "orig_data_size"), 16 << 20);
    run(&mut server.ask(&["reset", "a"]));
    assert_eq!(server.figure("a", "orig_data_size"), 0);
    let said = run(Command::new(&qemu_io).args(["-f", "raw", "-c", "read -P 0 0 16M", &uri]));
    assert!(!said.contains("failed"), "{said}");
}

#[test]
fn a_resized_disk_has_its_new_size() {
    let test = "a_resized_disk_has_its_new_size";
    let Some([qemu_io, nbdinfo]) = programs(test, ["qemu-io", "nbdinfo"]) else { return };
    let server = Server::start(&["--export", "name=a,size=16M"]);
    let mut control = Control::open(&server);
    control.done(&json!({"command": "resize", "name": "a", "size_bytes": 32 << 20}));
    let size = || run(Command::new(&nbdinfo).args(["--size", &server.uri("a")]));
    assert_eq!(size().trim(), (32 << 20).to_string());
    run(Command::new(&qemu_io).args(["-f", "raw", "-c", "write -P 7 20M 8M", &server.uri("a")]));
    let shrink = json!({"command": "resize", "name": "a", "size_bytes": 24 << 20, "shrink": true});
    let expected = json!({"name": "a", "before_bytes": 32 << 20, "size_bytes": 24 << 20});
    assert_eq!(control.done(&shrink), expected);
    assert_eq!(size().trim(), (24 << 20).to_string());
    // The data past the end are lost.
    control.done(&json!({"command": "resize", "name": "a", "size_bytes": 32 << 20}));
    let commands = ["-c", "read -P 7 20M 4M", "-c", "read -P 0 24M 8M"];
    let said = run(Command::new(&qemu_io).args(["-f", "raw"]).args(commands).arg(server.uri("a")));
    assert!(!said.contains("failed"), "{said}");
}

#[test]
fn a_raised_limit_lets_a_full_disk_be_written() {
    let test = "a_raised_limit_lets_a_full_disk_be_written";
    let Some([qemu_io]) = programs(test, ["qemu-io"]) else { return };
    let server = Server::start(&["--memory-limit", "64M", "--export", "name=a,size=64M,limit=4M"]);
    let image = server.folder().join("image");
    crate::server::make_image(&image, 64);
    let fill = || {
        let command = format!("write -s {} 0 64M", image.display());
        let output = Command::new(&qemu_io).args(["-f", "raw", "-c", &command, &server.uri("a")]).output();
        let output = output.expect("qemu-io runs");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).contains("No space left")
    };
    assert!(fill(), "the disk has no limit");
    let mut control = Control::open(&server);
    control.done(&json!({"command": "limit", "name": "a", "limit_bytes": 256 << 20}));
    control.done(&json!({"command": "limit", "limit_bytes": 1 << 30}));
    assert!(!fill(), "the limit is not raised");
    let listing = control.done(&json!({"command": "list"}));
    assert_eq!(listing["disks"][0]["limit_bytes"], 256 << 20);
    control.done(&json!({"command": "limit", "name": "a", "limit_bytes": null}));
    assert_eq!(control.done(&json!({"command": "list"}))["disks"][0]["limit_bytes"], Value::Null);
}

/// Several programs manage one server at the same time. Each finds the disks that it created, and
/// no others.
#[test]
fn many_clients_add_and_remove_at_the_same_time() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 60;
    let server = Server::start(&["--log", "warn"]);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let server = &server;
            scope.spawn(move || {
                let mut control = Control::open(server);
                let name = |round: usize| format!("{thread}-{round}");
                for round in 0..ROUNDS {
                    control.done(&json!({"command": "add", "name": name(round), "size_bytes": 1 << 30}));
                    // A name that all try to use, and only one gets.
                    let code = control.ask(&json!({"command": "add", "name": "wanted", "size_bytes": 512}));
                    if code["error"].is_null() {
                        control.done(&json!({"command": "remove", "name": "wanted"}));
                    } else {
                        assert_eq!(code["error"]["code"], "name-in-use");
                    }
                    if round % 2 == 1 {
                        control
                            .done(&json!({"command": "rename", "name": name(round - 1), "to": format!("x{thread}")}));
                        control.done(&json!({"command": "remove", "name": format!("x{thread}")}));
                        control.done(&json!({"command": "remove", "name": name(round)}));
                    }
                }
                control.done(&json!({"command": "add", "name": format!("last-{thread}"), "size_bytes": 512}));
            });
        }
    });
    let listing = Control::open(&server).done(&json!({"command": "list"}));
    let names: Vec<_> = listing["disks"].as_array().expect("disks").iter().map(|disk| disk["name"].clone()).collect();
    let expected: Vec<_> = (0..THREADS).map(|thread| Value::from(format!("last-{thread}"))).collect();
    assert_eq!(names, expected);
}

#[test]
fn stop_ends_the_server_with_status_0() {
    let mut server = Server::start(&["--size", "1M"]);
    let answer = Control::open(&server).ask(&json!({"id": "bye", "command": "stop"}));
    assert_eq!(answer, json!({"id": "bye", "result": {"waits_for": []}}));
    assert!(server.wait().success());
    assert!(!server.socket().exists() && !server.control().exists(), "a socket was left behind");
}

/// The command returns once another server can start in the same directory, with or without a
/// connected client.
#[test]
fn stop_returns_when_the_server_has_ended() {
    let mut server = Server::start(&["--size", "1M"]);
    for _ in 0..3 {
        let _client = UnixStream::connect(server.socket()).expect("a server that accepts");
        assert_eq!(run(&mut server.ask(&["stop"])), "the server has ended\n");
        assert!(server.start_again(&["--size", "1M"]).success());
    }
    let control = server.control();
    let stop =
        |name: &str, path: &std::path::Path| pagefold().args(["stop", name]).arg(path).output().expect("it runs");
    assert!(stop("--control", &control).status.success());
    assert!(server.wait().success());
    let output = stop("--dir", server.folder());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no server is listening"), "{output:?}");
}

/// Even if everyone may open the socket's file, only this user and root are served.
#[test]
fn others_may_not_manage_a_server() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    let test = "others_may_not_manage_a_server";
    if !rustix::process::geteuid().is_root() {
        return skip_for_good(test, "it takes root to be two users");
    }
    let Some([socat]) = programs(test, ["socat"]) else { return };
    let server = Server::start(&["--size", "1M"]);
    let mode = std::fs::metadata(server.control()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for path in [server.folder(), &server.control()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    }
    let address = format!("UNIX-CONNECT:{}", server.control().display());
    let ask = |user: u32, args: &[&str], request: &[u8]| {
        let mut command = Command::new(&socat);
        command.args(["-t", "10"]).args(args).uid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("socat starts");
        child.stdin.take().expect("a pipe").write_all(request).expect("a request");
        String::from_utf8(child.wait_with_output().expect("a child").stdout).expect("text")
    };
    let own = ask(0, &["-", &address], b"{\"command\":\"list\"}\n");
    // The server refuses before anything is requested.
    let other = ask(65534, &["-u", &address, "-"], b"");
    assert!(own.contains("\"result\""), "{own}");
    assert!(other.contains("not-allowed") && !other.contains("result"), "{other}");
}
