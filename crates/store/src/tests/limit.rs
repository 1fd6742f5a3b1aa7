//! The memory limit on a machine with many CPUs.

use pagefold_codec::{PAGE_SIZE, Page};

use crate::{PoolConfig, cpus::fake, tests::One};

/// Returns a page whose object has slightly more than `len_bytes`.
fn page_of(seed: u64, len_bytes: usize) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (at, byte) in page[..len_bytes].iter_mut().enumerate() {
        let word = (seed << 12 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *byte = ((word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8;
    }
    page
}

/// Objects of other CPUs are queued and freed later. A full pool frees them before it refuses a
/// page that is longer than the one it replaces.
#[test]
fn a_longer_page_is_not_refused_while_objects_wait_to_be_freed() {
    fake::set_machine(0..16, 16);
    let store = One::new(8192, PoolConfig::default());
    let write = |slot: u64, len_bytes: usize| {
        fake::run_on((slot % 16) as usize);
        store.write(slot, &page_of(slot, len_bytes))
    };
    (0..8192).for_each(|slot| write(slot, 2000).expect("no limit"));
    // Too few to make the freeing thread lock their shard.
    fake::run_on(0);
    (8001..8192).step_by(16).for_each(|slot| store.write(slot, &page_of(slot, 1900)).expect("no limit"));
    let budget = store.budget();
    let admits = |limit: u64| {
        budget.set_limit(limit);
        budget.admits(500, false)
    };
    let (mut refused, mut admitted) = (0_u64, 64 << 20);
    while admitted - refused > 1 {
        let limit = refused.midpoint(admitted);
        if admits(limit) { admitted = limit } else { refused = limit }
    }
    assert!(!admits(refused));
    write(8000, 2500).expect("room");
    store.check().expect("consistent");
}
