//! Invalid slot numbers and configurations.

use pagefold_store::{Error, NewPoolError, PAGE_SIZE, Pool, PoolConfig, Slot, Status};

use crate::one::One;

#[test]
fn slots_beyond_the_end_are_errors() {
    let slots = 700;
    let store = One::new(slots, PoolConfig::default());
    let mut page = [7; PAGE_SIZE];
    for slot in [slots, slots + 1, 1023, 1 << 15, 1 << 32, 1 << 44, 1 << 63, Slot::MAX] {
        let refused = Error::NoSuchSlot { slot, slots };
        assert_eq!(store.write(slot, &page), Err(refused));
        assert_eq!(store.read(slot, &mut page), Err(refused));
        assert_eq!(store.update(slot, |_| panic!("there is no page")), Err(refused));
        assert!(store.disk.discard(0..slot.saturating_add(1)).is_err());
        assert_eq!(store.write_zeroes(slot), Err(refused));
        assert_eq!(store.status(slot), Err(refused));
        assert_eq!(store.run(slot, Slot::MAX), Err(refused));
    }
    let run = store.run(0, Slot::MAX).expect("a slot");
    assert_eq!((run.status, run.slots), (Status::Empty, slots));
    store.write(slots - 1, &page).expect("the last slot");
    store.check().expect("consistent");
}

#[test]
fn invalid_pools_and_disks_are_errors() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    for slots in [1 << 40, 1 << 52, Slot::MAX] {
        assert_eq!(pool.disk(slots).expect_err("too many slots"), Error::TooLarge { slots });
    }
    for memory_limit in [0, 1, 1000] {
        let error = Pool::new(PoolConfig::default().memory_limit(memory_limit)).expect_err("no memory");
        assert!(matches!(error, NewPoolError::LimitTooSmall { limit, .. } if limit == memory_limit), "{error}");
    }
}

#[test]
fn a_disk_without_slots_is_valid() {
    let store = One::new(0, PoolConfig::default());
    assert_eq!(store.read(0, &mut [0; PAGE_SIZE]), Err(Error::NoSuchSlot { slot: 0, slots: 0 }));
    store.compact();
    store.check().expect("consistent");
}

#[test]
fn a_change_that_panics_leaves_the_page() {
    let store = One::new(1, PoolConfig::default());
    let page = std::array::from_fn(|at| (at / 9) as u8);
    store.write(0, &page).expect("memory");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.update(0, |page| {
            page.fill(1);
            panic!("meant");
        })
    }));
    assert!(panicked.is_err());
    let mut back = [0; PAGE_SIZE];
    store.read(0, &mut back).expect("the page");
    assert_eq!(back, page);
    store.write(0, &back).expect("the slot is not locked");
    store.check().expect("consistent");
}
