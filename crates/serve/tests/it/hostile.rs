use std::{
    sync::{Arc, Barrier, Mutex, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Export, Refused, Server,
    protocol::{Request, command, option, reply},
};

use crate::{
    device::Ram,
    raw::{IO, Running, info, limits_with, quick},
};

#[test]
fn a_wrong_request_magic_costs_only_its_connection() {
    let server = Running::of(Ram::shared(8192));
    let mut other = server.simple();
    let mut raw = server.simple();
    raw.send(&[0x55; 28]);
    raw.expect_end();
    other.request(command::READ, 0, 1, 0, 512);
    assert_eq!(other.simple_reply(), (0, 1));
    server.assert_alive();
}

#[test]
fn half_a_request_then_silence_is_dropped_and_silence_between_requests_is_not() {
    let server = Running::limited(Ram::shared(8192), quick());
    let mut idle = server.simple();
    let mut half = server.simple();
    half.send(&Request { flags: 0, kind: 0, cookie: 1, offset: 0, len_bytes: 512 }.encode()[..20]);
    half.expect_end_after(IO);
    let mut payload = server.simple();
    payload.request(command::WRITE, 0, 1, 0, 4096);
    payload.send(&[1; 100]);
    payload.expect_end_after(IO);
    let mut large = server.simple();
    large.request(command::WRITE, 0, 1, 0, 8192);
    large.send(&[1; 100]);
    large.expect_end_after(IO);
    idle.request(command::READ, 0, 1, 0, 8192);
    assert_eq!(idle.simple_reply(), (0, 1));
    assert_eq!(idle.bytes(8192), [0; 8192], "an unfinished write changed the device");
}

#[test]
fn a_large_payload_that_stops_is_dropped() {
    let server = Running::limited(Ram::shared(64 << 20), quick());
    let mut raw = server.simple();
    raw.request(command::WRITE, 0, 1, 0, 32 << 20);
    raw.send(&vec![1; 300_000]);
    raw.expect_end_after(IO);
    let mut refused = server.simple();
    refused.request(command::WRITE, 0, 1, 0, u32::MAX);
    refused.send(&vec![1; 300_000]);
    refused.expect_end_after(IO);
    server.assert_alive();
}

#[test]
fn a_peer_that_dribbles_a_request_is_dropped() {
    let slow = Arc::new(Ram { may_block: true, ..Ram::new(64 << 10) });
    // Received by the leader, by a follower, and with a payload that is dropped because the write
    // is refused.
    for (device, offset) in [(Ram::shared(64 << 10), 0), (slow, 4096), (Ram::shared(64 << 10), 1 << 30)] {
        let server = Running::limited(device, quick());
        let mut raw = server.simple();
        let mut message =
            Request { flags: 0, kind: command::WRITE, cookie: 1, offset, len_bytes: 8192 }.encode().to_vec();
        message.resize(message.len() + 8192, 5);
        let start = Instant::now();
        for byte in message.chunks(1) {
            if std::io::Write::write_all(&mut raw.stream, byte).is_err() {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(25), "still served");
            std::thread::sleep(IO / 10);
        }
        assert!(start.elapsed() >= IO);
        server.assert_alive();
    }
}

#[test]
fn a_reply_that_stays_half_read_is_given_up_after_one_timeout() {
    let io_timeout = Duration::from_secs(2);
    let server = Running::limited(Ram::shared(64 << 20), limits_with(|limits| limits.io_timeout = io_timeout));
    let mut raw = server.simple();
    let start = Instant::now();
    raw.request(command::READ, 0, 1, 0, 32 << 20);
    raw.bytes(100);
    while server.handle.connections() != 0 {
        assert!(start.elapsed() < io_timeout * 2, "the timeout restarted after a part was sent");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(start.elapsed() >= io_timeout);
}

#[test]
fn a_disconnect_in_the_middle_of_a_write_leaves_the_page_old_or_new_and_others_served() {
    let device = Ram::shared(1 << 20);
    device.bytes.lock().unwrap().fill(7);
    let server = Running::of(Arc::clone(&device) as _);
    let mut other = server.simple();
    for (len_bytes, sent) in [(4096, 1000), (200_000, 100_000), (4096, 4095)] {
        let mut raw = server.simple();
        raw.request(command::WRITE, 0, 1, 4096, len_bytes);
        raw.send(&vec![8; sent]);
        drop(raw);
        other.request(command::READ, 0, 2, 4096, 4096);
        assert_eq!(other.simple_reply(), (0, 2));
        let page = other.bytes(4096);
        assert!(page == [7; 4096] || page == [8; 4096]);
    }
}

#[test]
fn a_peer_that_does_not_read_its_replies_is_dropped() {
    let server = Running::limited(Ram::shared(64 << 20), quick());
    for len_bytes in [4096, 32 << 20] {
        let mut raw = server.simple();
        raw.stream.set_write_timeout(Some(Duration::from_secs(25))).unwrap();
        let request = Request { flags: 0, kind: command::READ, cookie: 1, offset: 0, len_bytes }.encode();
        let start = Instant::now();
        // Never read, until the server drops the connection.
        while std::io::Write::write_all(&mut raw.stream, &request).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(25), "still served");
        }
        assert!(start.elapsed() >= IO / 2);
    }
    server.assert_alive();
}

#[test]
fn a_connection_over_the_bound_gets_the_reason_may_ask_and_gets_room_that_comes_back() {
    let limits = limits_with(|limits| limits.connections = 3);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&reported);
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8192))).limits(limits);
    let server = Running::start(builder.when_refused(move |why| notes.lock().unwrap().push(why)));
    let mut served: Vec<_> = (0..3).map(|_| server.simple()).collect();
    let mut refused = server.greet();
    refused.option(option::GO, &info(b"disk", &[]));
    let (kind, message) = refused.option_reply(option::GO);
    assert_eq!(kind, reply::ERR_POLICY);
    assert!(String::from_utf8_lossy(&message).contains("all 3 connections"), "{message:?}");
    refused.option(option::INFO, &info(b"disk", &[]));
    assert_eq!(refused.option_reply(option::INFO).0, reply::INFO);
    refused.expect_ack(option::INFO);
    let mut old = server.greet();
    old.option(option::EXPORT_NAME, b"disk");
    old.expect_end();
    served[0].request(command::DISC, 0, 1, 0, 0);
    served[0].expect_end();
    let start = Instant::now();
    while server.handle.connections() > 3 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    // Two were refused; this was reported once.
    assert!(matches!(reported.lock().unwrap()[..], [Refused::Full(3)]));
    // The refused client stayed connected and may choose now.
    refused.go(b"disk");
}

#[test]
fn silent_peers_keep_no_client_out() {
    let limits = limits_with(|limits| limits.negotiating = 4);
    let server = Running::limited(Ram::shared(8192), limits);
    let mut served = server.simple();
    let mut silent: Vec<_> = (0..20).map(|_| server.greet()).collect();
    server.assert_alive();
    for raw in &mut silent[..16] {
        raw.expect_end();
    }
    silent[19].go(b"disk");
    served.request(command::READ, 0, 1, 0, 512);
    assert_eq!(served.simple_reply(), (0, 1));
}

#[test]
fn clients_that_connect_at_the_same_instant_are_all_served() {
    let limits = limits_with(|limits| limits.negotiating = 4);
    let server = Running::limited(Ram::shared(8192), limits);
    let start = Barrier::new(64);
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                start.wait();
                let mut raw = server.greet();
                // Longer than the others take to connect.
                thread::sleep(Duration::from_millis(10));
                raw.go(b"disk");
                raw.request(command::READ, 0, 1, 0, 512);
                assert_eq!(raw.simple_reply(), (0, 1));
                raw.bytes(512);
            });
        }
    });
}

#[test]
fn many_connections_are_served_in_parallel() {
    let server = Running::of(Ram::shared(1 << 20));
    let mut all: Vec<_> = (0..100).map(|_| server.simple()).collect();
    for (number, raw) in all.iter_mut().enumerate() {
        raw.request(command::WRITE, 0, 5, number as u64 * 512, 512);
        raw.send(&[number as u8; 512]);
    }
    for raw in &mut all {
        assert_eq!(raw.simple_reply(), (0, 5));
    }
    for (number, raw) in all.iter_mut().rev().enumerate() {
        raw.request(command::READ, 0, 6, number as u64 * 512, 512);
        assert_eq!(raw.simple_reply(), (0, 6));
        assert_eq!(raw.bytes(512), [number as u8; 512]);
    }
}

#[test]
fn the_memory_of_a_connection_is_bounded_by_waiting() {
    let device = Arc::new(Ram { slow_read: Duration::from_millis(5), ..Ram::new(4 << 20) });
    // Only the small buffers, then room for one read of 512 KiB at a time in addition to what the
    // leader does in them.
    for (memory_per_connection_bytes, most) in [(0, 1), (600 << 10, 2)] {
        let limits = limits_with(|limits| limits.memory_per_connection_bytes = memory_per_connection_bytes);
        let server = Running::limited(Arc::clone(&device) as _, limits);
        let mut raw = server.simple();
        for cookie in 0..6 {
            raw.request(command::READ, 0, cookie, 1, 512 << 10);
        }
        for _ in 0..6 {
            assert_eq!(raw.simple_reply().0, 0);
            raw.bytes(512 << 10);
        }
        assert_eq!(device.most_reads.load(Ordering::SeqCst), most);
    }
}

#[test]
fn connections_that_spend_the_servers_memory_hold_up_no_other() {
    // Only the small buffers of each connection.
    let limits = limits_with(|limits| limits.memory_bytes = 0);
    let device = Ram::shared(33 << 20);
    let server = Running::limited(Arc::clone(&device) as _, limits);
    let mut unread: Vec<_> = (0..3).map(|_| server.simple()).collect();
    for raw in &mut unread {
        // The first is being sent, and its memory stays in use, because the client does not read it.
        for cookie in 0..3 {
            raw.request(command::READ, 0, cookie, 1, 20 << 20);
        }
        raw.bytes(1);
    }
    let mut other = server.simple();
    for cookie in 0..3 {
        other.request(command::READ, 0, cookie, 1, 20 << 20);
        assert_eq!(other.simple_reply(), (0, cookie));
        other.bytes(20 << 20);
    }
}

#[test]
fn a_device_that_panics_costs_only_the_connection() {
    let server = Running::of(Arc::new(Ram { panics: true, ..Ram::new(1 << 20) }));
    let mut other = server.simple();
    for len_bytes in [512, 500_000] {
        let mut raw = server.simple();
        raw.request(command::READ, 0, 1, 0, len_bytes);
        raw.expect_end();
    }
    other.request(command::FLUSH, 0, 1, 0, 0);
    assert_eq!(other.simple_reply(), (0, 1));
}
