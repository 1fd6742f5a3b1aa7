//! What is wrong is named, with what to do, and the exit status is not 0.

use std::{
    fs,
    os::unix::net::{UnixListener, UnixStream},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{Server, pagefold, run, run_to_fail, under};

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
fn impossible_disks_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let socket = folder.path().join("socket");
    let socket = socket.to_str().expect("a plain path");
    let disk = |args: &[&str]| serve_fails(&[args, &["--unix", socket]].concat());
    assert_names(&disk(&["--size", "0"]), &["0 bytes", "multiple of 512"]);
    assert_names(&disk(&["--size", "1000"]), &["1000 bytes", "multiple of 512"]);
    assert_names(&disk(&["--size", "8E"]), &["address space"]);
    assert_names(&disk(&["--size", "99999999999G"]), &["64-bit"]);
    assert_names(&disk(&["--size", "big"]), &["'big'", "512M"]);
    assert_names(&disk(&["--size", "1G", "--codec", "lz5"]), &["'lz5'", "lz4", "zstd"]);
    assert_names(&disk(&["--size", "1G", "--codec", "zstd-23"]), &["'zstd-23'", "-7 to 22"]);
    assert_names(&disk(&["--size", "1G", "--codec", "lz4hc-dict"]), &["'lz4hc-dict'", "lz4-dict", "zstd-LEVEL-dict"]);
    assert_names(&disk(&["--size", "1G", "--memory-limit", "100"]), &["memory limit", "100"]);
    assert_names(&disk(&["--export", "name=a"]), &["size=SIZE"]);
    assert_names(&disk(&["--export", "name=a,size=1G", "--export", "name=a,size=1G"]), &["a"]);
    assert_names(&disk(&[]), &["--size"]);
    assert!(!fs::exists(socket).expect("a folder"), "a failed start leaves no socket");
}

#[test]
fn a_disk_that_could_hold_no_page_is_refused() {
    let args = ["serve", "--size", "16G", "--unix", "/nonexistent/socket"];
    // The first of its shards has 4 GiB of addresses.
    let message = run_to_fail(under("-v 2000000").args(args));
    assert_names(&message, &["16 GiB", "address space", "take fewer"]);
    let message = run_to_fail(pagefold().args(args).args(["--memory-limit", "100K"]));
    assert_names(&message, &["102400 bytes", "hold a page"]);
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
    thread::sleep(Duration::from_millis(300));
    drop(clients);
    let (status, messages) = server.end(Signal::TERM);
    assert!(status.success(), "{status}: {messages}");
    assert_names(&messages, &["256 open files", "ulimit -Hn", "clients wait", "Too many open files"]);
}

#[test]
fn a_place_to_listen_is_needed() {
    assert_names(&serve_fails(&["--size", "1G"]), &["--unix", "--tcp"]);
    assert_names(&serve_fails(&["--size", "1G", "--tcp", "nowhere"]), &["nowhere"]);
    assert_names(&serve_fails(&["--size", "1G", "--unix", "/nonexistent/folder/socket"]), &["/nonexistent/folder"]);
}

#[test]
fn an_address_in_use_is_refused_and_stays_in_use() {
    let server = Server::start(&["--size", "1M"]);
    let socket = server.socket();
    let message = serve_fails(&["--size", "1M", "--unix", socket.to_str().expect("a plain path")]);
    assert_names(&message, &["in use"]);
    assert_eq!(server.figure("", "size_bytes"), 1 << 20);
}

#[test]
fn a_file_that_is_no_socket_is_kept() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("precious");
    fs::write(&path, "data").expect("a file");
    let message = serve_fails(&["--size", "1M", "--unix", path.to_str().expect("a plain path")]);
    assert_names(&message, &["precious"]);
    assert_eq!(fs::read(&path).expect("the file"), b"data");
}

#[test]
fn a_stale_socket_is_replaced() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("socket");
    drop(UnixListener::bind(&path).expect("a socket"));
    assert!(path.exists(), "closing leaves the file");
    let mut child = pagefold().args(["serve", "--size", "1M", "--unix"]).arg(&path).spawn().expect("pagefold starts");
    let answered = (0..400).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        pagefold().args(["stat", "--unix"]).arg(&path).output().expect("pagefold runs").status.success()
    });
    child.kill().expect("a child");
    child.wait().expect("a child");
    assert!(answered, "the stale socket was not replaced");
}

#[test]
fn stat_of_nothing_fails() {
    let message = run_to_fail(pagefold().args(["stat", "--unix", "/nonexistent/socket"]));
    assert_names(&message, &["/nonexistent/socket"]);
    assert_names(&run_to_fail(pagefold().arg("stat")), &["--unix", "--tcp"]);
    let server = Server::start(&["--size", "1M"]);
    let message = run_to_fail(pagefold().args(["stat", "--name", "other", "--unix"]).arg(server.socket()));
    assert_names(&message, &["other"]);
}

/// A full disk behind standard output is named; who reads no more is no error, but for an image that is not whole.
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

/// 2 where the command line is wrong, 1 where the work failed.
#[test]
fn the_exit_status_says_whose_fault_it_is() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let pack = |args: &[&str]| [&["pack", &at("tree"), "-o", &at("other")], args].concat().join("\n");
    let inside = format!("{}:/file", at("image"));
    let wrong = [
        "frobnicate".to_owned(),
        "serve\n--size\n1G".to_owned(),
        format!("serve\n--size\n1000\n--unix\n{}", at("s")),
        format!("serve\n--size\n1G\n--codec\nlz5\n--unix\n{}", at("s")),
        format!("serve\n--size\n1G\n--max-connections\n0\n--unix\n{}", at("s")),
        pack(&["--codec", "lz5"]),
        pack(&["--codec", "zstd,99"]),
        pack(&["--cluster", "5000"]),
        pack(&["--hint", "foo"]),
        pack(&["--exclude", ""]),
        format!("cat\n{}", at("image")),
        format!("ls\n--offset\n-1\n{}", at("image")),
        format!("mount\n-o\ndev,color\n{}\n{}", at("image"), at("tree")),
    ];
    let failed = [
        format!("pack\n{}\n-o\n{}", at("none"), at("other")),
        format!("ls\n{}", at("tree")),
        format!("cat\n{inside}"),
        format!("ls\n--offset\n1G\n{}", at("image")),
        format!("extract\n{inside}\n-C\n{}", at("out")),
        format!("stat\n--unix\n{}", at("none")),
    ];
    for (status, lines) in [(2, &wrong[..]), (1, &failed)] {
        for line in lines {
            let output = pagefold().args(line.split('\n')).output().expect("pagefold runs");
            assert_eq!(output.status.code(), Some(status), "{line}: {output:?}");
        }
    }
    assert!(!fs::exists(at("other")).expect("a folder") && !fs::exists(at("out")).expect("a folder"));
}

#[test]
fn what_is_no_image_is_called_by_its_name() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("file");
    for (at, magic, name) in [
        (0, &b"hsqs"[..], "squashfs"),
        (1080, b"\x53\xef", "ext4"),
        (257, b"ustar", "pagefold pack"),
        (0, b"\x1f\x8b", "gzip"),
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
