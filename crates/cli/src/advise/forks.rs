//! Memory of forks of a disk with these pages, measured by creating forks and changing their pages.

use anyhow::Context;
use pagefold_codec::PAGE_SIZE;
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_server::fork_record_bytes;

use super::{
    clock::Deadline,
    estimate::Estimate,
    order::{Order, spread},
    pages::Pages,
};

/// Number of forks created, and number of forks written to.
const FORKS: usize = 1000;
const WRITTEN: usize = 4;

/// Pages of the disk on which changes are measured: enough that their places hardly matter.
const DISK_PAGES: u64 = 1 << 17;

/// Names of common lengths, of which a server keeps copies: of a fork, and of its origin.
const NAMES: [&str; 2] = ["fork-100", "disk"];

/// Forks created, or pages written, between two checks of the time.
const TOGETHER: usize = 64;

/// Memory of a fork.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Before any change.
    pub(super) untouched_bytes: f64,
    /// With 1 % of the pages changed, and with 10 %; `None` if no time was left to measure it.
    pub(super) of_hundredth_bytes: Option<Estimate>,
    pub(super) of_tenth_bytes: Option<Estimate>,
}

/// Measures forks of a disk of the input's pages and `hole_pages` of zeros, until `end`. Changed pages
/// resemble those of the whole disk, and are at random places of it. Returns `None` if the time did not
/// suffice for a fork.
pub(super) fn measure(pages: &Pages, hole_pages: u64, end: Deadline<'_>) -> anyhow::Result<Option<Figures>> {
    let of_disk = pages.total.saturating_add(hole_pages) as f64;
    // The pages are those of the sample, so the error is that of all objects.
    let relative = pages.compressed_bytes.scaled(1.0 / pages.compressed_bytes.value.max(1.0));
    let of = |untouched: f64, per_page: f64, part: f64| {
        let bytes = of_disk / part * per_page;
        Estimate::exact(untouched) + if relative.value > 0.0 { relative.scaled(bytes) } else { Estimate::exact(bytes) }
    };
    // Zeros and same-filled pages have the same share of the changed pages as of the whole disk.
    let objects = pages.objects() / of_disk.max(1.0);
    let Some((table_bytes, hundredth)) = per_changed_page(pages, objects, 100, end)? else { return Ok(None) };
    let untouched_bytes = table_bytes + fork_record_bytes(NAMES[0], NAMES[1]) as f64;
    let tenth = per_changed_page(pages, objects, 10, end)?.and_then(|(_, tenth)| tenth);
    Ok(Some(Figures {
        untouched_bytes,
        of_hundredth_bytes: hundredth.map(|per_page| of(untouched_bytes, per_page, 100.0)),
        of_tenth_bytes: tenth.map(|per_page| of(untouched_bytes, per_page, 10.0)),
    }))
}

/// Returns the bytes of a fork in the pool, and the bytes per changed page if one in `part` pages is changed,
/// of which the share `objects` is not same-filled.
fn per_changed_page(
    pages: &Pages,
    objects: f64,
    part: u64,
    end: Deadline<'_>,
) -> anyhow::Result<Option<(f64, Option<f64>)>> {
    let count = pages.sample.len() as u64;
    let pool = Pool::new(PoolConfig::default()).context("a pool of pages")?;
    let disk = RamDisk::new(&pool, DISK_PAGES * PAGE_SIZE as u64).context("a disk in the pool")?;
    let page = |number: u64| &pages.sample[spread(number % count, count) as usize];
    // Allocate streams and first blocks in advance: they belong to the pool.
    if count > 0 {
        disk.write(0, page(0)).context("writing to a disk in the pool")?;
    }
    let before = pool.stats().spent_bytes;
    let mut forks = Vec::new();
    while forks.len() < FORKS && !end.is_over() {
        for _ in 0..TOGETHER {
            forks.push(disk.fork().context("forking a disk")?);
        }
    }
    if forks.is_empty() {
        return Ok(None);
    }
    let forked = pool.stats().spent_bytes;
    let (mut changed, mut written) = (0u64, 0u64);
    let mut per_page = None;
    let order = Order::new(DISK_PAGES);
    let slots: Vec<_> = (0..DISK_PAGES / part).filter_map(|place| order.nth(place)).collect();
    'forks: for fork in forks.iter().take(WRITTEN) {
        for slots in slots.chunks(TOGETHER) {
            // Tables are shared by the changes of a whole fork, so a part of one is not counted.
            if end.is_over() {
                break 'forks;
            }
            for slot in slots {
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
        per_page = Some(pool.stats().spent_bytes.saturating_sub(forked) as f64 / changed as f64);
    }
    let untouched = forked.saturating_sub(before) as f64 / forks.len() as f64;
    Ok(Some((untouched, per_page)))
}
