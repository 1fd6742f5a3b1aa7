//! Zeros in the replies to reads.

use std::sync::{Arc, atomic::Ordering};

use pagefold_serve::protocol::{command, command_flag};

use crate::{
    device::Ram,
    raw::{Raw, Running},
};

/// Returns a device in which every other stripe is a hole.
fn striped(size_bytes: usize, stripe_pages: u64) -> Arc<Ram> {
    let device = Ram { striped: true, stripe_pages, ..Ram::new(size_bytes) };
    let stripe_bytes = stripe_pages as usize * 4096;
    for pair in device.bytes.lock().unwrap().chunks_mut(2 * stripe_bytes) {
        let len_bytes = pair.len().min(stripe_bytes);
        pair[..len_bytes].fill(7);
    }
    Arc::new(device)
}

/// Reads a range; returns the data and the number of hole chunks.
fn read(raw: &mut Raw, flags: u16, offset: u64, len_bytes: u32) -> (Vec<u8>, usize) {
    raw.request(command::READ, flags, 5, offset, len_bytes);
    let (mut data, mut holes) = (vec![0xee; len_bytes as usize], 0);
    let mut covered = 0;
    loop {
        let chunk = raw.chunk();
        let at = (u64::from_be_bytes(chunk.payload[..8].try_into().unwrap()) - offset) as usize;
        assert_eq!(at, covered, "chunks come in order");
        if chunk.kind == 2 {
            let count = u32::from_be_bytes(chunk.payload[8..].try_into().unwrap()) as usize;
            assert!(count >= 4096, "a hole of {count} bytes is not worth a chunk");
            data[at..][..count].fill(0);
            covered += count;
            holes += 1;
        } else {
            assert_eq!(chunk.kind, 1);
            data[at..][..chunk.payload.len() - 8].copy_from_slice(&chunk.payload[8..]);
            covered += chunk.payload.len() - 8;
        }
        if chunk.flags == 1 {
            assert_eq!(covered, len_bytes as usize);
            return (data, holes);
        }
    }
}

#[test]
fn long_holes_are_sent_as_holes_and_others_as_data() {
    // Stripes of 64 KiB: whole holes, or parts of at least 32 KiB. Stripes of one page: only if the
    // request covers nothing else.
    for (stripe_pages, offset, len_bytes, expected_holes) in [
        (16, 0, 1 << 20, 8),
        (16, 65_536, 4096, 1),
        (16, 65_536 + 100, 3000, 0),
        (16, 65_536 - 4096, 40 << 10, 1),
        (16, 65_536 - 4096, 20 << 10, 0),
        (16, 65_537, 200_000, 2),
        (1, 0, 4096, 0),
        (1, 4096, 4096, 1),
        (1, 0, 16 << 10, 0),
        (1, 77, (1 << 20) + 5, 0),
    ] {
        let device = striped(2 << 20, stripe_pages);
        let server = Running::of(Arc::clone(&device) as _);
        let mut raw = server.structured();
        let (data, holes) = read(&mut raw, 0, offset, len_bytes);
        let expected = &device.bytes.lock().unwrap()[offset as usize..][..len_bytes as usize];
        assert!(data == expected, "{len_bytes} bytes at {offset}");
        assert_eq!(holes, expected_holes, "{len_bytes} bytes at {offset}, stripes of {stripe_pages} pages");
    }
}

#[test]
fn a_reply_that_must_be_one_chunk_has_no_holes() {
    let device = striped(1 << 20, 16);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    for len_bytes in [8192, 1 << 20] {
        let (data, holes) = read(&mut raw, command_flag::DF, 0, len_bytes);
        assert!(data == device.bytes.lock().unwrap()[..len_bytes as usize]);
        assert_eq!(holes, 0);
    }
}

#[test]
fn holes_are_not_read() {
    let device = striped(16 << 10, 1);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    assert_eq!(read(&mut raw, 0, 4096, 4096), (vec![0; 4096], 1));
    assert_eq!(device.total_reads.load(Ordering::SeqCst), 0);
}
