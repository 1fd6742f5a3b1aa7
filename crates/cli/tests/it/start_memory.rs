//! The memory limit that a server starts with, and its own directory.

use std::path::Path;

use rustix::process::Signal;
use sha2::Digest;

use crate::{
    guest::Machine,
    server::{Server, pagefold, run, run_to_fail},
};

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

/// Without the permissions that a umask removes, a user's server could not use its own directory.
#[test]
fn a_directory_is_its_owners_under_any_umask() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    for umask in ["0177", "0377", "0777"] {
        let (parent, run_in) = (folder.path().join(umask), |words: &str| {
            let script = format!("umask {umask}; exec {} {words}", env!("CARGO_BIN_EXE_pagefold"));
            run(std::process::Command::new("sh").args(["-c", &script]).current_dir(folder.path()));
        });
        for _ in 0..2 {
            run_in(&format!("serve --detach --dir {umask}/own --size 1M"));
            let mode = |path: &Path| path.metadata().expect("a file").permissions().mode() & 0o777;
            assert_eq!([mode(&parent), mode(&parent.join("own"))], [0o700; 2], "umask {umask}");
            assert_eq!(mode(&parent.join("own/lock")), 0o600, "umask {umask}");
            run_in(&format!("stop --dir {umask}/own"));
        }
    }
}

/// The address space that a server reserves for its pool is inaccessible at first, and may be
/// smaller than the limit.
#[test]
fn a_server_starts_in_a_small_address_space() {
    let script = format!(
        "ulimit -v 1000000 && exec {} serve --size 1G --memory-limit 8G --log warn --run 'echo served'",
        env!("CARGO_BIN_EXE_pagefold")
    );
    assert_eq!(run(std::process::Command::new("sh").args(["-c", &script])), "served\n");
}

/// Without address space, threads and their heaps cannot grow, which ends the process and its disks.
#[test]
fn a_server_does_not_start_without_address_space() {
    let serve = |limit| {
        let script =
            format!("ulimit -v {limit} && exec {} serve --size 1G --run 'echo served'", env!("CARGO_BIN_EXE_pagefold"));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (starts, said) = serve(100 << 10);
    assert!(!starts && said.contains("ulimit -v") && said.contains("needs 160 MiB, and may have 100 MiB"), "{said}");
    let (starts, said) = serve(300 << 10);
    assert!(starts && said.contains("half of the address space of 300 MiB"), "{said}");
}

/// A limit of writable memory bounds the default limit too.
#[test]
fn a_limit_of_writable_memory_is_the_servers() {
    let server = Server::start_under("-d 200000", &["--size", "1G"]);
    let (_, said) = server.end(Signal::TERM);
    assert!(said.contains("half of the writable memory of 195 MiB (ulimit -d)"), "{said}");
}

/// A system that does not overcommit memory charges what a program enables: a server starts there,
/// and stores what is written.
const STRICT: &str = "
export PATH=/programs:/bin HOME=/tmp
set -e
dir='--dir /tmp/server'
echo 2 >/proc/sys/vm/overcommit_memory
pagefold serve $dir --export name=job,size=1G --detach
dev=$(pagefold attach job --via nbd $dir)
seq 30000 | dd of=$dev bs=4k conv=fsync 2>/dev/null
echo \"sum: $(head -n 30000 $dev | sha256sum)\"
pagefold detach job $dir
pagefold stop $dir
";

#[test]
fn a_server_starts_where_memory_is_not_overcommitted() {
    let Some(machine) = Machine::find("a_server_starts_where_memory_is_not_overcommitted") else { return };
    let numbers: String = (1..=30000).map(|number| format!("{number}\n")).collect();
    let sum: String = sha2::Sha256::digest(numbers).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut guest = machine.start_with(&[Path::new(env!("CARGO_BIN_EXE_pagefold"))], &[], STRICT);
    assert_eq!(guest.wait_for("sum: "), format!("{sum}  -"));
    guest.end();
}
