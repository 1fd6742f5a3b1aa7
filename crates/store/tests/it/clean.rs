//! Clean disks: their pages are counted separately and discarded to make room for others.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use pagefold_store::{Disk, PAGE_SIZE, Page, Pool, PoolConfig, Reclaim};

/// A page that compresses to about a half, different for each number.
fn page(number: u64) -> Page {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::array::from_fn(|at| {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(at as u64);
        if at % 2 == 0 { 0 } else { (word >> 40) as u8 }
    })
}

/// Discards the pages of a clean disk from the front, 64 at a time.
struct User {
    disk: Mutex<Option<Disk>>,
    next: AtomicU64,
}

impl Reclaim for User {
    fn reclaim(&self) -> bool {
        let disk = self.disk.lock().expect("the lock");
        let Some(disk) = disk.as_ref() else { return false };
        let first = self.next.fetch_add(64, Relaxed);
        if first >= disk.slots() {
            return false;
        }
        disk.discard(first..(first + 64).min(disk.slots())).expect("a discard takes no memory");
        true
    }
}

#[test]
fn clean_pages_are_counted_separately() {
    let pool = Pool::new(PoolConfig::default().dedupe(true)).expect("a pool");
    let (disk, clean) = (pool.disk(100).expect("no limit"), pool.clean_disk(100).expect("no limit"));
    for number in 0..50 {
        disk.write(number, &page(number)).expect("no limit");
    }
    let before = pool.stats();
    for number in 0..100 {
        clean.write(number, &page(number)).expect("no limit");
    }
    clean.write_zeroes(99).expect("no limit");
    let after = pool.stats();
    assert_eq!((after.orig_data_size, after.compr_data_size), (before.orig_data_size, before.compr_data_size));
    assert_eq!((after.shared_pages, after.same_pages, after.clean_pages), (0, 0, 100));
    assert!(after.clean_bytes > 99 * 1500 && after.spent_bytes > before.spent_bytes, "{after:?}");
    assert_eq!(after.needed_bytes() + after.clean_bytes, after.spent_bytes);
    pool.check().expect("a consistent pool");
    drop(clean);
    let dropped = pool.stats();
    assert_eq!((dropped.clean_pages, dropped.clean_bytes), (0, 0));
    assert_eq!(dropped.orig_data_size, before.orig_data_size);
    pool.check().expect("a consistent pool");
}

/// A pool that is full of clean pages has room for other disks.
#[test]
fn clean_pages_are_discarded_for_others() {
    const LIMIT: u64 = 16 << 20;
    let fill = |disk: &Disk| (0..disk.slots()).take_while(|&number| disk.write(number, &page(number)).is_ok()).count();
    let pool = Pool::new(PoolConfig::default().memory_limit(LIMIT)).expect("a pool");
    let alone = fill(&pool.disk(1 << 16).expect("room"));

    let pool = Pool::new(PoolConfig::default().memory_limit(LIMIT)).expect("a pool");
    let clean = pool.clean_disk(1 << 16).expect("room");
    let kept = fill(&clean);
    assert!(kept > alone / 2, "{kept} of {alone}");
    let outside = || pool.take_outside(LIMIT / 2);
    assert!(!outside(), "there is no user to ask");
    let user = Arc::new(User { disk: Mutex::new(Some(clean)), next: AtomicU64::new(0) });
    pool.set_reclaim(&user);
    assert!(outside());
    pool.give_outside(LIMIT / 2);
    let disk = pool.disk(1 << 16).expect("room");
    let written = fill(&disk);
    assert!(written > alone * 15 / 16, "{written} of {alone}");
    let mut back = [0; PAGE_SIZE];
    for number in 0..written as u64 {
        disk.read(number, &mut back).expect("a page");
        assert!(back == page(number), "page {number}");
    }
    assert!(pool.stats().spent_bytes <= LIMIT);
    pool.check().expect("a consistent pool");
    // The user is not asked to make room for clean pages.
    let clean = user.disk.lock().expect("the lock").take().expect("the disk");
    let asked = user.next.load(Relaxed);
    assert!(fill(&clean) < alone / 8);
    assert_eq!(user.next.load(Relaxed), asked);
}
