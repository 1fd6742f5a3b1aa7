//! Forks: disks that start with the content of others at one instant.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use pagefold_store::{Disk, Error, PAGE_SIZE, Page, Pool, PoolConfig, Precopy, Status, StatusRun};
use proptest::prelude::*;

use crate::{
    handover::{handed_over, handed_over_after},
    killed::{kept, salvaged},
    pages::mixed,
};

/// Returns a page that identifies the version; some are one repeated word, and some do not
/// compress.
fn page_of(version: u64) -> Box<Page> {
    match version % 5 {
        0 => Box::new([version as u8; PAGE_SIZE]),
        1 => mixed(version, 0xff),
        _ => mixed(version, 0x0f),
    }
}

/// The content that a slot must have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Held {
    Nothing,
    /// Discarded, which on a disk that was forked or is over something is not the same as empty.
    Discarded,
    Zeros,
    Version(u64),
    /// A version with bytes 100 to 199 overwritten.
    Over(u64),
}

/// A disk, and the content that it must have.
struct Modelled {
    disk: Disk,
    model: Vec<Held>,
}

impl Modelled {
    fn page(held: Held) -> Box<Page> {
        match held {
            Held::Nothing | Held::Discarded | Held::Zeros => Box::new([0; PAGE_SIZE]),
            Held::Version(version) => page_of(version),
            Held::Over(version) => {
                let mut page = page_of(version);
                page[100..200].fill(0xaa);
                page
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut page = [1; PAGE_SIZE];
        prop_assert_eq!(self.disk.slots(), self.model.len() as u64);
        for (slot, &held) in self.model.iter().enumerate() {
            let is_held = self.disk.read(slot as u64, &mut page).expect("a readable page");
            prop_assert!(page == *Self::page(held), "slot {} is not {:?}", slot, held);
            prop_assert!(is_held || matches!(held, Held::Nothing | Held::Discarded), "slot {} holds {:?}", slot, held);
            prop_assert!(!is_held || held != Held::Nothing, "slot {} holds nothing", slot);
            let mut again = [1; PAGE_SIZE];
            prop_assert_eq!(self.disk.read_held(slot as u64, &mut again), Ok(is_held));
            prop_assert!(!is_held || again == page, "slot {} is another page", slot);
        }
        let mut slot = 0;
        while slot < self.disk.slots() {
            let StatusRun { status, slots, .. } = self.disk.run(slot, u64::MAX).expect("a slot");
            prop_assert!(slots > 0);
            for slot in slot..slot + slots {
                prop_assert_eq!(self.disk.status(slot), Ok(status));
                let is_zero = *Self::page(self.model[slot as usize]) == [0; PAGE_SIZE];
                prop_assert_eq!(status != Status::Data, is_zero, "slot {}: {:?}", slot, status);
            }
            slot += slots;
        }
        prop_assert_eq!(slot, self.disk.slots());
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        slot: u64,
    },
    Update {
        slot: u64,
    },
    UpdateHeld {
        slot: u64,
    },
    UpdateOver {
        slot: u64,
    },
    Zero {
        slot: u64,
    },
    Discard {
        slot: u64,
        count: u64,
    },
    Resize {
        slots: u64,
    },
    Fork,
    Become {
        other: usize,
    },
    Drop,
    Compact,
    /// Writes a round of a stream, by which the pool is handed over at the end.
    Round,
    /// Gives such a stream up.
    GiveUp,
    HandOver,
    /// Continues with what another process would find.
    Kill,
}

const SLOTS: u64 = 4300;

fn any_slot() -> impl Strategy<Value = u64> {
    prop_oneof![0..130u64, 4050..4200u64, 4290..SLOTS]
}

fn any_op() -> impl Strategy<Value = (usize, Op)> {
    let op = prop_oneof![
        10 => any_slot().prop_map(|slot| Op::Write { slot }),
        3 => any_slot().prop_map(|slot| Op::Update { slot }),
        2 => any_slot().prop_map(|slot| Op::UpdateHeld { slot }),
        2 => any_slot().prop_map(|slot| Op::UpdateOver { slot }),
        1 => any_slot().prop_map(|slot| Op::Zero { slot }),
        3 => (any_slot(), prop_oneof![1..70u64, 1..5000u64, Just(SLOTS)]).prop_map(|(slot, count)| Op::Discard { slot, count }),
        1 => prop_oneof![any_slot(), Just(SLOTS), Just(20_000u64)].prop_map(|slots| Op::Resize { slots: slots + 1 }),
        4 => Just(Op::Fork),
        2 => any::<usize>().prop_map(|other| Op::Become { other }),
        2 => Just(Op::Drop),
        1 => Just(Op::Compact),
        2 => Just(Op::Round),
        1 => Just(Op::GiveUp),
        1 => Just(Op::HandOver),
        1 => Just(Op::Kill),
    ];
    (any::<usize>(), op)
}

/// Runs `ops`. With `dedupe`, many of the pages are equal.
fn run(ops: Vec<(usize, Op)>, over: bool, dedupe: bool) -> Result<(), TestCaseError> {
    let config = PoolConfig::default().dedupe(dedupe);
    let mut pool = Pool::new(kept(&config)).expect("a pool");
    let new = |pool: &Pool| {
        let disk = if over { pool.disk_over(SLOTS) } else { pool.disk(SLOTS) };
        Modelled { disk: disk.expect("a disk"), model: vec![Held::Nothing; SLOTS as usize] }
    };
    let mut disks = vec![new(&pool)];
    let mut ahead: Option<(Precopy, Vec<u8>)> = None;
    for (version, (at, op)) in (1u64..).zip(ops) {
        let version = if dedupe { version % 7 + 1 } else { version };
        let many = disks.len();
        let at = at % many;
        let Modelled { disk, model } = &mut disks[at];
        let inside = |slot: u64| slot.min(model.len() as u64 - 1);
        match op {
            Op::Write { slot } => {
                let slot = inside(slot);
                disk.write(slot, &page_of(version)).expect("no limit");
                model[slot as usize] = Held::Version(version);
            }
            Op::Update { slot } => {
                let slot = inside(slot);
                disk.update(slot, |page| {
                    assert!(*page == *Modelled::page(model[slot as usize]), "slot {slot} changes another page");
                    *page = *Modelled::page(Held::Over(version));
                })
                .expect("no limit");
                model[slot as usize] = Held::Over(version);
            }
            Op::UpdateHeld { slot } => {
                let slot = inside(slot);
                let held = model[slot as usize];
                let done = disk.update_held(slot, |page| *page = *page_of(version)).expect("no limit");
                prop_assert!(done || matches!(held, Held::Nothing | Held::Discarded));
                prop_assert!(!done || held != Held::Nothing);
                if done {
                    model[slot as usize] = Held::Version(version);
                }
            }
            Op::UpdateOver { slot } => {
                let slot = inside(slot);
                let below = page_of(version);
                disk.update_over(slot, &below, |page| page[100..200].fill(0xaa)).expect("no limit");
                let mut page = [0; PAGE_SIZE];
                disk.read(slot, &mut page).expect("a readable page");
                let before = Modelled::page(model[slot as usize]);
                let over = if page[0..100] == before[0..100] && model[slot as usize] != Held::Nothing {
                    before
                } else {
                    below
                };
                prop_assert!(page[..100] == over[..100] && page[200..] == over[200..] && page[100..200] == [0xaa; 100]);
                disk.write(slot, &page_of(version)).expect("no limit");
                model[slot as usize] = Held::Version(version);
            }
            Op::Zero { slot } => {
                let slot = inside(slot);
                disk.write_zeroes(slot).expect("no limit");
                model[slot as usize] = Held::Zeros;
            }
            Op::Discard { slot, count } => {
                let (slot, end) = (inside(slot), (inside(slot) + count).min(model.len() as u64));
                disk.discard(slot..end).expect("slots of the disk");
                model[slot as usize..end as usize].fill(Held::Discarded);
            }
            Op::Resize { slots } => {
                disk.resize(slots).expect("a size");
                let before = model.len();
                model.resize(slots as usize, Held::Discarded);
                model[before.min(slots as usize)..].fill(Held::Discarded);
            }
            Op::Fork if many < 12 => {
                let fork = Modelled { disk: disk.fork().expect("no limit"), model: model.clone() };
                disks.push(fork);
            }
            Op::Fork => {}
            Op::Become { other } => {
                let other = other % many;
                if other != at {
                    disks[at].disk.become_as(disks[other].disk.fork().expect("no limit")).expect("no limit");
                    disks[at].model = disks[other].model.clone();
                }
            }
            Op::Drop if many > 1 => drop(disks.swap_remove(at)),
            Op::Drop => disks[0] = new(&pool),
            Op::Compact => pool.compact(),
            Op::Round => {
                let begin = || (Precopy::begin(&pool).expect("the only one"), Vec::new());
                let (precopy, stream) = ahead.get_or_insert_with(begin);
                let before: Vec<&Disk> = disks.iter().map(|modelled| &modelled.disk).collect();
                precopy.round(&before, stream).expect("a round");
            }
            Op::GiveUp => ahead = None,
            // After that, the pool is in private memory.
            Op::Kill if pool.file().is_none() => {}
            Op::HandOver | Op::Kill => {
                let before: Vec<&Disk> = disks.iter().map(|modelled| &modelled.disk).collect();
                let is_killed = matches!(op, Op::Kill);
                // Parts that only rounds need are not found.
                let imported = match ahead.take().filter(|_| !is_killed) {
                    None if is_killed => salvaged(&pool, &before, kept(&config)),
                    None => handed_over(&pool, &before, config.clone()),
                    Some(rounds) => handed_over_after(rounds, &pool, &before, config.clone(), dedupe),
                };
                for (modelled, disk) in disks.iter_mut().zip(imported.disks) {
                    modelled.disk = disk.disk;
                }
                pool = imported.pool;
            }
        }
    }
    drop(ahead);
    disks.iter().try_for_each(Modelled::check)?;
    pool.check().map_err(TestCaseError::fail)?;
    while let Some(last) = disks.pop() {
        drop(last);
        pool.check().map_err(TestCaseError::fail)?;
        if let Some(first) = disks.first() {
            first.check()?;
        }
    }
    pool.compact();
    let stats = pool.stats();
    prop_assert_eq!((stats.orig_data_size, stats.compr_data_size, stats.same_pages), (0, 0, 0));
    prop_assert!(stats.table_bytes < 64 << 10, "{:?}", stats);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn forks_are_vectors_of_pages(ops in prop::collection::vec(any_op(), 0..120)) {
        run(ops, false, false)?;
    }

    #[test]
    fn forks_over_something_are_vectors_of_pages(ops in prop::collection::vec(any_op(), 0..120)) {
        run(ops, true, false)?;
    }

    #[test]
    fn forks_that_share_equal_pages_are_vectors_of_pages(ops in prop::collection::vec(any_op(), 0..120), over: bool) {
        run(ops, over, true)?;
    }
}

/// Returns the number in a page that counts.
fn count_in(disk: &Disk, slot: u64) -> u64 {
    let mut page = [0; PAGE_SIZE];
    disk.read(slot, &mut page).expect("a readable page");
    u64::from_le_bytes(page[..8].try_into().expect("eight bytes"))
}

/// Returns a page with that number, which becomes an object.
fn counting(number: u64) -> Box<Page> {
    let mut page = mixed(number, 0x07);
    page[..8].copy_from_slice(&number.to_le_bytes());
    page
}

/// Writers write the number of the round to their slots in order. At any instant, a fork has one
/// number up to some slot and the previous one from there on, and never changes.
#[test]
fn a_fork_is_of_one_instant() {
    const WRITERS: u64 = 3;
    const EACH: u64 = 200;
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = pool.disk(1 << 20).expect("a disk");
    let stop = AtomicBool::new(false);
    let slot_of = |writer: u64, at: u64| writer + at * WRITERS;
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (disk, stop) = (&disk, &stop);
            scope.spawn(move || {
                for round in 1.. {
                    for at in 0..EACH {
                        let slot = slot_of(writer, at);
                        if writer == 0 {
                            disk.update(slot, |page| *page = *counting(round)).expect("no limit");
                        } else {
                            disk.write(slot, &counting(round)).expect("no limit");
                        }
                    }
                    if stop.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        let mut kept = Vec::new();
        for turn in 0..300 {
            let fork = disk.fork().expect("no limit");
            let numbers = || -> Vec<u64> {
                (0..WRITERS)
                    .flat_map(|writer| (0..EACH).map(move |at| (writer, at)))
                    .map(|(writer, at)| count_in(&fork, slot_of(writer, at)))
                    .collect()
            };
            let first = numbers();
            for numbers in first.chunks(EACH as usize) {
                assert!(numbers.is_sorted_by(|before, after| before >= after), "{numbers:?}");
                assert!(numbers[0] - numbers[numbers.len() - 1] <= 1, "{numbers:?}");
            }
            assert_eq!(numbers(), first, "the fork changes");
            if turn % 3 == 0 {
                kept.push((fork, first));
            }
            if kept.len() > 20 {
                kept.remove(turn % 20);
            }
            if turn % 50 == 0 {
                pool.compact();
            }
        }
        stop.store(true, Relaxed);
        for (fork, first) in &kept {
            let again: Vec<u64> = (0..WRITERS)
                .flat_map(|writer| (0..EACH).map(move |at| slot_of(writer, at)))
                .map(|slot| count_in(fork, slot))
                .collect();
            assert_eq!(again, *first, "the fork changes");
        }
    });
    pool.check().expect("consistent");
}

/// Threads increment shared slots while the disk is forked repeatedly and its forks are dropped: no
/// change is lost.
#[test]
fn changes_across_forks_add_up() {
    const THREADS: u64 = 3;
    const ADDS: u64 = 4000;
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = pool.disk(4096).expect("a disk");
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for add in 0..ADDS {
                    let slot = add * 7 % 40 * 50;
                    let next = |page: &mut Page| {
                        let count = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
                        *page = *counting(count + 1);
                    };
                    disk.update(slot, next).expect("no limit");
                }
                done.fetch_add(1, Relaxed);
            });
        }
        let mut forks = Vec::new();
        while done.load(Relaxed) < THREADS {
            forks.push(disk.fork().expect("no limit"));
            if forks.len() == 8 {
                forks.swap_remove(forks.len() / 2);
                forks.remove(0);
            }
        }
    });
    let sum: u64 = (0..40).map(|at| count_in(&disk, at * 50)).sum();
    assert_eq!(sum, THREADS * ADDS);
    pool.check().expect("consistent");
}

/// Threads with families of forks in a pool that is short of memory: a disk whose write fails keeps
/// its content, and so do all forks.
#[test]
fn families_of_forks_at_the_limit() {
    families(u64::MAX, false);
}

/// The same for threads that write a few different pages.
#[test]
fn families_that_share_equal_pages_at_the_limit() {
    families(1500, true);
    families(20, true);
}

/// Runs the test with `kinds` different pages.
fn families(kinds: u64, dedupe: bool) {
    let limit = 3 << 20;
    let pool = Pool::new(PoolConfig::default().memory_limit(limit).dedupe(dedupe)).expect("a pool");
    let root = pool.disk(2000).expect("a disk");
    let mut base = vec![0; 2000];
    for slot in (0..2000).step_by(5) {
        root.write(slot, &counting(slot + 1)).expect("room");
        base[slot as usize] = slot + 1;
    }
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (root, base, refused, pool) = (&root, &base, &refused, &pool);
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut random = move |below: u64| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) % below
                };
                let mut disks: Vec<(Disk, Vec<u64>)> = Vec::new();
                for turn in 1..=6000u64 {
                    let full = |error| {
                        assert_eq!(error, Error::Full);
                        refused.fetch_add(1, Relaxed);
                    };
                    if disks.is_empty() || (disks.len() < 8 && random(30) == 0) {
                        let from = random(disks.len() as u64 + 1) as usize;
                        let (disk, model) = disks.get(from).map_or((root, base), |(disk, model)| (disk, model));
                        match disk.fork() {
                            Ok(fork) => disks.push((fork, model.clone())),
                            Err(error) => full(error),
                        }
                        continue;
                    }
                    let at = random(disks.len() as u64) as usize;
                    let slot = random(2000);
                    let (disk, model) = &mut disks[at];
                    let number = (turn << 8 | thread) % kinds + 1;
                    match random(40) {
                        0 => drop(disks.swap_remove(at)),
                        1 => match disk.discard(slot..(slot + 100).min(2000)) {
                            Ok(()) => model[slot as usize..(slot as usize + 100).min(2000)].fill(0),
                            Err(error) => {
                                full(error);
                                (0..2000)
                                    .filter(|&slot| count_in(disk, slot) == 0)
                                    .for_each(|slot| model[slot as usize] = 0);
                            }
                        },
                        2..20 => match disk.write(slot, &counting(number)) {
                            Ok(()) => model[slot as usize] = number,
                            Err(error) => full(error),
                        },
                        20..28 => {
                            let mut seen = 0;
                            let done = disk.update(slot, |page| {
                                seen = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
                                *page = *counting(number);
                            });
                            match done {
                                Ok(()) => {
                                    assert_eq!(seen, model[slot as usize]);
                                    model[slot as usize] = number;
                                }
                                Err(error) => full(error),
                            }
                        }
                        _ => assert_eq!(count_in(disk, slot), model[slot as usize], "slot {slot}"),
                    }
                    if turn % 1000 == 0 {
                        assert!(pool.stats().spent_bytes <= limit);
                    }
                }
                for (disk, model) in &disks {
                    (0..2000).for_each(|slot| assert_eq!(count_in(disk, slot), model[slot as usize], "slot {slot}"));
                }
            });
        }
    });
    assert!(dedupe || refused.load(Relaxed) > 0, "the limit was never reached");
    (0..2000).for_each(|slot| assert_eq!(count_in(&root, slot), base[slot as usize], "slot {slot}"));
    pool.check().expect("consistent");
    drop(root);
    pool.check().expect("consistent");
    let stats = pool.stats();
    assert_eq!((stats.orig_data_size, stats.compr_data_size), (0, 0));
}

/// A page that equals the stored one takes nothing, whichever disk wrote it.
#[test]
fn equal_pages_are_stored_once() {
    let pool = Pool::new(PoolConfig::default().train(false)).expect("a pool");
    let disk = pool.disk(1000).expect("a disk");
    for slot in 0..1000 {
        disk.write(slot, &page_of(slot)).expect("no limit");
    }
    let fork = disk.fork().expect("no limit");
    let before = pool.stats();
    for slot in 0..1000 {
        fork.write(slot, &page_of(slot)).expect("no limit");
    }
    let after = pool.stats();
    assert_eq!((after.orig_data_size, after.compr_data_size), (before.orig_data_size, before.compr_data_size));
    assert_eq!((after.table_bytes, fork.stats().orig_data_size), (before.table_bytes, 0));
    fork.write(7, &page_of(1)).expect("no limit");
    assert_eq!(fork.stats().orig_data_size, PAGE_SIZE as u64);
    fork.forget(7).expect("no limit");
    assert_eq!(fork.stats().orig_data_size, 0);
    let mut page = [1; PAGE_SIZE];
    assert_eq!((fork.read(7, &mut page), page), (Ok(false), [0; PAGE_SIZE]));
    drop(disk);
    for slot in (0..1000).filter(|&slot| slot != 7) {
        fork.read(slot, &mut page).expect("a readable page");
        assert!(page == *page_of(slot), "slot {slot}");
    }
    pool.check().expect("consistent");
}
