//! Images mounted with FUSE, as seen by the kernel and its users.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, FileTimes},
    io::Read,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use pagefold_testing::{copy_program, programs, skip, skip_for_good};
use rustix::{
    fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, llistxattr, lsetxattr, makedev, mknodat},
    process::Signal,
};
use tempfile::TempDir;

use crate::{
    server::{Ended, is_ignored, pagefold, run, run_to_fail, send},
    user::User,
};

/// Returns whether FUSE is available; otherwise prints why not.
fn can_mount(test: &str) -> bool {
    if !Path::new("/dev/fuse").exists() {
        skip_for_good(test, "this kernel has no /dev/fuse");
        return false;
    }
    if programs(test, ["fusermount3"]).is_none() {
        return false;
    }
    true
}

/// A directory with a tree, its image, and a mount point, unmounted when dropped.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(fill: impl FnOnce(&Path)) -> Self {
        let place = Self { folder: TempDir::new().expect("a folder") };
        fs::create_dir(place.at("tree")).expect("a folder");
        fs::create_dir(place.at("mount")).expect("a folder");
        fill(&place.at("tree"));
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pack(&self, options: &[&str]) {
        run(pagefold().arg("pack").args(options).arg(self.at("tree")).arg("-o").arg(self.at("image")));
    }

    fn mount_command(&self) -> Command {
        let mut command = pagefold();
        command.arg("mount").arg(self.at("image")).arg(self.at("mount"));
        command
    }

    fn is_mounted(&self) -> bool {
        let mount = self.at("mount");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
        mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == mount))
    }

    /// Mounts in the background, or prints why the machine does not allow it.
    fn mount(&self, test: &str, options: &[&str]) -> bool {
        let output = self.mount_command().args(options).output().expect("the program starts");
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!rustix::process::geteuid().is_root(), "root cannot mount: {message}");
            skip(test, &message);
            return false;
        }
        assert!(self.is_mounted());
        true
    }

    /// A program that another test is starting has this one's open files until it is executed, and
    /// these keep the mount busy.
    fn unmount(&self) {
        let mut command = Command::new("fusermount3");
        command.arg("-u").arg(self.at("mount"));
        until("the mount goes", || command.output().expect("fusermount3 starts").status.success());
    }

    /// Returns the number of processes that serve this place.
    fn servers(&self) -> usize {
        self.server_names().len()
    }

    /// Returns their names in the process table and their first arguments.
    fn server_names(&self) -> Vec<(String, String)> {
        let image = self.at("image");
        let processes = fs::read_dir("/proc").expect("processes").filter_map(Result::ok);
        let name = |process: fs::DirEntry| {
            let line = fs::read_to_string(process.path().join("cmdline")).ok()?;
            let words: Vec<_> = line.split('\0').collect();
            let name = fs::read_to_string(process.path().join("comm")).ok()?;
            words.iter().any(|word| Path::new(word) == image).then(|| (name.trim().to_owned(), words[0].to_owned()))
        };
        processes.filter_map(name).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("fusermount3").arg("-uz").arg(self.at("mount")).status();
        }
    }
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns text that compresses like text.
fn text(len: usize, seed: usize) -> Vec<u8> {
    (seed..)
        .flat_map(|n| format!("line {n} of {}\n", n.wrapping_mul(2_654_435_761) % 9973).into_bytes())
        .take(len)
        .collect()
}

/// Creates a tree with one file of every kind that needs separate treatment.
fn everything(root: &Path) {
    for (number, len) in [0, 1, 4095, 4096, 4097, 70_000, 3_000_000].into_iter().enumerate() {
        fs::write(root.join(format!("text-{len}")), text(len, number)).expect("a file");
    }
    fs::create_dir_all(root.join("a/b/c")).expect("folders");
    fs::hard_link(root.join("text-4096"), root.join("a/b/c/linked")).expect("a link");
    symlink("../../text-1", root.join("a/b/up")).expect("a link");
    symlink("nowhere", root.join("a/dangling")).expect("a link");
    fs::create_dir(root.join("many")).expect("a folder");
    for number in 0..3000 {
        fs::write(root.join(format!("many/{number}-{}", "x".repeat(number % 200))), "").expect("a file");
    }
    let sparse = File::create(root.join("sparse")).expect("a file");
    sparse.write_all_at(b"end", 1 << 20).expect("a write");
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("a pipe");
    if rustix::process::geteuid().is_root() {
        let device = |name: &str, kind, major, minor| {
            mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o600), makedev(major, minor))
        };
        device("null", FileType::CharacterDevice, 1, 3).expect("a device");
        device("disk", FileType::BlockDevice, 259, 300_000).expect("a device");
        std::os::unix::fs::lchown(root.join("a"), Some(12345), Some(54321)).expect("an owner");
        std::os::unix::fs::lchown(root.join("a/dangling"), Some(70_000), Some(70_001)).expect("an owner");
    }
    fs::set_permissions(root.join("text-1"), fs::Permissions::from_mode(0o4751)).expect("a mode");
    let old = UNIX_EPOCH - Duration::new(12_345, 678_901_234);
    File::open(root.join("text-0")).expect("a file").set_times(FileTimes::new().set_modified(old)).expect("a time");
    for (name, len) in [("user.note", 5), ("user.long", 3000), ("user.empty", 0)] {
        let value = vec![b'v'; len];
        // Not every file system supports xattrs.
        let _ = lsetxattr(root.join("text-70000"), name, &value, XattrFlags::empty());
    }
    let _ = lsetxattr(root.join("many"), "user.note", b"shared", XattrFlags::empty());
    // An ACL: version 2; owner rw, user 1000 r, group none, mask r, others none.
    let entries: [(u16, u16, u32); 5] = [(1, 6, !0), (2, 4, 1000), (4, 0, !0), (16, 4, !0), (32, 0, !0)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let _ = lsetxattr(root.join("text-4095"), "system.posix_acl_access", &acl, XattrFlags::empty());
}

/// The results of `lstat`, `readlink`, `listxattr` and `getxattr`, except for numbers that the file
/// system assigns.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    mode: u32,
    links: u64,
    owner: (u32, u32),
    device: Option<u64>,
    size: u64,
    time: (i64, i64),
    target: Option<PathBuf>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    first_name: PathBuf,
}

fn facts(root: &Path) -> BTreeMap<PathBuf, Facts> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        let full = root.join(&path);
        let metadata = fs::symlink_metadata(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        let kind = metadata.file_type();
        if kind.is_dir() {
            let mut names: Vec<_> =
                fs::read_dir(&full).expect("a folder").map(|entry| entry.expect("a name")).collect();
            names.sort_by_key(fs::DirEntry::file_name);
            for name in names.into_iter().rev() {
                assert_eq!(name.file_type().expect("a type"), name.metadata().expect("metadata").file_type());
                todo.push(path.join(name.file_name()));
            }
        }
        let mut list = vec![0; 1 << 16];
        let len = llistxattr(&full, &mut list[..]).unwrap_or(0);
        let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let xattrs = names.map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = lgetxattr(&full, OsStr::from_bytes(name), &mut value[..]).expect("an xattr");
            (name.to_vec(), value[..len].to_vec())
        });
        let facts = Facts {
            mode: metadata.mode(),
            links: if kind.is_dir() { 0 } else { metadata.nlink() },
            owner: (metadata.uid(), metadata.gid()),
            device: (kind.is_char_device() || kind.is_block_device()).then(|| metadata.rdev()),
            size: if kind.is_dir() { 0 } else { metadata.size() },
            time: (metadata.mtime(), metadata.mtime_nsec()),
            target: kind.is_symlink().then(|| fs::read_link(&full).expect("a link")),
            xattrs: xattrs.collect(),
            first_name: inodes.entry(metadata.ino()).or_insert_with(|| path.clone()).clone(),
        };
        found.insert(path, facts);
    }
    found
}

#[test]
fn a_mounted_image_equals_its_source() {
    const TEST: &str = "a_mounted_image_equals_its_source";
    if !can_mount(TEST) {
        return;
    }
    for options in [&["--cluster", "64K"][..], &["--codec", "zstd,3", "--fragments", "tails"]] {
        let place = Place::new(everything);
        place.pack(options);
        if !place.mount(TEST, &[]) {
            return;
        }
        let (source, mounted) = (facts(&place.at("tree")), facts(&place.at("mount")));
        assert_eq!(source.len(), mounted.len());
        for (path, facts) in &source {
            assert_eq!(Some(facts), mounted.get(path), "{}", path.display());
            if facts.mode & 0o170_000 == 0o100_000 {
                let read = |root: &str| fs::read(place.at(root).join(path)).expect("a file");
                assert!(read("tree") == read("mount"), "{}: contents", path.display());
            }
        }

        // Limits of the system calls.
        let long = place.at("mount/text-70000");
        if source[Path::new("text-70000")].xattrs.contains_key(&b"user.long"[..]) {
            assert_eq!(lgetxattr(&long, "user.long", &mut [0; 10]), Err(rustix::io::Errno::RANGE));
        }
        assert_eq!(lgetxattr(&long, "user.none", &mut [0; 10]), Err(rustix::io::Errno::NODATA));
        let refused = fs::write(place.at("mount/new"), "").expect_err("the mount is read-only");
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        let missing = fs::metadata(place.at("mount/none")).expect_err("there is no such file");
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        let size = rustix::fs::statvfs(place.at("mount")).expect("figures");
        let image = fs::metadata(place.at("image")).expect("an image").len();
        assert_eq!((size.f_blocks * size.f_frsize, size.f_bfree), (image, 0));
        let again = place.mount_command().output().expect("the program starts");
        let message = String::from_utf8_lossy(&again.stderr);
        assert!(!again.status.success() && message.contains("image is mounted there; unmount it first"), "{message}");

        place.unmount();
        until("the process ends when its mount is gone", || place.servers() == 0);
        assert_eq!(fs::read_dir(place.at("mount")).expect("a folder").count(), 0);
    }
}

/// Device files and set-id programs take effect only if root asks for it.
#[test]
fn root_may_have_devices_and_set_id_programs() {
    const TEST: &str = "root_may_have_devices_and_set_id_programs";
    if !can_mount(TEST) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip_for_good(TEST, "device files need root");
    }
    let Some([id, setpriv]) = programs(TEST, ["id", "setpriv"]) else { return };
    let place = Place::new(|root| {
        mknodat(CWD, root.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3))
            .expect("a device");
        copy_program(id, root.join("id"));
        fs::set_permissions(root.join("id"), fs::Permissions::from_mode(0o4755)).expect("a mode");
    });
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    place.pack(&[]);
    if fs::read(place.at("tree/null")).is_err() {
        return skip_for_good(TEST, "this file system has no devices");
    }
    for (options, dev, user) in [
        (&["-o", "allow_other"][..], false, Some("65534")),
        (&["-o", "allow_other,dev,suid"], true, Some("0")),
        (&["--allow-other", "-o", "ro,dev", "-o", "exec"], true, Some("65534")),
        (&["--allow-other", "-o", "dev,suid,nodev"], false, Some("0")),
        (&["--allow-other", "-o", "noexec"], false, None),
    ] {
        if !place.mount(TEST, options) {
            return;
        }
        assert_eq!(fs::read(place.at("mount/null")).is_ok(), dev, "{options:?}");
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(place.at("mount/id")).arg("-u");
        let output = command.output().expect("a start");
        let found = output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned());
        assert_eq!(found.as_deref().map(str::trim), user, "{options:?}");
        place.unmount();
    }
    for (options, why) in
        [("dev,color", "'color' is not a supported mount option"), ("rw", "can only be read"), ("", "''")]
    {
        let message = run_to_fail(place.mount_command().args(["-o", options]));
        assert!(message.contains(why) && !place.is_mounted(), "{message}");
    }
}

/// This includes a mount in the background, which is a second process.
#[test]
fn an_image_behind_a_header_is_mounted() {
    const TEST: &str = "an_image_behind_a_header_is_mounted";
    if !can_mount(TEST) {
        return;
    }
    let content = text(3_000_000, 1);
    let place = Place::new(|root| fs::write(root.join("file"), &content).expect("a file"));
    place.pack(&["--cluster", "64K"]);
    let image = fs::read(place.at("image")).expect("an image");
    fs::write(place.at("image"), [&[7; 1500][..], &image].concat()).expect("a file");
    if !place.mount(TEST, &["--offset", "1500"]) {
        return;
    }
    assert!(fs::read(place.at("mount/file")).expect("the file") == content);
    place.unmount();
    let message = run_to_fail(place.mount_command().args(["--offset", "1501"]));
    assert!(message.contains("at byte 1501 is not an EROFS image") && !place.is_mounted(), "{message}");
}

/// With more threads than files may be open, the mount works and does not end after it was
/// reported.
#[test]
fn threads_beyond_reason_are_not_started() {
    const TEST: &str = "threads_beyond_reason_are_not_started";
    if !can_mount(TEST) {
        return;
    }
    let place = Place::new(|root| fs::write(root.join("file"), "text").expect("a file"));
    place.pack(&[]);
    if !place.mount(TEST, &["--threads", "100000"]) {
        return;
    }
    assert_eq!(fs::read_to_string(place.at("mount/file")).expect("the file"), "text");
    place.unmount();
}

#[test]
fn threads_read_anywhere_in_parallel() {
    const TEST: &str = "threads_read_anywhere_in_parallel";
    if !can_mount(TEST) {
        return;
    }
    let content = text(6_000_000, 1);
    let place = Place::new(|root| fs::write(root.join("file"), &content).expect("a file"));
    place.pack(&["--cluster", "64K"]);
    if !place.mount(TEST, &["--cache", "300K"]) {
        return;
    }
    thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (content, path) = (&content, place.at("mount/file"));
            scope.spawn(move || {
                let file = File::open(path).expect("the file");
                let mut state = seed;
                let mut buffer = vec![0; 200_000];
                for _ in 0..300 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (state >> 33) as usize % content.len();
                    let len = (state >> 20) as usize % buffer.len();
                    // The kernel would not request data that are in the page cache.
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
                    let got = file.read_at(&mut buffer[..len], at as u64).expect("data");
                    let end = content.len().min(at + len);
                    assert!(buffer[..got] == content[at..at + got] && (got == end - at || got > 0 || len == 0));
                }
            });
        }
    });
    // Open files survive a lazy unmount.
    let mut file = File::open(place.at("mount/file")).expect("the file");
    run(Command::new("fusermount3").arg("-uz").arg(place.at("mount")));
    assert!(!place.is_mounted());
    let mut read = Vec::new();
    file.read_to_end(&mut read).expect("data");
    assert!(read == content);
    drop(file);
    until("the process ends with the last user", || place.servers() == 0);
}

/// Mounts, reads and unmounts as an unprivileged user. A mount in the foreground is killed if the
/// script fails.
const AS_A_USER: &str = r#"
user ./pagefold mount -o ro,dev,nodev,suid,nosuid image mount
user cmp tree/text mount/text
user cmp tree/text mount/below/linked
fails user ls mount/closed
grep -q " $1/mount fuse.pagefold ro,nosuid,nodev," /proc/self/mounts
user fusermount3 -u mount
fails grep -q " $1/mount " /proc/self/mounts
setpriv --reuid=65534 --regid=65534 --clear-groups ./pagefold mount --foreground image mount & server=$!
trap 'kill $server' EXIT
until grep -q " $1/mount " /proc/self/mounts; do kill -0 $server; sleep 0.01; done
user sh -c 'kill -TERM $0' $server
wait $server
trap - EXIT
fails grep -q " $1/mount " /proc/self/mounts
fails user ./pagefold mount image theirs 2> message
grep -q "theirs.*no write access" message
for option in dev suid; do
    fails user ./pagefold mount -o $option image mount 2> message
    grep -q "only root may enable .* ($option)" message
done
fails grep -q " $1/mount " /proc/self/mounts
"#;

#[test]
fn a_user_who_is_not_root_mounts() {
    let test = "a_user_who_is_not_root_mounts";
    if !can_mount(test) {
        return;
    }
    let Some(user) = User::find(test) else { return };
    let place = Place::new(|root| {
        fs::write(root.join("text"), text(300_000, 1)).expect("a file");
        fs::create_dir(root.join("below")).expect("a folder");
        fs::hard_link(root.join("text"), root.join("below/linked")).expect("a link");
        fs::create_dir(root.join("closed")).expect("a folder");
        fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o700)).expect("a mode");
    });
    place.pack(&["--codec", "lz4", "--cluster", "64K"]);
    copy_program(env!("CARGO_BIN_EXE_pagefold"), place.at("pagefold"));
    fs::create_dir(place.at("theirs")).expect("a folder");
    let all_may_pass = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.folder.path(), all_may_pass).expect("a mode");
    std::os::unix::fs::chown(place.at("mount"), Some(65_534), Some(65_534)).expect("an owner");
    let Some(output) = user.run(test, AS_A_USER, place.folder.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

#[test]
fn signals_unmount() {
    const TEST: &str = "signals_unmount";
    if !can_mount(TEST) {
        return;
    }
    let place = Place::new(|root| fs::write(root.join("file"), "some").expect("a file"));
    place.pack(&[]);
    if !place.mount(TEST, &[]) {
        return;
    }
    place.unmount();
    for (signal, busy) in [(Signal::INT, false), (Signal::TERM, true)] {
        if is_ignored(TEST, signal) {
            continue;
        }
        let child = place.mount_command().arg("--foreground").stderr(Stdio::null()).spawn().expect("it starts");
        let mut child = Ended(child);
        until("it mounts", || place.is_mounted());
        let user = busy.then(|| File::open(place.at("mount/file")).expect("a file"));
        send(signal, &child.0);
        until("it is unmounted", || !place.is_mounted());
        if let Some(mut user) = user {
            let mut read = String::new();
            user.read_to_string(&mut read).expect("data");
            assert_eq!(read, "some");
        }
        assert!(child.0.wait().expect("a child").success());
    }
}

/// The process of a former mount does not touch the mount that replaced it.
#[test]
fn a_mount_can_follow_another_immediately() {
    const TEST: &str = "a_mount_can_follow_another_immediately";
    if !can_mount(TEST) {
        return;
    }
    let place = Place::new(|root| fs::write(root.join("file"), "some").expect("a file"));
    place.pack(&[]);
    for _ in 0..10 {
        if !place.mount(TEST, &[]) {
            return;
        }
        place.unmount();
        assert!(place.mount(TEST, &[]));
        until("the first process ends", || place.servers() == 1);
        assert_eq!(place.server_names(), [("pagefold".to_owned(), "pagefold".to_owned())]);
        assert_eq!(fs::read_to_string(place.at("mount/file")).expect("a file"), "some");
        place.unmount();
    }
}

#[test]
fn mount_failures_are_reported_before_the_command_returns() {
    const TEST: &str = "mount_failures_are_reported_before_the_command_returns";
    if !can_mount(TEST) {
        return;
    }
    let place = Place::new(|root| fs::write(root.join("file"), "some").expect("a file"));
    assert!(run_to_fail(&mut place.mount_command()).contains("No such file"));
    fs::write(place.at("image"), vec![0; 8192]).expect("a file");
    assert!(run_to_fail(&mut place.mount_command()).contains("no EROFS magic number"));
    place.pack(&["--force"]);
    fs::remove_dir(place.at("mount")).expect("a folder");
    assert!(run_to_fail(&mut place.mount_command()).contains("cannot mount on"));
    fs::write(place.at("mount"), "").expect("a file");
    assert!(run_to_fail(&mut place.mount_command()).contains("not a directory"));
    assert!(run_to_fail(place.mount_command().args(["--log", "/nonexistent/log"])).contains("/nonexistent/log"));
    assert_eq!(place.servers(), 0);
}

#[test]
fn damage_is_an_error_of_one_file_and_a_line_in_the_log() {
    const TEST: &str = "damage_is_an_error_of_one_file_and_a_line_in_the_log";
    if !can_mount(TEST) {
        return;
    }
    let place = Place::new(|root| {
        fs::write(root.join("bad"), text(100_000, 1)).expect("a file");
        fs::write(root.join("good"), text(100_000, 50_000)).expect("a file");
    });
    place.pack(&[]);
    let mut image = fs::read(place.at("image")).expect("an image");
    image[4096..8192].fill(0xff);
    fs::write(place.at("image"), image).expect("an image");
    let log = place.at("log");
    if !place.mount(TEST, &["--log", log.to_str().expect("a plain path")]) {
        return;
    }
    let error = fs::read(place.at("mount/bad")).expect_err("a damaged file");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert!(fs::read(place.at("mount/good")).expect("a sound file") == text(100_000, 50_000));
    let logged = fs::read_to_string(log).expect("a log");
    assert!(
        logged.contains("Z pagefold: data at 0 of inode ") && logged.contains("corrupt image at byte 4096"),
        "{logged}"
    );
    place.unmount();
}

/// Corrupt names and inodes behind a mount: every walk ends, and the mount survives.
#[test]
fn hostile_metadata_neither_hangs_nor_kills_the_mount() {
    const TEST: &str = "hostile_metadata_neither_hangs_nor_kills_the_mount";
    if !can_mount(TEST) {
        return;
    }
    let place = Place::new(|root| {
        fs::create_dir_all(root.join("a/b")).expect("folders");
        fs::write(root.join("a/b/file"), text(9000, 1)).expect("a file");
        symlink("b/file", root.join("a/link")).expect("a link");
    });
    place.pack(&[]);
    let sound = fs::read(place.at("image")).expect("an image");
    let mut state = 9u64;
    for round in 0..25 {
        let mut image = sound.clone();
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Metadata follow the data; the superblock and its checksum are left alone.
            let at = 1300 + (state >> 33) as usize % (image.len() - 1300);
            image[at] ^= 1 << (state >> 60 & 7);
        }
        fs::write(place.at("image"), image).expect("an image");
        let output = place.mount_command().output().expect("the program starts");
        if !output.status.success() {
            continue;
        }
        walk(&place.at("mount"), 0);
        assert_eq!(place.servers(), 1, "round {round}: the mount died");
        place.unmount();
        until("the process ends", || place.servers() == 0);
    }
}

/// Reads everything below a directory that can be read.
fn walk(path: &Path, depth: usize) {
    let Ok(names) = fs::read_dir(path) else { return };
    for entry in names.map_while(Result::ok).take(100) {
        let path = entry.path();
        let _ = llistxattr(&path, &mut [0; 4096][..]);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() && depth < 20 => walk(&path, depth + 1),
            Ok(metadata) if metadata.is_symlink() => drop(fs::read_link(&path)),
            Ok(metadata) if metadata.is_file() => {
                if let Ok(file) = File::open(&path) {
                    let mut buffer = vec![0; 20_000];
                    let _ = file.read_at(&mut buffer, 0);
                    let _ = file.read_at(&mut buffer, metadata.size().saturating_sub(10));
                }
            }
            _ => {}
        }
    }
}
