//! Memory of forks of a disk with these pages, measured by creating forks and changing their pages.

use anyhow::Context;
use pagefold_codec::PAGE_SIZE;
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use super::{pages::Pages, stratum::spread};

/// Number of forks created, and number of forks written to.
const FORKS: usize = 1000;
const WRITTEN: usize = 4;

/// Pages of the disk. Changed pages are spread over it.
const DISK_PAGES: u64 = 1 << 17;

/// Memory of a fork.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// Before any change.
    pub(super) untouched_bytes: f64,
    /// With 1 % of the pages changed, and with 10 %.
    pub(super) of_hundredth_bytes: f64,
    pub(super) of_tenth_bytes: f64,
}

/// Measures forks whose changed pages resemble those of the input and are spread over the disk.
pub(super) fn measure(pages: &Pages) -> anyhow::Result<Figures> {
    let [hundredth, tenth] = [100, 10].map(|part| per_changed_page(pages, part));
    let (untouched_bytes, hundredth) = hundredth?;
    let (_, tenth) = tenth?;
    let changed = pages.total as f64;
    Ok(Figures {
        untouched_bytes,
        of_hundredth_bytes: untouched_bytes + changed / 100.0 * hundredth,
        of_tenth_bytes: untouched_bytes + changed / 10.0 * tenth,
    })
}

/// Returns the bytes of a fork, and the bytes per changed page if one in `part` pages is changed.
fn per_changed_page(pages: &Pages, part: u64) -> anyhow::Result<(f64, f64)> {
    let count = pages.sample.len() as u64;
    let pool = Pool::new(PoolConfig::default()).context("a pool of pages")?;
    let disk = RamDisk::new(&pool, DISK_PAGES * PAGE_SIZE as u64).context("a disk in the pool")?;
    let page = |number: u64| &pages.sample[spread(number % count, count) as usize];
    // Allocate streams and first blocks in advance: they belong to the pool.
    if count > 0 {
        disk.write(0, page(0)).context("writing to a disk in the pool")?;
    }
    let before = pool.stats().spent_bytes;
    let forks: Vec<_> = (0..FORKS).map(|_| disk.fork()).collect::<Result<_, _>>().context("forking a disk")?;
    let forked = pool.stats().spent_bytes;
    let (mut changed, mut written) = (0u64, 0u64);
    // Zeros and same-filled pages have the same share of the changed pages as in the whole.
    let objects = (1.0 - (pages.zero.value + pages.same.value) / pages.total.max(1) as f64).max(0.0);
    for fork in &forks[..WRITTEN] {
        for slot in (0..DISK_PAGES).step_by(part as usize) {
            changed += 1;
            if count > 0 && (written as f64) < changed as f64 * objects {
                written += 1;
                fork.write(slot * PAGE_SIZE as u64, page(written)).context("writing to a fork")?;
            } else {
                let word = slot.to_le_bytes().repeat(PAGE_SIZE / 8);
                fork.write(slot * PAGE_SIZE as u64, &word).context("writing to a fork")?;
            }
        }
    }
    let after = pool.stats().spent_bytes;
    let untouched = forked.saturating_sub(before) as f64 / FORKS as f64;
    Ok((untouched, after.saturating_sub(forked) as f64 / changed as f64))
}
