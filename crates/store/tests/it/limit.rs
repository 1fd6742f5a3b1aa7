//! Behaviour at the memory limit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::{NAMES, by_name};
use pagefold_store::{Error, NewPoolError, PAGE_SIZE, Page, Pool, PoolConfig};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::one::One;
use crate::pages::mixed;

/// Pins the thread to a CPU, if possible.
fn run_on(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let _ = sched_setaffinity(None, &cpus);
}

#[test]
fn a_full_store_keeps_what_it_has_and_recovers() {
    let limit = 4 << 20;
    let store = One::new(4096, PoolConfig::default().memory_limit(limit));
    let full_at = (0..4096).find(|&slot| store.write(slot, &mixed(slot, 0xff)).is_err()).expect("4 MiB do not hold 16");
    assert_eq!(store.write(full_at, &mixed(full_at, 0xff)), Err(Error::Full));
    let mut page = [0; PAGE_SIZE];

    for slot in 0..full_at {
        let before = mixed(slot, 0xff);
        if store.write(slot, &mixed(slot + 10_000, 0xff)).is_err() {
            store.read(slot, &mut page).expect("a readable page");
            assert!(page == *before, "slot {slot} lost its page");
        }
        let _ = store.update(slot, |page| page[0] ^= 1);
    }
    let stats = store.stats();
    // A sixteenth of the limit is reserved for moving objects, and on a machine with many CPUs
    // another sixteenth for swapping.
    assert!(stats.mem_used_max <= limit && stats.spent_bytes > limit * 7 / 8 - (32 << 10), "{stats:?}");
    store.check().expect("consistent");

    for slot in 0..full_at / 2 {
        store.discard(slot).expect("a slot");
    }
    for slot in 0..full_at / 4 {
        store.write(slot, &mixed(slot, 0xff)).expect("room again");
    }
    store.check().expect("consistent");
}

#[test]
fn all_memory_comes_back() {
    let store = One::new(4096, PoolConfig::default());
    for slot in 0..4096 {
        store.write(slot, &mixed(slot, (slot % 256) as u8)).expect("no limit");
    }
    for slot in 0..4096 {
        store.discard(slot).expect("a slot");
    }
    // A move in progress in the background holds a segment a moment longer.
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.stats().mem_used_total > 32 << 10 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let stats = store.stats();
    assert_eq!((stats.orig_data_size, stats.compr_data_size, stats.same_pages, stats.huge_pages), (0, 0, 0, 0));
    // The lists of a shard's free blocks and its table of segments may stay.
    assert!(stats.mem_used_total <= 32 << 10, "{stats:?}");
    store.check().expect("consistent");
}

#[test]
fn a_limit_below_the_empty_store_is_refused() {
    let error = Pool::new(PoolConfig::default().memory_limit(1000)).expect_err("too small");
    assert!(matches!(error, NewPoolError::LimitTooSmall { limit: 1000, .. }), "{error}");
}

#[test]
fn a_limit_under_which_no_page_can_be_written_is_refused() {
    for codec in NAMES.iter().map(|name| name.replace("LEVEL", "12")) {
        let codec = by_name(&codec).expect("a known codec");
        let with = |memory_limit| Pool::new(PoolConfig::default().codec(Arc::clone(&codec)).memory_limit(memory_limit));
        let Err(NewPoolError::LimitTooSmall { needed, .. }) = with(10 << 10) else { panic!("10 KiB suffice") };
        assert!(matches!(with(needed - 1), Err(NewPoolError::LimitTooSmall { .. })));
        for slots in [1, 1 << 16] {
            let pool = with(needed).expect("as much as is needed");
            let disk = pool.disk(slots).expect("a disk");
            disk.write(slots - 1, &mixed(1, 0xff)).unwrap_or_else(|error| panic!("{codec:?} {needed}: {error}"));
            assert!(pool.stats().spent_bytes > needed / 2, "{codec:?} needs {needed}? {:?}", pool.stats());
        }
    }
}

/// Reading needs a stream. A CPU's first stream takes memory, so at the limit the CPU uses
/// another's.
#[test]
fn every_cpu_reads_at_the_limit() {
    let store = One::new(4096, PoolConfig::default().memory_limit(1 << 20));
    thread::scope(|scope| {
        let fill = scope.spawn(|| {
            run_on(0);
            for (slot, mask) in (0..4096).zip([0xf, 0x7f, 0x3f].into_iter().cycle()) {
                let _ = store.write(slot, &mixed(slot, mask));
            }
        });
        fill.join().expect("it fills");
        for cpu in 0..cpus() as usize {
            let store = &store;
            scope.spawn(move || {
                run_on(cpu);
                let mut page = [0; PAGE_SIZE];
                for slot in 0..4096 {
                    store.read(slot, &mut page).expect("a readable page");
                }
            });
        }
    });
}

/// A full store takes no more pages, but those that it holds can be overwritten, without end and by
/// many threads simultaneously.
#[test]
fn a_full_store_can_be_written_over() {
    let store = One::new(4096, PoolConfig::default().memory_limit(4 << 20));
    let full_at = (0..4096).find(|&slot| store.write(slot, &mixed(slot, 0xff)).is_err()).expect("4 MiB do not hold 16");
    thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let mut page = [0; PAGE_SIZE];
                for round in 1..=4 {
                    for slot in (thread..full_at).step_by(4) {
                        store.write(slot, &mixed(slot + round * 10_000, 0xff)).expect("no more than before");
                        store.update(slot, |page| page[7] ^= 1).expect("no more than before");
                    }
                    for slot in (thread..full_at).step_by(4) {
                        let mut expected = mixed(slot + round * 10_000, 0xff);
                        expected[7] ^= 1;
                        store.read(slot, &mut page).expect("a readable page");
                        assert!(page == *expected, "slot {slot}");
                    }
                }
            });
        }
    });
    // After its objects have moved, there may be room for one more page in 894.
    let full_again = (full_at..4096).find(|&slot| store.write(slot, &mixed(slot, 0xff)).is_err()).expect("still full");
    assert!(full_again <= full_at + full_at / 256, "{full_at} pages, then {full_again}");
    store.check().expect("consistent");
}

/// Returns a page whose object has about `len_bytes`.
fn of_length(seed: u64, len_bytes: usize) -> Box<Page> {
    let mut page = mixed(seed, 0xff);
    page[len_bytes..].fill(0);
    page
}

/// Returns a page whose object has 1200 to 2223 bytes, or slightly more.
fn of_some_length(seed: u64) -> Box<Page> {
    of_length(seed, 1200 + (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize)
}

/// Pages of one kind differ in length. In a store that is full of them, they can replace each other
/// any number of times.
#[test]
fn a_full_store_takes_pages_of_the_kind_that_it_holds() {
    let store = One::new(1 << 16, PoolConfig::default().memory_limit(32 << 20));
    let is_full = |&slot: &u64| store.write(slot, &of_some_length(slot)).is_err();
    let full_at = (0..1 << 16).find(is_full).expect("32 MiB do not hold 256");
    thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let (own, mut page) = (full_at / 4, [0; PAGE_SIZE]);
                for round in 1..=4 {
                    let seed = |slot| slot + round * 1_000_000;
                    for step in 0..own {
                        let slot = thread * own + step * 7919 % own;
                        store.write(slot, &of_some_length(seed(slot))).expect("a page like those before");
                    }
                    for slot in thread * own..(thread + 1) * own {
                        store.read(slot, &mut page).expect("a readable page");
                        assert!(page == *of_some_length(seed(slot)), "slot {slot}");
                    }
                }
            });
        }
    });
    // The sum of random lengths may be less than before.
    let full_again =
        (full_at..1 << 16).find(|&slot| store.write(slot, &of_some_length(slot)).is_err()).expect("still full");
    assert!(full_again <= full_at + full_at / 128, "{full_at} pages, then {full_again}");
    let stats = store.stats();
    let unspent_bytes = reserved_bytes(stats.mem_limit) + stats.mem_limit / 100;
    assert!(stats.spent_bytes > stats.mem_limit - unspent_bytes, "{stats:?}, {unspent_bytes}");
    store.check().expect("consistent");
}

/// Returns the reserves of a full store, which grow with the number of CPUs (docs/store.md).
fn reserved_bytes(limit: u64) -> u64 {
    let moving = ((64 << 10) * (cpus() + 2)).min(limit / 16);
    let swapping = ((24 << 10) * cpus()).max(limit / 512).min(limit / 16);
    moving + swapping + limit / 64
}

fn cpus() -> u64 {
    thread::available_parallelism().map_or(1, usize::from) as u64
}

/// Takes `streams` streams simultaneously, or as many as are allowed: each is kept longer than the
/// threads take to start. They cannot wait for each other, since some may have to share a stream.
fn take_all_streams(store: &One, streams: u64) {
    thread::scope(|scope| {
        for slot in 0..streams {
            scope.spawn(move || store.update(slot, |_| thread::sleep(Duration::from_millis(50))));
        }
    });
}

/// Streams are created when they are first needed, possibly when the store is full. They do not use
/// the reserve for overwriting.
#[test]
fn streams_leave_what_is_kept_for_overwriting() {
    let store = One::new(1 << 16, PoolConfig::default().memory_limit(16 << 20));
    let is_full = |&slot: &u64| store.write(slot, &of_some_length(slot)).is_err();
    let full_at = (0..1 << 16).find(is_full).expect("16 MiB do not hold 256");
    let one_bytes = store.stats().stream_bytes;
    take_all_streams(&store, 8);
    let has_more = store.stats().stream_bytes > one_bytes;
    assert!(has_more || cpus() == 1, "new pages leave room for a stream of each CPU");
    for round in 1..=2 {
        for slot in 0..full_at {
            store.write(slot, &of_some_length(slot + round * 1_000_000)).expect("a page like those before");
        }
    }
    store.check().expect("consistent");
}

/// Replaced objects are kept briefly for their readers, and are free only then.
#[test]
fn a_write_without_room_waits_for_pending_frees() {
    let store = One::new(1 << 16, PoolConfig::default().memory_limit(8 << 20));
    take_all_streams(&store, 4);
    let fill = |slot: &u64| store.write(*slot, &of_length(*slot, if *slot < 32 { PAGE_SIZE } else { 1200 })).is_err();
    let full_at = (0..1 << 16).find(fill).expect("8 MiB do not hold 256");
    let given_back = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (begun, next) = mpsc::channel();
        for thread in 0..3 {
            let (store, given_back, begun) = (&store, &given_back, begun.clone());
            scope.spawn(move || {
                // The stream keeps this many objects, and the update then holds the stream.
                for slot in (1..8).map(|slot| 8 * thread + slot) {
                    store.write(slot, &mixed(slot + 100, 0xff)).expect("as long as what it replaces");
                }
                // The search below reaches a page without room long before.
                let wait = |_: &mut Page| {
                    begun.send(()).expect("it is waited for");
                    thread::sleep(Duration::from_secs(2));
                    given_back.fetch_add(1, Relaxed);
                };
                store.update(8 * thread, wait).expect("as long as what it replaces");
            });
            next.recv().expect("it begins");
        }
        let refused = (32..full_at).find(|&slot| store.write(slot, &of_length(slot, 1500)).is_err());
        assert!(refused.is_some(), "not all can become longer");
        assert_eq!(given_back.load(Relaxed), 3, "refused before others had given back what they held");
    });
    store.check().expect("consistent");
}

/// A rejected write takes no leaf: otherwise a large disk could use any amount of memory.
#[test]
fn a_refused_write_takes_no_memory_of_the_pool() {
    let limit_bytes = 1 << 20;
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let parent = pool.disk(1 << 24).expect("a disk");
    (0..20_000).for_each(|number| parent.write(number * 64, &mixed(number, 0xff)).expect("no limit"));
    for disk in [pool.disk(1 << 24).expect("a disk"), parent.fork().expect("a fork")] {
        disk.set_limit(limit_bytes);
        let refused = (0..20_000).filter(|number| disk.write(number * 64 + 1, &mixed(*number, 0xff)).is_err()).count();
        assert!(refused > 19_000, "{refused}");
        let spent_bytes = disk.stats().spent_bytes;
        assert!(spent_bytes <= limit_bytes + (16 << 10), "{spent_bytes}");
    }
    pool.check().expect("consistent");
}

/// Holes use memory too: a disk far beyond its limit creates no more of them, but still frees what
/// it can without them.
#[test]
fn discards_have_a_bound() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = pool.disk_over(1 << 24).expect("a disk");
    disk.set_limit(1 << 20);
    for slot in 0..200 {
        disk.write(slot, &mixed(slot, 0xff)).expect("room");
    }
    let mut refused = 0;
    for at in 1..20_000u64 {
        let slot = at * 800;
        match disk.discard(slot..slot + 1) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, Error::DiskFull);
                refused += 1;
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
    assert!(disk.stats().spent_bytes < (1 << 20) + (1 << 20) / 8, "{:?}", disk.stats());
    disk.discard(0..192).expect("whole leaves need nothing");
    assert!(disk.stats().spent_bytes < 1 << 20, "{:?}", disk.stats());
    pool.check().expect("consistent");
}

/// If a write finds no room while a dropped disk's pages are still being freed, it waits for that
/// room.
#[test]
fn room_of_a_dropped_disk_is_there_immediately() {
    let limit = 64 << 20;
    let config = PoolConfig::default().codec(by_name("lz4").expect("a codec")).memory_limit(limit);
    let pool = Pool::new(config).expect("a pool");
    let page = mixed(7, 0xff);
    for _ in 0..5 {
        let disks = [(); 2].map(|()| pool.disk(100_000).expect("a disk"));
        let full = (0..100_000).find(|&slot| disks[0].write(slot, &page) == Err(Error::Full)).expect("a limit");
        assert!(full * PAGE_SIZE as u64 > limit - reserved_bytes(limit) - limit / 16, "{full}");
        let [first, second] = disks;
        drop(first);
        let again = (0..100_000).find(|&slot| second.write(slot, &page) == Err(Error::Full)).expect("a limit");
        // When a write fails, the pages of the other disk are all gone. The density of objects in a
        // full pool varies slightly, more so where many CPUs have blocks of their own to fill.
        assert_eq!(pool.stats().orig_data_size, again * PAGE_SIZE as u64, "{again} of {full}");
        let varies = full / 50 + (8 << 10) * cpus() / PAGE_SIZE as u64;
        assert!(again > full - varies, "{again} of {full}");
    }
    pool.check().expect("consistent");
}

/// Zeros, and slots made to hold nothing again, need leaves of a fork's own: its limit counts those
/// too.
#[test]
fn entries_without_pages_have_a_bound() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = pool.disk_over(1 << 20).expect("a disk");
    for slot in (0..1 << 20).step_by(64) {
        disk.write(slot, &[slot as u8; PAGE_SIZE]).expect("no limit");
        disk.write(slot + 1, &[slot as u8; PAGE_SIZE]).expect("no limit");
    }
    type Change = fn(&pagefold_store::Disk, u64) -> Result<(), Error>;
    let changes: [Change; 2] = [|fork, slot| fork.write_zeroes(slot), |fork, slot| fork.forget(slot)];
    for change in changes {
        let fork = disk.fork().expect("no limit");
        fork.set_limit(1 << 20);
        let refused = (0..1 << 20).step_by(64).filter(|&slot| change(&fork, slot) == Err(Error::DiskFull)).count();
        assert!(refused > 10_000, "{refused}");
        assert!(fork.stats().spent_bytes <= (1 << 20) + 8192, "{:?}", fork.stats());
    }
}

/// A disk that cannot shrink keeps its size, and content that was to be removed does not come back
/// later.
#[test]
fn a_resize_that_fails_changes_no_size() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let base = pool.disk(10_000).expect("a disk");
    for slot in 0..10_000 {
        base.write(slot, &mixed(slot, 0xff)).expect("no limit");
    }
    let fork = base.fork().expect("no limit");
    for slot in 0..20 {
        fork.write(slot, &mixed(slot + 5, 0xff)).expect("no limit");
    }
    fork.set_limit(1);
    assert_eq!(fork.resize(5001), Err(Error::DiskFull));
    assert_eq!(fork.slots(), 10_000);
    fork.set_limit(u64::MAX);
    fork.resize(5001).expect("no limit");
    fork.resize(10_000).expect("no limit");
    let mut page = [1; PAGE_SIZE];
    for slot in 5001..10_000 {
        fork.read(slot, &mut page).expect("a readable page");
        assert!(page == [0; PAGE_SIZE], "slot {slot} came back");
    }
    pool.check().expect("consistent");
}
