//! Extended headers: 64-bit lengths.

use std::sync::Arc;

use pagefold_disk::{BlockDevice, Error, Extent, Zeroes};
use pagefold_serve::protocol::{Request, command, command_flag, option, reply};

use crate::{
    device::Ram,
    raw::{Chunk, Raw, Running, contexts},
};

const EINVAL: u32 = 22;

/// A hole of any size.
struct Hole(u64);

impl BlockDevice for Hole {
    fn size_bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, buf: &mut [u8]) -> Result<(), Error> {
        buf.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
        Err(Error::NoSpace)
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroes) -> Result<(), Error> {
        Ok(())
    }

    fn extents(&self, _: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        each(Extent { len_bytes, hole: true, zero: true });
        Ok(())
    }
}

fn connect(server: &Running) -> Raw {
    let mut raw = server.greet();
    raw.option(option::EXTENDED_HEADERS, b"");
    raw.expect_ack(option::EXTENDED_HEADERS);
    raw.option(option::SET_META_CONTEXT, &contexts(b"disk", &[b"base:allocation"]));
    assert_eq!(raw.option_reply(option::SET_META_CONTEXT).0, reply::META_CONTEXT);
    raw.expect_ack(option::SET_META_CONTEXT);
    raw.go(b"disk");
    raw
}

fn request(raw: &mut Raw, kind: u16, flags: u16, cookie: u64, offset: u64, len_bytes: u64) {
    raw.send(&Request { flags, kind, cookie, offset, len_bytes }.encode_extended());
}

/// Reads a chunk of the reply to a request at `offset`.
fn chunk(raw: &mut Raw, offset: u64) -> Chunk {
    assert_eq!(raw.u32(), 0x6e8a_278c);
    let (flags, kind, cookie) = (raw.u16(), raw.u16(), raw.u64());
    assert_eq!(raw.u64(), offset);
    let len_bytes = raw.u64();
    Chunk { flags, kind, cookie, payload: raw.bytes(len_bytes as usize) }
}

fn done(cookie: u64) -> Chunk {
    Chunk { flags: 1, kind: 0, cookie, payload: Vec::new() }
}

#[test]
fn everything_is_answered_in_extended_chunks() {
    let device = Ram::shared(2 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = connect(&server);
    let data: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 7) as u8 | 1).collect();
    // With the flag that the protocol requires and without it, as qemu 10 sends them; small and
    // large.
    for (cookie, (flags, len_bytes)) in
        [(command_flag::PAYLOAD_LEN, 4096), (0, 4096), (command_flag::PAYLOAD_LEN, 1 << 20)].into_iter().enumerate()
    {
        let cookie = cookie as u64;
        request(&mut raw, command::WRITE, flags, cookie, 777, len_bytes as u64);
        raw.send(&data[..len_bytes]);
        assert_eq!(chunk(&mut raw, 777), done(cookie));
        assert!(device.bytes.lock().unwrap()[777..][..len_bytes] == data[..len_bytes]);
        request(&mut raw, command::READ, command_flag::DF, cookie, 777, len_bytes as u64);
        let read = chunk(&mut raw, 777);
        assert_eq!((read.flags, read.kind, read.cookie), (1, 1, cookie));
        assert!(read.payload[8..] == data[..len_bytes]);
    }
    for kind in [command::TRIM, command::WRITE_ZEROES, command::CACHE] {
        request(&mut raw, kind, 0, 9, 4096, 4096);
        assert_eq!(chunk(&mut raw, 4096), done(9));
    }
    request(&mut raw, command::FLUSH, 0, 9, 0, 0);
    assert_eq!(chunk(&mut raw, 0), done(9));
}

#[test]
fn ranges_of_more_than_4_gib_are_one_request() {
    const SIZE: u64 = 40 << 30;
    let server = Running::of(Arc::new(Hole(SIZE)));
    let mut raw = connect(&server);
    for kind in [command::TRIM, command::WRITE_ZEROES, command::CACHE] {
        request(&mut raw, kind, 0, 1, 0, SIZE);
        assert_eq!(chunk(&mut raw, 0), done(1));
    }
    request(&mut raw, command::BLOCK_STATUS, 0, 2, 512, SIZE - 512);
    let status = chunk(&mut raw, 512);
    assert_eq!((status.flags, status.kind), (1, 6));
    let expected = [&[0, 0, 0, 1, 0, 0, 0, 1][..], &(SIZE - 512).to_be_bytes(), &3_u64.to_be_bytes()].concat();
    assert_eq!(status.payload, expected);
    request(&mut raw, command::TRIM, 0, 3, 512, SIZE);
    assert_eq!(chunk(&mut raw, 512).error().0, EINVAL);
    for len_bytes in [1 << 32, 1 << 63, u64::MAX - 3, u64::MAX] {
        request(&mut raw, command::READ, 0, 4, 512, len_bytes);
        assert_eq!(chunk(&mut raw, 512).error().0, EINVAL, "{len_bytes} bytes");
    }
}

#[test]
fn a_payload_that_does_not_belong_there_is_dropped() {
    let server = Running::of(Ram::shared(8192));
    let mut raw = connect(&server);
    request(&mut raw, command::TRIM, command_flag::PAYLOAD_LEN, 1, 0, 500);
    raw.send(&[0x55; 500]);
    assert_eq!(chunk(&mut raw, 0).error().0, EINVAL);
    request(&mut raw, command::FLUSH, 0, 2, 0, 0);
    assert_eq!(chunk(&mut raw, 0), done(2));
    request(&mut raw, command::WRITE, command_flag::PAYLOAD_LEN, 3, 0, 1 << 33);
    raw.expect_end();
    server.assert_alive();
}

#[test]
fn the_options_that_do_not_go_with_extended_headers_are_refused() {
    let server = Running::of(Ram::shared(8192));
    let mut raw = server.greet();
    raw.option(option::EXTENDED_HEADERS, b"x");
    assert_eq!(raw.option_reply(option::EXTENDED_HEADERS).0, reply::ERR_INVALID);
    raw.option(option::STRUCTURED_REPLY, b"");
    raw.expect_ack(option::STRUCTURED_REPLY);
    raw.option(option::EXTENDED_HEADERS, b"");
    raw.expect_ack(option::EXTENDED_HEADERS);
    raw.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(raw.option_reply(option::STRUCTURED_REPLY).0, reply::ERR_EXT_HEADER_REQD);
    raw.option(option::EXPORT_NAME, b"disk");
    raw.expect_end();
}
