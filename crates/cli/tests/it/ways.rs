//! One disk in several ways at the same time: NBD, TLS, a file and vhost-user.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use pagefold_serve::Client;
use pagefold_testing::programs;
use pagefold_vhost_user::client::{Client as Frontend, Layout, Operation, Options};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{files::Place, server::run, tls::Secure};

const SIZE: usize = 6 << 20;

/// Each way changes every third stripe. Stripes consist of sectors, and a page contains parts of
/// two of them.
const STRIPE: usize = 11 * 512;
const WRITERS: usize = 3;

/// Changes by each writer.
const TURNS: usize = 500;

const SECTOR: usize = 512;

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// A way that writes.
trait Way: Send {
    /// It can change only multiples of this.
    fn unit(&self) -> usize;
    fn write(&mut self, at: usize, bytes: &[u8]);
    fn discard(&mut self, at: usize, len: usize);
    fn zero(&mut self, at: usize, len: usize);
    fn read(&mut self, at: usize, len: usize) -> Vec<u8>;
}

impl Way for File {
    fn unit(&self) -> usize {
        1
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.write_all_at(bytes, at as u64).expect("a write");
    }

    fn discard(&mut self, at: usize, len: usize) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&*self, flags, at as u64, len as u64).expect("a hole");
    }

    fn zero(&mut self, at: usize, len: usize) {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        fallocate(&*self, flags, at as u64, len as u64).expect("zeros");
    }

    fn read(&mut self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![1; len];
        self.read_exact_at(&mut bytes, at as u64).expect("a read");
        bytes
    }
}

impl Way for Frontend {
    fn unit(&self) -> usize {
        SECTOR
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.queues[0].write(at as u64, bytes).expect("a write");
    }

    fn discard(&mut self, at: usize, len: usize) {
        let range = [((at / SECTOR) as u64, (len / SECTOR) as u32, 0)];
        self.queues[0].run(Operation::Discard(&range), Layout::default()).expect("a hole");
    }

    fn zero(&mut self, at: usize, len: usize) {
        let range = [((at / SECTOR) as u64, (len / SECTOR) as u32, 0)];
        self.queues[0].run(Operation::WriteZeroes(&range), Layout::default()).expect("zeros");
    }

    fn read(&mut self, at: usize, len: usize) -> Vec<u8> {
        self.queues[0].read(at as u64, len as u64).expect("a read")
    }
}

/// Changes a way's stripes of `model`. After each change the stripe is read in two other ways.
fn change(number: usize, way: &mut dyn Way, nbd: &mut Client, file: &File, model: &mut [u8]) {
    let mut numbers = Numbers(number as u64 + 1);
    let stripes = model.len() / STRIPE / WRITERS;
    for turn in 0..TURNS {
        let start = (numbers.below(stripes) * WRITERS + number) * STRIPE;
        let units = STRIPE / way.unit();
        let first = numbers.below(units);
        let (at, len) = (start + first * way.unit(), (1 + numbers.below(units - first)) * way.unit());
        match numbers.below(8) {
            0 => {
                way.discard(at, len);
                model[at..at + len].fill(0);
            }
            1 => {
                way.zero(at, len);
                model[at..at + len].fill(0);
            }
            _ => {
                let seed = numbers.below(250);
                let bytes: Vec<u8> = (0..len).map(|byte| (byte * byte / 3 + byte / 7 + seed) as u8).collect();
                way.write(at, &bytes);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        let wanted = &model[start..start + STRIPE];
        let mut seen = [0; STRIPE];
        nbd.read(start as u64, &mut seen).expect("a read");
        assert!(seen == *wanted, "NBD: {len} bytes at {at} in turn {turn} of way {number}");
        file.read_exact_at(&mut seen, start as u64).expect("a read");
        assert!(seen == *wanted, "file: {len} bytes at {at} in turn {turn} of way {number}");
        assert!(way.read(start, STRIPE) == *wanted, "its own: {len} bytes at {at} in turn {turn} of way {number}");
    }
}

fn open(path: &Path, write: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(write).open(path)
}

pub(crate) fn wait_for(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "{} does not appear", path.display());
        thread::sleep(Duration::from_millis(2));
    }
}

/// The writers change a fork of a base. Its snapshots are equal in all ways.
#[test]
fn all_ways_show_the_same_disk() {
    let test = "all_ways_show_the_same_disk";
    let Some(place) = Place::new(test) else { return };
    let Some([nbdcopy]) = programs(test, ["nbdcopy"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let sockets = folder.path().join("sockets");
    let base: Vec<u8> = (0..SIZE).map(|byte| if byte >> 16 & 1 == 0 { 0 } else { (byte / 5) as u8 }).collect();
    std::fs::write(folder.path().join("base.raw"), &base).expect("a file");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let secure = Secure::start(&["--files", place.text(), "--vhost-user", &path("sockets"), &path("base.raw")]);
    let server = &secure.server;
    run(&mut server.ask(&["fork", "base", "disk"]));
    let (file, socket) = (place.path("disk"), sockets.join("disk.sock"));
    wait_for(&file);
    wait_for(&socket);
    let nbd = |name: &str| Client::unix(&server.socket(), name, Duration::from_secs(60)).expect("a disk");
    let ways: [Box<dyn Way>; WRITERS] = [
        Box::new(open(&file, true).expect("a file")),
        Box::new(Frontend::connect(&socket, Options::default()).expect("a socket")),
        Box::new(open(&file, true).expect("a file")),
    ];
    let ended = AtomicBool::new(false);
    let models = thread::scope(|scope| {
        let writers: Vec<_> = (ways.into_iter().enumerate())
            .map(|(number, mut way)| {
                let (mut client, reader, mut model) = (nbd("disk"), open(&file, false).expect("a file"), base.clone());
                scope.spawn(move || {
                    change(number, &mut *way, &mut client, &reader, &mut model);
                    model
                })
            })
            .collect();
        let snapshots = scope.spawn(|| {
            let mut count = 0;
            while count < 2 || !ended.load(Relaxed) {
                run(&mut server.ask(&["snapshot", "disk", "now"]));
                let (mut seen, mut wanted) = (vec![0; SIZE], vec![0; SIZE]);
                nbd("disk@now").read(0, &mut wanted).expect("a snapshot");
                wait_for(&place.path("disk@now"));
                let snapshot = open(&place.path("disk@now"), false).expect("a file");
                snapshot.read_exact_at(&mut seen, 0).expect("a read");
                assert!(seen == wanted, "snapshot {count}");
                drop(snapshot);
                run(&mut server.ask(&["drop", "disk@now", "--force"]));
                count += 1;
            }
        });
        let models: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        ended.store(true, Relaxed);
        snapshots.join().expect("snapshots");
        models
    });
    let mut model = base;
    for (number, part) in model.chunks_mut(STRIPE).enumerate() {
        let start = number * STRIPE;
        part.copy_from_slice(&models[number % WRITERS][start..start + part.len()]);
    }
    let mut seen = vec![0; SIZE];
    nbd("disk").read(0, &mut seen).expect("a read");
    assert!(seen == model, "NBD");
    assert!(open(&file, false).expect("a file").read(0, SIZE) == model, "file");
    let mut frontend = Frontend::connect(&socket, Options::default()).expect("a socket");
    let parts = (0..SIZE).step_by(32 << 10).flat_map(|at| frontend.read(at, 32 << 10));
    assert!(parts.eq(model.iter().copied()), "vhost-user");
    let copy = folder.path().join("copy");
    run(Command::new(nbdcopy).arg(secure.uri_with("disk", &secure.client())).arg(&copy));
    assert!(std::fs::read(copy).expect("a copy") == model, "TLS");
}
