//! Images compared with their sources, during packing and later.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, PermissionsExt},
    sync::atomic::{AtomicBool, Ordering},
};

use tempfile::TempDir;

use crate::server::{pagefold, run_to_fail};

#[track_caller]
fn output(args: &[&str]) -> String {
    let output = pagefold().args(args).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn check_against_finds_differences() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir_all(at("tree/etc")).expect("a folder");
    fs::write(at("tree/etc/text"), "a line of some text\n".repeat(5000)).expect("a file");
    fs::write(at("tree/other"), "short").expect("a file");
    output(&["pack", "--verify", &at("tree"), "-o", &at("image")]);
    let sound = output(&["check", "--against", &at("tree"), &at("image")]);
    assert_eq!(sound, "sound: 4 inodes, 97.7 KiB of files, equal to its source\n");

    // The options of pack must be given to check too.
    output(&["pack", "--verify", "--uid", "7", "-T", "5", "--exclude", "other", &at("tree"), "-o", &at("owned")]);
    let options = ["--uid", "7", "-T", "5", "--exclude", "other"];
    output(&[&["check", "--against", &at("tree"), &at("owned")][..], &options].concat());
    let message = run_to_fail(pagefold().args(["check", "--against", &at("tree"), &at("owned")]));
    assert!(message.contains("/etc/text: owner is 7 in the image, not "), "{message}");
    assert!(message.contains("/other: is missing in the image"), "{message}");

    let permissions = fs::metadata(at("tree/other")).expect("a file").permissions().mode();
    fs::set_permissions(at("tree/other"), fs::Permissions::from_mode(permissions ^ 0o100)).expect("a mode");
    let file = File::options().write(true).open(at("tree/etc/text")).expect("a file");
    let modified = file.metadata().and_then(|metadata| metadata.modified()).expect("a time");
    file.write_all_at(b"X", 70_000).expect("a byte");
    file.set_modified(modified).expect("a time");
    let message = run_to_fail(pagefold().args(["check", "--against", &at("tree"), &at("image")]));
    assert!(message.contains("/etc/text: content differs from byte 70000 on\n"), "{message}");
    assert!(message.contains("/other: mode is "), "{message}");
    assert!(message.ends_with("image: 2 differences\n"), "{message}");
    let json = pagefold().args(["check", "--json", "--against", &at("tree"), &at("image")]).output().expect("a run");
    let lines = String::from_utf8(json.stdout).expect("text");
    assert_eq!(json.status.code(), Some(1));
    assert_eq!(
        lines.lines().next(),
        Some(r#"{"path":"/etc/text","offset":null,"what":"content differs from byte 70000 on"}"#)
    );
    assert!(lines.contains(r#"{"sound":true,"problems":0,"differences":2,"#), "{lines}");

    let status = pagefold().args(["check", "--against", &at("tree"), &(at("image") + ":/etc")]).status();
    assert_eq!(status.expect("a run").code(), Some(2));
}

/// A file that changes continually differs when it is read again, unless the writer happens to
/// pause in between.
#[test]
fn a_pack_that_finds_a_difference_leaves_no_image() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/kept"), "as it is").expect("a file");
    fs::write(at("tree/changing"), vec![1; 8 << 20]).expect("a file");
    let file = File::options().write(true).open(at("tree/changing")).expect("a file");
    let done = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0u64;
            while !done.load(Ordering::Relaxed) {
                count += 1;
                let _ = file.write_all_at(&count.to_le_bytes(), 50_000);
            }
        });
        let pack = || {
            let _ = fs::remove_file(at("image"));
            pagefold().args(["pack", "--verify", &at("tree"), "-o", &at("image")]).output()
        };
        let ended = (0..100).map(|_| pack()).find(|ended| ended.as_ref().is_ok_and(|ended| !ended.status.success()));
        done.store(true, Ordering::Relaxed);
        ended
    });
    let ended = ended.expect("a pack that found a difference").expect("a run");
    assert_eq!(ended.status.code(), Some(1));
    let message = String::from_utf8(ended.stderr).expect("text");
    assert!(message.contains("/changing: content differs from byte 5000"), "{message}");
    assert!(message.contains("image: not written: 1 difference between the image and its source. If"), "{message}");
    let names: Vec<_> =
        fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["tree"]);
}
