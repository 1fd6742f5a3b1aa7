//! Reads of a disk with many snapshots below it, and at the end of a chain of forks, beside one with a single snapshot.

use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use super::speed::Speed;
use crate::{
    load::Random,
    pages::Data,
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

/// Turns of each disk in a round, and reads of each turn.
const CHUNKS: usize = 100;
const CHUNK_READS: u64 = 1000;

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
        let mut speeds = vec![Speed::default(); disks.len()];
        let mut randoms: Vec<Random> = (1..=disks.len() as u64).map(Random::new).collect();
        let mut page = [0; PAGE_SIZE];
        for chunk in 0..rounds * CHUNKS {
            for turn in 0..disks.len() {
                let which = (turn + chunk) % disks.len();
                let (disk, random) = (&disks[which].disk, &mut randoms[which]);
                speeds[which].chunk(CHUNK_READS, || {
                    (0..CHUNK_READS).try_for_each(|_| Ok(disk.read(random.below(pages) * PAGE_SIZE as u64, &mut page)?))
                })?;
            }
        }
        for ((deep, speed), depth) in disks.iter().zip(&speeds).zip(DEPTHS) {
            output.put(&case, &format!("{depth}_reads_per_s"), speed.per_s(), "1/s");
            output.put(&case, &format!("{depth}_spent_bytes"), deep.pool.stats().spent_bytes as f64, "bytes");
            let (metric, ratio) = (format!("{depth}_over_1"), speed.per_s() / speeds[0].per_s());
            match depth {
                1 => continue,
                JUDGED => output.judge(&case, &metric, ratio, "x", AtLeast(0.95)),
                _ => output.put(&case, &metric, ratio, "x"),
            }
            let ratio = speed.per_cpu_s() / speeds[0].per_cpu_s();
            output.put(&case, &format!("{metric}_of_cpu_time"), ratio, "x");
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
