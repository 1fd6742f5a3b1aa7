//! The kernel developers' tests of block devices (<https://github.com/linux-blktests/blktests>), on a
//! device of each kind, in a guest.
//!
//! ```sh
//! make -C ~/blktests
//! PAGEFOLD_BLKTESTS=~/blktests cargo test -p pagefold --test it blktests -- --ignored --nocapture
//! ```

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use pagefold_testing::{programs, skip};

use crate::{guest::Machine, server::run};

/// Tests that take a device, except those that remove a PCI device (011, 019).
const TESTS: &str = "block/003 block/004 block/005 block/007 block/008 block/012 block/036";

/// Programs that the tests run in addition to busybox's.
const PROGRAMS: [&str; 30] = [
    "bash", "fio", "mawk", "realpath", "date", "column", "sort", "find", "stat", "timeout", "mktemp", "dmesg", "diff",
    "sed", "grep", "cat", "readlink", "blockdev", "dd", "basename", "cut", "tr", "xargs", "logger", "getopt", "nproc",
    "taskset", "seq", "mkdir", "rm",
];

const SCRIPT: &str = "
export PATH=/programs:/usr/bin:/bin HOME=/tmp
dir='--dir /tmp/server'
mkdir -p /tmp/blktests /usr/bin /etc /dev/shm
tar xf /blktests.tar -C /tmp/blktests
cd /tmp/blktests
# There is no udev, and no module to load.
for name in udevadm modprobe tput; do printf '#!/bin/sh\\n' >/programs/$name; chmod +x /programs/$name; done
for name in awk gawk; do ln -s /programs/mawk /programs/$name; done
for path in /usr/bin/bash /bin/bash; do ln -sf /programs/bash $path; done
ln -s /proc/self/fd /dev/fd
for name in stdin:0 stdout:1 stderr:2; do ln -s /proc/self/fd/${name#*:} /dev/${name%:*}; done
mount -t debugfs none /sys/kernel/debug
mount -t tmpfs none /dev/shm
pagefold serve $dir --files /tmp/files --detach --export name=a,size=1G --export name=b,size=1G \\
  --export name=c,size=1G
ublk=$(pagefold attach a --via ublk $dir)
nbd=$(pagefold attach b --via nbd --connections 2 $dir)
loop=$(pagefold attach c --via loop $dir)
echo \"TEST_DEVS=($ublk $nbd $loop); TIMEOUT=8; DEVICE_ONLY=1\" >config
bash ./check -o /tmp/results $tests
find /tmp/results -name '*.bad' | while read -r bad; do echo \"$bad:\"; cat $bad; done
for device in $ublk $nbd $loop; do pagefold detach $device; done
pagefold stop $dir
echo checked
";

#[test]
#[ignore = "takes minutes, and a copy of blktests; make soak runs it"]
#[allow(clippy::print_stdout, reason = "the list is the result")]
fn blktests_pass_on_a_device_of_each_kind() {
    let test = "blktests_pass_on_a_device_of_each_kind";
    let Some(machine) = Machine::find(test) else { return };
    let Some(programs) = programs(test, PROGRAMS) else { return };
    let Some(blktests) = env::var_os("PAGEFOLD_BLKTESTS").map(PathBuf::from) else {
        return skip(test, "PAGEFOLD_BLKTESTS names no copy of blktests");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("blktests.tar");
    run(Command::new("tar")
        .arg("-C")
        .arg(&blktests)
        .arg("-cf")
        .arg(&archive)
        .args(["check", "common", "tests", "src"]));
    let pagefold = Path::new(env!("CARGO_BIN_EXE_pagefold"));
    let programs: Vec<_> = programs.iter().map(|path| &**path).chain([pagefold]).collect();
    let files = [("blktests.tar".to_owned(), archive)];
    let mut guest = machine.start_with(&programs, &files, &SCRIPT.replace("$tests", TESTS));
    let (mut passed, mut failed) = (0, Vec::new());
    while let Some(line) = guest.wait_for_either("block/", "checked") {
        println!("block/{line}");
        passed += usize::from(line.ends_with("[passed]"));
        failed.extend(line.ends_with("[failed]").then_some(line));
    }
    assert!(failed.is_empty() && passed >= 12, "{passed} passed; failed: {failed:#?}");
    guest.end();
}
