//! What happens at the memory limit.

use std::{fs::File, os::unix::fs::FileExt, sync::Arc, thread};

use pagefold_disk::{BlockDevice, Patient, RamDisk, Room, Waits};
use pagefold_executor::Export;
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use crate::mounted::{Mounted, noise, until};

const LIMIT_BYTES: u64 = 16 << 20;
const DISK_BYTES: u64 = 64 << 20;

fn punch(file: &File, offset: u64, len: u64) {
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).expect("zeros");
}

/// Writes until there is no room. Returns how much was written.
fn fill(write: impl Fn(u64, &[u8]) -> Option<i32>) -> u64 {
    for piece in 0..DISK_BYTES >> 16 {
        if let Some(errno) = write(piece << 16, &noise(1 << 16, piece)) {
            assert_eq!(errno, Errno::NOSPC.raw_os_error());
            return piece << 16;
        }
    }
    panic!("the limit is not kept");
}

#[test]
fn writes_fail_at_the_limit_until_there_is_room() {
    let test = "writes_fail_at_the_limit_until_there_is_room";
    let Some(mounted) = Mounted::with_limit(test, LIMIT_BYTES) else { return };
    mounted.disk("disk", DISK_BYTES);
    let file = mounted.open("disk");
    let full = fill(|at, data| file.write_all_at(data, at).err().and_then(|error| error.raw_os_error()));
    let mut back = vec![0; 1 << 16];
    file.read_exact_at(&mut back, 0).expect("data");
    assert!(back == noise(1 << 16, 0));
    punch(&file, 0, 4 << 20);
    file.write_all_at(&noise(1 << 16, 1), full).expect("room");
}

#[test]
fn writes_wait_for_room() {
    let Some(mut mounted) = Mounted::with_limit("writes_wait_for_room", LIMIT_BYTES) else { return };
    let waits = Arc::new(Waits::new(&Arc::new(Room::default())));
    let disk = Arc::new(RamDisk::new(&mounted.pool, DISK_BYTES).expect("a disk"));
    let patient = Arc::new(Patient::new(Arc::clone(&disk), Arc::clone(&waits)));
    mounted.exports.add(Export::new("disk", Arc::clone(&patient) as _)).expect("a new name");
    let file = mounted.open("disk");
    let full = fill(|at, data| disk.write(at, data).err().map(|error| error.errno()));
    let write = |at: u64| {
        let file = file.try_clone().expect("a descriptor");
        thread::spawn(move || file.write_all_at(&noise(1 << 20, at), at))
    };
    let waiting = [full + (1 << 20), full + (2 << 20)].map(write);
    until("writes wait", || waits.count() >= 2);
    let mut back = vec![0; 1 << 16];
    file.read_exact_at(&mut back, 0).expect("others go on");
    // Through another way: the kernel holds back discards of a file while it is written.
    patient.discard(0, 8 << 20).expect("zeros");
    for thread in waiting {
        thread.join().expect("a thread").expect("room");
    }
    assert_eq!(waits.count(), 0);

    // Those that are left waiting end with the disk, or with the mount.
    drop(patient);
    fill(|at, data| disk.write(at, data).err().map(|error| error.errno()));
    let waiting = write(48 << 20);
    until("a write waits", || waits.count() >= 1);
    mounted.exports.remove("disk").expect("it was there");
    let error = waiting.join().expect("a thread").expect_err("the disk is gone");
    assert_eq!(error.raw_os_error(), Some(Errno::SHUTDOWN.raw_os_error()));
    drop(file);

    let patient = Arc::new(Patient::new(Arc::clone(&disk), Arc::clone(&waits)));
    mounted.exports.add(Export::new("again", patient)).expect("a new name");
    let file = mounted.open("again");
    let waiting = thread::spawn(move || file.write_all_at(&noise(1 << 20, 7), 52 << 20));
    until("a write waits", || waits.count() >= 1);
    mounted.unmount();
    waiting.join().expect("a thread").expect_err("the server is gone");
}

/// More writes wait than there is memory for their data, so that they keep all threads of the mount.
#[test]
fn no_change_waits_once_it_is_refused() {
    let Some(mounted) = Mounted::with_limit("no_change_waits_once_it_is_refused", LIMIT_BYTES) else { return };
    let waits = Arc::new(Waits::new(&Arc::new(Room::default())));
    let disk = Arc::new(RamDisk::new(&mounted.pool, DISK_BYTES).expect("a disk"));
    let patient = Arc::new(Patient::new(Arc::clone(&disk), Arc::clone(&waits)));
    mounted.exports.add(Export::new("disk", Arc::clone(&patient) as _)).expect("a new name");
    mounted.disk("other", DISK_BYTES);
    let (file, other) = (mounted.open("disk"), mounted.open("other"));
    let full = fill(|at, data| disk.write(at, data).err().map(|error| error.errno()));
    let write = |at: u64| {
        let file = file.try_clone().expect("a descriptor");
        thread::spawn(move || file.write_all_at(&noise(1 << 20, at), at))
    };
    let writers: Vec<_> = (0..20).map(|number| write(full + (number << 20))).collect();
    until("writes wait", || waits.count() >= 10);
    let paths = mounted.paths();
    for no_file in ["missing", "disk/x", "..", ""] {
        assert!(!paths.refuse_waiting(&mounted.path(no_file)), "{no_file}");
    }
    assert!(paths.refuse_waiting(&mounted.path("disk")));
    let is_full = |error: std::io::Error| error.raw_os_error() == Some(Errno::NOSPC.raw_os_error());
    for writer in writers {
        assert!(is_full(writer.join().expect("a thread").expect_err("no room")));
    }
    assert_eq!(waits.count(), 0);

    // The open file continues as if its disk did not wait.
    let mut back = vec![0; 1 << 16];
    file.read_exact_at(&mut back, 0).expect("data");
    assert!(back == noise(1 << 16, 0));
    assert!(is_full(file.write_all_at(&noise(1 << 20, 3), full).expect_err("no room")));
    punch(&file, 0, 4 << 20);
    file.write_all_at(&noise(1 << 16, 4), full).expect("room");
    other.read_exact_at(&mut back, 0).expect("another file");

    // Where it is opened later, it waits again.
    fill(|at, data| disk.write(at, data).err().map(|error| error.errno()));
    let again = mounted.open("disk");
    let waiting = thread::spawn(move || again.write_all_at(&noise(1 << 20, 5), 60 << 20));
    until("a write waits", || waits.count() >= 1);
    patient.discard(0, 8 << 20).expect("zeros");
    waiting.join().expect("a thread").expect("room");
}
