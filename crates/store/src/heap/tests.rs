//! The heap against a plain map of objects.
#![allow(unsafe_code)] // calls the heap as a pool does

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{
    Account, Goal, Heap, Location, Owner, Owners, Pressure, SEGMENT, SHARD_LEAST, SHARD_STEP, crowded_fill,
    shard::{HOLD_PART, Shard, Wanted},
};
use crate::{
    cpus::fake,
    limit::{Budget, Full, Purpose},
};

struct Subject {
    heap: Heap,
    budget: Arc<Budget>,
}

/// A map that acts as the owners; `None` marks an owner that is held.
#[derive(Default)]
struct Map(Mutex<BTreeMap<Owner, Option<(Location, usize)>>>);

impl Map {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Owner, Option<(Location, usize)>>> {
        self.0.lock().expect("no thread panics with it")
    }
}

impl Map {
    fn object(&self, owner: Owner) -> Option<(Location, usize)> {
        self.lock().get(&owner).copied().flatten()
    }
}

impl Owners for Map {
    fn len_bytes(&self, owner: Owner, at: Location) -> Option<usize> {
        self.object(owner).filter(|&(named, _)| named == at).map(|(_, len_bytes)| len_bytes)
    }

    fn repoint(
        &self,
        owner: Owner,
        from: Location,
        to: Location,
        len_bytes: usize,
        copy: &mut dyn FnMut(),
    ) -> Option<u64> {
        let mut map = self.lock();
        let entry = map.get_mut(&owner).filter(|entry| **entry == Some((from, len_bytes)))?;
        copy();
        *entry = Some((to, len_bytes));
        Some(from.get())
    }

    fn wait_for_readers(&self, _: &[u64]) {}

    fn settle(&self) {}
}

fn subject(limit: u64) -> Subject {
    let budget = Arc::new(Budget::new(limit, 2));
    let heap = Heap::new(Arc::clone(&budget), None).expect("address space");
    budget.take_for(Purpose::Store, heap.account().held_bytes).expect("an empty heap is small");
    Subject { heap, budget }
}

fn unlimited() -> Heap {
    subject(u64::MAX).heap
}

/// The content of `owner`'s object in its `version`.
fn content(owner: Owner, version: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = u64::from(owner) * 0x9e37_79b9 + version * 31 + 1;
    (0..len_bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

fn store(pool: &Heap, map: &Map, owner: Owner, version: u64, len_bytes: usize) -> Result<(), Full> {
    let at = pool.alloc(len_bytes, owner)?;
    put(pool, map, owner, version, (at, len_bytes));
    Ok(())
}

/// Fills an object that was just allocated and puts it in place of the owner's.
fn put(pool: &Heap, map: &Map, owner: Owner, version: u64, (at, len_bytes): (Location, usize)) {
    // SAFETY: just allocated, and not yet in the map.
    unsafe { pool.write(at, &content(owner, version, len_bytes)) };
    let old = map.lock().insert(owner, Some((at, len_bytes)));
    if let Some((at, _)) = old.flatten() {
        // SAFETY: out of the map, so no other thread uses it.
        unsafe { pool.free(at) };
    }
}

fn discard(pool: &Heap, map: &Map, owner: Owner) {
    let old = map.lock().remove(&owner);
    if let Some((at, _)) = old.flatten() {
        // SAFETY: out of the map, so no other thread uses it.
        unsafe { pool.free(at) };
    }
}

fn verify(pool: &Heap, map: &Map, versions: &BTreeMap<Owner, (u64, usize)>) -> Result<(), TestCaseError> {
    pool.check().map_err(TestCaseError::fail)?;
    let account = pool.account();
    let sum = account.live_bytes + account.free_bytes + account.tail_bytes + account.index_bytes;
    prop_assert_eq!(sum, account.held_bytes);
    for (&owner, &(version, len_bytes)) in versions {
        let Some((at, len)) = map.object(owner) else { return Err(TestCaseError::fail("an object is gone")) };
        prop_assert_eq!(len, len_bytes);
        let mut out = vec![0; len];
        // SAFETY: the map names it, and there is no other thread.
        unsafe { pool.read(at, &mut out) };
        prop_assert!(out == content(owner, version, len), "object {} of {} bytes has other bytes", owner, len);
        // SAFETY: as above.
        if let Some(bytes) = unsafe { pool.bytes(at, len) } {
            prop_assert!(bytes == out);
        }
    }
    Ok(())
}

/// Returns the bytes of the objects' memory that the system has given to the process.
fn resident_bytes(pool: &Heap) -> u64 {
    pool.padded_shards().map(|(_, padded)| padded.blocks.resident_bytes()).sum()
}

#[derive(Clone, Debug)]
enum Op {
    Store(Owner, usize),
    Discard(Owner),
    /// Discards the objects of all owners between these two.
    DiscardMany(Owner, Owner),
    Compact(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![1usize..=64, 1usize..=4096, 900usize..1400, Just(4096usize)];
    prop_oneof![
        12 => (0u32..300, len).prop_map(|(owner, len)| Op::Store(owner, len)),
        3 => (0u32..300).prop_map(Op::Discard),
        1 => (0u32..300, 0u32..100).prop_map(|(from, count)| Op::DiscardMany(from, from + count)),
        1 => (1usize..400).prop_map(Op::Compact),
    ]
}

fn run(ops: &[Op], limit: u64) -> Result<(), TestCaseError> {
    let Subject { heap: pool, budget } = subject(limit);
    let (map, mut versions) = (Map::default(), BTreeMap::new());
    for (version, op) in (1..).zip(ops) {
        match *op {
            Op::Store(owner, len_bytes) => {
                if store(&pool, &map, owner, version, len_bytes).is_ok() {
                    versions.insert(owner, (version, len_bytes));
                } else {
                    prop_assert!(limit != u64::MAX);
                }
            }
            Op::Discard(owner) => {
                discard(&pool, &map, owner);
                versions.remove(&owner);
            }
            Op::DiscardMany(from, to) => {
                for owner in from..to {
                    discard(&pool, &map, owner);
                    versions.remove(&owner);
                }
            }
            Op::Compact(objects) => _ = pool.compact(&map, Goal::Densest, objects),
        }
        if version % 64 == 0 {
            verify(&pool, &map, &versions)?;
            prop_assert_eq!(pool.account().held_bytes, budget.used());
            let resident = resident_bytes(&pool);
            prop_assert!(resident <= pool.account().held_bytes, "{} bytes, {:?}", resident, pool.account());
        }
    }
    verify(&pool, &map, &versions)?;
    for owner in 0..400 {
        discard(&pool, &map, owner);
    }
    prop_assert_eq!(resident_bytes(&pool), 0);
    let empty = pool.account();
    prop_assert_eq!((empty.live_bytes, empty.free_bytes, empty.tail_bytes), (0, 0, 0));
    prop_assert_eq!(empty.held_bytes, budget.used());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_heap_is_a_map_of_objects(
        ops in prop::collection::vec(any_op(), 1..1000),
        limit in prop_oneof![Just(u64::MAX), 100_000u64..700_000],
    ) {
        run(&ops, limit)?;
    }
}

/// A large heap takes memory in larger steps. What it does not use yet stays a small part of what
/// it holds, and of the room below the limit.
#[test]
fn memory_is_taken_in_steps_that_fit() {
    fake::set_machine([0], 1);
    for limit in [u64::MAX, 16 << 20] {
        let Subject { heap: pool, budget } = subject(limit);
        let (mut steps, mut before) = (0, budget.used());
        for owner in 0..40_000 {
            let left = budget.left();
            if pool.alloc(1000 + owner as usize % 97, owner).is_err() {
                assert!(left <= 4096, "{left} bytes were left");
                break;
            }
            let Account { held_bytes, tail_bytes, .. } = pool.account();
            // The last step was taken when more was left; the end of a segment may be too short to use.
            let most = held_bytes.min(left + u64::from(SEGMENT)) / HOLD_PART;
            let most = most.clamp(4096, SEGMENT.into()) + held_bytes / u64::from(SEGMENT) * 16;
            assert!(tail_bytes <= most, "{tail_bytes} bytes are unused of {held_bytes}, {left} were left");
            steps += u64::from(budget.used() != before);
            before = budget.used();
        }
        // Each doubling of the step takes as many steps as the first one, and so does each halving
        // near the limit.
        let doublings = if limit == u64::MAX { 5 } else { 9 };
        let most = before / u64::from(SEGMENT) + doublings * HOLD_PART;
        assert!(steps <= most, "{steps} steps to {before} bytes");
        assert!(resident_bytes(&pool) <= pool.account().held_bytes);
    }
}

/// A segment that becomes empty while a thread faults in its memory is released when the thread is
/// done, whether it is still open or not.
#[test]
fn memory_that_is_faulted_in_late_is_released() {
    fake::set_machine([0], 1);
    for is_closed in [false, true] {
        let pool = unlimited();
        let padded = pool.padded(0).expect("memory");
        let wanted = Wanted { len_bytes: 1000, owner: 0, writes: true, purpose: Purpose::Store };
        let mut shard = padded.shard.lock();
        let mut objects = Vec::new();
        let mut alloc = |shard: &mut Shard| {
            objects.push(shard.alloc(&padded.blocks, wanted).expect("no limit"));
            objects[objects.len() - 1] / SEGMENT
        };
        let (segment, fresh) = loop {
            let segment = alloc(&mut shard);
            if let Some(fresh) = shard.take_fresh() {
                break (segment, fresh);
            }
        };
        let mut last = segment;
        while is_closed && last == segment {
            last = alloc(&mut shard);
            if let Some(other) = shard.take_fresh() {
                shard.filled(&padded.blocks, other);
            }
        }
        let (gone, kept): (Vec<_>, Vec<_>) = objects.into_iter().partition(|at| at / SEGMENT == segment);
        let before = shard.held_bytes;
        gone.into_iter().for_each(|at| shard.free(&padded.blocks, at));
        assert_eq!(shard.held_bytes, before, "it is kept");
        drop(shard);
        fresh.fill(&padded.blocks);
        let mut shard = padded.shard.lock();
        shard.filled(&padded.blocks, fresh);
        assert!(shard.held_bytes < before && padded.blocks.resident_bytes() <= shard.held_bytes);
        kept.into_iter().for_each(|at| shard.free(&padded.blocks, at));
        assert_eq!((shard.held_bytes, padded.blocks.resident_bytes()), (0, 0));
        drop(shard);
        pool.check().expect("consistent");
    }
}

#[test]
fn objects_fill_what_they_fit_in_to_the_byte() {
    for cpus in [1, 2, 8, 16, 64, 128] {
        fake::set_machine(0..cpus, cpus);
        objects_fill_what_they_fit_in(cpus as u64);
    }
}

fn objects_fill_what_they_fit_in(cpus: u64) {
    let (pool, map) = (unlimited(), Map::default());
    for owner in 0..10_000 {
        store(&pool, &map, owner, 0, 1000 + owner as usize % 97).expect("no limit");
    }
    let Account { live_bytes, held_bytes, tail_bytes, .. } = pool.account();
    let objects: u64 = (0..10_000u64).map(|owner| 1000 + owner % 97).sum();
    // A header is 5 bytes and nothing is rounded up; an object in two pieces, as at the end of some
    // segments, uses 13 more.
    assert!((objects + 10_000 * 5..objects + 10_000 * 5 + 160 * 2 * 13).contains(&live_bytes), "{:?}", pool.account());
    // Each CPU has a shard and a home in the index.
    let used_bytes = held_bytes - tail_bytes;
    assert!(used_bytes < objects + objects / 100 + cpus * 64, "{cpus} CPUs, {:?}", pool.account());
}

#[test]
fn other_lengths_find_room_among_the_old_ones() {
    // On one CPU there is one shard, since a thread fills its CPU's shard first and leaves holes in
    // others to compaction.
    let mut cpus = CpuSet::new();
    cpus.set(rustix::thread::sched_getcpu());
    sched_setaffinity(None, &cpus).expect("its own CPU");
    let (pool, map) = (unlimited(), Map::default());
    for owner in 0..10_000 {
        store(&pool, &map, owner, 0, 700 + owner as usize * 7919 % 700).expect("no limit");
    }
    let before = pool.account();
    for owner in (0..10_000).step_by(2) {
        discard(&pool, &map, owner);
    }
    // Each is longer than any hole that one object leaves.
    let mut freed = before.live_bytes - pool.account().live_bytes;
    let mut owner = 20_000;
    while freed > 100_000 {
        store(&pool, &map, owner, 0, 2200).expect("no limit");
        freed = freed.saturating_sub(2200);
        owner += 1;
    }
    let after = pool.account();
    assert!((after.held_bytes as f64) < before.held_bytes as f64 * 1.06, "{before:?} {after:?}");
    pool.check().expect("consistent");
}

#[test]
fn compaction_gives_memory_back() {
    let (pool, map) = (unlimited(), Map::default());
    for owner in 0..20_000 {
        store(&pool, &map, owner, 0, 500 + owner as usize % 1000).expect("no limit");
    }
    for owner in (0..20_000).filter(|owner| owner % 10 != 3) {
        discard(&pool, &map, owner);
    }
    assert_eq!(pool.pressure(), Pressure::Hard);
    while pool.compact(&map, Goal::Relief, 100) {}
    assert_eq!(pool.pressure(), Pressure::None);
    let Account { held_bytes, live_bytes, .. } = pool.account();
    assert!(held_bytes < live_bytes * 5 / 4, "{:?}", pool.account());
    let versions = (0..20_000).filter(|owner| owner % 10 == 3);
    verify(&pool, &map, &versions.map(|owner| (owner, (0, 500 + owner as usize % 1000))).collect()).expect("unchanged");
}

/// Each thread replaces objects that another has allocated, in a heap with a shard per CPU.
#[test]
fn objects_are_freed_by_threads_of_other_cpus() {
    const OWNERS: Owner = 12_000;
    const THREADS: u64 = 4;
    let (pool, map) = (unlimited(), Map::default());
    let versions: Vec<Mutex<(u64, usize)>> = (0..OWNERS).map(|_| Mutex::new((0, 1500))).collect();
    for owner in 0..OWNERS {
        store(&pool, &map, owner, 0, 1500).expect("no limit");
    }
    let compacting = AtomicBool::new(true);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (pool, map, versions) = (&pool, &map, &versions);
                scope.spawn(move || {
                    let mut cpus = CpuSet::new();
                    cpus.set(thread as usize % thread::available_parallelism().map_or(1, usize::from));
                    // If the CPU cannot be chosen, the thread stays where it is.
                    let _ = sched_setaffinity(None, &cpus);
                    for turn in 1..20_000u64 {
                        let owner = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * thread) % u64::from(OWNERS);
                        let owner = owner as Owner;
                        let len_bytes = 1 + (turn.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 50) as usize % 3000;
                        let mut version = versions[owner as usize].lock().expect("no thread panics");
                        *version = (turn * THREADS + thread, len_bytes);
                        store(pool, map, owner, version.0, len_bytes).expect("no limit");
                    }
                })
            })
            .collect();
        let (pool, map, compacting) = (&pool, &map, &compacting);
        scope.spawn(move || {
            while compacting.load(Relaxed) {
                pool.compact(map, Goal::Relief, 64);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        compacting.store(false, Relaxed);
    });
    pool.check().expect("consistent");
    assert!(resident_bytes(&pool) <= pool.account().held_bytes);
    let found = (0..OWNERS).map(|owner| (owner, *versions[owner as usize].lock().expect("no thread panics")));
    let found: BTreeMap<_, _> = found.collect();
    verify(&pool, &map, &found).expect("all there");
    let objects: usize = found.values().map(|(_, len_bytes)| len_bytes + 30).sum();
    let Account { live_bytes, .. } = pool.account();
    assert!(live_bytes <= objects as u64, "{live_bytes} bytes are live of {objects}");
    for owner in 0..OWNERS {
        discard(&pool, &map, owner);
    }
    let Account { live_bytes, held_bytes, .. } = pool.account();
    assert!(live_bytes == 0 && held_bytes < 1 << 20, "{:?}", pool.account());
}

/// Objects without an entry, like those that are being written, or that were replaced and are still
/// read.
#[test]
fn compaction_gives_up_on_what_cannot_be_moved() {
    let (pool, map) = (unlimited(), Map::default());
    for owner in 0..5000 {
        store(&pool, &map, owner, 0, 1000).expect("no limit");
    }
    for owner in (0..5000).step_by(3) {
        discard(&pool, &map, owner);
    }
    let entries = std::mem::take(&mut *map.lock());
    assert!(!pool.compact(&map, Goal::Relief, usize::MAX), "nothing can be moved");
    *map.lock() = entries;
    while pool.compact(&map, Goal::Relief, 100) {}
    assert_eq!(pool.pressure(), Pressure::None);
    pool.check().expect("consistent");
}

#[test]
fn objects_move_while_they_are_read_and_replaced() {
    const OWNERS: Owner = 1500;
    let (pool, map, stop) = (unlimited(), Map::default(), AtomicBool::new(false));
    let versions: Vec<RwLock<(u64, usize)>> = (0..OWNERS).map(|_| RwLock::new((0, 0))).collect();
    let moved = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (pool, map, stop, versions) = (&pool, &map, &stop, &versions);
            scope.spawn(move || {
                for turn in 0..40_000u64 {
                    let owner = (((turn * 2_654_435_761) >> 7) % u64::from(OWNERS / 2)) as Owner * 2 + thread;
                    let len_bytes = 1 + (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize % 3000;
                    store(pool, map, owner, turn, len_bytes).expect("no limit");
                    *versions[owner as usize].write().expect("no thread panics") = (turn, len_bytes);
                }
                stop.store(true, Relaxed);
            });
        }
        for _ in 0..2 {
            let (pool, map, stop, moved) = (&pool, &map, &stop, &moved);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    pool.compact(map, Goal::Densest, 64);
                    moved.fetch_add(1, Relaxed);
                }
            });
        }
    });
    assert!(moved.into_inner() > 0);
    let versions = (0..OWNERS).map(|owner| (owner, *versions[owner as usize].read().expect("no thread panics")));
    verify(&pool, &map, &versions.filter(|(_, (_, len))| *len > 0).collect()).expect("all there");
}

/// Objects of one kind replace each other in a heap that is as full as a store allows: its free
/// bytes are in holes that are too short, and must be brought together.
#[test]
fn a_full_pool_takes_objects_while_enough_is_free() {
    for (least, most) in [(1200, 2223), (200, 900), (2000, 4096), (1500, 1600), (1, 4096)] {
        overwrite_in_a_full_pool(least, most);
    }
}

fn overwrite_in_a_full_pool(least: u64, most: u64) {
    const LIMIT: u64 = 16 << 20;
    let Subject { heap: pool, budget } = subject(LIMIT);
    let map = Map::default();
    let (mut owners, mut state) = (0, 1u64);
    for version in 0..3 * LIMIT / least.midpoint(most) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let len_bytes = (least + (state >> 32) % (most - least + 1)) as usize;
        let owner = if budget.admits(len_bytes as u64, true) {
            owners += 1;
            owners
        } else {
            (state % u64::from(owners)) as Owner
        };
        let old_bytes = map.object(owner).map_or(0, |(_, len_bytes)| len_bytes);
        if old_bytes > 0 && !budget.admits(len_bytes.saturating_sub(old_bytes) as u64, false) {
            continue;
        }
        if store(&pool, &map, owner, version, len_bytes).is_err() {
            let at = pool.make_room(&map, len_bytes, owner);
            let at = at
                .unwrap_or_else(|Full| panic!("{least} to {most}, {version}: {len_bytes} bytes, {:?}", pool.account()));
            put(&pool, &map, owner, version, (at, len_bytes));
        }
    }
    pool.check().expect("consistent");
}

/// A writer that continues where the compactor has paused gains what the whole emptying freed, less
/// what was taken for it. Otherwise, each such writer would permanently take some of the reserve
/// for moving.
#[test]
fn memory_taken_by_a_paused_emptying_is_not_gained() {
    let Subject { heap: pool, .. } = subject(u64::MAX);
    let map = Map::default();
    for owner in 0..1000 {
        store(&pool, &map, owner, 1, if owner % 4 == 0 { 200 } else { 1500 }).expect("no limit");
    }
    (0..1000).step_by(4).for_each(|owner| discard(&pool, &map, owner));
    for _ in 0..4 {
        let before = pool.account().held_bytes;
        pool.compact(&map, Goal::Densest, 20);
        let taken = pool.account().held_bytes - before;
        assert!(taken > 0, "the holes are too short for what moves");
        let gained = pool.empty_one(&map).expect("a segment is being emptied");
        assert_eq!(gained, before as i64 - pool.account().held_bytes as i64, "{taken} bytes had been taken");
    }
}

#[test]
fn one_thread_at_a_time_relieves_a_shard() {
    let pool = unlimited();
    let objects: Vec<_> = (0..1000).map(|owner| pool.alloc(1000, owner).expect("no limit")).collect();
    for (owner, &at) in objects.iter().enumerate().filter(|(owner, _)| owner % 2 == 0) {
        // SAFETY: each is freed once, and no thread uses it.
        unsafe { pool.free(at) };
        assert!(owner < 500 || pool.pressure() == Pressure::Hard);
    }
    let padded = pool.padded(0).expect("it is there");
    let relieve = || {
        // No object has an owner: each attempt to move one asks for its owner.
        let owners = Nobody::default();
        pool.compact(&owners, Goal::Relief, 100);
        owners.0.into_inner()
    };
    padded.relieving.store(true, Relaxed);
    assert_eq!(relieve(), 0);
    assert_eq!(pool.pressure(), Pressure::Hard, "it is left to who relieves");
    padded.relieving.store(false, Relaxed);
    assert!(relieve() > 0);
    assert!(!padded.relieving.load(Relaxed));
    pool.check().expect("consistent");
}

/// Counts the requests for an owner's object.
#[derive(Default)]
struct Nobody(AtomicU64);

impl Owners for Nobody {
    fn len_bytes(&self, _: Owner, _: Location) -> Option<usize> {
        self.0.fetch_add(1, Relaxed);
        None
    }

    fn repoint(&self, _: Owner, _: Location, _: Location, _: usize, _: &mut dyn FnMut()) -> Option<u64> {
        None
    }

    fn wait_for_readers(&self, _: &[u64]) {}

    fn settle(&self) {}
}

#[test]
fn contending_threads_get_separate_shards() {
    fake::set_machine([0, 1], 2);
    let pool = unlimited();
    for owner in 0..1 + SHARD_STEP / 4000 {
        pool.alloc(4000, owner as Owner).expect("no limit");
    }
    let alloc = || {
        fake::run_on(1);
        pool.alloc(100, 0).expect("no limit").get() >> pool.span_bits
    };
    for _ in 0..1000 {
        assert_eq!(pool.active.load(Relaxed), 1);
        let held = pool.padded(0).expect("it is there").shard.lock();
        thread::scope(|scope| {
            scope.spawn(alloc);
            // In one of the many rounds, the thread waits for the lock by then.
            thread::sleep(Duration::from_millis(2));
            drop(held);
        });
        if pool.active.load(Relaxed) == 2 {
            break;
        }
    }
    assert_eq!(thread::scope(|scope| scope.spawn(alloc).join().expect("no panic")), 1);
    pool.check().expect("consistent");
    assert!(pool.account().held_bytes < crowded_fill(2) && crowded_fill(16) == 16 * SHARD_LEAST);
}
