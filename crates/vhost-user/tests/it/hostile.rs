//! Drivers and frontends that do what they must not.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use pagefold_disk::BlockDevice;
use pagefold_executor::Export;
use pagefold_vhost_user::{
    Event,
    client::{Client, Options},
};
use proptest::{collection::vec, prelude::*};
use vm_memory::{Bytes, GuestAddress};

use crate::world::{MIB, World, ram_disk};

const SIZE: u16 = 16;
const OPTIONS: Options = Options {
    queues: 1,
    queue_size: SIZE,
    depth: 4,
    most_bytes: 64 << 10,
    event_idx: true,
    without: 0,
    sealable: true,
};
/// Sectors that requests of the hostile driver name. Lower numbers are types of requests, so that a
/// header that is cut in the wrong place could name another sector.
const SECTORS: std::ops::Range<u64> = 16..48;
/// The part that such requests can write, from the first sector on.
const REACH_BYTES: u64 = MIB;

/// A descriptor with any fields, most of which make sense.
#[derive(Clone, Debug)]
struct Any {
    start: u64,
    len: u32,
    flags: u16,
    next: u16,
}

fn descriptor(rings: [u64; 3]) -> impl Strategy<Value = Any> {
    let start = prop_oneof![
        // Headers of requests, their neighbours, and tables of descriptors.
        8 => (0..16_u64).prop_map(|number| 0x4000 + 16 * number),
        2 => 0x4000..0x4100_u64,
        4 => (0..16_u64).prop_map(|number| 0x5000 + 512 * number),
        2 => Just(rings[0]),
        1 => Just(rings[1]),
        1 => Just(rings[2]),
        1 => Just(0x4_0000 - 8),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![
        8 => Just(16_u32), 4 => Just(1), 8 => Just(512), 4 => Just(4096), 1 => Just(0), 1 => Just(15), 1 => Just(17),
        2 => (1..20_u32).prop_map(|count| 16 * count), 1 => Just(u32::MAX), 1 => any::<u32>(),
    ];
    let flags = prop_oneof![6 => Just(1_u16), 4 => Just(3), 4 => Just(2), 2 => Just(0), 2 => Just(4), 1 => 0..8_u16];
    (start, len, flags, prop_oneof![8 => 0..SIZE, 1 => any::<u16>()]).prop_map(|(start, len, flags, next)| Any {
        start,
        len,
        flags,
        next,
    })
}

fn bytes_of(descriptors: &[Any]) -> Vec<u8> {
    let encode = |any: &Any| {
        let words = [any.flags.to_le_bytes(), any.next.to_le_bytes()].concat();
        any.start.to_le_bytes().into_iter().chain(any.len.to_le_bytes()).chain(words)
    };
    descriptors.iter().flat_map(encode).collect()
}

/// The queue can be stopped whatever its driver did, and the next frontend is served.
fn still_works(world: &World, mut client: Client) {
    client.stop(0).expect("the queue stops");
    drop(client);
    let mut client = world.client(OPTIONS);
    assert_eq!(client.queues[0].read(0, 512).expect("a read").len(), 512);
}

/// A queue that a driver broke works again when it starts again, without the request that broke it.
#[test]
fn a_broken_queue_starts_again() {
    let world = World::new(ram_disk(MIB));
    let mut client = world.client(OPTIONS);
    client.queues[0].write(0, &[1; 512]).expect("a write");
    let [descriptors, available, _] = client.queues[0].rings();
    // A chain whose first descriptor is its own successor.
    let any = Any { start: 0x4000, len: 16, flags: 1, next: 5 };
    client.memory().write_slice(&bytes_of(&[any]), GuestAddress(descriptors + 5 * 16)).expect("memory");
    client.memory().write_obj(5_u16, GuestAddress(available + 4 + 2)).expect("memory");
    client.memory().write_obj(2_u16, GuestAddress(available + 2)).expect("memory");
    client.queues[0].force_kick().expect("a kick");
    world.wait_for_event(|event| matches!(event, Event::QueueBroken(0, _)));
    assert_eq!(client.stop(0).expect("it stops"), 2);
    // As a driver does after a reset.
    client.memory().write_slice(&[0; 1024], GuestAddress(0)).expect("memory");
    client.forget_requests();
    client.start(0).expect("it starts");
    assert_eq!(client.queues[0].read(0, 512).expect("a read"), [1; 512]);
}

/// Memory that was shared is gone, while the device looks at its rings, and while it waits.
#[test]
fn memory_that_becomes_shorter_ends_only_its_own_queues() {
    let world = World::new(ram_disk(MIB));
    for waits in [false, true] {
        let mut client = world.client(Options { sealable: false, ..OPTIONS });
        client.queues[0].write(0, &[1; 512]).expect("a write");
        if waits {
            std::thread::sleep(Duration::from_millis(5));
        } else {
            client.queues[0].force_kick().expect("a kick");
        }
        client.shorten(0).expect("it can be shortened");
        client.queues[0].force_kick().expect("a kick");
        world.wait_for_event(|event| matches!(event, Event::QueueBroken(0, _)));
        client.stop(0).expect("the queue stops");
        drop(client);
        world.events.lock().expect("no panic").clear();
    }
    let sealed = world.client(OPTIONS);
    assert!(sealed.shorten(0).is_err());
    still_works(&world, sealed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 100, ..ProptestConfig::default() })]

    /// Only sectors that requests name are written, and the server continues.
    #[test]
    fn chains_of_any_shape_change_only_what_requests_name(
        table in vec(descriptor([0, 256, 300]), usize::from(SIZE)),
        indirect in vec(descriptor([0, 256, 300]), 16),
        kinds in vec((prop_oneof![3 => Just(1_u32), 2 => Just(0), 1 => Just(8), 1 => Just(4), 1 => 9..16_u32], SECTORS), 16),
        heads in vec((prop_oneof![8 => 0..SIZE, 1 => any::<u16>()], any::<bool>()), 1..40),
    ) {
        let disk = ram_disk(4 * MIB);
        let marks = vec![0x5a; 4 * MIB as usize];
        disk.write(0, &marks).expect("a write");
        let world = World::new(disk.clone());
        let client = world.client(OPTIONS);
        let [descriptors, available, _] = client.queues[0].rings();
        let memory = client.memory().clone();
        // A buffer that is not a header has no type.
        memory.write_slice(&vec![0xa5; 0xc000], GuestAddress(0x4000)).expect("memory");
        for (number, (kind, sector)) in kinds.iter().enumerate() {
            let header = [kind.to_le_bytes().to_vec(), vec![0; 4], sector.to_le_bytes().to_vec()].concat();
            memory.write_slice(&header, GuestAddress(0x4000 + 16 * number as u64)).expect("memory");
        }
        memory.write_slice(&bytes_of(&indirect), GuestAddress(0x5000)).expect("memory");
        memory.write_slice(&bytes_of(&table), GuestAddress(descriptors)).expect("memory");
        let mut index = 0_u16;
        for (head, jump) in heads {
            let entry = GuestAddress(available + 4 + 2 * u64::from(index % SIZE));
            memory.write_obj(head, entry).expect("memory");
            index = index.wrapping_add(if jump && head > SIZE { head } else { 1 });
            memory.write_obj(index, GuestAddress(available + 2)).expect("memory");
            client.queues[0].force_kick().expect("a kick");
        }
        still_works(&world, client);
        let mut after = vec![0; marks.len()];
        disk.read(0, &mut after).expect("a read");
        let (from, to) = (SECTORS.start as usize * 512, (SECTORS.end * 512 + REACH_BYTES) as usize);
        prop_assert!(after[to..] == marks[to..], "sectors behind them were written");
        // A header that is taken for a range to discard names the sectors from the number of its type on.
        let is_kept_or_zeros = |sector: &[u8]| [0x5a, 0].iter().any(|byte| sector.iter().all(|it| it == byte));
        prop_assert!(after[..from].chunks(512).all(is_kept_or_zeros), "sectors before them were written");
    }

    /// Any bytes in the rings and tables, while the device looks at them.
    #[test]
    fn any_bytes_in_the_rings_do_no_harm(
        rounds in vec((0..1024_u64, vec(prop_oneof![4 => 0..4_u8, 1 => any::<u8>()], 1..300)), 1..20),
    ) {
        let disk = ram_disk(MIB);
        disk.write(0, &[0x5a; MIB as usize]).expect("a write");
        let world = World::of(Export::read_only("a disk", disk.clone()));
        let client = world.client(OPTIONS);
        for (at, bytes) in rounds {
            client.memory().write_slice(&bytes, GuestAddress(at)).expect("memory");
            client.queues[0].force_kick().expect("a kick");
        }
        still_works(&world, client);
        let mut after = [0; MIB as usize];
        disk.read(0, &mut after).expect("a read");
        prop_assert!(after == [0x5a; MIB as usize]);
    }

    /// Any messages on the socket.
    #[test]
    fn any_messages_do_no_harm(
        messages in vec((prop_oneof![6 => 0..45_u32, 1 => any::<u32>()], vec(any::<u8>(), 0..64), any::<bool>()), 1..20),
    ) {
        let world = World::new(ram_disk(MIB));
        let mut socket = UnixStream::connect(world.path()).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        for (request, body, wants_answer) in messages {
            let flags = if wants_answer { 9_u32 } else { 1 };
            let header = [request, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
            if socket.write_all(&[header, body].concat()).is_err() {
                break;
            }
            // Answers are read, so that the server never waits for this.
            let _ = socket.read(&mut [0; 4096]);
        }
        drop(socket);
        let mut client = world.client(OPTIONS);
        prop_assert_eq!(client.queues[0].read(0, 512).expect("a read").len(), 512);
    }
}
