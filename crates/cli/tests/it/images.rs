//! The life of an image: packed, listed, shown, checked, extracted; and damaged, which is detected.

use std::{
    fs, io,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    process::Command,
};

use rustix::{
    fs::{Mode, OFlags},
    process::Signal,
};
use tempfile::TempDir;

use crate::server::{Ended, pagefold, run_to_fail, send, under};

/// Runs `command`, which must succeed, and returns its standard output.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_tree_is_packed_and_comes_back() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir_all(at("tree/etc")).expect("a folder");
    let text = "a line of some text\n".repeat(5000);
    fs::write(at("tree/etc/text"), &text).expect("a file");
    fs::write(at("tree/left-out.o"), "").expect("a file");
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image"), "--exclude", "*.o", "-T", "1000000000"]));
    output(pagefold().args([
        "pack",
        &at("tree"),
        "-o",
        &at("again"),
        "--exclude",
        "*.o",
        "-T",
        "1000000000",
        "--threads",
        "3",
    ]));
    let image = fs::read(at("image")).expect("an image");
    assert!(image == fs::read(at("again")).expect("an image"), "the threads change the image");
    assert!(image.len() < text.len() / 4);
    assert_eq!(output(pagefold().args(["ls", "-R", &at("image")])), "etc\netc/text\n");
    assert_eq!(output(pagefold().args(["cat", &format!("{}:/etc/text", at("image"))])), text);
    let info = output(pagefold().args(["info", "--read", &at("image")]));
    assert!(info.contains("formats        lz4") && info.contains("in place"), "{info}");
    assert!(info.contains("incompatible 0x1: checksum, modification times, lz4 padded in front\n"), "{info}");
    assert!(output(pagefold().args(["check", &at("image")])).starts_with("sound: 3 inodes"));
    assert!(output(pagefold().args(["check", &(at("image") + ":/etc")])).starts_with("sound: 2 inodes"));
    output(pagefold().args(["extract", &at("image"), "-C", &at("out")]));
    assert_eq!(fs::read_to_string(at("out/etc/text")).expect("the file"), text);
    output(pagefold().args(["extract", &(at("image") + ":/etc"), "-C", &at("etc")]));
    assert_eq!(fs::read_to_string(at("etc/text")).expect("the file"), text);
    let message = run_to_fail(pagefold().args(["extract", &(at("image") + ":/etc/text"), "-C", &at("file")]));
    assert!(message.contains("image:/etc/text is not a directory") && message.contains("pagefold cat "), "{message}");
    assert!(!fs::exists(at("file")).expect("a folder"));
    let list = output(pagefold().args(["ls", "-l", &at("image")]));
    assert!(list.ends_with(" 2001-09-09 01:46:40.000000000 etc\n"), "{list}");

    let mut damaged = image;
    damaged[4096..8192].fill(0xff);
    fs::write(at("damaged"), damaged).expect("a file");
    let message = run_to_fail(pagefold().args(["check", &at("damaged")]));
    assert!(message.contains("/etc/text: corrupt image at byte 4096"), "{message}");
    for (path, named) in [("etc", "etc/text"), ("/etc/", "/etc/text"), ("/etc/text", "/etc/text")] {
        let message = run_to_fail(pagefold().args(["check", &format!("{}:{path}", at("damaged"))]));
        assert!(
            message.starts_with(&format!("{named}: corrupt image at byte 4096"))
                && message.contains("damaged: 1 problem\n"),
            "{message}"
        );
    }
    let message = run_to_fail(pagefold().args(["extract", &(at("damaged") + ":/etc/"), "-C", &at("out-of-damaged")]));
    assert!(message.contains("/out-of-damaged/text: corrupt image at byte 4096"), "{message}");
    let message = run_to_fail(pagefold().args(["check", &format!("{}:/none", at("damaged"))]));
    assert!(message.contains("no such file in the image"), "{message}");
}

#[test]
fn a_path_in_an_image_is_read_alone() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    for name in ["a", "b"] {
        fs::create_dir_all(at("tree/") + name).expect("a folder");
        fs::write(at("tree/") + name + "/text", format!("a line of {name}\n").repeat(1000)).expect("a file");
    }
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    for (place, clusters) in [("", 2), (":/", 2), (":a", 1), (":/b/text", 1)] {
        let info = output(pagefold().args(["info", "--read", &(at("image") + place)]));
        assert!(info.ends_with(&format!("{clusters} clusters, {clusters} of them in place\n")), "{place}: {info}");
    }
}

#[test]
fn cat_follows_links_and_takes_no_directories() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir_all(at("tree/usr/lib")).expect("a folder");
    fs::create_dir_all(at("tree/etc")).expect("a folder");
    fs::write(at("tree/usr/lib/release"), "some").expect("a file");
    symlink("../usr/lib/release", at("tree/etc/release")).expect("a link");
    symlink("/etc/release", at("tree/absolute")).expect("a link");
    symlink("loop", at("tree/loop")).expect("a link");
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    for path in ["etc/release", "/etc/release", "absolute", "etc/../etc/release/", "usr/lib/release"] {
        assert_eq!(output(pagefold().args(["cat", &format!("{}:{path}", at("image"))])), "some", "{path}");
    }
    // A slash after a link refers to the directory that the link points to.
    symlink("etc", at("tree/link-to-etc")).expect("a link");
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let ls = |path: &str| pagefold().args(["ls", &format!("{}:{path}", at("image"))]).output().expect("a start");
    assert_eq!(ls("link-to-etc").stdout, b"link-to-etc\n");
    for path in ["link-to-etc/", "/link-to-etc//.", "link-to-etc/../etc"] {
        assert_eq!(ls(path).stdout, ls("etc").stdout, "{path}");
    }
    for (path, why) in [("loop", "too many symbolic links"), ("etc", "is a directory"), ("none", "no such file")] {
        let message = run_to_fail(pagefold().args(["cat", &format!("{}:{path}", at("image"))]));
        assert!(message.contains(why), "{message}");
    }
    let message = run_to_fail(pagefold().args(["cat", &at("none")]));
    assert_eq!(message.matches("No such file").count(), 1, "{message}");
}

#[test]
fn a_pack_that_fails_leaves_nothing() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let message = run_to_fail(pagefold().args(["pack", &at("no-such"), "-o", &at("image")]));
    assert!(message.contains("no-such"), "{message}");
    fs::create_dir(at("tree")).expect("a folder");
    let message = run_to_fail(pagefold().args(["pack", &at("tree"), "-o", &at("image"), "--codec", "lz5"]));
    assert!(message.contains("'lz5'") && message.contains("lzma"), "{message}");
    let message = run_to_fail(pagefold().args(["pack", &at("tree"), "-o", &at("image"), "--cluster", "5000"]));
    assert!(message.contains("multiple of the block"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1, "something was left");
}

#[test]
fn owners_and_codecs_are_chosen_and_a_pipe_gets_no_progress() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    let text = "a line of some text\n".repeat(5000);
    for name in ["text", "text.log"] {
        fs::write(at("tree/").to_owned() + name, &text).expect("a file");
    }
    let pack = |more: &[&str]| {
        let output = pagefold().args(["pack", &at("tree"), "-o", &at("image")]).args(more).output().expect("a start");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (done, said) =
        pack(&["--hint", "*.log=zstd,5@16K", "--hint", "text=none", "--force-uid", "7", "--gid-map", "0:9:70000"]);
    assert!(done && said.lines().count() == 1 && !said.contains('\r'), "{said}");
    let info = output(pagefold().args(["info", &at("image")]));
    assert!(info.contains("zstd"), "{info}");
    let list = output(pagefold().args(["ls", "-lR", &at("image")]));
    assert!(list.lines().all(|line| line.split_whitespace().nth(2) == Some("7")), "{list}");
    assert_eq!(output(pagefold().args(["cat", &format!("{}:/text.log", at("image"))])), text);
    for (wrong, named) in [
        (["--hint", "text"], "PATTERN=CODEC"),
        (["--hint", "text=lz5"], "'lz5'"),
        (["--hint", "text=lz4@5000"], "the hint for 'text': the cluster size must be a multiple of the block size"),
        (["--hint", "no-such-file=zstd,99"], "the hint for 'no-such-file': codec zstd: levels are -7 to 22"),
        (["--codec", "zstd,x"], "pagefold: 'x' is not a level\n"),
        (["--block", "8G"], "pagefold: the block size is too large\n"),
        (["--uid-map", "1:2:3:4"], "FROM:TO"),
        (["--gid-map", "1:2:0"], "range of IDs"),
    ] {
        let (done, said) = pack(&wrong);
        assert!(!done && said.contains(named), "{wrong:?}: {said}");
    }
    let mut pack = pagefold();
    pack.args(["pack", &at("tree"), "-o", &at("image")]).env("SOURCE_DATE_EPOCH", "today");
    let message = run_to_fail(&mut pack);
    assert!(message.contains("'today' (from -T or SOURCE_DATE_EPOCH)"), "{message}");
    // An empty variable counts as unset.
    let mut pack = pagefold();
    pack.args(["pack", &at("tree"), "-o", &at("image")]).env("SOURCE_DATE_EPOCH", "");
    assert!(pack.output().expect("a start").status.success());
    assert!(run_to_fail(pack.args(["-T", "x"])).contains("'x' (from -T or SOURCE_DATE_EPOCH)"));
}

/// Files that would be packed as one file by mistake, or not at all, are refused with advice.
#[test]
fn archives_that_cannot_be_read_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/text"), "a line of some text\n".repeat(5000)).expect("a file");
    fs::write(at("a.tar.bz2"), b"BZh91AY&SY").expect("a file");
    output(Command::new("tar").args(["-C", &at("tree"), "-cf", &at("a.tar"), "."]));
    let pack =
        |source: &str, input: fs::File| run_to_fail(pagefold().args(["pack", source, "-o", &at("image")]).stdin(input));
    let open = |name: &str| fs::File::open(at(name)).expect("a file");
    let nothing = || fs::File::open("/dev/null").expect("a device");
    for (message, name) in [(pack(&at("a.tar.bz2"), nothing()), "a.tar.bz2"), (pack("-", open("a.tar.bz2")), "input")] {
        assert!(message.contains(&format!("{name} is damaged or truncated")), "{message}");
    }
    assert!(pack("-", nothing()).contains("standard input: byte 0: an archive is never empty"));
    assert!(pack("/dev/null", nothing()).contains("/dev/null: not a directory"));
    let whole = fs::read(at("a.tar")).expect("an archive");
    fs::write(at("short.tar"), &whole[..10_000]).expect("a file");
    let message = pack(&at("short.tar"), nothing());
    assert!(message.contains("short.tar: ./text: the archive ends inside it"), "{message}");
    fs::write(at("\u{1b}[31mno.tar"), "text\n".repeat(500)).expect("a file");
    let message = pack(&at("\u{1b}[31mno.tar"), nothing());
    assert!(message.contains("is this a tar archive?") && !message.contains('\u{1b}'), "{message:?}");
    assert!(message.lines().count() == 1 && message.len() < 500, "{message:?}");
    let empty = vec![0; 10_240];
    fs::write(at("empty.tar"), empty).expect("a file");
    output(pagefold().args(["pack", &at("empty.tar"), "-o", &at("image")]));
    assert_eq!(output(pagefold().args(["ls", &at("image")])), "");
}

#[test]
fn an_image_goes_where_it_is_sent() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/text"), "text").expect("a file");
    for (wrong, named) in [("tree", "is a directory"), ("new/", "is not a file name"), ("no/image", "making a file in")]
    {
        let message = run_to_fail(pagefold().args(["pack", &at("tree"), "-o", &at(wrong)]));
        assert!(message.contains(named) && !message.contains(".pagefold-"), "{message}");
    }
    // An image in the tree itself is not packed, not even the second time.
    for _ in 0..2 {
        output(pagefold().args(["pack", &at("tree"), "-o", &at("tree/image")]));
        assert_eq!(output(pagefold().args(["ls", &at("tree/image")])), "text\n");
    }
    fs::remove_file(at("tree/image")).expect("an image");
    // Symbolic links and pipes are preserved.
    fs::create_dir(at("images")).expect("a folder");
    fs::write(at("images/1"), "").expect("a file");
    symlink("images/1", at("latest")).expect("a link");
    output(pagefold().args(["pack", &at("tree"), "-o", &at("latest")]));
    assert_eq!(fs::read_link(at("latest")).expect("a link").to_str(), Some("images/1"));
    let image = fs::read(at("images/1")).expect("an image");
    output(Command::new("mkfifo").arg(at("pipe")));
    let pipe = at("pipe");
    let reader = std::thread::spawn(move || fs::read(pipe).expect("an image"));
    output(pagefold().args(["pack", &at("tree"), "-o", &at("pipe")]));
    assert!(reader.join().expect("a reader") == image, "the pipe had something else");
    // The archive may come through a pipe too.
    let (pipe, tree) = (at("pipe"), at("tree"));
    let tar = std::thread::spawn(move || output(Command::new("tar").args(["-C", &tree, "-cf", &pipe, "text"])));
    output(pagefold().args(["pack", &at("pipe"), "-o", &at("other")]));
    tar.join().expect("tar");
    assert_eq!(output(pagefold().args(["cat", &format!("{}:text", at("other"))])), "text");
}

/// The same after a kill, where files without names are supported.
#[test]
fn a_pack_that_is_ended_leaves_nothing() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("tree")).expect("a folder");
    let large = fs::File::create(at("tree/large")).expect("a file");
    large.set_len(1 << 40).expect("a sparse file");
    let can = OFlags::TMPFILE | OFlags::RDWR;
    let unnamed = rustix::fs::open(folder.path(), can, Mode::RUSR | Mode::WUSR).is_ok();
    for signal in [Signal::TERM, Signal::KILL] {
        if signal == Signal::KILL && !unnamed {
            println!("SKIPPED: a_pack_that_is_ended_leaves_nothing: no files without names here");
            continue;
        }
        let mut pack = pagefold();
        // Without further output, this writes for longer than the test lasts.
        pack.arg("pack").arg(at("tree")).arg("-o").arg(at("image")).args(["--codec", "lzma", "--indexes", "compact"]);
        let mut pack = Ended(pack.spawn().expect("a start"));
        let fds = format!("/proc/{}/fd", pack.0.id());
        let is_writing = || {
            let fds = fs::read_dir(&fds).into_iter().flatten().flatten();
            let mut open = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
            open.any(|path| path.starts_with(folder.path()) && !path.starts_with(at("tree")))
        };
        while !is_writing() {
            assert!(pack.0.try_wait().expect("a child").is_none(), "it ended by itself");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        send(signal, &pack.0);
        let status = pack.0.wait().expect("a child");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal.as_raw()), "{status}");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1, "something was left");
    }
}

/// The umask applies, as for other new files, even if the replaced file had another mode.
#[test]
fn an_image_has_the_permissions_of_a_new_file_or_of_the_old_one() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    let mode = |name: &str| fs::metadata(at(name)).expect("an image").permissions().mode() & 0o7777;
    let pack = |umask: &str, name: &str| {
        let pagefold = env!("CARGO_BIN_EXE_pagefold");
        let line = format!("umask {umask}; exec {pagefold} pack --force {} -o {}", at("tree"), at(name));
        output(Command::new("sh").args(["-c", &line]));
        mode(name)
    };
    assert_eq!(pack("022", "image"), 0o644);
    assert_eq!(pack("077", "secret"), 0o600);
    // The old file stays intact for programs that have it open.
    fs::write(at("old"), "old").expect("a file");
    fs::set_permissions(at("old"), fs::Permissions::from_mode(0o400)).expect("a mode");
    let mut old = fs::File::open(at("old")).expect("a file");
    assert_eq!(pack("027", "old"), 0o400);
    assert_eq!(pack("027", "image"), 0o644);
    assert_eq!(io::read_to_string(&mut old).expect("a file"), "old");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 4, "something was left");
    // A dangling link stays too.
    symlink("nowhere", at("link")).expect("a link");
    assert_eq!(pack("022", "link"), 0o644);
    assert!(fs::symlink_metadata(at("nowhere")).expect("an image").is_file());
}

#[test]
fn an_extraction_that_comes_to_its_limit_says_so() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/small"), "small").expect("a file");
    fs::write(at("tree/text"), "a line of some text\n".repeat(5000)).expect("a file");
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let message = run_to_fail(pagefold().args(["extract", &at("image"), "-C", &at("out"), "--max-size", "50K"]));
    assert!(message.contains("text: 100000 bytes exceed what is left of the limit of 51200 bytes"), "{message}");
    assert!(message.contains("--max-size 50 KiB was reached") && !message.contains("unsupported"), "{message}");
    output(pagefold().args(["extract", &at("image"), "-C", &at("all"), "--max-size", "100005"]));
}

/// A file system that is unmounted at the end of the test.
struct Tmpfs(TempDir);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // A child that another test is starting at the moment still has this one's open files.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn an_extraction_into_a_full_target_says_so_once() {
    const TEST: &str = "an_extraction_into_a_full_target_says_so_once";
    if !rustix::process::geteuid().is_root() {
        return pagefold_testing::skip_for_good(TEST, "mounting needs root");
    }
    let Some([mount]) = pagefold_testing::programs(TEST, ["mount"]) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    for number in 0..200 {
        fs::write(at(&format!("tree/file-{number}")), "a line of some text\n".repeat(200)).expect("a file");
    }
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let target = Tmpfs(TempDir::new().expect("a folder"));
    output(Command::new(mount).args(["-t", "tmpfs", "-osize=400k", "tmpfs"]).arg(target.0.path()));
    let message = run_to_fail(pagefold().args(["extract", &at("image"), "-C"]).arg(target.0.path()));
    assert_eq!(message.lines().count(), 1, "{message}");
    let words = ["file-", "No space left on device", "stopped, with ", " names with 39", " KiB of files extracted"];
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

/// A disk that is in use until this value is dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

#[test]
fn a_disk_that_is_mounted_is_not_overwritten() {
    const TEST: &str = "a_disk_that_is_mounted_is_not_overwritten";
    if !rustix::process::geteuid().is_root() {
        return pagefold_testing::skip_for_good(TEST, "mounting needs root");
    }
    let Some([losetup, mount, _]) = pagefold_testing::programs(TEST, ["losetup", "mount", "umount"]) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    output(pagefold().args(["pack", &at("tree"), "-o", &at("disk")]));
    let made = Command::new(losetup).args(["--find", "--show", &at("disk")]).output().expect("the program starts");
    let disk = Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned());
    if !made.status.success() || !fs::exists(&disk.0).is_ok_and(|exists| exists) {
        return pagefold_testing::skip_for_good(TEST, "no loop devices here");
    }
    fs::create_dir(at("mount")).expect("a folder");
    if !Command::new(mount).args(["-t", "erofs", &disk.0, &at("mount")]).status().expect("the program starts").success()
    {
        return pagefold_testing::skip_for_good(TEST, "this kernel mounts no EROFS image");
    }
    let message = run_to_fail(pagefold().args(["pack", &at("tree"), "-o", &disk.0]));
    assert!(message.contains(&disk.0) && message.contains("it is mounted or otherwise in use"), "{message}");
    assert!(Command::new("umount").arg(at("mount")).status().expect("the program starts").success());
    output(pagefold().args(["pack", &at("tree"), "-o", &disk.0]));
    fs::write(
        at("tree/large"),
        (0..9999u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect::<Vec<_>>(),
    )
    .expect("a file");
    let message = run_to_fail(pagefold().args(["pack", &at("tree"), "-o", &disk.0]));
    let words = [&disk.0, " has 4 KiB, and the output needs ", "nothing was written"];
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
    let found = output(pagefold().args(["ls", &disk.0]));
    assert_eq!(found, "", "the old image is whole");
}

/// Users may set user xattrs of files that they may write.
#[test]
fn a_user_who_is_not_root_gets_the_xattrs_of_read_only_files() {
    const TEST: &str = "a_user_who_is_not_root_gets_the_xattrs_of_read_only_files";
    if !rustix::process::geteuid().is_root() {
        return pagefold_testing::skip_for_good(TEST, "it takes root to become a user");
    }
    let Some([setpriv]) = pagefold_testing::programs(TEST, ["setpriv"]) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let all_may_pass = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), all_may_pass).expect("a mode");
    fs::create_dir(at("tree")).expect("a folder");
    for (name, mode) in [("read-only", 0o444), ("closed", 0), ("below", 0o555)] {
        let path = at(&format!("tree/{name}"));
        if name == "below" {
            fs::create_dir(&path).expect("a folder");
        } else {
            fs::write(&path, name).expect("a file");
        }
        if rustix::fs::setxattr(&path, "user.name", name.as_bytes(), rustix::fs::XattrFlags::empty()).is_err() {
            return pagefold_testing::skip(TEST, "this file system has no xattrs");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
    }
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    pagefold_testing::copy_program(env!("CARGO_BIN_EXE_pagefold"), at("pagefold"));
    fs::create_dir(at("theirs")).expect("a folder");
    std::os::unix::fs::chown(at("theirs"), Some(65_534), Some(65_534)).expect("an owner");
    for threads in ["1", "2"] {
        let out = at(&format!("theirs/{threads}"));
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &at("pagefold"), "extract"]);
        output(command.args([&at("image"), "-C", &out, "--threads", threads]));
        for (name, mode) in [("read-only", 0o444), ("closed", 0), ("below", 0o555)] {
            let path = format!("{out}/{name}");
            let mut value = [0; 32];
            let len = rustix::fs::getxattr(&path, "user.name", &mut value).expect("an xattr");
            assert_eq!(&value[..len], name.as_bytes());
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o7777, mode);
        }
    }
}

#[test]
fn contradictory_options_are_explained() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    let fails = |args: &[&str]| run_to_fail(pagefold().args(["pack", "-o", &at("image")]).args(args));
    let message = fails(&["--fragments", &at("tree")]);
    let advice = format!("write --fragments=tails {}", at("tree"));
    assert!(message.contains("not tails or all") && message.contains(&advice), "{message}");
    for pattern in ["", "/"] {
        let message = fails(&[&at("tree"), "--exclude", pattern]);
        assert!(message.contains(&format!("--exclude '{pattern}': the pattern is empty")), "{message}");
    }
    assert!(!fs::exists(at("image")).expect("a folder"));
    for (number, way) in ["--fragments=tails", "--fragments=all"].into_iter().enumerate() {
        output(pagefold().args(["pack", way, &at("tree"), "-o", &at(&format!("image-{number}"))]));
    }
    output(pagefold().args(["pack", &at("tree"), "-o", &at("image"), "--fragments"]));
}

/// If the system refuses threads, the program works without them or reports an error.
#[test]
fn missing_threads_cause_no_panic() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/text"), "a line of some text\n".repeat(100_000)).expect("a file");
    for threads in ["5000", "1000000"] {
        output(pagefold().args(["pack", &at("tree"), "-o", &at("image"), "--threads", threads]));
        output(pagefold().args(["check", &at("image"), "--threads", threads]));
        output(pagefold().args(["extract", &at("image"), "-C", &at(threads), "--threads", threads]));
    }
    let without_threads = || {
        let mut pagefold = pagefold();
        // No system has room for such a stack.
        pagefold.env("RUST_MIN_STACK", (1u64 << 50).to_string());
        pagefold
    };
    let message = run_to_fail(without_threads().args(["pack", &at("tree"), "-o", &at("other")]));
    assert!(message.contains("starting a thread") && !message.contains("panicked"), "{message}");
    output(without_threads().args(["check", &at("image"), "--threads", "50"]));
    output(without_threads().args(["extract", &at("image"), "-C", &at("out"), "--threads", "50"]));
}

#[test]
fn plain_files_are_packed_in_chunks() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    let same: Vec<u8> = (0..65_536u32).map(|number| ((number * number) >> 7) as u8).collect();
    fs::write(at("tree/first"), [&same[..], b"first"].concat()).expect("a file");
    fs::write(at("tree/second"), [&same[..], b"second"].concat()).expect("a file");
    let pack = |options: &[&str]| {
        let mut command = pagefold();
        command.args(["pack", &at("tree"), "-o", &at("image")]).args(options);
        command
    };
    output(&mut pack(&["--codec", "none", "--chunk", "16K", "--xattr-prefix", "user.of-no-file."]));
    assert!(fs::metadata(at("image")).expect("an image").len() < 2 * 65_536);
    let info = output(pagefold().args(["info", &at("image")]));
    assert!(info.contains("incompatible 0x4: checksum, modification times, chunks\n"), "{info}");
    assert!(output(pagefold().args(["check", &at("image")])).starts_with("sound: 3 inodes"));
    output(pagefold().args(["extract", &at("image"), "-C", &at("out")]));
    assert_eq!(fs::read(at("out/second")).expect("the file"), fs::read(at("tree/second")).expect("a file"));
    for (options, why) in [
        (
            &["--codec", "none", "--chunk", "12K"][..],
            "the chunk size must be a power of two from the block size to 16 MiB",
        ),
        (&["--codec", "none", "--chunk", "32M"], "the chunk size must be a power of two from the block size to 16 MiB"),
        (&["--codec", "none", "--chunk", "8G"], "the chunk size is too large"),
        (&["--chunk", "16K"], "chunks need uncompressed files"),
        (&["--xattr-prefix", "overlay."], "the xattr prefix 'overlay.' must be longer than user."),
    ] {
        let message = run_to_fail(&mut pack(options));
        assert!(message.contains(why), "{message}");
    }
}

/// Neither the image nor the memory depends on the length of the holes, which are not read.
#[test]
fn a_disk_that_is_almost_only_zeros_takes_no_more_than_its_data() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    let disk = fs::File::create(at("tree/disk")).expect("a file");
    disk.set_len(100 << 30).expect("a file system with holes");
    disk.write_all_at(&[7; 4096], 70 << 30).expect("a page");
    fs::write(at("tree/text"), "some text\n".repeat(1000)).expect("a file");
    output(Command::new("tar").args(["-C", &at("tree"), "--sparse", "-cf", &at("tree.tar"), "."]));
    for source in ["tree/disk", "tree", "tree.tar"] {
        for more in [&[][..], &["--codec", "zstd", "--dedupe", "--fragments=tails"], &["--verify", "--ztailpacking"]] {
            let mut pack = under("-d 49152");
            pack.args(["pack", "--threads", "2"]).args(more).args([&at(source), "-o", &at("image")]);
            let ended = pack.output().expect("the program starts");
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success() && said.contains("Linux 6.15"), "{source} {more:?}: {said}");
            let bytes = fs::metadata(at("image")).expect("an image").len();
            assert!(bytes <= 20 << 10, "{source} {more:?}: {bytes}");
            output(under("-d 49152").args(["check", "--threads", "2", &at("image")]));
        }
    }
    output(under("-d 49152").args(["extract", "--threads", "2", &at("image"), "-C", &at("out")]));
    let extracted = fs::File::open(at("out/disk")).expect("a file");
    let metadata = extracted.metadata().expect("its length");
    assert!(metadata.len() == 100 << 30 && metadata.blocks() * 512 <= 64 << 10, "{metadata:?}");
    let mut page = [0; 4096];
    extracted.read_exact_at(&mut page, 70 << 30).expect("a page");
    assert_eq!(page, [7; 4096]);
    // Without a codec, chunks take more bytes, but any Linux reads them.
    for (indexes, needs, most) in [("auto", true, 20 << 10), ("compact", false, 2 << 20)] {
        let said = Command::new(env!("CARGO_BIN_EXE_pagefold"))
            .args(["pack", "--codec", "none", "--indexes", indexes, &at("tree/disk"), "-o", &at("image")])
            .output()
            .expect("the program starts");
        let is_printed = String::from_utf8_lossy(&said.stderr).contains("Linux 6.15");
        assert!(said.status.success() && is_printed == needs, "{indexes}: {said:?}");
        let bytes = fs::metadata(at("image")).expect("an image").len();
        assert!(bytes <= most, "{indexes}: {bytes}");
    }
}

/// Indexes take space by the length of a file, but no memory.
#[test]
fn a_file_with_indexes_takes_no_memory_by_its_length() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let disk = fs::File::create(at("disk")).expect("a file");
    disk.set_len(32 << 30).expect("a file system with holes");
    disk.write_all_at(&[7; 4096], 20 << 30).expect("a page");
    let pack = ["pack", "--indexes", "compact", "--threads", "2", &at("disk"), "-o", &at("image")];
    output(under("-d 49152").args(pack));
    let bytes = fs::metadata(at("image")).expect("an image").len();
    assert!(bytes > 64 << 20, "{bytes}");
    output(under("-d 49152").args(["check", "--threads", "2", &at("image")]));
}
