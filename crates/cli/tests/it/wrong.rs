//! Invalid command lines: exit status 2, messages in one style, and nothing is created.

use std::{collections::BTreeSet, fs, io::Write, os::unix::net::UnixListener, thread};

use tempfile::TempDir;

use crate::server::{Server, pagefold, run, run_to_fail};

/// Command lines, split into words, and what their messages mention. `@` is a directory with a
/// `tree` and an `image`.
const WRONG: &[(&[&str], &[&str])] = &[
    (&["frobnicate"], &["'frobnicate'"]),
    (&["serv"], &["'serv'", "'serve'"]),
    // serve: disks
    (&["serve", "--size", "0"], &["0", "multiple of 512"]),
    (&["serve", "--size", "1000"], &["1000", "multiple of 512"]),
    (&["serve", "--size", "100T"], &["100 TiB exceeds the maximum disk size of 64 TiB"]),
    (&["serve", "--size", "99999999999G"], &["--size", "64-bit"]),
    (&["serve", "--size", "big"], &["--size", "'big'", "512M"]),
    (&["serve", "--size"], &["--size"]),
    (&["serve", "--sizee", "1G"], &["'--sizee' found; a similar argument exists: '--size'"]),
    (&["serve", "x="], &["'x=' does not name a file", "NAME=FILE"]),
    (&["serve", "a=@/image", "a=@/tree"], &["'a' is already that of another disk here", "NAME=FILE"]),
    (&["serve", "--size", "1G", "--name", "a", "a=@/image"], &["'a' is already that of another disk here"]),
    (&["serve", "--size", "1G", "--size", "2G"], &["--size"]),
    (&["serve", "--format", "raw"], &["FILE"]),
    (&["serve", "--format", "vmdk", "disk"], &["'vmdk'", "raw, erofs, qcow2"]),
    (&["serve", "/"], &["'/'", "NAME=/"]),
    (&["serve", "8G"], &["no file '8G'", "--size 8G"]),
    (&["add", "a", "--base", "disk", "--size", "1G"], &["--base", "--size"]),
    (&["serve", "--name", "a"], &["--size"]),
    (&["serve", "--name", "a\u{202e}b", "--size", "1G"], &["an invisible character, \\u{202e}"]),
    (&["serve", "--detach", "--run", "true"], &["--detach", "--run"]),
    (&["serve", "--detach", "--exit-with-parent"], &["--detach", "--exit-with-parent"]),
    (&["serve", "--name", "a\nb", "--size", "1G"], &["a control character"]),
    (&["serve", "--size", "1G", "--export", "name=a,size=1G"], &["--size", "--export"]),
    (&["serve", "--export", "name=a"], &["size=SIZE"]),
    (&["serve", "--export", "size=1G"], &["name=NAME"]),
    (&["serve", "--export", "name=a,size=1G,colour=red"], &["'colour'", "limit"]),
    (&["serve", "--export", "name=a,size=1G,codec=lz4"], &["--codec"]),
    (&["serve", "--export", "name=a,size=1G,limit=x"], &["'x'"]),
    (&["serve", "--export", "name=a,size=1G,limit=1K"], &["1 KiB is too small", "8 KiB"]),
    (&["serve", "--export", "name=a,size=1G", "--export", "name=a,size=1G"], &["'a'", "already"]),
    (&["serve", "--size", "1G", "--memory-limit", "100"], &["limit", "100"]),
    (&["serve", "--size", "1G", "--memory-limit", "-1"], &["--memory-limit", "'-1' is not a size", "512M"]),
    (&["serve", "--size", "1G", "--memory-limit", "-1G"], &["--memory-limit", "'-1G' is not a size"]),
    (&["serve", "--size", "-1"], &["--size", "'-1' is not a size"]),
    // serve: codecs
    (&["serve", "--codec", "lz5"], &["--codec", "'lz5'", "lz4", "zstd"]),
    (&["serve", "--codec", "zstd-23"], &["'zstd-23'", "-7 to 22"]),
    (&["serve", "--codec", "zstd,23"], &["zstd", "23", "-7 to 22"]),
    (&["serve", "--codec", "lz4hc-dict"], &["'lz4hc-dict'", "fold-dict", "lz4-dict", "zstd-LEVEL-dict"]),
    (&["serve", "--codec", ""], &["--codec"]),
    // serve: the rest
    (&["serve", "--tcp", "nowhere"], &["--tcp", "nowhere"]),
    (&["serve", "--tcp", "70000"], &["--tcp"]),
    (&["serve", "--metrics", "m.sock"], &["--metrics", "./metrics.sock"]),
    (&["serve", "--metrics", "70000"], &["--metrics", "ADDRESS:PORT"]),
    (&["serve", "--max-connections", "0"], &["--max-connections", "at least 1"]),
    (&["serve", "--max-connections", "-1"], &["--max-connections", "'-1'", "at least 1"]),
    (&["serve", "--log", "loud"], &["'loud'", "warn"]),
    (&["serve", "--unix"], &["--unix"]),
    (&["serve", "--run"], &["--run"]),
    // other commands that connect to a server
    (&["disks", "--dir", "a", "--control", "b"], &["--dir", "--control"]),
    (&["stat", "a", "b"], &["'b'"]),
    (&["stat", "--unix", "a"], &["--unix"]),
    (&["stat", "--zram", "bd_stat"], &["'bd_stat'", "mm_stat", "io_stat"]),
    (&["stat", "--zram", "mm_stat", "--json"], &["--zram", "--json"]),
    (&["top"], &["needs a terminal", "pagefold stat"]),
    (&["top", "--interval", "0"], &["--interval", "1..=3600"]),
    (&["top", "--interval", "-1"], &["--interval", "'-1'", "a whole number"]),
    (&["top", "--sort", "colour"], &["'colour'", "memory"]),
    (&["add"], &["NAME"]),
    (&["add", "a"], &["--size", "--base"]),
    (&["add", "a", "--size", "x"], &["--size", "'x'"]),
    (&["add", "a", "--size", "1G", "--limit", "none"], &["--limit", "'none'"]),
    (&["fork"], &["FROM", "NAME"]),
    (&["fork", "a"], &["NAME"]),
    (&["fork", "a", "b", "--limit", "none"], &["--limit", "'none'"]),
    (&["snapshot", "a"], &["SNAPSHOT"]),
    (&["snapshot", "a", "b", "c"], &["'c'"]),
    (&["rollback", "a"], &["SNAPSHOT"]),
    (&["diff"], &["DISK"]),
    (&["drop"], &["NAME"]),
    (&["remove"], &["NAME"]),
    (&["resize", "a"], &["SIZE"]),
    (&["resize", "a", "large"], &["'large'"]),
    (&["resize", "a", "-1"], &["'-1' is not a size"]),
    (&["rename", "a"], &["NEW"]),
    (&["reset"], &["NAME"]),
    (&["limit"], &["SIZE|none"]),
    (&["limit", "a"], &["'a'"]),
    (&["limit", "a", "some"], &["'some'"]),
    (&["limit", "a", "-1"], &["'-1' is not a size"]),
    (&["limit", "-1"], &["'-1'"]),
    (&["limit", "--connections", "0"], &["'0'", "not a number of at least 1"]),
    (&["quota", "a"], &["--connections", "--rate"]),
    (&["quota", "a", "--connections", "-1"], &["--connections", "'-1'", "at least 1"]),
    (&["quota", "a", "--rate", "-1M"], &["--rate", "'-1M' is not a size"]),
    (&["quota", "a", "--rate", "nine"], &["--rate", "'nine' is not a size"]),
    (&["limit", "a", "1G", "2G"], &["'2G'"]),
    (&["compact", "a"], &["'a'"]),
    // images
    (&["pack"], &["SOURCE", "--output"]),
    (&["pack", "@/tree"], &["--output"]),
    (&["pack", "@/tree", "-o", "@/new", "--codec", "lz5"], &["'lz5'", "zstd"]),
    (&["pack", "@/tree", "-o", "@/new", "--codec", "zstd,99"], &["zstd", "-7 to 22"]),
    (&["pack", "@/tree", "-o", "@/new", "--codec", "zstd-99"], &["zstd", "-7 to 22"]),
    (&["pack", "@/tree", "-o", "@/new", "--codec", "lz4,1"], &["no levels"]),
    (&["pack", "@/tree", "-o", "@/new", "--cluster", "5000"], &["cluster"]),
    (&["pack", "@/tree", "-o", "@/new", "--block", "99G"], &["block"]),
    (&["pack", "@/tree", "-o", "@/new", "--hint", "foo"], &["'foo'"]),
    (&["pack", "@/tree", "-o", "@/new", "--hint", "*=lz5"], &["lz5"]),
    (&["pack", "@/tree", "-o", "@/new", "--exclude", ""], &["exclude"]),
    (&["pack", "@/tree", "-o", "@/new", "--uuid", "1"], &["'1'", "UUID"]),
    (&["pack", "@/tree", "-o", "@/new", "--volume-name", "12345678901234567"], &["16 bytes"]),
    (&["pack", "-", "-", "-o", "@/new"], &["standard input"]),
    (&["pack", "--format", "vmdk", "@/image", "-o", "@/new"], &["'vmdk'", "raw, erofs, qcow2"]),
    (&["pack", "--format", "raw", "--layer", "@/image", "-o", "@/new"], &["--format", "--layer"]),
    (
        &["pack", "--format", "raw", "@/image", "@/tree", "-o", "@/new"],
        &["--format", "single disk", "not for 2 sources"],
    ),
    (&["pack", "--format", "raw", "-", "-o", "@/new"], &["--format", "a file, not for standard input (-)"]),
    (&["pack", "--platform", "linux", "@/tree", "-o", "@/new"], &["'linux'", "linux/arm64"]),
    (&["pack", "--platform", "linux/arm64", "@/tree", "-o", "@/new"], &["--platform", "no source is one"]),
    (&["pack", "@/tree", "-o", "@/new.qcow2"], &["new.qcow2", "a qcow2 image", ".erofs"]),
    (&["pack", "@/tree", "-o", "@/new.tar.gz"], &["new.tar.gz", "compressed data", ".erofs"]),
    (&["freeze", "a", "-o", "@/new"], &["new", "--format"]),
    (&["freeze", "a", "-o", "-"], &["standard output", "--format"]),
    (&["freeze", "a", "-o", "@/new.vmdk"], &["new.vmdk", "qemu-img convert -O vmdk"]),
    (&["freeze", "a", "--format", "erofs", "-o", "@/new.raw"], &["new.raw", "--format erofs"]),
    (&["ls"], &["IMAGE", "'pagefold disks'"]),
    (&["ls", "--dir", "@"], &["--dir", "'pagefold disks'"]),
    (&["ls", "--control=@/socket"], &["--control", "'pagefold disks'"]),
    (&["ls", "--offset", "-1", "@/image"], &["'-1'"]),
    (&["cat", "@/image"], &["no file given", ":PATH"]),
    (&["info"], &["IMAGE"]),
    (&["check"], &["IMAGE"]),
    (&["check", "--against", "@/tree", "@/image:/text"], &["--against"]),
    (&["extract", "@/image"], &["--directory"]),
    (&["extract", "@/image", "-C", "@/new", "--max-files", "-1"], &["--max-files", "'-1'", "a whole number"]),
    (&["pack", "@/tree", "-o", "@/new", "--threads", "-3"], &["--threads", "'-3'", "a whole number"]),
    (&["mount", "@/image"], &["DIRECTORY"]),
    (&["mount", "-o", "dev,color", "@/image", "@/tree"], &["color"]),
    (&["completions", "cmd"], &["'cmd'", "bash"]),
    (&["man", "serve"], &["'serve'"]),
];

#[test]
fn without_a_command_the_commands_are_listed() {
    let output = pagefold().output().expect("pagefold runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{}", output.status);
    for command in ["serve", "fork", "pack", "disks", "uri"] {
        assert!(message.lines().any(|line| line.trim_start().starts_with(command)), "{message}");
    }
}

#[test]
fn wrong_command_lines_are_refused_in_one_style() {
    let folder = TempDir::new().expect("a folder");
    let place = folder.path().to_str().expect("a plain path");
    fs::create_dir(folder.path().join("tree")).expect("a folder");
    fs::write(folder.path().join("tree/text"), "text").expect("a file");
    run(pagefold().args(["pack", &format!("{place}/tree"), "-o", &format!("{place}/image")]));
    let mut failures = Vec::new();
    for (line, names) in WRONG {
        let mut command = pagefold();
        command.args(line.iter().map(|word| word.replace('@', place)));
        // A server that started by mistake would be here.
        if line.first() == Some(&"serve") {
            command.args(["--dir", &format!("{place}/new")]);
        }
        let output = command.output().expect("pagefold runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<_> = message.lines().collect();
        let right = output.status.code() == Some(2)
            && output.stdout.is_empty()
            && lines.len() == 2
            && lines.iter().all(|line| line.starts_with("pagefold: "))
            && lines[1].contains("see 'pagefold")
            && lines[1].contains("--help'")
            && names.iter().all(|name| lines[0].contains(name));
        if !right {
            failures.push(format!("{line:?}, which should name {names:?}: {}\n{message}", output.status));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(!fs::exists(folder.path().join("new")).expect("a folder"), "something was made");
}

/// A valid command line can still fail: status 1.
#[test]
fn failures_have_exit_status_1() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let failed = [
        vec!["pack".to_owned(), at("none"), "-o".to_owned(), at("other")],
        vec!["ls".to_owned(), at("tree")],
        vec!["cat".to_owned(), format!("{}:/file", at("image"))],
        vec!["ls".to_owned(), "--offset".to_owned(), "1G".to_owned(), at("image")],
        vec!["extract".to_owned(), format!("{}:/file", at("image")), "-C".to_owned(), at("out")],
        vec!["stat".to_owned(), "--dir".to_owned(), at("none")],
        vec!["serve".to_owned(), "--dir".to_owned(), "/proc/none".to_owned()],
    ];
    for line in failed {
        let output = pagefold().args(&line).output().expect("pagefold runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line:?}: {message}");
        assert!(message.starts_with("pagefold: ") && message.lines().count() == 1, "{line:?}: {message}");
    }
    assert!(!fs::exists(at("other")).expect("a folder") && !fs::exists(at("out")).expect("a folder"));
}

#[test]
fn messages_name_what_was_given() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let listener = UnixListener::bind(at("socket")).expect("a socket");
    let web_server =
        thread::spawn(move || listener.accept().and_then(|(mut client, _)| client.write_all(b"HTTP/1.1\n")));
    let message = run_to_fail(pagefold().args(["disks", "--control", &at("socket")]));
    web_server.join().expect("no panic").expect("a client");
    assert!(message.contains(&format!("{}: not a pagefold server", at("socket"))), "{message}");

    let names = ["line\n", "line\\n", "\u{202e}", "\\u{202e}", "plain"];
    fs::create_dir(at("tree")).expect("a folder");
    for name in names {
        fs::write(folder.path().join("tree").join(name), "text").expect("a file");
    }
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let listed = run(pagefold().args(["ls", &at("image")]));
    let lines: BTreeSet<_> = listed.lines().collect();
    assert_eq!(lines.len(), names.len(), "{listed}");
    let message = run_to_fail(pagefold().args(["ls", &format!("{}:/none//", at("image"))]));
    assert!(message.ends_with("no such file in the image: /none\n"), "{message}");

    let server = Server::start(&["--size", "1M", "--name", "a"]);
    run(&mut server.ask(&["quota", "a", "--connections", "3", "--rate", "1M"]));
    let text = run(&mut server.ask(&["quota", "a", "--connections", "3", "--rate", "none"]));
    assert_eq!(text, "set the quota of 'a' to at most 3 connections and any rate\n");
}
