//! The page cache of bases, and maps of files.

use std::{
    fs,
    os::unix::fs::FileExt,
    process::{Command, Stdio},
    sync::Arc,
};

use pagefold_disk::BlockDevice;
use pagefold_faulty::Faulty;
use pagefold_testing::programs;

use crate::mounted::{Mounted, noise, run};

const MIB: usize = 1 << 20;

/// Maps a file, and prints the checksum of its first bytes. Ends with its input.
const MAP: &str = "
import mmap, sys, zlib
file = open(sys.argv[1], 'rb')
map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
print(zlib.crc32(map[:int(sys.argv[2])]), flush=True)
sys.stdin.read()
print(zlib.crc32(map[:int(sys.argv[2])]), flush=True)
";

#[test]
fn processes_share_the_pages_of_a_base() {
    let test = "processes_share_the_pages_of_a_base";
    let Some(mounted) = Mounted::new(test) else { return };
    let Some([python]) = programs(test, ["python3"]) else { return };
    let base = Arc::new(Faulty::new(noise(16 * MIB, 1)).slow(4096));
    mounted.base("base", Arc::clone(&base) as _);
    let map = || {
        let mut command = Command::new(&python);
        command.arg("-c").arg(MAP).arg(mounted.path("base")).arg((4 * MIB).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts")
    };
    let maps: Vec<_> = (0..4).map(|_| map()).collect();
    let sums: Vec<_> = maps.into_iter().map(|map| map.wait_with_output().expect("an end").stdout).collect();
    assert!(sums.iter().all(|sum| *sum == sums[0] && sum.len() > 2), "{sums:?}");
    // Four that begin together may ask for the same pages, but none asks again.
    let read_bytes = base.units() as usize * 4096;
    assert!((4 * MIB..12 * MIB).contains(&read_bytes), "{read_bytes}");
    fs::read(mounted.path("base")).expect("the data");
    let reads = base.reads();
    assert!(fs::read(mounted.path("base")).expect("the data") == base.bytes());
    assert_eq!(map().wait_with_output().expect("an end").stdout, sums[0]);
    assert_eq!(base.reads(), reads, "pages are kept when all users have closed the file");
}

/// Writes through a shared map, and reads through a private one.
const WRITE: &str = "
import mmap, sys
file = open(sys.argv[1], 'r+b')
private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
private[0:7] = b'private'
assert private[4096:4100] == b'disk', private[4096:4100]
shared = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED)
assert shared[4096:4100] == b'disk'
shared[8192:8198] = b'shared'
shared.flush()
";

#[test]
fn files_of_disks_can_be_mapped() {
    let test = "files_of_disks_can_be_mapped";
    let Some(mounted) = Mounted::new(test) else { return };
    let Some([python]) = programs(test, ["python3"]) else { return };
    let disk = mounted.disk("disk", MIB as u64);
    let file = mounted.open("disk");
    file.read_exact_at(&mut [0; 100], 4096).expect("data");
    // Later maps show data that was written in other ways.
    disk.write(4096, b"disk").expect("room");
    run(Command::new(python).arg("-c").arg(WRITE).arg(mounted.path("disk")));
    let mut bytes = [0; 16];
    disk.read(0, &mut bytes).expect("data");
    assert_eq!(bytes, [0; 16]);
    disk.read(8192, &mut bytes).expect("data");
    assert_eq!(&bytes[..6], b"shared");
}
