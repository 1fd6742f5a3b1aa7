//! Stores that train often, on pages whose kind changes.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::{PAGE_SIZE, Page, Tables, by_name};
use proptest::prelude::*;

use super::one::One;
use crate::{Error, PoolConfig, entry::Entry, streams::Plan};

/// Trains as often as possible.
const OFTEN: Plan = Plan { sample_pages: 96, first_stride: 1, stride: 1, max_stride: 2 };

/// Codecs, one for each kind of tables.
const CODECS: [&str; 4] = ["pleat", "fold-dict", "lz4-dict", "zstd-1-dict"];

/// Creates a store of `codec` with `slots` slots that trains by `plan`.
fn store(codec: &str, slots: u64, memory_limit: u64, plan: Plan) -> One {
    let codec = by_name(codec).expect("a known codec");
    One::with_plan(slots, PoolConfig::default().codec(codec).memory_limit(memory_limit), plan)
}

/// Returns a reference that stays alive after the store has dropped the tables only if something
/// else keeps them.
fn weak(tables: &Tables) -> Weak<dyn Send + Sync> {
    match tables {
        Tables::Pleat(tables) => Arc::downgrade(&(Arc::clone(tables) as Arc<dyn Send + Sync>)),
        Tables::Fold(tables) => Arc::downgrade(&(Arc::clone(tables) as Arc<dyn Send + Sync>)),
        Tables::Lz4(tables) => Arc::downgrade(&(Arc::clone(tables) as Arc<dyn Send + Sync>)),
        Tables::Zstd(tables) => Arc::downgrade(&(Arc::clone(tables) as Arc<dyn Send + Sync>)),
        other => panic!("no codec of these tests has {other:?}"),
    }
}

/// Returns a page of words from the vocabulary of `kind`, so that each kind needs its own tables.
/// Deterministic.
fn page(kind: u64, number: u64) -> Page {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut page = [0; PAGE_SIZE];
    for word in page.as_chunks_mut::<16>().0 {
        let rank = next(60) * next(60);
        let mut vocabulary = (kind << 32 | rank).wrapping_add(1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        for byte in word {
            vocabulary = vocabulary.rotate_left(9).wrapping_mul(0x2545_f491_4f6c_dd1d);
            *byte = (vocabulary >> 56) as u8 & 0x3f | (kind as u8 & 3) << 6;
        }
    }
    page[..8].copy_from_slice(&number.to_le_bytes());
    page
}

/// Waits until no training is in progress and `done` holds.
fn wait(store: &One, done: impl Fn(&One) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !done(store) || store.is_training() {
        assert!(Instant::now() < deadline, "{:?}", store.stats());
        thread::sleep(Duration::from_millis(2));
    }
}

fn read(store: &One, slot: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    store.read(slot, &mut page).expect("a readable page");
    page
}

#[test]
fn tables_are_trained_and_make_pages_smaller() {
    for codec in CODECS {
        let store = store(codec, 512, u64::MAX, OFTEN);
        let first = store.stats();
        assert_eq!((first.tables_age_s, first.tables_gain_permille), (0, 0), "{codec}");
        (0..256).for_each(|slot| store.write(slot, &page(0, slot)).expect("no limit"));
        wait(&store, |store| store.stats().trainings > 0);
        let before = store.stats();
        assert!(before.codec_tables >= 2);
        let trained: u64 = store.tables()[1..].iter().map(|tables| tables.memory_bytes() as u64).sum();
        assert_eq!(before.training_bytes, trained, "{codec}");
        assert!(before.tables_id != 0 && before.tables_id != first.tables_id, "{codec}: {before:?}");
        assert!((20..1000).contains(&before.tables_gain_permille), "{codec}: {before:?}");
        assert!(before.tables_age_s < 120 && before.tables_bytes > 0, "{codec}: {before:?}");
        (256..512).for_each(|slot| store.write(slot, &page(0, slot)).expect("no limit"));
        wait(&store, |_| true);
        let more = store.stats().compr_data_size - before.compr_data_size;
        assert!(more * 100 < before.compr_data_size * 97, "{codec}: {more} bytes after {}", before.compr_data_size);
        assert!((0..512).all(|slot| read(&store, slot) == page(0, slot)));
        store.check().expect("consistent");
    }
}

/// The new pool decodes with the tables of the old one, and compresses with the latest ones.
#[test]
fn trained_tables_are_handed_over() {
    for codec in CODECS {
        let config = PoolConfig::default().codec(by_name(codec).expect("a known codec"));
        let old = store(codec, 512, u64::MAX, OFTEN);
        for kind in 0..2 {
            let trainings = old.stats().trainings;
            let mut number = 0;
            while old.stats().trainings == trainings && number < 6000 {
                old.write(kind * 200 + number % 200, &page(kind, number)).expect("no limit");
                number += 1;
                if number % 96 == 0 {
                    wait(&old, |_| true);
                }
            }
            (0..32).for_each(|at| old.write(kind * 200 + at, &page(kind, at)).expect("no limit"));
        }
        wait(&old, |_| true);
        let before = old.stats();
        assert!(before.trainings >= 1, "{codec}");
        let pages: Vec<Page> = (0..400).map(|slot| read(&old, slot)).collect();
        let ids = |store: &One| store.tables().iter().map(Tables::id).collect::<Vec<_>>();
        let before_ids = ids(&old);
        let new = old.handed_over(config);
        drop(old);
        new.check().expect("consistent");
        assert_eq!(ids(&new), before_ids, "{codec}");
        let after = new.stats();
        assert_eq!(
            (before.tables_id, before.tables_gain_permille, before.trainings, before.trainings_useless),
            (after.tables_id, after.tables_gain_permille, after.trainings, after.trainings_useless),
            "{codec}"
        );
        assert_eq!((before.compr_data_size, before.codec_tables), (after.compr_data_size, after.codec_tables));
        let trained: u64 = new.tables()[1..].iter().map(|tables| tables.memory_bytes() as u64).sum();
        assert_eq!(after.training_bytes, trained, "{codec}");
        (0..).zip(&pages).for_each(|(slot, page)| assert!(read(&new, slot) == *page, "{codec}: slot {slot}"));
        (0..400).for_each(|slot| new.write(slot, &page(1, slot)).expect("no limit"));
        assert!((0..400).all(|slot| read(&new, slot) == page(1, slot)));
        new.check().expect("consistent");
    }
}

#[test]
fn many_kinds_in_turn_leave_a_bounded_number_of_tables() {
    for codec in CODECS {
        let store = store(codec, 256, u64::MAX, OFTEN);
        let mut seen = HashMap::new();
        for kind in 0..8 {
            let trainings = store.stats().trainings;
            let mut number = 0;
            // Writes continue until this kind has tables; some slots keep pages of the first kind.
            while store.stats().trainings == trainings && number < 6000 {
                let slot = 32 + number % 224;
                store.write(slot, &page(kind, number)).expect("no limit");
                number += 1;
                if number % 96 == 0 {
                    wait(&store, |_| true);
                }
            }
            if kind == 0 {
                (0..32).for_each(|slot| store.write(slot, &page(0, slot)).expect("no limit"));
            }
            seen.extend(store.tables().iter().map(|tables| (tables.id(), weak(tables))));
            assert!(store.stats().codec_tables <= 4);
            assert!((0..32).all(|slot| read(&store, slot) == page(0, slot)));
            store.check().expect("consistent");
        }
        let stats = store.stats();
        assert!(stats.trainings >= 6, "{codec}: {stats:?}");
        // Retired tables are not in memory any more.
        let alive = seen.values().filter(|tables| tables.strong_count() > 0).count() as u64;
        assert!(alive <= stats.codec_tables, "{codec}: {alive} of {} are alive: {stats:?}", seen.len());
    }
}

#[test]
fn a_codec_without_tables_trains_nothing() {
    for name in ["fold", "lz4", "zstd-1"] {
        let codec = by_name(name).expect("a known codec");
        let store = One::new(64, PoolConfig::default().codec(codec));
        (0..64).for_each(|slot| store.write(slot, &page(0, slot)).expect("no limit"));
        let stats = store.stats();
        assert_eq!((stats.codec_tables, stats.trainings, stats.training_bytes), (0, 0, 0), "{name}");
    }
}

#[test]
fn noise_is_not_worth_tables() {
    for codec in CODECS {
        let store = store(codec, 512, u64::MAX, OFTEN);
        let mut state = 1u64;
        for slot in 0..512 {
            let page = std::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            });
            store.write(slot, &page).expect("no limit");
        }
        wait(&store, |_| true);
        assert_eq!(store.stats().trainings, 0, "{codec}");
        assert!(store.stats().trainings_useless > 0, "{codec}");
    }
}

#[test]
fn a_store_near_its_limit_does_not_train() {
    for codec in CODECS {
        let store = store(codec, 512, 5 << 20, OFTEN);
        (0..512).for_each(|slot| store.write(slot, &page(0, slot)).expect("room"));
        wait(&store, |_| true);
        let stats = store.stats();
        assert_eq!((stats.trainings, stats.trainings_useless, stats.training_bytes), (0, 0, 0), "{codec}");
        store.check().expect("consistent");
    }
}

#[test]
fn without_memory_for_tables_there_are_none() {
    for codec in CODECS {
        let mut trainings = Vec::new();
        // Memory is taken by the write that fills the sample, then for the training, then for its
        // tables.
        for after in 0..4 {
            let store = store(codec, 512, u64::MAX, OFTEN);
            (0..95).for_each(|slot| store.write(slot, &page(0, slot)).expect("no limit"));
            store.budget().fail(after, 1);
            let _: Result<(), Error> = store.write(95, &page(0, 95));
            wait(&store, |_| true);
            store.budget().fail(0, 0);
            trainings.push(store.stats().trainings);
            (95..200).for_each(|slot| store.write(slot, &page(0, slot)).expect("no limit"));
            wait(&store, |_| true);
            assert!((0..200).all(|slot| read(&store, slot) == page(0, slot)), "{codec}");
            store.check().expect("consistent");
        }
        assert!(trainings.contains(&0) && trainings.contains(&1), "{codec}: {trainings:?}");
    }
}

#[test]
fn an_object_of_unknown_tables_is_an_error() {
    for codec in CODECS {
        let store = store(codec, 4, u64::MAX, OFTEN);
        let page = std::array::from_fn(|at| if at < 2000 { at as u8 } else { 7 });
        store.write(1, &page).expect("no limit");
        store.change_entry(1, |entry| match entry {
            Entry::Object { len_bytes, at, .. } => Entry::Object { tables: 3, len_bytes, at },
            other => other,
        });
        let mut back = [0; PAGE_SIZE];
        let unknown = Error::Corrupt { slot: 1, what: "object uses tables that the pool does not have" };
        assert_eq!(store.read(1, &mut back), Err(unknown));
        assert_eq!(store.update(1, |_| {}), Err(unknown));
        assert!(store.check().is_err());
        store.change_entry(1, |entry| match entry {
            Entry::Object { len_bytes, at, .. } => Entry::Object { tables: 0, len_bytes, at },
            other => other,
        });
        assert!(read(&store, 1) == page);
    }
}

#[test]
fn an_object_of_other_tables_is_an_error_or_another_page() {
    for codec in CODECS {
        let store = store(codec, 256, u64::MAX, OFTEN);
        (0..255).for_each(|slot| store.write(slot, &page(0, slot)).expect("no limit"));
        wait(&store, |store| store.stats().trainings > 0);
        store.write(255, &page(0, 255)).expect("no limit");
        let mut own = None;
        store.change_entry(255, |entry| match entry {
            Entry::Object { tables, len_bytes, at } => {
                own = Some(tables);
                Entry::Object { tables: 0, len_bytes, at }
            }
            other => other,
        });
        let own = own.filter(|&number| number > 0).expect("an object of trained tables");
        let mut back = [0; PAGE_SIZE];
        let wrong = store.read(255, &mut back);
        assert!(matches!(wrong, Err(Error::Corrupt { slot: 255, .. })) || back != page(0, 255), "{codec}");
        store.change_entry(255, |entry| match entry {
            Entry::Object { len_bytes, at, .. } => Entry::Object { tables: own, len_bytes, at },
            other => other,
        });
        assert!(read(&store, 255) == page(0, 255), "{codec}");
        store.check().expect("consistent");
    }
}

#[test]
fn threads_keep_their_pages_through_retrainings() {
    CODECS.into_iter().for_each(keep_through_retrainings);
}

fn keep_through_retrainings(codec: &str) {
    let store = store(codec, 256, u64::MAX, OFTEN);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let mut holds = [None; 64];
                for round in 0..3000u64 {
                    let at = (round.wrapping_mul(2_654_435_761) >> 7) as usize % holds.len();
                    let slot = at as u64 * 4 + thread;
                    match holds[at] {
                        Some((kind, number)) if round % 3 == 0 => assert!(read(store, slot) == page(kind, number)),
                        Some(_) if round % 17 == 0 => {
                            store.discard(slot).expect("a slot");
                            holds[at] = None;
                        }
                        _ => {
                            let held = (round / 400, round);
                            store.write(slot, &page(held.0, held.1)).expect("no limit");
                            holds[at] = Some(held);
                        }
                    }
                }
            });
        }
    });
    wait(&store, |_| true);
    store.check().expect("consistent");
    assert!(store.stats().trainings > 0, "{codec}: {:?}", store.stats());
}

/// Returns a page that names its slot and its content: words of a kind, noise, or one repeated
/// word. The zeros of an empty slot are slot 0's page 0.
fn numbered(slot: u64, number: u64) -> Page {
    let numbers = slot << 32 | number;
    let mut page = match number % 7 {
        0 => [0; PAGE_SIZE],
        1 => page(u64::MAX, numbers),
        _ => page(number >> 6, numbers),
    };
    let mut state = numbers;
    match number % 7 {
        0 => page.as_chunks_mut().0.fill(numbers.to_le_bytes()),
        1 => page[8..].fill_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        }),
        _ => {}
    }
    page
}

fn assert_whole(slot: u64, page: &Page, codec: &str) {
    let numbers = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
    if numbers != 0 {
        assert_eq!(numbers >> 32, slot, "{codec}: another slot's page");
    }
    assert!(*page == numbered(numbers >> 32, numbers & u64::from(u32::MAX)), "{codec}: slot {slot} has a torn page");
}

/// Eight threads write, change, clear, read and compact the same slots.
fn share_slots(codec: &str, slots: u64, memory_limit: u64, rounds: u64) {
    let store = store(codec, slots, memory_limit, OFTEN);
    thread::scope(|scope| {
        for thread in 0..8u64 {
            let store = &store;
            scope.spawn(move || {
                let mut state = thread + 1;
                for round in 0..rounds {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (slot, action) = (1 + (state >> 33) % (slots - 1), (state >> 59) % 16);
                    let new = numbered(slot, round << 3 | thread);
                    let done = match action {
                        0..6 => store.write(slot, &new),
                        6..8 => store.update(slot, |old| {
                            assert_whole(slot, old, codec);
                            *old = new;
                        }),
                        8 | 9 => store.discard(slot),
                        10 => store.write_zeroes(slot),
                        11 if round % 32 == 0 => {
                            store.compact_for(Duration::from_millis(1));
                            let stats = store.stats();
                            assert!(stats.spent_bytes <= memory_limit && stats.mem_used_max <= memory_limit);
                            Ok(())
                        }
                        _ => {
                            assert_whole(slot, &read(store, slot), codec);
                            Ok(())
                        }
                    };
                    assert!(done.is_ok() || done == Err(Error::Full) && memory_limit < u64::MAX, "{codec}: {done:?}");
                }
            });
        }
    });
    wait(&store, |_| true);
    for slot in 0..slots {
        assert_whole(slot, &read(&store, slot), codec);
    }
    store.check().expect("consistent");
    for slot in 0..slots {
        store.discard(slot).expect("a slot");
    }
    store.compact();
    let stats = store.stats();
    let left = [stats.orig_data_size, stats.compr_data_size, stats.same_pages, stats.huge_pages];
    assert!(left == [0; 4] && stats.mem_used_total < 1 << 20, "{codec}: {stats:?}");
    store.check().expect("consistent");
}

#[test]
fn threads_that_share_slots_find_whole_pages_with_every_codec() {
    let names = ["fold", "lz4", "lz4dyn", "lz4hc", "lzo", "lzo-rle", "deflate", "842", "zstd-1", "zstd-5"];
    for codec in names.into_iter().chain(CODECS) {
        share_slots(codec, 64, u64::MAX, 400);
        share_slots(codec, 600, 1 << 20, 300);
    }
}

#[test]
fn a_training_takes_no_room_from_writers() {
    for codec in CODECS {
        let store = store(codec, 8192, 16 << 20, Plan { sample_pages: 96, ..OFTEN });
        for slot in 0..96 {
            store.write(slot, &page(0, slot)).expect("room");
        }
        // Too random for training to help, and written before a training ends.
        let mut random = [0; PAGE_SIZE];
        let mut state = 1u64;
        let is_full = |slot: u64| {
            for word in random.as_chunks_mut::<8>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *word = (state ^ state >> 33).to_le_bytes();
            }
            store.write(slot, &random) == Err(Error::Full)
        };
        assert!((96..8192).any(is_full), "{codec}");
        let at_full = store.stats();
        wait(&store, |_| true);
        let back = at_full.spent_bytes - store.stats().spent_bytes;
        assert!(back < 256 << 10, "{codec}: {back} bytes came back after a write had failed for want of room");
        store.check().expect("consistent");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Under any history, a store that keeps retraining reads like a plain array of pages.
    #[test]
    fn a_training_store_is_an_array(
        codec in proptest::sample::select(&CODECS),
        steps in proptest::collection::vec((0..48u64, 0..5u64, 0..8u8), 300..900),
    ) {
        let store = store(codec, 48, u64::MAX, Plan { sample_pages: 80, ..OFTEN });
        let mut pages = vec![[0; PAGE_SIZE]; 48];
        for (number, (slot, kind, action)) in steps.into_iter().enumerate() {
            let held = &mut pages[slot as usize];
            match action {
                0 => {
                    store.discard(slot).expect("a slot");
                    held.fill(0);
                }
                1 => {
                    store.update(slot, |page| page[100..120].fill(number as u8)).expect("no limit");
                    held[100..120].fill(number as u8);
                }
                2 => prop_assert!(read(&store, slot) == *held),
                _ => {
                    *held = page(kind + number as u64 / 200 * 5, number as u64);
                    store.write(slot, held).expect("no limit");
                }
            }
        }
        wait(&store, |_| true);
        for (slot, held) in pages.iter().enumerate() {
            prop_assert!(read(&store, slot as u64) == *held);
        }
        store.check().map_err(TestCaseError::fail)?;
    }
}
