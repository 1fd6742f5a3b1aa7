//! Writes to a fork, compared with writes to a plain disk.

use pagefold_codec::{PAGE_SIZE, by_name};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use super::depth::{disk_of, page_of};
use crate::{
    load::Random,
    pages::Data,
    speed::Speed,
    verdict::{Output, Target::AtLeast},
};

/// The disk written to: a plain disk; a fork of an empty disk; a fork of a full disk.
const SHAPES: [&str; 3] = ["plain", "fork-of-empty", "fork-of-full"];

/// Writes all slots in random order, then the same number of slots again.
const PASSES: [&str; 2] = ["first-write", "overwrite"];

/// Writes per turn.
const CHUNK_WRITES: usize = 512;

pub(super) fn run(output: &mut Output, codec: &str, data: &Data, pages: u64, rounds: usize) -> anyhow::Result<()> {
    let case = format!("writes/{}/{codec}", data.name);
    let mut speeds: [[Speed; SHAPES.len()]; PASSES.len()] = Default::default();
    for round in 0..rounds as u64 {
        let all: Vec<Written> =
            SHAPES.iter().map(|shape| Written::new(codec, data, pages, shape)).collect::<anyhow::Result<_>>()?;
        let mut random = Random::new(round + 1);
        let first = random.permutation(pages);
        let again: Vec<u64> = (0..pages).map(|_| random.below(pages)).collect();
        for ((slots, speeds), seed) in [first, again].iter().zip(&mut speeds).zip(round * 2..) {
            for (at, slots) in slots.chunks(CHUNK_WRITES).enumerate() {
                for turn in 0..all.len() {
                    let which = (turn + at) % all.len();
                    speeds[which].chunk(slots.len() as u64, || {
                        slots.iter().try_for_each(|&slot| {
                            Ok(all[which].disk.write(slot * PAGE_SIZE as u64, page_of(data, slot + seed))?)
                        })
                    })?;
                }
            }
        }
    }
    for (pass, speeds) in PASSES.iter().zip(&speeds) {
        let plain = &speeds[0];
        for (shape, speed) in SHAPES.iter().zip(speeds) {
            let mb_s = speed.per_s() * PAGE_SIZE as f64 / 1e6;
            output.put(&case, &format!("{shape}_{pass}_mb_s"), mb_s, "MB/s");
            if *shape != SHAPES[0] {
                let metric = format!("{shape}_{pass}_over_plain");
                output.judge(&case, &metric, speed.per_s() / plain.per_s(), "x", AtLeast(0.95));
                let ratio = speed.per_cpu_s() / plain.per_cpu_s();
                output.put(&case, &format!("{metric}_of_cpu_time"), ratio, "x");
            }
        }
    }
    Ok(())
}

/// The disk written to, in a pool with other disks that live as long.
struct Written {
    disk: RamDisk,
    _others: Vec<RamDisk>,
}

impl Written {
    /// Makes it in a pool with a full disk, so that every shape's pool has trained tables and
    /// allocated memory.
    fn new(codec: &str, data: &Data, pages: u64, shape: &str) -> anyhow::Result<Self> {
        let pool = Pool::new(PoolConfig::default().codec(by_name(codec)?))?;
        let full = disk_of(&pool, data, pages)?;
        let empty = RamDisk::new(&pool, pages * PAGE_SIZE as u64)?;
        Ok(match shape {
            "plain" => Self { disk: empty, _others: vec![full] },
            "fork-of-empty" => Self { disk: empty.fork()?, _others: vec![empty, full] },
            _ => Self { disk: full.fork()?, _others: vec![empty, full] },
        })
    }
}
