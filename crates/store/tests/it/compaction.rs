//! Objects that move while the store is in use.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use pagefold_store::{PAGE_SIZE, Page, PoolConfig};

use crate::{one::One, pages::mixed};

/// Returns a page whose object has about `16 × noise` bytes.
fn page_of(seed: u64, noise: u8) -> Box<Page> {
    let mut page = mixed(seed, 0xff);
    page[usize::from(noise) * 16..].fill(seed as u8);
    page
}

/// Returns a `noise` that varies with slot and turn.
fn noise(slot: u64, turn: u64) -> u8 {
    ((slot * 7919 + turn * 104_729) >> 3) as u8
}

/// Three threads write, update, discard and read slots of their own, each against a plain vector of
/// pages, while a fourth compacts and a fifth reads all slots.
fn run(store: &One, turns: u64) {
    const THREADS: u64 = 3;
    let slots = store.slots() / THREADS;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut model = vec![Box::new([0; PAGE_SIZE]); slots as usize];
                    let mut page = [0; PAGE_SIZE];
                    for turn in 0..turns {
                        let at = ((turn * 2_654_435_761) >> 9) % slots;
                        let slot = at * THREADS + thread;
                        let expected = &mut model[at as usize];
                        store.read(slot, &mut page).expect("a readable page");
                        assert!(page == **expected, "slot {slot} has another page");
                        match turn % 9 {
                            0 | 1 => {
                                store.discard(slot).expect("a slot");
                                expected.fill(0);
                            }
                            2 => {
                                store.update(slot, |page| page[100..200].fill(turn as u8)).expect("no limit");
                                expected[100..200].fill(turn as u8);
                            }
                            _ => {
                                *expected = page_of(slot + turn, noise(slot, turn));
                                store.write(slot, expected).expect("no limit");
                            }
                        }
                    }
                    for (at, expected) in (0..).zip(&model) {
                        store.read(at * THREADS + thread, &mut page).expect("a readable page");
                        assert!(page == **expected);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                store.compact();
            }
        });
        scope.spawn(|| {
            let mut page = [0; PAGE_SIZE];
            let mut slot = 0;
            while !stop.load(Relaxed) {
                slot = (slot + 1) % store.slots();
                store.read(slot, &mut page).expect("a readable page");
            }
        });
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        stop.store(true, Relaxed);
        assert_eq!(failed, 0, "threads that found something wrong");
    });
    store.check().expect("consistent");
}

#[test]
fn pages_stay_what_they_are_while_objects_move() {
    run(&One::new(1500, PoolConfig::default()), 6000);
}

#[test]
fn memory_comes_back_in_the_background() {
    const SLOTS: u64 = 8000;
    let store = One::new(SLOTS, PoolConfig::default());
    for slot in 0..SLOTS {
        store.write(slot, &page_of(slot, noise(slot, 0))).expect("no limit");
    }
    for slot in (0..SLOTS).filter(|slot| slot % 10 != 7) {
        store.discard(slot).expect("a slot");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let enough = |spent: u64, live: u64| spent < live * 13 / 10;
    while !enough(store.stats().spent_bytes, store.stats().compr_data_size) {
        assert!(Instant::now() < deadline, "{:?}", store.stats());
        thread::sleep(Duration::from_millis(10));
    }
    store.check().expect("consistent");
}

#[test]
fn compaction_leaves_little_that_is_empty() {
    const SLOTS: u64 = 8000;
    let store = One::new(SLOTS, PoolConfig::default());
    for turn in 0..3 {
        for slot in 0..SLOTS {
            let slot = slot * 4567 % SLOTS;
            store.write(slot, &page_of(slot, noise(slot, turn))).expect("no limit");
        }
    }
    store.compact();
    let stats = store.stats();
    assert!(stats.mem_used_total < stats.compr_data_size * 103 / 100, "{stats:?}");
    store.check().expect("consistent");
}
