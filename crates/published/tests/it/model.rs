//! Stores against a plain model, with several threads, for every strategy × policy × allocator.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
};

use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_published::{
    AllocatorKind, Error, Store, StoreConfig, StreamPolicy,
    strategy::{BitSpin, Cas, EntryLock, RwLock, Spin, TableRwLock},
};

const POLICIES: [StreamPolicy; 3] = [StreamPolicy::Single, StreamPolicy::Idle(2), StreamPolicy::PerCpu];

const THREADS: u64 = 4;
const OWN_SLOTS: u64 = 40;
const SHARED_SLOTS: u64 = 3;
const ROUNDS: u64 = 600;

/// Calls `test` for each policy and allocator, with an empty store of strategy `L`.
fn with_every_store<L: EntryLock>(slots: u64, test: impl Fn(Store<L>, &str)) {
    for streams in POLICIES {
        for allocator in AllocatorKind::ALL {
            let store =
                Store::new(StoreConfig { streams, allocator, ..StoreConfig::new(slots) }).expect("a small store");
            test(store, &format!("{}, {streams:?}, {}", L::NAME, allocator.name()));
        }
    }
}

/// Generates one test with this body for each strategy.
macro_rules! for_every_strategy {
    ($test:ident) => {
        mod $test {
            use super::*;

            #[test]
            fn table_rwlock() {
                super::$test::<TableRwLock>();
            }

            #[test]
            fn cas() {
                super::$test::<Cas>();
            }

            #[test]
            fn spin() {
                super::$test::<Spin>();
            }

            #[test]
            fn rwlock() {
                super::$test::<RwLock>();
            }

            #[test]
            fn bit_spin() {
                super::$test::<BitSpin>();
            }
        }
    };
}

/// Random numbers (Marsaglia's xorshift64).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Returns a page of one of four kinds: zeros, text-like, half random, random. `stamp` is at the
/// front of every 64 bytes, except in zeros.
fn page_of(stamp: u64, kind: u64) -> Page {
    if kind == 0 {
        return [0; PAGE_SIZE];
    }
    let mut state = stamp + 1;
    let random = PAGE_SIZE * (kind as usize - 1) / 2;
    let mut page: Page =
        array::from_fn(|at| if at < random { (next(&mut state) >> 32) as u8 } else { (at / 300) as u8 });
    for chunk in page.as_chunks_mut::<64>().0 {
        chunk[..8].copy_from_slice(&stamp.to_le_bytes());
    }
    page
}

/// Returns the stamp of a page that was written as a whole; 0 for zeros.
fn stamp_of(page: &Page) -> u64 {
    let stamp = u64::from_le_bytes(array::from_fn(|at| page[at]));
    let kind = (0..4).find(|&kind| *page == page_of(stamp, kind));
    assert!(kind.is_some(), "a torn page");
    stamp
}

/// Each thread has slots of its own, which hold what it wrote there, and shares other slots with
/// all threads. A page in a shared slot is complete, and is not older than the page of the same
/// writer that this thread last saw in that slot.
fn threads_find_what_they_wrote<L: EntryLock>() {
    let shared_from = THREADS * OWN_SLOTS;
    with_every_store::<L>(shared_from + SHARED_SLOTS, |store, which| {
        let written = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, written) = (&store, &written);
                scope.spawn(move || {
                    let mut state = thread + 1;
                    let mut own = vec![[0; PAGE_SIZE]; OWN_SLOTS as usize];
                    let mut newest = [[0; THREADS as usize]; SHARED_SLOTS as usize];
                    let mut back = [0; PAGE_SIZE];
                    for round in 1..=ROUNDS {
                        let (number, kind) = (next(&mut state) % OWN_SLOTS, next(&mut state) % 4);
                        let slot = thread * OWN_SLOTS + number;
                        store.read(slot, &mut back).expect("a readable page");
                        assert!(back == own[number as usize], "{which}: slot {slot}");
                        if next(&mut state).is_multiple_of(8) {
                            store.discard(slot).expect("a slot");
                            own[number as usize] = [0; PAGE_SIZE];
                        } else {
                            own[number as usize] = page_of(round, kind);
                            store.write(slot, &own[number as usize]).expect("memory");
                        }

                        let shared = next(&mut state) % SHARED_SLOTS;
                        match next(&mut state) % 8 {
                            0 => store.discard(shared_from + shared).expect("a slot"),
                            1..4 => {
                                let page = page_of(round * THREADS + thread, 1 + kind % 3);
                                store.write(shared_from + shared, &page).expect("memory");
                                written.fetch_add(1, SeqCst);
                            }
                            _ => {
                                store.read(shared_from + shared, &mut back).expect("a readable page");
                                let stamp = stamp_of(&back);
                                let newest = &mut newest[shared as usize][(stamp % THREADS) as usize];
                                assert!(stamp == 0 || stamp >= *newest, "{which}: {stamp} after {newest}");
                                *newest = stamp.max(*newest);
                            }
                        }
                    }
                    for (slot, own) in (thread * OWN_SLOTS..).zip(&own) {
                        store.read(slot, &mut back).expect("a readable page");
                        assert!(back == *own, "{which}: slot {slot}");
                    }
                });
            }
        });
        assert!(written.into_inner() > 0);
        store.check().unwrap_or_else(|what| panic!("{which}: {what}"));
        (0..shared_from + SHARED_SLOTS).for_each(|slot| store.discard(slot).expect("a slot"));
        assert_eq!(store.stats().compr_data_size, 0, "{which}");
        store.check().unwrap_or_else(|what| panic!("{which}: {what}"));
    });
}
for_every_strategy!(threads_find_what_they_wrote);

/// The contended loads of the benchmark: writers and readers of one slot, and nothing else.
fn one_slot_is_written_and_read_by_all<L: EntryLock>() {
    with_every_store::<L>(1, |store, which| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let store = &store;
                scope.spawn(move || {
                    let mut back = [0; PAGE_SIZE];
                    for round in 1..ROUNDS {
                        if thread % 2 == 0 {
                            store.write(0, &page_of(round, round % 4)).expect("memory");
                        } else {
                            store.read(0, &mut back).expect("a readable page");
                            stamp_of(&back);
                        }
                    }
                });
            }
        });
        store.check().unwrap_or_else(|what| panic!("{which}: {what}"));
    });
}
for_every_strategy!(one_slot_is_written_and_read_by_all);

#[test]
fn any_codec_does() {
    for codec in ["lz4", "lzo", "zstd-1", "842", "fold"] {
        let codec = by_name(codec).expect("a known codec");
        let store = Store::<BitSpin>::new(StoreConfig { codec, ..StoreConfig::new(4) }).expect("a small store");
        let pages: [Page; 4] = array::from_fn(|kind| page_of(9, kind as u64));
        (0..).zip(&pages).for_each(|(slot, page)| store.write(slot, page).expect("memory"));
        for (slot, page) in (0..).zip(&pages) {
            let mut back = [1; PAGE_SIZE];
            store.read(slot, &mut back).expect("a readable page");
            assert!(back == *page, "slot {slot}");
        }
    }
}

#[test]
fn a_slot_that_is_not_there_is_named() {
    let store = Store::<BitSpin>::new(StoreConfig::new(3)).expect("a small store");
    let refused = Err(Error::NoSuchSlot { slot: 3, slots: 3 });
    assert_eq!(store.write(3, &[7; PAGE_SIZE]), refused);
    assert_eq!(store.read(3, &mut [0; PAGE_SIZE]), refused);
    assert_eq!(store.discard(3), refused);
    assert!(Store::<BitSpin>::new(StoreConfig::new(u64::MAX)).is_err());
}

#[test]
fn spent_bytes_are_heap_table_and_streams() {
    fn spent<L: EntryLock>() -> u64 {
        let store = Store::<L>::new(StoreConfig { streams: StreamPolicy::Single, ..StoreConfig::new(1000) })
            .expect("a small store");
        let mut state = 1;
        store.write(0, &array::from_fn(|_| (next(&mut state) >> 32) as u8)).expect("memory");
        let stats = store.stats();
        assert_eq!(stats.compr_data_size, PAGE_SIZE as u64);
        stats.spent_bytes - stats.mem_used_total
    }
    assert_eq!(spent::<Cas>() - spent::<BitSpin>(), 4 * 1000);
    assert!(spent::<BitSpin>() > 8 * 1000 + PAGE_SIZE as u64);
}
