//! Reads of a disk with many snapshots below it, and at the end of a chain of forks, compared with
//! a disk with a single snapshot.

use std::mem;

use anyhow::Context;
use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use crate::speed::Speed;
use crate::{
    load::Random,
    pages::Data,
    verdict::{Output, Target::AtLeast},
};

/// Numbers of kept snapshots, and the one that the others are compared with.
const DEPTHS: [usize; 4] = [0, 1, 100, 1000];
const COMPARED: usize = 1;

/// The depth at which reads have a target.
const JUDGED: usize = 100;

/// How the depth arises: a disk above its successive snapshots, or each fork made from the previous
/// one.
const SHAPES: [&str; 2] = ["snapshots", "chain"];

/// One page in this many is written between the first snapshot and the last.
const WRITTEN: u64 = 2;

/// Turns of each disk per round, and reads per turn.
const CHUNKS: usize = 100;
const CHUNK_READS: u64 = 1000;

/// A disk and the disks it was forked from.
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
        let compared = DEPTHS.iter().zip(&speeds).find(|&(&depth, _)| depth == COMPARED);
        let (_, compared) = compared.context("no disk to compare with")?;
        for ((deep, speed), depth) in disks.iter().zip(&speeds).zip(DEPTHS) {
            output.put(&case, &format!("{depth}_reads_per_s"), speed.per_s(), "1/s");
            output.put(&case, &format!("{depth}_spent_bytes"), deep.pool.stats().spent_bytes as f64, "bytes");
            let (metric, ratio) = (format!("{depth}_over_{COMPARED}"), speed.per_s() / compared.per_s());
            match depth {
                COMPARED => continue,
                JUDGED => output.judge(&case, &metric, ratio, "x", AtLeast(0.95)),
                _ => output.put(&case, &metric, ratio, "x"),
            }
            let ratio = speed.per_cpu_s() / compared.per_cpu_s();
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
    /// Makes a full disk with `depth` snapshots. The pages written after the first snapshot are the
    /// same for every depth.
    fn make(codec: &str, data: &Data, pages: u64, depth: usize, shape: &str) -> anyhow::Result<Self> {
        let pool = Pool::new(PoolConfig::default().codec(by_name(codec)?))?;
        let mut disk = disk_of(&pool, data, pages)?;
        let mut below = Vec::new();
        let mut random = Random::new(7);
        let writes = pages / WRITTEN;
        let parts = depth.max(1) as u64;
        for part in 0..parts {
            if depth > 0 {
                let fork = disk.fork()?;
                below.push(if shape == "chain" { mem::replace(&mut disk, fork) } else { fork });
            }
            for at in writes * part / parts..writes * (part + 1) / parts {
                disk.write(random.below(pages) * PAGE_SIZE as u64, page_of(data, at))?;
            }
        }
        Ok(Self { pool, disk, below })
    }
}

/// Makes a disk with every page written.
pub(super) fn disk_of(pool: &Pool, data: &Data, pages: u64) -> anyhow::Result<RamDisk> {
    let disk = RamDisk::new(pool, pages * PAGE_SIZE as u64)?;
    for slot in 0..pages {
        disk.write(slot * PAGE_SIZE as u64, page_of(data, slot))?;
    }
    Ok(disk)
}

/// Returns a page of the data, which repeats.
pub(super) fn page_of(data: &Data, number: u64) -> &Page {
    &data.pages[(number % data.pages.len() as u64) as usize]
}
