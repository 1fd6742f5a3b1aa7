//! Frontends that come, go and come again; disks that change and go.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
    time::Duration,
};

use pagefold_disk::{BlockDevice, Room, Waits};
use pagefold_executor::{Export, Quota};
use pagefold_vhost_user::{
    Event,
    client::{Client, Error, Layout, Operation, Options},
};

use crate::world::{Fickle, MIB, World, ram_disk, wait_for};

const SHORT: Duration = Duration::from_millis(50);

fn submit_writes(client: &mut Client, count: u64) {
    for number in 0..count {
        let data = [number as u8 + 1; 4096];
        let queue = &mut client.queues[number as usize % 2];
        queue.submit(Operation::Write(number * 4096, &data), Layout::default()).expect("room").expect("room");
        queue.kick().expect("a kick");
    }
}

fn wait_for_writes(client: &mut Client, count: u64) {
    for number in 0..count {
        let answer = client.queues[number as usize % 2].wait().expect("an answer");
        assert_eq!(answer.status, 0);
    }
}

fn are_written(device: &Fickle, count: u64) -> bool {
    (0..count).all(|number| {
        let mut back = [0; 4096];
        device.disk.read(number * 4096, &mut back).expect("a read");
        back == [number as u8 + 1; 4096]
    })
}

/// A driver whose server is replaced loses no request, and none is run twice.
#[test]
fn requests_in_flight_survive_the_server() {
    let waits = Arc::new(Waits::new(&Arc::new(Room::default())));
    let device = Fickle::new(MIB, Some(waits));
    let mut world = World::new(device.clone());
    let mut client = world.client(Options { queues: 2, ..Options::default() });
    client.queues[0].write(0, &[9; 512]).expect("a write");
    device.is_full.store(true, SeqCst);
    submit_writes(&mut client, 10);
    // Later requests are answered before, so that the used ring does not say which are in flight.
    for queue in &mut client.queues {
        for _ in 0..3 {
            queue.read(MIB / 2, 512).expect("a read");
        }
        assert_eq!(queue.in_flight(), 5);
    }
    world.end();
    // These reach no server.
    for queue in &mut client.queues {
        queue.submit(Operation::Read(MIB / 2, 512), Layout::default()).expect("room").expect("room");
        queue.force_kick().expect("a kick");
    }
    world.start();
    let mut client = client.reconnect(&world.path()).expect("a client");
    device.is_full.store(false, SeqCst);
    wait_for_writes(&mut client, 12);
    assert!(are_written(&device, 10));
    assert!(client.queues.iter().all(|queue| queue.in_flight() == 0));
    client.queues[1].write(0, &[1; 512]).expect("a write");
}

/// While some requests wait for room, others go on.
#[test]
fn requests_wait_for_room() {
    let room = Arc::new(Room::default());
    let waits = Arc::new(Waits::new(&room));
    let device = Fickle::new(MIB, Some(Arc::clone(&waits)));
    let world = World::new(device.clone());
    let mut client = world.client(Options { queues: 2, ..Options::default() });
    device.is_full.store(true, SeqCst);
    submit_writes(&mut client, 10);
    for queue in &mut client.queues {
        let slot = queue.submit(Operation::Read(MIB / 2, 512), Layout::default()).expect("room").expect("room");
        queue.kick().expect("a kick");
        assert_eq!(queue.wait().expect("an answer").slot, slot);
    }
    wait_for("waiting requests", || waits.count() == 10);
    device.is_full.store(false, SeqCst);
    room.signal();
    wait_for_writes(&mut client, 10);
    assert!(are_written(&device, 10));
    // The last answer is sent before its request is counted out.
    wait_for("no request to wait", || waits.count() == 0);
    // A queue that stops waits for nothing.
    device.is_full.store(true, SeqCst);
    submit_writes(&mut client, 2);
    wait_for("waiting requests", || waits.count() == 2);
    client.stop(0).expect("it stops");
    assert_eq!(client.queues[0].wait().expect("an answer").status, 1);
    assert_eq!(waits.count(), 1);
}

/// A request that finds no room while its queue stops does not keep the queue from stopping.
#[test]
fn a_queue_stops_while_a_request_finds_no_room() {
    for is_abandoned in [false, true] {
        let waits = Arc::new(Waits::new(&Arc::new(Room::default())));
        let device = Fickle::new(MIB, Some(Arc::clone(&waits)));
        let world = World::new(device.clone());
        let mut client = world.client(Options::default());
        device.is_full.store(true, SeqCst);
        device.set_gate(false);
        submit_writes(&mut client, 1);
        wait_for("a write at the gate", || device.at_gate.load(SeqCst) == 1);
        let stopping = thread::spawn(move || {
            if !is_abandoned {
                client.stop(0).expect("it stops");
            }
        });
        // The queue has been asked to stop, most likely.
        thread::sleep(Duration::from_millis(50));
        device.set_gate(true);
        stopping.join().expect("no panic");
        world.client(Options::default()).queues[0].read(0, 512).expect("a read");
        assert_eq!(waits.count(), 0);
    }
}

#[test]
fn without_room_a_write_fails() {
    let device = Fickle::new(MIB, None);
    let world = World::new(device.clone());
    let mut client = world.client(Options::default());
    device.is_full.store(true, SeqCst);
    assert!(matches!(client.queues[0].write(0, &[1; 512]), Err(Error::Status(1))));
    device.is_full.store(false, SeqCst);
    client.queues[0].write(0, &[1; 512]).expect("a write");
}

#[test]
fn frontends_learn_that_a_disk_was_resized() {
    let device = Fickle::new(MIB, None);
    let world = World::new(device.clone());
    let mut client = world.client(Options::default());
    assert_eq!(client.size_bytes().expect("a size"), MIB);
    device.size_bytes.store(MIB / 2, SeqCst);
    client.wait_for_change().expect("a message");
    assert_eq!(client.size_bytes().expect("a size"), MIB / 2);
    assert!(matches!(client.queues[0].read(MIB / 2, 512), Err(Error::Status(1))));
}

/// A guest whose disk is removed gets errors, and does not hang.
#[test]
fn requests_to_a_disk_that_was_removed_fail() {
    let mut world = World::new(ram_disk(MIB));
    let mut client = world.client(Options::default());
    client.queues[0].write(0, &[1; 512]).expect("a write");
    let export = world.exports.remove("a disk").expect("an export");
    world.close();
    assert!(matches!(client.queues[0].read(0, 512), Err(Error::Status(1))));
    assert_eq!(export.connections(), 0);
    assert!(Client::connect(&world.path(), Options::default()).is_err());
    assert!(matches!(client.queues[0].write(0, &[1; 512]), Err(Error::Status(1))));
    world.end();
}

#[test]
fn one_frontend_at_a_time_is_served_and_counts_as_a_client() {
    let world = World::new(ram_disk(MIB));
    let export = world.exports.list().pop().expect("an export");
    assert_eq!((export.connections(), world.server().frontends()), (0, 0));
    let mut first = world.client(Options::default());
    first.queues[0].write(0, &[1; 512]).expect("a write");
    assert_eq!((export.connections(), world.server().frontends()), (1, 1));
    let path = world.path();
    let second = thread::spawn(move || Client::connect(&path, Options::default()).expect("a client"));
    thread::sleep(SHORT);
    assert!(!second.is_finished(), "the second is served");
    drop(first);
    let mut second = second.join().expect("no panic");
    assert_eq!(second.queues[0].read(0, 512).expect("a read"), [1; 512]);
    drop(second);
    wait_for("the last frontend's end", || export.connections() == 0);
    export.set_quota(Quota { connections: Some(0), ..Quota::default() });
    assert!(Client::connect(&world.path(), Options::default()).is_err());
    world.wait_for_event(|event| matches!(event, Event::Refused(_)));
}

#[test]
fn memory_is_replaced_while_requests_run() {
    let world = World::new(ram_disk(4 * MIB));
    let mut client = world.client(Options { queues: 2, ..Options::default() });
    let mut queues = std::mem::take(&mut client.queues);
    thread::scope(|scope| {
        for (number, queue) in queues.iter_mut().enumerate() {
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let offset = number as u64 * 2 * MIB + round * 4096;
                    queue.write(offset, &[round as u8; 4096]).expect("a write");
                    assert_eq!(queue.read(offset, 4096).expect("a read"), [round as u8; 4096]);
                }
            });
        }
        for _ in 0..100 {
            client.share_again().expect("memory");
        }
    });
}

#[test]
fn a_queue_stops_and_starts_where_it_was() {
    let world = World::new(ram_disk(MIB));
    let mut client = world.client(Options::default());
    let mut base = 0;
    for round in 1..4 {
        client.queues[0].write(0, &[round; 512]).expect("a write");
        base += 1;
        assert_eq!(client.stop(0).expect("it stops"), base);
        client.queues[0].submit(Operation::Read(0, 512), Layout::default()).expect("room").expect("room");
        client.queues[0].force_kick().expect("a kick");
        assert!(matches!(client.queues[0].wait_for(SHORT), Err(Error::Silence)), "it runs");
        client.start(0).expect("it starts");
        let answer = client.queues[0].wait().expect("an answer");
        assert_eq!(client.queues[0].data(answer.slot, 512).expect("data"), [round; 512]);
        base += 1;
    }
}

/// A device with a bug takes only its own requests.
#[test]
fn a_panic_of_the_device_fails_the_request() {
    let device = Fickle::new(MIB, None);
    let world = World::new(device.clone());
    let mut client = world.client(Options::default());
    device.blocks.store(true, SeqCst);
    device.panics.store(true, SeqCst);
    assert!(matches!(client.queues[0].read(0, 512), Err(Error::Status(1))));
    device.panics.store(false, SeqCst);
    client.queues[0].read(0, 512).expect("a read");
    // In the queue's own thread, the queue is lost, and the next frontend is served.
    device.blocks.store(false, SeqCst);
    device.panics.store(true, SeqCst);
    client.queues[0].submit(Operation::Read(0, 512), Layout::default()).expect("room").expect("room");
    client.queues[0].kick().expect("a kick");
    assert!(client.queues[0].wait_for(SHORT).is_err());
    drop(client);
    device.panics.store(false, SeqCst);
    world.client(Options::default()).queues[0].read(0, 512).expect("a read");
}

#[test]
fn an_export_that_is_opened_elsewhere_is_the_same_disk() {
    let disk = ram_disk(MIB);
    let world = World::of(Export::new("a disk", disk.clone()));
    let mut client = world.client(Options::default());
    disk.write(0, &[3; 512]).expect("a write");
    assert_eq!(client.queues[0].read(0, 512).expect("a read"), [3; 512]);
}
