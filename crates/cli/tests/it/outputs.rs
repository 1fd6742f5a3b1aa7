//! Outputs replace no input, and no file of another kind without `--force`.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pagefold_testing::{
    certificates::{Authority, Valid},
    programs, skip_for_good,
};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::{
    files::Place,
    server::{Server, make_image, pagefold, run, run_to_fail},
};

pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain path").to_owned()
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        fs::create_dir_all(self.path(name).parent().expect("a folder")).expect("a folder");
        fs::write(self.path(name), content).expect("a file");
    }

    fn tar(&self, name: &str) -> String {
        let archive = self.at(&format!("{name}.tar"));
        run(Command::new("tar").args(["-C", &self.at(name), "-cf", &archive, "."]));
        archive
    }

    /// Runs a command that must fail, change no file and leave none. Returns its message.
    #[track_caller]
    pub(crate) fn refuses(&self, command: &mut Command) -> String {
        let before = self.content();
        let message = run_to_fail(command);
        assert!(self.content() == before, "{command:?} changed something: {message}");
        message
    }

    fn content(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let entry = entry.expect("an entry");
                let kind = entry.file_type().expect("a kind");
                let content = kind.is_file().then(|| fs::read(entry.path()).expect("a file"));
                if kind.is_dir() {
                    folders.push(entry.path());
                }
                found.push((entry.path(), content));
            }
        }
        found.sort();
        found
    }
}

pub(crate) fn pack(args: &[&str]) -> Command {
    let mut command = pagefold();
    command.arg("pack").args(args);
    command
}

/// A server's lines are appended to a log only, by whatever name a file is reached.
#[test]
fn a_log_is_appended_to_no_file_of_another_kind() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("base.img", &[1; 8192]);
    folder.write("serve.toml", b"size = \"1M\"\n");
    folder.write("other.toml", format!("size = \"1M\"\nlog-file = {:?}\n", at("base.img")).as_bytes());
    fs::hard_link(at("base.img"), at("hard")).expect("a link");
    std::os::unix::fs::symlink("base.img", at("soft")).expect("a link");
    let place = at("place");
    fs::create_dir(&place).expect("a folder");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).expect("a mode");
    for lock in ["", "4194303\n"] {
        folder.write("place/lock", lock.as_bytes());
        for (args, log) in [
            (&["--format", "raw", &at("base.img")][..], "base.img"),
            (&["--format", "raw", &at("base.img")], "hard"),
            (&["--format", "raw", &at("base.img")], "soft"),
            (&["--config", &at("serve.toml")], "serve.toml"),
            (&["--size", "1M"], "place/lock"),
            (&["--config", &at("other.toml")], ""),
        ] {
            let mut command = pagefold();
            command.arg("serve").args(args).args(["--dir", &place]);
            let given = if log.is_empty() { at("base.img") } else { at(log) };
            if !log.is_empty() {
                command.args(["--log-file", &given]);
            }
            let message = folder.refuses(&mut command);
            assert!(message.contains(&given) && message.contains("name another file for the log"), "{message}");
        }
    }
    folder.write("log", b"2026-01-31T23:59:59Z pagefold: stopping\n");
    folder.write("empty", b"");
    for log in ["log", "empty", "new"] {
        let before = fs::read(at(log)).unwrap_or_default();
        run(pagefold().args(["serve", "--size", "1M", "--dir", &place, "--log-file", &at(log), "--run", "true"]));
        let after = fs::read(at(log)).expect("a log");
        assert!(after.starts_with(&before) && after.len() > before.len(), "{log}");
    }
}

/// Neither at the start nor later, by whatever name it is reached.
#[test]
fn a_log_is_not_served() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    let log = b"2026-01-31T23:59:59Z pagefold: stopping\n".repeat(512);
    folder.write("log", &log);
    folder.write("base.erofs", b"");
    fs::hard_link(at("log"), at("hard")).expect("a link");
    std::os::unix::fs::symlink("log", at("soft")).expect("a link");
    let server = Server::start(&["--size", "1M", "--log-file", &at("log")]);
    for name in ["log", "hard", "soft"] {
        let mut add = server.ask(&["add", "base", "--base", &at(name), "--format", "raw"]);
        let mut serve = pagefold();
        serve.args(["serve", "--format", "raw", &at(name), "--dir", &at("other"), "--log-file", &at("log")]);
        for command in [&mut add, &mut serve] {
            let message = run_to_fail(command);
            assert!(message.contains("this server writes its log to it"), "{message}");
        }
    }
    run(pagefold().args(["pack", &at("log"), "--format", "raw", "-o", &at("base.erofs")]));
    let message = run_to_fail(&mut server.ask(&["add", "base", "--base", &at("base.erofs"), "--device", &at("soft")]));
    assert!(message.contains("this server writes its log to it"), "{message}");
    assert!(fs::read(at("log")).expect("a log").starts_with(&log));
    // Standard error of a shell: `2>>disk.bin`.
    folder.write("disk.bin", &[7; 8192]);
    let errors = fs::OpenOptions::new().append(true).open(at("disk.bin")).expect("the file");
    let mut serve = pagefold();
    serve.args(["serve", "--format", "raw", &at("disk.bin"), "--dir", &at("other"), "--run", "true"]);
    let status = serve.stderr(errors).status().expect("the program");
    let written = fs::read(at("disk.bin")).expect("the file").split_off(8192);
    let message = String::from_utf8_lossy(&written);
    assert!(!status.success() && message.contains("this server writes its log to it"), "{message}");
}

/// Opening a pipe would wait for its reader.
#[test]
fn a_log_is_a_file_or_a_terminal() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).expect("a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
    for name in ["pipe", "socket", "."] {
        let message =
            run_to_fail(pagefold().args(["serve", "--size", "1M", "--dir", &at("place"), "--log-file", &at(name)]));
        assert!(message.contains("name another file for the log"), "{message}");
    }
    // Standard error is a pipe here.
    for name in ["/dev/stderr", "/dev/null"] {
        run(pagefold().args(["serve", "--size", "1M", "--dir", &at("place"), "--log-file", name, "--run", "true"]));
    }
}

#[test]
fn no_source_is_replaced() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/n.txt", b"precious");
    folder.write("s/d/more", b"more");
    let archive = folder.tar("s");
    folder.write("disk.bin", &[7; 8192]);
    fs::hard_link(at("s/n.txt"), at("hard")).expect("a link");
    std::os::unix::fs::symlink("s/n.txt", at("soft")).expect("a link");
    std::os::unix::fs::symlink("s", at("folder")).expect("a link");
    run(&mut pack(&[&at("s"), "-o", &at("old.erofs")]));
    fs::hard_link(at("old.erofs"), at("s/d/image")).expect("a link");
    for force in [&[][..], &["--force"]] {
        for (source, output, what) in [
            ("s", "s/n.txt", "is in the source"),
            ("s", "soft", "is in the source"),
            ("s", "folder/d/more", "is in the source"),
            ("folder", "s/n.txt", "is in the source"),
            ("s", "s/d/../n.txt", "is in the source"),
            ("s", "hard", ""),
            ("s", "old.erofs", "cannot replace its own source"),
            ("old.erofs", "old.erofs", "an output never replaces an input"),
            ("old.erofs", "s/d/image", "an output never replaces an input"),
            ("disk.bin", "disk.bin", "an output never replaces an input"),
        ] {
            let message = folder.refuses(pack(&[&at(source), "-o", &at(output)]).args(force));
            assert!(message.contains(what) && message.contains(&at("")), "{source}, {output}: {message}");
            assert!(!message.contains("--skip-unreadable"), "{message}");
        }
        // Endings of other formats are refused before that.
        fs::copy(&archive, at("archive")).expect("a copy");
        let message = folder.refuses(pack(&[&at("s"), &at("archive"), "-o", &at("archive")]).args(force));
        assert!(message.contains("is the source"), "{message}");
        let message = folder.refuses(pack(&[&archive, "-o", &archive]).args(force));
        assert!(message.contains("is named like a file of another format"), "{message}");
        // Standard streams lead to files too.
        let open = || File::open(at("archive")).expect("an archive");
        let message = folder.refuses(pack(&["-", "-o", &at("archive")]).args(force).stdin(open()));
        assert!(message.contains("is standard input"), "{message}");
        let append = |name: &str| OpenOptions::new().append(true).open(at(name)).expect("a file");
        for (source, output) in [("s", "s/n.txt"), ("disk.bin", "disk.bin"), ("s", "hard")] {
            let message = folder.refuses(pack(&[&at(source), "-o", "-"]).args(force).stdout(append(output)));
            assert!(message.contains(&at(output)) || message.contains("another name"), "{message}");
        }
    }
    // An image that the shell has just made is empty.
    let out = File::create(at("s/new")).expect("a file");
    run(pack(&[&at("s"), "-o", "-"]).stdout(out));
    let list = run(pagefold().args(["ls", &at("s/new")]));
    assert_eq!(list, "d\nn.txt\n");
    // A pipe is no place for itself.
    run(Command::new("mkfifo").arg(at("pipe")));
    let message = run_to_fail(&mut pack(&[&at("pipe"), "-o", &at("pipe")]));
    assert!(message.contains("an output never replaces an input"), "{message}");
    let message = run_to_fail(
        pagefold()
            .args(["cat", &(at("old.erofs") + ":n.txt")])
            .stdout(OpenOptions::new().append(true).open(at("old.erofs")).expect("a file")),
    );
    assert!(message.contains("is the image"), "{message}");
}

#[test]
fn an_earlier_image_in_a_source_is_left_out() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/n.txt", b"precious");
    for name in ["s/image.erofs", "s/*?.erofs", "s/d[1]"] {
        for _ in 0..2 {
            let mut command = pack(&["-T", "0", ".", "-o", name.strip_prefix("s/").expect("a name")]);
            run(command.current_dir(at("s")));
            run(pagefold().args(["check", "-T", "0", "--against", &at("s"), &at(name)]));
            assert_eq!(run(pagefold().args(["ls", &at(name)])), "n.txt\n");
        }
        fs::remove_file(at(name)).expect("an image");
    }
    let Some([mount, umount]) = programs("an_earlier_image_in_a_source_is_left_out", ["mount", "umount"]) else {
        return;
    };
    fs::create_dir(at("bound")).expect("a folder");
    let bound = Command::new(mount).args(["--bind", &at("s"), &at("bound")]).stderr(Stdio::null()).status();
    if !bound.is_ok_and(|status| status.success()) {
        return skip_for_good("an_earlier_image_in_a_source_is_left_out (bind mounts)", "mounting needs root");
    }
    let message = run_to_fail(&mut pack(&[&at("s"), "-o", &at("bound/n.txt"), "--force"]));
    for _ in 0..2 {
        run(&mut pack(&[&at("s"), "-o", &at("bound/image")]));
    }
    let list = run(pagefold().args(["ls", &at("s/image")]));
    run(Command::new(umount).arg(at("bound")));
    assert!(message.contains("is in the source"), "{message}");
    assert_eq!(fs::read(at("s/n.txt")).expect("a file"), b"precious");
    assert_eq!(list, "n.txt\n");
}

/// A loop device, detached when this value is dropped.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn over(test: &str, file: &str) -> Option<Self> {
        Self::with(test, &["--partscan", file])
    }

    fn with(test: &str, args: &[&str]) -> Option<Self> {
        if !geteuid().is_root() {
            skip_for_good(test, "loop devices need root");
            return None;
        }
        let [losetup] = programs(test, ["losetup"])?;
        let made = Command::new(losetup).args(["--find", "--show"]).args(args).output().expect("a start");
        let device = Self(String::from_utf8_lossy(&made.stdout).trim().to_owned());
        let is_there = fs::metadata(&device.0).is_ok_and(|found| found.file_type().is_block_device());
        if !made.status.success() || !is_there {
            skip_for_good(test, "no loop devices here");
            return None;
        }
        Some(device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

#[test]
fn a_device_over_an_input_is_an_input() {
    const TEST: &str = "a_device_over_an_input_is_an_input";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/n.txt", b"precious");
    let mut disk = vec![0; 4 << 20];
    // A partition table with one partition of 2 MiB at 1 MiB.
    disk[446..462].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    folder.write("disk", &disk);
    let Some(device) = Loop::over(TEST, &at("disk")) else { return };
    let before = fs::read(at("disk")).expect("a disk");
    let refuses = |source: &str, output: &str| {
        let message = run_to_fail(&mut pack(&[source, "-o", output, "--force"]));
        let is_named = message.contains("an output never replaces an input") || message.contains("shares its storage");
        assert!(is_named, "{source}, {output}: {message}");
    };
    refuses(&device.0, &device.0);
    refuses(&at("disk"), &device.0);
    refuses(&device.0, &at("disk"));
    let partition = format!("{}p1", device.0);
    if fs::exists(&partition).expect("a folder") {
        for other in [device.0.clone(), at("disk")] {
            refuses(&partition, &other);
            refuses(&other, &partition);
        }
        run(&mut pack(&[&at("s"), "-o", &partition]));
    } else {
        skip_for_good("a_device_over_an_input_is_an_input (a partition)", "no partitions of loop devices here");
    }
    assert!(fs::read(at("disk")).expect("a disk")[..1 << 20] == before[..1 << 20]);
}

/// A loop device is its file whatever names the file has, also below another loop device.
#[test]
fn a_device_over_an_input_is_found_without_its_name() {
    const TEST: &str = "a_device_over_an_input_is_found_without_its_name";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    make_image(&folder.path("disk.img"), 4);
    fs::hard_link(at("disk.img"), at("other")).expect("a link");
    let Some(lower) = Loop::over(TEST, &at("other")) else { return };
    let Some(upper) = Loop::over(TEST, &lower.0) else { return };
    fs::remove_file(at("other")).expect("a file");
    // The system still shows this name for the removed file below the device: the new file is another.
    folder.write("other", b"another");
    let server = Server::start(&[&at("disk.img")]);
    for device in [&lower.0, &upper.0] {
        for command in [
            &mut pack(&[&at("disk.img"), "-o", device, "--force"]),
            &mut server.ask(&["freeze", "disk", "-o", device, "--force"]),
            &mut server.ask(&["diff", "disk", "--to", device, "--force"]),
        ] {
            let message = folder.refuses(command);
            assert!(message.contains("shares its storage"), "{command:?}: {message}");
        }
        let mut serve = pagefold();
        serve.args(["serve", &at("disk.img"), "--dir", &at("second"), "--log-file", device]);
        let message = folder.refuses(&mut serve);
        assert!(message.contains("name another file for the log"), "{message}");
        let message = folder.refuses(&mut pack(&[device, "--format", "raw", "-o", &at("disk.img"), "--force"]));
        assert!(message.contains("shares its storage"), "{message}");
    }
}

#[test]
fn two_devices_over_one_file_share_it_where_they_overlap() {
    const TEST: &str = "two_devices_over_one_file_share_it_where_they_overlap";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    make_image(&folder.path("disk.img"), 4);
    let disk = &*at("disk.img");
    let Some(whole) = Loop::over(TEST, disk) else { return };
    let Some(another) = Loop::over(TEST, disk) else { return };
    let Some(nested) = Loop::over(TEST, &another.0) else { return };
    let Some(start) = Loop::with(TEST, &["--sizelimit", "1048576", disk]) else { return };
    let Some(end) = Loop::with(TEST, &["--offset", "1048576", disk]) else { return };
    let server = Server::start(&[&format!("base={}", whole.0)]);
    for other in [&another.0, &nested.0, &start.0, &end.0] {
        for command in [
            &mut pack(&[&whole.0, "--format", "raw", "-o", other, "--force"]),
            &mut pack(&[other, "--format", "raw", "-o", &whole.0, "--force"]),
            &mut server.ask(&["freeze", "base", "-o", other, "--force"]),
        ] {
            let message = folder.refuses(command);
            assert!(message.contains("shares its storage"), "{command:?}: {message}");
        }
    }
    drop(server);
    // Bytes that no other has.
    run(&mut pack(&[&start.0, "--format", "raw", "-o", &end.0, "--force"]));
    assert!(run(pagefold().args(["check", &end.0])).contains("sound"));
}

#[test]
fn a_disk_is_not_frozen_onto_itself() {
    const TEST: &str = "a_disk_is_not_frozen_onto_itself";
    let folder = Folder::new();
    let Some(place) = Place::new(TEST) else { return };
    let server = Server::start(&["--size", "4M", "--name", "disk", "--files", place.text()]);
    run(&mut server.ask(&["disks"]));
    let file = format!("{}/disk", place.text());
    let content = [[0; 1 << 20], [7; 1 << 20], [7; 1 << 20], [0; 1 << 20]].concat();
    OpenOptions::new().write(true).open(&file).and_then(|mut disk| disk.write_all(&content)).expect("a write");
    let device = Loop::over(TEST, &file);
    for output in device.iter().map(|device| &*device.0).chain([&*file]) {
        for command in [
            &mut server.ask(&["freeze", "disk", "--format", "raw", "-o", output]),
            &mut server.ask(&["diff", "disk", "--to", output]),
        ] {
            let message = folder.refuses(command);
            assert!(message.contains("the disk "), "{command:?}: {message}");
        }
    }
    assert!(fs::read(&file).expect("a disk") == content);
}

#[test]
fn a_device_gets_a_whole_image_or_keeps_its_content() {
    const TEST: &str = "a_device_gets_a_whole_image_or_keeps_its_content";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/text", &"some text\n".repeat(9000).into_bytes());
    make_image(&folder.path("base.raw"), 3);
    File::create(at("disk")).and_then(|disk| disk.set_len(2 << 20)).expect("a disk");
    let Some(device) = Loop::over(TEST, &at("disk")) else { return };
    let fails = |command: &mut Command, words: &[&str]| {
        let message = folder.refuses(command);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    let sizes = [&device.0, " has 2 MiB, and the output needs ", "nothing was written"];
    fails(&mut pack(&[&at("base.raw"), "--codec", "none", "-o", &device.0]), &sizes);
    run(&mut pack(&[&at("s"), "-o", &device.0]));
    assert!(run(pagefold().args(["check", &device.0])).contains("sound"));
    // An image may be replaced, but stays if there is no room for the new one.
    fails(&mut pack(&[&at("base.raw"), "--codec", "none", "-o", &device.0]), &sizes);
    run(&mut pack(&[&at("s"), "--codec", "zstd", "-o", &device.0]));
    run(pagefold().args(["check", "--against", &at("s"), &device.0]));

    let Some(read_only) = Loop::with(TEST, &["--read-only", &at("disk")]) else { return };
    fails(&mut pack(&[&at("s"), "-o", &read_only.0, "--force"]), &["is a read-only device: nothing was written"]);

    let server = Server::start(&[&at("base.raw"), "--export", "name=small,size=1M"]);
    let needs = [sizes[0], " has 2 MiB, and the output needs 3 MiB"];
    fails(&mut server.ask(&["freeze", "base", "--force", "-o", &device.0]), &needs);
    let holds = [&device.0, "2 MiB, holds an EROFS image", "--force"];
    fails(&mut server.ask(&["freeze", "small", "-o", &device.0]), &holds);
    fails(&mut server.ask(&["freeze", "small", "--format", "qcow2", "-o", &device.0]), &holds);
    run(&mut server.ask(&["freeze", "small", "--force", "--format", "qcow2", "-o", &device.0]));
    assert!(fs::read(&device.0).expect("a disk").starts_with(b"QFI\xfb"));
    run(&mut server.ask(&["freeze", "small", "--force", "-o", &device.0]));
    assert!(fs::read(&device.0).expect("a disk")[..1 << 20].iter().all(|byte| *byte == 0));
}

#[test]
fn no_file_of_a_server_is_replaced() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    make_image(&folder.path("base.img"), 1);
    run(&mut pack(&[&at("base.img"), "-o", &at("packed.erofs")]));
    fs::hard_link(at("packed.erofs"), at("hard.erofs")).expect("a link");
    fs::write(at("serve.toml"), "").expect("a file");
    let own = [at("log"), at("pid"), at("serve.toml")];
    Authority::new().server(&folder.path("tls"), Valid::Now);
    let server = Server::start(&[
        &at("base.img"),
        &at("packed.erofs"),
        "--log-file",
        &own[0],
        "--pid-file",
        &own[1],
        "--config",
        &own[2],
        "--tls-certificates",
        &at("tls"),
    ]);
    fs::hard_link(&own[0], at("other name")).expect("a link");
    let place = |name: &str| server.folder().join(name).to_str().expect("a plain path").to_owned();
    run(&mut server.ask(&["fork", "packed", "job"]));
    for (output, what) in [
        (at("base.img"), "an output never replaces an input"),
        (at("packed.erofs"), "is the server's base"),
        (at("hard.erofs"), "is the server's base"),
        (place("lock"), "is the server's lock"),
        (at("log"), "is the server's own file"),
        (at("other name"), "is the server's own file"),
        (at("pid"), "is the server's own file"),
        (at("serve.toml"), "is the server's own file"),
        (at("tls/server-key.pem"), "is the server's own file"),
        (at("tls/ca-cert.pem"), "is the server's own file"),
        (place("nbd.sock"), "is a socket"),
    ] {
        let name = Path::new(&output).extension().is_some_and(|extension| extension == "erofs");
        let format: &[&str] = if name { &[] } else { &["--format", "raw"] };
        let lock = fs::read(place("lock")).expect("a lock");
        for disk in ["base", "job"] {
            let message = folder.refuses(server.ask(&["freeze", disk, "--force", "-o", &output]).args(format));
            assert!(message.contains(what) && message.contains(&output), "{message}");
        }
        if !name {
            let message = folder.refuses(&mut server.ask(&["diff", "job", "--force", "--to", &output]));
            assert!(message.contains(what), "{message}");
        }
        assert_eq!(fs::read(place("lock")).expect("a lock"), lock);
    }
    // The file stays a base after its disk was dropped, because another disk reads it.
    run(&mut server.ask(&["drop", "packed"]));
    let message = folder.refuses(&mut server.ask(&["freeze", "job", "--force", "-o", &at("packed.erofs")]));
    assert!(message.contains("is the server's base"), "{message}");
}

/// A server's bases are the files that it has open, wherever their paths lead by now.
#[test]
fn no_base_is_replaced_once_its_path_leads_elsewhere() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    for name in ["named.img", "linked.img"] {
        make_image(&folder.path(name), 1);
    }
    std::os::unix::fs::symlink("linked.img", at("link.img")).expect("a link");
    let server = Server::start(&[&at("named.img"), &at("link.img")]);
    run(&mut server.ask(&["fork", "named", "job"]));
    fs::rename(at("named.img"), at("renamed.img")).expect("a new name");
    fs::remove_file(at("link.img")).expect("a link");
    std::os::unix::fs::symlink("renamed.img", at("link.img")).expect("a link");
    for output in ["renamed.img", "linked.img"] {
        for args in [&["freeze", "job", "--force", "-o"][..], &["diff", "job", "--force", "--to"]] {
            let message = folder.refuses(&mut server.ask(&[args, &[&at(output)]].concat()));
            assert!(message.contains("the server's base") && message.contains("replaces an input"), "{message}");
        }
    }
    run(&mut server.ask(&["freeze", "job", "-o", &at("named.img")]));
}

/// An image of changes does not outlive the image below it.
#[test]
fn no_device_of_a_served_base_is_replaced() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    make_image(&folder.path("base.img"), 1);
    run(&mut pack(&[&at("base.img"), "-o", &at("base.erofs")]));
    let server = Server::start(&[&at("base.erofs")]);
    run(&mut server.ask(&["fork", "base", "job"]));
    run(&mut server.ask(&["freeze", "job", "--backing", "-o", &at("delta.erofs")]));
    drop(server);
    for log in ["base.erofs", "delta.erofs"] {
        let mut serve = pagefold();
        serve.args(["serve", &at("delta.erofs"), "--device", &at("base.erofs"), "--dir", &at("server")]);
        let message = folder.refuses(serve.args(["--log-file", &at(log)]));
        assert!(message.contains("name another file for the log"), "{message}");
    }

    for link in ["hard.erofs", "hard.raw"] {
        fs::hard_link(at("base.erofs"), at(link)).expect("a link");
    }
    std::os::unix::fs::symlink("hard.erofs", at("soft.erofs")).expect("a link");
    let server = Server::start(&[&at("delta.erofs"), "--device", &at("soft.erofs")]);
    run(&mut server.ask(&["fork", "delta", "job"]));
    let refuses = |args: &[&str], output: &str| {
        let message = folder.refuses(&mut server.ask(&[args, &[&at(output)]].concat()));
        let of = format!("{} is the base's device {}", at(output), at("soft.erofs"));
        assert!(message.contains(&of), "{args:?}: {message}");
    };
    for _ in 0..2 {
        for disk in ["delta", "job"].iter().filter(|disk| run(&mut server.ask(&["disks"])).contains(**disk)) {
            for output in ["base.erofs", "hard.erofs", "soft.erofs"] {
                refuses(&["freeze", disk, "-o"], output);
                refuses(&["freeze", disk, "--force", "-o"], output);
            }
            refuses(&["freeze", disk, "--format", "raw", "--force", "-o"], "hard.raw");
        }
        refuses(&["diff", "job", "--force", "--to"], "hard.raw");
        // They stay devices after the base was dropped, because another disk reads them.
        let _ = server.ask(&["drop", "delta"]).output().expect("a start");
    }
}

#[test]
fn other_commands_replace_only_their_own_files() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/n.txt", b"precious");
    run(&mut pack(&[&at("s"), "-o", &at("image.erofs")]));
    // Manual pages.
    folder.write("man/pagefold-serve.1", b"mine");
    let message = folder.refuses(pagefold().args(["man", "--to", &at("man")]));
    assert!(message.contains("pagefold-serve.1 exists and is not a manual page"), "{message}");
    run(pagefold().args(["man", "--force", "--to", &at("man")]));
    assert!(fs::read_to_string(at("man/pagefold-serve.1")).is_ok_and(|page| page.contains(".TH pagefold-serve")));
    run(pagefold().args(["man", "--to", &at("man")]));
    // Process IDs.
    let serve = |path: &str| {
        let mut command = pagefold();
        command.args(["serve", "--size", "1M", "--pid-file", path, "--dir", &at("dir")]);
        command
    };
    run(Command::new("mkfifo").arg(at("pipe")));
    for (path, what) in [
        (at("image.erofs"), "image.erofs exists and is an EROFS image: write to another file"),
        (at("s/n.txt"), "is not an unlocked file with a process ID"),
        (at("pipe"), "is not a file"),
    ] {
        let message = folder.refuses(&mut serve(&path));
        assert!(message.contains(what), "{message}");
    }
    folder.write("number.img", b"4194303\n");
    let mut command = serve(&at("number.img"));
    let message = folder.refuses(command.arg(format!("number={}", at("number.img"))).args(["--run", "true"]));
    assert!(message.contains("an output never replaces an input"), "{message}");
    let message = folder.refuses(serve(&at("one")).args(["--log-file", &at("one"), "--run", "true"]));
    assert!(message.contains("need a file each"), "{message}");
    folder.write("pid", b"4194303\n");
    let server = Server::start(&["--size", "1M", "--pid-file", &at("pid")]);
    // The lock of a running server, and that of the server itself.
    let lock = server.folder().join("lock");
    let before = fs::read(&lock).expect("a lock");
    let message = run_to_fail(&mut serve(lock.to_str().expect("a plain path")));
    assert_eq!(fs::read(&lock).expect("a lock"), before);
    assert!(message.contains("lock exists and is not an unlocked file"), "{message}");
    folder.write("dir/lock", b"4194303\n");
    fs::set_permissions(at("dir"), fs::Permissions::from_mode(0o700)).expect("a mode");
    let message = run_to_fail(&mut serve(&at("dir/lock")));
    assert!(message.contains("lock exists and is not an unlocked file"), "{message}");
    assert_eq!(fs::read_dir(at("dir")).expect("a folder").count(), 1);
    run(&mut server.ask(&["disks"]));
    assert!(server.end(Signal::TERM).0.success());
    // Logs.
    let mounts = |log: &str| {
        let mut command = pagefold();
        command.args(["mount", "--log", &at(log), &at("image.erofs"), &at("s")]);
        command
    };
    fs::hard_link(at("image.erofs"), at("log")).expect("a link");
    for log in ["image.erofs", "log"] {
        let message = folder.refuses(&mut mounts(log));
        assert!(message.contains("is the image"), "{message}");
    }
}
