//! Where a server listens, and who may listen there.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
        process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
};

use pagefold_testing::{copy_program, skip_for_good};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::server::{Ended, Server, connects, pagefold, run, run_to_fail, send, wait};

fn serve(dir: &Path, args: &[&str]) -> Command {
    let mut command = pagefold();
    command.arg("serve").args(args).arg("--dir").arg(dir);
    command
}

#[test]
fn a_second_server_is_refused_while_the_first_lives() {
    let server = Server::start(&["--size", "1M"]);
    let message = run_to_fail(&mut serve(server.folder(), &["--size", "1M"]));
    for words in ["already uses", "(process ", "--dir"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(server.figure("", "size_bytes"), 1 << 20);
    // Another directory, but an address that the first server uses.
    let other = TempDir::new().expect("a folder");
    for (option, socket) in [("--unix", server.socket()), ("--control", server.control())] {
        let socket = socket.to_str().expect("a plain path").to_owned();
        let message = run_to_fail(&mut serve(other.path(), &[option, &socket]));
        assert!(message.contains("in use") && message.contains(&socket), "{message}");
    }
    assert_eq!(server.figure("", "size_bytes"), 1 << 20);
    assert!(!other.path().join("nbd.sock").exists(), "a failed start left a socket");
}

#[test]
fn a_server_that_was_killed_leaves_its_place_to_the_next() {
    let folder = TempDir::new().expect("a folder");
    for _ in 0..3 {
        let child = serve(folder.path(), &["--size", "1M"]).stderr(Stdio::null()).spawn().expect("pagefold starts");
        let mut child = Ended(child);
        connects(&folder.path().join("control.sock"), &mut child.0);
        run(pagefold().args(["stat", "--dir"]).arg(folder.path()));
        send(Signal::KILL, &child.0);
        wait(&mut child.0);
        assert!(folder.path().join("nbd.sock").exists(), "a killed server removes nothing");
    }
    // And sockets left over from something else.
    let other = TempDir::new().expect("a folder");
    for name in ["nbd.sock", "control.sock"] {
        drop(UnixListener::bind(other.path().join(name)).expect("a socket"));
    }
    let child = serve(other.path(), &["--size", "1M"]).stderr(Stdio::null()).spawn().expect("pagefold starts");
    let mut child = Ended(child);
    connects(&other.path().join("control.sock"), &mut child.0);
}

#[test]
fn one_of_many_starting_servers_gets_the_directory() {
    let folder = TempDir::new().expect("a folder");
    let start = || serve(folder.path(), &["--size", "1M"]).stderr(Stdio::null()).spawn().expect("pagefold starts");
    let mut children: Vec<_> = (0..12).map(|_| Ended(start())).collect();
    let mut refused = 0;
    while refused < 11 {
        children.retain_mut(|child| match child.0.try_wait().expect("a child") {
            None => true,
            Some(status) => {
                assert_eq!(status.code(), Some(1));
                refused += 1;
                false
            }
        });
    }
    connects(&folder.path().join("control.sock"), &mut children[0].0);
    run(pagefold().args(["stat", "--dir"]).arg(folder.path()));
}

#[test]
fn a_place_of_others_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("open")).expect("a folder");
    fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).expect("a mode");
    fs::create_dir(at("real")).expect("a folder");
    symlink(at("real"), at("link")).expect("a link");
    fs::write(at("file"), "").expect("a file");
    fs::create_dir(at("caught")).expect("a folder");
    symlink("/etc/passwd", at("caught/lock")).expect("a link");
    for (name, why) in
        [("open", "other users can write"), ("link", "symbolic link"), ("file", "directory"), ("caught", "lock")]
    {
        let message = run_to_fail(&mut serve(&at(name), &[]));
        assert!(message.contains(why) && message.contains(name), "{message}");
    }
    let message = run_to_fail(&mut serve(&at(&"x".repeat(100)), &[]));
    assert!(message.contains("the maximum is 107"), "{message}");
    if !geteuid().is_root() {
        return skip_for_good("a_place_of_others_is_refused (another user's)", "it takes root to be two users");
    }
    std::os::unix::fs::chown(at("real"), Some(65534), None).expect("another owner");
    let message = run_to_fail(&mut serve(&at("real"), &[]));
    assert!(message.contains("belongs to user 65534"), "{message}");
}

/// A user has a default directory. Root's is `/run/pagefold`, where a server of this machine may be
/// running.
#[test]
fn every_command_finds_a_users_server() {
    let test = "every_command_finds_a_users_server";
    let folder = TempDir::new().expect("a folder");
    let mut as_user: Box<dyn Fn(&mut Command)> = Box::new(|_| {});
    let program = folder.path().join("pagefold");
    let runtime = folder.path().join("runtime");
    fs::create_dir(&runtime).expect("a folder");
    if geteuid().is_root() {
        // The build directory may be inaccessible to others.
        copy_program(env!("CARGO_BIN_EXE_pagefold"), &program);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        std::os::unix::fs::chown(&runtime, Some(65534), Some(65534)).expect("another owner");
        as_user = Box::new(|command| {
            command.uid(65534).gid(65534);
        });
    } else if fs::hard_link(env!("CARGO_BIN_EXE_pagefold"), &program).is_err() {
        return skip_for_good(test, "the program cannot be linked");
    }
    let command = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).current_dir("/").env("XDG_RUNTIME_DIR", &runtime);
        as_user(&mut command);
        command
    };
    let mut child = Ended(command(&["serve", "--size", "1M"]).stderr(Stdio::null()).spawn().expect("pagefold starts"));
    let socket = runtime.join("pagefold/control.sock");
    connects(&socket, &mut child.0);
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode(&runtime.join("pagefold")), mode(&socket)), (0o700, 0o600));
    for args in [&["disks"][..], &["stat"], &["add", "a", "--size", "1M"], &["remove", "a"], &["compact"]] {
        run(&mut command(args));
    }
    let message = run_to_fail(command(&["disks"]).env_remove("XDG_RUNTIME_DIR"));
    assert!(message.contains("--dir DIR") && message.contains("XDG_RUNTIME_DIR"), "{message}");
    let message = run_to_fail(command(&["serve"]).env("XDG_RUNTIME_DIR", "relative"));
    assert!(message.contains("--dir DIR"), "{message}");
}

#[test]
fn control_and_data_can_be_elsewhere_too() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let server = Server::start_at(&["--size", "1M", "--unix", &at("more"), "--control", &at("c")], &at("c"));
    assert!(!server.control().exists(), "there is one control socket");
    let said = run(pagefold().args(["disks", "", "--control", &at("c")]));
    assert!(said.contains(&server.uri("")) && said.contains(&at("more")), "{said}");
}
