//! Limits that are reached, and raised.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::programs;
use rustix::process::Signal;
use serde_json::json;

use crate::{
    guest::Machine,
    server::{Ended, Server, make_image, run, run_to_fail, wait},
};

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come");
        thread::sleep(Duration::from_millis(20));
    }
}

fn waits(server: &Server) -> bool {
    server.total("waiting_requests") > 0
}

/// Starts a server whose disk `a` cannot hold the image in its directory, and an nbdcopy that waits
/// while it writes the image there.
fn start(nbdcopy: &std::path::Path, args: &[&str]) -> (Server, Ended) {
    let full = ["--memory-limit", "8M", "--when-full", "wait", "--export", "name=a,size=32M"];
    let server = Server::start(&[&full[..], args].concat());
    let image = server.folder().join("image");
    make_image(&image, 32);
    let copy = Command::new(nbdcopy).arg(&image).arg(server.uri("a")).stderr(Stdio::null()).spawn().expect("nbdcopy");
    wait_until("a waiting write", || waits(&server));
    (server, Ended(copy))
}

#[test]
fn a_client_goes_on_when_the_limit_is_raised() {
    let Some([nbdcopy]) = programs("a_client_goes_on_when_the_limit_is_raised", ["nbdcopy"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let logged = || fs::read_to_string(&log).expect("a log");
    let (server, mut copy) = start(&nbdcopy, &["--log-file", log.to_str().expect("a plain path")]);
    assert!(run(&mut server.ask(&["stat"])).contains("for room within the limit"));
    wait_until("a line about waiting", || logged().contains("disk 'a': writes wait for room"));
    assert!(copy.0.try_wait().expect("a child").is_none(), "nbdcopy did not wait");
    run(&mut server.ask(&["limit", "none"]));
    assert!(wait(&mut copy.0).success());
    let back = server.folder().join("back");
    run(Command::new(nbdcopy).arg(server.uri("a")).arg(&back));
    let image = server.folder().join("image");
    assert!(fs::read(back).expect("a file") == fs::read(image).expect("a file"), "other bytes");
    assert_eq!(server.total("waiting_requests"), 0);
    wait_until("a line about its end", || logged().contains("disk 'a': writes no longer wait"));
    assert!(server.end(Signal::TERM).0.success());
    let messages = logged();
    assert_eq!(messages.matches("disk 'a': writes wait for room").count(), 1, "{messages}");
    assert_eq!(messages.matches("disk 'a': writes no longer wait").count(), 1, "{messages}");
}

#[test]
fn no_client_waits_for_one_that_was_killed() {
    let Some([nbdcopy]) = programs("no_client_waits_for_one_that_was_killed", ["nbdcopy"]) else { return };
    let (server, copy) = start(&nbdcopy, &[]);
    drop(copy);
    wait_until("the end of waiting", || !waits(&server));
    assert!(server.end(Signal::TERM).0.success());
}

#[test]
fn a_client_of_a_disk_that_is_removed_waits_no_longer() {
    let Some([nbdcopy]) = programs("a_client_of_a_disk_that_is_removed_waits_no_longer", ["nbdcopy"]) else { return };
    let (server, mut copy) = start(&nbdcopy, &[]);
    run(&mut server.ask(&["remove", "a", "--force"]));
    assert!(!wait(&mut copy.0).success());
    assert_eq!(server.total("waiting_requests"), 0);
    wait_until("the end of the disk", || server.total("orig_data_size") == 0);
}

#[test]
fn a_server_ends_while_clients_wait() {
    let Some([nbdcopy]) = programs("a_server_ends_while_clients_wait", ["nbdcopy"]) else { return };
    let (server, mut copy) = start(&nbdcopy, &[]);
    let begin = Instant::now();
    let (status, _) = server.end(Signal::TERM);
    assert!(status.success(), "{status}");
    assert!(begin.elapsed() < Duration::from_secs(4), "it took {:?}", begin.elapsed());
    assert!(!wait(&mut copy.0).success());
}

#[test]
fn a_wrong_word_is_refused() {
    let mut command = crate::server::pagefold();
    let line = run_to_fail(command.args(["serve", "--size", "1M", "--when-full", "stop"]));
    assert!(line.contains("error, wait"), "{line}");
}

/// Writes more than the limit allows, then reads it back.
const FILL: &str = "
set -e
dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
echo writing
dd if=/tmp/data of=/dev/vda bs=1M oflag=direct
echo written
dd if=/dev/vda bs=1M count=16 iflag=direct 2>/dev/null | cmp - /tmp/data
echo \"read: $(sha256sum </tmp/data)\"
echo \"errors: $(dmesg | grep -c 'I/O error')\"
read until_the_test_has_looked
";

/// Fills a file system, unmounts it, and reads the whole disk.
const FILL_FILES: &str = "
set -e
dd if=/dev/urandom of=/tmp/data bs=1M count=12 2>/dev/null
mke2fs -F /dev/vda >/dev/null
mkdir /mnt
mount -t ext4 /dev/vda /mnt
echo writing
for number in 1 2; do cp /tmp/data /mnt/$number; done
sync
echo written
umount /mnt
mount -t ext4 /dev/vda /mnt
for number in 1 2; do cmp /mnt/$number /tmp/data; done
umount /mnt
echo \"read: $(dd if=/dev/vda bs=1M iflag=direct 2>/dev/null | sha256sum)\"
echo \"errors: $(dmesg | grep -c 'I/O error')\"
read until_the_test_has_looked
";

/// The guest stores what it has read at the beginning of the server's disk.
fn assert_stored(server: &Server, len: &str, sum: &str) {
    let Some([nbdcopy]) = programs("comparing what a guest wrote", ["nbdcopy"]) else { return };
    let command = "\"$0\" \"$1\" - | head -c \"$2\" | sha256sum";
    let found = run(Command::new("sh").args(["-c", command]).arg(nbdcopy).arg(server.uri("guest")).arg(len));
    assert_eq!(found.trim(), sum);
}

/// The machine stops at the limit and can continue once it was raised. `werror=enospc` is qemu's
/// default.
#[test]
fn a_guest_that_was_stopped_at_the_limit_goes_on() {
    let Some(machine) = Machine::find("a_guest_that_was_stopped_at_the_limit_goes_on") else { return };
    let server = Server::start(&["--memory-limit", "12M", "--export", "name=guest,size=64M"]);
    let mut guest = machine.start(&[format!("file={},werror=enospc", server.uri("guest"))], FILL);
    guest.wait_for("writing");
    let event = guest.wait_for_event("BLOCK_IO_ERROR");
    assert_eq!(event["data"]["nospace"], true, "{event}");
    assert_eq!(event["data"]["action"], "stop", "{event}");
    guest.wait_for_event("STOP");
    assert_eq!(guest.qmp("query-status", &json!({}))["status"], "io-error");
    run(&mut server.ask(&["limit", "64M"]));
    guest.qmp("cont", &json!({}));
    guest.wait_for("written");
    let sum = guest.wait_for("read: ");
    assert_eq!(guest.wait_for("errors: "), "0");
    assert_stored(&server, "16M", &sum);
    guest.say("end");
    guest.end();
}

/// With `werror=report`, the guest sees that its disk failed, and nothing stops.
#[test]
fn a_guest_may_be_notified_of_the_limit() {
    let Some(machine) = Machine::find("a_guest_may_be_notified_of_the_limit") else { return };
    let server = Server::start(&["--memory-limit", "12M", "--export", "name=guest,size=64M"]);
    let script = "dd if=/dev/urandom of=/dev/vda bs=1M count=16 oflag=direct || true";
    let mut guest = machine.start(&[format!("file={},werror=report", server.uri("guest"))], script);
    let error = guest.wait_for("dd: error writing");
    assert!(error.ends_with("Input/output error"), "{error}");
    guest.end();
}

/// The guest notices only the delay.
#[test]
fn a_guest_waits_until_the_limit_is_raised() {
    let Some(machine) = Machine::find("a_guest_waits_until_the_limit_is_raised") else { return };
    let server = Server::start(&["--memory-limit", "12M", "--when-full", "wait", "--export", "name=guest,size=32M"]);
    let mut guest = machine.start(&[format!("file={}", server.uri("guest"))], FILL_FILES);
    guest.wait_for("writing");
    wait_until("a waiting write", || waits(&server));
    // In this time, a guest that noticed an error would report it or stop, and one that had room
    // would write.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(guest.qmp("query-status", &json!({}))["status"], "running");
    run(&mut server.ask(&["limit", "20M"]));
    thread::sleep(Duration::from_secs(1));
    assert!(waits(&server), "12 MiB and 12 MiB have room in 20 MiB");
    run(&mut server.ask(&["limit", "none"]));
    guest.wait_for("written");
    let sum = guest.wait_for("read: ");
    assert_eq!(guest.wait_for("errors: "), "0");
    assert_stored(&server, "32M", &sum);
    assert!(!guest.has_event("BLOCK_IO_ERROR") && !guest.has_event("STOP"));
    guest.say("end");
    guest.end();
}

/// Waiting writes do not prevent the guest's own discards from making room.
#[test]
fn a_guest_makes_room_for_its_own_writes() {
    let Some(machine) = Machine::find("a_guest_makes_room_for_its_own_writes") else { return };
    let server = Server::start(&["--when-full", "wait", "--export", "name=guest,size=64M,limit=12M"]);
    let script = "
set -e
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
dd if=/tmp/data of=/dev/vda bs=1M oflag=direct 2>/dev/null
(dd if=/tmp/data of=/dev/vda bs=1M seek=32 oflag=direct 2>/dev/null; echo written) &
echo writing
read until_it_waits
dd if=/dev/vda of=/dev/null bs=64K count=1 iflag=direct 2>/dev/null
echo discarding
blkdiscard -o 0 -l 8388608 /dev/vda
wait
dd if=/dev/vda bs=1M skip=32 count=8 iflag=direct 2>/dev/null | cmp - /tmp/data
";
    let mut guest = machine.start(&[format!("file={},discard=unmap", server.uri("guest"))], script);
    guest.wait_for("writing");
    wait_until("a waiting write", || waits(&server));
    guest.say("go on");
    guest.wait_for("discarding");
    guest.wait_for("written");
    guest.end();
}
