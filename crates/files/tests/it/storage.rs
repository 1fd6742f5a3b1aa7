//! Bases whose storage is slow, fails or hangs.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::Arc,
    thread,
};

use pagefold_disk::RamDisk;
use pagefold_executor::Export;
use pagefold_faulty::Faulty;
use rustix::{
    fs::{OFlags, SeekFrom, seek},
    io::Errno,
};

use crate::mounted::{Mounted, noise, until};

const MIB: usize = 1 << 20;

/// Opens a file so that reads bypass the page cache.
fn open_direct(mounted: &Mounted, name: &str) -> File {
    let flags = OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(mounted.path(name)).expect("a file")
}

/// Ends a stall even if the test fails: otherwise, a hanging request would keep its process
/// forever.
struct Stall<'a>(&'a Faulty);

impl<'a> Stall<'a> {
    fn new(base: &'a Faulty) -> Self {
        base.set_stall(true);
        Self(base)
    }
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        self.0.set_stall(false);
    }
}

#[test]
fn failures_are_errors_and_never_other_bytes() {
    let Some(mounted) = Mounted::new("failures_are_errors_and_never_other_bytes") else { return };
    let mut bytes = noise(4 * MIB, 1);
    bytes[MIB..2 * MIB].fill(0);
    let base = Arc::new(Faulty::new(bytes.clone()).slow(64 << 10));
    base.set_short(true);
    base.fail_each(7);
    mounted.base("base", Arc::clone(&base) as _);
    let files = [File::open(mounted.path("base")).expect("a file"), open_direct(&mounted, "base")];
    let mut failures = 0;
    for (at, len) in (0..200).map(|step| (step * 20_011 % (3 * MIB), 512 << (step % 10))) {
        for file in &files {
            let mut data = vec![1; len];
            match file.read_exact_at(&mut data, at as u64) {
                Ok(()) => assert!(data == bytes[at..][..len], "{len} at {at}"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
                    failures += 1;
                }
            }
        }
    }
    assert!(failures > 0);
    base.fail_each(0);
    for file in &files {
        let mut data = vec![1; 4 * MIB];
        file.read_exact_at(&mut data, 0).expect("data");
        assert!(data == bytes);
        assert_eq!(seek(file, SeekFrom::Hole(5000)), Ok(MIB as u64));
        assert_eq!(seek(file, SeekFrom::Data(MIB as u64 + 5000)), Ok(2 * MIB as u64));
        assert_eq!(seek(file, SeekFrom::Hole(3 * MIB as u64)), Ok(4 * MIB as u64));
        assert_eq!(seek(file, SeekFrom::Hole(4 * MIB as u64)), Err(Errno::NXIO));
    }
}

/// More requests wait for storage that hangs than the file may have threads, and than the mount has.
#[test]
fn a_base_that_hangs_holds_back_only_its_own_file() {
    const READERS: usize = 40;
    let Some(mounted) = Mounted::new("a_base_that_hangs_holds_back_only_its_own_file") else { return };
    let bytes = noise(64 * MIB, 1);
    let base = Arc::new(Faulty::new(bytes.clone()).slow(4096));
    mounted.base("base", Arc::clone(&base) as _);
    let other = Arc::new(Faulty::new(bytes.clone()).slow(4096));
    mounted.base("other", other);
    let over = RamDisk::over(&mounted.pool, Arc::clone(&base) as _).expect("a fork");
    mounted.exports.add(Export::new("fork", Arc::new(over))).expect("a new name");
    mounted.disk("disk", MIB as u64);
    let (file, fork) = (open_direct(&mounted, "base"), mounted.open("fork"));
    thread::scope(|scope| {
        let stall = Stall::new(&base);
        let (file, fork, bytes) = (&file, &fork, &bytes);
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                scope.spawn(move || {
                    let mut data = vec![0; MIB];
                    file.read_exact_at(&mut data, (reader * MIB) as u64).expect("data");
                    assert!(data == bytes[reader * MIB..][..MIB]);
                    fork.write_all_at(b"part of a page", (reader * MIB) as u64 + 5).expect("room");
                })
            })
            .collect();
        until("requests hang", || base.stalled() >= 8);
        // While they hang, others do not.
        for _ in 0..20 {
            let disk = mounted.open("disk");
            disk.write_all_at(&[3; 70_000], 1000).expect("room");
            disk.read_exact_at(&mut [0; 70_000], 1000).expect("data");
            let mut data = vec![0; 2 * MIB];
            open_direct(&mounted, "other").read_exact_at(&mut data, 0).expect("data");
            assert!(data == bytes[..2 * MIB]);
            assert_eq!(mounted.names(), ["base", "disk", "fork", "other"]);
        }
        drop(stall);
        readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
    });
    let mut data = [0; 32];
    fork.read_exact_at(&mut data, MIB as u64).expect("data");
    assert!(
        data[..5] == bytes[MIB..][..5] && &data[5..19] == b"part of a page" && data[19..] == bytes[MIB + 19..][..13]
    );

    // A base that is removed while it hangs.
    let stall = Stall::new(&base);
    let hanging = thread::spawn(move || file.read_at(&mut [0; 4096], 60 << 20));
    until("a request hangs", || base.stalled() > 0);
    mounted.exports.remove("base").expect("it was there");
    assert_eq!(mounted.names(), ["disk", "fork", "other"]);
    drop(stall);
    hanging.join().expect("a thread").expect("it had begun");
}
