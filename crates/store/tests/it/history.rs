//! Linearizability of random concurrent histories on few slots.
//!
//! Threads write, read, update and discard, and record when each operation began and ended. A
//! history is correct if the operations of each slot can be put in one order that respects these
//! times and that a plain variable would show (Herlihy and Wing, TOPLAS 12(3), 1990; the search is
//! Wing and Gong's with Lowe's memoization). Slots are checked one by one, as linearizability is
//! local.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
};

use pagefold_store::{PAGE_SIZE, Page, PoolConfig};

use crate::{one::One, pages::mixed};

const SLOTS: u64 = 2;
const THREADS: u64 = 4;
/// At most 64 per slot and history.
const OPS_PER_THREAD: u64 = 12;

/// The effect of an operation on the value of its slot; 0 is the value of an empty slot.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Wrote(u64),
    Saw(u64),
    Changed { from: u64, to: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Event {
    slot: u64,
    began: u64,
    ended: u64,
    effect: Effect,
}

impl Effect {
    /// Returns the value after the effect on `value`, if the effect is possible there.
    fn after(self, value: u64) -> Option<u64> {
        match self {
            Self::Wrote(new) => Some(new),
            Self::Saw(seen) => (seen == value).then_some(value),
            Self::Changed { from, to } => (from == value).then_some(to),
        }
    }
}

/// Returns whether the events of one slot, at most 64, have a correct order that starts from an
/// empty slot.
fn is_linearizable(events: &[Event]) -> bool {
    let all = if events.len() == 64 { u64::MAX } else { (1 << events.len()) - 1 };
    let mut tried = HashSet::new();
    let mut open = vec![(0u64, 0u64)];
    while let Some((done, value)) = open.pop() {
        if done == all {
            return true;
        }
        if !tried.insert((done, value)) {
            continue;
        }
        let left = || events.iter().enumerate().filter(|(at, _)| done & (1 << at) == 0);
        let first_end = left().map(|(_, event)| event.ended).min().unwrap_or(u64::MAX);
        for (at, event) in left().filter(|(_, event)| event.began < first_end) {
            open.extend(event.effect.after(value).map(|value| (done | (1 << at), value)));
        }
    }
    false
}

/// Returns a page of which every part names `value`; odd values compress, even ones do not.
fn page_of(value: u64) -> Box<Page> {
    let mut page = mixed(value, if value.is_multiple_of(2) { 0xff } else { 0x1f });
    for chunk in page.as_chunks_mut::<64>().0 {
        chunk[..8].copy_from_slice(&value.to_le_bytes());
    }
    page
}

/// Returns the value that a page names; the whole page must match it.
fn value_of(page: &Page) -> u64 {
    let value = page.as_chunks::<8>().0[0];
    let value = u64::from_le_bytes(value);
    let expected = if value == 0 { Box::new([0; PAGE_SIZE]) } else { page_of(value) };
    assert!(*page == *expected, "a torn page");
    value
}

fn one_thread(store: &One, clock: &AtomicU64, thread: u64, round: u64) -> Vec<Event> {
    let mut page = [0; PAGE_SIZE];
    let mut random = (round * THREADS + thread) | 1;
    let mut events = Vec::new();
    for number in 0..OPS_PER_THREAD {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (slot, choice) = ((random >> 60) % SLOTS, (random >> 32) % 8);
        let new = (round * THREADS + thread) * OPS_PER_THREAD + number + 1;
        let new_page = page_of(new);
        let began = clock.fetch_add(1, SeqCst);
        let effect = match choice {
            0 | 1 => {
                store.write(slot, &new_page).expect("no limit");
                Effect::Wrote(new)
            }
            2 | 3 => {
                let mut from = 0;
                store
                    .update(slot, |page| {
                        from = value_of(page);
                        thread::yield_now();
                        *page = *new_page;
                    })
                    .expect("no limit");
                Effect::Changed { from, to: new }
            }
            4 => {
                store.discard(slot).expect("a slot");
                Effect::Wrote(0)
            }
            _ => {
                store.read(slot, &mut page).expect("a readable page");
                Effect::Saw(value_of(&page))
            }
        };
        events.push(Event { slot, began, ended: clock.fetch_add(1, SeqCst), effect });
    }
    events
}

#[test]
fn histories_are_linearizable() {
    for round in 0..200 {
        let store = One::new(SLOTS, PoolConfig::default());
        let clock = AtomicU64::new(0);
        let events: Vec<Event> = thread::scope(|scope| {
            let (store, clock) = (&store, &clock);
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || one_thread(store, clock, thread, round))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        for slot in 0..SLOTS {
            let of_slot: Vec<Event> = events.iter().filter(|event| event.slot == slot).copied().collect();
            assert!(is_linearizable(&of_slot), "round {round}: {of_slot:#?}");
        }
        store.check().expect("consistent");
    }
}

#[test]
fn the_checker_finds_a_stale_read() {
    let event = |began, ended, effect| Event { slot: 0, began, ended, effect };
    let overlapping = [event(0, 5, Effect::Wrote(1)), event(1, 2, Effect::Saw(0)), event(3, 4, Effect::Saw(1))];
    assert!(is_linearizable(&overlapping));
    let stale = [event(0, 1, Effect::Wrote(1)), event(2, 3, Effect::Saw(0))];
    assert!(!is_linearizable(&stale));
    let backwards = [event(0, 9, Effect::Wrote(1)), event(1, 2, Effect::Saw(1)), event(3, 4, Effect::Saw(0))];
    assert!(!is_linearizable(&backwards));
    let lost = [event(0, 9, Effect::Changed { from: 0, to: 1 }), event(0, 9, Effect::Changed { from: 0, to: 2 })];
    assert!(!is_linearizable(&lost));
}
