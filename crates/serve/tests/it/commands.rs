use std::sync::{Arc, atomic::Ordering};

use pagefold_serve::{
    Limits,
    protocol::{command, command_flag},
};

use crate::{
    device::Ram,
    raw::{Running, limits_with},
};

const MIB: u32 = 1 << 20;

#[test]
fn written_data_is_read_with_simple_replies() {
    let server = Running::of(Ram::shared(8 << 20));
    let mut raw = server.simple();
    for (cookie, len_bytes) in [1_u32, 511, 4096, 65_536, 65_537, MIB, 5 * MIB].into_iter().enumerate() {
        let cookie = cookie as u64;
        let data: Vec<u8> = (0..len_bytes).map(|i| (i / 7 + i) as u8 ^ cookie as u8).collect();
        raw.request(command::WRITE, 0, cookie, 777, len_bytes);
        raw.send(&data);
        assert_eq!(raw.simple_reply(), (0, cookie));
        raw.request(command::READ, 0, cookie + 100, 777, len_bytes);
        assert_eq!(raw.simple_reply(), (0, cookie + 100));
        assert!(raw.bytes(data.len()) == data, "{len_bytes} bytes");
    }
}

#[test]
fn written_data_is_read_with_structured_replies() {
    let server = Running::of(Ram::shared(8 << 20));
    let mut raw = server.structured();
    for len_bytes in [1_u32, 4096, 65_536, 65_537, 262_144, 262_145, 5 * MIB + 3] {
        let data: Vec<u8> = (0..len_bytes).map(|i| (i / 5 + i * 3) as u8).collect();
        raw.request(command::WRITE, 0, 1, 99, len_bytes);
        raw.send(&data);
        assert_eq!(raw.simple_reply(), (0, 1));
        raw.request(command::READ, 0, 2, 99, len_bytes);
        assert!(raw.structured_read(2, 99) == Ok(data), "{len_bytes} bytes");
    }
}

#[test]
fn the_largest_request_works() {
    let most = 64 * MIB;
    // With memory for its pieces, and with only the small buffers.
    for memory_bytes in [Limits::default().memory_bytes, 0] {
        let device = Ram::shared(72 << 20);
        let server =
            Running::limited(Arc::clone(&device) as _, limits_with(|limits| limits.memory_bytes = memory_bytes));
        let (mut structured, mut simple) = (server.structured(), server.simple());
        for (cookie, len_bytes) in [(1, most - 1), (2, most)] {
            let data: Vec<u8> = (0..len_bytes).map(|i| (i.wrapping_mul(40_503) >> 13) as u8 ^ cookie as u8).collect();
            structured.request(command::WRITE, command_flag::FUA, cookie, 4097, len_bytes);
            structured.send(&data);
            assert_eq!(structured.simple_reply(), (0, cookie));
            assert_eq!(device.flushes.load(Ordering::SeqCst) as u64, cookie);
            assert!(device.bytes.lock().unwrap()[4097..][..data.len()] == data);
            structured.request(command::READ, command_flag::DF, 10, 4097, len_bytes);
            let chunk = structured.chunk();
            assert_eq!((chunk.flags, chunk.kind), (1, 1));
            assert!(chunk.payload[8..] == data);
            structured.request(command::READ, 0, 11, 4097, len_bytes);
            assert!(structured.structured_read(11, 4097).as_ref() == Ok(&data));
            simple.request(command::READ, 0, 12, 4097, len_bytes);
            assert_eq!(simple.simple_reply(), (0, 12));
            assert!(simple.bytes(data.len()) == data);
        }
    }
}

#[test]
fn df_asks_for_one_chunk() {
    let server = Running::of(Ram::shared(4 << 20));
    let mut raw = server.structured();
    raw.request(command::READ, command_flag::DF, 1, 0, 2 * MIB);
    let chunk = raw.chunk();
    assert_eq!((chunk.flags, chunk.kind, chunk.cookie, chunk.payload.len()), (1, 1, 1, (2 << 20) + 8));
    raw.request(command::READ, 0, 2, 0, 2 * MIB);
    assert_eq!(raw.chunk().flags, 0, "a large read comes in several chunks");
}

#[test]
fn empty_changes_succeed_and_empty_reads_are_invalid() {
    let server = Running::of(Ram::shared(4096));
    let mut raw = server.structured();
    for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
        raw.request(kind, 0, 2, 4096, 0);
        assert_eq!(raw.simple_reply(), (0, 2));
    }
    raw.request(command::READ, 0, 1, 0, 0);
    assert_eq!(raw.chunk().error(), (22, "read of zero bytes".into()));
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 0, 0);
    assert_eq!(raw.simple_reply(), (22, 1));
}

#[test]
fn fua_and_flush_reach_the_device() {
    let device = Ram::shared(8192);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    raw.request(command::FLUSH, 0, 1, 0, 0);
    assert_eq!(raw.simple_reply(), (0, 1));
    raw.request(command::WRITE, command_flag::FUA, 2, 0, 4);
    raw.send(b"abcd");
    assert_eq!(raw.simple_reply(), (0, 2));
    raw.request(command::WRITE_ZEROES, command_flag::FUA, 3, 0, 4);
    assert_eq!(raw.simple_reply(), (0, 3));
    raw.request(command::TRIM, command_flag::FUA, 4, 0, 4);
    assert_eq!(raw.simple_reply(), (0, 4));
    assert_eq!(device.flushes.load(Ordering::SeqCst), 4);
    raw.request(command::READ, command_flag::FUA, 5, 0, 4);
    assert_eq!(raw.simple_reply(), (0, 5), "FUA is allowed everywhere");
}

#[test]
fn trim_and_write_zeroes_make_zeros() {
    let device = Ram::shared(3 * 4096);
    device.bytes.lock().unwrap().fill(1);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    raw.request(command::TRIM, 0, 1, 0, 4096);
    assert_eq!(raw.simple_reply(), (0, 1));
    raw.request(command::WRITE_ZEROES, command_flag::NO_HOLE | command_flag::FAST_ZERO, 2, 4096, 100);
    assert_eq!(raw.simple_reply(), (0, 2));
    assert!(device.last_zeroes_keep.load(Ordering::SeqCst));
    raw.request(command::WRITE_ZEROES, 0, 3, 4196, 100);
    assert_eq!(raw.simple_reply(), (0, 3));
    assert!(!device.last_zeroes_keep.load(Ordering::SeqCst));
    let bytes = device.bytes.lock().unwrap();
    assert!(bytes[..4296].iter().all(|&byte| byte == 0) && bytes[4296..].iter().all(|&byte| byte == 1));
}

#[test]
fn fast_zeroes_that_stay_allocated_are_refused_where_they_may_be_slow() {
    let server = Running::of(Arc::new(Ram { may_block: true, ..Ram::new(8192) }));
    let mut raw = server.simple();
    raw.request(command::WRITE_ZEROES, command_flag::NO_HOLE | command_flag::FAST_ZERO, 1, 4096, 100);
    assert_eq!(raw.simple_reply(), (95, 1));
    raw.request(command::WRITE_ZEROES, command_flag::FAST_ZERO, 2, 4096, 100);
    assert_eq!(raw.simple_reply(), (0, 2));
}

#[test]
fn block_status_covers_the_range_and_joins_neighbours() {
    let server = Running::of(Ram::shared(1 << 20));
    let mut raw = server.structured();
    raw.request(command::BLOCK_STATUS, 0, 1, 512, 100_000);
    let chunk = raw.chunk();
    assert_eq!((chunk.flags, chunk.cookie), (1, 1));
    assert_eq!(chunk.extents(), [(100_000, 0)]);
}

#[test]
fn block_status_reports_holes_and_req_one_reports_one() {
    let server = Running::of(Arc::new(Ram { striped: true, ..Ram::new(1 << 20) }));
    let mut raw = server.structured();
    raw.request(command::BLOCK_STATUS, 0, 1, 4000, 4096 * 2);
    assert_eq!(raw.chunk().extents(), [(96, 0), (4096, 3), (4000, 0)]);
    raw.request(command::BLOCK_STATUS, command_flag::REQ_ONE, 2, 4096, 4096 * 2);
    assert_eq!(raw.chunk().extents(), [(4096, 3)]);
}

#[test]
fn a_block_status_of_very_many_extents_is_cut() {
    let server = Running::of(Arc::new(Ram { striped: true, ..Ram::new(64 << 20) }));
    let mut raw = server.structured();
    raw.request(command::BLOCK_STATUS, 0, 1, 0, 64 * MIB);
    let extents = raw.chunk().extents();
    assert_eq!(extents.len(), 4096);
    assert!(extents.iter().all(|extent| extent.0 == 4096));
}

#[test]
fn disc_ends_after_earlier_requests() {
    let server = Running::of(Ram::gated(1 << 20));
    let mut raw = server.simple();
    raw.request(command::READ, 0, 1, 4096, 10);
    raw.request(command::DISC, 0, 2, 0, 0);
    assert_eq!(raw.simple_reply(), (0, 1));
    raw.bytes(10);
    raw.expect_end();
}

#[test]
fn requests_that_came_together_are_all_answered() {
    let server = Running::of(Ram::shared(1 << 20));
    let mut raw = server.simple();
    // Reads follow once the writes are done, because requests in flight have no order.
    for kind in [command::WRITE, command::READ] {
        let mut requests = Vec::new();
        for cookie in 0..100_u64 {
            let header =
                pagefold_serve::protocol::Request { flags: 0, kind, cookie, offset: cookie * 4096, len_bytes: 4096 };
            requests.extend(header.encode());
            if kind == command::WRITE {
                requests.extend([cookie as u8; 4096]);
            }
        }
        // The reader must not wait for the writer: both directions carry more than a socket buffers.
        let mut sender = raw.stream.try_clone().unwrap();
        let sent = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &requests).unwrap());
        let mut cookies = Vec::new();
        for _ in 0..100 {
            let (errno, cookie) = raw.simple_reply();
            assert_eq!(errno, 0);
            cookies.push(cookie);
            if kind == command::READ {
                assert!(raw.bytes(4096) == [cookie as u8; 4096]);
            }
        }
        sent.join().unwrap();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..100).collect::<Vec<_>>());
    }
}
