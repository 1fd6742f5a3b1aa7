//! Disks of a running server that are saved as images.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use pagefold_testing::{programs, skip_for_good};

use crate::server::{Ended, Server, make_image, pagefold, run, run_to_fail};

const PAGE: usize = 4096;

/// A user's disk, an image of it, and a server of that image.
struct Frozen {
    folder: tempfile::TempDir,
    server: Server,
    qemu_io: PathBuf,
    qemu_img: PathBuf,
    nbdcopy: PathBuf,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

impl Frozen {
    /// Returns `None` if a program is missing.
    fn start(test: &str, mib: usize, pack: &[&str]) -> Option<Self> {
        Self::start_over(test, mib, |disk, folder| {
            let image = folder.join("base.erofs");
            run(pagefold().arg("pack").args(pack).arg(disk).arg("-o").arg(&image));
            image
        })
    }

    /// The same with a base that `make` creates from a disk, in a directory.
    fn start_over(test: &str, mib: usize, make: impl Fn(&Path, &Path) -> PathBuf) -> Option<Self> {
        let [qemu_io, qemu_img, nbdcopy] = programs(test, ["qemu-io", "qemu-img", "nbdcopy"])?;
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("base.img");
        make_image(&disk, mib);
        let server = Server::start(&[text(&make(&disk, folder.path()))]);
        Some(Self { folder, server, qemu_io, qemu_img, nbdcopy })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the program's output, including warnings.
    fn ask(&self, args: &[&str]) -> String {
        let output = self.server.ask(args).current_dir(self.folder.path()).output().expect("the program starts");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        said
    }

    fn write(&self, disk: &str, commands: &[&str]) {
        let commands = commands.iter().flat_map(|command| ["-c", *command]);
        let said = run(Command::new(&self.qemu_io).args(["-f", "raw"]).args(commands).arg(self.server.uri(disk)));
        assert!(!said.contains("failed"), "{said}");
    }

    fn content(&self, disk: &str) -> Vec<u8> {
        let copy = self.at("copy");
        let _ = fs::remove_file(&copy);
        run(Command::new(&self.nbdcopy).arg(self.server.uri(disk)).arg(&copy));
        fs::read(copy).expect("a copy")
    }

    /// Checks an image and returns its content.
    fn unpacked(&self, image: &str) -> Vec<u8> {
        run(pagefold().arg("check").arg(self.at(image)));
        let content = Command::new(env!("CARGO_BIN_EXE_pagefold"))
            .args(["cat", &format!("{}:/disk.img", self.at(image).display())])
            .output()
            .expect("the program starts");
        assert!(content.status.success(), "{}", String::from_utf8_lossy(&content.stderr));
        content.stdout
    }

    /// Freezes a disk in all formats and compares each image with what clients read.
    fn check(&self, disk: &str) {
        let expected = self.content(disk);
        for (more, name) in [(&[][..], "a.erofs"), (&["--threads", "1"], "b.erofs"), (&["--verify"], "c.erofs")] {
            let said = self.ask(&[&["freeze", disk, "-o", name], more].concat());
            assert!(!said.contains("warning"), "{said}");
        }
        self.ask(&["freeze", disk, "--codec", "zstd,1", "--cluster", "64K", "-o", "d.erofs"]);
        self.ask(&["freeze", disk, "--force", "-o", "e.img"]);
        self.ask(&["freeze", disk, "-o", "f.qcow2"]);
        self.ask(&["freeze", disk, "--codec", "deflate,1", "-o", "g.qcow2"]);
        for image in ["f.qcow2", "g.qcow2"] {
            self.check_qcow2(image);
        }
        let image = fs::read(self.at("a.erofs")).expect("an image");
        for same in ["b.erofs", "c.erofs"] {
            assert!(fs::read(self.at(same)).expect("an image") == image, "{disk}: {same} is another image");
        }
        assert!(self.unpacked("a.erofs") == expected, "{disk}: the image holds something else");
        assert!(self.unpacked("d.erofs") == expected, "{disk}: the dense image holds something else");
        assert!(fs::read(self.at("e.img")).expect("a file") == expected, "{disk}: the file holds something else");
    }

    /// Lets QEMU check an image and compare it with a raw image of the same disk.
    fn check_qcow2(&self, image: &str) {
        run(Command::new(&self.qemu_img).arg("check").arg(self.at(image)));
        let mut compare = Command::new(&self.qemu_img);
        run(compare.args(["compare", "-f", "raw", "-F", "qcow2"]).arg(self.at("e.img")).arg(self.at(image)));
    }

    /// Returns the names in the directory, except for the copy.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("a folder");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name")).collect();
        names.retain(|name| name != "copy");
        names.sort();
        names
    }
}

#[test]
fn an_image_over_a_base_equals_the_disk() {
    frozen_images_hold_what_disks_do("an_image_over_a_base_equals_the_disk", &[]);
}

#[test]
fn an_image_over_a_dense_base_equals_the_disk() {
    let pack = ["--codec", "zstd,3", "--cluster", "64K", "--fragments=tails"];
    frozen_images_hold_what_disks_do("an_image_over_a_dense_base_equals_the_disk", &pack);
}

#[test]
fn an_image_over_an_uncompressed_base_equals_the_disk() {
    let pack = ["--codec", "none"];
    frozen_images_hold_what_disks_do("an_image_over_an_uncompressed_base_equals_the_disk", &pack);
}

/// Freezes disks over a base that `pack` makes with these options.
fn frozen_images_hold_what_disks_do(test: &str, pack: &[&str]) {
    let Some(frozen) = Frozen::start(test, 12, pack) else { return };
    frozen.check("base");
    frozen.ask(&["fork", "base", "job"]);
    frozen.check("job");
    frozen.write(
        "job",
        &["write -P 7 1001k 9k", "write -P 8 5M 1M", "write -z 2M 70k", "discard 8M 300k", "write -P 9 11M 1k"],
    );
    frozen.check("job");
    // Copied clusters are not compressed again.
    if pack.is_empty() {
        let blocks = |name: &str| -> std::collections::HashSet<_> {
            fs::read(frozen.at(name)).expect("an image").chunks(PAGE).map(<[u8]>::to_vec).collect()
        };
        let (known, new) = (blocks("base.erofs"), blocks("a.erofs"));
        assert!(new.difference(&known).count() * 8 < new.len(), "{} new blocks", new.difference(&known).count());
    }
    frozen.ask(&["snapshot", "job", "before"]);
    frozen.write("job", &["write -P 1 3M 20k", "write -P 2 0 512"]);
    frozen.ask(&["fork", "job", "grown"]);
    frozen.ask(&["resize", "grown", "13000192"]);
    frozen.write("grown", &["write -P 3 12690k 4k"]);
    frozen.ask(&["fork", "job", "shrunk"]);
    frozen.ask(&["resize", "--shrink", "shrunk", "6000128"]);
    for disk in ["job@before", "job", "grown", "shrunk"] {
        frozen.check(disk);
    }
    frozen.ask(&["add", "plain", "--size", "5000704"]);
    frozen.check("plain");
    frozen.write("plain", &["write -P 5 1M 5k", "write -z 2M 1M"]);
    frozen.check("plain");
    // An image of a disk can be used as a base.
    for (disk, image, more) in
        [("e", "job.erofs", &[][..]), ("q", "job.qcow2", &[]), ("c", "c.qcow2", &["--codec", "deflate"])]
    {
        frozen.ask(&[&["freeze", "job", "-o", image], more].concat());
        frozen.ask(&["add", disk, "--base", text(&frozen.at(image))]);
        assert!(frozen.content(disk) == frozen.content("job"), "{image}");
    }
    // No client reads an instant anymore.
    let listed = frozen.ask(&["disks"]);
    assert!(!listed.contains("instant"), "{listed}");
}

/// The client writes one page after another, round after round, and waits for each. At any instant,
/// all pages up to one are a round ahead of the rest.
#[test]
fn an_image_is_of_one_instant_of_a_disk_in_use() {
    const TEST: &str = "an_image_is_of_one_instant_of_a_disk_in_use";
    const PAGES: usize = 100;
    let Some(frozen) = Frozen::start(TEST, 2, &[]) else { return };
    frozen.ask(&["fork", "base", "job"]);
    frozen.write("job", &[&format!("write -P 1 0 {}k", 4 * PAGES)]);
    let mut writer = Ended(
        Command::new(&frozen.qemu_io)
            .args(["-f", "raw", &frozen.server.uri("job")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("qemu-io starts"),
    );
    let mut input = writer.0.stdin.take().expect("a pipe");
    let feeder = thread::spawn(move || {
        for round in 2..=250 {
            for page in 0..PAGES {
                if writeln!(input, "write -P {round} {}k 4k", 4 * page).is_err() {
                    return;
                }
            }
        }
    });
    let mut rounds = Vec::new();
    for number in 0..12 {
        let raw = number % 2 == 0;
        let format = if raw { "raw" } else { "erofs" };
        frozen.ask(&["freeze", "job", "--format", format, "--force", "-o", "now"]);
        let content = if raw { fs::read(frozen.at("now")).expect("a file") } else { frozen.unpacked("now") };
        let pages: Vec<u8> = content.chunks(PAGE).take(PAGES).map(|page| page[0]).collect();
        let torn = content.chunks(PAGE).take(PAGES).position(|page| page.iter().any(|byte| *byte != page[0]));
        let ahead = pages.iter().take_while(|round| **round == pages[0]).count();
        let is_instant = torn.is_none() && pages[ahead..].iter().all(|round| round + 1 == pages[0]);
        assert!(is_instant, "not of one instant: {torn:?}, {pages:?}");
        rounds.push((pages[0], ahead));
        thread::sleep(Duration::from_millis(30));
    }
    assert!(rounds.is_sorted() && rounds.first() != rounds.last(), "nothing was written during the freeze: {rounds:?}");
    drop(writer);
    feeder.join().expect("it ends");
}

#[test]
fn a_freeze_that_is_killed_leaves_the_old_file_or_the_new_one() {
    const TEST: &str = "a_freeze_that_is_killed_leaves_the_old_file_or_the_new_one";
    let Some(frozen) = Frozen::start(TEST, 12, &[]) else { return };
    frozen.ask(&["fork", "base", "job"]);
    frozen.write("job", &["write -P 7 1001k 9k"]);
    let slow = [10, 50, 100, 200, 400];
    for (more, after_ms) in [
        (&["--format", "erofs"][..], [1, 5, 10, 20, 40]),
        (&["--format", "erofs", "--codec", "zstd,9"], slow),
        (&["--format", "qcow2"], [1, 5, 10, 20, 40]),
        (&["--format", "qcow2", "--codec", "deflate,9"], slow),
    ] {
        frozen.ask(&[&["freeze", "job", "--force", "-o", "whole"], more].concat());
        let whole = fs::read(frozen.at("whole")).expect("an image");
        for after_ms in after_ms {
            fs::write(frozen.at("out"), "the old file").expect("a file");
            let mut command = frozen.server.ask(&[&["freeze", "job", "--force", "-o", "out"], more].concat());
            let mut child = command.current_dir(frozen.folder.path()).stderr(Stdio::null()).spawn().expect("it starts");
            // It is killed at whatever it is doing by then.
            thread::sleep(Duration::from_millis(after_ms));
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
            let found = fs::read(frozen.at("out")).expect("a file");
            assert!(found == b"the old file" || found == whole, "after {after_ms} ms: {} bytes", found.len());
        }
        fs::remove_file(frozen.at("out")).expect("the file");
        // Only a temporary name may remain, if the kill came between two steps.
        let names = frozen.names();
        let others: Vec<_> =
            names.iter().filter(|name| !["base.erofs", "base.img", "whole"].contains(&name.as_str())).collect();
        assert!(others.iter().all(|name| name.starts_with(".pagefold-")), "{names:?}");
    }
    // The server keeps no instant for clients that are gone.
    let exports = run(Command::new("nbdinfo").args(["--list", &frozen.server.uri("")]));
    assert!(!exports.contains("@instant"), "{exports}");
    frozen.check("job");
}

#[test]
fn a_full_target_keeps_its_old_file() {
    const TEST: &str = "a_full_target_keeps_its_old_file";
    if !rustix::process::geteuid().is_root() {
        return skip_for_good(TEST, "mounting needs root");
    }
    let Some(frozen) = Frozen::start(TEST, 12, &[]) else { return };
    let Some([mount, umount]) = programs(TEST, ["mount", "umount"]) else { return };
    let target = frozen.at("target");
    fs::create_dir(&target).expect("a folder");
    run(Command::new(mount).args(["-t", "tmpfs", "-osize=400k", "tmpfs"]).arg(&target));
    let out = target.join("out");
    fs::write(&out, "the old file").expect("a file");
    for format in ["erofs", "raw", "qcow2"] {
        let args = ["freeze", "base", "--force", "--format", format, "-o", text(&out)];
        let line = run_to_fail(&mut frozen.server.ask(&args));
        assert!(line.contains("No space left on device") && line.contains(text(&out)), "{line}");
        assert_eq!(fs::read(&out).expect("the file"), b"the old file", "{format}");
        let names = fs::read_dir(&target).expect("a folder").count();
        assert_eq!(names, 1, "{format} leaves something behind");
    }
    run(Command::new(umount).arg("-l").arg(&target));
}

#[test]
fn a_modified_base_is_not_copied() {
    const TEST: &str = "a_modified_base_is_not_copied";
    let Some(frozen) = Frozen::start(TEST, 4, &[]) else { return };
    frozen.ask(&["fork", "base", "job"]);
    frozen.write("job", &["write -P 7 1001k 9k"]);
    let expected = frozen.content("job");
    // The server still has the file that it opened.
    make_image(&frozen.at("other.img"), 8);
    run(pagefold().arg("pack").arg(frozen.at("other.img")).arg("-o").arg(frozen.at("base.erofs")));
    let said = frozen.ask(&["freeze", "job", "-o", "out.erofs"]);
    assert!(said.contains("it was changed or replaced since the server opened it"), "{said}");
    assert!(frozen.unpacked("out.erofs") == expected);
    fs::remove_file(frozen.at("base.erofs")).expect("the image");
    let said = frozen.ask(&["freeze", "job", "-o", "out.erofs"]);
    assert!(said.contains("No such file") && said.contains("compressing the whole disk"), "{said}");
    assert!(frozen.unpacked("out.erofs") == expected);
}

#[test]
fn an_image_above_the_base_has_the_changes() {
    const TEST: &str = "an_image_above_the_base_has_the_changes";
    for format in ["raw", "qcow2"] {
        let convert = |disk: &Path, folder: &Path| {
            let base = folder.join(format!("below.{format}"));
            let mut convert = Command::new("qemu-img");
            run(convert.args(["convert", "-f", "raw", "-O", format]).arg(disk).arg(&base));
            base
        };
        let Some(frozen) = Frozen::start_over(TEST, 12, convert) else { return };
        frozen.ask(&["fork", "below", "job"]);
        frozen.write(
            "job",
            &["write -P 7 1001k 9k", "write -z 2M 70k", "discard 4M 1M", "discard 6000k 4k", "write -P 9 11M 1k"],
        );
        frozen.ask(&["fork", "job", "grown"]);
        frozen.ask(&["resize", "grown", "14000128"]);
        frozen.ask(&["fork", "job", "shrunk"]);
        frozen.ask(&["resize", "--shrink", "shrunk", "6000128"]);
        frozen.ask(&["fork", "shrunk", "both"]);
        frozen.ask(&["resize", "both", "14000128"]);
        for disk in ["below", "job", "grown", "shrunk", "both"] {
            for more in [&[][..], &["--codec", "deflate"]] {
                frozen.ask(&["freeze", disk, "--force", "-o", "e.img"]);
                frozen.ask(&[&["freeze", disk, "--backing", "-o", "out.qcow2"], more].concat());
                frozen.check_qcow2("out.qcow2");
                let bytes = fs::metadata(frozen.at("out.qcow2")).expect("an image").len();
                assert!(bytes < 1 << 20, "{disk}: {bytes} bytes");
            }
        }
        fs::write(frozen.at("below").with_extension(format), "another file").expect("a file");
        let line = run_to_fail(&mut frozen.server.ask(&["freeze", "job", "--backing", "-o", "out.qcow2"]));
        assert!(line.contains("it was changed or replaced since the server opened it"), "{line}");
    }
    let Some(frozen) = Frozen::start(TEST, 2, &[]) else { return };
    let line = run_to_fail(&mut frozen.server.ask(&["freeze", "base", "--backing", "-o", "out.qcow2"]));
    assert!(line.contains("is an EROFS image, which QEMU cannot read"), "{line}");
}

/// An image that refers to its base holds only what changed, and is served together with the base. A
/// disk above it becomes an image that refers to both.
#[test]
fn an_image_can_refer_to_its_base() {
    for pack in [&[][..], &["--codec", "zstd,1", "--cluster", "64K"], &["--codec", "none"]] {
        let Some(frozen) = Frozen::start("an_image_can_refer_to_its_base", 24, pack) else { return };
        frozen.ask(&["fork", "base", "job"]);
        frozen.write("job", &["write -P 7 1001k 9k", "write -z 2M 70k", "discard 4M 1M", "write -P 9 11M 1k"]);
        let expected = frozen.content("job");
        frozen.ask(&["freeze", "job", "--backing", "--verify", "-o", "delta.erofs"]);
        let bytes = |name: &str| fs::metadata(frozen.at(name)).expect("an image").len();
        assert!(bytes("delta.erofs") * 8 < bytes("base.erofs"), "{pack:?}: {} bytes", bytes("delta.erofs"));
        run(pagefold().arg("check").arg(frozen.at("delta.erofs")).arg("--device").arg(frozen.at("base.erofs")));
        let message =
            run_to_fail(pagefold().arg("pack").arg(frozen.at("delta.erofs")).arg("-o").arg(frozen.at("whole")));
        for words in ["needs 1 other device", "pagefold serve --device", "pagefold freeze"] {
            assert!(message.contains(words), "{message}");
        }
        frozen.ask(&["add", "again", "--base", "delta.erofs", "--device", "base.erofs"]);
        assert!(frozen.content("again") == expected, "{pack:?}");

        let server = Server::start(&[text(&frozen.at("delta.erofs")), "--device", text(&frozen.at("base.erofs"))]);
        run(&mut server.ask(&["fork", "delta", "next"]));
        let write = ["-c", "write -P 5 3M 5k", "-c", "write -P 6 1003k 1k"];
        run(Command::new(&frozen.qemu_io).args(["-f", "raw"]).args(write).arg(server.uri("next")));
        let copied = frozen.at("next.copy");
        run(Command::new(&frozen.nbdcopy).arg(server.uri("next")).arg(&copied));
        let next = frozen.at("next.erofs");
        run(&mut server.ask(&["freeze", "next", "--backing", "--verify", "-o", text(&next)]));
        frozen.ask(&["add", "third", "--base", "next.erofs", "--device", "delta.erofs", "--device", "base.erofs"]);
        assert!(frozen.content("third") == fs::read(copied).expect("a copy"), "{pack:?}");
        // The whole disk again, without any other file.
        frozen.ask(&["freeze", "third", "--force", "-o", "whole.erofs"]);
        assert!(frozen.unpacked("whole.erofs") == frozen.content("third"), "{pack:?}");

        for (devices, what) in [
            (&[][..], "the image needs 2 other devices, but none was given"),
            (&["--device", "delta.erofs"], "the image needs 2 other devices, but 1 was given"),
            (&["--device", "base.erofs", "--device", "delta.erofs"], "but the image expects"),
        ] {
            let add = [&["add", "wrong", "--base", "next.erofs"], devices].concat();
            let line = run_to_fail(frozen.server.ask(&add).current_dir(frozen.folder.path()));
            assert!(line.contains(what), "{line}");
        }
    }
    let server = Server::start(&["--export", "name=a,size=1M"]);
    let out = tempfile::tempdir().expect("a folder");
    let out = out.path().join("out.erofs");
    let line = run_to_fail(&mut server.ask(&["freeze", "a", "--backing", "-o", text(&out)]));
    assert!(line.contains("leave out --backing to write all of it"), "{line}");
    let line = run_to_fail(&mut server.ask(&["freeze", "a", "--backing", "--codec", "lz4", "-o", text(&out)]));
    assert!(line.contains("--backing keeps the base's codec"), "{line}");
    assert!(!out.exists());
}

#[test]
fn failures_to_freeze_are_explained() {
    let server = Server::start(&["--export", "name=a,size=1M"]);
    for (args, what) in [
        (&["freeze", "b", "-o", "out.erofs"][..], "no disk named 'b'"),
        (&["freeze", "a", "-o", "."], "is a directory"),
        (&["freeze", "a", "--format", "raw", "--codec", "lz4", "-o", "out"], "--codec is for --format erofs and qcow2"),
        (&["freeze", "a", "--cluster", "64K", "-o", "out.qcow2"], "--cluster is for --format erofs"),
        (&["freeze", "a", "--verify", "-o", "out.qcow2"], "--verify is for --format erofs"),
        (&["freeze", "a", "--codec", "zstd,3", "-o", "out.qcow2"], "with deflate, at level 1 to 9, or not at all"),
        (&["freeze", "a", "--codec", "deflate,12", "-o", "out.qcow2"], "with deflate, at level 1 to 9, or not at all"),
        (&["freeze", "a", "--backing", "-o", "out.img"], "--backing is for --format erofs and qcow2"),
        (&["freeze", "a", "--backing", "-o", "out.qcow2"], "disk 'a' has no base: leave out --backing"),
        (&["freeze", "a", "--codec", "lz5", "-o", "out.erofs"], "unknown codec"),
        (&["freeze", "a", "--cluster", "5000", "-o", "out.erofs"], "multiple of the block"),
        (&["freeze", "a", "-o", "out"], "or give --format"),
        (&["freeze", "a", "-o", "-"], "give --format"),
        (&["freeze", "a", "-o", "out.vmdk"], "qemu-img convert -O vmdk"),
        (&["freeze", "a", "--format", "raw", "-o", "out.qcow2"], "is named like a qcow2 image"),
    ] {
        let line = run_to_fail(server.ask(args).current_dir(server.folder()));
        assert!(line.contains(what), "{args:?}: {line}");
    }
    let names = fs::read_dir(server.folder()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with("out")));
}

/// Neither a freeze nor a base takes room for ranges that were never written.
#[test]
fn a_disk_that_is_almost_only_zeros_becomes_a_small_image_and_a_base() {
    let Some([qemu_io]) = programs("a_disk_that_is_almost_only_zeros_becomes_a_small_image_and_a_base", ["qemu-io"])
    else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&["--export", "name=root,size=100G"]);
    let io = |disk: &str, commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", *command]);
        let said = run(Command::new(&qemu_io).args(["-f", "raw"]).args(commands).arg(server.uri(disk)));
        assert!(!said.contains("failed"), "{said}");
    };
    let ask = |args: &[&str]| run(server.ask(args).current_dir(folder.path()));
    let bytes = |name: &str| fs::metadata(folder.path().join(name)).expect("an image").len();
    io("root", &["write -P 7 50G 4k"]);
    ask(&["freeze", "root", "--verify", "-o", "base.erofs"]);
    assert!(bytes("base.erofs") <= 12 << 10, "{}", bytes("base.erofs"));
    let before = server.total("outside_bytes");
    let base = folder.path().join("base.erofs");
    ask(&["add", "base", "--base", text(&base)]);
    let took = server.total("outside_bytes") - before;
    let cache = server.total("base_cache_limit");
    assert!(took <= cache + (1 << 20), "a base of one page takes {took} bytes, {cache} of them for the cache");
    ask(&["fork", "base", "job"]);
    io("job", &["read -P 7 50G 4k", "read -P 0 20G 1M", "write -P 8 80G 4k", "write -z 10G 1M"]);
    ask(&["freeze", "job", "--verify", "-o", "job.erofs"]);
    assert!(bytes("job.erofs") <= 16 << 10, "{}", bytes("job.erofs"));
    for name in ["base.erofs", "job.erofs"] {
        run(pagefold().arg("check").arg(folder.path().join(name)));
    }
}
