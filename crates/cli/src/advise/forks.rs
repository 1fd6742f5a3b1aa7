//! What forks of a disk of these pages take: some are made, and pages of them changed.

use anyhow::Context;
use pagefold_codec::PAGE_SIZE;
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use super::{pages::Pages, stratum::spread};

/// Forks that are made, and those that are written to.
const FORKS: usize = 1000;
const WRITTEN: usize = 4;

/// The disk's pages. Changed ones are spread over it.
const DISK_PAGES: u64 = 1 << 17;

/// What a fork takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// Before anything is changed.
    pub(super) untouched_bytes: f64,
    /// With a hundredth of the pages changed, and with a tenth.
    pub(super) of_hundredth_bytes: f64,
    pub(super) of_tenth_bytes: f64,
}

/// Measures forks whose changed pages are like those of the input, spread over the disk.
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

/// The bytes of a fork, and those of each page of which every `part`th is changed.
fn per_changed_page(pages: &Pages, part: u64) -> anyhow::Result<(f64, f64)> {
    let count = pages.sample.len() as u64;
    let pool = Pool::new(PoolConfig::default()).context("a pool of pages")?;
    let disk = RamDisk::new(&pool, DISK_PAGES * PAGE_SIZE as u64).context("a disk in the pool")?;
    let page = |number: u64| &pages.sample[spread(number % count, count) as usize];
    // Streams and first blocks are the pool's.
    if count > 0 {
        disk.write(0, page(0)).context("writing to a disk in the pool")?;
    }
    let before = pool.stats().spent_bytes;
    let forks: Vec<_> = (0..FORKS).map(|_| disk.fork()).collect::<Result<_, _>>().context("forking a disk")?;
    let forked = pool.stats().spent_bytes;
    let (mut changed, mut written) = (0u64, 0u64);
    // Of the changed pages, as many are zeros, or another word, as in the whole.
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
