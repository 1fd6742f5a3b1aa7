//! Servers that continue another one.

use std::{
    io::{IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use pagefold_disk::{Room, Waits};
use pagefold_vhost_user::{
    Event,
    client::{Client, Layout, Operation, Options},
};
use proptest::prelude::*;
use rustix::{
    fs::fcntl_getfl,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt::socket_type},
};
use serde_json::{Value, json};

use crate::world::{Fickle, MIB, World, ram_disk, wait_for};

fn two_queues() -> Options {
    Options { queues: 2, ..Options::default() }
}

/// Requests come all the time, and each server continues the one before.
#[test]
fn frontends_survive_three_take_overs() {
    let mut world = World::new(ram_disk(8 * MIB));
    let mut client = world.client(two_queues());
    for round in 1..=3 {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (done, queues) = (&done, &mut client.queues);
            let threads: Vec<_> = queues
                .iter_mut()
                .enumerate()
                .map(|(number, queue)| {
                    scope.spawn(move || {
                        let start = 4 * MIB * number as u64;
                        let mut count = 0_u64;
                        while !done.load(SeqCst) || count < 100 {
                            let (at, data) = (start + count % 512 * 4096, [(count % 251) as u8; 4096]);
                            queue.write(at, &data).expect("a write");
                            assert!(queue.read(at, 4096).expect("a read") == data, "round {round}");
                            count += 1;
                        }
                    })
                })
                .collect();
            world.take_over();
            done.store(true, SeqCst);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
    }
    let events = world.events.lock().expect("no panic").clone();
    assert_eq!(events, [Event::Connected]);
    drop(client);
    world.wait_for_event(|event| *event == Event::Disconnected);
    // The socket is continued, too.
    world.client(two_queues()).queues[0].read(0, 512).expect("a read");
}

/// A frontend does not notice that a server which should continue another one fails.
#[test]
fn a_server_that_cannot_continue_leaves_frontends_alone() {
    let world = World::new(ram_disk(MIB));
    let mut client = world.client(two_queues());
    client.queues[0].write(0, &[7; 512]).expect("a write");
    let (state, descriptors) = world.pause();
    let copies: Vec<OwnedFd> = descriptors.iter().map(|fd| fd.try_clone().expect("a copy")).collect();
    drop(world.taken(&state, copies).expect("a server"));
    let less = descriptors.into_iter().take(3).collect();
    assert!(world.taken(&state, less).is_err());
    let queue = &mut client.queues[0];
    queue.submit(Operation::Read(0, 512), Layout::default()).expect("memory").expect("room");
    queue.kick().expect("a kick");
    assert!(queue.wait_for(Duration::from_millis(50)).is_err(), "it is answered in the pause");
    world.server().go_on();
    assert_eq!(queue.wait().expect("an answer").status, 0);
    assert_eq!(client.size_bytes().expect("a size"), MIB);
}

/// The size and the cache's mode stay; a size that changes afterwards is announced.
#[test]
fn a_disk_that_grows_after_a_take_over_is_announced() {
    let device = Fickle::new(MIB, None);
    let mut world = World::new(device.clone());
    let mut client = world.client(two_queues());
    client.set_config(32, &[0]).expect("write-through");
    world.take_over();
    assert_eq!(client.config(32, 1).expect("a byte"), [0]);
    device.size_bytes.store(2 * MIB, SeqCst);
    client.wait_for_change().expect("an announcement");
    assert_eq!(client.size_bytes().expect("a size"), 2 * MIB);
    let flushes = device.flushes.load(SeqCst);
    client.queues[1].write(0, &[1; 512]).expect("a write");
    assert_eq!(device.flushes.load(SeqCst), flushes + 1);
}

/// A frontend that leaves during the pause is gone for the next server, which accepts another.
#[test]
fn a_frontend_that_leaves_during_the_pause_makes_room() {
    let world = World::new(ram_disk(MIB));
    let client = world.client(two_queues());
    let (state, descriptors) = world.pause();
    drop(client);
    let (server, _listening) = world.taken(&state, descriptors).expect("a server");
    world.server().give_away();
    server.go_on();
    world.wait_for_event(|event| *event == Event::Disconnected);
    world.client(two_queues()).queues[0].write(0, &[1; 512]).expect("a write");
}

/// A request that waits for room, or for storage, is named, and the server goes on.
#[test]
fn requests_that_wait_prevent_a_pause() {
    let device = Fickle::new(MIB, Some(Arc::new(Waits::new(&Arc::new(Room::default())))));
    let world = World::new(device.clone());
    let mut client = world.client(two_queues());
    let queue = &mut client.queues[0];
    device.is_full.store(true, SeqCst);
    queue.submit(Operation::Write(0, &[1; 512]), Layout::default()).expect("memory").expect("room");
    queue.kick().expect("a kick");
    wait_for("the write to wait", || device.waits.as_ref().is_some_and(|waits| waits.count() > 0));
    let why = world.server().pause(Duration::from_millis(50)).expect_err("a request waits");
    assert!(why.contains("'a disk'") && why.contains("have not ended"), "{why}");
    queue.read(4096, 512).expect("a read");
    device.is_full.store(false, SeqCst);
    assert_eq!(queue.wait().expect("an answer").status, 0);
    let (state, _) = world.pause();
    assert!(state.contains("queues"), "{state}");
}

/// A queue that its driver has broken stays so until the frontend starts it again.
#[test]
fn a_broken_queue_stays_broken() {
    let mut world = World::new(ram_disk(MIB));
    let mut client = world.client(two_queues());
    client.queues[0].write(0, &[1; 512]).expect("a write");
    let [_, available, _] = client.queues[0].rings();
    vm_memory::Bytes::write_obj(&**client.memory(), 5000_u16, vm_memory::GuestAddress(available + 2)).expect("memory");
    client.queues[0].force_kick().expect("a kick");
    world.wait_for_event(|event| matches!(event, Event::QueueBroken(0, _)));
    let count = world.events.lock().expect("no panic").len();
    world.take_over();
    client.queues[0].force_kick().expect("a kick");
    client.queues[1].write(4096, &[1; 512]).expect("a write");
    let events = world.events.lock().expect("no panic").clone();
    assert_eq!(events.len(), count, "{events:?}");
}

/// Returns the bytes of a message that asks for a reply.
fn message(request: u32, body: &[u8]) -> Vec<u8> {
    const VERSION_AND_NEED_REPLY: u32 = 9;
    let words = [request, VERSION_AND_NEED_REPLY, body.len() as u32].map(u32::to_ne_bytes);
    [&words.concat(), body].concat()
}

/// Reads the reply to a message.
fn reply_to(mut socket: &UnixStream, request: u32) -> u64 {
    let mut reply = [0; 20];
    socket.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[..4], request.to_ne_bytes());
    u64::from_ne_bytes(reply[12..].try_into().expect("eight bytes"))
}

/// A frontend that has sent a part of a message delays no take-over. Neither the part is lost, nor a file that came
/// with it.
#[test]
fn a_part_of_a_message_is_continued() {
    const SET_PROTOCOL_FEATURES: u32 = 16;
    const SET_BACKEND_REQ_FD: u32 = 21;
    const REPLY_ACK_AND_BACKEND_REQ: u64 = 1 << 3 | 1 << 5;
    let device = Fickle::new(MIB, None);
    let mut world = World::new(device.clone());
    let mut socket = UnixStream::connect(world.path()).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let features = message(SET_PROTOCOL_FEATURES, &REPLY_ACK_AND_BACKEND_REQ.to_ne_bytes());
    // Replies are sent from the second message on.
    socket.write_all(&features).expect("a message");
    for cut in 1..features.len() {
        socket.write_all(&features[..cut]).expect("a part");
        world.take_over();
        socket.write_all(&features[cut..]).expect("the rest");
        assert_eq!(reply_to(&socket, SET_PROTOCOL_FEATURES), 0, "{cut} bytes");
    }
    let (mut channel, theirs) = UnixStream::pair().expect("sockets");
    channel.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [theirs.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let bytes = message(SET_BACKEND_REQ_FD, &[0; 8]);
    let sent = sendmsg(&socket, &[IoSlice::new(&bytes[..1])], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.expect("a part"), 1);
    for part in bytes[1..].chunks(4) {
        world.take_over();
        socket.write_all(part).expect("a part");
    }
    assert_eq!(reply_to(&socket, SET_BACKEND_REQ_FD), 0);
    device.size_bytes.store(2 * MIB, SeqCst);
    channel.read_exact(&mut [0; 12]).expect("the device asks to read its size again");
    assert_eq!(*world.events.lock().expect("no panic"), [Event::Connected]);
}

/// A frontend that shortens its memory loses its connection, and no other one does.
#[test]
fn shortened_memory_ends_only_its_own_frontend() {
    let world = World::new(ram_disk(MIB));
    let path = world.path().with_extension("second");
    let export = world.exports.list().pop().expect("an export");
    let listener = UnixListener::bind(&path).expect("a socket");
    let second = world.server().listen(listener, Arc::clone(&export)).expect("listening");
    let mut shortened = world.client(Options { sealable: false, ..two_queues() });
    shortened.queues[0].write(0, &[1; 512]).expect("a write");
    let mut other = Client::connect(&path, two_queues()).expect("a frontend");
    let (state, descriptors) = world.pause();
    let (second_state, second_descriptors) = second.hand_over().expect("descriptors");
    let copies = second_descriptors.iter().map(|fd| fd.as_fd().try_clone_to_owned().expect("a copy")).collect();
    // After the pause began, so that only the next server can notice.
    shortened.shorten(0).expect("it can be shortened");
    let (server, _listening) = world.taken(&state, descriptors).expect("a server");
    let _second = server.listen_taken(export, &second_state, copies).expect("the other frontend");
    let is_refused = |event: &Event| matches!(event, Event::Refused(why) if why.contains("0 bytes"));
    assert!(!world.events.lock().expect("no panic").iter().any(is_refused), "the first server may continue");
    world.server().give_away();
    server.go_on();
    world.wait_for_event(is_refused);
    assert_eq!(other.queues[0].read(0, 512).expect("a read"), [1; 512]);
    assert!(shortened.config(32, 1).is_err(), "it is disconnected");
    drop(shortened);
    world.client(two_queues()).queues[0].write(0, &[2; 512]).expect("a write");
}

/// A server that takes over any other file as a connection would change how the frontend reads it.
#[test]
fn only_a_connection_is_taken_for_one() {
    let world = World::new(ram_disk(MIB));
    let _client = world.client(two_queues());
    let (state, descriptors) = world.pause();
    let flags = |file: &OwnedFd| fcntl_getfl(file).expect("flags");
    let expected: Vec<_> = descriptors.iter().map(flags).collect();
    // The channel for the device's requests could be a connection, too.
    let is_socket = |file: &OwnedFd| socket_type(file).is_ok();
    for number in (2..descriptors.len()).filter(|number| !is_socket(&descriptors[*number])) {
        let mut copies: Vec<_> = descriptors.iter().map(|fd| fd.try_clone().expect("a copy")).collect();
        copies.swap(1, number);
        let why = world.taken(&state, copies).err();
        assert_eq!(why.as_deref(), Some("a virtual machine's connection is not one"));
    }
    assert_eq!(descriptors.iter().map(flags).collect::<Vec<_>>(), expected);
}

/// Puts `value` in the place of the `number`th value in a state.
fn replace(state: &mut Value, number: &mut usize, value: &Value) {
    match state {
        Value::Array(parts) => parts.iter_mut().for_each(|part| replace(part, number, value)),
        Value::Object(parts) => parts.values_mut().for_each(|part| replace(part, number, value)),
        _ if *number == 0 => {
            *number = usize::MAX;
            *state = value.clone();
        }
        _ => *number -= 1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 50, ..ProptestConfig::default() })]

    /// Whatever another process sends, the server refuses it or serves, and does not end.
    #[test]
    fn a_state_that_is_wrong_harms_only_its_frontend(
        number in 0..60_usize,
        value in prop_oneof![
            Just(json!(null)), any::<bool>().prop_map(Value::from), any::<u64>().prop_map(Value::from),
            (0..70_u64).prop_map(Value::from), (0..64_u32).prop_map(|bit| Value::from(1_u64 << bit)),
        ],
        swapped in (0..12_usize, 0..12_usize),
    ) {
        let world = World::new(ram_disk(MIB));
        let mut client = world.client(two_queues());
        client.queues[0].write(0, &[1; 512]).expect("a write");
        let (state, mut descriptors) = world.pause();
        let mut state: Value = serde_json::from_str(&state).expect("JSON");
        replace(&mut state, &mut { number }, &value);
        let last = descriptors.len() - 1;
        descriptors.swap(swapped.0.min(last), swapped.1.min(last));
        let taken = world.taken(&state.to_string(), descriptors);
        // It may serve before the other server, which is only paused: what it has taken is the frontend's.
        if let Ok((server, _listening)) = taken {
            world.server().give_away();
            server.go_on();
            let queue = &mut client.queues[1];
            queue.submit(Operation::Read(0, 512), Layout::default()).expect("memory").expect("room");
            queue.force_kick().expect("a kick");
            let _ = queue.wait_for(Duration::from_millis(20));
        } else {
            world.server().go_on();
            prop_assert!(client.queues[1].read(0, 512).is_ok());
        }
    }
}
