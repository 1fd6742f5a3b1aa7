//! Makes each allocation of a scenario fail once: no page may be lost.

use std::{
    ops::Range,
    sync::{Arc, LazyLock},
};

use pagefold_codec::PAGE_SIZE;

use super::one::One;
use crate::{Disk, Error, Page, Pool, PoolConfig};

const SLOTS: u64 = 700;

/// Returns one of 64 pages; `seed % 16` sixteenths of it are random.
fn page(seed: u64) -> &'static Page {
    static PAGES: LazyLock<Vec<Page>> = LazyLock::new(|| (0..64).map(make).collect());
    &PAGES[seed as usize % 64]
}

fn make(seed: u64) -> Page {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise = (seed % 16) as usize * 256;
    std::array::from_fn(|at| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if at < noise { (state >> 56) as u8 } else { (at / 64 + seed as usize) as u8 }
    })
}

struct Model {
    store: One,
    pages: Vec<Option<Box<Page>>>,
}

impl Model {
    fn change(&mut self, slot: u64, new: Option<Page>, done: Result<(), Error>) {
        match done {
            Ok(()) => self.pages[slot as usize] = new.map(Box::new),
            Err(error) => assert_eq!(error, Error::Full),
        }
    }

    fn write(&mut self, slot: u64, seed: u64) {
        let done = self.store.write(slot, page(seed));
        self.change(slot, Some(*page(seed)), done);
    }

    fn update(&mut self, slot: u64, seed: u64) {
        let mut new = self.pages[slot as usize].as_deref().copied().unwrap_or([0; PAGE_SIZE]);
        new[1000..3000].copy_from_slice(&page(seed)[1000..3000]);
        let done = self.store.update(slot, |page| page[1000..3000].copy_from_slice(&new[1000..3000]));
        self.change(slot, Some(new), done);
    }

    fn discard(&mut self, slot: u64) {
        self.store.discard(slot).expect("nothing is allocated");
        self.pages[slot as usize] = None;
    }

    fn verify(&self) {
        self.store.check().expect("consistent");
        let mut found = [0; PAGE_SIZE];
        for (slot, expected) in (0..).zip(&self.pages) {
            self.store.read(slot, &mut found).expect("a readable page");
            assert!(found == *expected.as_deref().unwrap_or(&[0; PAGE_SIZE]), "slot {slot} has lost its page");
        }
    }
}

/// Runs the scenario with `count` allocations failing after the first `after`. Returns whether any
/// allocation failed.
fn scenario(after: u64, count: u64) -> bool {
    let store = One::new(SLOTS, PoolConfig::default());
    let mut model = Model { store, pages: vec![None; SLOTS as usize] };
    let budget = Arc::clone(model.store.budget());
    // The stream of a thread that only reads is not under test.
    model.store.write(0, page(1)).expect("no limit");
    model.pages[0] = Some(Box::new(*page(1)));
    budget.fail(after, count);
    for slot in 0..150 {
        model.write(slot, slot);
    }
    for slot in (0..150).step_by(3) {
        model.update(slot, slot * 7);
        model.write(slot * 4 + 100, slot + 5);
        model.discard(slot + 1);
    }
    model.store.compact();
    for slot in 0..100 {
        model.write(slot, slot + 11);
    }
    let failed = budget.has_failed();
    budget.fail(0, 0);
    model.verify();
    for slot in 0..50 {
        model.store.write(slot, page(slot + 3)).expect("there is memory again");
        model.pages[slot as usize] = Some(Box::new(*page(slot + 3)));
    }
    model.verify();
    failed
}

#[test]
fn each_allocation_may_fail_and_nothing_is_lost() {
    let count = (0..).take_while(|&after| scenario(after, 1)).count();
    assert!(count > 40, "the scenario allocates {count} times");
}

#[test]
fn all_allocations_may_fail_for_a_while_and_nothing_is_lost() {
    for after in (0..60).step_by(7) {
        scenario(after, 5);
        scenario(after, 150);
    }
}

#[test]
fn a_write_that_finds_no_room_keeps_neither_leaf_nor_object() {
    let store = One::new(1 << 30, PoolConfig::default());
    store.write(0, page(15)).expect("no limit");
    let before = store.stats();
    let mut refused = 0;
    for round in 0..100 {
        // Each write needs a node, a leaf and room for its object; some writes also need a page of
        // nodes or leaves.
        let slots = || (1..=20).map(|number| (number + round * 20) << 16);
        store.budget().fail(round % 7, 30);
        refused += slots().filter(|&slot| store.write(slot, page(15)).is_err()).count();
        store.budget().fail(0, 0);
        slots().for_each(|slot| store.discard(slot).expect("a slot"));
    }
    store.compact();
    let after = store.stats();
    assert!(
        refused >= 100 && after.mem_used_total < before.mem_used_total + (256 << 10),
        "{refused}: {before:?} {after:?}"
    );
    // The nodes stay with the disk.
    assert!(after.table_bytes < before.table_bytes + 2000 * 600, "{before:?} {after:?}");
    store.check().expect("consistent");
}

/// A disk, and the numbers of its pages, 0 for none.
struct Fork {
    disk: Disk,
    pages: Vec<u64>,
}

impl Fork {
    /// Writes page `number`; on failure the slot keeps its old page.
    fn write(&mut self, slot: u64, number: u64) {
        let done = self.disk.write(slot, page(number));
        self.note(slot, number, done);
    }

    fn note(&mut self, slot: u64, number: u64, done: Result<(), Error>) {
        match done {
            Ok(()) => self.pages[slot as usize] = number,
            Err(error) => assert_eq!(error, Error::Full),
        }
    }

    /// Discards slots; without memory to record it, some may keep their pages.
    fn discard(&mut self, slots: Range<u64>) {
        let done = self.disk.discard(slots.clone());
        for slot in slots {
            let mut found = [0; PAGE_SIZE];
            self.disk.read(slot, &mut found).expect("a readable page");
            let is_gone = found == [0; PAGE_SIZE];
            assert!(is_gone || done.is_err());
            if is_gone {
                self.pages[slot as usize] = 0;
            }
        }
    }

    fn fork(&self) -> Option<Self> {
        match self.disk.fork() {
            Ok(disk) => Some(Self { disk, pages: self.pages.clone() }),
            Err(error) => {
                assert_eq!(error, Error::Full);
                None
            }
        }
    }

    fn become_as(&mut self, other: &Self) {
        match other.disk.fork().and_then(|like| self.disk.become_as(like)) {
            Ok(()) => self.pages.clone_from(&other.pages),
            Err(error) => assert_eq!(error, Error::Full),
        }
    }

    fn verify(&self) {
        let mut found = [0; PAGE_SIZE];
        for (slot, &number) in (0..).zip(&self.pages) {
            let held = self.disk.read(slot, &mut found).expect("a readable page");
            assert!(held || number == 0, "slot {slot} has lost its page");
            assert!(found == if number == 0 { [0; PAGE_SIZE] } else { *page(number) }, "slot {slot} has another page");
        }
    }
}

/// The same scenario for disks that are forked, rolled back and dropped, and share equal pages.
fn scenario_of_forks(after: u64, count: u64) -> bool {
    let pool = Pool::new(PoolConfig::default().dedupe(true)).expect("a pool");
    let mut first = Fork { disk: pool.disk(SLOTS).expect("no limit"), pages: vec![0; SLOTS as usize] };
    for slot in 0..80 {
        first.write(slot * 8, slot % 50 + 1);
    }
    let budget = &pool.core().budget;
    budget.fail(after, count);
    let mut forks: Vec<Fork> = (0..3).filter_map(|_| first.fork()).collect();
    for (at, fork) in (1..).zip(&mut forks) {
        for slot in 0..30 {
            fork.write((slot * 20 + at) % SLOTS, (slot + at) % 40 + 1);
        }
        fork.discard(at * 40..at * 40 + 130);
    }
    for slot in (0..SLOTS).step_by(31) {
        first.write(slot, slot % 45 + 1);
        let done = first.disk.update(slot, |changed| *changed = *page(slot % 30 + 2));
        first.note(slot, slot % 30 + 2, done);
    }
    if let [one, two, ..] = &mut forks[..] {
        one.become_as(two);
        two.become_as(&first);
        one.write(5, 7);
        forks.swap_remove(0);
    }
    pool.compact();
    for fork in forks.iter_mut() {
        fork.write(SLOTS - 1, 9);
    }
    let failed = budget.has_failed();
    budget.fail(0, 0);
    forks.push(first);
    forks.iter().for_each(Fork::verify);
    pool.check().expect("consistent");
    for fork in &mut forks {
        fork.disk.write(1, page(3)).expect("there is memory again");
        fork.pages[1] = 3;
        fork.verify();
    }
    drop(forks);
    pool.check().expect("consistent");
    assert_eq!(pool.stats().compr_data_size, 0);
    failed
}

#[test]
fn each_allocation_of_forks_may_fail_and_nothing_is_lost() {
    let count = (0..).take_while(|&after| scenario_of_forks(after, 1)).count();
    assert!(count > 12, "the scenario allocates {count} times");
    for after in (0..count as u64).step_by(7) {
        scenario_of_forks(after, 6);
        scenario_of_forks(after, 100);
    }
}
