use std::sync::{Arc, atomic::Ordering};

use pagefold_serve::{
    Export, Server,
    protocol::{command, command_flag},
};

use crate::{device::Ram, raw::Running};

const SIZE: u64 = 1 << 20;
const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;

#[test]
fn bad_requests_get_the_errno_the_protocol_wants_and_the_connection_goes_on() {
    let server = Running::of(Ram::shared(SIZE as usize));
    let cases: &[(&str, u16, u16, u64, u32, u32)] = &[
        ("read past the end", command::READ, 0, SIZE, 1, EINVAL),
        ("read across the end", command::READ, 0, SIZE - 1, 2, EINVAL),
        ("read at an offset that overflows", command::READ, 0, u64::MAX, 4096, EINVAL),
        ("read of 4 GiB", command::READ, 0, 0, u32::MAX, EINVAL),
        ("read of 4 GiB in one chunk", command::READ, command_flag::DF, 0, u32::MAX, EOVERFLOW),
        ("write past the end", command::WRITE, 0, SIZE, 1, ENOSPC),
        ("write across the end", command::WRITE, 0, SIZE - 1, 2, ENOSPC),
        ("write at an offset that overflows", command::WRITE, 0, u64::MAX - 1, 4096, ENOSPC),
        ("read of more than the largest", command::READ, 0, 0, (64 << 20) + 1, EINVAL),
        ("write of more than the largest", command::WRITE, 0, 0, (64 << 20) + 1, EINVAL),
        ("write of the largest past the end", command::WRITE, 0, 0, 64 << 20, ENOSPC),
        ("zeroes past the end", command::WRITE_ZEROES, 0, SIZE, 1, ENOSPC),
        ("zeroes at an offset that overflows", command::WRITE_ZEROES, 0, u64::MAX, u32::MAX, ENOSPC),
        ("trim past the end", command::TRIM, 0, SIZE, 1, EINVAL),
        ("cache past the end", command::CACHE, 0, SIZE, 1, EINVAL),
        ("status past the end", command::BLOCK_STATUS, 0, SIZE, 1, EINVAL),
        ("status of nothing", command::BLOCK_STATUS, 0, 0, 0, EINVAL),
        ("flush of a range", command::FLUSH, 0, 0, 512, EINVAL),
        ("flush of an offset", command::FLUSH, 0, 512, 0, EINVAL),
        ("unknown command", 8, 0, 0, 0, EINVAL),
        ("unknown command", u16::MAX, 0, 0, 100, EINVAL),
        ("unknown flag", command::READ, 1 << 15, 0, 512, EINVAL),
        ("unknown flag of a write", command::WRITE, 1 << 5, 0, 512, EINVAL),
        ("DF where it has no meaning", command::WRITE, command_flag::DF, 0, 512, EINVAL),
        ("REQ_ONE where it has no meaning", command::READ, command_flag::REQ_ONE, 0, 512, EINVAL),
        ("NO_HOLE where it has no meaning", command::TRIM, command_flag::NO_HOLE, 0, 512, EINVAL),
    ];
    let (mut structured, mut simple) = (server.structured(), server.simple());
    for (cookie, &(what, kind, flags, offset, len_bytes, errno)) in cases.iter().enumerate() {
        let cookie = cookie as u64;
        for raw in [&mut structured, &mut simple] {
            raw.request(kind, flags, cookie, offset, len_bytes);
            if kind == command::WRITE {
                raw.send(&vec![1; len_bytes as usize]);
            }
        }
        let chunk = structured.chunk();
        assert_eq!((chunk.flags, chunk.cookie, chunk.error().0), (1, cookie, errno), "{what}");
        assert!(!chunk.error().1.is_empty(), "{what}: no message");
        // Without structured replies there is no DF flag and no block status.
        let errno = if errno == EOVERFLOW { EINVAL } else { errno };
        assert_eq!(simple.simple_reply(), (errno, cookie), "{what}");
    }
    for raw in [&mut structured, &mut simple] {
        raw.request(command::FLUSH, 0, 1000, 0, 0);
        assert_eq!(raw.simple_reply(), (0, 1000));
    }
}

#[test]
fn a_device_without_room_is_enospc() {
    let device = Ram::shared(SIZE as usize);
    device.full.store(true, Ordering::SeqCst);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    for len_bytes in [4096, 200_000] {
        raw.request(command::WRITE, 0, 1, 0, len_bytes);
        raw.send(&vec![1; len_bytes as usize]);
        let (errno, message) = raw.chunk().error();
        assert_eq!((errno, message.as_str()), (ENOSPC, "no space left: the memory limit is reached"));
    }
    device.full.store(false, Ordering::SeqCst);
    raw.request(command::WRITE, 0, 2, 0, 1);
    raw.send(b"x");
    assert_eq!(raw.simple_reply(), (0, 2));
}

#[test]
fn a_read_only_export_refuses_changes_with_eperm() {
    let export = Export::read_only("disk", Ram::shared(SIZE as usize));
    let server = Running::start(Server::builder().export(export));
    let mut raw = server.simple();
    raw.request(command::WRITE, 0, 1, 0, 512);
    raw.send(&[1; 512]);
    assert_eq!(raw.simple_reply(), (EPERM, 1));
    for kind in [command::TRIM, command::WRITE_ZEROES] {
        raw.request(kind, 0, 2, 0, 512);
        assert_eq!(raw.simple_reply(), (EPERM, 2));
    }
    raw.request(command::FLUSH, 0, 3, 0, 0);
    assert_eq!(raw.simple_reply(), (0, 3));
    raw.request(command::READ, 0, 4, 0, 512);
    assert_eq!(raw.simple_reply(), (0, 4));
    assert_eq!(raw.bytes(512), [0; 512]);
}

#[test]
fn undecodable_pages_are_eio() {
    let device = Ram::shared(SIZE as usize);
    device.corrupt_from.store(600_000, Ordering::SeqCst);
    let server = Running::of(device);
    let mut raw = server.structured();
    raw.request(command::READ, 0, 1, 700_000, 512);
    assert_eq!(raw.structured_read(1, 700_000), Err(EIO));
    // A large read fails in a later chunk, after valid ones.
    raw.request(command::READ, 0, 2, 0, 1 << 20);
    assert_eq!(raw.structured_read(2, 0), Err(EIO));
    // The error ended that reply.
    raw.request(command::READ, 0, 5, 0, 8);
    assert_eq!(raw.structured_read(5, 0), Ok(vec![0; 8]));
    let mut raw = server.simple();
    raw.request(command::READ, 0, 3, 0, 1 << 20);
    assert_eq!(raw.simple_reply(), (EIO, 3), "a simple reply with an error has no data");
    raw.request(command::READ, 0, 4, 0, 8);
    assert_eq!(raw.simple_reply(), (0, 4));
}

#[test]
fn block_status_without_a_context_is_invalid() {
    let server = Running::of(Ram::shared(SIZE as usize));
    let mut raw = server.simple();
    raw.request(command::BLOCK_STATUS, 0, 1, 0, 512);
    assert_eq!(raw.simple_reply(), (EINVAL, 1));
}
