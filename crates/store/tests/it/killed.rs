//! Pools of processes that were killed. `forks.rs` has random operations before and after.

use std::{
    env,
    fs::File,
    io::Read,
    os::{fd::AsRawFd, unix::fs::FileExt},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::by_name;
use pagefold_store::{Disk, ImportedPool, KeptDisk, PAGE_SIZE, Page, Pool, PoolConfig, Salvage, SalvageError};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};

use crate::{
    handover::{compared, varied},
    pages::{filled, mixed},
};

/// Returns an empty file in memory, which children of this process inherit.
fn memory_file() -> File {
    File::from(memfd_create("pool", MemfdFlags::empty()).expect("a file"))
}

/// Lets the pool lie in a file.
pub(crate) fn kept(config: &PoolConfig) -> PoolConfig {
    config.clone().kept_in(memory_file())
}

fn described(disks: &[&Disk]) -> Vec<KeptDisk> {
    disks.iter().map(|disk| KeptDisk::of(disk, b"note".to_vec()).expect("a kept pool")).collect()
}

/// Returns the pool that another process would make of this one's file. The pool's own threads may
/// still move and free objects, so the file is read until it yields the same twice.
pub(crate) fn salvaged(pool: &Pool, disks: &[&Disk], config: PoolConfig) -> ImportedPool {
    let found = || {
        let file = pool.file().expect("a file").try_clone().expect("a copy");
        let mut stream = Vec::new();
        Salvage::open(file)?.write(&described(disks), &mut stream).map(|_| stream)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut before = found();
    let stream = loop {
        let again = found();
        match (&before, &again) {
            (Ok(before), Ok(stream)) if before == stream => break stream.clone(),
            _ => assert!(Instant::now() < deadline, "{again:?}"),
        }
        thread::sleep(Duration::from_millis(1));
        before = again;
    };
    compared(&stream, 0, pool, disks, config, false)
}

fn config() -> PoolConfig {
    PoolConfig::default().codec(by_name("lz4").expect("a codec")).dedupe(true)
}

#[test]
fn kept_disks_are_found() {
    let (pool, disks) = varied(kept(&config()));
    let all: Vec<_> = disks.iter().collect();
    let imported = salvaged(&pool, &all, kept(&config()));
    let (mut page, mut other) = ([0; PAGE_SIZE], [1; PAGE_SIZE]);
    for (before, after) in disks.iter().zip(&imported.disks) {
        for slot in (0..600).chain([250_000]).filter(|&slot| slot < before.slots()) {
            let held = before.read(slot, &mut page).expect("a readable page");
            assert_eq!(after.disk.read(slot, &mut other), Ok(held));
            assert!(page == other, "slot {slot}");
        }
    }
    // Once more, from its own file.
    let again: Vec<_> = imported.disks.iter().map(|imported| &imported.disk).collect();
    salvaged(&imported.pool, &again, config());
}

#[test]
fn notes_and_disks_that_are_gone() {
    let pool = Pool::new(kept(&config())).expect("a pool");
    let salvage = || Salvage::open(pool.file().expect("a file").try_clone().expect("a copy")).expect("a pool");
    assert_eq!(salvage().note().expect("a file"), None);
    for note in [&b"first"[..], b"", b"longer than before", b"short"] {
        pool.keep_note(note).expect("memory");
        assert_eq!(salvage().note().expect("a file").as_deref(), Some(note));
    }
    let (first, second) = (pool.disk(9).expect("a disk"), pool.disk(9).expect("a disk"));
    let kept = described(&[&first, &second]);
    assert!(salvage().has(&kept[0]).expect("a file") && kept[0].key != kept[1].key);
    first.write(3, &mixed(1, 0xff)).expect("no limit");
    drop(first);
    assert!(!salvage().has(&kept[0]).expect("a file") && salvage().has(&kept[1]).expect("a file"));
    // Its row may be another disk's.
    let _third = pool.disk(9).expect("a disk");
    assert!(!salvage().has(&kept[0]).expect("a file"));
    let mut stream = Vec::new();
    salvage().write(&kept, &mut stream).expect("a stream");
    let imported = Pool::import(config(), &mut &stream[..]).expect("a pool");
    assert_eq!(imported.disks[0].disk.read(3, &mut [0; PAGE_SIZE]), Ok(false));
    assert!(Pool::new(config()).expect("a pool").file().is_none());
}

/// A note that was being written when the process was killed leaves the one before, and one that cannot be
/// written does not take its place.
#[test]
fn one_of_two_notes_is_intact_or_both_are_refused() {
    let pool = Pool::new(kept(&config())).expect("a pool");
    let file = pool.file().expect("a file");
    let note = || Salvage::open(file.try_clone().expect("a copy")).expect("a pool").note();
    pool.keep_note(&vec![1; 300_000]).expect("memory");
    pool.keep_note(&vec![2; 300_000]).expect("memory");
    let at = |which: u64| word(file, 40) + which * (256 << 20);
    let damage = |which: u64| {
        let byte = word(file, at(which) + 200_000) as u8;
        file.write_all_at(&[!byte], at(which) + 200_000).expect("memory");
    };
    damage(0);
    assert_eq!(note().expect("a file"), Some(vec![1; 300_000]));
    damage(1);
    assert!(matches!(note(), Err(SalvageError::Invalid { .. })));
    damage(0);
    assert_eq!(note().expect("a file"), Some(vec![2; 300_000]));
}

/// A size in a note may be smaller than that of the tree: a larger disk has zeros there.
#[test]
fn content_beyond_the_end_is_cut() {
    let pool = Pool::new(kept(&config())).expect("a pool");
    let disk = pool.disk(300_000).expect("a disk");
    for slot in [0, 99, 100, 127, 128, 5000, 270_000] {
        disk.write(slot, &mixed(slot, 0xff)).expect("no limit");
    }
    let fork = disk.fork().expect("no limit");
    let salvage = Salvage::open(pool.file().expect("a file").try_clone().expect("a copy")).expect("a pool");
    // Six leaves in five pages of memory, and nodes above them.
    assert!((6 * 24..100 << 10).contains(&salvage.work_bytes().expect("a file")));
    for slots in [0, 1, 100, 128, 4096, 5000, 262_144, 270_000, 270_001] {
        let mut kept = described(&[&disk, &fork]);
        (kept[0].slots, kept[0].is_over) = (slots, false);
        let mut stream = Vec::new();
        let beyond = salvage.write(&kept, &mut stream).expect("a stream");
        assert_eq!(beyond, if slots > 270_000 { vec![] } else { vec![0] });
        let imported = Pool::import(config(), &mut &stream[..]).expect("a pool");
        let [cut, whole] = [0, 1].map(|number: usize| &imported.disks[number].disk);
        beyond.iter().for_each(|&number| imported.disks[number].disk.cut().expect("room"));
        imported.pool.check().expect("consistent");
        cut.resize(300_000).expect("a size");
        for slot in [0, 99, 100, 127, 128, 5000, 270_000] {
            let (mut page, mut other) = ([1; PAGE_SIZE], [1; PAGE_SIZE]);
            cut.read(slot, &mut page).expect("a page");
            whole.read(slot, &mut other).expect("a page");
            assert!(page == if slot < slots { *mixed(slot, 0xff) } else { [0; PAGE_SIZE] }, "{slot} of {slots}");
            assert!(other == *mixed(slot, 0xff));
        }
    }
}

/// Whatever place, count or size a head has, it is refused if that does not fit into the file.
#[test]
fn heads_that_lead_beyond_the_file_are_refused() {
    let pool = Pool::new(kept(&config())).expect("a pool");
    let (file, _) = copied(pool.file().expect("a file"));
    for at in (32..32 + 14 * 8).step_by(8) {
        let before = word(&file, at);
        for wrong in [u64::MAX, 1 << 63, file.metadata().expect("a file").len()] {
            file.write_all_at(&wrong.to_le_bytes(), at).expect("memory");
            let opened = Salvage::open(file.try_clone().expect("a copy"));
            assert!(matches!(opened, Err(SalvageError::Invalid { .. })), "{wrong} at {at}");
        }
        file.write_all_at(&before.to_le_bytes(), at).expect("memory");
    }
    Salvage::open(file).expect("a pool");
}

/// Copies the parts of a sparse file that have data, and returns where these are.
fn copied(from: &File) -> (File, Vec<(u64, u64)>) {
    let (to, mut parts, mut at) = (memory_file(), Vec::new(), 0);
    to.set_len(from.metadata().expect("a file").len()).expect("a length");
    while let Ok(start) = seek(from, SeekFrom::Data(at)) {
        let end = seek(from, SeekFrom::Hole(start)).expect("an end");
        let mut bytes = vec![0; (end - start) as usize];
        from.read_exact_at(&mut bytes, start).expect("data");
        to.write_all_at(&bytes, start).expect("memory");
        parts.push((start, end));
        at = end;
    }
    (to, parts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Any file is either refused or yields a sound pool.
    #[test]
    fn damaged_files_are_refused_or_sound(changes in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u8>()), 1..20)) {
        let (pool, disks) = varied(kept(&config()));
        let all: Vec<_> = disks.iter().collect();
        let (file, parts) = copied(pool.file().expect("a file"));
        for (part, at, value) in changes {
            let (start, end) = parts[part as usize % parts.len()];
            // Most words are near the start of their part.
            let at = start + at % (end - start).min(if value % 2 == 0 { 600 } else { u64::MAX });
            file.write_all_at(&[value], at).expect("memory");
        }
        let mut stream = Vec::new();
        let salvage = Salvage::open(file);
        if let Ok(_) = salvage.and_then(|salvage| salvage.write(&described(&all), &mut stream))
            && let Ok(imported) = Pool::import(config(), &mut &stream[..])
        {
            imported.pool.check().map_err(TestCaseError::fail)?;
            for disk in &imported.disks {
                // An object may not be what it was.
                for slot in (0..600).filter(|&slot| slot < disk.disk.slots()) {
                    let _ = disk.disk.read(slot, &mut [0; PAGE_SIZE]);
                }
            }
        }
    }
}

/// Threads, each with slots of its own, and disks: the first and its forks.
const THREADS: u64 = 3;
const SLOTS: u64 = 500;
const DISKS: u64 = 4;

/// The offsets in a file of the version that a slot is about to get and of the one that it has.
fn place(disk: u64, slot: u64) -> u64 {
    (disk * SLOTS + slot) * 16
}

fn word(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).expect("a word");
    u64::from_le_bytes(bytes)
}

/// Returns the page of a version. Pages are of every kind and often equal.
fn page_of(version: u64, slot: u64) -> Box<Page> {
    let mut page = match version % 5 {
        0 => return filled(version << 16 | slot),
        1 => mixed(version, 0xff),
        2 => mixed(version % 7, 0x0f),
        3 => mixed(version, 0x1f),
        _ => mixed(version, 0x01),
    };
    if version % 5 != 2 {
        page[..8].copy_from_slice(&(version << 16 | slot).to_le_bytes());
    }
    page
}

/// The process to be killed: it writes, discards and forks.
#[test]
fn a_process_that_is_killed() {
    // Otherwise this is not that process.
    let Ok(files) = env::var("PAGEFOLD_KILLED") else { return };
    let (pool, acks) = files.split_once(' ').expect("two numbers");
    let inherited = |number: &str| {
        File::options().read(true).write(true).open(format!("/proc/self/fd/{number}")).expect("an open file")
    };
    let (file, acks) = (inherited(pool), inherited(acks));
    let pool = Pool::new(config().memory_limit(16 << 20).kept_in(file)).expect("a pool");
    let first = pool.disk(SLOTS).expect("a disk");
    let mut disks = vec![first];
    for _ in 1..DISKS {
        let fork = disks[0].fork().expect("no limit");
        disks.push(fork);
    }
    let words = |disk: &KeptDisk| [disk.key, disk.slots].map(u64::to_le_bytes).concat();
    let note: Vec<u8> = described(&disks.iter().collect::<Vec<_>>()).iter().flat_map(words).collect();
    pool.keep_note(&note).expect("memory");
    println!("begun");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (disks, acks) = (&disks, &acks);
            scope.spawn(move || {
                let mut state = thread + 1;
                for version in 1.. {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let slot = (state >> 33) % (SLOTS / THREADS) * THREADS + thread;
                    let disk = (state >> 20) % DISKS;
                    let at = place(disk, slot);
                    acks.write_all_at(&u64::to_le_bytes(version), at).expect("memory");
                    disks[disk as usize].write(slot, &page_of(version, slot)).expect("room");
                    acks.write_all_at(&u64::to_le_bytes(version), at + 8).expect("memory");
                    if version % 64 == 0 {
                        // The parts that disks share change, and so do their layers.
                        drop(disks[disk as usize].fork().expect("room"));
                    }
                    if version % 1024 == 0 {
                        disks[0].stats();
                        let _ = disks[disk as usize].fork().and_then(|fork| fork.discard(0..SLOTS));
                    }
                }
            });
        }
    });
}

/// Starts that process.
fn start(pool: &File, acks: &File) -> Child {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "killed::a_process_that_is_killed", "--nocapture", "--test-threads=1"]);
    command.env("PAGEFOLD_KILLED", format!("{} {}", pool.as_raw_fd(), acks.as_raw_fd()));
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a process")
}

/// After a kill at any moment, every page is the last one written, or the one being written.
#[test]
fn every_page_outlives_its_process() {
    for round in 0..12_u64 {
        let (file, acks) = (memory_file(), memory_file());
        acks.set_len(place(DISKS, 0)).expect("a length");
        let mut process = start(&file, &acks);
        let (mut said, mut out) = (Vec::new(), process.stdout.take().expect("a pipe"));
        while !said.ends_with(b"begun\n") {
            let mut byte = [0];
            assert!(out.read(&mut byte).expect("a pipe") == 1, "it has ended: {}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        thread::sleep(Duration::from_micros(20_000 + round * 17_123));
        process.kill().expect("a process");
        process.wait().expect("an end");

        let salvage = Salvage::open(file).expect("a pool");
        let note = salvage.note().expect("a file").expect("a note");
        let words: Vec<u64> = note.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let disk = |words: &[u64]| KeptDisk::new(words[0], words[1], u64::MAX, true, Vec::new());
        let disks: Vec<_> = words.chunks(2).map(disk).collect();
        assert!(disks.iter().all(|disk| salvage.has(disk).expect("a file")));
        let mut stream = Vec::new();
        salvage.write(&disks, &mut stream).expect("a sound pool");
        let imported = Pool::import(config(), &mut &stream[..]).expect("a sound pool");
        imported.pool.check().expect("consistent");
        let (mut written, mut page) = (0, [0; PAGE_SIZE]);
        for (number, disk) in (0..).zip(&imported.disks) {
            for slot in 0..SLOTS {
                let [begun, done] = [0, 8].map(|at| word(&acks, place(number, slot) + at));
                disk.disk.read(slot, &mut page).expect("a readable page");
                let is_one = [begun, done].iter().any(|&version| match version {
                    0 => page == [0; PAGE_SIZE],
                    _ => page == *page_of(version, slot),
                });
                assert!(is_one, "round {round}: disk {number}, slot {slot} is neither version {done} nor {begun}");
                written += u64::from(done > 0);
            }
        }
        assert!(written > 0, "nothing was written");
    }
}
