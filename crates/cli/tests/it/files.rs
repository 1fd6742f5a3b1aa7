//! Disks as files, for as long as their server runs.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use pagefold_serve::Client;
use pagefold_testing::{copy_program, programs, skip, skip_for_good};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::{
    server::{Server, is_ignored, make_image, pagefold, run, run_to_fail},
    user::User,
};

/// A directory for the files of a server, unmounted when it is dropped.
pub(crate) struct Place(TempDir);

impl Place {
    /// Returns `None` if the machine does not allow such mounts, and says why.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            skip_for_good(test, "this kernel has no /dev/fuse");
            return None;
        }
        programs(test, ["fusermount3"])?;
        let place = Self(TempDir::new().expect("a folder"));
        let mut command = pagefold();
        command.args(["serve", "--size", "1M", "--files", place.text(), "--run", "true"]);
        let output = command.output().expect("pagefold starts");
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!geteuid().is_root(), "root cannot mount: {message}");
            skip(test, &message);
            return None;
        }
        Some(place)
    }

    pub(crate) fn text(&self) -> &str {
        self.0.path().to_str().expect("a plain path")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
        mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == self.0.path()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("fusermount3").arg("-uz").arg(self.0.path()).status();
        }
    }
}

/// Starts a server, and waits until it has mounted its files.
fn start(args: &[&str]) -> Server {
    let server = Server::start(args);
    run(&mut server.ask(&["disks"]));
    server
}

fn size(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

#[test]
fn files_follow_the_commands() {
    let Some(place) = Place::new("files_follow_the_commands") else { return };
    let folder = TempDir::new().expect("a folder");
    let image = folder.path().join("base.img");
    make_image(&image, 4);
    let image = image.to_str().expect("a plain path");
    let server = start(&["--files", place.text(), "--max-connections", "4", image]);
    let base = fs::read(image).expect("an image");
    assert!(fs::read(place.path("base")).expect("the base") == base);
    run(&mut server.ask(&["fork", "base", "job-1"]));
    let open = || OpenOptions::new().read(true).write(true).open(place.path("job-1")).expect("a fork");
    let file = open();
    let mut data = vec![0; 1 << 20];
    file.read_exact_at(&mut data, 1 << 20).expect("data");
    assert!(data == base[1 << 20..2 << 20]);

    // Both ways to the disk show the same.
    let mut client = Client::unix(&server.socket(), "job-1", Duration::from_secs(60)).expect("a client");
    file.write_all_at(&[7; 5000], 100).expect("room");
    let mut bytes = vec![0; 5000];
    client.read(100, &mut bytes).expect("data");
    assert_eq!(bytes, [7; 5000]);
    drop(client);

    run(&mut server.ask(&["snapshot", "job-1", "before"]));
    file.write_all_at(&[8; 5000], 100).expect("room");
    let before = fs::read(place.path("job-1@before")).expect("a snapshot");
    assert!(before[100..5100] == [7; 5000] && before[5100..] == base[5100..]);
    let said = run_to_fail(&mut server.ask(&["rollback", "job-1", "before"]));
    assert!(said.contains("has 1 client"), "{said}");
    let said = run_to_fail(&mut server.ask(&["drop", "--snapshots", "job-1"]));
    assert!(said.contains("has 1 client"), "{said}");
    drop(file);
    run(&mut server.ask(&["rollback", "job-1", "before"]));
    let file = open();
    file.read_exact_at(&mut bytes, 100).expect("data");
    assert_eq!(bytes, [7; 5000]);

    run(&mut server.ask(&["resize", "job-1", "8M"]));
    assert_eq!((size(&place.path("job-1")), size(&place.path("job-1@before"))), (Some(8 << 20), Some(4 << 20)));
    run(&mut server.ask(&["rename", "job-1", "job-2"]));
    assert_eq!((size(&place.path("job-1")), size(&place.path("job-2"))), (None, Some(8 << 20)));
    run(&mut server.ask(&["drop", "--force", "--snapshots", "job-2"]));
    file.read_at(&mut bytes, 0).expect_err("it was dropped");
    let names: Vec<_> = fs::read_dir(place.path("")).expect("a directory").map(|entry| entry.unwrap()).collect();
    assert_eq!(names.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["base"]);
    run(&mut server.ask(&["add", "new", "--size", "1M"]));
    assert_eq!(size(&place.path("new")), Some(1 << 20));
}

#[test]
fn the_directory_is_as_before_when_the_server_ends() {
    let test = "the_directory_is_as_before_when_the_server_ends";
    let Some(place) = Place::new(test) else { return };
    if is_ignored(test, Signal::TERM) {
        return;
    }
    assert!(!place.is_mounted(), "a server with --run has ended");
    let args = ["--size", "1M", "--name", "a", "--files", place.text()];
    let server = start(&args);
    let said = run_to_fail(pagefold().args(["serve", "--run", "true"]).args(args));
    assert!(said.contains("is mounted there"), "{said}");
    let file = File::open(place.path("a")).expect("a disk");
    let (status, said) = server.end(Signal::TERM);
    assert!(status.success() && !place.is_mounted(), "{said}");
    file.read_at(&mut [0; 10], 0).expect_err("the server is gone");

    // A killed server leaves its mount.
    let server = start(&args);
    server.kill();
    drop(server);
    assert!(place.is_mounted() && fs::metadata(place.path("")).is_err());
    let server = start(&args);
    assert_eq!(size(&place.path("a")), Some(1 << 20));
    run(&mut server.ask(&["stop"]));
    drop(server);
    assert!(!place.is_mounted());

    fs::write(place.path("precious"), "").expect("a file");
    let said = run_to_fail(pagefold().args(["serve", "--run", "true"]).args(args));
    assert!(said.contains("not empty") && said.contains(place.text()), "{said}");
    fs::remove_file(place.path("precious")).expect("a file");

    // A directory that does not exist, and a user who unmounts.
    let below = place.path("made/for/it");
    let said = run(pagefold()
        .args(["serve", "--size", "1M", "--files"])
        .arg(&below)
        .args(["--run", "ls -l \"$files/%\" && fusermount3 -uz \"$files\" && sleep 0.2"]));
    assert!(said.contains("1048576"), "{said}");
    assert_eq!(fs::read_dir(&below).expect("it stays").count(), 0);
}

#[test]
fn modes_are_those_of_the_sockets() {
    let test = "modes_are_those_of_the_sockets";
    let Some(place) = Place::new(test) else { return };
    if !geteuid().is_root() {
        return skip_for_good(test, "only root may always open a mount to others");
    }
    let export = ["--export", "name=a,size=1M", "--export", "name=b,size=1M,read-only"];
    let server = start(&[&export[..], &["--files", place.text(), "--mode", "0640", "--group", "1"]].concat());
    let found = ["", "a", "b"].map(|name| {
        let metadata = fs::metadata(place.path(name)).expect("a file");
        (metadata.mode() & 0o7777, metadata.gid())
    });
    assert_eq!(found.map(|(mode, _)| mode), [0o750, 0o640, 0o440]);
    assert_eq!((found[1].1, found[2].1), (1, 1));
    drop(server);
}

/// With a limit that leaves clients little, requests are shorter and one after another.
#[test]
fn files_need_little_memory() {
    let Some(place) = Place::new("files_need_little_memory") else { return };
    let args = ["--size", "64M", "--name", "a", "--memory-limit", "24M", "--files", place.text()];
    let server = start(&args);
    let file = OpenOptions::new().read(true).write(true).open(place.path("a")).expect("a disk");
    file.write_all_at(&vec![5; 3 << 20], 12_345).expect("room");
    let mut bytes = vec![0; 3 << 20];
    file.read_exact_at(&mut bytes, 12_345).expect("data");
    assert!(bytes.iter().all(|byte| *byte == 5));
    drop(server);
}

/// Serves files as an unprivileged user.
const AS_A_USER: &str = r#"
serve() { user ./pagefold serve --dir run --size 1M --name a --files mount "$@"; }
serve --run '
    set -e
    test "$(stat -c "%s %a %u" "$files/a")" = "1048576 600 65534"
    dd if=pagefold of="$files/a" bs=4k count=200 conv=notrunc status=none
    cmp -n 819200 pagefold "$files/a"
    if mkdir "$files/b" 2> message; then exit 1; fi
    grep -q "not permitted" message
' 2> log
fails grep -q " $1/mount " /proc/self/mounts
if ! grep -qs '^user_allow_other' /etc/fuse.conf; then
    fails serve --mode 0660 --run true 2> message
    grep -q "user_allow_other" message
fi
# A killed server leaves a mount, which the next one replaces.
setpriv --reuid=65534 --regid=65534 --clear-groups ./pagefold serve --dir run --size 1M --name a --files mount & server=$!
until [ -e mount/a ] || grep -q " $1/mount " /proc/self/mounts; do kill -0 $server; sleep 0.01; done
until user test -e mount/a; do kill -0 $server; sleep 0.01; done
kill -KILL $server
wait $server || true
grep -q " $1/mount " /proc/self/mounts
serve --run 'test -e "$files/a"' 2> log
fails grep -q " $1/mount " /proc/self/mounts
"#;

/// After `reset` of a read-only disk, its file shows the new content although it was read before.
#[test]
fn a_read_only_disk_that_is_reset_is_seen_in_its_file() {
    let Some(place) = Place::new("a_read_only_disk_that_is_reset_is_seen_in_its_file") else { return };
    let server = Server::start(&["--size", "1M", "--name", "a", "--files", place.text()]);
    fs::write(place.path("a"), [7; 8192]).expect("a write");
    run(&mut server.ask(&["fork", "a", "b", "--read-only"]));
    run(&mut server.ask(&["snapshot", "a", "s"]));
    for name in ["b", "a@s"] {
        assert_eq!(fs::read(place.path(name)).expect("a file")[..8192], [7; 8192], "{name}");
    }
    run(&mut server.ask(&["reset", "b"]));
    assert!(fs::read(place.path("b")).expect("a file").iter().all(|byte| *byte == 0));
    assert_eq!(fs::read(place.path("a@s")).expect("a file")[..8192], [7; 8192]);
    OpenOptions::new().write(true).open(place.path("a@s")).expect_err("a snapshot");
}

#[test]
fn a_user_who_is_not_root_has_files() {
    let test = "a_user_who_is_not_root_has_files";
    let Some(user) = User::find(test) else { return };
    if Place::new(test).is_none() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    copy_program(env!("CARGO_BIN_EXE_pagefold"), folder.path().join("pagefold"));
    for name in ["mount", "run"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
        std::os::unix::fs::chown(folder.path().join(name), Some(65_534), Some(65_534)).expect("an owner");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
    let Some(output) = user.run(test, AS_A_USER, folder.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    assert!(output.status.success(), "{}: {said}\n{log}", output.status);
}
