//! Widely used clients.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Output, Stdio},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use pagefold_serve::{Export, Exports, Server, unix_uri};

use crate::{device::Ram, raw::Running};

/// Returns whether the test can continue. A missing tool is reported, or is a failure where all
/// tests must run.
#[expect(clippy::print_stderr, reason = "a test")]
fn has(test: &str, tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|paths| std::env::split_paths(&paths).any(|directory| directory.join(tool).is_file()));
    if !found {
        assert!(std::env::var_os("PAGEFOLD_MUST_RUN").is_none_or(|value| value != "1"), "{test}: {tool} is missing");
        eprintln!("SKIPPED: {test}: {tool} is not installed");
    }
    found
}

fn run(tool: &str, args: &[&str]) -> Output {
    let output = Command::new(tool).args(args).output().unwrap();
    assert!(output.status.success(), "{tool} {args:?}: {output:?}");
    output
}

#[test]
fn nbdinfo_sees_the_export() {
    if !has("nbdinfo_sees_the_export", "nbdinfo") {
        return;
    }
    let server = Running::of(Ram::shared(1 << 20));
    let text = String::from_utf8(run("nbdinfo", &[&server.uri()]).stdout).unwrap();
    for line in ["export-size: 1048576", "base:allocation", "can_multi_conn: true"] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    let text = String::from_utf8(run("nbdinfo", &["--list", &server.uri()]).stdout).unwrap();
    assert!(text.contains("export=\"disk\""), "{text}");
}

#[test]
fn nbdinfo_takes_a_uri_with_any_bytes() {
    if !has("nbdinfo_takes_a_uri_with_any_bytes", "nbdinfo") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a b&c?d#e%41+'\u{e9}.sock");
    let name = "/root fs/?#&%41+\u{e9}";
    let exports =
        Server::builder().export(Export::new("first", Ram::shared(8192))).export(Export::new(name, Ram::shared(512)));
    let server = exports.unix(&path).bind().unwrap();
    let handle = server.handle();
    let running = std::thread::spawn(move || server.run());
    let sizes = ["", name].map(|name| run("nbdinfo", &["--size", &unix_uri(&path, name)]).stdout);
    handle.stop();
    running.join().unwrap().unwrap();
    assert_eq!(sizes, [b"8192\n".to_vec(), b"512\n".to_vec()]);
}

#[test]
fn nbdinfo_maps_holes() {
    if !has("nbdinfo_maps_holes", "nbdinfo") {
        return;
    }
    let server = Running::of(Arc::new(Ram { striped: true, ..Ram::new(16 << 10) }));
    let text = String::from_utf8(run("nbdinfo", &["--map", &server.uri()]).stdout).unwrap();
    assert_eq!(text.matches("hole,zero").count(), 2, "{text}");
    assert_eq!(text.matches("data").count(), 2, "{text}");
}

#[test]
fn nbdcopy_both_ways() {
    if !has("nbdcopy_both_ways", "nbdcopy") {
        return;
    }
    for may_block in [false, true] {
        let device = Arc::new(Ram { may_block, ..Ram::new(24 << 20) });
        let server = Running::of(Arc::clone(&device) as _);
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let data: Vec<u8> = (0..24_u32 << 20).map(|i| (i.wrapping_mul(40_503) >> 13) as u8).collect();
        std::fs::write(&from, &data).unwrap();
        run("nbdcopy", &[from.to_str().unwrap(), &server.uri()]);
        assert!(*device.bytes.lock().unwrap() == data);
        run("nbdcopy", &[&server.uri(), to.to_str().unwrap()]);
        assert!(std::fs::read(&to).unwrap() == data);
    }
}

#[test]
fn qemu_io_reads_writes_and_discards() {
    if !has("qemu_io_reads_writes_and_discards", "qemu-io") {
        return;
    }
    let server = Running::of(Ram::shared(40 << 20));
    let commands = [
        "write -P 7 1000 100000",
        "read -P 7 1000 100000",
        "write -P 8 0 34M",
        "discard 0 10M",
        "write -z 10M 10M",
        "read -P 0 0 20M",
        "read -P 8 20M 14M",
        "flush",
    ];
    let uri = server.uri();
    let mut args = vec!["-f", "raw", uri.as_str()];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    let output = run("qemu-io", &args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn qemu_img_converts_and_compares() {
    if !has("qemu_img_converts_and_compares", "qemu-img") {
        return;
    }
    let server = Running::of(Ram::shared(8 << 20));
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let data: Vec<u8> = (0..8_u32 << 20).map(|i| (i >> 14) as u8).collect();
    std::fs::write(&image, data).unwrap();
    let image = image.to_str().unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &server.uri()]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &server.uri()]);
}

/// Returns the output of a client whose export is removed a moment after it has started.
fn end_after_removal(tool: &str, args: &[&str], exports: &Exports, device: &Ram) -> Output {
    let child = Command::new(tool).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while device.total_reads.load(Ordering::SeqCst) < 4 {
        assert!(start.elapsed() < Duration::from_secs(60), "{tool} does not read");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(exports.remove("disk"));
    child.wait_with_output().unwrap()
}

#[test]
fn clients_whose_export_is_removed_report_an_error_and_end() {
    for tool in ["nbdcopy", "qemu-img", "qemu-io"] {
        if !has("clients_whose_export_is_removed_report_an_error_and_end", tool) {
            continue;
        }
        let device = Arc::new(Ram { slow_read: Duration::from_millis(20), ..Ram::new(64 << 20) });
        let exports = Exports::new();
        exports.add(Export::new("disk", Arc::clone(&device) as _)).unwrap();
        let server = Running::start(Server::builder().exports(exports.clone()));
        let (uri, directory) = (server.uri(), tempfile::tempdir().unwrap());
        let to = directory.path().join("to");
        let reads = ["-c", "read 0 1M"].repeat(100);
        let args = match tool {
            "nbdcopy" => vec![&uri, to.to_str().unwrap()],
            "qemu-img" => vec!["convert", "-f", "raw", "-O", "raw", &uri, to.to_str().unwrap()],
            _ => [vec!["-f", "raw", uri.as_str()], reads].concat(),
        };
        let output = end_after_removal(tool, &args, &exports, &device);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success(), "{tool}: {text}");
        let says = ["Cannot send after transport endpoint shutdown", "export was removed"];
        assert!(says.iter().any(|says| text.contains(says)), "{tool}: {text}");
    }
}

/// The commands that a running qemu needs after a disk has changed its size: `docs/nbd.md` has the
/// same ones.
#[test]
fn qemu_sees_a_new_size_on_a_new_connection() {
    if !has("qemu_sees_a_new_size_on_a_new_connection", "qemu-storage-daemon") {
        return;
    }
    let device = Ram::shared(1 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut child = Command::new("qemu-storage-daemon")
        .args(["--chardev", "stdio,id=control", "--monitor", "control"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut commands = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |command: &str, arguments: &str| {
        writeln!(commands, r#"{{"execute":"{command}","arguments":{{{arguments}}}}}"#).unwrap();
        let answer = |line: &String| line.contains(r#""return""#) || line.contains(r#""error""#);
        answers.by_ref().map(Result::unwrap).find(answer).unwrap()
    };
    let connect = |node: &str| {
        let path = server.path.display();
        format!(r#""driver":"nbd","node-name":"{node}","export":"disk","server":{{"type":"unix","path":"{path}"}}"#)
    };
    let resize = r#""node-name":"disk","size":2097152"#;
    let done = r#""return": {}"#;
    assert!(ask("qmp_capabilities", "").contains(done));
    assert!(ask("blockdev-add", &connect("old")).contains(done));
    assert!(ask("blockdev-add", r#""driver":"raw","node-name":"disk","file":"old""#).contains(done));
    device.bytes.lock().unwrap().resize(2 << 20, 7);
    assert!(ask("block_resize", resize).contains("Cannot grow"));
    assert!(ask("blockdev-add", &connect("new")).contains(done));
    let reopen = r#""options":[{"driver":"raw","node-name":"disk","file":"new"}]"#;
    assert!(ask("blockdev-reopen", reopen).contains(done));
    assert!(ask("block_resize", resize).contains(done));
    assert!(ask("blockdev-del", r#""node-name":"old""#).contains(done));
    assert!(ask("query-named-block-nodes", r#""flat":true"#).contains(r#""virtual-size": 2097152"#));
    assert!(ask("quit", "").contains(done));
    assert!(child.wait().unwrap().success());
}
