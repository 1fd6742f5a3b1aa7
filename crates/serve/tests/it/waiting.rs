//! Changes that wait for room.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pagefold_disk::{Patient, Pool, PoolConfig, RamDisk, Room, Waits};
use pagefold_serve::{
    Export, Exports, Limits, Server,
    protocol::{command, command_flag},
};

use crate::{
    device::Ram,
    raw::{Raw, Running, limits_with},
};

const PAGE: usize = 4096;
const ESHUTDOWN: u32 = 108;

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A full device and its server.
struct Full {
    ram: Arc<Ram>,
    waits: Arc<Waits>,
    exports: Exports,
    server: Running,
}

impl Full {
    fn start(limits: Limits) -> Self {
        let ram = Arc::new(Ram { full: AtomicBool::new(true), ..Ram::new(1 << 20) });
        let waits = Arc::new(Waits::new(&Arc::default()));
        let exports = Exports::new();
        exports.add(Export::new("disk", Arc::new(Patient::new(Arc::clone(&ram), Arc::clone(&waits))))).unwrap();
        let server = Running::start(Server::builder().exports(exports.clone()).limits(limits));
        Self { ram, waits, exports, server }
    }

    fn make_room(&self) {
        self.ram.full.store(false, Ordering::SeqCst);
        self.waits.signal();
    }

    fn waits_for(&self, count: usize) {
        wait_for("a waiting request", || self.waits.count() == count);
    }
}

/// Returns limits that leave no memory for waiting payloads.
fn no_memory() -> Limits {
    limits_with(|limits| limits.memory_bytes = 0)
}

fn write(raw: &mut Raw, cookie: u64, offset: u64, bytes: &[u8]) {
    raw.request(command::WRITE, 0, cookie, offset, bytes.len() as u32);
    raw.send(bytes);
}

fn cookies(raw: &mut Raw, count: usize, errno: u32) -> Vec<u64> {
    let mut cookies: Vec<u64> = (0..count)
        .map(|_| {
            let (found, cookie) = raw.simple_reply();
            assert_eq!(found, errno, "of {cookie}");
            cookie
        })
        .collect();
    cookies.sort_unstable();
    cookies
}

#[test]
fn reads_and_discards_go_on_while_writes_wait() {
    let full = Full::start(Limits::default());
    let mut raw = full.server.simple();
    write(&mut raw, 1, 4096, &[7; 512]);
    write(&mut raw, 2, 65536, &[8; 700_000]);
    (100..120).for_each(|cookie| write(&mut raw, cookie, 512 * cookie, &[9; 512]));
    for cookie in 10..50 {
        raw.request(command::READ, 0, cookie, 8192, 16);
        assert_eq!(raw.simple_reply(), (0, cookie));
        raw.bytes(16);
        raw.request(command::TRIM, 0, cookie, 8192, 4096);
        assert_eq!(raw.simple_reply(), (0, cookie));
    }
    wait_for("the writes to wait", || full.waits.count() >= 22);
    full.make_room();
    assert_eq!(cookies(&mut raw, 22, 0), [1, 2].into_iter().chain(100..120).collect::<Vec<_>>());
    let bytes = full.ram.bytes.lock().unwrap();
    assert!(bytes[4096..4608].iter().all(|&byte| byte == 7) && bytes[65536..][..700_000].iter().all(|&byte| byte == 8));
    drop(bytes);
    full.waits_for(0);
}

/// A waiting request is woken: finding room by polling would take ten times as long.
#[test]
fn a_write_goes_on_as_soon_as_there_is_room() {
    let full = Full::start(Limits::default());
    let mut raw = full.server.simple();
    let start = Instant::now();
    for cookie in 0..40 {
        full.ram.full.store(true, Ordering::SeqCst);
        write(&mut raw, cookie, 0, &[1; 512]);
        full.waits_for(1);
        full.make_room();
        assert_eq!(raw.simple_reply(), (0, cookie));
        full.waits_for(0);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
}

#[test]
fn changes_that_cannot_be_set_aside_wait_in_the_connection() {
    for limits in [Limits::default(), no_memory()] {
        let full = Full::start(limits);
        let mut raw = full.server.simple();
        let mut sender = Raw { stream: raw.stream.try_clone().unwrap() };
        let sent = std::thread::spawn(move || {
            (0..400).for_each(|cookie| write(&mut sender, cookie, 512 * cookie, &[cookie as u8; 512]));
        });
        wait_for("a waiting request", || full.waits.count() > 0);
        // More would wait by then.
        std::thread::sleep(Duration::from_millis(50));
        let waiting = full.waits.count();
        // The connection's own thread waits with one request too, and so may two threads with
        // requests that arrived at the same instant.
        assert!(waiting <= 128 + limits.threads_per_connection + 3, "{waiting} wait");
        full.server.assert_alive();
        full.make_room();
        assert_eq!(cookies(&mut raw, 400, 0), (0..400).collect::<Vec<_>>());
        sent.join().unwrap();
    }
}

/// A message's deadline is suspended while its writer waits for room.
#[test]
fn a_large_write_without_memory_waits_longer_than_a_message_may_take() {
    let io_timeout = Duration::from_millis(300);
    let full = Full::start({
        let mut limits = no_memory();
        limits.io_timeout = io_timeout;
        limits
    });
    let mut raw = full.server.simple();
    let mut sender = Raw { stream: raw.stream.try_clone().unwrap() };
    let sent = std::thread::spawn(move || write(&mut sender, 1, 0, &[5; 200_000]));
    full.waits_for(1);
    // Many times the timeout, even if the deadline were restarted.
    std::thread::sleep(Duration::from_secs(4));
    full.make_room();
    assert_eq!(raw.simple_reply(), (0, 1));
    sent.join().unwrap();
    assert!(full.ram.bytes.lock().unwrap()[..200_000].iter().all(|&byte| byte == 5));
}

#[test]
fn a_client_that_leaves_waits_no_longer() {
    for limits in [Limits::default(), no_memory()] {
        let full = Full::start(limits);
        let mut raw = full.server.simple();
        write(&mut raw, 1, 0, &[1; 512]);
        full.waits_for(1);
        drop(raw);
        full.waits_for(0);
        wait_for("the end of the connection", || full.server.handle.connections() == 0);
        assert!(full.ram.bytes.lock().unwrap().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_write_to_an_export_that_is_removed_waits_no_longer() {
    for limits in [Limits::default(), no_memory()] {
        let full = Full::start(limits);
        let mut raw = full.server.simple();
        write(&mut raw, 1, 0, &[1; 512]);
        full.waits_for(1);
        full.exports.remove("disk");
        assert_eq!(raw.simple_reply(), (ESHUTDOWN, 1));
        full.waits_for(0);
    }
}

#[test]
fn a_server_that_stops_waits_no_longer() {
    for limits in [Limits::default(), no_memory()] {
        let mut full = Full::start(limits);
        let mut raw = full.server.simple();
        write(&mut raw, 1, 0, &[1; 512]);
        full.waits_for(1);
        let start = Instant::now();
        full.server.stop();
        assert!(start.elapsed() < Duration::from_secs(4), "stopped after {:?}", start.elapsed());
        assert_eq!(raw.simple_reply(), (ESHUTDOWN, 1));
        raw.expect_end();
    }
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn page(&mut self) -> Vec<u8> {
        (0..PAGE).map(|_| self.below(256) as u8).collect()
    }
}

/// Writers of two disks, discards and changing limits, all at random: every request is answered,
/// none with an error, and each disk has the data that were written and not discarded.
#[test]
fn every_waiting_write_ends() {
    const DISK_PAGES: u64 = 1024;
    const LEAST_LIMIT: u64 = 1 << 20;
    for (round, limits) in
        [Limits::default(), limits_with(|limits| limits.threads = 1), no_memory()].into_iter().enumerate()
    {
        let pool = Pool::new(PoolConfig::default().memory_limit(LEAST_LIMIT)).unwrap();
        let room: Arc<Room> = Arc::default();
        let exports = Exports::new();
        let disks: Vec<Arc<RamDisk>> =
            [(); 2].map(|()| Arc::new(RamDisk::new(&pool, DISK_PAGES * 4096).unwrap())).into();
        let waits: Vec<Arc<Waits>> = [(); 2].map(|()| Arc::new(Waits::new(&room))).into();
        for ((name, disk), waits) in ["a", "b"].into_iter().zip(&disks).zip(&waits) {
            exports.add(Export::new(name, Arc::new(Patient::new(Arc::clone(disk), Arc::clone(waits))))).unwrap();
        }
        let server = Running::start(Server::builder().exports(exports).limits(limits));
        let connect = |name: &[u8]| {
            let mut raw = server.greet();
            raw.go(name);
            raw
        };
        let (working, most_waiting) = (AtomicU64::new(4), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for writer in 0..4_u64 {
                let (name, disk) = if writer % 2 == 0 { (b"a", &disks[0]) } else { (b"b", &disks[1]) };
                let (mut raw, working) = (connect(name), &working);
                scope.spawn(move || {
                    // Each has half of a disk.
                    let first = writer / 2 * DISK_PAGES / 2;
                    let mut numbers = Numbers(round as u64 * 4 + writer);
                    let mut model = vec![vec![0; PAGE]; DISK_PAGES as usize / 2];
                    for _ in 0..40 {
                        // A batch of requests that do not overlap.
                        let mut page = 0;
                        let mut sent = 0;
                        while page < DISK_PAGES / 2 {
                            let pages = (1 + numbers.below(40)).min(DISK_PAGES / 2 - page);
                            let (offset, range) = ((first + page) * 4096, page as usize..(page + pages) as usize);
                            match numbers.below(8) {
                                0 | 1 => {
                                    let written: Vec<Vec<u8>> = (0..pages).map(|_| numbers.page()).collect();
                                    write(&mut raw, sent, offset, &written.concat());
                                    model[range].clone_from_slice(&written);
                                    sent += 1;
                                }
                                2 => {
                                    let len_bytes = pages as u32 * 4096;
                                    raw.request(command::WRITE_ZEROES, command_flag::NO_HOLE, sent, offset, len_bytes);
                                    model[range].fill(vec![0; PAGE]);
                                    sent += 1;
                                }
                                3..6 => {
                                    raw.request(command::TRIM, 0, sent, offset, pages as u32 * 4096);
                                    model[range].fill(vec![0; PAGE]);
                                    sent += 1;
                                }
                                _ => {}
                            }
                            page += pages;
                        }
                        assert_eq!(cookies(&mut raw, sent as usize, 0), (0..sent).collect::<Vec<_>>());
                    }
                    working.fetch_sub(1, Ordering::SeqCst);
                    let mut found = [0; PAGE];
                    for (page, expected) in (first..).zip(&model) {
                        pagefold_disk::BlockDevice::read(disk, page * 4096, &mut found).unwrap();
                        assert!(found[..] == expected[..], "page {page}");
                    }
                });
            }
            let mut numbers = Numbers(round as u64);
            while working.load(Ordering::SeqCst) > 0 {
                let waiting: usize = waits.iter().map(|waits| waits.count()).sum();
                most_waiting.fetch_max(waiting as u64, Ordering::SeqCst);
                // The largest limit has room for everything that the disks can store. A limit below
                // what is stored is refused.
                let spread = if numbers.below(8) == 0 { 16 << 20 } else { 2 << 20 };
                let _ = pool.set_memory_limit(LEAST_LIMIT + numbers.below(spread));
                room.signal();
                std::thread::sleep(Duration::from_millis(numbers.below(20)));
            }
        });
        assert!(most_waiting.into_inner() > 0, "nothing waited");
        assert_eq!(waits.iter().map(|waits| waits.count()).sum::<usize>(), 0);
    }
}
