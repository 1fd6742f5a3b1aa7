use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use pagefold_serve::protocol::{Request, command, command_flag};

use crate::{
    device::Ram,
    handover::is_over_tls,
    raw::{Raw, Running, limits_with},
};

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_slow_request_does_not_hold_up_the_next() {
    let device = Ram::gated(1 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 0, 16);
    raw.request(command::WRITE, 0, 2, 0, 16);
    raw.send(&[9; 16]);
    for cookie in 10..20 {
        raw.request(command::READ, 0, cookie, 4096, 16);
        assert_eq!(raw.simple_reply(), (0, cookie));
        raw.bytes(16);
    }
    wait_for("the slow requests", || device.gate.waiting() == 2);
    device.gate.open();
    let mut cookies = Vec::new();
    for _ in 0..2 {
        let (errno, cookie) = raw.simple_reply();
        assert_eq!(errno, 0);
        if cookie == 1 {
            raw.bytes(16);
        }
        cookies.push(cookie);
    }
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2]);
}

/// Also if its connection rests in the meantime.
#[test]
fn a_request_in_progress_is_answered_before_the_server_stops() {
    let device = Ram::gated(1 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 0, 16);
    wait_for("the request", || device.gate.waiting() == 1);
    std::thread::sleep(Duration::from_millis(700));
    server.handle.stop();
    std::thread::sleep(Duration::from_millis(50));
    device.gate.open();
    assert_eq!(raw.simple_reply(), (0, 1));
    raw.bytes(16);
    raw.expect_end();
}

/// Also if the connection rests in the meantime.
#[test]
fn a_client_that_sends_no_more_gets_the_replies_that_are_due() {
    if is_over_tls() {
        // The end of the stream ends TLS in both directions.
        return;
    }
    let device = Ram::gated(1 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 0, 16);
    wait_for("the request", || device.gate.waiting() == 1);
    std::thread::sleep(Duration::from_millis(700));
    raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    device.gate.open();
    assert_eq!(raw.simple_reply(), (0, 1));
    raw.bytes(16);
    raw.expect_end();
}

#[test]
fn a_large_request_does_not_hold_up_the_next_even_on_a_device_that_never_blocks() {
    let device = Arc::new(Ram::new(40 << 20));
    device.gate.close();
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    raw.request(command::READ, command_flag::DF, 1, 0, 32 << 20);
    raw.request(command::READ, 0, 2, 4096, 16);
    assert_eq!(raw.structured_read(2, 4096), Ok(vec![0; 16]));
    device.gate.open();
    assert_eq!(raw.structured_read(1, 0).map(|data| data.len()), Ok(32 << 20));
}

#[test]
fn small_replies_go_between_the_chunks_of_a_large_one() {
    let server = Running::of(Arc::new(Ram { slow_read: Duration::from_millis(1), ..Ram::new(40 << 20) }));
    let mut raw = server.structured();
    raw.request(command::READ, 0, 1, 4096, 32 << 20);
    raw.request(command::READ, 0, 2, 4096, 16);
    let mut chunks_before = 0;
    let mut left = 32 << 20;
    while left != 0 {
        let chunk = raw.chunk();
        if chunk.cookie == 2 {
            assert_ne!(left, 0);
            chunks_before = (32 << 20) - left;
        } else {
            left -= chunk.payload.len() - 8;
        }
    }
    assert!(chunks_before < 32 << 20, "the small reply came last");
}

/// Including those that had arrived in part before, and those that follow them.
#[test]
fn writes_that_arrive_together_run_at_the_same_time_if_a_cpu_is_spare() {
    const LEN_BYTES: usize = 32 << 10;
    for len_bytes in [LEN_BYTES, LEN_BYTES / 2] {
        let device = Arc::new(Ram { slow_write: Duration::from_millis(20), ..Ram::new(16 * LEN_BYTES) });
        let server = Running::of(Arc::clone(&device) as _);
        let mut raw = server.simple();
        for number in 0..12_u64 {
            raw.request(command::WRITE, 0, number, number * len_bytes as u64, len_bytes as u32);
            raw.send(&vec![number as u8 + 1; len_bytes]);
        }
        let mut cookies: Vec<u64> = (0..12).map(|_| raw.simple_reply().1).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..12).collect::<Vec<_>>());
        let bytes = device.bytes.lock().unwrap();
        let is_right = |(number, part): (usize, &[u8])| part.iter().all(|&byte| usize::from(byte) == number + 1);
        assert!(bytes.chunks(len_bytes).take(12).enumerate().all(is_right));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(device.most_writes.load(Ordering::SeqCst) >= cpus.min(2));
    }
}

#[test]
fn a_large_write_comes_in_pieces_that_cover_it() {
    const LEN_BYTES: usize = (1 << 20) + 512;
    let device = Ram::gated(4 * LEN_BYTES);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    // A slow request in parallel delays none of them.
    raw.request(command::READ, 0, 9, 0, 16);
    wait_for("the read", || device.gate.waiting() == 1);
    for number in 1..3_u8 {
        let offset = usize::from(number) * LEN_BYTES;
        raw.request(command::WRITE, 0, number.into(), offset as u64, LEN_BYTES as u32);
        raw.send(&[number; LEN_BYTES]);
        assert_eq!(raw.simple_reply(), (0, number.into()));
        let mut writes = std::mem::take(&mut *device.writes.lock().unwrap());
        writes.sort_unstable();
        let end = writes.iter().fold(offset as u64, |end, &(start, len_bytes)| {
            assert_eq!(start, end, "{writes:?}");
            assert!(len_bytes <= 256 << 10);
            end + len_bytes as u64
        });
        assert_eq!(end, (offset + LEN_BYTES) as u64);
    }
    device.gate.open();
    assert_eq!(raw.simple_reply(), (0, 9));
    assert_eq!(raw.bytes(16), [0; 16]);
    let bytes = device.bytes.lock().unwrap();
    assert!(bytes[LEN_BYTES..2 * LEN_BYTES].iter().all(|&byte| byte == 1));
    assert!(bytes[2 * LEN_BYTES..3 * LEN_BYTES].iter().all(|&byte| byte == 2));
}

#[test]
fn slow_requests_use_no_more_threads_than_allowed_and_all_are_answered() {
    let device = Arc::new(Ram { may_block: true, gates_all: true, ..Ram::new(1 << 20) });
    device.gate.close();
    let limits = limits_with(|limits| limits.threads_per_connection = 4);
    let server = Running::limited(Arc::clone(&device) as _, limits);
    let mut raw = server.simple();
    for cookie in 0..20 {
        raw.request(command::READ, 0, cookie, cookie * 8192, 16);
    }
    // The connection's own thread runs one, too.
    wait_for("the fifth request", || device.gate.waiting() == 5);
    // A sixth would wait by then.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(device.gate.waiting(), 5);
    device.gate.open();
    let mut cookies: Vec<u64> = (0..20)
        .map(|_| {
            let (errno, cookie) = raw.simple_reply();
            raw.bytes(16);
            assert_eq!(errno, 0);
            cookie
        })
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..20).collect::<Vec<_>>());
}

#[test]
fn mixed_sizes_at_depth_keep_every_reply_whole() {
    let server = Running::of(Ram::shared(8 << 20));
    let mut raw = server.structured();
    let pattern: Vec<u8> = (0..8 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (number, part) in pattern.chunks(1 << 20).enumerate() {
        raw.request(command::WRITE, 0, number as u64, (number as u64) << 20, 1 << 20);
        raw.send(part);
    }
    for _ in 0..8 {
        assert_eq!(raw.simple_reply().0, 0);
    }
    let ranges: Vec<(u64, u32)> = (0..300_u64)
        .map(|i| {
            let len_bytes = [17, 4096, 65_536, 70_000, 300_000, 1_000_000][(i % 6) as usize];
            (i * 7919 * 13 % ((8 << 20) - u64::from(len_bytes)), len_bytes)
        })
        .collect();
    let mut sender = Raw { stream: raw.stream.try_clone().unwrap() };
    let requests = ranges.clone();
    let sent = std::thread::spawn(move || {
        for (cookie, (offset, len_bytes)) in requests.into_iter().enumerate() {
            sender.request(command::READ, 0, cookie as u64, offset, len_bytes);
        }
    });
    let mut missing: Vec<u32> = ranges.iter().map(|range| range.1).collect();
    while missing.iter().any(|&left| left != 0) {
        let chunk = raw.chunk();
        let (offset, len_bytes) = ranges[chunk.cookie as usize];
        assert_eq!(chunk.kind, 1);
        let at = u64::from_be_bytes(chunk.payload[..8].try_into().unwrap());
        let data = &chunk.payload[8..];
        assert!(at >= offset && at + data.len() as u64 <= offset + u64::from(len_bytes));
        assert!(data == &pattern[at as usize..][..data.len()], "wrong bytes at {at}");
        missing[chunk.cookie as usize] -= data.len() as u32;
    }
    sent.join().unwrap();
}

/// A lost wake-up would leave a connection without a leader and this test without its last replies.
#[test]
fn floods_of_small_requests_on_a_device_that_blocks_are_all_answered() {
    const ROUNDS: u64 = 40;
    const DEPTH: u64 = 100;
    for threads_per_connection in [1, 2, 16] {
        let limits = limits_with(|limits| limits.threads_per_connection = threads_per_connection);
        let device = Arc::new(Ram { may_block: true, ..Ram::new(1 << 20) });
        let server = Running::limited(device, limits);
        let mut raw = server.simple();
        for round in 0..ROUNDS {
            let mut flood = Vec::new();
            for cookie in 0..DEPTH {
                let kind = if cookie % 2 == 0 { command::FLUSH } else { command::WRITE };
                let len_bytes = if kind == command::WRITE { 512 } else { 0 };
                let offset = len_bytes * cookie;
                flood.extend(Request { flags: 0, kind, cookie, offset, len_bytes }.encode());
                flood.extend(vec![round as u8; len_bytes as usize]);
            }
            raw.send(&flood);
            let mut cookies: Vec<u64> = (0..DEPTH).map(|_| raw.simple_reply().1).collect();
            cookies.sort_unstable();
            assert_eq!(cookies, (0..DEPTH).collect::<Vec<_>>());
        }
    }
}

/// All threads of a connection but one are busy: requests that it hands to the last one are
/// answered.
#[test]
fn with_one_thread_left_every_request_is_answered() {
    let device = Ram::gated(1 << 20);
    let server = Running::limited(Arc::clone(&device) as _, limits_with(|limits| limits.threads_per_connection = 2));
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 0, 16);
    wait_for("the slow request", || device.gate.waiting() == 1);
    let len_bytes = 16 << 10;
    for round in 0..1000 {
        // A thread that has just helped with several requests looks for more, and gets a single one.
        for cookies in [10..16, 16..17, 17..18] {
            let requests = cookies.map(|cookie| {
                let offset = 4096 * (1 + (round + cookie) % 200);
                Request { flags: 0, kind: command::READ, cookie, offset, len_bytes }.encode()
            });
            raw.send(&requests.collect::<Vec<_>>().concat());
            std::thread::sleep(Duration::from_micros(round % 80));
        }
        let mut answered: Vec<u64> = (10..18)
            .map(|_| {
                let (errno, cookie) = raw.simple_reply();
                assert_eq!(errno, 0);
                raw.bytes(len_bytes as usize);
                cookie
            })
            .collect();
        answered.sort_unstable();
        assert_eq!(answered, (10..18).collect::<Vec<_>>());
    }
    device.gate.open();
    assert_eq!(raw.simple_reply(), (0, 1));
}
