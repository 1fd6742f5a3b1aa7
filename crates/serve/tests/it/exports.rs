//! Exports that are added and removed while a server runs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Export, ExportError, Exports, Limits, Server,
    protocol::{command, option, reply},
};

use crate::{
    device::Ram,
    raw::{IO, Raw, Running, info, limits_with, quick},
};

const ESHUTDOWN: u32 = 108;

fn running(exports: &Exports, limits: Limits) -> Running {
    Running::start(Server::builder().exports(exports.clone()).limits(limits))
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn names(raw: &mut Raw) -> Vec<String> {
    raw.option(option::LIST, b"");
    let mut names = Vec::new();
    loop {
        match raw.option_reply(option::LIST) {
            (reply::SERVER, data) => names.push(String::from_utf8(data[4..].to_vec()).unwrap()),
            (kind, _) => {
                assert_eq!(kind, reply::ACK);
                return names;
            }
        }
    }
}

/// Returns the size of the export that a client gets under this name.
fn size(raw: &mut Raw, name: &str) -> Option<u64> {
    raw.option(option::INFO, &info(name.as_bytes(), &[]));
    match raw.option_reply(option::INFO) {
        (reply::INFO, data) => {
            raw.expect_ack(option::INFO);
            Some(u64::from_be_bytes(data[2..10].try_into().unwrap()))
        }
        (kind, _) => {
            assert_eq!(kind, reply::ERR_UNKNOWN);
            None
        }
    }
}

#[test]
fn exports_are_added_renamed_and_removed_while_a_server_runs() {
    let exports = Exports::new();
    let server = running(&exports, Limits::default());
    let mut raw = server.greet();
    assert_eq!((names(&mut raw), size(&mut raw, "")), (vec![], None));
    exports.add(Export::new("b", Ram::shared(512))).unwrap();
    exports.add(Export::new("a", Ram::shared(1024))).unwrap();
    assert_eq!(names(&mut raw), ["b", "a"]);
    // The empty name refers to the oldest export, unless an export has that name.
    assert_eq!((size(&mut raw, ""), size(&mut raw, "a"), size(&mut raw, "c")), (Some(512), Some(1024), None));
    exports.rename("a", "").unwrap();
    assert_eq!((size(&mut raw, ""), size(&mut raw, "a")), (Some(1024), None));
    exports.rename("", "c").unwrap();
    assert!(exports.remove("").is_none(), "only clients may leave the name out");
    assert_eq!(exports.remove("b").unwrap().name().as_ref(), "b");
    assert_eq!((names(&mut raw), size(&mut raw, ""), size(&mut raw, "b")), (vec!["c".into()], Some(1024), None));
    exports.add(Export::new("b", Ram::shared(2048))).unwrap();
    assert_eq!(names(&mut raw), ["c", "b"]);
    assert_eq!(raw.go(b"b").0, 2048);
    assert_eq!(exports.list().iter().map(|export| export.connections()).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn names_that_are_bad_taken_or_unknown_change_nothing() {
    let exports = Exports::new();
    exports.add(Export::new("a", Ram::shared(512))).unwrap();
    exports.add(Export::new("b", Ram::shared(512))).unwrap();
    assert!(
        matches!(exports.add(Export::new("a", Ram::shared(512))), Err(ExportError::Duplicate(name)) if name == "a")
    );
    assert!(matches!(exports.rename("a", "b"), Err(ExportError::Duplicate(name)) if name == "b"));
    assert!(matches!(exports.rename("c", "d"), Err(ExportError::Unknown(name)) if name == "c"));
    assert!(matches!(exports.rename("a", "\n"), Err(ExportError::Control(_))));
    assert!(matches!(exports.rename("a", &"x".repeat(4097)), Err(ExportError::TooLong(4097))));
    exports.rename("a", "a").unwrap();
    let names: Vec<_> = exports.list().iter().map(|export| export.name()).collect();
    assert_eq!(names, ["a".into(), "b".into()]);
}

#[test]
fn a_list_of_many_long_names_is_sent_whole() {
    let exports = Exports::new();
    let long: Vec<String> = (0..500).map(|number| format!("{number:04096}")).collect();
    for name in &long {
        exports.add(Export::new(name, Ram::shared(512))).unwrap();
    }
    let server = running(&exports, Limits::default());
    assert_eq!(names(&mut server.greet()), long);
}

#[test]
fn clients_of_a_removed_export_get_errors_and_the_device_goes_with_its_last_request() {
    let device = Ram::gated(1 << 20);
    let exports = Exports::new();
    exports.add(Export::new("disk", Arc::clone(&device) as _)).unwrap();
    let limits = limits_with(|limits| limits.stop_grace = IO);
    let server = running(&exports, limits);
    let (mut busy, mut idle, mut simple) = (server.structured(), server.structured(), server.simple());
    busy.request(command::WRITE, 0, 1, 0, 4);
    busy.send(b"last");
    wait_for("the request", || device.gate.waiting() == 1);

    drop(exports.remove("disk"));
    assert_eq!(Arc::strong_count(&device), 2, "the request at work holds the device, and no other owner");
    let mut late = server.greet();
    assert_eq!(size(&mut late, "disk"), None);
    // A new export under the old name changes nothing for them.
    exports.add(Export::new("disk", Ram::shared(8192))).unwrap();
    busy.request(command::READ, 0, 2, 4096, 512);
    let (errno, message) = busy.chunk().error();
    assert_eq!(errno, ESHUTDOWN);
    assert!(message.contains("removed"), "{message}");
    device.gate.open();
    assert_eq!(busy.simple_reply(), (0, 1));
    wait_for("the end of the device", || Arc::strong_count(&device) == 1);
    assert_eq!(&device.bytes.lock().unwrap()[..4], b"last");

    for len_bytes in [512, 300_000] {
        idle.request(command::WRITE, 0, 3, 0, len_bytes);
        idle.send(&vec![1; len_bytes as usize]);
        assert_eq!(idle.chunk().error().0, ESHUTDOWN);
    }
    simple.request(command::READ, 0, 4, 0, 1 << 20);
    assert_eq!(simple.simple_reply(), (ESHUTDOWN, 4));
    for raw in [&mut busy, &mut idle, &mut simple] {
        raw.expect_end();
    }
    server.assert_alive();
}

#[test]
fn connections_to_a_removed_export_that_stay_silent_end_too() {
    let exports = Exports::new();
    exports.add(Export::new("disk", Ram::shared(8192))).unwrap();
    let server = running(&exports, {
        let mut limits = quick();
        limits.stop_grace = IO;
        limits
    });
    let mut raw = server.simple();
    drop(exports.remove("disk"));
    raw.expect_end();
    wait_for("the end of the connection", || server.handle.connections() == 0);
}

#[test]
fn a_client_that_never_stops_asking_is_left_after_the_grace() {
    let exports = Exports::new();
    exports.add(Export::new("disk", Ram::shared(8192))).unwrap();
    let server = running(&exports, limits_with(|limits| limits.stop_grace = IO));
    let mut raw = server.simple();
    drop(exports.remove("disk"));
    let start = Instant::now();
    let request = pagefold_serve::protocol::Request { flags: 0, kind: 0, cookie: 1, offset: 0, len_bytes: 1 }.encode();
    while std::io::Write::write_all(&mut raw.stream, &request).is_ok()
        && std::io::Read::read_exact(&mut raw.stream, &mut [0; 16]).is_ok()
    {
        assert!(start.elapsed() < Duration::from_secs(25), "still served");
    }
    assert!(start.elapsed() >= IO / 2);
}

/// Neither a partly sent reply to a read nor a partly received write blocks the removal.
#[test]
fn requests_whose_peers_are_slow_do_not_keep_a_removed_device() {
    let device = Ram::shared(33 << 20);
    let exports = Exports::new();
    exports.add(Export::new("disk", Arc::clone(&device) as _)).unwrap();
    let server = running(&exports, Limits::default());
    let (mut reads, mut writes) = (server.structured(), server.structured());
    reads.request(command::READ, 0, 1, 0, 32 << 20);
    reads.bytes(1);
    writes.request(command::WRITE, 0, 1, 0, 32 << 20);
    writes.send(&vec![1; 1 << 20]);
    drop(exports.remove("disk"));
    wait_for("the end of the device", || Arc::strong_count(&device) == 1);
    writes.send(&vec![1; 31 << 20]);
    assert_eq!(writes.chunk().error().0, ESHUTDOWN);
}

#[test]
fn a_device_may_change_its_size_while_clients_are_connected() {
    let device = Ram::shared(8192);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    let resize = |size_bytes| device.bytes.lock().unwrap().resize(size_bytes, 7);
    resize(16 << 10);
    raw.request(command::READ, 0, 1, 8192, 8192);
    assert_eq!(raw.structured_read(1, 8192), Ok(vec![7; 8192]));
    assert_eq!(server.greet().go(b"disk").0, 16 << 10);
    resize(4096);
    raw.request(command::READ, 0, 2, 4096, 512);
    assert_eq!(raw.structured_read(2, 4096), Err(22));
    raw.request(command::WRITE, 0, 3, 4096, 512);
    raw.send(&[1; 512]);
    assert_eq!(raw.chunk().error(), (28, "512 bytes at offset 4096 are outside a device of 4096 bytes".into()));
    raw.request(command::BLOCK_STATUS, 0, 4, 0, 8192);
    assert_eq!(raw.chunk().error().0, 22);
    raw.request(command::READ, 0, 5, 0, 4096);
    assert_eq!(raw.structured_read(5, 0), Ok(vec![0; 4096]));
    assert_eq!(server.greet().go(b"disk").0, 4096);
}
