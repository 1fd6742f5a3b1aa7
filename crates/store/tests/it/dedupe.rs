//! Equal pages that are stored as one object.

use pagefold_codec::by_name;
use pagefold_store::{Disk, PAGE_SIZE, Page, Pool, PoolConfig};

use crate::pages::mixed;

fn pool() -> Pool {
    Pool::new(PoolConfig::default().dedupe(true)).expect("a pool")
}

fn holds(disk: &Disk, slot: u64, expected: &Page) -> bool {
    let mut page = [0; PAGE_SIZE];
    disk.read(slot, &mut page).expect("a readable page") && page == *expected
}

/// Returns a page; they compress to different lengths, and every fourth does not compress.
fn page(number: u64) -> Box<Page> {
    mixed(number, [0x03, 0x0f, 0x3f, 0xff][number as usize % 4])
}

#[test]
fn equal_pages_of_any_disks_are_kept_once() {
    const PAGES: u64 = 1000;
    let pool = pool();
    let disks = [(); 8].map(|()| pool.disk(3 * PAGES).expect("a disk"));
    for number in 0..PAGES {
        disks[0].write(number, &page(number)).expect("no limit");
    }
    let once = pool.stats();
    assert_eq!((once.shared_pages, once.shared_saved_bytes), (0, 0));
    for (at, disk) in disks.iter().enumerate() {
        for number in 0..PAGES {
            // In other places, and twice.
            let slot = (number * 7 + at as u64) % PAGES;
            disk.write(slot, &page(number)).expect("no limit");
            disk.write(slot + PAGES, &page(number)).expect("no limit");
        }
    }
    let stats = pool.stats();
    assert_eq!(stats.orig_data_size, 16 * PAGES * PAGE_SIZE as u64);
    assert!(stats.compr_data_size < once.compr_data_size * 12 / 10, "{stats:?} {once:?}");
    assert!(stats.shared_pages > 15 * PAGES, "{stats:?}");
    let each = disks[1].stats();
    assert_eq!(each.orig_data_size, 2 * PAGES * PAGE_SIZE as u64);
    assert!(each.compr_data_size > once.compr_data_size * 19 / 10, "shared pages count in full: {each:?}");
    pool.compact();
    pool.check().expect("consistent");
    for (at, disk) in disks.iter().enumerate() {
        for number in 0..PAGES {
            let slot = (number * 7 + at as u64) % PAGES;
            assert!(holds(disk, slot, &page(number)) && holds(disk, slot + PAGES, &page(number)));
        }
    }
    for disk in disks {
        drop(disk);
        pool.check().expect("consistent");
    }
    pool.compact();
    let stats = pool.stats();
    assert_eq!((stats.orig_data_size, stats.compr_data_size, stats.shared_pages), (0, 0, 0));
    assert!(stats.table_bytes < 32 << 10, "{stats:?}");
}

#[test]
fn a_shared_object_is_freed_with_its_last_sharer() {
    let pool = pool();
    let [first, second] = [(); 2].map(|()| pool.disk(10).expect("a disk"));
    for slot in 0..3 {
        first.write(slot, &page(4)).expect("no limit");
    }
    let fork = first.fork().expect("no limit");
    second.write(0, &page(4)).expect("no limit");
    let len_bytes = pool.stats().compr_data_size;
    assert_eq!(pool.stats().shared_pages, 4);
    first.write(0, &page(5)).expect("no limit");
    first.discard(1..2).expect("slots");
    first.update(2, |page| page[0] ^= 1).expect("no limit");
    let mut changed = page(4);
    changed[0] ^= 1;
    assert!(holds(&first, 0, &page(5)) && holds(&first, 2, &changed));
    drop(first);
    assert!((0..3).all(|slot| holds(&fork, slot, &page(4))) && holds(&second, 0, &page(4)));
    drop(fork);
    pool.check().expect("consistent");
    assert_eq!(pool.stats().compr_data_size, len_bytes);
    // First the same page again, then another.
    second.write(0, &page(4)).expect("no limit");
    assert!(holds(&second, 0, &page(4)));
    second.write(0, &page(8)).expect("no limit");
    pool.compact();
    pool.check().expect("consistent");
    assert_eq!(pool.stats().shared_pages, 0);
    assert!(holds(&second, 0, &page(8)));
    second.discard(0..10).expect("slots");
    pool.check().expect("consistent");
    assert_eq!(pool.stats().compr_data_size, 0);
}

/// A page that is written again to its slot takes no memory, and a slot does not share with itself.
#[test]
fn a_page_written_again_takes_no_memory() {
    let pool = pool();
    let disk = pool.disk(10).expect("a disk");
    for _ in 0..3 {
        disk.write(7, &page(2)).expect("no limit");
    }
    assert_eq!(pool.stats().shared_pages, 0);
    assert_eq!(pool.stats().orig_data_size, PAGE_SIZE as u64);
}

/// A disk's limit counts shared objects in full: otherwise, slots with equal pages would have no
/// limit.
#[test]
fn a_disks_limit_counts_what_it_shares() {
    let pool = pool();
    let disk = pool.disk(1 << 20).expect("a disk");
    disk.set_limit(1 << 20);
    let page = mixed(1, 0xff);
    let written = (0..1 << 20).take_while(|&slot| disk.write(slot, &page).is_ok()).count();
    assert!((200..=256).contains(&written), "{written}");
    assert!(disk.stats().spent_bytes <= 1 << 20);
    assert!(pool.stats().compr_data_size <= 2 * PAGE_SIZE as u64);
}

/// Shared objects are moved like others, including those in two pieces, and rewritten for other
/// tables.
#[test]
fn shared_objects_are_compacted_and_made_again() {
    // Numbers in a row, and where each begins.
    let (mut numbers, mut starts) = (Vec::new(), Vec::new());
    for number in 0..12_000 * 31 + PAGE_SIZE {
        starts.push(numbers.len());
        numbers.extend(number.to_string().into_bytes());
    }
    for codec in ["lz4", "fold", "pleat"] {
        let codec = by_name(codec).expect("a codec");
        let pool = Pool::new(PoolConfig::default().codec(codec).dedupe(true)).expect("a pool");
        let [first, second] = [(); 2].map(|()| pool.disk(30_000).expect("a disk"));
        for slot in 0..12_000 {
            first.write(slot, &page(slot)).expect("no limit");
            if slot % 3 == 0 {
                second.write(slot + 1, &page(slot)).expect("no limit");
            }
        }
        // Leaves holes between the shared objects.
        for slot in (0..12_000).filter(|slot| slot % 3 != 0) {
            first.discard(slot..slot + 1).expect("a slot");
        }
        pool.compact();
        pool.check().expect("consistent");
        for slot in (0..12_000).step_by(3) {
            assert!(holds(&first, slot, &page(slot)) && holds(&second, slot + 1, &page(slot)), "slot {slot}");
        }
        // Different pages, for which other tables are trained.
        for round in 0..2 {
            for slot in 0..12_000 {
                let page = numbers[starts[slot * 31 + round]..].first_chunk().expect("a page of numbers");
                first.write(12_000 + slot as u64, page).expect("no limit");
            }
        }
        for slot in (0..12_000).step_by(3) {
            assert!(holds(&first, slot, &page(slot)) && holds(&second, slot + 1, &page(slot)), "slot {slot}");
        }
        pool.check().expect("consistent");
    }
}
