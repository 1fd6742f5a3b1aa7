//! Many disks in one pool, created and dropped.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use pagefold_store::{Disk, Error, PAGE_SIZE, Page, Pool, PoolConfig};
use proptest::prelude::*;

use crate::pages::{any_page, mixed};

/// Returns a page that names its disk, slot and version.
fn page_of(disk: u64, slot: u64, version: u64) -> Box<Page> {
    let mask = [0x01, 0x0f, 0x3f, 0xff][(version % 4) as usize];
    let mut page = mixed(disk << 40 | slot << 20 | version, mask);
    for (at, word) in [disk, slot, version].into_iter().enumerate() {
        page[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    page
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// A disk of one thread, and the content that it must have.
struct Owned {
    disk: Disk,
    number: u64,
    model: Vec<u64>,
}

impl Owned {
    fn assert_slot(&self, slot: u64) {
        let mut page = [1; PAGE_SIZE];
        self.disk.read(slot, &mut page).expect("a readable page");
        let expected = match self.model[slot as usize] {
            0 => Box::new([0; PAGE_SIZE]),
            version => page_of(self.number, slot, version),
        };
        assert!(page == *expected, "disk {}, slot {slot} has another page", self.number);
    }
}

/// Threads create disks, write, change, discard, resize and drop them, while another compacts.
fn run(memory_limit: u64, threads: u64, turns: u64) {
    let pool = Pool::new(PoolConfig::default().memory_limit(memory_limit)).expect("a pool");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let pool = &pool;
                scope.spawn(move || {
                    let (mut disks, mut state, mut made) = (Vec::<Owned>::new(), thread + 1, 0);
                    for turn in 1..=turns {
                        let many = disks.len() as u64;
                        if many == 0 || (many < 12 && random(&mut state, 40) == 0) {
                            let slots = 1 + random(&mut state, 700);
                            let Ok(disk) = pool.disk(slots) else { continue };
                            made += 1;
                            disks.push(Owned { disk, number: made * threads + thread, model: vec![0; slots as usize] });
                            continue;
                        }
                        let at = random(&mut state, many) as usize;
                        let slots = disks[at].disk.slots();
                        let slot = random(&mut state, slots);
                        let Owned { disk, number, model } = &mut disks[at];
                        let mut note = |done: Result<(), Error>| match done {
                            Ok(()) => model[slot as usize] = turn,
                            Err(error) => assert!(error == Error::Full && memory_limit < u64::MAX, "{error}"),
                        };
                        match random(&mut state, 100) {
                            0 => drop(disks.swap_remove(at)),
                            1..=3 => {
                                let slots = 1 + random(&mut state, 700);
                                disk.resize(slots).expect("a size");
                                model.resize(slots as usize, 0);
                            }
                            4..=8 => {
                                let end = (slot + random(&mut state, 200)).min(slots);
                                disk.discard(slot..end).expect("slots of the disk");
                                model[slot as usize..end as usize].fill(0);
                            }
                            9..=20 => note(disk.update(slot, |page| *page = *page_of(*number, slot, turn))),
                            21..=60 => note(disk.write(slot, &page_of(*number, slot, turn))),
                            _ => disks[at].assert_slot(slot),
                        }
                    }
                    disks.iter().for_each(|disk| (0..disk.disk.slots()).for_each(|slot| disk.assert_slot(slot)));
                    disks
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                pool.compact();
                let stats = pool.stats();
                assert!(stats.spent_bytes <= memory_limit && stats.mem_used_max <= memory_limit);
                thread::yield_now();
            }
        });
        let kept: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Relaxed);
        let kept: Vec<Owned> = kept.into_iter().flat_map(|disks| disks.expect("no panic")).collect();
        let compressed: u64 = kept.iter().map(|owned| owned.disk.stats().compr_data_size).sum();
        assert_eq!(compressed, pool.stats().compr_data_size);
    });
    pool.check().expect("consistent");
    pool.compact();
    let stats = pool.stats();
    assert_eq!((stats.orig_data_size, stats.compr_data_size), (0, 0), "all disks are dropped");
    assert!(stats.mem_used_total + stats.table_bytes < 256 << 10, "{stats:?}");
}

#[test]
fn disks_come_and_go() {
    run(u64::MAX, 4, 8000);
}

#[test]
fn disks_come_and_go_at_the_limit() {
    run(3 << 20, 4, 8000);
}

#[test]
fn a_thousand_disks_keep_their_pages() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disks: Vec<Disk> = (0..1000).map(|_| pool.disk(1 << 21).expect("a disk")).collect();
    let slots = [0, 1, 63, 64, 4095, 4096, (1 << 21) - 1];
    for (number, disk) in (0..).zip(&disks) {
        for slot in slots {
            disk.write(slot, &page_of(number, slot, 1 + number % 4)).expect("no limit");
        }
    }
    pool.check().expect("consistent");
    let mut page = [0; PAGE_SIZE];
    for (number, disk) in (0..).zip(&disks).filter(|(number, _)| number % 7 == 3) {
        for slot in slots {
            disk.read(slot, &mut page).expect("a readable page");
            assert!(page == *page_of(number, slot, 1 + number % 4), "disk {number}, slot {slot}");
        }
        assert_eq!(disk.stats().orig_data_size, (slots.len() * PAGE_SIZE) as u64);
    }
}

#[test]
fn idle_disks_take_little_memory() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let before = pool.stats().spent_bytes;
    let disks: Vec<Disk> = (0..10_000).map(|_| pool.disk(1 << 21).expect("a disk")).collect();
    let each = (pool.stats().spent_bytes - before) / 10_000 + size_of::<Disk>() as u64;
    assert!(each <= 4096, "{each} bytes for each of 10,000 idle disks of 8 GiB");
    drop(disks);
    // Each layer's number keeps a word and its page's entry, for the maximum number that existed
    // simultaneously and a quarter more. With 8 CPUs or more, a page has the counters of four
    // layers.
    assert!(pool.stats().spent_bytes <= before + 10_000 * 8, "{:?}", pool.stats());
    pool.check().expect("consistent");
}

#[test]
fn scattered_writes_make_small_tables() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = pool.disk(1 << 21).expect("a disk");
    for number in 0..1000u64 {
        disk.write(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 43, &page_of(0, number, 1)).expect("no limit");
    }
    let table_bytes = disk.stats().table_bytes;
    assert!(table_bytes <= 1 << 20, "{table_bytes} bytes of table for 1000 pages");
}

#[derive(Clone, Debug)]
enum Op {
    Make(u64),
    Drop(usize),
    Write(usize, u64, Box<Page>),
    Discard(usize, u64, u64),
    Resize(usize, u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let (disk, slot) = (0usize..6, 0u64..300);
    prop_oneof![
        1 => (1u64..300).prop_map(Op::Make),
        1 => disk.clone().prop_map(Op::Drop),
        8 => (disk.clone(), slot.clone(), any_page()).prop_map(|(disk, slot, page)| Op::Write(disk, slot, page)),
        2 => (disk.clone(), slot.clone(), 0u64..200).prop_map(|(disk, slot, len)| Op::Discard(disk, slot, len)),
        1 => (disk, slot).prop_map(|(disk, slots)| Op::Resize(disk, slots)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn disks_are_vectors_of_pages(ops in prop::collection::vec(any_op(), 0..300)) {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let mut disks: Vec<(Disk, Vec<Option<Box<Page>>>)> = Vec::new();
        for op in ops {
            let count = disks.len().max(1);
            match op {
                Op::Make(slots) => disks.push((pool.disk(slots).expect("a disk"), vec![None; slots as usize])),
                Op::Drop(at) if at < disks.len() => drop(disks.swap_remove(at)),
                Op::Drop(_) => {}
                Op::Write(at, slot, page) => if let Some((disk, model)) = disks.get_mut(at % count) {
                    let done = disk.write(slot, &page);
                    prop_assert_eq!(done.is_ok(), slot < disk.slots());
                    if done.is_ok() {
                        model[slot as usize] = Some(page);
                    }
                },
                Op::Discard(at, slot, len) => if let Some((disk, model)) = disks.get_mut(at % count) {
                    let end = (slot + len).min(disk.slots());
                    disk.discard(slot..end).expect("slots of the disk");
                    (slot..end).for_each(|slot| model[slot as usize] = None);
                },
                Op::Resize(at, slots) => if let Some((disk, model)) = disks.get_mut(at % count) {
                    disk.resize(slots).expect("a size");
                    model.resize(slots as usize, None);
                },
            }
        }
        for (disk, model) in &disks {
            let mut page = [1; PAGE_SIZE];
            for (slot, expected) in (0..).zip(model) {
                disk.read(slot, &mut page).expect("a readable page");
                prop_assert!(page == expected.as_deref().copied().unwrap_or([0; PAGE_SIZE]), "slot {slot}");
            }
            let stored = model.iter().flatten().count() * PAGE_SIZE;
            prop_assert_eq!(disk.stats().orig_data_size, stored as u64);
        }
        prop_assert_eq!(pool.check(), Ok(()));
    }
}
