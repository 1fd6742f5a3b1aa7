//! Reads of a disk with many snapshots below it, and at the end of a chain of forks, beside one with a single snapshot.

use std::time::Instant;

use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use crate::{
    load::Random,
    pages::Data,
    report::median,
    verdict::{Output, Target::AtLeast},
};

/// Snapshots that are kept; the first is what the others are held against.
const DEPTHS: [usize; 3] = [1, 100, 1000];

/// The depth at which reads have a target.
const JUDGED: usize = 100;

/// How the depth comes about: a disk that goes on above its snapshots, or each fork made of the one before.
const SHAPES: [&str; 2] = ["snapshots", "chain"];

/// One page in so many is written between the first snapshot and the last.
const WRITTEN: u64 = 2;

/// Reads of a round of each disk.
const READS: u64 = 100_000;

/// A disk and what it was forked from.
struct Deep {
    pool: Pool,
    disk: RamDisk,
    below: Vec<RamDisk>,
}

pub(super) fn run(output: &mut Output, codec: &str, data: &Data, pages: u64, rounds: usize) -> anyhow::Result<()> {
    for shape in SHAPES {
        let case = format!("depth/{shape}/{}/{codec}", data.name);
        let disks: Vec<Deep> =
            DEPTHS.iter().map(|&depth| Deep::make(codec, data, pages, depth, shape)).collect::<anyhow::Result<_>>()?;
        let mut rates = vec![Vec::new(); disks.len()];
        for round in 0..=rounds {
            for turn in 0..disks.len() {
                let which = (turn + round) % disks.len();
                let mut random = Random::new(round as u64 + 1);
                let mut page = [0; PAGE_SIZE];
                let start = Instant::now();
                for _ in 0..READS {
                    disks[which].disk.read(random.below(pages) * PAGE_SIZE as u64, &mut page)?;
                }
                // The first round warms up.
                if round > 0 {
                    rates[which].push(READS as f64 / start.elapsed().as_secs_f64());
                }
            }
        }
        let rates: Vec<f64> = rates.iter().map(|rates| median(rates)).collect();
        for (which, &depth) in DEPTHS.iter().enumerate() {
            output.put(&case, &format!("{depth}_reads_per_s"), rates[which], "1/s");
            let spent_bytes = disks[which].pool.stats().spent_bytes;
            output.put(&case, &format!("{depth}_spent_bytes"), spent_bytes as f64, "bytes");
            let (metric, ratio) = (format!("{depth}_over_1"), rates[which] / rates[0]);
            match depth {
                1 => {}
                JUDGED => output.judge(&case, &metric, ratio, "x", AtLeast(0.95)),
                _ => output.put(&case, &metric, ratio, "x"),
            }
        }
        for deep in disks {
            drop(deep.below);
            deep.pool.check().map_err(anyhow::Error::msg)?;
        }
    }
    Ok(())
}

impl Deep {
    /// A full disk with `depth` snapshots, and the same pages written after the first of them whatever the depth is.
    fn make(codec: &str, data: &Data, pages: u64, depth: usize, shape: &str) -> anyhow::Result<Self> {
        let pool = Pool::new(PoolConfig { codec: by_name(codec)?, ..PoolConfig::default() })?;
        let mut disk = disk_of(&pool, data, pages)?;
        let mut below = Vec::new();
        let mut random = Random::new(7);
        let writes = pages / WRITTEN;
        for number in 0..depth as u64 {
            let fork = disk.fork()?;
            below.push(if shape == "chain" { std::mem::replace(&mut disk, fork) } else { fork });
            for at in writes * number / depth as u64..writes * (number + 1) / depth as u64 {
                disk.write(random.below(pages) * PAGE_SIZE as u64, page_of(data, at))?;
            }
        }
        Ok(Self { pool, disk, below })
    }
}

/// A disk in which every page is written.
pub(super) fn disk_of(pool: &Pool, data: &Data, pages: u64) -> anyhow::Result<RamDisk> {
    let disk = RamDisk::new(pool, pages * PAGE_SIZE as u64)?;
    for slot in 0..pages {
        disk.write(slot * PAGE_SIZE as u64, page_of(data, slot))?;
    }
    Ok(disk)
}

/// One of the pages, over and over.
pub(super) fn page_of(data: &Data, number: u64) -> &Page {
    &data.pages[(number % data.pages.len() as u64) as usize]
}
