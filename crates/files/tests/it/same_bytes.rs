//! Files hold the content of their disks, whichever way it was written.

use std::{fs::File, io::ErrorKind, os::unix::fs::FileExt, thread};

use pagefold_disk::{BlockDevice, RamDisk, Zeroes};
use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestRunner},
};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::mounted::{Mounted, noise};

/// Not a multiple of the page size.
const SIZE_BYTES: usize = (300 << 10) + 512;

#[derive(Clone, Copy, Debug)]
enum Way {
    File,
    Device,
}

#[derive(Clone, Debug)]
enum Operation {
    Write(Way, usize, usize, u64),
    Read(Way, usize, usize),
    Punch(Way, usize, usize),
    Zero(Way, usize, usize),
    /// Writes next to each other, in both ways at the same time.
    Both(usize, usize, usize),
    SeekData(usize),
    SeekHole(usize),
    Sync,
}

fn operation() -> impl Strategy<Value = Operation> {
    let way = prop_oneof![Just(Way::File), Just(Way::Device)];
    // Some bytes; some pages; any length, up to several requests.
    let len = prop_oneof![1_usize..64, (1_usize..4).prop_map(|pages| pages << 12), 1_usize..(160 << 10)];
    let at = prop_oneof![0..SIZE_BYTES, (0..SIZE_BYTES >> 12).prop_map(|page| page << 12)];
    (0_u8..9, way, at, len, any::<u64>()).prop_map(|(kind, way, at, len, seed)| match kind {
        0 | 1 => Operation::Write(way, at, len, seed),
        2 | 3 => Operation::Read(way, at, len),
        4 => Operation::Punch(way, at, len),
        5 => Operation::Zero(way, at, len),
        6 => Operation::Both(at, len, len / 3),
        7 if seed % 5 == 0 => Operation::Sync,
        7 => Operation::SeekData(at),
        _ => Operation::SeekHole(at),
    })
}

fn found(result: Result<u64, Errno>) -> Option<usize> {
    match result {
        Ok(at) => Some(at as usize),
        Err(Errno::NXIO) => None,
        Err(error) => panic!("{error}"),
    }
}

fn check(operations: &[Operation], file: &File, disk: &RamDisk) -> Result<(), TestCaseError> {
    let mut model = vec![0_u8; SIZE_BYTES];
    let clip = |at: usize, len: usize| len.min(SIZE_BYTES - at);
    for operation in operations {
        match *operation {
            Operation::Write(way, at, len, seed) => {
                let data = noise(clip(at, len), seed);
                match way {
                    Way::File => file.write_all_at(&data, at as u64).expect("room"),
                    Way::Device => disk.write(at as u64, &data).expect("room"),
                }
                model[at..][..data.len()].copy_from_slice(&data);
            }
            Operation::Read(way, at, len) => {
                let mut data = vec![1; clip(at, len)];
                match way {
                    Way::File => file.read_exact_at(&mut data, at as u64).expect("data"),
                    Way::Device => disk.read(at as u64, &mut data).expect("data"),
                }
                prop_assert!(data == model[at..][..data.len()], "{operation:?}");
            }
            Operation::Punch(way, at, len) | Operation::Zero(way, at, len) => {
                let punches = matches!(operation, Operation::Punch(..));
                let mode = if punches { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
                let (offset, clipped) = (at as u64, clip(at, len));
                match way {
                    // Beyond the end, there is nothing to do.
                    Way::File => fallocate(file, mode | FallocateFlags::KEEP_SIZE, offset, len as u64).expect("zeros"),
                    Way::Device if punches => disk.discard(offset, clipped as u64).expect("zeros"),
                    Way::Device => disk.write_zeroes(offset, clipped as u64, Zeroes::MayUnmap).expect("zeros"),
                }
                model[at..][..clipped].fill(0);
            }
            Operation::Both(at, len, split) => {
                let data = noise(clip(at, len), at as u64);
                let (left, right) = data.split_at(split.min(data.len()));
                thread::scope(|scope| {
                    scope.spawn(|| file.write_all_at(left, at as u64).expect("room"));
                    // A device takes no empty request.
                    if !right.is_empty() {
                        disk.write((at + left.len()) as u64, right).expect("room");
                    }
                });
                model[at..][..data.len()].copy_from_slice(&data);
            }
            Operation::SeekData(at) => {
                let data = found(seek(file, SeekFrom::Data(at as u64)));
                let end = data.unwrap_or(SIZE_BYTES);
                prop_assert!((at..SIZE_BYTES).contains(&at) && end >= at);
                prop_assert!(model[at..end].iter().all(|byte| *byte == 0), "data before {end}");
            }
            Operation::SeekHole(at) => {
                let hole = found(seek(file, SeekFrom::Hole(at as u64))).expect("the end is a hole");
                prop_assert!(hole >= at && hole <= SIZE_BYTES);
                let page_end = SIZE_BYTES.min((hole / 4096 + 1) * 4096);
                prop_assert!(model[hole..page_end].iter().all(|byte| *byte == 0), "data at {hole}");
            }
            Operation::Sync => file.sync_all().expect("a flush"),
        }
    }
    let mut all = vec![0; SIZE_BYTES];
    file.read_exact_at(&mut all, 0).expect("data");
    prop_assert!(all == model);
    let end = file.read_at(&mut [0; 10], SIZE_BYTES as u64);
    prop_assert_eq!(end.expect("the end"), 0);
    prop_assert_eq!(file.metadata().expect("metadata").len(), SIZE_BYTES as u64);
    Ok(())
}

/// After any operations through a disk's file and its device, both show the same bytes.
#[test]
fn a_file_is_its_disk() {
    let Some(mounted) = Mounted::new("a_file_is_its_disk") else { return };
    let mut runner = TestRunner::new(ProptestConfig { cases: 48, ..ProptestConfig::default() });
    let result = runner.run(&proptest::collection::vec(operation(), 1..60), |operations| {
        let disk = mounted.disk("disk", SIZE_BYTES as u64);
        let file = mounted.open("disk");
        let checked = check(&operations, &file, &disk);
        mounted.exports.remove("disk").expect("it was there");
        let gone = file.read_at(&mut [0; 10], 0).expect_err("it was removed");
        prop_assert_eq!(gone.raw_os_error(), Some(Errno::SHUTDOWN.raw_os_error()));
        prop_assert_eq!(File::open(mounted.path("disk")).map(drop).expect_err("removed").kind(), ErrorKind::NotFound);
        checked
    });
    result.unwrap();
}

/// Several threads write and read large and small pieces at the same time.
#[test]
fn threads_do_not_disturb_each_other() {
    const PART_BYTES: usize = (3 << 20) + 512;
    let Some(mounted) = Mounted::new("threads_do_not_disturb_each_other") else { return };
    let disk = mounted.disk("disk", 4 * PART_BYTES as u64);
    let file = mounted.open("disk");
    thread::scope(|scope| {
        for part in 0..4 {
            let (file, disk) = (&file, &disk);
            scope.spawn(move || {
                let data = noise(PART_BYTES, part as u64);
                let start = part * PART_BYTES;
                let mut at = 0;
                for len in [1, 4096, 511, 1 << 20, 70_000].into_iter().cycle() {
                    let piece = &data[at..PART_BYTES.min(at + len)];
                    if part % 2 == 0 {
                        file.write_all_at(piece, (start + at) as u64).expect("room");
                    } else {
                        disk.write((start + at) as u64, piece).expect("room");
                    }
                    at += piece.len();
                    if at == PART_BYTES {
                        break;
                    }
                }
                let mut back = vec![0; PART_BYTES];
                file.read_exact_at(&mut back, start as u64).expect("data");
                assert!(back == data, "part {part}");
            });
        }
    });
}
