//! Sockets of single disks, permissions of sockets, and addresses that others can reach.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixListener,
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use pagefold_serve::Client;
use pagefold_testing::{programs, skip_for_good};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::server::{Ended, Server, connects, pagefold, run, run_to_fail, send, wait};

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", text(socket))
}

/// Only the disk exists on its socket, under its name and as the default. Other disks, and instants,
/// cannot be reached there.
#[test]
fn a_disk_is_alone_on_its_socket() {
    let Some([nbdinfo, nbdcopy]) = programs("a_disk_is_alone_on_its_socket", ["nbdinfo", "nbdcopy"]) else { return };
    let server = Server::start(&["--export", "name=,size=1M", "--export", "name=base,size=2M"]);
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let said = run(&mut server.ask(&["fork", "base", "job", "--socket", text(&at("job.sock"))]));
    assert!(said.contains(&format!("2 MiB: '{}' '{}'", uri(&at("job.sock"), "job"), server.uri("job"))), "{said}");
    run(&mut server.ask(&["add", "new", "--size", "3M", "--socket", text(&at("new.sock"))]));
    run(&mut server.ask(&["snapshot", "job", "before"]));
    let list = |socket: &Path| {
        let json = run(Command::new(&nbdinfo).args(["--list", "--json", &uri(socket, "")]));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let names = json["exports"].as_array().expect("exports").iter();
        names.map(|export| export["export-name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let size = |uri: String| Command::new(&nbdinfo).args(["--size", &uri]).stderr(Stdio::null()).output().expect("it");
    assert_eq!((list(&at("job.sock")), list(&at("new.sock"))), (vec!["job".to_owned()], vec!["new".to_owned()]));
    assert_eq!(list(&server.socket()).len(), 5, "the server's socket has all");
    for (name, expected) in [("job", "2097152\n"), ("", "2097152\n"), ("base", ""), ("new", ""), ("job@before", "")] {
        let output = size(uri(&at("job.sock"), name));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{name}: {output:?}");
    }
    // Data written there are on the disk; instants cannot be reached there.
    fs::write(at("data"), vec![7; 2 << 20]).expect("room");
    run(Command::new(&nbdcopy).arg(at("data")).arg(uri(&at("job.sock"), "")));
    run(server.ask(&["freeze", "job", "--format", "raw"]).arg("-o").arg(at("frozen.img")));
    assert!(fs::read(at("frozen.img")).expect("an image") == fs::read(at("data")).expect("the data"));
    // The socket stays with the renamed disk and goes with it.
    let said = run(&mut server.ask(&["rename", "job", "other"]));
    assert!(said.contains(&uri(&at("job.sock"), "other")), "{said}");
    assert_eq!(list(&at("job.sock")), ["other"]);
    assert!(!size(uri(&at("job.sock"), "job")).status.success());
    let record: serde_json::Value =
        serde_json::from_str(run(&mut server.ask(&["disks", "new", "--json"])).trim()).expect("JSON");
    assert_eq!(
        (record["socket"].as_str(), record["uris"][0].as_str()),
        (Some(text(&at("new.sock"))), Some(&*uri(&at("new.sock"), "new")))
    );
    run(&mut server.ask(&["drop", "--snapshots", "other"]));
    assert!(!at("job.sock").exists() && at("new.sock").exists());
    let (status, _) = server.end(Signal::TERM);
    assert!(status.success() && !at("new.sock").exists(), "a socket was left behind");
}

/// A disk whose socket cannot be created is not created either, and files of others stay untouched.
#[test]
fn a_disk_is_not_created_without_its_socket() {
    let server = Server::start(&["--size", "1M"]);
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "precious").expect("a file");
    let _listener = UnixListener::bind(at("taken")).expect("a socket");
    drop(UnixListener::bind(at("stale")).expect("a socket"));
    let long = "x".repeat(200);
    for (path, more, why) in [
        ("file", &[][..], "is not a socket"),
        ("taken", &[], "already listens"),
        ("no/such", &[], "No such file"),
        (&long, &[], "maximum is 107"),
        ("a", &["--mode", "999"], "'999' is not a mode"),
        ("a", &["--group", "no such group"], "no group 'no such group'"),
    ] {
        let message = run_to_fail(server.ask(&["fork", "", "job"]).arg("--socket").arg(at(path)).args(more));
        assert!(message.contains(why), "{path}: {message}");
        assert!(run_to_fail(&mut server.ask(&["disks", "job"])).contains("no disk named 'job'"), "{path}");
    }
    let message = run_to_fail(server.ask(&["fork", "", "job", "job-2"]).arg("--socket").arg(at("a")));
    assert!(message.contains("socket of its own"), "{message}");
    assert!(!at("a").exists() && fs::read(at("file")).expect("the file") == b"precious");
    run(server.ask(&["fork", "", "job"]).arg("--socket").arg(at("stale")));
}

/// Modes and groups do not depend on the umask.
#[test]
fn sockets_have_safe_permissions_whatever_the_umask() {
    let folder = TempDir::new().expect("a folder");
    for umask in ["0", "077", "0777"] {
        let at = |name: &str| folder.path().join(format!("{umask}-{name}"));
        let start = |name: &str, args: &[&str]| {
            // Directories are made before the umask takes the owner's permissions away.
            fs::create_dir(at(name)).expect("a folder");
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o700)).expect("a mode");
            let script = format!("umask {umask}; exec \"$0\" \"$@\"");
            let mut command = Command::new("sh");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_pagefold"), "serve", "--size", "1M", "--dir"]);
            command.arg(at(name)).arg("--unix").arg(at(name).join("more")).args(args).stderr(Stdio::null());
            let mut child = Ended(command.spawn().expect("a shell"));
            connects(&at(name).join("control.sock"), &mut child.0);
            child
        };
        let mode = |path: &Path| {
            let found = fs::metadata(path).expect("a socket");
            assert!(found.file_type().is_socket());
            (found.mode() & 0o7777, found.gid())
        };
        if umask == "0777" && !geteuid().is_root() {
            // The lock file of such a server could not be opened again.
            continue;
        }
        let mut plain = start("plain", &[]);
        let own = mode(&at("plain").join("nbd.sock"));
        assert_eq!(
            (own.0, mode(&at("plain").join("more")).0, mode(&at("plain").join("control.sock")).0),
            (0o600, 0o600, 0o600)
        );
        let socket = at("plain").join("job.sock");
        let ask = |args: &[&str]| run(pagefold().args(args).arg("--dir").arg(at("plain")));
        ask(&["fork", "", "job", "--socket", text(&socket)]);
        assert_eq!(mode(&socket), own);
        ask(&["add", "b", "--size", "1M", "--socket", text(&at("b.sock")), "--mode", "0666"]);
        assert_eq!(mode(&at("b.sock")).0, 0o666);
        let group = if geteuid().is_root() { "1234".to_owned() } else { own.1.to_string() };
        let mut wide = start("wide", &["--mode", "0660", "--group", &group]);
        let expected = (0o660, group.parse().expect("a number"));
        assert_eq!((mode(&at("wide").join("nbd.sock")), mode(&at("wide").join("more"))), (expected, expected));
        assert_eq!(mode(&at("wide").join("control.sock")).0, 0o600);
        for child in [&mut plain, &mut wide] {
            send(Signal::TERM, &child.0);
            assert!(wait(&mut child.0).success());
        }
    }
}

/// A server whose group is already right gives no file another one, which a service's filter of system
/// calls may forbid.
#[test]
fn sockets_of_the_own_group_need_no_right_to_change_groups() {
    let test = "sockets_of_the_own_group_need_no_right_to_change_groups";
    let Some([strace]) = programs(test, ["strace"]) else { return };
    let traced = || {
        let mut command = Command::new(&strace);
        let calls = "?chown,?lchown,fchown,fchownat";
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:error=EPERM")]);
        command
    };
    if !traced().arg("true").output().expect("a start").status.success() {
        return skip_for_good(test, "no process can be traced here");
    }
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("file"), "").expect("a file");
    let own = fs::metadata(folder.path().join("file")).expect("the file").gid();
    let serve = |group: u32| {
        let add = format!(
            "test -S vm/a.sock && exec '{}' add b --size 1M --socket b.sock --mode 0660 --group {group} --control \"$control\"",
            env!("CARGO_BIN_EXE_pagefold")
        );
        let mut command = traced();
        command.arg(env!("CARGO_BIN_EXE_pagefold")).args(["serve", "--size", "1M", "--name", "a", "--mode", "0660"]);
        command.args(["--group", &group.to_string(), "--dir", "run", "--unix", "more", "--vhost-user", "vm"]);
        command.args(["--metrics", "./metrics.sock", "--run", &add]).current_dir(&folder);
        command.output().expect("a start")
    };
    let output = serve(own);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The stand-in for such a filter works.
    let output = serve(own + 1);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("not permitted"), "{said}");
}

/// An address for other machines comes with a warning, and with a URI that works.
#[test]
fn addresses_beyond_loopback_are_warned_of() {
    let Some([nbdinfo]) = programs("addresses_beyond_loopback_are_warned_of", ["nbdinfo"]) else { return };
    for (address, is_wide) in [("0.0.0.0:0", true), ("127.0.0.1:0", false), ("[::]:0", true)] {
        let folder = TempDir::new().expect("a folder");
        let args = ["serve", "--size", "1M", "--tcp", address, "--dir", text(folder.path()), "--run"];
        let script = format!("{} disks --json --dir \"$(dirname \"$control\")\"", env!("CARGO_BIN_EXE_pagefold"));
        let script = format!(
            "{script} | tee /dev/stderr | sed 's/.*\"\\(nbd:[^\"]*\\)\".*/\\1/' | xargs {} --size",
            nbdinfo.display()
        );
        let output = pagefold().args(args).arg(&script).output().expect("a start");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if address.starts_with('[') && !output.status.success() {
            skip_for_good("addresses_beyond_loopback_are_warned_of (IPv6)", &said);
            continue;
        }
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1048576\n", "{address}: {said}");
        assert_eq!(said.contains("everyone who reaches it can read and write every disk"), is_wide, "{said}");
        assert!(!said.contains("nbd://0.0.0.0") && !said.contains("nbd://[::]"), "{said}");
    }
}

/// A disk has at most the connections of its quota, and no disk's idle clients take all of them.
#[test]
fn one_disks_clients_do_not_shut_out_others() {
    let Some([nbdinfo]) = programs("one_disks_clients_do_not_shut_out_others", ["nbdinfo"]) else { return };
    let disks = ["--export", "name=a,size=1M", "--export", "name=b,size=1M", "--max-connections", "16"];
    let server = Server::start(&disks);
    let connect = |name: &str| client(&server, name);
    let idle: Vec<_> = std::iter::from_fn(|| connect("a").ok()).take(17).collect();
    assert_eq!(idle.len(), 12, "the last quarter is for others");
    let size = || run(Command::new(&nbdinfo).args(["--size", &server.uri("b")]));
    assert_eq!(size(), "1048576\n");
    drop(idle);
    let said = run(&mut server.ask(&["quota", "a", "--connections", "3", "--rate", "1M"]));
    assert_eq!(said, "set the quota of 'a' to at most 3 connections and 1 MiB/s\n");
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut kept = Vec::new();
    // The previous connections may take a moment to end.
    while kept.len() < 3 {
        assert!(Instant::now() < deadline, "there are only {}", kept.len());
        kept.extend(connect("a").ok());
    }
    let refused = connect("a").expect_err("a fourth");
    assert!(refused.contains("all 3 connections that this export may have"), "{refused}");
    assert_eq!(size(), "1048576\n");
    let said = run(&mut server.ask(&["quota", "a", "--rate", "2M"]));
    assert!(said.contains("at most 3 connections and 2 MiB/s"), "{said}");
    let said = run(&mut server.ask(&["quota", "a", "--connections", "none", "--rate", "none"]));
    assert!(said.contains("any number of connections and any rate"), "{said}");
    let message = run_to_fail(&mut server.ask(&["quota", "other", "--rate", "2M"]));
    assert!(message.contains("'other'"), "{message}");
    connect("a").expect("a place");
}

/// A disk has a quota from the moment it is created.
#[test]
fn new_disks_have_their_quota() {
    let server = Server::start(&["--export", "name=a,size=1M,connections=2,rate=64M"]);
    run(&mut server.ask(&["fork", "a", "b", "c", "--connections", "1", "--rate", "1.5M"]));
    run(&mut server.ask(&["add", "d", "--size", "1M", "--connections", "3"]));
    let file = server.folder().join("base.img");
    std::fs::write(&file, vec![7; 1 << 20]).expect("a file");
    run(&mut server.ask(&["add", "e", "--base", text(&file), "--rate", "100kB"]));
    let lines = run(&mut server.ask(&["disks", "-o", "name,connections,rate", "--sort", "name"]));
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [
        vec!["NAME", "CONNECTIONS", "RATE"],
        vec!["a", "2", "64", "MiB/s"],
        vec!["b", "1", "1.5", "MiB/s"],
        vec!["c", "1", "1.5", "MiB/s"],
        vec!["d", "3", "-"],
        vec!["e", "-", "100", "kB/s"],
    ];
    assert_eq!(lines, expected);
    let said = run(&mut server.ask(&["disks", "b"]));
    assert!(said.contains(", at most 1 connection, at most 1.5 MiB/s, "), "{said}");
    let first = client(&server, "b").expect("a place");
    let refused = client(&server, "b").expect_err("a second");
    assert!(refused.contains("all 1 connections that this export may have"), "{refused}");
    client(&server, "c").expect("each fork has its own quota");
    drop(first);
    for wrong in [["--connections", "0"], ["--rate", "1K"]] {
        let said = run_to_fail(server.ask(&["fork", "a", "x"]).args(wrong));
        assert!(said.contains(wrong[0]), "{said}");
    }
}

/// Requests of a disk with a rate wait; those of other disks do not. Lifting the rate ends the
/// wait.
#[test]
fn a_disk_has_its_rate() {
    let server = Server::start(&["--export", "name=a,size=1M", "--export", "name=b,size=1M"]);
    // The first read is paid for after 16 s.
    run(&mut server.ask(&["quota", "a", "--rate", "64K"]));
    let read = |name: &str| {
        let mut client = client(&server, name)?;
        (0..3).try_for_each(|_| client.read(0, &mut vec![0; 1 << 20])).map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| read("a"));
        read("b").expect("a disk without a rate");
        // Without a rate, the reads take milliseconds.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!slow.is_finished(), "3 MiB were read at 64 KiB/s");
        run(&mut server.ask(&["quota", "a", "--rate", "none"]));
        slow.join().expect("a thread").expect("a disk without a rate");
    });
}

fn client(server: &Server, name: &str) -> Result<Client, String> {
    let time = Duration::from_secs(60);
    Client::unix(&server.socket(), name, time).map_err(|error| format!("{error:?} {error}"))
}
