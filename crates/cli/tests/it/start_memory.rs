//! The memory limit that a server starts with, and its own directory.

use rustix::process::Signal;

use crate::server::{Server, pagefold, run, run_to_fail};

/// Returns what a server says between its start and its end.
fn said(args: &[&str]) -> String {
    Server::start(args).end(Signal::TERM).1
}

#[test]
fn a_server_says_its_memory_limit() {
    let by_default = said(&["--size", "1M"]);
    assert!(by_default.contains("memory limit ") && by_default.contains(", half of the "), "{by_default}");
    assert!(by_default.contains("'pagefold limit SIZE'"), "{by_default}");
    assert!(said(&["--memory-limit", "none"]).contains("no memory limit"));
    let large = said(&["--memory-limit", "99999G"]);
    assert!(large.contains("99999 GiB exceeds the ") && large.contains("GiB"), "{large}");
    let small = said(&["--memory-limit", "16M"]);
    assert!(small.contains("of 128 clients"), "{small}");
    let fewer = said(&["--memory-limit", "16M", "--max-connections", "20"]);
    assert!(!fewer.contains("clients can"), "{fewer}");
    run_to_fail(pagefold().args(["serve", "--memory-limit", "nothing"]));
}

#[test]
fn a_limit_that_is_set_later_is_warned_of_too() {
    let server = Server::start(&["--memory-limit", "1G"]);
    let mut large = server.ask(&["limit", "99999G"]);
    let output = large.output().expect("a command");
    assert!(output.status.success());
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(said, "changed the server's limit from 1 GiB to 99999 GiB\n");
    assert!(warned.contains("99999 GiB exceeds the "), "{warned}");
    let json = run(&mut server.ask(&["limit", "--connections", "1000000", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["before"], &json["connections"]), (&128.into(), &1_000_000.into()));
    run(&mut server.ask(&["limit", "none"]));
    let output = server.ask(&["limit", "16M"]).output().expect("a command");
    assert!(String::from_utf8_lossy(&output.stderr).contains("clients can"), "{output:?}");
    run_to_fail(&mut server.ask(&["limit", "--connections", "0"]));
    run_to_fail(&mut server.ask(&["limit", "--connections", "5", "1G"]));
    run_to_fail(&mut server.ask(&["limit"]));
}

#[test]
fn a_command_is_run_under_any_umask_with_a_private_directory() {
    for umask in ["000", "002", "022", "027", "077", "0777"] {
        let script = format!(
            "umask {umask}; exec {} serve --size 1M --log warn --run 'stat -c %a \"$(dirname \"$unixsocket\")\"'",
            env!("CARGO_BIN_EXE_pagefold")
        );
        assert_eq!(run(std::process::Command::new("sh").args(["-c", &script])), "700\n", "umask {umask}");
    }
}

/// What a server reserves for its pool has no access at first, and may be less than the limit.
#[test]
fn a_server_starts_in_a_small_address_space() {
    let script = format!(
        "ulimit -v 1000000 && exec {} serve --size 1G --memory-limit 8G --log warn --run 'echo served'",
        env!("CARGO_BIN_EXE_pagefold")
    );
    assert_eq!(run(std::process::Command::new("sh").args(["-c", &script])), "served\n");
}
