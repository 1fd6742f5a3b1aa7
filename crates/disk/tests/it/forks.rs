//! The changes reported for a fork, against a plain model.

use std::sync::Arc;

use pagefold_disk::{BlockDevice, Change, Checked, Pool, PoolConfig, RamDisk, Zeroes};
use proptest::prelude::*;

const PAGE: u64 = 4096;
const PAGES: u64 = 300;

fn changes(disk: &dyn BlockDevice, offset: u64, len_bytes: u64) -> Vec<Change> {
    let mut found = Vec::new();
    let each = &mut |change| {
        found.push(change);
        true
    };
    disk.changes(offset, len_bytes, each).expect("a range of the disk");
    found
}

/// Returns which pages were changed.
fn changed_pages(disk: &dyn BlockDevice) -> Vec<bool> {
    let all = changes(disk, 0, disk.size_bytes());
    all.iter().flat_map(|change| vec![change.changed; (change.len_bytes / PAGE) as usize]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Pages that were written or discarded since the fork are reported as changed, and no others,
    /// whatever snapshots were taken since. A snapshot reports the changes as of its instant. Its
    /// fork reports no pages except holes that the snapshot had.
    #[test]
    fn changes_are_what_was_written_since_the_fork(
        before in prop::collection::vec((0..PAGES, 1..40_u64), 0..6),
        after in prop::collection::vec((0..PAGES, 1..40_u64, 0..5), 0..12),
        over in any::<bool>(),
    ) {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let base = RamDisk::new(&pool, PAGES * PAGE).expect("a disk");
        let range = |page: u64, pages: u64| (page * PAGE, pages.min(PAGES - page) * PAGE);
        for (page, pages) in before {
            let (offset, len_bytes) = range(page, pages);
            base.write(offset, &vec![7; len_bytes as usize]).expect("no limit");
        }
        let fork = if over { RamDisk::over(&pool, Arc::new(base)) } else { Ok(base.fork().expect("no limit")) };
        let fork = Checked::new(Arc::new(fork.expect("a fork")));
        prop_assert!(fork.knows_changes() && changed_pages(&fork).iter().all(|changed| !changed));
        let mut model = vec![false; PAGES as usize];
        let mut snapshots = Vec::new();
        for (page, pages, how) in after {
            let (offset, len_bytes) = range(page, pages);
            match how {
                0 => fork.discard(offset, len_bytes).expect("no limit"),
                1 => fork.write_zeroes(offset, len_bytes, Zeroes::Allocated).expect("no limit"),
                2 => {
                    snapshots.push((fork.get_ref().snapshot().expect("no limit"), model.clone()));
                    continue;
                }
                3 => {
                    if let Some((snapshot, then)) = snapshots.last() {
                        fork.get_ref().become_as(snapshot).expect("no limit");
                        model.clone_from(then);
                    }
                    continue;
                }
                _ => fork.write(offset, &vec![9; len_bytes as usize]).expect("no limit"),
            }
            model[page as usize..][..(len_bytes / PAGE) as usize].fill(true);
            let some = changes(&fork, offset + 100, len_bytes - 200);
            prop_assert_eq!(some.iter().map(|change| change.len_bytes).sum::<u64>(), len_bytes - 200);
            prop_assert!(some.iter().all(|change| change.changed || how == 0));
        }
        for (page, (found, expected)) in changed_pages(&fork).into_iter().zip(model).enumerate() {
            prop_assert_eq!(found, expected, "page {}", page);
        }
        // A snapshot reports the changes that the disk had then, whatever the disk has become.
        for (snapshot, expected) in &snapshots {
            prop_assert_eq!(&changed_pages(snapshot), expected);
            let fork = snapshot.fork().expect("no limit");
            let of_fork = changes(&fork, 0, fork.size_bytes());
            let mut offset = 0;
            for Change { len_bytes, changed } in of_fork {
                let mut is_hole = true;
                fork.extents(offset, len_bytes, &mut |extent| {
                    is_hole &= extent.hole;
                    is_hole
                }).expect("a range of the disk");
                prop_assert!(!changed || is_hole, "{} bytes at {}", len_bytes, offset);
                offset += len_bytes;
            }
        }
        prop_assert!(fork.changes(PAGES * PAGE, 1, &mut |_| true).is_err(), "beyond the end");
    }
}

#[test]
fn no_more_is_looked_at_than_is_asked_for() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let disk = RamDisk::new(&pool, 16 << 20).expect("a disk");
    disk.write(0, &vec![5; 16 << 20]).expect("no limit");
    let mut heard_bytes = 0;
    let each = &mut |change: Change| {
        heard_bytes += change.len_bytes;
        false
    };
    disk.changes(0, 16 << 20, each).expect("a range of the disk");
    assert_eq!(heard_bytes, 64 * PAGE);
}
