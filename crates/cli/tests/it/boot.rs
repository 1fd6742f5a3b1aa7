//! A guest whose root file system is a fork of a packed disk.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use pagefold_testing::{copy_program, programs};

use crate::{
    files::Place,
    guest::{Guest, Machine},
    server::{Server, pagefold, run},
    tls::Secure,
    ways::wait_for,
};

/// The disk's `/sbin/init`: runs each line that the test sends.
const INIT: &str = "#!/bin/sh
export PATH=/bin
exec </dev/ttyS0 >/dev/ttyS0 2>&1
echo ready
while read -r line; do eval \"$line\"; done
sync
mount -o remount,ro / && echo 'script ended: 0'
poweroff -f
";

/// The guest's changes before the snapshot.
const FIRST: &str =
    "mkdir /work; seq 20000 >/work/kept; rm -r /src/codec; echo first >/src/erofs/lib.rs; sync; echo changed";

/// Appends a line to a file on the disk, then writes one to the console, forever.
const LOG: &str =
    "(n=0; while :; do n=$((n + 1)); echo $n >>/work/log; sync /work/log; echo \"logged $n\"; done) & echo logging";

/// The guest's changes after the snapshot, in the same places and in others.
const LATER: &str = "seq 30000 50000 >/work/kept; seq 9 >/work/later; rm -r /src/store; echo later >/src/erofs/lib.rs; \
                     mkdir /src/codec; sync; echo changed";

/// Shows what the guest finds of both.
const LOOK: &str = "echo \"kept: $(sha256sum </work/kept)\"; echo \"work: $(ls /work | tr '\\n' ' ')\"; \
                    echo \"src: $(ls /src | tr '\\n' ' ')\"; echo \"log: $(tail -n 1 /work/log)\"";

struct Tools {
    mkfs: PathBuf,
    e2fsck: PathBuf,
    dumpe2fs: PathBuf,
    debugfs: PathBuf,
    nbdcopy: PathBuf,
}

impl Tools {
    fn find(test: &str) -> Option<Self> {
        let [mkfs, e2fsck, dumpe2fs, debugfs, nbdcopy] =
            programs(test, ["mkfs.ext4", "e2fsck", "dumpe2fs", "debugfs", "nbdcopy"])?;
        Some(Self { mkfs, e2fsck, dumpe2fs, debugfs, nbdcopy })
    }

    /// Copies the current content of a disk to a file.
    fn copy(&self, server: &Server, disk: &str, name: &str) -> PathBuf {
        let copy = server.folder().join(name);
        run(Command::new(&self.nbdcopy).arg(server.uri(disk)).arg(&copy));
        copy
    }

    /// The file system, copied while in use, needs only a replay of its journal.
    fn check_in_use(&self, disk: &Path) {
        let features = run(Command::new(&self.dumpe2fs).arg("-h").arg(disk));
        assert!(features.contains("needs_recovery"), "{}: {features}", disk.display());
        run(Command::new(&self.e2fsck).args(["-E", "journal_only", "-y"]).arg(disk));
        self.check(disk);
    }

    fn check(&self, disk: &Path) {
        run(Command::new(&self.e2fsck).args(["-f", "-n"]).arg(disk));
    }

    /// Extracts a directory from a file system.
    fn extract(&self, disk: &Path, folder: &str, to: &Path) {
        fs::create_dir_all(to).expect("a folder");
        run(Command::new(&self.debugfs).args(["-R", &format!("rdump {folder} {}", text(to))]).arg(disk));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Copies programs' sources, one directory per crate.
fn make_sources(target: &Path) {
    fs::create_dir(target).expect("a folder");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in ["cli", "codec", "erofs", "serve", "store"] {
        run(Command::new("cp").arg("-r").arg(crates.join(name).join("src")).arg(target.join(name)));
    }
}

/// Creates the tree of a root file system with a shell, an init that runs the test's commands, and
/// files to change.
fn make_root(machine: &Machine, tree: &Path) {
    for folder in ["bin", "sbin", "dev", "proc", "sys", "tmp"] {
        fs::create_dir_all(tree.join(folder)).expect("a folder");
    }
    let busybox = tree.join("bin/busybox");
    copy_program(machine.busybox(), &busybox);
    let init = tree.join("sbin/init");
    fs::write(&init, INIT).expect("a file");
    for program in [&busybox, &init] {
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("a file");
    }
    for name in run(Command::new(&busybox).arg("--list")).lines().filter(|&name| name != "busybox") {
        symlink("busybox", tree.join("bin").join(name)).expect("a link");
    }
    make_sources(&tree.join("src"));
}

fn number(guest: &mut Guest) -> u32 {
    guest.wait_for("logged ").parse().expect("a number")
}

/// Returns the output of `seq FIRST LAST`.
fn lines(first: u32, last: u32) -> String {
    (first..=last).map(|number| format!("{number}\n")).collect()
}

/// Packs a root file system. Returns the image's path.
fn make_image(machine: &Machine, tools: &Tools, folder: &Path) -> PathBuf {
    let (tree, disk, image) = (folder.join("tree"), folder.join("root.img"), folder.join("root.erofs"));
    make_root(machine, &tree);
    run(Command::new(&tools.mkfs).args(["-q", "-F", "-E", "root_owner=0:0", "-d"]).arg(&tree).arg(&disk).arg("64M"));
    run(pagefold().arg("pack").arg(&disk).arg("-o").arg(&image));
    image
}

/// Lets a guest change its disk `job-1`, and reads the changes over NBD.
fn change(mut guest: Guest, tools: &Tools, server: &Server, folder: &Path) {
    guest.wait_for("ready");
    guest.say(FIRST);
    guest.wait_for("changed");
    guest.cut();
    let after = tools.copy(server, "job-1", "after.img");
    tools.check_in_use(&after);
    let found = folder.join("found");
    tools.extract(&after, "/src/erofs", &found);
    assert_eq!(fs::read_to_string(found.join("erofs/lib.rs")).expect("a file"), "first\n");
}

/// The root file system comes over TCP with TLS, and client and server have certificates.
#[test]
fn a_guest_boots_from_a_fork_over_tls() {
    let test = "a_guest_boots_from_a_fork_over_tls";
    let (Some(machine), Some(tools)) = (Machine::find(test), Tools::find(test)) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = make_image(&machine, &tools, folder.path());
    let secure = Secure::start(&[text(&image), "--tls-verify-peer"]);
    run(&mut secure.server.ask(&["fork", "root", "job-1"]));
    let (drive, object) = secure.drive("job-1");
    change(machine.boot_with(&object, &[drive]), &tools, &secure.server, folder.path());
}

/// The root file system is a file that qemu opens, and a disk on a vhost-user socket with two queues.
#[test]
fn a_guest_boots_from_a_file_and_from_a_vhost_user_socket() {
    let test = "a_guest_boots_from_a_file_and_from_a_vhost_user_socket";
    let (Some(machine), Some(tools)) = (Machine::find(test), Tools::find(test)) else { return };
    let Some(place) = Place::new(test) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = make_image(&machine, &tools, folder.path());
    let sockets = folder.path().join("sockets");
    let server = Server::start(&[text(&image), "--files", place.text(), "--vhost-user", text(&sockets)]);
    run(&mut server.ask(&["fork", "root", "job-1"]));
    wait_for(&place.path("job-1"));
    let drive = format!("file={},cache=none", text(&place.path("job-1")));
    change(machine.boot(&[drive]), &tools, &server, folder.path());
    run(&mut server.ask(&["drop", "job-1"]));
    run(&mut server.ask(&["fork", "root", "job-1"]));
    wait_for(&sockets.join("job-1.sock"));
    fs::remove_dir_all(folder.path().join("found")).expect("a folder");
    change(machine.boot_vhost_user(&sockets.join("job-1.sock")), &tools, &server, folder.path());
}

#[test]
fn a_guest_boots_from_a_fork_and_from_its_snapshot() {
    let test = "a_guest_boots_from_a_fork_and_from_its_snapshot";
    let (Some(machine), Some(tools)) = (Machine::find(test), Tools::find(test)) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (tree, disk, image) =
        (folder.path().join("tree"), folder.path().join("root.img"), folder.path().join("root.erofs"));
    make_root(&machine, &tree);
    // Blocks of the file system are smaller than pages.
    let options = ["-q", "-F", "-b", "1024", "-E", "root_owner=0:0", "-d"];
    run(Command::new(&tools.mkfs).args(options).arg(&tree).arg(&disk).arg("64M"));
    run(pagefold().arg("pack").arg(&disk).arg("-o").arg(&image));
    let base = fs::read(&disk).expect("the disk");
    let server = Server::start(&[text(&image)]);
    run(&mut server.ask(&["fork", "root", "job-1", "job-2"]));
    let drive = [format!("file={}", server.uri("job-1"))];

    // At this instant, some changes are on the disk already, and others are being written.
    let mut guest = machine.boot(&drive);
    guest.wait_for("ready");
    guest.say(FIRST);
    guest.wait_for("changed");
    guest.say(LOG);
    let mut logged = 0;
    while logged < 20 {
        logged = number(&mut guest);
    }
    run(&mut server.ask(&["snapshot", "job-1", "before"]));
    guest.say(LATER);
    guest.wait_for("changed");
    let logged_later = number(&mut guest);
    guest.cut();

    // The snapshot has the state that a power failure at its instant would have left.
    let before = tools.copy(&server, "job-1@before", "before.img");
    let untouched = fs::read(&before).expect("a copy");
    tools.check_in_use(&before);
    let found = folder.path().join("found");
    ["/src", "/work"].iter().for_each(|part| tools.extract(&before, part, &found));
    let expected = folder.path().join("expected");
    fs::create_dir(&expected).expect("a folder");
    make_sources(&expected.join("src"));
    fs::remove_dir_all(expected.join("src/codec")).expect("a folder");
    fs::write(expected.join("src/erofs/lib.rs"), "first\n").expect("a file");
    fs::create_dir(expected.join("work")).expect("a folder");
    fs::write(expected.join("work/kept"), lines(1, 20000)).expect("a file");
    let log = fs::read_to_string(found.join("work/log")).expect("the log");
    let kept = log.lines().count() as u32;
    assert!(log == lines(1, kept) && (logged..=logged_later).contains(&kept), "{logged}, {logged_later}: {log}");
    fs::write(expected.join("work/log"), log).expect("a file");
    run(Command::new("diff").arg("-r").arg(&expected).arg(&found));

    // The disk itself has all changes; after the rollback it has only the first ones.
    let later = tools.copy(&server, "job-1", "later.img");
    tools.check_in_use(&later);
    let found = folder.path().join("later");
    tools.extract(&later, "/work", &found);
    assert_eq!(fs::read_to_string(found.join("work/later")).expect("a file"), lines(1, 9));
    run(&mut server.ask(&["rollback", "job-1", "before"]));
    let mut guest = machine.boot(&drive);
    guest.wait_for("ready");
    guest.say(LOOK);
    let sum = run(Command::new("sha256sum").stdin(fs::File::open(expected.join("work/kept")).expect("a file")));
    assert_eq!(guest.wait_for("kept: "), sum.trim());
    assert_eq!(guest.wait_for("work: "), "kept log");
    assert_eq!(guest.wait_for("src: "), "cli erofs serve store");
    assert_eq!(guest.wait_for("log: "), kept.to_string());
    guest.say("seq 7 >/work/again; break");
    guest.end();
    let again = tools.copy(&server, "job-1", "again.img");
    tools.check(&again);
    let again = fs::read(again).expect("a copy");
    let frozen = folder.path().join("new.erofs");
    run(server.ask(&["freeze", "job-1"]).arg("-o").arg(&frozen));
    run(server.ask(&["add", "new"]).arg("--base").arg(&frozen));

    // Its image is the same; its sibling disks and the base have not changed.
    for (name, expected) in [("new", &again), ("job-1@before", &untouched), ("job-2", &base), ("root", &base)] {
        let content = fs::read(tools.copy(&server, name, "copy.img")).expect("a copy");
        assert!(content == *expected, "{name} differs");
    }
}
