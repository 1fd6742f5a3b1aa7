//! The effects of single requests.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use pagefold_disk::{BlockDevice, Room, Waits};
use pagefold_executor::Export;
use pagefold_vhost_user::client::{Client, Error, Layout, Operation, Options};

use crate::world::{CONFIG, Fickle, MIB, World, ram_disk, wait_for};

const OK: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ (at as u8).wrapping_mul(13) ^ seed).collect()
}

#[test]
fn written_data_is_on_the_disk_and_is_read_again() {
    let disk = ram_disk(8 * MIB);
    let world = World::new(disk.clone());
    let mut client = world.client(Options { most_bytes: MIB, ..Options::default() });
    let data = pattern(9000 / 512 * 512, 1);
    client.queues[0].write(512 * 7, &data).expect("a write");
    let mut back = vec![0; data.len()];
    disk.read(512 * 7, &mut back).expect("a read");
    assert!(back == data);
    // In parts that no sector begins with, and in an indirect table.
    let layout = Layout { indirect: true, segments: &[1, 511, 3, 4096, 1000] };
    let len = data.len() as u64;
    let answer = client.queues[0].run(Operation::Read(512 * 7, len), layout).expect("a read");
    assert!(client.queues[0].data(answer.slot, len).expect("data") == data);
    assert_eq!(u64::from(answer.written), len + 1);
    // Larger than the requests that a thread runs alone, and than its buffer.
    let large = pattern(MIB as usize, 2);
    client.queues[0].write(4 * MIB, &large).expect("a write");
    assert!(client.queues[0].read(4 * MIB, MIB).expect("a read") == large);
}

#[test]
fn the_configuration_shows_the_disk() {
    let world = World::new(ram_disk(8 * MIB));
    let mut client = world.client(Options::default());
    assert_eq!(client.size_bytes().expect("a size"), 8 * MIB);
    let queues = client.config(34, 2).expect("a part");
    assert_eq!(queues, CONFIG.queues.to_le_bytes());
    let answer = client.queues[0].run(Operation::Identify, Layout::default()).expect("an answer");
    let id = client.queues[0].data(answer.slot, 20).expect("data");
    assert_eq!(&id, b"a disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

fn run(client: &mut Client, operation: Operation<'_>) -> u8 {
    let queue = &mut client.queues[0];
    queue.submit(operation, Layout::default()).expect("room").expect("room");
    queue.kick().expect("a kick");
    queue.wait().expect("an answer").status
}

#[test]
fn ranges_are_discarded_and_zeroed() {
    let disk = ram_disk(8 * MIB);
    let world = World::new(disk.clone());
    let mut client = world.client(Options::default());
    disk.write(0, &[7; 65536]).expect("a write");
    assert_eq!(run(&mut client, Operation::Discard(&[(8, 8, 0), (1, 3, 0)])), OK);
    assert_eq!(run(&mut client, Operation::WriteZeroes(&[(32, 8, 0), (48, 8, 1)])), OK);
    let mut back = [0; 65536];
    disk.read(0, &mut back).expect("a read");
    let zeros = [(512, 2048), (4096, 8192), (16384, 20480), (24576, 28672)];
    for (at, byte) in back.iter().enumerate() {
        let is_zero = zeros.iter().any(|(from, to)| (*from..*to).contains(&at));
        assert_eq!(*byte == 0, is_zero, "byte {at}");
    }
    // All or nothing, where it can be known before.
    let sectors = 8 * MIB / 512;
    for outside in [(sectors, 1, 0), (u64::MAX, 8, 0), (1 << 60, 8, 0)] {
        let ranges = [(0, 8, 0), outside];
        assert_eq!(run(&mut client, Operation::Discard(&ranges)), FAILED, "{ranges:?}");
        assert_eq!(run(&mut client, Operation::WriteZeroes(&ranges)), FAILED, "{ranges:?}");
    }
    assert_eq!(run(&mut client, Operation::Discard(&[(0, (1 << 21) + 1, 0)])), FAILED);
    assert_eq!(run(&mut client, Operation::Discard(&[(0, 8, 1)])), UNSUPPORTED);
    assert_eq!(run(&mut client, Operation::WriteZeroes(&[(0, 8, 2)])), UNSUPPORTED);
    assert_eq!(run(&mut client, Operation::Discard(&[(0, 1, 0); 33])), FAILED);
    assert_eq!(run(&mut client, Operation::Discard(&[])), FAILED);
    assert_eq!(run(&mut client, Operation::Other(11, 0, &[0; 15])), FAILED);
    let mut after = [0; 65536];
    disk.read(0, &mut after).expect("a read");
    assert!(after == back);
}

#[test]
fn invalid_requests_get_an_error_and_change_nothing() {
    let disk = ram_disk(MIB);
    let world = World::new(disk.clone());
    let mut client = world.client(Options::default());
    let queue = &mut client.queues[0];
    let mut status = |operation| match queue.run(operation, Layout::default()) {
        Err(Error::Status(status)) => status,
        other => panic!("{other:?}"),
    };
    let block = [1; 4096];
    for sector in [MIB / 512 - 7, MIB / 512, u64::MAX / 512, u64::MAX, 1 << 55] {
        assert_eq!(status(Operation::Other(1, sector, &block)), FAILED, "{sector}");
    }
    assert_eq!(status(Operation::Read(MIB - 512, 1024)), FAILED);
    assert_eq!(status(Operation::Other(1, 0, &block[..511])), FAILED);
    assert_eq!(status(Operation::Read(0, 100)), FAILED);
    for kind in [2, 3, 5, 9, 14, 0x8000_0001, u32::MAX] {
        assert_eq!(status(Operation::Other(kind, 0, &block)), UNSUPPORTED, "{kind}");
    }
    assert!(queue.read(0, 4096).expect("a read").iter().all(|byte| *byte == 0));
    queue.run(Operation::Read(0, 0), Layout::default()).expect("nothing to read");
}

#[test]
fn a_read_only_disk_says_so_and_stays_unchanged() {
    let disk = ram_disk(MIB);
    disk.write(0, &[9; 4096]).expect("a write");
    let world = World::of(Export::read_only("a disk", disk));
    let mut client = world.client(Options::default());
    assert_eq!(client.features() & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    let changes =
        [Operation::Write(0, &[1; 512]), Operation::Discard(&[(0, 1, 0)]), Operation::WriteZeroes(&[(0, 1, 0)])];
    for change in changes {
        let result = client.queues[0].run(change, Layout::default());
        assert!(matches!(result, Err(Error::Status(FAILED))), "{change:?}");
    }
    assert_eq!(client.queues[0].read(0, 512).expect("a read"), [9; 512]);
}

/// A change that finds no room resumes where it stopped: changes of others in the finished part
/// stay.
#[test]
fn a_change_that_waits_for_room_does_nothing_twice() {
    let waits = Arc::new(Waits::new(&Arc::new(Room::default())));
    let device = Fickle::new(4 * MIB, Some(Arc::clone(&waits)));
    let world = World::new(device.clone());
    let mut client = world.client(Options { most_bytes: MIB, ..Options::default() });
    let data = pattern(MIB as usize, 5);
    let zeroes: Vec<_> = (0..4).map(|number| (number * 1024, 256, 0)).collect();
    // Bytes at which each change stops the first time, and what it has changed by then. A request that is
    // run by one thread, one that is handed on, and one with several ranges.
    let changes = [
        (Operation::Write(512, &data[..32 << 10]), 20 << 10, 512..(16 << 10)),
        (Operation::Write(512, &data), 300 << 10, 512..(296 << 10)),
        (Operation::WriteZeroes(&zeroes), 300 << 10, 0..(64 << 10)),
    ];
    for (change, room_bytes, done) in changes {
        device.disk.write(0, &vec![1; 4 << 20]).expect("a write");
        device.written_bytes.store(0, SeqCst);
        device.room_bytes.store(room_bytes, SeqCst);
        let slot = client.queues[0].submit(change, Layout::default()).expect("room").expect("room");
        client.queues[0].kick().expect("a kick");
        wait_for("a change that waits", || waits.count() == 1);
        let other = vec![9; done.end - done.start];
        device.disk.write(done.start as u64, &other).expect("another's write");
        device.room_bytes.store(room_bytes, SeqCst);
        wait_for("more of it", || device.room_bytes.load(SeqCst) < room_bytes);
        device.room_bytes.store(u64::MAX, SeqCst);
        let answer = client.queues[0].wait().expect("an answer");
        assert_eq!((answer.slot, answer.status), (slot, OK), "{change:?}");
        let mut expected = vec![1; 4 << 20];
        let len = match change {
            Operation::Write(offset, data) => {
                expected[offset as usize..][..data.len()].copy_from_slice(data);
                data.len()
            }
            _ => {
                (0..4).for_each(|number| expected[number << 19..][..128 << 10].fill(0));
                512 << 10
            }
        };
        expected[done.clone()].fill(9);
        let mut found = vec![0; 4 << 20];
        device.disk.read(0, &mut found).expect("a read");
        let differs = (0..found.len()).find(|&at| found[at] != expected[at]);
        assert_eq!(differs, None, "{change:?}");
        assert_eq!(device.written_bytes.load(SeqCst), len as u64, "{change:?}");
    }
}

#[test]
fn writes_are_flushed_if_the_driver_asks_for_it() {
    let device = Fickle::new(MIB, None);
    let world = World::new(device.clone());
    let mut client = world.client(Options::default());
    client.queues[0].write(0, &[1; 512]).expect("a write");
    assert_eq!(device.flushes.load(SeqCst), 0);
    client.queues[0].run(Operation::Flush, Layout::default()).expect("a flush");
    assert_eq!(device.flushes.load(SeqCst), 1);
    assert_eq!(client.config(32, 1).expect("a part"), [1]);
    client.set_config(32, &[0]).expect("it can be set");
    assert_eq!(client.config(32, 1).expect("a part"), [0]);
    client.queues[0].write(0, &[1; 512]).expect("a write");
    assert_eq!(device.flushes.load(SeqCst), 2);
    device.blocks.store(true, SeqCst);
    client.queues[0].write(0, &[1; 512]).expect("a write");
    assert_eq!(device.flushes.load(SeqCst), 3);
}

/// A request that waits for storage keeps no other waiting, and reads of one unit come together.
#[test]
fn requests_that_wait_for_storage_are_run_by_other_threads() {
    let device = Fickle::new(MIB, None);
    let world = World::new(device.clone());
    let mut client = world.client(Options::default());
    let data = pattern(65536, 3);
    client.queues[0].write(0, &data).expect("a write");
    device.blocks.store(true, SeqCst);
    device.set_gate(false);
    client.enable(0, false).expect("it stops");
    let queue = &mut client.queues[0];
    let mut expected = Vec::new();
    for number in 0..4 {
        let slot = queue.submit(Operation::Read(number * 4096, 4096), Layout::default()).expect("room").expect("room");
        expected.push((slot, number as usize * 4096));
    }
    client.enable(0, true).expect("it goes on");
    let queue = &mut client.queues[0];
    crate::world::wait_for("a read at the gate", || device.at_gate.load(SeqCst) > 0);
    // The queue continues.
    let answer = queue.run(Operation::Identify, Layout::default()).expect("an answer");
    assert!(expected.iter().all(|(slot, _)| *slot != answer.slot));
    device.set_gate(true);
    for _ in 0..4 {
        let answer = queue.wait().expect("an answer");
        let (_, at) = *expected.iter().find(|(slot, _)| *slot == answer.slot).expect("it was asked");
        assert_eq!(answer.status, OK);
        assert!(queue.data(answer.slot, 4096).expect("data") == data[at..at + 4096]);
    }
    assert_eq!(device.together.load(SeqCst), 4);
}
