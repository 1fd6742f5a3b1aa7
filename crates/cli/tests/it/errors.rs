//! Errors say what is wrong and what to do, and the exit status is not 0.

use std::{fs, os::unix::net::UnixStream, thread, time::Duration};

use rustix::{
    fs::{Mode, OFlags, mkdirat, openat},
    process::Signal,
};
use tempfile::TempDir;

use crate::server::{Server, pagefold, run, run_to_fail};

fn serve_fails(args: &[&str]) -> String {
    run_to_fail(pagefold().arg("serve").args(args))
}

#[track_caller]
fn assert_names(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
}

#[test]
fn a_disk_that_could_hold_no_page_is_refused() {
    let args = ["serve", "--size", "16G", "--dir", "/nonexistent/folder"];
    let message = run_to_fail(pagefold().args(args).args(["--memory-limit", "30K"]));
    assert_names(&message, &["of 30 KiB is too small", "a single page needs", "KiB"]);
}

#[test]
fn files_that_connections_need_may_be_opened() {
    let server = Server::start_under("-Sn 64", &["--size", "1M", "--max-connections", "400"]);
    let limits = server.proc("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let soft: u64 = files.split_whitespace().nth(3).expect("a column").parse().expect("a number");
    assert!(soft >= 400, "{files}");
    drop(server);
    let server = Server::start_under("-n 24", &["--size", "1M"]);
    let clients: Vec<_> =
        (0..40).map(|_| UnixStream::connect(server.socket()).expect("a place in the queue")).collect();
    // The server tries to accept them, fails and logs it.
    thread::sleep(Duration::from_millis(300));
    drop(clients);
    let (status, messages) = server.end(Signal::TERM);
    assert!(status.success(), "{status}: {messages}");
    assert_names(&messages, &["720 open files", "ulimit -Hn", "cannot accept clients", "Too many open files"]);
}

#[test]
fn a_file_that_is_not_a_socket_is_kept() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("precious");
    fs::write(&path, "data").expect("a file");
    let (dir, path_text) = (folder.path().to_str().expect("a plain path"), path.to_str().expect("a plain path"));
    for option in ["--unix", "--control"] {
        assert_names(&serve_fails(&["--dir", dir, option, path_text]), &["precious", "not a socket"]);
    }
    assert_eq!(fs::read(&path).expect("the file"), b"data");
}

#[test]
fn stat_of_nothing_fails() {
    let message = run_to_fail(pagefold().args(["stat", "--dir", "/nonexistent"]));
    assert_names(&message, &["/nonexistent/control.sock", "start a server", "--dir"]);
    let server = Server::start(&["--size", "1M"]);
    assert_names(&run_to_fail(&mut server.ask(&["stat", "other"])), &["'other'"]);
}

/// A full disk under standard output is reported. A reader that stops reading is not an error,
/// unless an image remains incomplete.
#[test]
fn standard_output_that_fails_is_named() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/text"), "text").expect("a file");
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let file = format!("{}:/text", at("image"));
    let image = at("image");
    let commands = [&["ls", &image][..], &["cat", &file], &["info", &image], &["check", &image], &["man"]];
    let json = [&["ls", "--json", &image][..], &["info", "--json", &image], &["check", "--json", &image]];
    for args in commands.into_iter().chain(json) {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let message = run_to_fail(pagefold().args(args).stdout(full));
        assert_names(&message, &["standard output", "No space left"]);
        assert!(!message.contains("panicked"), "{args:?}: {message}");
        let (reader, closed) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = pagefold().args(args).stdout(closed).output().expect("a start");
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = pagefold().args(["pack", &at("tree"), "-o", "-"]).stdout(closed).output().expect("a start");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("Broken pipe"), "{output:?}");
}

/// Errors name the image, the location or the path, each once.
#[test]
fn errors_name_what_they_are_about() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let nowhere = format!("{}:/nope", at("image"));
    for args in [&["ls", &nowhere][..], &["info", &nowhere], &["check", &nowhere], &["extract", &nowhere, "-C", "new"]]
    {
        assert_names(&run_to_fail(pagefold().args(args)), &[&at("image"), "/nope"]);
    }
    for command in ["ls", "info", "check"] {
        assert_names(&run_to_fail(pagefold().args([command, ""])), &["'': No such file"]);
    }
    assert_names(&run_to_fail(pagefold().args(["add", "a", "--base", ""])), &["'': ", "empty path"]);
    let image = at("image");
    for args in [&["fetch", &image][..], &["push", &image, &image], &["freeze", "a", "--push", &image]] {
        assert_names(&run_to_fail(pagefold().args(args)), &[&format!("{image}: must start with https://")]);
    }
    let location = "oci://127.0.0.1:1/image";
    for command in ["ls", "fetch", "serve"] {
        let mut offline = pagefold();
        offline.env("PAGEFOLD_CACHE", at("cache")).args([command, "--offline", location]);
        let message = run_to_fail(&mut offline);
        assert_eq!(message.matches(location).count(), 1, "{message}");
    }
    // Deeper than a path can be.
    let deepest = folder.path().join("deep");
    fs::create_dir(&deepest).expect("a folder");
    let mut here = fs::File::open(&deepest).expect("a folder");
    let name = "n".repeat(255);
    for _ in 0..20 {
        mkdirat(&here, &name, Mode::RWXU).expect("a folder");
        here = openat(&here, &name, OFlags::DIRECTORY, Mode::empty()).expect("a folder").into();
    }
    openat(&here, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).expect("a file");
    let message = run_to_fail(pagefold().arg("advise").arg(&deepest));
    assert_names(&message, &["cannot read any file in it", "longer than 4095 bytes"]);
}

#[test]
fn files_that_are_not_images_are_named() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("file");
    for (at, magic, name) in [
        (0, &b"hsqs\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0"[..], "squashfs"),
        (1080, b"\x53\xef", "ext4"),
        (257, b"ustar", "pagefold pack"),
        (0, b"\x1f\x8b\x08", "gzip data: 'pagefold pack "),
        (0, b"KDMV\x01\0\0\0", "qemu-img convert -O raw"),
        (0, b"\x3a\xff\x26\xed", "simg2img"),
        (0, b"PK\x03\x04", "zip"),
        (0, b"some text", "no EROFS magic number"),
    ] {
        let mut bytes = vec![0; 4096];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        fs::write(&path, &bytes).expect("a file");
        for command in ["ls", "check", "info"] {
            assert_names(&run_to_fail(pagefold().arg(command).arg(&path)), &["not an EROFS image", name]);
        }
    }
    assert_names(&run_to_fail(pagefold().arg("ls").arg(folder.path())), &["is a directory"]);
    fs::write(&path, "").expect("a file");
    assert_names(&run_to_fail(pagefold().arg("ls").arg(&path)), &["not an EROFS image"]);
}
