//! Reads of the base through a fork, beside the image library's own.

use std::{fs::File, ops::Range, time::Instant};

use anyhow::ensure;
use pagefold_codec::{PAGE_SIZE, Page};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_erofs::{ClusterCache, FileKind, Image};

use super::{
    base::{BaseFiles, CACHE_BYTES},
    idle::warm,
};
use crate::{
    load::Random,
    report::median,
    verdict::{Output, Target::AtLeast},
};

/// Reads of a round of each reader.
const READS: u64 = 20_000;

/// What lies in the cache after one pass.
const CACHED_BYTES: u64 = (CACHE_BYTES / 4) as u64;

/// The share of a fork's pages that it wrote, in the case in which it did.
const CHANGED: f64 = 0.01;

/// Something that is read at places of the base.
type Read<'a> = Box<dyn FnMut(u64, &mut Page) -> anyhow::Result<()> + 'a>;

pub(super) fn run(output: &mut Output, base: &BaseFiles, rounds: usize) -> anyhow::Result<()> {
    let pages = base.len_bytes / PAGE_SIZE as u64;
    let cached = CACHED_BYTES.min(base.len_bytes) / PAGE_SIZE as u64;
    let middle = (pages - cached) / 2;
    for (name, range) in [("all", 0..pages), ("cached", middle..middle + cached)] {
        for changed in [0.0, CHANGED] {
            let case = format!("reads/{name}/{}-percent-changed", changed * 100.0);
            measure(output, &case, base, &range, changed, rounds)?;
        }
    }
    Ok(())
}

fn measure(
    output: &mut Output,
    case: &str,
    base: &BaseFiles,
    range: &Range<u64>,
    changed: f64,
    rounds: usize,
) -> anyhow::Result<()> {
    let clusters = ClusterCache::new(CACHE_BYTES);
    let image = Image::open_sharing(File::open(base.packed())?, Vec::new(), &clusters)?;
    let inode = image.resolve(b"/base.img")?;
    ensure!(inode.kind == FileKind::Regular, "the image does not hold the base");
    let file = image.file(&inode)?;

    let pool = Pool::new(PoolConfig::default())?;
    let opened = base.open()?;
    let parent = RamDisk::over(&pool, opened.clone())?;
    let fork = parent.fork()?;
    let mut random = Random::new(5);
    let mut page = [0; PAGE_SIZE];
    for _ in 0..((range.end - range.start) as f64 * changed) as u64 {
        let offset = offset_in(&mut random, range);
        fork.read(offset, &mut page)?;
        page[0] ^= 1;
        fork.write(offset, &page)?;
    }
    let mut readers: [(&str, Read<'_>); 3] = [
        (
            "image",
            Box::new(|offset, page| {
                ensure!(file.read_at(page, offset)? == page.len(), "the image ends at {offset}");
                Ok(())
            }),
        ),
        ("base", Box::new(|offset, page| Ok(opened.read(offset, page)?))),
        ("fork", Box::new(|offset, page| Ok(fork.read(offset, page)?))),
    ];
    // Both caches have been filled by the same reads in order.
    warm(&fork)?;
    let mut all = vec![0; 1 << 20];
    let mut at = 0;
    while at < base.len_bytes {
        at += file.read_at(&mut all, at)? as u64;
    }
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..=rounds {
        for ((_, read), rates) in readers.iter_mut().zip(&mut rates) {
            let mut random = Random::new(round as u64 + 1);
            let start = Instant::now();
            for _ in 0..READS {
                read(offset_in(&mut random, range), &mut page)?;
            }
            // The first round fills the caches with what is read at random.
            if round > 0 {
                rates.push(READS as f64 / start.elapsed().as_secs_f64());
            }
        }
    }
    let [image, base, fork] = rates.map(|rates| median(&rates));
    for (name, rate) in [("image", image), ("base", base), ("fork", fork)] {
        output.put(case, &format!("{name}_reads_per_s"), rate, "1/s");
    }
    output.put(case, "base_over_image", base / image, "x");
    output.judge(case, "fork_over_image", fork / image, "x", AtLeast(0.9));
    Ok(())
}

fn offset_in(random: &mut Random, range: &Range<u64>) -> u64 {
    (range.start + random.below(range.end - range.start)) * PAGE_SIZE as u64
}
