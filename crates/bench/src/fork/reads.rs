//! Reads of the base through a fork, compared with the image library's.

use std::{fs::File, ops::Range};

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
    speed::Speed,
    verdict::{Output, Target::AtLeast},
};

/// Turns of each reader per round, and reads per turn.
const CHUNKS: u64 = 50;
const CHUNK_READS: u64 = 400;

/// Size of a range that is in the cache after one pass.
const CACHED_BYTES: u64 = (CACHE_BYTES / 4) as u64;

/// The share of a fork's pages that were written, in the changed case.
const CHANGED: f64 = 0.01;

/// A reader of the base at given offsets.
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
    for at in [0, 2] {
        warm(base.len_bytes / PAGE_SIZE as u64, &mut readers[at].1)?;
    }
    let mut speeds: [Speed; 3] = Default::default();
    // Each reader reads other offsets, so that it does not profit from the file data that another
    // has just read. The offsets are the same in every run.
    let mut randoms = [1, 2, 3].map(Random::new);
    for chunk in 0..rounds as u64 * CHUNKS {
        for turn in 0..readers.len() {
            let which = (turn as u64 + chunk) as usize % readers.len();
            let (read, random) = (&mut readers[which].1, &mut randoms[which]);
            speeds[which]
                .chunk(CHUNK_READS, || (0..CHUNK_READS).try_for_each(|_| read(offset_in(random, range), &mut page)))?;
        }
    }
    for ((name, _), speed) in readers.iter().zip(&speeds) {
        output.put(case, &format!("{name}_reads_per_s"), speed.per_s(), "1/s");
    }
    let [image, base, fork] = speeds;
    output.put(case, "base_over_image", base.per_s() / image.per_s(), "x");
    output.judge(case, "fork_over_image", fork.per_s() / image.per_s(), "x", AtLeast(0.9));
    output.put(case, "fork_over_image_of_cpu_time", fork.per_cpu_s() / image.per_cpu_s(), "x");
    Ok(())
}

fn offset_in(random: &mut Random, range: &Range<u64>) -> u64 {
    (range.start + random.below(range.end - range.start)) * PAGE_SIZE as u64
}
