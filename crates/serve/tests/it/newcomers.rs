//! Clients that have not chosen an export, and those that cannot get one.

use std::{
    io::Write,
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Export, Exports, IDLE_BYTES, Server,
    protocol::{OptionHeader, command, option, reply},
};

use crate::{
    device::Ram,
    memory::{Strict, wait_until},
    raw::{Raw, Running, info, limits_with, quick},
};

/// Each kind stops at a different place. The last ones do not read the answers either.
fn stop_somewhere(server: &Running, kind: usize) -> UnixStream {
    let mut stream = UnixStream::connect(&server.path).unwrap();
    let go = info(b"disk", &[]);
    let header = OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode();
    let list = OptionHeader { option: option::LIST, len_bytes: 0 }.encode();
    let message = match kind {
        0 => vec![],
        1 => vec![0],
        2 => 3_u32.to_be_bytes().to_vec(),
        3 => [&3_u32.to_be_bytes()[..], &header[..7]].concat(),
        4 => [&3_u32.to_be_bytes()[..], &header, &go[..4]].concat(),
        5 => [&3_u32.to_be_bytes()[..], &OptionHeader { option: option::GO, len_bytes: 65536 }.encode(), &go].concat(),
        _ => [&3_u32.to_be_bytes()[..], &list.repeat(2000)].concat(),
    };
    stream.set_nonblocking(true).unwrap();
    // Data that do not fit are left out.
    let _ = stream.write_all(&message);
    stream
}

/// Clients that stop somewhere in the negotiation take no resource that others need: the
/// account lets one connection work.
#[test]
fn newcomers_that_stop_somewhere_take_no_thread_and_keep_no_other_out() {
    const CLIENTS: usize = 100;
    let exports = Exports::new();
    for number in 0..20 {
        exports.add(Export::new(format!("{number:01000}"), Ram::shared(512))).unwrap();
    }
    exports.add(Export::new("disk", Ram::shared(8192))).unwrap();
    let limits = limits_with(|limits| limits.negotiating = CLIENTS + 10);
    let account = Strict::new(CLIENTS as u64 + 10, 1);
    let builder = Server::builder().exports(exports).limits(limits).account(Arc::clone(&account) as _);
    let server = Running::start(builder);
    for kind in 0..7 {
        let stopped: Vec<_> = (0..CLIENTS).map(|_| stop_somewhere(&server, kind)).collect();
        server.assert_alive();
        // There is no memory for the long option of kind 5.
        let open = if kind == 5 { 0 } else { CLIENTS as u64 };
        assert!(account.idle_bytes_taken() >= open * IDLE_BYTES, "clients of kind {kind} were closed");
        drop(stopped);
        wait_until("the memory comes back", || account.idle_bytes_taken() == 0);
    }
}

#[test]
fn a_client_that_sends_byte_by_byte_is_served() {
    let server = Running::of(Ram::shared(8192));
    let mut raw = Raw { stream: UnixStream::connect(&server.path).unwrap() };
    assert_eq!(raw.bytes(18).len(), 18);
    let go = info(b"disk", &[]);
    let header = OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode();
    for byte in [&3_u32.to_be_bytes()[..], &header, &go].concat() {
        raw.send(&[byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(raw.option_reply(option::GO).0, reply::INFO);
    raw.expect_ack(option::GO);
    raw.request(command::READ, 0, 1, 0, 512);
    assert_eq!(raw.simple_reply(), (0, 1));
}

/// Requests that a client sends without waiting for the end of the negotiation are not lost.
#[test]
fn a_client_that_sends_everything_in_one_message_is_served() {
    let server = Running::of(Ram::shared(8192));
    let mut raw = Raw { stream: UnixStream::connect(&server.path).unwrap() };
    let go = info(b"disk", &[]);
    let header = OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode();
    let read = pagefold_serve::protocol::Request { flags: 0, kind: 0, cookie: 5, offset: 0, len_bytes: 512 }.encode();
    raw.send(&[&3_u32.to_be_bytes()[..], &header, &go, &read].concat());
    raw.bytes(18);
    assert_eq!(raw.option_reply(option::GO).0, reply::INFO);
    raw.expect_ack(option::GO);
    assert_eq!(raw.simple_reply(), (0, 5));
    assert_eq!(raw.bytes(512), [0; 512]);
}

#[test]
fn a_connection_that_rests_goes_on_and_its_end_is_noticed() {
    let device = Ram::shared(1 << 20);
    let server = Running::of(device);
    let mut all: Vec<Raw> = (0..20).map(|_| server.simple()).collect();
    for round in 0..3 {
        for (number, raw) in all.iter_mut().enumerate() {
            raw.request(command::WRITE, 0, round, number as u64 * 4096, 4096);
            raw.send(&[round as u8; 4096]);
            assert_eq!(raw.simple_reply(), (0, round));
        }
        // Longer than a connection keeps its thread.
        std::thread::sleep(Duration::from_millis(700));
    }
    drop(all);
    let start = Instant::now();
    while server.handle.connections() != 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_newcomer_has_only_the_time_of_the_handshake() {
    let server = Running::limited(Ram::shared(8192), quick());
    let start = Instant::now();
    let mut silent = server.greet();
    silent.expect_end();
    assert!(start.elapsed() >= crate::raw::HANDSHAKE - Duration::from_millis(50));
    server.assert_alive();
}

#[test]
fn private_exports_have_places_of_their_own_and_are_not_listed() {
    let exports = Exports::new();
    exports.add(Export::read_only("@@1-secret", Ram::shared(8192)).private()).unwrap();
    let limits = limits_with(|limits| {
        limits.connections = 2;
        limits.private = 3;
    });
    exports.add(Export::new("hidden", Ram::shared(8192)).hidden()).unwrap();
    let server = Running::start(Server::builder().exports(exports.clone()).limits(limits));
    let mut raw = server.greet();
    raw.option(option::LIST, b"");
    raw.expect_ack(option::LIST);
    raw.option(option::INFO, &info(b"", &[]));
    assert_eq!(raw.option_reply(option::INFO).0, reply::ERR_UNKNOWN, "a private export is no default");
    exports.add(Export::new("disk", Ram::shared(8192))).unwrap();
    let _full: Vec<Raw> = (0..2).map(|_| server.simple()).collect();
    let refused = |name: &[u8]| {
        let mut raw = server.greet();
        raw.option(option::GO, &info(name, &[]));
        let (kind, message) = raw.option_reply(option::GO);
        assert_eq!(kind, reply::ERR_POLICY);
        String::from_utf8(message).unwrap()
    };
    assert!(refused(b"disk").contains("all 2 connections"));
    assert!(refused(b"hidden").contains("all 2 connections"), "it has no places of its own");
    let mut private: Vec<Raw> = (0..3)
        .map(|_| {
            let mut raw = server.greet();
            raw.go(b"@@1-secret");
            raw
        })
        .collect();
    assert!(refused(b"@@1-secret").contains("all 2 connections"));
    // Beyond its own places, it gets places that others leave free.
    server.handle.set_connections(3);
    let mut raw = server.greet();
    raw.go(b"@@1-secret");
    assert!(refused(b"disk").contains("all 3 connections"));
    private[2].request(command::READ, 0, 1, 0, 512);
    assert_eq!(private[2].simple_reply(), (0, 1));
}

#[test]
fn the_number_of_connections_changes_while_a_server_runs() {
    let server = Running::limited(Ram::shared(8192), limits_with(|limits| limits.connections = 2));
    let mut all: Vec<Raw> = (0..2).map(|_| server.simple()).collect();
    let mut raw = server.greet();
    raw.option(option::GO, &info(b"disk", &[]));
    assert_eq!(raw.option_reply(option::GO).0, reply::ERR_POLICY);
    assert_eq!(server.handle.set_connections(3), 2);
    raw.go(b"disk");
    all.push(raw);
    assert_eq!(server.handle.set_connections(1), 3);
    for raw in &mut all {
        raw.request(command::READ, 0, 1, 0, 512);
        assert_eq!(raw.simple_reply(), (0, 1), "those that are connected stay");
    }
    let mut raw = server.greet();
    raw.option(option::GO, &info(b"disk", &[]));
    assert_eq!(raw.option_reply(option::GO).0, reply::ERR_POLICY);
}

/// A write of 32 MiB would have nine minutes, if its time depended on its length alone.
#[test]
fn a_peer_that_dribbles_a_large_write_is_given_up_soon() {
    for memory_bytes in [0, 64 << 20] {
        let limits = limits_with(|limits| {
            limits.io_timeout = Duration::from_millis(400);
            limits.memory_bytes = memory_bytes;
        });
        let device = Arc::new(Ram::new(33 << 20));
        let server = Running::limited(device, limits);
        let mut raw = server.simple();
        raw.request(command::WRITE, 0, 1, 0, 32 << 20);
        let start = Instant::now();
        while raw.stream.write_all(&[1]).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(60), "still served");
            std::thread::sleep(Duration::from_millis(20));
        }
        server.assert_alive();
    }
}
