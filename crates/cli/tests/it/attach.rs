//! Disks as block devices of a kernel.

use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use pagefold_control::{BindSpare, Client as Control, Command, DiskRecord, SpareRecord};
use pagefold_serve::Client;
use pagefold_testing::{programs, skip, skip_for_good};
use rustix::process::geteuid;
use sha2::Digest;

use crate::{
    files::Place,
    guest::Machine,
    server::{Server, pagefold, run},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server and its devices in a guest.
const BEGIN: &str = "
export PATH=/programs:/bin HOME=/tmp
set -e
dir='--dir /tmp/server'
refused() { if \"$@\"; then exit 9; else echo \"refused: $*\"; fi; }
";

const NBD: &str = "
seq 100000 >/tmp/base.raw
pagefold pack /tmp/base.raw -o /tmp/base.erofs
pagefold serve $dir --export name=job,size=64M --detach /tmp/base.erofs
dev=$(pagefold attach job --via nbd $dir)
echo \"device: $dev\"
cat /sys/block/nbd0/backend
echo \"size: $(cat /sys/block/nbd0/size)\"
seq 30000 | dd of=$dev bs=4k conv=fsync 2>/dev/null
refused pagefold attach job $dir
refused pagefold drop job $dir
pagefold rename job other $dir
pagefold add job --size 1M $dir
refused pagefold attach other $dir
refused pagefold detach job $dir
pagefold drop job $dir
pagefold rename other job $dir
pagefold detach job $dir
refused pagefold detach job $dir
pagefold fork job fork $dir
dev=$(pagefold attach fork --via nbd --connections 3 --timeout 30 $dir)
echo \"sum: $(head -n 30000 $dev | sha256sum)\"
pagefold detach $dev
pagefold snapshot fork before $dir
dev=$(pagefold attach fork@before --via nbd $dir)
refused dd if=/dev/zero of=$dev bs=512 count=1
pagefold detach $dev
pagefold attach --spare 2 job $dir
pagefold attach --spare 2 job $dir
spare=$(pagefold attach fork $dir)
grep -q '^pagefold spare ' /sys/block/${spare#/dev/}/backend
echo \"sum: $(head -n 30000 $spare | sha256sum)\"
yes | dd of=$spare bs=4k count=100 conv=fsync 2>/dev/null
refused pagefold attach fork $dir
refused pagefold drop fork --snapshots $dir
pagefold detach fork $dir
while ! pagefold drop fork --snapshots $dir; do sleep 1; done
pagefold fork job again $dir
spare=$(pagefold attach again $dir)
grep -q '^pagefold spare ' /sys/block/${spare#/dev/}/backend
echo \"sum: $(head -n 30000 $spare | sha256sum)\"
pagefold detach again $dir
dev=$(pagefold attach base --via nbd $dir)
(pagefold pack --format raw $dev -o /tmp/base.erofs 2>&1 || true) | sed 's/^/packed: /'
pagefold detach $dev
pagefold stop $dir
";

const UBLK: &str = "
if [ ! -e /dev/ublk-control ]; then echo 'no ublk'; exit 0; fi
seq 400000 | head -c 2097152 >/tmp/base.raw
pagefold serve $dir --export name=job,size=64M --detach /tmp/base.raw
dev=$(pagefold attach job $dir)
echo \"device: $dev\"
cd /sys/block/${dev#/dev/}/queue
echo \"queue: $(cat ../size fua write_cache discard_max_bytes max_sectors_kb | tr '\\n' ' ')\"
cd /
seq 30000 | dd of=$dev bs=4k conv=fsync 2>/dev/null
echo \"sum: $(head -n 30000 $dev | sha256sum)\"
refused pagefold attach job $dir
refused pagefold drop job $dir
/programs/blkdiscard -o 4096 -l 4096 $dev
/programs/blkdiscard -z -o 65536 -l 1048576 $dev
dd if=$dev bs=4k skip=1 count=1 iflag=direct 2>/dev/null | tr -d '\\000' | wc -c | sed 's/^/left: /'
dd if=$dev bs=64k skip=1 count=16 iflag=direct 2>/dev/null | tr -d '\\000' | wc -c | sed 's/^/zeros: /'
pagefold rename job renamed $dir
echo \"clients: $(pagefold disks $dir --json | grep -o '\"device\":\"/dev/ublkb0\"')\"
pagefold drop renamed --force $dir
refused dd if=$dev of=/dev/null bs=4k count=1 iflag=direct
pagefold detach $dev
refused test -e /dev/ublkb0
base=$(pagefold attach base --connections 2 $dir)
refused dd if=/dev/zero of=$base bs=512 count=1
pagefold fork base lost $dir
lost=$(pagefold attach lost $dir)
kill -9 $(head -n 1 /tmp/server/lock)
while [ -e $lost ]; do sleep 1; done
(dd if=$base bs=4k skip=7 count=1 iflag=direct 2>/dev/null | sha256sum >/tmp/recovered) &
pagefold serve $dir --detach /tmp/base.raw
echo \"again: $(pagefold attach base $dir)\"
wait
sed 's/^/recovered: /' /tmp/recovered
dd if=/tmp/base.raw bs=4k skip=7 count=1 2>/dev/null | sha256sum | sed 's/^/expected: /'
cmp $base /tmp/base.raw
refused test -e /dev/ublkc${lost#/dev/ublkb}
pagefold detach base $dir
refused pagefold detach $base
pagefold stop $dir
";

/// Devices of each kind whose disk is full, while the kernel still has data for them, are detached. What
/// was written before is there.
const FULL: &str = "
ways=nbd
if [ -e /dev/ublk-control ]; then ways='ublk nbd'; fi
full() {
  pagefold serve $dir $2 --memory-limit 16M --when-full wait --export name=full,size=32M --detach
  for way in $1; do
    dev=$(pagefold attach full --via $way $dir)
    seq 30000 | dd of=$dev bs=4k conv=fsync 2>/dev/null
    (dd if=/dev/urandom of=$dev bs=64k seek=16 conv=fsync 2>/dev/null || true) &
    while ! pagefold stat $dir --json | grep -q 'waiting_requests\",\"value\":[1-9]'; do sleep 1; done
    echo \"full: $way\"
    pagefold detach full $dir
    wait
    dev=$(pagefold attach full --via nbd $dir)
    echo \"$way: $(head -n 30000 $dev | sha256sum)\"
    pagefold detach full $dir
    pagefold reset full --force $dir
  done
  pagefold stop $dir
}
full loop '--files /tmp/files'
full \"$ways\" ''
";

/// A server ends while its devices are busy. The next one recovers that of a base, whose reader sees
/// nothing of it.
const BUSY: &str = "
if [ ! -e /dev/ublk-control ]; then echo 'no ublk'; exit 0; fi
seq 400000 | head -c 2097152 >/tmp/base.raw
pagefold serve $dir --export name=job,size=64M --detach /tmp/base.raw
lost=$(pagefold attach job --connections 2 $dir)
base=$(pagefold attach base --connections 2 $dir)
for number in 1 2; do
  (while dd if=/dev/zero of=$lost bs=4k count=500 oflag=direct 2>/dev/null; do :; done) &
done
(for number in 1 2 3 4 5 6; do dd if=$base bs=4k iflag=direct 2>/dev/null; done | sha256sum >/tmp/read) &
sleep 1
echo 'busy'
pagefold stop $dir
echo 'stopped'
pagefold serve $dir --detach /tmp/base.raw
pagefold attach base $dir
wait
for number in 1 2 3 4 5 6; do cat /tmp/base.raw; done | sha256sum | cmp - /tmp/read
pagefold detach base $dir
pagefold stop $dir
echo \"faults: $(dmesg | grep -c -e BUG: -e Oops -e WARNING:)\"
";

const VSOCK: &str = "
pagefold serve $dir --export name=job,size=64M --vsock 4711 --log debug --log-file /tmp/log --detach
echo \"vsock: $(nbdinfo --size nbd+vsock://1:4711/job)\"
grep 'connected: disk' /tmp/log
pagefold stop $dir
";

#[test]
fn a_kernel_gives_devices_by_nbd_and_by_ublk() {
    let test = "a_kernel_gives_devices_by_nbd_and_by_ublk";
    let Some(machine) = Machine::find(test) else { return };
    let Some([nbdinfo, blkdiscard]) = programs(test, ["nbdinfo", "blkdiscard"]) else { return };
    let numbers: String = (1..=30000).map(|number| format!("{number}\n")).collect();
    let sum: String = sha2::Sha256::digest(numbers).iter().map(|byte| format!("{byte:02x}")).collect();
    let sum = format!("{sum}  -");
    let pagefold = Path::new(env!("CARGO_BIN_EXE_pagefold"));
    let mut guest = machine.start_with(&[pagefold, &nbdinfo, &blkdiscard], &[], &[BEGIN, NBD, VSOCK, UBLK].concat());
    assert_eq!(guest.wait_for("device: "), "/dev/nbd0");
    let identity = guest.wait_for("pagefold ");
    assert!(identity.contains(" nbd+unix:///job?socket=/tmp/server/") && identity.ends_with(".sock"), "{identity}");
    assert_eq!(guest.wait_for("size: "), (64 << 11).to_string());
    guest.wait_for("refused: pagefold attach job");
    guest.wait_for("refused: pagefold drop job");
    guest.wait_for("refused: pagefold attach other");
    guest.wait_for("refused: pagefold detach job");
    guest.wait_for("refused: pagefold detach job");
    assert_eq!(guest.wait_for("sum: "), sum);
    guest.wait_for("refused: dd ");
    guest.wait_for("pagefold: connected 2 devices; 2 wait for disks of 64 MiB");
    guest.wait_for("pagefold: connected 0 devices; 2 wait for disks of 64 MiB");
    assert_eq!(guest.wait_for("sum: "), sum, "a spare device has the disk's data");
    guest.wait_for("refused: pagefold attach fork");
    guest.wait_for("refused: pagefold drop fork");
    assert_eq!(guest.wait_for("sum: "), sum, "the next spare device has those of the next disk");
    let packed = guest.wait_for("packed: ");
    assert!(packed.contains("is open in another program"), "the image below a device is not replaced: {packed}");

    assert_eq!(guest.wait_for("vsock: "), (64 << 20).to_string());

    let device = guest.wait_for_either("device: ", "no ublk");
    let Some(device) = device else {
        guest.end();
        return skip(test, "the kernel in target/guest has no ublk: scripts/guest could not fetch that of backports");
    };
    assert_eq!(device, "/dev/ublkb0");
    assert_eq!(guest.wait_for("queue: "), format!("{} 1 write back {} 128", 64 << 11, 1 << 30));
    assert_eq!(guest.wait_for("sum: "), sum);
    guest.wait_for("refused: pagefold attach job");
    guest.wait_for("refused: pagefold drop job");
    assert_eq!(guest.wait_for("left: "), "0", "discarded");
    assert_eq!(guest.wait_for("zeros: "), "0");
    assert_eq!(guest.wait_for("clients: "), "\"device\":\"/dev/ublkb0\"", "a device follows the disk's name");
    guest.wait_for("refused: dd ");
    guest.wait_for("refused: test -e /dev/ublkb0");
    guest.wait_for("refused: dd ");
    assert_eq!(guest.wait_for("again: "), "/dev/ublkb0");
    let recovered = guest.wait_for("recovered: ");
    assert_eq!(guest.wait_for("expected: "), recovered);
    guest.wait_for("refused: test -e /dev/ublkc1");
    guest.wait_for("refused: pagefold detach /dev/ublkb0");
    guest.end();
}

#[test]
fn a_device_ends_although_its_disk_is_full_or_it_is_busy() {
    let test = "a_device_ends_although_its_disk_is_full_or_it_is_busy";
    let Some(machine) = Machine::find(test) else { return };
    let numbers: String = (1..=30000).map(|number| format!("{number}\n")).collect();
    let sum: String = sha2::Sha256::digest(numbers).iter().map(|byte| format!("{byte:02x}")).collect();
    let pagefold = Path::new(env!("CARGO_BIN_EXE_pagefold"));
    let mut guest = machine.start_with(&[pagefold], &[], &[BEGIN, FULL, BUSY].concat());
    loop {
        let way = guest.wait_for("full: ");
        let found = guest.wait_for(&format!("{way}: "));
        assert_eq!(found, format!("{sum}  -"), "what was there before is as it was");
        if way == "nbd" {
            break;
        }
    }
    let Some(_) = guest.wait_for_either("busy", "no ublk") else {
        guest.end();
        return skip(test, "the kernel in target/guest has no ublk: scripts/guest could not fetch that of backports");
    };
    guest.wait_for("stopped");
    assert_eq!(guest.wait_for("faults: "), "0", "the kernel is sound");
    guest.end();
}

/// Connections of this process stand for those of the kernel's client.
#[test]
fn a_disk_has_one_spare_device_and_its_quota() {
    let server = Server::start(&["--size", "16M", "--name", "disk"]);
    run(&mut server.ask(&["add", "other", "--size", "16M", "--connections", "1"]));
    let mut control = Control::connect(&server.control(), PATIENCE).expect("a server");
    let connect = |export: &str| Client::unix(&server.socket(), export, PATIENCE);
    let mut spare = || {
        let SpareRecord { export } = control.call(&Command::Spare { size_bytes: 16 << 20 }).expect("an export");
        let client = connect(&export).expect("a connection");
        (export, client)
    };
    let ((first, client), (second, _other)) = (spare(), spare());
    let mut bind = |export: &str, name: &str, device: &str| -> Result<DiskRecord, _> {
        let (export, name, device) = (export.to_owned(), name.to_owned(), device.to_owned());
        control.call(&Command::BindSpare(BindSpare { export, name, device }))
    };
    let bound = bind(&first, "disk", "/dev/nbd1000").expect("a disk");
    assert_eq!(bound.device.as_deref(), Some("/dev/nbd1000"));
    let said = bind(&second, "disk", "/dev/nbd1001").expect_err("a second device").to_string();
    assert!(said.contains("the disk is already served as /dev/nbd1000"), "{said}");
    let said = bind(&first, "other", "/dev/nbd1000").expect_err("a second disk").to_string();
    assert!(said.contains("the device has a disk already"), "{said}");
    drop(connect(&first).expect("the quota is not that of the other disk"));
    run(&mut server.ask(&["quota", "disk", "--connections", "1"]));
    wait_until(|| connect(&first).is_err());
    // A device that is gone is not the disk's any more.
    drop(client);
    wait_until(|| bind(&second, "disk", "/dev/nbd1001").is_ok());
    // Nor is one whose disk is gone a device.
    run(&mut server.ask(&["drop", "disk", "--force"]));
    wait_until(|| connect(&second).is_err());
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it is not so");
        std::thread::sleep(Duration::from_millis(10));
    }
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
    let mut client = Client::unix(&server.socket(), "disk", PATIENCE).expect("a server");
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
    // It goes when the last user has closed it, and other programs look at all devices.
    let is_left = || {
        let files = std::fs::read_dir("/sys/block")
            .expect("/sys")
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("loop/backing_file")).ok());
        files.into_iter().any(|file| file.starts_with(place.text()))
    };
    for _ in 0..3000 {
        if !is_left() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a device is left");
}
