//! A server pauses and hands its clients over to another one in this process, or continues.

use std::{
    io::Write,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pagefold_serve::{
    AdoptError, ClientState, Error, Export, Exports, Handed, ListenerState, NewcomerState, PauseError, Quota, Server,
    ServerHandle, Shared,
    protocol::{REQUEST_BYTES, Request, command, command_flag, option, reply},
};
use proptest::prelude::*;

use crate::{
    device::Ram,
    raw::{Raw, Running, limits_with},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Copies everything as another process would get it: through JSON, with duplicated descriptors.
fn copy(handed: &Handed<Shared>) -> Handed<OwnedFd> {
    let fd = |shared: &Shared| shared.as_fd().try_clone_to_owned().unwrap();
    let listeners = handed.listeners.iter().map(|(state, shared)| {
        let state: ListenerState = serde_json::from_value(serde_json::to_value(state).unwrap()).unwrap();
        (state, fd(shared))
    });
    let clients = handed.clients.iter().map(|(state, shared)| {
        let copied: ClientState = serde_json::from_value(serde_json::to_value(state).unwrap()).unwrap();
        assert_eq!(copied, *state);
        (copied, fd(shared))
    });
    let newcomers = handed.newcomers.iter().map(|(state, shared)| {
        let copied: NewcomerState = serde_json::from_value(serde_json::to_value(state).unwrap()).unwrap();
        assert_eq!(copied, *state);
        (copied, fd(shared))
    });
    Handed {
        listeners: listeners.collect(),
        clients: clients.collect(),
        newcomers: newcomers.collect(),
        left_out: handed.left_out,
    }
}

/// A server that continues another one.
struct Next {
    handle: ServerHandle,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Next {
    /// Hands everything over to a new server.
    fn after(handle: &ServerHandle, device: &Arc<Ram>) -> Self {
        let paused = handle.pause(PATIENCE).unwrap();
        let exports = Exports::new();
        exports.add_numbered(Export::new("disk", Arc::clone(device) as _), 5).unwrap();
        let server = Server::builder().exports(exports).taken(copy(paused.handed())).bind().unwrap();
        paused.give_away();
        assert!(handle.was_given());
        let handle = server.handle();
        let thread = Some(thread::spawn(move || server.run()));
        Self { handle, thread }
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        self.handle.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.unwrap().unwrap().unwrap();
        }
    }
}

/// What happens to a server while its clients are busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It pauses and goes on.
    Pause,
    HandOver,
}

/// Clients in all states, and a server to which `event` happens several times.
struct World {
    first: Running,
    next: Option<Next>,
    device: Arc<Ram>,
    event: Event,
}

impl World {
    fn new(event: Event) -> Self {
        let device = Ram::shared(64 << 20);
        Self { first: Running::of(Arc::clone(&device) as _), next: None, device, event }
    }

    fn handle(&self) -> &ServerHandle {
        self.next.as_ref().map_or(&self.first.handle, |next| &next.handle)
    }

    fn happens(&mut self) {
        match self.event {
            Event::Pause => drop(self.handle().pause(PATIENCE).unwrap()),
            Event::HandOver => {
                let next = Next::after(self.handle(), &self.device);
                // The one before has ended.
                self.next = Some(next);
            }
        }
    }
}

/// Without TLS, whose connections cannot be handed over.
pub(crate) fn is_over_tls() -> bool {
    #[cfg(feature = "tls")]
    return *crate::raw::OVER_TLS;
    #[cfg(not(feature = "tls"))]
    false
}

/// Each byte of a request may be the last one before the event, and so may each piece of a large one.
fn all_states(event: Event) {
    if is_over_tls() {
        return;
    }
    let mut world = World::new(event);
    let mut idle = world.first.simple();
    let mut cut = world.first.simple();
    let mut large = world.first.structured();
    let mut newcomer = world.first.greet();
    // A new connection rests before its first request.
    world.happens();
    // The header of a write, cut anywhere.
    let message = {
        let request = Request { flags: 0, kind: command::WRITE, cookie: 9, offset: 4096, len_bytes: 1000 };
        [&request.encode()[..], &[7; 1000]].concat()
    };
    for at in [1, 4, REQUEST_BYTES - 1, REQUEST_BYTES, REQUEST_BYTES + 1, REQUEST_BYTES + 999] {
        cut.send(&message[..at]);
        world.happens();
        cut.send(&message[at..]);
        assert_eq!(cut.simple_reply(), (0, 9), "cut at {at}");
    }
    // A large write, of which pieces arrive.
    let payload: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 3) as u8).collect();
    large.request(command::WRITE, 0, 10, 8192, payload.len() as u32);
    for piece in payload.chunks(700_001) {
        large.send(piece);
        world.happens();
    }
    assert_eq!(large.simple_reply(), (0, 10));
    // The payload of a write that was refused.
    large.request(command::WRITE, 0, 11, 1 << 40, 1 << 20);
    large.send(&payload[..1 << 19]);
    world.happens();
    large.send(&payload[..1 << 19]);
    assert_eq!(large.chunk().error().0, 28);
    // A reply that the peer has not read yet.
    large.request(command::READ, 0, 12, 8192, payload.len() as u32);
    // The reply fills the socket's buffers.
    thread::sleep(Duration::from_millis(50));
    world.happens();
    large.request(command::READ, 0, 13, 8192, 4096);
    assert_eq!(large.structured_read(12, 8192), Ok(payload.clone()));
    assert_eq!(large.structured_read(13, 8192), Ok(payload[..4096].to_vec()));
    // Options, cut anywhere.
    newcomer.send(&[]);
    for at in [3, 16, 20] {
        let data = crate::raw::info(b"disk", &[]);
        let header = pagefold_serve::protocol::OptionHeader { option: option::INFO, len_bytes: data.len() as u32 };
        let message = [&header.encode()[..], &data].concat();
        newcomer.send(&message[..at]);
        world.happens();
        newcomer.send(&message[at..]);
        assert_eq!(newcomer.option_reply(option::INFO).0, reply::INFO);
        newcomer.expect_ack(option::INFO);
    }
    newcomer.option(option::STRUCTURED_REPLY, b"");
    newcomer.expect_ack(option::STRUCTURED_REPLY);
    newcomer.option(option::SET_META_CONTEXT, &crate::raw::contexts(b"disk", &[b"base:allocation"]));
    assert_eq!(newcomer.option_reply(option::SET_META_CONTEXT).0, reply::META_CONTEXT);
    newcomer.expect_ack(option::SET_META_CONTEXT);
    world.happens();
    newcomer.go(b"disk");
    world.happens();
    newcomer.request(command::BLOCK_STATUS, 0, 14, 0, 4096);
    assert_eq!(newcomer.chunk().extents(), [(4096, 0)]);
    // New clients, and one that has rested throughout.
    world.first.assert_alive();
    idle.request(command::READ, 0, 15, 4096, 1000);
    assert_eq!(idle.simple_reply(), (0, 15));
    assert_eq!(idle.bytes(1000), [7; 1000]);
    let start = Instant::now();
    while world.handle().connections() != 4 {
        assert!(start.elapsed() < PATIENCE, "{} connections", world.handle().connections());
        thread::sleep(Duration::from_millis(2));
    }
    idle.request(command::DISC, 0, 16, 0, 0);
    idle.expect_end();
    if event == Event::HandOver {
        assert!(world.first.path.exists(), "the socket's file belongs to the last server");
        let path = world.first.path.clone();
        world.next = None;
        assert!(!path.exists());
    }
}

#[test]
fn a_server_that_pauses_goes_on_as_if_nothing_had_been() {
    all_states(Event::Pause);
}

#[test]
fn another_server_continues_clients_in_all_states() {
    all_states(Event::HandOver);
}

/// Writes with several requests in flight, cut at random by many events, arrive as they were sent.
#[test]
fn nothing_is_lost_or_done_twice_under_load() {
    if is_over_tls() {
        return;
    }
    for event in [Event::Pause, Event::HandOver] {
        let mut world = World::new(event);
        let clients: Vec<_> = (0..4_u64).map(|number| (number, world.first.simple())).collect();
        let replies = AtomicUsize::new(0);
        thread::scope(|scope| {
            let replies = &replies;
            let threads: Vec<_> = clients
                .into_iter()
                .map(|(number, raw)| scope.spawn(move || load(raw, number * (16 << 20), number as u8, replies)))
                .collect();
            let mut seen = 0;
            while threads.iter().any(|thread| !thread.is_finished()) {
                // On a busy machine, nothing may happen between two pauses.
                let now = replies.load(SeqCst);
                if now >= seen + 5 {
                    seen = now;
                    world.happens();
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

/// A connection may stop for a pause at any moment, even after the pause was cancelled.
#[test]
fn a_pause_that_fails_stops_no_client() {
    let device = Ram::shared(64 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let clients: Vec<_> = (0..4_u64).map(|number| (number, server.simple())).collect();
    let replies = AtomicUsize::new(0);
    let mut failed = 0;
    thread::scope(|scope| {
        let replies = &replies;
        let threads: Vec<_> = clients
            .into_iter()
            .map(|(number, raw)| scope.spawn(move || load(raw, number * (16 << 20), number as u8, replies)))
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            match server.handle.pause(Duration::ZERO).map(drop) {
                Ok(()) => {}
                Err(PauseError::Busy(_)) => failed += 1,
                Err(PauseError::Tls(_)) => assert!(is_over_tls()),
                Err(error) => panic!("{error}"),
            }
            // Others need the CPU too.
            thread::sleep(Duration::from_micros(200));
        }
    });
    // Those over TLS are refused before anything pauses.
    assert!(is_over_tls() || failed > 0, "no pause has failed");
    server.assert_alive();
}

/// Writes and reads back, with eight requests in flight.
fn load(mut raw: Raw, offset: u64, seed: u8, replies: &AtomicUsize) {
    for round in 0..12_u8 {
        let len_bytes = [512, 4096, 20_000, 300_000][usize::from(round % 4)];
        let byte = |slot: u8| seed ^ round.wrapping_mul(31) ^ slot;
        let mut sent = Vec::new();
        for slot in 0..8 {
            let at = offset + u64::from(slot) * (1 << 20) + u64::from(round) * 512;
            let request = Request {
                flags: 0,
                kind: command::WRITE,
                cookie: slot.into(),
                offset: at,
                len_bytes: len_bytes as u64,
            };
            sent.extend(request.encode());
            sent.extend(vec![byte(slot); len_bytes]);
        }
        let mut sender = raw.stream.try_clone().unwrap();
        let sending = thread::spawn(move || sender.write_all(&sent).unwrap());
        let mut seen = [false; 8];
        for _ in 0..8 {
            let (errno, cookie) = raw.simple_reply();
            assert_eq!(errno, 0);
            assert!(!std::mem::replace(&mut seen[cookie as usize], true), "two replies to a request");
            replies.fetch_add(1, SeqCst);
        }
        sending.join().unwrap();
        for slot in 0..8 {
            let at = offset + u64::from(slot) * (1 << 20) + u64::from(round) * 512;
            raw.request(command::READ, 0, 100 + u64::from(slot), at, len_bytes as u32);
            assert_eq!(raw.simple_reply(), (0, 100 + u64::from(slot)));
            assert_eq!(raw.bytes(len_bytes), vec![byte(slot); len_bytes], "round {round}");
        }
    }
}

#[test]
fn requests_that_do_not_end_keep_a_server_from_pausing() {
    let device = Ram::gated(1 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    if is_over_tls() {
        return;
    }
    let mut raw = server.simple();
    raw.request(command::WRITE, 0, 1, 0, 4);
    raw.send(b"text");
    while device.gate.waiting() == 0 {
        thread::sleep(Duration::from_millis(2));
    }
    let error = server.handle.pause(Duration::from_millis(20)).unwrap_err();
    assert_eq!(error, PauseError::Busy("disk".to_owned()));
    device.gate.open();
    assert_eq!(raw.simple_reply(), (0, 1));
    let paused = server.handle.pause(PATIENCE).unwrap();
    assert_eq!(server.handle.pause(PATIENCE).unwrap_err(), PauseError::Paused);
    drop(paused);
    server.assert_alive();
}

/// Waits for the first byte of a reply, and leaves it there.
fn arrives(raw: &Raw) {
    let (received, _) = rustix::net::recv(&raw.stream, &mut [0], rustix::net::RecvFlags::PEEK).unwrap();
    assert_eq!(received, 1);
}

/// Replies that a pause keeps for clients that do not read take memory from the limit. Without that
/// memory, the client prevents the pause or is left out.
#[test]
fn replies_that_a_pause_keeps_are_within_the_memory_limit() {
    const LEN_BYTES: u32 = 32 << 20;
    let limits = limits_with(|limits| limits.memory_bytes = 4 << 20);
    let server = Running::limited(Ram::shared(LEN_BYTES as usize), limits);
    let idle = server.structured();
    let mut silent = server.structured();
    if !is_over_tls() {
        silent.request(command::READ, command_flag::DF, 1, 0, LEN_BYTES);
        arrives(&silent);
        let error = server.handle.pause(Duration::from_millis(100)).unwrap_err();
        assert_eq!(error, PauseError::Busy("disk".to_owned()));
        assert_eq!(silent.structured_read(1, 0).unwrap().len(), LEN_BYTES as usize);
        // This fits.
        silent.request(command::READ, 0, 2, 0, 1 << 20);
        arrives(&silent);
        drop(server.handle.pause(PATIENCE).unwrap());
        assert_eq!(silent.structured_read(2, 0).unwrap().len(), 1 << 20);
    }
    silent.request(command::READ, command_flag::DF, 3, 0, LEN_BYTES);
    arrives(&silent);
    let paused = server.handle.pause_without(Duration::from_millis(100)).unwrap();
    let Handed { clients, left_out, .. } = paused.handed();
    // With TLS, both are.
    assert_eq!((clients.len(), *left_out), if is_over_tls() { (0, 2) } else { (1, 1) });
    drop(paused);
    drop(idle);
    server.assert_alive();
}

/// A request that waits for its turn at the rate of its export waits as long if the server pauses.
#[test]
fn a_pause_shortens_no_wait_for_a_turn() {
    if is_over_tls() {
        return;
    }
    let export = Export::new("disk", Ram::shared(1 << 20));
    // A quarter of a second for each request; the first and 100 ms are free.
    export.set_quota(Quota { connections: None, bytes_per_second: Some(256 << 10) });
    let server = Running::start(Server::builder().export(export));
    let mut raw = server.simple();
    let start = Instant::now();
    (0..3).for_each(|cookie| raw.request(command::READ, 0, cookie, 0, 64 << 10));
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(SeqCst) {
                drop(server.handle.pause(PATIENCE).unwrap());
                thread::sleep(Duration::from_millis(5));
            }
        });
        for cookie in 0..3 {
            assert_eq!(raw.simple_reply(), (0, cookie));
            raw.bytes(64 << 10);
        }
        has_ended.store(true, SeqCst);
    });
    assert!(start.elapsed() >= Duration::from_millis(400), "they began early");
}

/// A server that cannot hand over everything harms no client.
#[test]
fn a_server_that_is_not_bound_leaves_sockets_and_clients_alone() {
    if is_over_tls() {
        return;
    }
    let device = Ram::shared(1 << 20);
    let server = Running::of(Arc::clone(&device) as _);
    let mut raw = server.simple();
    let paused = server.handle.pause(PATIENCE).unwrap();
    // The client's export is missing.
    let error = Server::builder().taken(copy(paused.handed())).bind().unwrap_err();
    assert!(matches!(error, Error::Adopt(AdoptError::NoExport(name)) if name == "disk"));
    // It was bound, and never ran.
    let exports = Exports::new();
    exports.add(Export::new("disk", device)).unwrap();
    drop(Server::builder().exports(exports).taken(copy(paused.handed())).bind().unwrap());
    drop(paused);
    assert!(server.path.exists());
    raw.request(command::READ, 0, 1, 0, 512);
    assert_eq!(raw.simple_reply(), (0, 1));
    raw.bytes(512);
    server.assert_alive();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The server takes or refuses any record, and serves other clients.
    #[test]
    fn any_state_is_taken_or_refused(
        (flags, kind, cookie, offset, len_bytes) in (any::<u16>(), 0..9_u16, any::<u64>(), any::<u64>(), any::<u64>()),
        left_bytes in any::<u64>(),
        failure in proptest::option::of(any::<u32>()),
        input in proptest::collection::vec(any::<u8>(), 0..100),
        headers in proptest::sample::select(vec!["simple", "structured", "extended"]),
        is_small in any::<bool>(),
        option_bytes in any::<u32>(),
    ) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let [offset, len_bytes, left_bytes] =
            if is_small { [offset % 8192, len_bytes % 8192, left_bytes % 8192] } else { [offset, len_bytes, left_bytes] };
        let request = serde_json::json!({
            "flags": flags, "kind": kind, "cookie": cookie, "offset": offset, "len_bytes": len_bytes
        });
        let client = serde_json::json!({
            "export": "disk", "headers": headers, "contexts": ["allocation"], "input": hex(&input), "output": "",
            "unfinished": {
                "request": request, "left_bytes": left_bytes, "failure": failure.map(|errno| (errno, "why"))
            },
        });
        let newcomer = serde_json::json!({
            "only": null, "tls": "must", "no_zeroes": true, "headers": headers, "selected": ["disk", ["changed"]],
            "listed": left_bytes, "next": { "data": { "option": kind, "len_bytes": option_bytes } },
            "received": hex(&input), "output": "",
        });
        let exports = Exports::new();
        exports.add(Export::new("disk", Ram::shared(1 << 16))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (mut newcomers, their_newcomers) = std::os::unix::net::UnixStream::pair().unwrap();
        let handed = Handed {
            listeners: Vec::new(),
            clients: vec![(serde_json::from_value(client).unwrap(), theirs.into())],
            newcomers: vec![(serde_json::from_value(newcomer).unwrap(), their_newcomers.into())],
            left_out: 0,
        };
        let path = folder.path().join("nbd.sock");
        let bound = Server::builder().exports(exports).unix(&path).taken(handed).bind();
        if let Ok(server) = bound {
            let next = Next { handle: server.handle(), thread: Some(thread::spawn(move || server.run())) };
            // The peers of a server that has ended are gone.
            let _ = ours.write_all(&[0; 5000]);
            let _ = newcomers.write_all(&[0; 5000]);
            let _ = ours.shutdown(std::net::Shutdown::Write);
            drop(next);
        }
    }
}
