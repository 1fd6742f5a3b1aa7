//! The memory that connections take from the server's account.

use std::{
    io::Read,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pagefold_serve::{
    Account, Export, LEAST_BYTES, Limits, Refused, Server,
    protocol::{OptionHeader, command, option, reply},
};

use crate::{
    device::Ram,
    raw::{Raw, Running, limits_with},
};

const CONNECTIONS: u64 = 16;

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
    fn take(&self, bytes: u64) -> bool {
        let more = |taken: u64| (taken + bytes <= self.limit_bytes).then_some(taken + bytes);
        let taken = self.taken_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        self.most_bytes.fetch_max(self.taken_bytes.load(Ordering::SeqCst), Ordering::SeqCst);
        taken.is_ok()
    }

    fn take_least(&self, bytes: u64) -> bool {
        self.taken_bytes.fetch_add(bytes, Ordering::SeqCst);
        true
    }

    fn give(&self, bytes: u64) {
        assert!(self.taken_bytes.fetch_sub(bytes, Ordering::SeqCst) >= bytes, "more is given than was taken");
    }
}

/// Sends many large requests at once and reads all replies; checks that the data read are those
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
fn an_idle_connection_takes_its_least_and_a_busy_one_gives_back_what_it_takes() {
    let account = Ledger::new(u64::MAX);
    let server = start(&account, Limits::default());
    let mut all: Vec<Raw> = (0..CONNECTIONS).map(|_| server.structured()).collect();
    assert_eq!(account.taken_bytes.load(Ordering::SeqCst), CONNECTIONS * LEAST_BYTES);
    std::thread::scope(|scope| {
        for (number, raw) in all.iter_mut().enumerate() {
            scope.spawn(move || exercise(raw, number as u8));
        }
    });
    let most_bytes = account.most_bytes.load(Ordering::SeqCst);
    assert!(most_bytes > 2 * CONNECTIONS * LEAST_BYTES, "only {most_bytes} bytes for large requests");
    assert!(most_bytes <= Limits::default().memory_bytes + CONNECTIONS * LEAST_BYTES, "{most_bytes} bytes");
    account.wait_for(CONNECTIONS * LEAST_BYTES);
    drop(all);
    account.wait_for(0);
}

#[test]
fn where_the_account_refuses_everything_is_answered_in_the_least_memory() {
    // No memory at all, then room for some buffers.
    for limit_bytes in [0, CONNECTIONS * LEAST_BYTES + (600 << 10)] {
        let account = Ledger::new(limit_bytes);
        let server = start(&account, Limits::default());
        let all: Vec<Raw> = (0..CONNECTIONS).map(|_| server.structured()).collect();
        std::thread::scope(|scope| {
            for (number, mut raw) in all.into_iter().enumerate() {
                scope.spawn(move || exercise(&mut raw, number as u8));
            }
        });
        assert!(account.most_bytes.load(Ordering::SeqCst) <= limit_bytes.max(CONNECTIONS * LEAST_BYTES));
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
    let device = Arc::new(Ram { slow_read: Duration::from_millis(20), may_block: true, ..Ram::new(1 << 20) });
    let builder = Server::builder().export(Export::new("disk", Arc::clone(&device) as _)).limits(limits);
    let server = Running::start(builder.account(Arc::clone(&account) as _));
    let mut all: Vec<Raw> = (0..4).map(|_| server.simple()).collect();
    for raw in &mut all {
        for cookie in 0..10 {
            raw.request(command::READ, 0, cookie, 0, 512);
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

/// An account with room for one connection.
#[derive(Default)]
struct ForOne(AtomicU64);

impl Account for ForOne {
    fn take(&self, _: u64) -> bool {
        false
    }

    fn take_least(&self, bytes: u64) -> bool {
        self.0.compare_exchange(0, bytes, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::SeqCst);
    }
}

#[test]
fn a_connection_for_which_the_account_has_no_room_is_closed_and_that_is_told() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&told);
    let account = Arc::new(ForOne::default());
    let builder = Server::builder().export(Export::new("disk", Ram::shared(8192)));
    let builder = builder.account(Arc::clone(&account) as _);
    let server = Running::start(builder.when_refused(move |why| notes.lock().unwrap().push(why)));
    let served = server.simple();
    assert_eq!(UnixStream::connect(&server.path).unwrap().read(&mut [0]).unwrap(), 0, "a connection too many");
    assert!(matches!(told.lock().unwrap()[..], [Refused::Memory]));
    drop(served);
    let start = Instant::now();
    while account.0.load(Ordering::SeqCst) != 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    server.assert_alive();
}
