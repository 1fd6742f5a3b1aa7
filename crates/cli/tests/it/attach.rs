//! Disks as block devices of a kernel.

use std::{fs::OpenOptions, os::unix::fs::FileExt, path::Path, time::Duration};

use pagefold_serve::Client;
use pagefold_testing::skip_for_good;
use rustix::process::geteuid;
use sha2::Digest;

use crate::{
    files::Place,
    guest::Machine,
    server::{Server, pagefold, run},
};

/// A server and its devices in a guest, whose kernel has NBD.
const SCRIPT: &str = "
export PATH=/programs:/bin HOME=/tmp
set -e
pagefold serve --dir /tmp/server --export name=job,size=64M --detach
dev=$(pagefold attach job --dir /tmp/server)
echo \"device: $dev\"
cat /sys/block/nbd0/backend
echo \"size: $(cat /sys/block/nbd0/size)\"
seq 30000 | dd of=$dev bs=4k conv=fsync 2>/dev/null
if pagefold attach job --dir /tmp/server; then exit 9; else echo 'twice: refused'; fi
if pagefold drop job --dir /tmp/server; then exit 9; else echo 'drop: refused'; fi
pagefold rename job other --dir /tmp/server
pagefold add job --size 1M --dir /tmp/server
if pagefold attach other --dir /tmp/server; then exit 9; else echo 'renamed: refused'; fi
if pagefold detach job --dir /tmp/server; then exit 9; else echo 'namesake: refused'; fi
pagefold drop job --dir /tmp/server
pagefold rename other job --dir /tmp/server
pagefold detach job --dir /tmp/server
if pagefold detach job --dir /tmp/server; then exit 9; else echo 'not attached: refused'; fi
pagefold fork job fork --dir /tmp/server
dev=$(pagefold attach fork --via nbd --connections 3 --timeout 30 --dir /tmp/server)
echo \"sum: $(head -n 30000 $dev | sha256sum)\"
pagefold detach $dev
pagefold snapshot fork before --dir /tmp/server
dev=$(pagefold attach fork@before --dir /tmp/server)
if echo x >$dev; then exit 9; else echo 'written: refused'; fi
pagefold detach $dev
echo \"clients: $(pagefold disks --dir /tmp/server --json | grep -c '\"clients\":0')\"
pagefold stop --dir /tmp/server
";

#[test]
fn a_kernel_with_nbd_gets_devices() {
    let test = "a_kernel_with_nbd_gets_devices";
    let Some(machine) = Machine::find(test) else { return };
    let mut guest = machine.start_with(Path::new(env!("CARGO_BIN_EXE_pagefold")), SCRIPT);
    assert_eq!(guest.wait_for("device: "), "/dev/nbd0");
    let identity = guest.wait_for("pagefold ");
    assert!(identity.contains("-0 nbd+unix:///job?socket=/tmp/server/") && identity.ends_with(".sock"), "{identity}");
    assert_eq!(guest.wait_for("size: "), (64 << 11).to_string());
    guest.wait_for("twice: refused");
    guest.wait_for("drop: refused");
    guest.wait_for("renamed: refused");
    guest.wait_for("namesake: refused");
    guest.wait_for("not attached: refused");
    let numbers: String = (1..=30000).map(|number| format!("{number}\n")).collect();
    let sum: String = sha2::Sha256::digest(numbers).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(guest.wait_for("sum: "), format!("{sum}  -"));
    guest.wait_for("written: refused");
    guest.end();
}

/// The file of a disk as a loop device, on this machine.
#[test]
fn a_disk_with_a_file_gets_a_loop_device() {
    let test = "a_disk_with_a_file_gets_a_loop_device";
    if !geteuid().is_root() {
        return skip_for_good(test, "only root can make block devices");
    }
    let Some(place) = Place::new(test) else { return };
    let server = Server::start(&["--size", "16M", "--name", "disk", "--files", place.text()]);
    let attach = || pagefold().args(["attach", "disk", "--via", "loop", "--control"]).arg(server.control()).output();
    let attached = attach().expect("pagefold starts");
    let message = String::from_utf8_lossy(&attached.stderr);
    if message.contains("loop-control") {
        return skip_for_good(test, &format!("no loop devices: {message}"));
    }
    assert!(attached.status.success(), "{message}");
    let device = String::from_utf8(attached.stdout).expect("a path").trim().to_owned();
    assert!(device.starts_with("/dev/loop"), "{device}");
    let open = || OpenOptions::new().read(true).write(true).open(&device).expect("a device");
    let written = open();
    written.write_all_at(&[5; 8192], 1 << 20).expect("a write");
    written.sync_all().expect("a flush");
    drop(written);
    let mut client = Client::unix(&server.socket(), "disk", Duration::from_secs(60)).expect("a server");
    let mut bytes = [0; 8192];
    client.read(1 << 20, &mut bytes).expect("a read");
    assert!(bytes == [5; 8192]);
    let again = attach().expect("pagefold starts");
    let message = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && message.contains(&format!("is attached as {device}")), "{message}");
    // The device stays the disk's own when the disk is renamed and another one gets its name.
    run(&mut server.ask(&["rename", "disk", "other"]));
    run(&mut server.ask(&["add", "disk", "--size", "16M"]));
    let ask = |args: &[&str]| pagefold().args(args).arg("--control").arg(server.control()).output();
    let message = |output: std::io::Result<std::process::Output>| {
        let output = output.expect("pagefold starts");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = message(ask(&["attach", "other", "--via", "loop"]));
    assert!(said.contains(&format!("'other' is attached as {device}")), "{said}");
    let said = message(ask(&["detach", "disk"]));
    assert!(said.contains("'disk' is not attached"), "{said}");
    run(&mut server.ask(&["detach", "other"]));
    let listed = std::fs::read_dir("/sys/block")
        .expect("/sys")
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("loop/backing_file")).ok());
    assert!(!listed.into_iter().any(|file| file.starts_with(place.text())), "a device is left");
}
