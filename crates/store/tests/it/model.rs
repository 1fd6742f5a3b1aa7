//! The store against a plain vector of pages.

use std::sync::Arc;

use pagefold_codec::by_name;
use pagefold_store::{Error, PAGE_SIZE, Page, PoolConfig, Status};
use proptest::prelude::*;

use crate::one::One;
use crate::pages::{any_page, mixed};

const SLOTS: u64 = 1500;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Box<Page>),
    Update(u64, usize, Vec<u8>),
    Discard(u64),
    Zero(u64),
}

/// Slots of three leaves, few enough for repeated accesses.
fn any_slot() -> impl Strategy<Value = u64> {
    (0u64..3, 0u64..12).prop_map(|(leaf, slot)| leaf * 512 + slot * 37)
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any_slot(), any_page()).prop_map(|(slot, page)| Op::Write(slot, page)),
        2 => (any_slot(), 0..PAGE_SIZE, prop::collection::vec(any::<u8>(), 0..600))
            .prop_map(|(slot, at, bytes)| Op::Update(slot, at, bytes)),
        1 => any_slot().prop_map(Op::Discard),
        1 => any_slot().prop_map(Op::Zero),
    ]
}

fn run(config: PoolConfig, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let store = One::new(SLOTS, config);
    let mut model: Vec<Option<Arc<Page>>> = vec![None; SLOTS as usize];
    for op in ops {
        match op {
            Op::Write(slot, page) => {
                store.write(slot, &page).expect("no limit");
                model[slot as usize] = Some(Arc::new(*page));
            }
            Op::Update(slot, at, bytes) => {
                let len = bytes.len().min(PAGE_SIZE - at);
                store.update(slot, |page| page[at..at + len].copy_from_slice(&bytes[..len])).expect("no limit");
                let mut page = model[slot as usize].as_deref().copied().unwrap_or([0; PAGE_SIZE]);
                page[at..at + len].copy_from_slice(&bytes[..len]);
                model[slot as usize] = Some(Arc::new(page));
            }
            Op::Discard(slot) => {
                store.discard(slot).expect("a slot");
                model[slot as usize] = None;
            }
            Op::Zero(slot) => {
                store.write_zeroes(slot).expect("no limit");
                model[slot as usize] = Some(Arc::new([0; PAGE_SIZE]));
            }
        }
    }
    let zeros = [0; PAGE_SIZE];
    let mut page = [1; PAGE_SIZE];
    for (slot, expected) in model.iter().enumerate() {
        store.read(slot as u64, &mut page).expect("a readable page");
        prop_assert!(page == *expected.as_deref().unwrap_or(&zeros), "slot {slot}");
        let status = match expected.as_deref() {
            None => Status::Empty,
            Some(page) if *page == zeros => Status::Zero,
            Some(_) => Status::Data,
        };
        prop_assert_eq!(store.status(slot as u64), Ok(status));
    }
    prop_assert_eq!(store.check(), Ok(()));
    let stored = model.iter().flatten().count() * PAGE_SIZE;
    prop_assert_eq!(store.stats().orig_data_size, stored as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn default_store_is_a_vector_of_pages(ops in prop::collection::vec(any_op(), 0..200)) {
        run(PoolConfig::default(), ops)?;
    }

    #[test]
    fn lz4_store_is_a_vector_of_pages(ops in prop::collection::vec(any_op(), 0..200)) {
        run(PoolConfig::default().codec(by_name("lz4").expect("a codec")), ops)?;
    }

    #[test]
    fn zstd_store_is_a_vector_of_pages(ops in prop::collection::vec(any_op(), 0..100)) {
        run(PoolConfig::default().codec(by_name("zstd-1").expect("a codec")), ops)?;
    }
}

#[test]
fn slots_beyond_the_end_are_refused() {
    let store = One::new(10, PoolConfig::default());
    let error = Error::NoSuchSlot { slot: 10, slots: 10 };
    assert_eq!(store.read(10, &mut [0; PAGE_SIZE]), Err(error));
    assert_eq!(store.write(10, &[0; PAGE_SIZE]), Err(error));
    assert_eq!(store.update(10, |_| ()), Err(error));
    assert_eq!(store.discard(10), Err(error));
    assert_eq!(store.write_zeroes(10), Err(error));
    assert_eq!(store.status(10), Err(error));
    assert_eq!(store.run(10, 5), Err(error));
    assert!(store.run(u64::MAX, u64::MAX).is_err());
}

#[test]
fn each_kind_of_page_is_counted() {
    let store = One::new(8, PoolConfig::default());
    store.write(0, &mixed(1, 0xff)).expect("no limit");
    store.write(1, &mixed(2, 0xff)).expect("no limit");
    store.write(2, &[7; PAGE_SIZE]).expect("no limit");
    store.write_zeroes(3).expect("no limit");
    store.write(4, &mixed(3, 0x01)).expect("no limit");
    let counted = |store: &One| {
        let stats = store.stats();
        (stats.orig_data_size / PAGE_SIZE as u64, stats.huge_pages, stats.same_pages)
    };
    assert_eq!(counted(&store), (5, 2, 2));
    store.update(1, |page| page.fill(0)).expect("no limit");
    store.discard(2).expect("a slot");
    assert_eq!(counted(&store), (4, 1, 2));
    let compressed = store.stats().compr_data_size;
    assert!((4096..2 * 4096).contains(&compressed), "{compressed} bytes of objects");
}

#[test]
fn an_empty_store_of_8_gib_costs_kilobytes() {
    let store = One::new(2 << 20, PoolConfig::default());
    // Each CPU has four streams of 128 bytes that were never taken, and a shard that is not there.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    assert!(store.stats().spent_bytes <= (32 << 10) + cpus * 640, "{:?}", store.stats());
}
