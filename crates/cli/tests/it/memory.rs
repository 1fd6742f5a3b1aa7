//! The memory limit holds for the whole process.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{control::Control, server::Server};

const LIMIT_BYTES: u64 = 64 << 20;
/// Maximum memory of a process whose server has that limit.
const PROCESS_BYTES: u64 = LIMIT_BYTES + LIMIT_BYTES * 3 / 100 + (8 << 20);

const DISK_BYTES: u64 = 512 << 20;
const PAGE_BYTES: usize = 4096;

/// Error number of a reply if there is no room.
const ENOSPC: u32 = 28;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;

/// A reproducible pseudo-random sequence.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns pages, half of which compress to almost nothing and half not at all.
    fn pages(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        for page in bytes.chunks_mut(PAGE_BYTES) {
            page[..PAGE_BYTES / 2].chunks_mut(8).for_each(|word| word.copy_from_slice(&self.next().to_ne_bytes()));
        }
        bytes
    }
}

/// An NBD connection with simple replies.
pub(crate) struct Client(UnixStream);

impl Client {
    pub(crate) fn connect(server: &Server, export: &str) -> Self {
        Self::try_connect(server, export).expect("an export")
    }

    /// The same for a client that may be refused.
    pub(crate) fn try_connect(server: &Server, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(server.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        stream.read_exact(&mut [0; 18])?;
        // Fixed newstyle and no zeros; then the option EXPORT_NAME, whose reply has the size and
        // flags.
        let name = [&3_u32.to_be_bytes(), &b"IHAVEOPT"[..], &1_u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()];
        stream.write_all(&[&name.concat(), export.as_bytes()].concat())?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Self(stream))
    }

    pub(crate) fn send(&self, kind: u16, offset: u64, payload: &[u8], len_bytes: usize) {
        let header = [
            &0x2560_9513_u32.to_be_bytes()[..],
            &[0; 2],
            &kind.to_be_bytes(),
            &[0; 8],
            &offset.to_be_bytes(),
            &(len_bytes as u32).to_be_bytes(),
        ];
        let mut stream = &self.0;
        stream.write_all(&header.concat()).and_then(|()| stream.write_all(payload)).expect("a request is sent");
    }

    /// Returns whether the request succeeded; it fails if there is no room. All requests in flight
    /// are of `kind` and `len_bytes`.
    pub(crate) fn reply(&self, kind: u16, len_bytes: usize) -> bool {
        let mut stream = &self.0;
        let mut header = [0; 16];
        stream.read_exact(&mut header).expect("a reply");
        let error = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        assert!(error == 0 || (error == ENOSPC && kind == WRITE), "error {error}");
        if kind == READ {
            stream.read_exact(&mut vec![0; len_bytes]).expect("what was read");
        }
        error == 0
    }

    /// Keeps eight requests of one kind and size in flight, at offsets below `end` chosen by
    /// `numbers`. Returns how many were refused.
    fn burst(&self, numbers: &mut Numbers, kind: u16, len_bytes: usize, end: u64) -> usize {
        const DEPTH: usize = 8;
        let pages = if kind == WRITE { numbers.pages(len_bytes) } else { Vec::new() };
        thread::scope(|scope| {
            let replies = scope.spawn(|| (0..DEPTH).filter(|_| !self.reply(kind, len_bytes)).count());
            for _ in 0..DEPTH {
                let offset = numbers.below((end - len_bytes as u64) / PAGE_BYTES as u64 + 1) * PAGE_BYTES as u64;
                self.send(kind, offset, &pages, len_bytes);
            }
            replies.join().expect("replies")
        })
    }
}

/// Runs `work` and monitors the server's memory. Returns the maximum.
pub(crate) fn most_bytes(server: &Server, work: impl FnOnce()) -> u64 {
    let (ended, most) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                most.fetch_max(server.anonymous_bytes(), Ordering::SeqCst);
                // A sample may miss a peak, so this test may miss a violation, but never reports a
                // wrong one.
                thread::sleep(Duration::from_millis(2));
            }
        });
        let end = EndOnDrop(&ended);
        work();
        drop(end);
    });
    most.into_inner()
}

/// Stops the monitoring even if a test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits until a figure of the server is `expected`.
fn wait_for(control: &mut Control, figure: &str, expected: u64) {
    let start = Instant::now();
    loop {
        let stat = control.done(&json!({"command": "stat"}));
        let value = stat["server"]["figures"][figure].as_u64().expect("a figure");
        if value == expected {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{figure} stays {value}, and should be {expected}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn many_clients_that_fill_and_overwrite_disks_take_no_more_than_the_limit() {
    const CLIENTS: u64 = 64;
    /// Memory of a connection according to docs/nbd.md.
    const IDLE_BYTES: u64 = 4 << 10;
    let server = Server::start(&["--memory-limit", "64M", "--size", "512M"]);
    let (start, refused) = (Barrier::new(CLIENTS as usize), AtomicU64::new(0));
    let mut clients = Vec::new();
    let most_bytes = most_bytes(&server, || {
        thread::scope(|scope| {
            let work = |number| {
                let (server, start, refused) = (&server, &start, &refused);
                scope.spawn(move || {
                    start.wait();
                    let client = Client::connect(server, "");
                    let mut numbers = Numbers(number);
                    for round in 0..6 {
                        let len_bytes = [PAGE_BYTES, 64 << 10, 256 << 10, 1 << 20][(number as usize + round) % 4];
                        let count = client.burst(&mut numbers, WRITE, len_bytes, DISK_BYTES);
                        refused.fetch_add(count as u64, Ordering::SeqCst);
                        client.burst(&mut numbers, READ, len_bytes, DISK_BYTES);
                        // Repeatedly, with the pattern that uses most of the memory.
                        client.burst(&mut numbers, WRITE, 16 << 10, 48 << 20);
                    }
                    client
                })
            };
            let threads: Vec<_> = (0..CLIENTS).map(work).collect();
            clients.extend(threads.into_iter().map(|thread| thread.join().expect("a client that is served")));
        });
    });
    assert!(refused.into_inner() > 0, "the limit was never reached");
    assert!(most_bytes <= PROCESS_BYTES, "{most_bytes} bytes, {} more than allowed", most_bytes - PROCESS_BYTES);
    let mut control = Control::open(&server);
    wait_for(&mut control, "client_bytes", CLIENTS * IDLE_BYTES);
    drop(clients);
    wait_for(&mut control, "client_bytes", 0);
    let stat = control.done(&json!({"command": "stat"}));
    let (spent, process) = (&stat["server"]["figures"]["spent_bytes"], server.anonymous_bytes());
    // The memory reserved for clients is not in use now.
    let spent_bytes = spent.as_u64().expect("a figure");
    assert!(process <= spent_bytes, "the process takes {process} bytes, {spent_bytes} are counted");
}

#[test]
fn clients_whose_writes_wait_take_no_more_than_the_limit() {
    const CLIENTS: u64 = 64;
    /// More than can be set aside.
    const DEPTH: u64 = 200;
    let server = Server::start(&["--memory-limit", "64M", "--size", "2G", "--when-full", "wait"]);
    let mut control = Control::open(&server);
    let (most_bytes, waiting) = thread::scope(|scope| {
        for number in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let client = Client::connect(server, "");
                let mut numbers = Numbers(number);
                let len_bytes = [PAGE_BYTES, 16 << 10, 64 << 10, 160 << 10][number as usize % 4];
                for index in 0..DEPTH {
                    let offset = number * (32 << 20) + index * len_bytes as u64;
                    client.send(WRITE, offset, &numbers.pages(len_bytes), len_bytes);
                }
                assert!((0..DEPTH).all(|_| client.reply(WRITE, len_bytes)), "a write was refused");
            });
        }
        let mut waiting =
            || control.done(&json!({"command": "stat"}))["server"]["figures"]["waiting_requests"].as_u64();
        let start = Instant::now();
        let most_bytes = most_bytes(&server, || {
            while waiting().is_none_or(|waiting| waiting < CLIENTS / 2) {
                assert!(start.elapsed() < Duration::from_secs(60), "{:?} wait", waiting());
                thread::sleep(Duration::from_millis(20));
            }
            // The other clients' requests arrive.
            thread::sleep(Duration::from_secs(1));
        });
        let waiting = waiting();
        control.done(&json!({"command": "limit", "limit_bytes": null}));
        (most_bytes, waiting)
    });
    assert!(waiting.is_some_and(|waiting| waiting >= CLIENTS / 2), "{waiting:?} wait");
    assert!(most_bytes <= PROCESS_BYTES, "{most_bytes} bytes, {} more than allowed", most_bytes - PROCESS_BYTES);
    wait_for(&mut control, "waiting_requests", 0);
}

#[test]
fn a_full_disk_is_overwritten_with_many_clients_connected() {
    const CLIENTS: usize = 120;
    let server = Server::start(&["--memory-limit", "64M", "--size", "512M"]);
    let client = Client::connect(&server, "");
    let mut numbers = Numbers(7);
    let mut write = |page: u64| {
        client.send(WRITE, page * PAGE_BYTES as u64, &numbers.pages(PAGE_BYTES), PAGE_BYTES);
        client.reply(WRITE, PAGE_BYTES)
    };
    let stored = (0..).find(|&page| !write(page)).unwrap_or_default();
    let others: Vec<_> = (0..CLIENTS).map(|_| Client::connect(&server, "")).collect();
    let mut places = Numbers(8);
    let refused = (0..4000).filter(|_| !write(places.below(stored))).count();
    assert_eq!(refused, 0, "of 4000 writes over {stored} stored pages");
    drop(others);
}

#[test]
fn lists_of_many_disks_take_no_memory_while_they_are_not_read() {
    const DISKS: usize = 3000;
    const CLIENTS: usize = 12;
    let server = Server::start(&["--memory-limit", "64M", "--log", "warn"]);
    let mut control = Control::open(&server);
    for number in 0..DISKS {
        control.done(&json!({"command": "add", "name": format!("disk-{number}"), "size_bytes": DISK_BYTES}));
    }
    let before_bytes = server.anonymous_bytes();
    let most_bytes = most_bytes(&server, || {
        let ask = |number: usize| {
            let mut control = Control::open(&server);
            let command = ["list", "stat"][number % 2];
            control.send(&json!({ "command": command }));
            control
        };
        let mut clients: Vec<_> = (0..CLIENTS).map(ask).collect();
        // The replies exist and wait to be read.
        thread::sleep(Duration::from_millis(500));
        for control in &mut clients {
            let disks = &control.line()["result"]["disks"];
            assert_eq!(disks.as_array().map(Vec::len), Some(DISKS));
        }
    });
    let list_bytes = most_bytes.saturating_sub(before_bytes);
    assert!(list_bytes <= 2 << 20, "{list_bytes} bytes for lists");
}

#[test]
fn disks_that_come_and_go_leave_no_memory_behind() {
    const DISKS: usize = 200;
    const CLIENTS: usize = 8;
    // Its messages about each disk have no reader.
    let server = Server::start(&["--memory-limit", "64M", "--log", "warn"]);
    let name = |number: usize| format!("disk-{number}");
    let mut control = Control::open(&server);
    let most_bytes = most_bytes(&server, || {
        for round in 0..3 {
            for number in 0..DISKS {
                control.done(&json!({"command": "add", "name": name(number), "size_bytes": DISK_BYTES}));
            }
            thread::scope(|scope| {
                for first in 0..CLIENTS {
                    let server = &server;
                    scope.spawn(move || {
                        let mut numbers = Numbers((round * CLIENTS + first) as u64);
                        for number in (first..DISKS).step_by(CLIENTS) {
                            Client::connect(server, &name(number)).burst(&mut numbers, WRITE, 128 << 10, DISK_BYTES);
                        }
                    });
                }
            });
            for number in 0..DISKS {
                control.done(&json!({"command": "remove", "name": name(number)}));
            }
        }
    });
    assert!(most_bytes <= PROCESS_BYTES, "{most_bytes} bytes, {} more than allowed", most_bytes - PROCESS_BYTES);
    let left_bytes = server.anonymous_bytes();
    assert!(left_bytes <= 8 << 20, "{left_bytes} bytes without any disk");
}
