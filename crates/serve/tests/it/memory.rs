//! The memory that connections take from the server's account.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pagefold_serve::{
    Account, Claim, Export, IDLE_BYTES, Limits, Refused, Server, WORK_BYTES,
    protocol::{OptionHeader, Request, command, option, reply},
};

use crate::{
    device::Ram,
    raw::{Raw, Running, info, limits_with},
};

const CONNECTIONS: u64 = 16;
/// Memory of a connection that works, without loans.
const WORKING_BYTES: u64 = IDLE_BYTES + WORK_BYTES;

/// Grants up to a limit and records the peak.
#[derive(Default)]
struct Ledger {
    limit_bytes: u64,
    taken_bytes: AtomicU64,
    most_bytes: AtomicU64,
}

impl Ledger {
    fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, ..Self::default() })
    }

    fn wait_for(&self, taken_bytes: u64) {
        let start = Instant::now();
        while self.taken_bytes.load(Ordering::SeqCst) != taken_bytes {
            let taken_bytes = self.taken_bytes.load(Ordering::SeqCst);
            assert!(start.elapsed() < Duration::from_secs(30), "{taken_bytes} bytes are still taken");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Account for Ledger {
    fn take(&self, claim: Claim, bytes: u64) -> bool {
        let limit_bytes = if claim == Claim::Loan { self.limit_bytes } else { u64::MAX };
        let more = |taken: u64| (taken + bytes <= limit_bytes).then_some(taken + bytes);
        let taken = self.taken_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        self.most_bytes.fetch_max(self.taken_bytes.load(Ordering::SeqCst), Ordering::SeqCst);
        taken.is_ok()
    }

    fn give(&self, _: Claim, bytes: u64) {
        assert!(self.taken_bytes.fetch_sub(bytes, Ordering::SeqCst) >= bytes, "more is given than was taken");
    }
}

/// Sends many large requests together and reads all replies; checks that the data read are those
/// written.
fn exercise(raw: &mut Raw, number: u8) {
    let bytes = vec![number | 1; 600_000];
    let offset = u64::from(number) * (1 << 20);
    for cookie in 0..8 {
        raw.request(command::WRITE, 0, cookie, offset, bytes.len() as u32);
        raw.send(&bytes);
    }
    for _ in 0..8 {
        assert_eq!(raw.simple_reply().0, 0);
    }
    raw.request(command::READ, 0, 9, offset, bytes.len() as u32);
    assert!(raw.structured_read(9, offset) == Ok(bytes));
}

fn start(account: &Arc<Ledger>, limits: Limits) -> Running {
    let device = Ram::shared((CONNECTIONS as usize + 1) << 20);
    let builder = Server::builder().export(Export::new("disk", device)).limits(limits);
    Running::start(builder.account(Arc::clone(account) as _))
}

#[test]
fn an_idle_connection_takes_its_minimum_and_a_busy_one_returns_memory() {
    let account = Ledger::new(u64::MAX);
    let server = start(&account, Limits::default());
    let mut all: Vec<Raw> = (0..CONNECTIONS).map(|_| server.structured()).collect();
    assert_eq!(account.taken_bytes.load(Ordering::SeqCst), CONNECTIONS * IDLE_BYTES);
    std::thread::scope(|scope| {
        for (number, raw) in all.iter_mut().enumerate() {
            scope.spawn(move || exercise(raw, number as u8));
        }
    });
    let most_bytes = account.most_bytes.load(Ordering::SeqCst);
    assert!(most_bytes > 2 * CONNECTIONS * WORKING_BYTES, "only {most_bytes} bytes for large requests");
    assert!(most_bytes <= Limits::default().memory_bytes + CONNECTIONS * WORKING_BYTES, "{most_bytes} bytes");
    account.wait_for(CONNECTIONS * IDLE_BYTES);
    drop(all);
    account.wait_for(0);
}

#[test]
fn requests_are_answered_in_minimum_memory_if_the_account_refuses() {
    // No memory at all, then room for some buffers.
    for limit_bytes in [0, CONNECTIONS * WORKING_BYTES + (600 << 10)] {
        let account = Ledger::new(limit_bytes);
        let server = start(&account, Limits::default());
        let all: Vec<Raw> = (0..CONNECTIONS).map(|_| server.structured()).collect();
        std::thread::scope(|scope| {
            for (number, mut raw) in all.into_iter().enumerate() {
                scope.spawn(move || exercise(&mut raw, number as u8));
            }
        });
        assert!(account.most_bytes.load(Ordering::SeqCst) <= limit_bytes + CONNECTIONS * WORKING_BYTES);
        account.wait_for(0);
        let mut raw = server.greet();
        if limit_bytes == 0 {
            // The server does not wait for the data.
            raw.send(&OptionHeader { option: option::LIST, len_bytes: 5000 }.encode());
            assert_eq!(raw.option_reply(option::LIST).0, reply::ERR_TOO_BIG);
            raw.expect_end();
        }
    }
}

#[test]
fn threads_of_all_connections_are_bounded_and_none_waits_for_one() {
    let account = Ledger::new(u64::MAX);
    let limits = limits_with(|limits| limits.threads = 2);
    let device = Arc::new(Ram { slow_read: Duration::from_millis(60), may_block: true, ..Ram::new(1 << 20) });
    let builder = Server::builder().export(Export::new("disk", Arc::clone(&device) as _)).limits(limits);
    let server = Running::start(builder.account(Arc::clone(&account) as _));
    let mut all: Vec<Raw> = (0..4).map(|_| server.simple()).collect();
    for raw in &mut all {
        for cookie in 0..10 {
            raw.request(command::READ, 0, cookie, cookie * 8192, 512);
        }
    }
    for raw in &mut all {
        for _ in 0..10 {
            assert_eq!(raw.simple_reply().0, 0);
            raw.bytes(512);
        }
    }
    let most_reads = device.most_reads.load(Ordering::SeqCst);
    assert!((4..=6).contains(&most_reads), "{most_reads} at a time");
}

/// An account with room for some connections, of which some may work, and without loans.
pub(crate) struct Strict {
    idle_bytes: u64,
    work_bytes: u64,
    idle_taken: AtomicU64,
    work_taken: AtomicU64,
}

impl Strict {
    pub(crate) fn new(connections: u64, working: u64) -> Arc<Self> {
        Arc::new(Self {
            idle_bytes: connections * IDLE_BYTES,
            work_bytes: working * WORK_BYTES,
            idle_taken: AtomicU64::new(0),
            work_taken: AtomicU64::new(0),
        })
    }

    pub(crate) fn idle_bytes_taken(&self) -> u64 {
        self.idle_taken.load(Ordering::SeqCst)
    }
}

impl Account for Strict {
    fn take(&self, claim: Claim, bytes: u64) -> bool {
        let (taken, limit_bytes) = match claim {
            Claim::Connection => (&self.idle_taken, self.idle_bytes),
            Claim::Work => (&self.work_taken, self.work_bytes),
            _ => return false,
        };
        let more = |taken: u64| (taken + bytes <= limit_bytes).then_some(taken + bytes);
        taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn give(&self, claim: Claim, bytes: u64) {
        let taken = if claim == Claim::Connection { &self.idle_taken } else { &self.work_taken };
        assert!(taken.fetch_sub(bytes, Ordering::SeqCst) >= bytes, "more is given than was taken");
    }
}

pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_without_memory_gets_the_reason_and_may_retry() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&reported);
    let account = Strict::new(1, 1);
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8192)));
    let builder = builder.account(Arc::clone(&account) as _);
    let server = Running::start(builder.when_refused(move |why| notes.lock().unwrap().push(why)));
    let served = server.simple();
    // More than may stay.
    let mut others: Vec<Raw> = (0..20).map(|_| server.greet()).collect();
    let mut other = others.pop().unwrap();
    other.option(option::GO, &info(b"disk", &[]));
    let (kind, message) = other.option_reply(option::GO);
    assert_eq!((kind, String::from_utf8_lossy(&message).contains("memory limit")), (reply::ERR_POLICY, true));
    assert!(matches!(reported.lock().unwrap()[..], [Refused::Memory]));
    other.option(option::INFO, &info(b"disk", &[]));
    assert_eq!(other.option_reply(option::INFO).0, reply::INFO);
    other.expect_ack(option::INFO);
    drop(served);
    wait_until("the memory comes back", || account.idle_taken.load(Ordering::SeqCst) == 0);
    other.go(b"disk");
    assert_eq!(account.idle_taken.load(Ordering::SeqCst), IDLE_BYTES);
}

#[test]
fn newcomers_that_say_nothing_leave_their_memory_to_the_next() {
    const SILENT: usize = 50;
    let account = Strict::new(10, 10);
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8192)));
    let server = Running::start(builder.account(Arc::clone(&account) as _));
    let silent: Vec<Raw> = (0..SILENT).map(|_| server.greet()).collect();
    let served: Vec<Raw> = (0..10).map(|_| server.simple()).collect();
    drop((silent, served));
    wait_until("the memory comes back", || account.idle_taken.load(Ordering::SeqCst) == 0);
}

/// Two of twenty connections may work at a time, some of them without a pause and with several
/// requests in flight. All are served.
#[test]
fn connections_take_turns_where_memory_is_short() {
    const CLIENTS: u8 = 20;
    for (may_block, depth) in [(false, 1), (false, 8), (true, 8)] {
        let account = Strict::new(CLIENTS.into(), 2);
        let device = Arc::new(Ram { may_block, ..Ram::new(1 << 20) });
        let builder = Server::builder().export(Export::new("disk", device));
        let server = Running::start(builder.account(Arc::clone(&account) as _));
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let (server, done) = (&server, &done);
                scope.spawn(move || {
                    let mut raw = server.simple();
                    let offset = u64::from(number) * 16384;
                    // Until everyone has been served.
                    for round in 0.. {
                        for cookie in 0..depth {
                            raw.request(command::WRITE, 0, cookie, offset, 16384);
                            raw.send(&[number; 16384]);
                        }
                        for _ in 0..depth {
                            assert_eq!(raw.simple_reply().0, 0);
                        }
                        if round == 3 {
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                        if done.load(Ordering::SeqCst) == u64::from(CLIENTS) {
                            break;
                        }
                    }
                    raw.request(command::READ, 0, 9, offset, 16384);
                    assert_eq!(raw.simple_reply(), (0, 9));
                    assert_eq!(raw.bytes(16384), [number; 16384]);
                });
            }
        });
        wait_until("the memory comes back", || {
            account.idle_taken.load(Ordering::SeqCst) + account.work_taken.load(Ordering::SeqCst) == 0
        });
    }
}

/// One connection may work at a time, and one of them always has requests: whole ones, or with a
/// part of the next.
#[test]
fn a_connection_that_never_pauses_gives_others_their_turn() {
    for (kind, payload_bytes) in [(command::READ, 0), (command::WRITE, 5000)] {
        let account = Strict::new(4, 1);
        let builder = Server::builder().export(Export::new("disk", Ram::shared(1 << 20)));
        let server = Running::start(builder.account(account as _));
        let mut flood = server.simple();
        let replies = flood.stream.try_clone().unwrap();
        let others_are_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut replies = Raw { stream: replies };
                while replies.try_receive() {}
            });
            scope.spawn(|| {
                let len_bytes = if kind == command::READ { 512 } else { payload_bytes as u64 };
                let header = Request { flags: 0, kind, cookie: 1, offset: 0, len_bytes }.encode();
                // More than the server receives at a time.
                let many = [&header[..], &vec![1; payload_bytes]].concat().repeat((1 << 20) / (28 + payload_bytes));
                while !others_are_done.load(Ordering::SeqCst) {
                    flood.send(&many);
                }
                flood.stream.shutdown(std::net::Shutdown::Both).unwrap();
            });
            let mut others: Vec<Raw> = (0..3).map(|_| server.simple()).collect();
            for round in 0..5 {
                for raw in &mut others {
                    raw.request(command::READ, 0, round, 8192, 512);
                }
                for raw in &mut others {
                    assert_eq!(raw.simple_reply(), (0, round));
                    raw.bytes(512);
                }
            }
            others_are_done.store(true, Ordering::SeqCst);
        });
    }
}

/// Peers that do not read keep their memory; the others share the rest.
#[test]
fn requests_wait_for_memory_that_silent_readers_keep() {
    let account = Strict::new(8, 2);
    let limits = limits_with(|limits| limits.io_timeout = Duration::from_secs(2));
    let builder = Server::builder().export(Export::new("disk", Ram::shared(33 << 20))).limits(limits);
    let server = Running::start(builder.account(Arc::clone(&account) as _));
    let mut unread: Vec<Raw> = (0..2).map(|_| server.simple()).collect();
    for raw in &mut unread {
        raw.request(command::READ, 0, 1, 0, 32 << 20);
        raw.bytes(1);
    }
    let mut others: Vec<Raw> = (0..6).map(|_| server.simple()).collect();
    for raw in &mut others {
        raw.request(command::READ, 0, 1, 0, 512);
    }
    for raw in &mut others {
        assert_eq!(raw.simple_reply(), (0, 1));
        raw.bytes(512);
    }
}

#[test]
fn a_stop_answers_requests_that_wait_for_memory() {
    let account = Strict::new(8, 1);
    let builder = Server::builder().export(Export::new("disk", Ram::shared(1 << 20)));
    let mut server = Running::start(builder.account(account as _));
    let mut all: Vec<Raw> = (0..8).map(|_| server.simple()).collect();
    for raw in &mut all {
        raw.request(command::READ, 0, 1, 0, 512);
    }
    server.stop();
    for raw in &mut all {
        assert_eq!(raw.simple_reply(), (0, 1));
        raw.bytes(512);
        raw.expect_end();
    }
}
