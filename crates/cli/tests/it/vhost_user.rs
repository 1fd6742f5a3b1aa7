//! Disks of a server for virtual machines: the sockets, and a guest under qemu.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::programs;
use pagefold_vhost_user::client::{Client, Options};

use crate::{
    guest::Machine,
    server::{Server, make_image, run},
};

/// Starts a server with the directory of its sockets.
fn start(args: &[&str]) -> (Server, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let sockets = folder.path().join("sockets");
    let path = sockets.to_str().expect("a plain path").to_owned();
    let all: Vec<_> = args.iter().copied().chain(["--vhost-user", &path]).collect();
    (Server::start(&all), sockets, folder)
}

fn client(socket: &Path) -> Client {
    client_with(socket, Options::default())
}

fn client_with(socket: &Path, options: Options) -> Client {
    wait_for("the socket", || socket.exists());
    Client::connect(socket, options).expect("a client")
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sockets come and go with disks, forks and snapshots, under their names.
#[test]
fn each_disk_has_a_socket_that_follows_it() {
    let (server, sockets, _folder) = start(&["--export", "name=a,size=1M", "--export", "name=b/%,size=1M"]);
    let socket = |name: &str| sockets.join(format!("{name}.sock"));
    let mut first = client(&socket("a"));
    wait_for("the socket", || socket("b%2F%25").exists());
    let mode = std::fs::metadata(socket("a")).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    first.queues[0].write(4096, &[7; 4096]).expect("a write");
    run(&mut server.ask(&["fork", "a", "c"]));
    run(&mut server.ask(&["snapshot", "a", "s"]));
    first.queues[0].write(4096, &[8; 4096]).expect("a write");
    for (name, content) in [("c", 7), ("a@s", 7)] {
        let mut other = client(&socket(name));
        assert_eq!(other.queues[0].read(4096, 4096).expect("a read"), [content; 4096], "{name}");
        let can_write = other.queues[0].write(0, &[1; 512]).is_ok();
        assert_eq!(can_write, name == "c", "{name}");
    }
    // A frontend is a client of its disk, and stays when the disk gets another name.
    let dropped = server.ask(&["drop", "a", "--snapshots"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&dropped.stderr).contains("1 client"), "{dropped:?}");
    run(&mut server.ask(&["rename", "a", "z"]));
    wait_for("the new name", || socket("z").exists() && socket("z@s").exists() && !socket("a").exists());
    assert_eq!(first.queues[0].read(4096, 4096).expect("a read"), [8; 4096]);
    run(&mut server.ask(&["resize", "z", "2M"]));
    first.wait_for_change().expect("a message");
    assert_eq!(first.size_bytes().expect("a size"), 2 << 20);
    first.queues[0].write((2 << 20) - 512, &[9; 512]).expect("a write");
    run(&mut server.ask(&["drop", "z", "--snapshots", "--force"]));
    wait_for("the socket's end", || !socket("z").exists() && !socket("z@s").exists());
    assert!(first.queues[0].read(0, 512).is_err(), "the disk was dropped");
    let (status, messages) = server.end(rustix::process::Signal::TERM);
    assert!(status.success(), "{messages}");
    assert_eq!(std::fs::read_dir(&sockets).expect("the directory").count(), 0, "sockets are left");
}

/// Frontends see only a pause in each of three take-overs, while requests of two queues are in flight.
#[test]
fn frontends_survive_take_overs() {
    let (mut server, sockets, _folder) = start(&["--export", "name=a,size=8M", "--export", "name=b,size=1M"]);
    let path = sockets.join("a.sock");
    let mut frontend = client_with(&path, Options { queues: 2, ..Options::default() });
    for round in 0..3_u8 {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let done = &done;
            for (number, queue) in frontend.queues.iter_mut().enumerate() {
                scope.spawn(move || {
                    let mut count = 0_u64;
                    while !done.load(SeqCst) {
                        let at = ((number as u64) << 22) + count % 1024 * 4096;
                        let data = [round ^ (count % 251) as u8; 4096];
                        queue.write(at, &data).expect("a write");
                        assert!(queue.read(at, 4096).expect("a read") == data, "round {round}");
                        count += 1;
                    }
                    assert!(count > 0);
                });
            }
            let said = server.take_over(&[]);
            println!("{}", said.lines().find(|line| line.contains("clients paused for")).expect("the line"));
            done.store(true, SeqCst);
        });
        run(&mut server.ask(&["resize", "a", &format!("{}M", 9 + round)]));
        frontend.wait_for_change().expect("a message");
        assert_eq!(frontend.size_bytes().expect("a size"), u64::from(9 + round) << 20);
    }
    // The sockets are continued, and belong to the last server.
    client(&sockets.join("b.sock")).queues[0].write(0, &[1; 512]).expect("a write");
    run(&mut server.ask(&["rename", "a", "z"]));
    wait_for("the new name", || sockets.join("z.sock").exists() && !path.exists());
    run(&mut server.ask(&["fork", "z", "c"]));
    let first = frontend.queues[0].read(0, 4096).expect("a read");
    assert_eq!(client(&sockets.join("c.sock")).queues[0].read(0, 4096).expect("a read"), first);
    let (status, messages) = server.end(rustix::process::Signal::TERM);
    assert!(status.success(), "{messages}");
    assert_eq!(std::fs::read_dir(&sockets).expect("the directory").count(), 0, "sockets are left");
}

/// The memory limit is reached, and writes wait until there is room.
#[test]
fn writes_beyond_the_limit_fail_or_wait() {
    // Pages that cannot be compressed.
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let data: Vec<u8> = (0..1 << 20).map(|_| next()).collect();
    for waits in [false, true] {
        let when_full = if waits { "wait" } else { "error" };
        let exports = ["--export", "name=a,size=64M", "--export", "name=b,size=64M"];
        let (server, sockets, _folder) =
            start(&[&exports[..], &["--memory-limit", "24M", "--when-full", when_full]].concat());
        let options = Options { most_bytes: 1 << 20, ..Options::default() };
        let [mut a, mut b] = ["a", "b"].map(|name| client_with(&sockets.join(format!("{name}.sock")), options));
        let most = if waits { 8 } else { 64 };
        let written = (0..most).take_while(|number| a.queues[0].write(number << 20, &data).is_ok()).count();
        assert!(if waits { written == 8 } else { (4..40).contains(&written) }, "{written}");
        if !waits {
            assert!(a.queues[0].read(0, 1 << 20).expect("a read") == data);
            continue;
        }
        let data = data.clone();
        let writer = thread::spawn(move || {
            (0..40_u64).for_each(|number| b.queues[0].write(number << 20, &data).expect("a write"));
        });
        wait_for("a write that waits", || server.figure("b", "waiting_requests") > 0);
        // The other disk goes on, and makes room.
        a.queues[0].read(0, 4096).expect("a read");
        run(&mut server.ask(&["limit", "512M"]));
        writer.join().expect("no panic");
    }
}

const SCRIPT: &str = "
set -e
cd /sys/block/vda
echo \"disk: $(cat size) $(cat serial) $(ls mq | wc -l)\"
mke2fs -F /dev/vda >/dev/null 2>&1
mount /dev/vda /root
(taskset 1 seq 1 100000 >/root/one) &
taskset 2 seq 100000 200000 >/root/two
wait
mkdir /root/gone && head -c 8000000 /dev/urandom >/root/gone/noise
sync
rm -r /root/gone && sync && fstrim /root
umount /root
echo 3 >/proc/sys/vm/drop_caches
mount /dev/vda /root
cat /root/one /root/two | sha256sum
umount /root
echo written
while [ $(cat size) = 131072 ]; do sleep 0.1; done
echo \"resized: $(cat size)\"
echo tail | dd of=/dev/vda bs=512 seek=262143 conv=fsync 2>/dev/null
";

/// What a guest writes through two queues is on the disk, and it sees a new size.
#[test]
fn a_guest_uses_a_disk_with_two_queues() {
    let test = "a_guest_uses_a_disk_with_two_queues";
    let Some(machine) = Machine::find(test) else { return };
    let Some([e2fsck, debugfs, nbdcopy]) = programs(test, ["e2fsck", "debugfs", "nbdcopy"]) else { return };
    let (server, sockets, folder) = start(&["--export", "name=root,size=64M"]);
    let mut guest = machine.start_vhost_user(&sockets.join("root.sock"), SCRIPT);
    assert_eq!(guest.wait_for("disk: "), "131072 root 2");
    guest.wait_for("written");
    let copy = |name: &str| {
        let copy = folder.path().join(name);
        run(Command::new(&nbdcopy).arg(server.uri("root")).arg(&copy));
        copy
    };
    let disk = copy("disk.img");
    run(Command::new(e2fsck).args(["-f", "-n"]).arg(&disk));
    let lines = |first: u32, last: u32| (first..=last).map(|number| format!("{number}\n")).collect::<String>();
    for (name, expected) in [("/one", lines(1, 100_000)), ("/two", lines(100_000, 200_000))] {
        let found = folder.path().join("found");
        run(Command::new(&debugfs).args(["-R", &format!("dump {name} {}", found.display())]).arg(&disk));
        assert!(std::fs::read_to_string(&found).expect("a file") == expected, "{name} differs");
    }
    // Trimmed pages take no memory.
    let stored_bytes = server.figure("root", "compr_data_size");
    assert!(stored_bytes < 4 << 20, "{stored_bytes}");
    run(&mut server.ask(&["resize", "root", "128M"]));
    assert_eq!(guest.wait_for("resized: "), "262144");
    guest.end();
    let disk = std::fs::read(copy("resized.img")).expect("a copy");
    assert_eq!((disk.len(), &disk[(128 << 20) - 512..][..5]), (128 << 20, &b"tail\n"[..]));
}

const SUMS: &str = "
(while :; do echo 3 >/proc/sys/vm/drop_caches; echo \"sum: $(sha256sum </dev/vda)\"; done) &
read -r line
kill $!
";

/// A guest that reads a base continues when the server is killed and another takes its place: qemu
/// hands over the log of the requests that were in flight.
#[test]
fn a_guest_goes_on_after_its_server_was_killed() {
    let test = "a_guest_goes_on_after_its_server_was_killed";
    let Some(machine) = Machine::find(test) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("base.img");
    make_image(&image, 16);
    let image = image.to_str().expect("a plain path");
    let (mut server, sockets, _folder) = start(&[image]);
    wait_for("the socket", || sockets.join("base.sock").exists());
    let mut guest = machine.start_vhost_user(&sockets.join("base.sock"), SUMS);
    let expected = guest.wait_for("sum: ");
    let sum = run(Command::new("sha256sum").stdin(std::fs::File::open(image).expect("the image")));
    assert_eq!(expected, sum.trim());
    for _ in 0..2 {
        server.kill();
        server.start_again(&[image, "--vhost-user", sockets.to_str().expect("a plain path")]);
        // The first of them began with the former server.
        for _ in 0..3 {
            assert_eq!(guest.wait_for("sum: "), expected);
        }
    }
    guest.say("stop");
    guest.end();
}

/// A disk whose base must be read from a file.
#[test]
fn a_fork_of_a_base_is_read_and_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("base.img");
    make_image(&image, 16);
    let (server, sockets, _folder) = start(&[image.to_str().expect("a plain path")]);
    run(&mut server.ask(&["fork", "base", "job"]));
    let content = std::fs::read(&image).expect("the image");
    let mut job = client(&sockets.join("job.sock"));
    for at in (0..content.len()).step_by(64 << 10) {
        let data = job.queues[0].read(at as u64, 64 << 10).expect("a read");
        assert!(data == content[at..at + (64 << 10)], "other data at {at}");
    }
    job.queues[0].write(12288, &[1; 8192]).expect("a write");
    assert_eq!(job.queues[0].read(12288, 8192).expect("a read"), [1; 8192]);
}
