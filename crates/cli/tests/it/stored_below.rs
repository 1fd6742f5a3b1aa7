//! Outputs replace nothing that an input is stored in: images and directories below its file system.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    process::{Command, Output, Stdio},
};

use pagefold_testing::{programs, skip_for_good};
use rustix::process::geteuid;

use crate::{
    files::Place,
    outputs::{Folder, Loop, pack},
    server::{Server, make_image, pagefold, run},
};

/// A place where something is mounted, unmounted when this value is dropped.
pub(crate) struct Mounted(String);

impl Mounted {
    /// Mounts an overlay over the folders `lower`, in which colons have a backslash, and `name.upper`.
    fn overlay(test: &str, folder: &Folder, name: &str, lower: &str) -> Option<Self> {
        let [upper, work, at] = ["upper", "work", "o"].map(|kind| folder.at(&format!("{name}.{kind}")));
        for path in [&upper, &work, &at] {
            fs::create_dir(path).expect("a folder");
        }
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        Self::new(test, &["-t", "overlay", "overlay", "-o", &options], &at)
    }

    pub(crate) fn new(test: &str, options: &[&str], at: &str) -> Option<Self> {
        let [mount, _] = programs(test, ["mount", "umount"])?;
        let mounted = Command::new(mount).args(options).arg(at).output();
        if !mounted.is_ok_and(|mounted| mounted.status.success()) {
            skip_for_good(test, "no such mounts here");
            return None;
        }
        Some(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The image below a mount of ours is stored in it, and so are the directories of an overlay.
#[test]
fn what_a_mounted_source_is_stored_in_is_an_input() {
    const TEST: &str = "what_a_mounted_source_is_stored_in_is_an_input";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/a", b"precious");
    folder.write("s/disk", &[7; 9000]);
    let image = "with a space.erofs";
    run(&mut pack(&[&at("s"), "-o", &at(image)]));
    let Some(place) = Place::new(TEST) else { return };
    run(pagefold().args(["mount", &at(image), place.text()]));
    for source in [place.text(), &format!("{}/disk", place.text())] {
        let message = folder.refuses(pack(&[source, "-o", &at(image), "--exclude", "a"]).arg("--force"));
        assert!(message.contains("shares its storage"), "{message}");
    }
    drop(place);
    folder.write("lower/d/f", b"old");
    let Some(overlay) = Mounted::overlay(TEST, &folder, "one", &at("lower")) else { return };
    folder.write("one.upper/g", b"old");
    for output in ["lower/d/f", "one.upper/g"] {
        let message = folder.refuses(&mut pack(&[&overlay.0, "--exclude", "d", "-o", &at(output), "--force"]));
        assert!(message.contains("shares its storage"), "{output}: {message}");
        assert_eq!(fs::read(at(output)).expect("a file"), b"old");
    }
}

/// An overlay over a mounted image, one over a folder whose name has a colon, and one over another.
#[test]
fn what_an_overlay_is_stored_in_is_followed_to_the_end() {
    const TEST: &str = "what_an_overlay_is_stored_in_is_followed_to_the_end";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/x", b"precious");
    folder.write("s/d/disk", &[7; 9000]);
    let image = at("low.erofs");
    run(&mut pack(&[&at("s"), "-o", &image]));
    let Some(place) = Place::new(TEST) else { return };
    run(pagefold().args(["mount", &image, place.text()]));
    let Some(over_image) = Mounted::overlay(TEST, &folder, "image", place.text()) else { return };
    fs::remove_file(format!("{}/x", over_image.0)).expect("a file of the overlay");
    for source in [&over_image.0, &format!("{}/d/disk", over_image.0)] {
        let message = folder.refuses(&mut pack(&[source, "-o", &image, "--force"]));
        assert!(message.contains("shares its storage"), "{source}: {message}");
    }
    folder.write("l:w/f", b"old");
    folder.write("t/i.erofs", b"another");
    run(&mut pack(&[&at("t"), "-o", &at("l:w/i.erofs")]));
    let Some(over_folder) = Mounted::overlay(TEST, &folder, "folder", &at("l\\:w")) else { return };
    let Some(twice) = Mounted::overlay(TEST, &folder, "twice", &over_folder.0) else { return };
    for source in [&over_folder.0, &twice.0] {
        let message = folder.refuses(&mut pack(&[source, "--exclude", "f", "-o", &at("l:w/f"), "--force"]));
        assert!(message.contains("shares its storage"), "{source}: {message}");
    }
    // The image that is extracted is the file that would be replaced.
    let before = fs::read(at("l:w/i.erofs")).expect("an image");
    let mut extract = pagefold();
    extract.args(["extract", "--overwrite", &format!("{}/i.erofs", twice.0), "-C", &at("l:w")]);
    let Output { status, stderr, .. } = extract.output().expect("it starts");
    assert!(!status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert!(fs::read(at("l:w/i.erofs")).expect("an image") == before);
}

/// A file on an overlay has another number than in its layer.
#[test]
fn an_output_on_an_overlay_is_the_file_in_its_layer() {
    const TEST: &str = "an_output_on_an_overlay_is_the_file_in_its_layer";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("low/l", b"old");
    let Some(overlay) = Mounted::overlay(TEST, &folder, "one", &at("low")) else { return };
    let Some(twice) = Mounted::overlay(TEST, &folder, "two", &overlay.0) else { return };
    make_image(&folder.path("disk.img"), 2);
    let image = at("one.upper/i.erofs");
    run(&mut pack(&[&at("disk.img"), "-o", &image]));
    folder.write("one.upper/plain", b"old");
    for (input, name) in [(&*image, "i.erofs"), (&at("one.upper/plain"), "plain"), (&at("low/l"), "l")] {
        for above in [&overlay, &twice] {
            let output = format!("{}/{name}", above.0);
            let message = folder.refuses(&mut pack(&[input, "--format", "raw", "-o", &output, "--force"]));
            assert!(message.contains("an output never replaces an input"), "{output}: {message}");
        }
    }
    let server = Server::start(&[&image]);
    let mut freeze = server.ask(&["freeze", "i", "-o", &format!("{}/i.erofs", overlay.0), "--force"]);
    assert!(!freeze.output().expect("it starts").status.success());
    drop(server);
    // An image is not replaced by a file in it.
    folder.write("s/own.erofs", b"another");
    run(&mut pack(&[&at("s"), "-o", &at("one.upper/own.erofs")]));
    let before = fs::read(at("one.upper/own.erofs")).expect("an image");
    let mut extract = pagefold();
    extract.args(["extract", "--overwrite", &at("one.upper/own.erofs"), "-C", &overlay.0]);
    assert!(!extract.output().expect("it starts").status.success());
    assert!(fs::read(at("one.upper/own.erofs")).expect("an image") == before);
    // Other files of the overlay are replaced.
    run(&mut pack(&[&at("s"), "-o", &format!("{}/i.erofs", overlay.0)]));
}

/// A source includes what is mounted in it: the image below a mount, an overlay's layers, another
/// directory.
#[test]
fn mounts_within_a_source_are_inputs() {
    const TEST: &str = "mounts_within_a_source_are_inputs";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/a", b"precious");
    folder.write("other/f", b"old");
    folder.write("low/f", b"old");
    folder.write("src/one.txt", b"a file");
    let image = at("im.erofs");
    run(&mut pack(&[&at("s"), "-o", &image]));
    let source = at("src");
    let before = [&image, &at("other/f"), &at("low/f")].map(|path| fs::read(path).expect("a file"));
    let refused = |output: &str| folder.refuses(&mut pack(&[&source, "--exclude", "f", "-o", output, "--force"]));
    {
        let Some(overlay) = Mounted::overlay(TEST, &folder, "src/x", &at("low")) else { return };
        let message = refused(&at("low/f"));
        assert!(message.contains("shares its storage") && message.contains(&overlay.0), "{message}");
        run(&mut pack(&[&source, "--one-file-system", "--exclude", "f", "-o", &at("low/f"), "--force"]));
        folder.write("low/f", b"old");
    }
    {
        fs::create_dir(folder.path("src/bind")).expect("a folder");
        let Some(_bound) = Mounted::new(TEST, &["--bind", &at("other")], &at("src/bind")) else { return };
        let message = refused(&at("other/f"));
        assert!(message.contains("src/bind"), "{message}");
    }
    fs::create_dir(folder.path("src/mnt")).expect("a folder");
    if !pagefold().args(["mount", &image, &at("src/mnt")]).status().is_ok_and(|status| status.success()) {
        return;
    }
    let _mounted = Mounted(at("src/mnt"));
    let message = refused(&image);
    assert!(message.contains("shares its storage") && message.contains("src/mnt"), "{message}");
    assert!([&image, &at("other/f"), &at("low/f")].map(|path| fs::read(path).expect("a file")) == before);
}

/// The device of a mounted image, and the base of a served file: the system does not show what such
/// mounts read, but that something has the file open.
#[test]
fn an_open_file_is_not_replaced_where_it_may_store_an_input() {
    const TEST: &str = "an_open_file_is_not_replaced_where_it_may_store_an_input";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    make_image(&folder.path("disk.img"), 2);
    let base = at("base.erofs");
    run(&mut pack(&[&at("disk.img"), "-o", &base]));
    let Some(place) = Place::new(TEST) else { return };
    let server = Server::start(&[&base, "--files", place.text()]);
    run(&mut server.ask(&["fork", "base", "job"]));
    let file = place.path("job");
    let disk = OpenOptions::new().write(true).open(&file).expect("a disk");
    disk.write_all_at(&[7; 5000], 1 << 20).expect("a write");
    drop(disk);
    run(&mut server.ask(&["freeze", "job", "--backing", "-o", &at("job.erofs")]));
    let refused = |source: &str| {
        let message = folder.refuses(&mut pack(&[source, "--format", "raw", "-o", &base]));
        assert!(message.contains("is open in another program") && message.contains(&base), "{source}: {message}");
    };
    let file = file.to_str().expect("a plain path");
    refused(file);
    if geteuid().is_root() {
        let Some(device) = Loop::over(TEST, file) else { return };
        refused(&device.0);
    }
    let Some(mounted) = Place::new(TEST) else { return };
    run(pagefold().args(["mount", &at("job.erofs"), "--device", &base, mounted.text()]));
    drop(server);
    refused(mounted.text());
    // Another program that reads the file does no harm where all is known.
    run(&mut pack(&[&at("disk.img"), "-o", &base]));
}

/// A server's reads would meet another disk's content.
#[test]
fn a_served_device_is_not_overwritten() {
    const TEST: &str = "a_served_device_is_not_overwritten";
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("s/n", b"another");
    make_image(&folder.path("disk.img"), 2);
    let Some(device) = Loop::over(TEST, &at("disk.img")) else { return };
    run(Command::new("sync").stdout(Stdio::null()));
    let server = Server::start(&[&format!("base={}", device.0)]);
    let message = folder.refuses(&mut pack(&[&at("s"), "-o", &device.0, "--force"]));
    assert!(message.contains("in use") && message.contains(&device.0), "{message}");
    drop(server);
    run(&mut pack(&[&at("s"), "-o", &device.0, "--force"]));
}
