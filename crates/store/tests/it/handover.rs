//! Pools that are handed over to another pool through a stream of bytes. `forks.rs` has random
//! operations before and after.

use std::{
    io,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::by_name;
use pagefold_store::{
    ChangedRun, Disk, ExportError, ExportedDisk, ImportError, ImportedPool, PAGE_SIZE, Page, Pool, PoolConfig, Precopy,
    Stats,
};
use proptest::prelude::*;

use crate::pages::mixed;

/// Bytes of a block's header, and of what precedes the first block.
const HEADER_BYTES: usize = 12;
const MAGIC_BYTES: usize = 8;

fn exported(pool: &Pool, disks: &[&Disk]) -> Vec<u8> {
    let mut stream = Vec::new();
    let disks: Vec<_> = disks.iter().map(|disk| ExportedDisk { disk, note: b"note" }).collect();
    pool.export(&disks, &mut stream).expect("a stream");
    stream
}

/// Returns the changed ranges of a disk.
fn changes(disk: &Disk) -> Vec<ChangedRun> {
    let mut all = Vec::new();
    let mut slot = 0;
    while slot < disk.slots() {
        let run = disk.changed(slot, u64::MAX).expect("a slot");
        slot += run.slots;
        all.push(run);
    }
    all
}

/// Returns a pool made from a stream of this one, and compares their figures.
pub(crate) fn handed_over(pool: &Pool, disks: &[&Disk], config: PoolConfig) -> ImportedPool {
    // Measured before, since the compactor may briefly take more while the stream is written.
    let max_bytes = pool.stats().mem_used_max;
    let stream = exported(pool, disks);
    compared(&stream, max_bytes, pool, disks, config, false)
}

/// Does the same with the rest of a stream after its rounds. With `dedupe`, objects that became
/// shared after a round are there twice.
pub(crate) fn handed_over_after(
    (mut precopy, mut stream): (Precopy, Vec<u8>),
    pool: &Pool,
    disks: &[&Disk],
    config: PoolConfig,
    dedupe: bool,
) -> ImportedPool {
    let max_bytes = pool.stats().mem_used_max;
    let exported: Vec<_> = disks.iter().map(|disk| ExportedDisk { disk, note: b"note" }).collect();
    let rounds_bytes = stream.len() as u64;
    let rest_bytes = precopy.finish(&exported, &mut stream).expect("a stream");
    assert!(matches!(precopy.finish(&exported, &mut stream), Err(ExportError::Ended)));
    drop(precopy);
    assert_eq!(rounds_bytes + rest_bytes, stream.len() as u64);
    pool.check().expect("consistent");
    compared(&stream, max_bytes, pool, disks, config, dedupe)
}

pub(crate) fn compared(
    mut stream: &[u8],
    max_bytes: u64,
    pool: &Pool,
    disks: &[&Disk],
    config: PoolConfig,
    may_share_less: bool,
) -> ImportedPool {
    let imported = Pool::import(config, &mut stream).expect("a pool");
    imported.pool.check().expect("consistent");
    pool.compact();
    imported.pool.compact();
    let [before, after] = [pool.stats(), imported.pool.stats()];
    let stored = |stats: &Stats| (stats.orig_data_size, stats.compr_data_size, stats.same_pages, stats.huge_pages);
    let shared = |stats: &Stats| (stats.shared_pages, stats.shared_saved_bytes);
    assert!(may_share_less || stored(&before) == stored(&after), "{after:?}, before {before:?}");
    assert!(may_share_less || shared(&before) == shared(&after), "{after:?}, before {before:?}");
    assert_eq!((before.codec_tables, before.tables_id), (after.codec_tables, after.tables_id));
    assert_eq!((before.trainings, before.tables_gain_permille), (after.trainings, after.tables_gain_permille));
    // Both have the tails of some shards.
    let most_bytes = before.mem_used_total + before.mem_used_total / 50 + (96 << 10);
    let is_small = after.mem_used_total <= most_bytes;
    assert!(may_share_less || is_small, "{} bytes, before {}", after.mem_used_total, before.mem_used_total);
    assert!(after.mem_used_max >= max_bytes);
    assert_eq!(imported.disks.len(), disks.len());
    for (disk, imported) in disks.iter().zip(&imported.disks) {
        assert_eq!(imported.note, b"note");
        assert!(may_share_less || disk.stats() == imported.disk.stats());
        assert_eq!((disk.slots(), changes(disk)), (imported.disk.slots(), changes(&imported.disk)));
    }
    imported
}

/// Writes text-like pages of one kind.
fn text(number: u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    let words = (number * 37..).flat_map(|n| format!("key{} = value-{};\n", n % 97, n * n % 1009).into_bytes());
    page.iter_mut().zip(words).for_each(|(to, from)| *to = from);
    page
}

/// A pool with forks, holes, links, shared objects and every kind of page.
pub(crate) fn varied(config: PoolConfig) -> (Pool, Vec<Disk>) {
    let pool = Pool::new(config).expect("a pool");
    let first = pool.disk(300_000).expect("a disk");
    for slot in 0..150 {
        let page = match slot % 5 {
            0 => Box::new([slot as u8; PAGE_SIZE]),
            1 => mixed(slot, 0xff),
            2 => mixed(7, 0x0f),
            _ => text(slot),
        };
        first.write(slot * 3, &page).expect("no limit");
    }
    first.write(250_000, &text(1)).expect("no limit");
    let second = first.fork().expect("no limit");
    for slot in 30..60 {
        second.write(slot, &mixed(7, 0x0f)).expect("no limit");
    }
    second.discard(100..140).expect("slots of the disk");
    let third = second.fork().expect("no limit");
    third.write(31, &text(31)).expect("no limit");
    third.set_limit(1 << 30);
    let over = pool.disk_over(5000).expect("a disk");
    over.discard(0..5000).expect("slots of the disk");
    let empty = pool.disk(1).expect("a disk");
    drop(second);
    (pool, vec![first, third, over, empty])
}

fn config() -> PoolConfig {
    PoolConfig::default().codec(by_name("lz4").expect("a codec")).dedupe(true)
}

static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let (pool, disks) = varied(config());
    exported(&pool, &disks.iter().collect::<Vec<_>>())
});

/// A stream in rounds, between which disks change, come and go.
static ROUNDS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let (pool, mut disks) = varied(config());
    let (mut precopy, mut stream) = (Precopy::begin(&pool).expect("the only one"), Vec::new());
    for round in 0..3_u64 {
        precopy.round(&disks.iter().collect::<Vec<_>>(), &mut stream).expect("a round");
        disks[0].write(7 * round, &mixed(7, 0x0f)).expect("no limit");
        disks[0].discard(30 + round..60).expect("slots of the disk");
        let fork = disks[0].fork().expect("no limit");
        fork.write(round, &text(900 + round)).expect("no limit");
        drop(disks.remove(1));
        disks.push(fork);
    }
    let all: Vec<_> = disks.iter().map(|disk| ExportedDisk { disk, note: b"note" }).collect();
    precopy.finish(&all, &mut stream).expect("a stream");
    stream
});

/// A pool at its limit fits a pool with the same limit, which can be read and overwritten.
#[test]
fn a_full_pool_is_handed_over_to_one_of_its_size() {
    let config = config().dedupe(false).memory_limit(8 << 20);
    let page_of = |number: u64| {
        let mut page = mixed(2 * number, 0x3f);
        page[..number as usize % 3000].fill(0);
        page
    };
    let pool = Pool::new(config.clone()).expect("a pool");
    let disk = pool.disk(1 << 20).expect("a disk");
    let written = (0..1 << 20).take_while(|&slot| disk.write(slot, &page_of(slot)).is_ok()).count() as u64;
    let stream = exported(&pool, &[&disk]);
    let imported = Pool::import(config.clone(), &mut &stream[..]).expect("a pool");
    assert!(imported.pool.stats().spent_bytes <= 8 << 20);
    let mut page = [0; PAGE_SIZE];
    for slot in 0..written {
        let disk = &imported.disks[0].disk;
        disk.read(slot, &mut page).expect("a readable page");
        assert!(page == *page_of(slot), "slot {slot}");
        disk.write(slot, &page_of(slot + (1 << 20))).expect("room for pages that are like those before");
    }
    imported.pool.check().expect("consistent");

    let failed = Pool::import(config.memory_limit(4 << 20), &mut &stream[..]).expect_err("too little");
    assert!(matches!(failed, ImportError::Full), "{failed}");
}

/// After the handover, a page that equals one stored before it is found.
#[test]
fn equal_pages_are_still_found() {
    let pool = Pool::new(config()).expect("a pool");
    let disk = pool.disk(10_000).expect("a disk");
    (0..2000).for_each(|slot| disk.write(slot, &mixed(2 * slot, 0x1f)).expect("no limit"));
    let imported = handed_over(&pool, &[&disk], config());
    assert_eq!(imported.pool.stats().shared_pages, 0);
    let disk = &imported.disks[0].disk;
    (0..2000).for_each(|slot| disk.write(5000 + slot, &mixed(2 * slot, 0x1f)).expect("no limit"));
    let shared = imported.pool.stats().shared_pages;
    // Some hints displace others.
    assert!(shared > 3600, "{shared}");
    let plain = PoolConfig::default().codec(by_name("lz4").expect("a codec"));
    handed_over(&imported.pool, &[disk], plain);
}

/// The rest of a pool stays behind.
#[test]
fn some_of_the_disks_are_handed_over() {
    let (pool, disks) = varied(config());
    for (number, before) in disks.iter().enumerate() {
        let stream = exported(&pool, &[before]);
        let imported = Pool::import(config(), &mut &stream[..]).expect("a pool");
        imported.pool.check().expect("consistent");
        let after = &imported.disks[0].disk;
        let (mut page, mut other) = ([0; PAGE_SIZE], [1; PAGE_SIZE]);
        for slot in (0..600).filter(|&slot| slot < before.slots()) {
            let held = before.read(slot, &mut page).expect("a readable page");
            assert_eq!(after.read(slot, &mut other), Ok(held));
            assert!(page == other, "disk {number}, slot {slot}");
        }
        drop(imported.disks);
        assert_eq!(imported.pool.stats().orig_data_size, 0);
        imported.pool.check().expect("consistent");
    }
}

#[test]
fn invalid_streams_are_refused() {
    let [pool, other] = [(); 2].map(|()| Pool::new(config()).expect("a pool"));
    let (disk, clean) = (pool.disk(9).expect("a disk"), pool.clean_disk(9).expect("a disk"));
    let export = |pool: &Pool, disk: &Disk, note: &[u8]| pool.export(&[ExportedDisk { disk, note }], &mut io::sink());
    assert!(matches!(export(&other, &disk, b""), Err(ExportError::NotOfPool { number: 0 })));
    assert!(matches!(export(&pool, &clean, b""), Err(ExportError::NotOfPool { number: 0 })));
    assert!(matches!(export(&pool, &disk, &[0; 65_537]), Err(ExportError::LongNote { .. })));
    export(&pool, &disk, &[0; 65_536]).expect("a stream");

    let stream = STREAM.clone();
    let fold = PoolConfig::default();
    let failed = Pool::import(fold, &mut &stream[..]).expect_err("another codec");
    assert_eq!(failed.to_string(), "the pool's objects are of the codec 'lz4', not of 'fold'");
    let more = [&stream[..], b"what follows"].concat();
    let mut rest = &more[..];
    Pool::import(config(), &mut rest).expect("a pool");
    assert_eq!(rest, b"what follows");
}

/// Completes the checksums of a stream.
fn with_checksums(mut stream: Vec<u8>) -> Vec<u8> {
    let mut check = crc32c::crc32c(&stream[..MAGIC_BYTES]);
    let mut at = MAGIC_BYTES;
    while let Some(len) = stream.get(at + 4..at + 8) {
        let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
        let start = at + HEADER_BYTES;
        let Some(end) = start.checked_add(len).filter(|&end| end <= stream.len()) else { break };
        check = crc32c::crc32c_append(check, &stream[at..at + 8]);
        check = crc32c::crc32c_append(check, &stream[start..end]);
        stream[at + 8..start].copy_from_slice(&check.to_le_bytes());
        at = end;
    }
    stream
}

/// Uses a pool of which nothing is known.
fn use_all(imported: ImportedPool) {
    let ImportedPool { pool, disks, .. } = imported;
    pool.check().expect("consistent");
    let mut page = [0; PAGE_SIZE];
    for disk in disks.iter().map(|imported| &imported.disk) {
        for slot in (0..500).chain([250_000]).filter(|&slot| slot < disk.slots()) {
            // Objects may be damaged.
            let _ = disk.read(slot, &mut page);
            if slot % 11 == 0 {
                let _ = disk.write(slot, &mixed(slot, 0x0f));
            }
            if slot % 37 == 0 {
                let _ = disk.discard(slot..slot + 2);
            }
        }
        if let Ok(fork) = disk.fork() {
            let _ = fork.write(3, &mixed(3, 0x0f));
        }
        changes(disk);
    }
    pool.check().expect("consistent");
    pool.compact();
    drop(disks);
    pool.check().expect("consistent");
    let stats = pool.stats();
    assert_eq!((stats.orig_data_size, stats.compr_data_size), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_stream_is_refused(at: prop::sample::Index, bit in 0..8u32, cut: bool, rounds: bool) {
        let mut stream = if rounds { ROUNDS.clone() } else { STREAM.clone() };
        let at = at.index(stream.len());
        if cut {
            stream.truncate(at);
        } else {
            stream[at] ^= 1u8 << bit;
        }
        prop_assert!(Pool::import(config(), &mut &stream[..]).is_err());
    }

    /// A stream with valid checksums may have anything in it.
    #[test]
    fn a_forged_stream_is_refused_or_gives_a_consistent_pool(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u8>()), 1..4),
        rounds: bool,
    ) {
        let mut stream = if rounds { ROUNDS.clone() } else { STREAM.clone() };
        // The end, and the start of each leaf, say how parts are connected.
        let tail = 2000.min(stream.len());
        for (at, is_tail, value) in edits {
            let at = if is_tail { stream.len() - 1 - at.index(tail) } else { at.index(stream.len()) };
            stream[at] = value % 16;
        }
        if let Ok(imported) = Pool::import(config().memory_limit(32 << 20), &mut &with_checksums(stream)[..]) {
            use_all(imported);
        }
    }
}

/// Threads that change the disks despite the contract cause at worst an error.
#[test]
fn a_pool_in_use_is_not_damaged_by_an_export() {
    let (pool, disks) = varied(config());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                for slot in 0..400 {
                    disks[0].write(slot, &mixed(slot + round, 0x0f)).expect("no limit");
                }
                disks[1].discard(0..200).expect("slots of the disk");
                drop(disks[0].fork().expect("no limit"));
                if stop.load(Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..30 {
            let all: Vec<_> = disks.iter().map(|disk| ExportedDisk { disk, note: b"" }).collect();
            let mut stream = Vec::new();
            if pool.export(&all, &mut stream).is_ok()
                && let Ok(imported) = Pool::import(config(), &mut &stream[..])
            {
                imported.pool.check().expect("consistent");
            }
        }
        stop.store(true, Relaxed);
    });
    pool.check().expect("consistent");
}

/// Writes rounds and the rest of a stream, and returns the bytes of each.
fn sizes(pool: &Pool, disk: &Disk, between: &mut dyn FnMut(u64)) -> Vec<u64> {
    let (mut precopy, mut stream) = (Precopy::begin(pool).expect("the only one"), Vec::new());
    let mut sizes = Vec::new();
    for round in 0..3 {
        sizes.push(precopy.round(&[disk], &mut stream).expect("a round"));
        between(round);
    }
    sizes.push(precopy.finish(&[ExportedDisk { disk, note: b"" }], &mut stream).expect("a stream"));
    let imported = Pool::import(config(), &mut &stream[..]).expect("a pool");
    imported.pool.check().expect("consistent");
    let (mut page, mut other) = ([0; PAGE_SIZE], [1; PAGE_SIZE]);
    for slot in 0..disk.slots() {
        let held = disk.read(slot, &mut page).expect("a readable page");
        assert_eq!((imported.disks[0].disk.read(slot, &mut other), other == page), (Ok(held), true), "slot {slot}");
    }
    sizes
}

/// The bytes after the rounds do not depend on the stored amount.
#[test]
fn the_rest_has_what_was_changed_since_the_last_round() {
    let rests = [4000_u64, 16_000].map(|slots| {
        let pool = Pool::new(config()).expect("a pool");
        let disk = pool.disk(slots).expect("a disk");
        (0..slots).for_each(|slot| disk.write(slot, &mixed(2 * slot, 0x1f)).expect("no limit"));
        let change = &mut |round: u64| {
            (0..50)
                .for_each(|slot| disk.write(slot * 60, &mixed(2 * (slot + 1000 * round) + 1, 0x1f)).expect("no limit"));
        };
        let sizes = sizes(&pool, &disk, change);
        assert!(sizes[0] > slots * 1000 && sizes[1] < 250_000 && sizes[2] < 250_000, "{sizes:?}");
        pool.check().expect("consistent");
        sizes[3]
    });
    // Each of 47 leaves: an object or two, links, tags.
    assert!(rests[0] < 250_000 && rests[0].abs_diff(rests[1]) < 2000, "{rests:?}");
}

/// A stream that is given up leaves a pool as it was: holes, limits, memory.
#[test]
fn a_stream_that_is_given_up_leaves_nothing() {
    let (pool, disks) = varied(config());
    let all: Vec<&Disk> = disks.iter().collect();
    pool.compact();
    let figures = || (pool.stats().spent_bytes, disks.iter().map(Disk::stats).collect::<Vec<_>>());
    let before = figures();
    let mut precopy = Precopy::begin(&pool).expect("the only one");
    assert!(matches!(Precopy::begin(&pool), Err(ExportError::Ended)));
    for _ in 0..3 {
        precopy.round(&all, &mut Vec::new()).expect("a round");
    }
    let failed = precopy.round(&all, &mut &mut [0; 20][..]).expect_err("too little room for it");
    assert!(matches!(failed, ExportError::Write(_)), "{failed}");
    drop(precopy);
    pool.check().expect("consistent");
    pool.compact();
    let after = figures();
    assert_eq!(before.1, after.1);
    assert!(before.0.abs_diff(after.0) < 64 << 10, "{} bytes, before {}", after.0, before.0);

    // The first disk is over nothing and has forks; another is plain.
    let plain = pool.disk(100).expect("a disk");
    (0..100).for_each(|slot| plain.write(slot, &text(slot)).expect("no limit"));
    let mut precopy = Precopy::begin(&pool).expect("the only one");
    precopy.round(&[&plain], &mut Vec::new()).expect("a round");
    plain.discard(0..50).expect("slots of the disk");
    drop(precopy);
    let mut page = [0; PAGE_SIZE];
    assert!((0..50).all(|slot| plain.read(slot, &mut page) == Ok(false)), "a discarded slot holds something");
    assert_eq!(plain.changed(0, 100).map(|run| (run.changed, run.slots)), Ok((false, 50)));
    pool.check().expect("consistent");
}

/// Unchanged disks add nothing to the next round, however many there are.
#[test]
fn a_round_of_unchanged_disks_takes_no_memory() {
    let (pool, disks) = varied(config());
    let forks: Vec<Disk> = (0..100).map(|_| disks[0].fork().expect("no limit")).collect();
    let all: Vec<&Disk> = disks.iter().chain(&forks).collect();
    let mut precopy = Precopy::begin(&pool).expect("the only one");
    let mut stream = Vec::new();
    precopy.round(&all, &mut stream).expect("a round");
    let (spent_bytes, begun) = (pool.stats().spent_bytes, stream.len());
    for _ in 0..100 {
        precopy.round(&all, &mut stream).expect("a round");
    }
    assert_eq!(pool.stats().spent_bytes, spent_bytes);
    assert!(stream.len() < begun + 100 * 64, "{} bytes", stream.len() - begun);
    forks[7].write(9, &mixed(9, 0x3f)).expect("no limit");
    precopy.round(&all, &mut stream).expect("a round");
    forks[8].discard(0..10).expect("slots of the disk");
    handed_over_after((precopy, stream), &pool, &all, config(), true);
}

/// Memory that a stream keeps never makes a write fail: the stream ends instead.
#[test]
fn a_client_that_needs_the_memory_gets_it() {
    let page_of = |number: u64| {
        let mut page = mixed(2 * number, 0x3f);
        page[..number as usize % 3000].fill(0);
        page
    };
    for own_limit in [false, true] {
        let config = config().dedupe(false).memory_limit(if own_limit { 64 << 20 } else { 8 << 20 });
        let pool = Pool::new(config.clone()).expect("a pool");
        let disk = pool.disk(1 << 20).expect("a disk");
        if own_limit {
            disk.set_limit(4 << 20);
        }
        let written = (0..1 << 20).take_while(|&slot| disk.write(slot, &page_of(slot)).is_ok()).count() as u64;
        // Room for changed leaves.
        disk.discard(written - written / 8..written).expect("slots of the disk");
        let kept = written - written / 8;
        let mut precopy = Precopy::begin(&pool).expect("the only one");
        precopy.round(&[&disk], &mut Vec::new()).expect("a round");
        for slot in 0..kept {
            disk.write(slot, &page_of(slot + (1 << 20))).expect("room for pages that are like those before");
        }
        assert!(precopy.has_ended());
        assert!(matches!(precopy.round(&[&disk], &mut Vec::new()), Err(ExportError::Ended)));
        drop(precopy);
        pool.check().expect("consistent");
        let stream = exported(&pool, &[&disk]);
        let imported = Pool::import(config, &mut &stream[..]).expect("a pool");
        imported.pool.check().expect("consistent");
        let mut page = [0; PAGE_SIZE];
        for slot in 0..kept {
            imported.disks[0].disk.read(slot, &mut page).expect("a readable page");
            assert!(page == *page_of(slot + (1 << 20)), "slot {slot}");
        }
    }
}

/// Objects of all rounds have the same tables, whatever is written between them.
#[test]
fn no_tables_are_trained_while_rounds_are_written() {
    let config = PoolConfig::default().codec(by_name("fold-dict").expect("a codec"));
    let pool = Pool::new(config.clone()).expect("a pool");
    let disk = pool.disk(20_000).expect("a disk");
    let write = |slots: std::ops::Range<u64>| slots.for_each(|slot| disk.write(slot, &text(slot)).expect("no limit"));
    write(0..1000);
    let (mut precopy, mut stream) = (Precopy::begin(&pool).expect("the only one"), Vec::new());
    for round in 0..2 {
        precopy.round(&[&disk], &mut stream).expect("a round");
        write(1000 + 2000 * round..3000 + 2000 * round);
    }
    let before = pool.stats();
    assert_eq!((before.codec_tables, before.trainings, before.trainings_useless), (1, 0, 0));
    let imported = handed_over_after((precopy, stream), &pool, &[&disk], config, false);
    let is_trained = |pool: &Pool, disk: &Disk| {
        // A thread trains when it gets a CPU, which on a busy machine may take minutes.
        let deadline = Instant::now() + Duration::from_secs(600);
        let mut number = 20_000;
        while pool.stats().trainings + pool.stats().trainings_useless == 0 {
            assert!(Instant::now() < deadline, "no training");
            (0..500).for_each(|slot| disk.write(slot, &mixed(number + slot, 0x0f)).expect("no limit"));
            number += 500;
        }
    };
    is_trained(&pool, &disk);
    is_trained(&imported.pool, &imported.disks[0].disk);
}

/// Threads write, discard, fork and drop while rounds are written, with few and with trained tables.
#[test]
fn disks_in_use_are_handed_over() {
    let config = PoolConfig::default().dedupe(true);
    let pool = Pool::new(config.clone()).expect("a pool");
    let disks: Vec<Disk> = (0..3).map(|_| pool.disk(20_000).expect("a disk")).collect();
    let stop = AtomicBool::new(false);
    let (mut precopy, mut stream) = (Precopy::begin(&pool).expect("the only one"), Vec::new());
    thread::scope(|scope| {
        for (thread, disk) in (0..).zip(&disks) {
            let stop = &stop;
            scope.spawn(move || {
                let mut forks = Vec::new();
                for turn in 0_u64.. {
                    let slot = turn * 7919 % 2000;
                    match turn % 50 {
                        0 => disk.discard(slot..slot + 30).expect("slots of the disk"),
                        1 => forks.push(disk.fork().expect("no limit")),
                        2 if forks.len() > 3 => drop(forks.swap_remove(0)),
                        _ if turn % 3 == 0 => disk.write(slot, &text(turn % 200)).expect("no limit"),
                        _ => disk.write(slot, &mixed(turn << 2 | thread, 0x0f)).expect("no limit"),
                    }
                    if stop.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        for _ in 0..6 {
            precopy.round(&disks.iter().collect::<Vec<_>>(), &mut stream).expect("a round");
            pool.compact();
        }
        stop.store(true, Relaxed);
    });
    let all: Vec<&Disk> = disks.iter().collect();
    let imported = handed_over_after((precopy, stream), &pool, &all, config, true);
    let (mut page, mut other) = ([0; PAGE_SIZE], [1; PAGE_SIZE]);
    for (before, after) in disks.iter().zip(&imported.disks) {
        for slot in 0..2100 {
            let held = before.read(slot, &mut page).expect("a readable page");
            assert_eq!((after.disk.read(slot, &mut other), other == page), (Ok(held), true), "slot {slot}");
        }
    }
}
