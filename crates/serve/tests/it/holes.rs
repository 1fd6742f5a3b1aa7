//! Zeros in the replies to reads.

use std::sync::{Arc, atomic::Ordering};

use pagefold_serve::protocol::{command, command_flag};

use crate::{
    device::Ram,
    raw::{Raw, Running},
};

/// Every other page is a hole.
fn striped(size_bytes: usize) -> Arc<Ram> {
    let device = Ram { striped: true, ..Ram::new(size_bytes) };
    for page in device.bytes.lock().unwrap().chunks_mut(8192) {
        page[..4096].fill(7);
    }
    Arc::new(device)
}

/// Reads a range; returns the data and how many chunks were holes.
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
fn holes_are_sent_as_such_and_data_as_data() {
    let device = striped(2 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    for (offset, len_bytes) in
        [(0, 4096), (4096, 4096), (0, 16 << 10), (1000, 9000), (4096, 100), (0, 2 << 20), (77, (1 << 20) + 5)]
    {
        let (data, holes) = read(&mut raw, 0, offset, len_bytes);
        let expected = &device.bytes.lock().unwrap()[offset as usize..][..len_bytes as usize];
        assert!(data == expected, "{len_bytes} bytes at {offset}");
        let whole_holes = (0..512_u64).filter(|page| {
            page % 2 == 1 && page * 4096 >= offset && (page + 1) * 4096 <= offset + u64::from(len_bytes)
        });
        assert_eq!(holes, whole_holes.count(), "{len_bytes} bytes at {offset}");
    }
}

#[test]
fn a_reply_that_must_be_one_chunk_has_no_holes() {
    let device = striped(1 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    for len_bytes in [8192, 1 << 20] {
        let (data, holes) = read(&mut raw, command_flag::DF, 0, len_bytes);
        assert!(data == device.bytes.lock().unwrap()[..len_bytes as usize]);
        assert_eq!(holes, 0);
    }
}

#[test]
fn what_is_a_hole_is_not_read() {
    let device = striped(16 << 10);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.structured();
    assert_eq!(read(&mut raw, 0, 4096, 4096), (vec![0; 4096], 1));
    assert_eq!(device.total_reads.load(Ordering::SeqCst), 0);
}
