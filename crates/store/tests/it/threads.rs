//! Many concurrent threads.

use std::thread;

use pagefold_codec::by_name;
use pagefold_store::{Disk, PAGE_SIZE, Page, Pool, PoolConfig};

use crate::one::One;
use crate::pages::mixed;

const THREADS: u64 = 4;

/// Returns a page that names its writer and time throughout, so that a torn page is detected.
fn signed(thread: u64, round: u64) -> Box<Page> {
    let mut page = mixed(thread * 1000 + round, 0x3f);
    for chunk in page.as_chunks_mut::<64>().0 {
        chunk[..8].copy_from_slice(&thread.to_le_bytes());
        chunk[8..16].copy_from_slice(&round.to_le_bytes());
    }
    page
}

fn assert_whole(page: &Page) {
    let (chunks, _) = page.as_chunks::<64>();
    assert!(chunks.iter().all(|chunk| chunk[..16] == chunks[0][..16]), "a torn page");
}

#[test]
fn pages_shared_by_threads_are_never_torn() {
    for codec in ["fold", "lz4", "zstd-1"] {
        let codec = by_name(codec).expect("a known codec");
        let store = One::new(8, PoolConfig::default().codec(codec));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let store = &store;
                scope.spawn(move || {
                    let mut page = [0; PAGE_SIZE];
                    for round in 0..1500 {
                        let slot = (round * 7 + thread) % 8;
                        match round % 4 {
                            0 => store.write(slot, &signed(thread, round)).expect("no limit"),
                            1 => store.update(slot, |page| assert_whole(page)).expect("no limit"),
                            2 if round % 12 == 2 => store.discard(slot).expect("a slot"),
                            _ => {
                                store.read(slot, &mut page).expect("a readable page");
                                assert_whole(&page);
                            }
                        }
                    }
                });
            }
        });
        store.check().expect("consistent");
    }
}

#[test]
fn updates_of_one_page_are_all_applied() {
    let store = One::new(1, PoolConfig::default());
    thread::scope(|scope| {
        for thread in 0..THREADS as usize {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..500 {
                    store
                        .update(0, |page| {
                            let (counts, _) = page.as_chunks_mut::<8>();
                            let count = &mut counts[thread * 100];
                            *count = (u64::from_le_bytes(*count) + 1).to_le_bytes();
                        })
                        .expect("no limit");
                }
            });
        }
    });
    let mut page = [0; PAGE_SIZE];
    store.read(0, &mut page).expect("a readable page");
    for thread in 0..THREADS as usize {
        assert_eq!(page.as_chunks::<8>().0[thread * 100], 500u64.to_le_bytes());
    }
}

/// Each thread has slots of its own and knows their content; all share streams, the heap and
/// leaves.
#[test]
fn threads_keep_their_own_slots() {
    let store = One::new(4096, PoolConfig::default());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let mut rounds = [None; 64];
                let mut page = [0; PAGE_SIZE];
                for round in 0..4000u64 {
                    let at = (round.wrapping_mul(2_654_435_761) >> 7) as usize % rounds.len();
                    let slot = at as u64 * THREADS + thread;
                    match rounds[at] {
                        Some(written) if round % 3 == 0 => {
                            store.read(slot, &mut page).expect("a readable page");
                            assert!(page == *signed(thread, written));
                        }
                        Some(_) if round % 5 == 0 => {
                            store.discard(slot).expect("a slot");
                            rounds[at] = None;
                        }
                        _ => {
                            store.write(slot, &signed(thread, round)).expect("no limit");
                            rounds[at] = Some(round);
                        }
                    }
                }
            });
        }
    });
    store.check().expect("consistent");
}

/// A slot that is emptied during a read held its page or nothing. A page of zeros would hide what is
/// below the disk.
#[test]
fn a_slot_holds_its_page_or_nothing() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let [over, clean] = [pool.disk_over(64), pool.clean_disk(64)].map(|disk| disk.expect("no limit"));
    let forget = |disk: &Disk| disk.forget(3).expect("no limit");
    let discard = |disk: &Disk| disk.discard(3..4).expect("a slot");
    for (disk, empty) in [(&over, &forget as &(dyn Fn(&Disk) + Sync)), (&clean, &discard)] {
        // Another page keeps the leaf.
        disk.write(4, &signed(0, 0)).expect("no limit");
        thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for round in 0..20_000 {
                    disk.write(3, &signed(1, round)).expect("no limit");
                    empty(disk);
                }
            });
            let mut page = [0; PAGE_SIZE];
            while !writer.is_finished() {
                let is_held = disk.read(3, &mut page).expect("a readable page");
                assert_whole(&page);
                assert_eq!(is_held, page[0] == 1, "a slot with a page");
            }
        });
    }
}
