//! The replies of BLOCK_STATUS in each context, and in several together.

use std::sync::Arc;

use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_serve::protocol::{Request, command_flag, option, reply};

use crate::{
    device::Ram,
    raw::{Raw, Running, contexts},
};

const ALLOCATION: &[u8] = b"base:allocation";
const CHANGED: &[u8] = b"pagefold:changed";
const BLOCK_STATUS: u16 = 7;
const PAGE: u64 = 4096;

type Names<'a> = &'a [&'a [u8]];

/// Returns a fork of a disk that has pages 0 to 7. The fork has changed pages 2 and 3, discarded
/// page 5 and written page 100.
fn fork() -> Arc<RamDisk> {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = RamDisk::new(&pool, 1 << 20).expect("a disk");
    disk.write(0, &[1; 8 * PAGE as usize]).expect("no limit");
    let fork = disk.fork().expect("no limit");
    fork.write(2 * PAGE, &[2; 2 * PAGE as usize]).expect("no limit");
    fork.discard(5 * PAGE, PAGE).expect("no limit");
    fork.write(100 * PAGE, &[3; PAGE as usize]).expect("no limit");
    Arc::new(fork)
}

/// The fork's extents of unchanged (0) and changed (1) pages.
const CHANGES: [(u64, u32); 7] = [(2, 0), (2, 1), (1, 0), (1, 1), (94, 0), (1, 1), (155, 0)];

fn negotiated(server: &Running, headers: u32, selected: &[&[u8]]) -> Raw {
    let mut raw = server.greet();
    raw.option(headers, b"");
    raw.expect_ack(headers);
    raw.option(option::SET_META_CONTEXT, &contexts(b"disk", selected));
    loop {
        match raw.option_reply(option::SET_META_CONTEXT).0 {
            reply::META_CONTEXT => {}
            kind => {
                assert_eq!(kind, reply::ACK);
                break;
            }
        }
    }
    raw.go(b"disk");
    raw
}

/// Returns the flags, the context and the extents of the next chunk, in pages.
fn status(raw: &mut Raw) -> (u16, u32, Vec<(u64, u32)>) {
    let chunk = raw.chunk();
    assert_eq!(chunk.kind, 5, "{chunk:?}");
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let extents = chunk.payload[4..].chunks_exact(8).map(|pair| (number(&pair[..4]), number(&pair[4..])));
    let extents = extents.map(|(len_bytes, status)| (u64::from(len_bytes) / PAGE, status)).collect();
    (chunk.flags, number(&chunk.payload[..4]), extents)
}

#[test]
fn contexts_are_listed_where_the_device_knows_them() {
    for (device, all) in
        [(fork() as Arc<dyn BlockDevice>, &[ALLOCATION, CHANGED][..]), (Ram::shared(8192), &[ALLOCATION])]
    {
        let server = Running::of(device);
        let mut raw = server.greet();
        raw.option(option::STRUCTURED_REPLY, b"");
        raw.expect_ack(option::STRUCTURED_REPLY);
        let knows = all.contains(&CHANGED);
        let changed = if knows { &all[1..] } else { &[] };
        let (list, set) = (option::LIST_META_CONTEXT, option::SET_META_CONTEXT);
        let cases: [(u32, Names<'_>, Names<'_>); 7] = [
            (list, &[], all),
            (list, &[b"base:", b"pagefold:"], all),
            (list, &[b"pagefold:"], changed),
            (list, &[b"pagefold:other"], &[]),
            (set, &[CHANGED, b"other:", ALLOCATION], all),
            (set, &[CHANGED], changed),
            (set, &[b"pagefold:"], &[]),
        ];
        for (option, queries, expected) in cases {
            raw.option(option, &contexts(b"", queries));
            for &name in expected {
                let id = if option == list { 0 } else { 1 + u8::from(name == CHANGED) };
                assert_eq!(raw.option_reply(option), (reply::META_CONTEXT, [&[0, 0, 0, id][..], name].concat()));
            }
            raw.expect_ack(option);
        }
    }
}

#[test]
fn changes_are_reported_alone_and_with_holes() {
    let server = Running::of(fork());
    let mut raw = negotiated(&server, option::STRUCTURED_REPLY, &[CHANGED]);
    raw.request(BLOCK_STATUS, 0, 1, 0, 1 << 20);
    assert_eq!(status(&mut raw), (1, 2, CHANGES.to_vec()));
    raw.request(BLOCK_STATUS, command_flag::REQ_ONE, 2, 2 * PAGE, 1 << 19);
    assert_eq!(status(&mut raw), (1, 2, vec![(2, 1)]));

    let mut raw = negotiated(&server, option::STRUCTURED_REPLY, &[CHANGED, ALLOCATION]);
    raw.request(BLOCK_STATUS, 0, 3, 0, 1 << 20);
    let holes = vec![(5, 0), (1, 3), (2, 0), (92, 3), (1, 0), (155, 3)];
    assert_eq!(status(&mut raw), (0, 1, holes));
    assert_eq!(status(&mut raw), (1, 2, CHANGES.to_vec()));
    raw.request(BLOCK_STATUS, 0, 4, 1 << 19, 1 << 20);
    assert_eq!(raw.chunk().error().0, 22);
}

#[test]
fn extended_replies_have_a_chunk_for_each_context() {
    let server = Running::of(fork());
    let mut raw = negotiated(&server, option::EXTENDED_HEADERS, &[ALLOCATION, CHANGED]);
    raw.send(&Request { flags: 0, kind: BLOCK_STATUS, cookie: 9, offset: 0, len_bytes: 1 << 20 }.encode_extended());
    let mut next = |flags: u16, context: u32, count: u32| {
        assert_eq!(raw.u32(), 0x6e8a_278c);
        assert_eq!((raw.u16(), raw.u16(), raw.u64(), raw.u64()), (flags, 6, 9, 0));
        assert_eq!(raw.u64(), 8 + 16 * u64::from(count));
        assert_eq!((raw.u32(), raw.u32()), (context, count));
        (0..count).map(|_| (raw.u64() / PAGE, raw.u64() as u32)).collect::<Vec<_>>()
    };
    assert_eq!(next(0, 1, 6).len(), 6);
    assert_eq!(next(1, 2, 7), CHANGES);
}

/// With any number of extents, a reply has as many of each context as fit.
#[test]
fn contexts_share_the_room_of_a_reply() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = RamDisk::new(&pool, 64 << 20).expect("a disk");
    (0..8192).for_each(|slot| disk.write(2 * slot * PAGE, &[1; PAGE as usize]).expect("no limit"));
    let server = Running::of(Arc::new(disk));
    let mut raw = negotiated(&server, option::STRUCTURED_REPLY, &[ALLOCATION, CHANGED]);
    let mut offset = 0;
    for cookie in 0..2 {
        raw.request(BLOCK_STATUS, 0, cookie, offset, (64 << 20) - offset as u32);
        let [(_, 1, holes), (_, 2, changes)] = [status(&mut raw), status(&mut raw)] else { panic!("both contexts") };
        assert!(holes.len() > 2000 && holes.len() == changes.len(), "{} {}", holes.len(), changes.len());
        assert!(holes.iter().zip(&changes).all(|(hole, change)| hole.0 == 1 && (hole.1 == 0) == (change.1 == 1)));
        offset += holes.len() as u64 * PAGE;
    }
}
