//! Files served as read-only disks, with widely used clients.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::programs;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{Server, make_image, pagefold, run, run_to_fail};

/// Creates a disk and an image of it, as users do.
fn packed(mib: usize, options: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("debian.img");
    make_image(&disk, mib);
    run(pagefold().arg("pack").args(options).arg(&disk).arg("-o").arg(folder.path().join("debian.erofs")));
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn a_packed_disk_is_served_as_it_was() {
    let Some([nbdcopy, nbdinfo, qemu_img]) = programs("bases", ["nbdcopy", "nbdinfo", "qemu-img"]) else { return };
    let folder = packed(12, &["--codec", "zstd,3", "--cluster", "64K"]);
    let (disk, image) = (folder.path().join("debian.img"), folder.path().join("debian.erofs"));
    let raw = format!("plain={}", disk.display());
    let inside = format!("inside={}:/debian.img", image.display());
    let server = Server::start(&[text(&image), &raw, &inside]);
    let back = folder.path().join("back");
    for name in ["debian", "plain", "inside"] {
        let uri = server.uri(name);
        run(Command::new(&nbdcopy).arg(&uri).arg(&back));
        assert!(fs::read(&back).expect("a copy") == fs::read(&disk).expect("the disk"), "{name}");
        fs::remove_file(&back).expect("the copy");
        run(Command::new(&qemu_img).args(["compare", "-f", "raw", "-F", "raw", &uri]).arg(&disk));
        run(Command::new(&nbdinfo).args(["--is", "read-only", &uri]));
    }
    let listing = run(&mut server.ask(&["disks", "--json"]));
    let disks: Vec<serde_json::Value> =
        listing.lines().map(|line| serde_json::from_str(line).expect("a disk")).collect();
    let listed: Vec<_> = disks.iter().map(|disk| (disk["name"].as_str(), disk["path"].as_str())).collect();
    let inside = format!("{}:/debian.img", image.display());
    let expected = [("debian", text(&image)), ("inside", &inside), ("plain", text(&disk))];
    assert_eq!(listed, expected.map(|(name, path)| (Some(name), Some(path))));
    assert!(disks.iter().all(|disk| disk["kind"] == "base" && disk["size_bytes"] == 12 << 20));
    assert!(server.total("base_cache_limit") == 64 << 20);
    let (status, messages) = server.end(Signal::TERM);
    assert!(status.success() && messages.contains("base 'debian', 12 MiB, read-only, of "), "{messages}");
}

#[test]
fn bases_come_and_go_and_are_not_changed() {
    let folder = packed(2, &[]);
    let image = folder.path().join("debian.erofs");
    let server = Server::start(&["--size", "1M", "--memory-limit", "64M"]);
    assert_eq!(server.total("base_cache_limit"), 0);
    let before = server.total("outside_bytes");
    // The client sends an absolute path, so its own directory does not matter.
    run(server.ask(&["add", "debian", "--base", "debian.erofs"]).current_dir(folder.path()));
    assert_eq!(server.total("base_cache_limit"), 4 << 20);
    assert!(server.total("outside_bytes") >= before + (4 << 20));
    for (command, asked) in [
        (&["resize", "debian", "4M"][..], "be resized"),
        (&["reset", "debian"], "be reset"),
        (&["limit", "debian", "1M"], "have a limit"),
    ] {
        let line = run_to_fail(&mut server.ask(command));
        assert!(line.contains(&format!("disk 'debian' is a base and read-only: it cannot {asked}")), "{line}");
    }
    let line = run_to_fail(&mut server.ask(&["add", "debian", "--base", text(&image)]));
    assert!(line.contains("a disk named 'debian' already exists"), "{line}");
    let line = run_to_fail(&mut server.ask(&["add", "none", "--base", "/no/such/file"]));
    assert!(line.contains("/no/such/file: No such file"), "{line}");
    run(&mut server.ask(&["rename", "debian", "old"]));
    assert!(run(&mut server.ask(&["stat", "old"])).contains("base 'old': 2 MiB, read-only"));
    run(&mut server.ask(&["remove", "old"]));
    assert_eq!((server.total("base_cache_limit"), server.total("outside_bytes")), (0, before));
}

#[test]
fn doubtful_files_are_refused_before_anything_is_served() {
    let folder = packed(1, &[]);
    let image = folder.path().join("debian.erofs");
    let written = folder.path().join("written.img");
    fs::copy(&image, &written).expect("a copy");
    let refused =
        |args: &[&str]| run_to_fail(pagefold().arg("serve").args(args).arg("--dir").arg(folder.path().join("d")));
    let line = refused(&[text(&written)]);
    assert!(line.contains("contains an EROFS image, but its name"), "{line}");
    let line = refused(&[text(&image), text(&image)]);
    assert!(line.contains("the name 'debian' is already that of another disk"), "{line}");
    let line = refused(&[&format!("{}:/none", image.display())]);
    assert!(line.contains("no such file in the image: /none"), "{line}");
    assert!(refused(&[text(&image), "--format", "vmdk"]).contains("unknown format 'vmdk'"));
    let server = Server::start(&[text(&written), "--format", "raw"]);
    assert_eq!(server.figure("written", "size_bytes"), fs::metadata(&written).expect("a file").len());
}

#[test]
fn a_base_that_loses_its_end_gives_errors_and_others_go_on() {
    let Some([nbdcopy]) = programs("bases", ["nbdcopy"]) else { return };
    let folder = packed(4, &[]);
    let (disk, image) = (folder.path().join("debian.img"), folder.path().join("debian.erofs"));
    let server = Server::start(&[text(&image), &format!("plain={}", disk.display())]);
    File::options().write(true).open(&image).expect("the image").set_len(100_000).expect("a shorter image");
    let read = |name: &str| {
        let start = Instant::now();
        let output = Command::new(&nbdcopy).arg(server.uri(name)).arg("null:").output().expect("nbdcopy");
        assert!(start.elapsed() < Duration::from_secs(30), "{name}");
        output.status.success()
    };
    assert!(!read("debian") && read("plain") && !read("debian"));
    // Further lines would be logged in this time.
    thread::sleep(Duration::from_millis(100));
    let (_, messages) = server.end(Signal::TERM);
    let count = |what: &str| messages.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count("was modified while in use"), count("cannot read byte")), (1, 1), "{messages}");
    assert!(messages.contains("base 'debian': "), "{messages}");
}
