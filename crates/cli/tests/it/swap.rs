//! A server whose disks are used for swap keeps its memory in RAM.

use std::process::Command;

use pagefold_testing::{programs, skip_for_good};
use rustix::{
    process::{Resource, getrlimit},
    thread::{CapabilitySet, capabilities},
};
use serde_json::json;

use crate::{
    control::Control,
    server::{Server, make_image, pagefold, run},
};

/// Returns the value of a line in KiB, converted to bytes.
fn bytes_of(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    value.trim().strip_suffix(" kB").expect("a unit").parse::<u64>().expect("a number") << 10
}

/// Returns the mappings that have private memory and are not locked.
fn not_locked(smaps: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut mapping, mut has_memory) = ("", false);
    for line in smaps.lines() {
        let (key, value) = line.split_once(' ').unwrap_or_default();
        match key {
            "Anonymous:" => has_memory = value.trim() != "0 kB",
            "VmFlags:" if has_memory && !value.split(' ').any(|flag| flag == "lo") => found.push(mapping),
            key if !key.ends_with(':') => mapping = line,
            _ => {}
        }
    }
    found
}

fn is_allowed(test: &str) -> bool {
    let may = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    let is_allowed = may || getrlimit(Resource::Memlock).maximum.is_none();
    if !is_allowed {
        skip_for_good(test, "this user may not lock memory");
    }
    is_allowed
}

#[test]
fn all_memory_is_locked_and_comes_and_goes_with_use() {
    let test = "all_memory_is_locked_and_comes_and_goes_with_use";
    let Some([nbdcopy]) = programs(test, ["nbdcopy"]) else { return };
    if !is_allowed(test) {
        return;
    }
    let server = Server::start(&["--swap", "--size", "64M"]);
    let locked_bytes = || bytes_of(&server.proc("smaps_rollup"), "Locked:");
    let before_bytes = server.anonymous_bytes();
    // Reserved address space counts as locked, but it uses no memory.
    let reserved_bytes = bytes_of(&server.proc("status"), "VmLck:");
    assert!(reserved_bytes > 1 << 30 && before_bytes < 8 << 20, "{reserved_bytes} {before_bytes}");

    let image = server.folder().join("image");
    make_image(&image, 64);
    run(Command::new(nbdcopy).arg(&image).arg(server.uri("")));
    let stored_bytes = server.total("compr_data_size");
    assert!(stored_bytes > 16 << 20, "{stored_bytes}");
    let held_bytes = server.anonymous_bytes();
    assert!(held_bytes >= before_bytes + stored_bytes, "{held_bytes} after {before_bytes}");
    // This figure counts program pages proportionally for each process that runs the same program.
    // The objects belong only to the server.
    assert!(locked_bytes() >= stored_bytes, "{} of {stored_bytes}", locked_bytes());
    assert_eq!(not_locked(&server.proc("smaps")), [""; 0]);

    Control::open(&server).done(&json!({"command": "reset", "name": ""}));
    let left_bytes = server.anonymous_bytes();
    assert!(left_bytes < before_bytes + (4 << 20), "{left_bytes} after {before_bytes}");
}

#[test]
fn without_the_right_to_lock_memory_there_is_no_server() {
    let test = "without_the_right_to_lock_memory_there_is_no_server";
    let Some([setpriv]) = programs(test, ["setpriv"]) else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -l 4096; exec \"$@\"", "sh"]);
    if rustix::process::geteuid().is_root() {
        command.arg(setpriv).args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]);
    }
    let output = command.args([env!("CARGO_BIN_EXE_pagefold"), "serve", "--swap", "--size", "1M"]).output();
    let output = output.expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in ["4 MiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity", "CAP_IPC_LOCK"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(said.lines().count() == 1, "{said}");
}

/// A command started by the server would inherit its privileges and would have to drop them.
#[test]
fn a_swap_server_runs_no_command() {
    let output = pagefold().args(["serve", "--swap", "--run", "true"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
