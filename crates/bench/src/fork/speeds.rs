//! Speeds of devices that take turns every few milliseconds, by one thread: a fork's reads of its
//! base compared with the image library's, writes to a fork compared with a plain disk's, reads
//! with many snapshots below, and equal pages stored once.

use std::{fs::File, mem, ops::Range};

use anyhow::ensure;
use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_erofs::{ClusterCache, FileKind, Image};
use pagefold_kinds::{Data, page_of};
use pagefold_report::Output;

use super::{
    base::{BaseFiles, CACHE_BYTES},
    idle::warm,
};
use crate::{load::Random, speeds::Speeds};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// Operations of a device's turn.
const CHUNK: u64 = 512;

/// Turns of each device per round, where devices are only read.
const TURNS: u64 = 100;

fn pool(codec: &str, dedupe: bool) -> anyhow::Result<Pool> {
    Ok(Pool::new(PoolConfig::default().codec(by_name(codec)?).dedupe(dedupe))?)
}

/// Makes a disk with every page written.
fn disk_of(pool: &Pool, data: &Data, pages: u64) -> anyhow::Result<RamDisk> {
    let disk = RamDisk::new(pool, pages * PAGE_BYTES)?;
    (0..pages).try_for_each(|slot| disk.write(slot * PAGE_BYTES, page_of(data, slot)))?;
    Ok(disk)
}

/// A reader of the base at given offsets.
type Read<'a> = Box<dyn FnMut(u64, &mut Page) -> anyhow::Result<()> + 'a>;

/// Reads all of the base, and a part that the cache holds; each with no page changed and with 1 %
/// of them changed.
pub(super) fn reads(output: &mut Output, base: &BaseFiles, rounds: usize) -> anyhow::Result<()> {
    let pages = base.len_bytes / PAGE_BYTES;
    let cached = (CACHE_BYTES as u64 / 4).min(base.len_bytes) / PAGE_BYTES;
    let middle = (pages - cached) / 2;
    for (name, range) in [("all", 0..pages), ("cached", middle..middle + cached)] {
        for percent in [0, 1] {
            let case = format!("reads/{name}/{percent}-percent-changed");
            reads_of(output, &case, base, &range, percent, rounds)?;
        }
    }
    Ok(())
}

fn reads_of(
    output: &mut Output,
    case: &str,
    base: &BaseFiles,
    range: &Range<u64>,
    percent: u64,
    rounds: usize,
) -> anyhow::Result<()> {
    let image = Image::open_sharing(File::open(base.packed())?, Vec::new(), &ClusterCache::new(CACHE_BYTES))?;
    let inode = image.resolve(b"/base.img")?;
    ensure!(inode.kind == FileKind::Regular, "the image does not hold the base");
    let file = image.file(&inode)?;
    let opened = base.open()?;
    let fork = RamDisk::over(&Pool::new(PoolConfig::default())?, opened.clone())?.fork()?;
    let offset_in = |random: &mut Random| (range.start + random.below(range.end - range.start)) * PAGE_BYTES;
    let (mut random, mut page) = (Random::new(5), [0; PAGE_SIZE]);
    for _ in 0..(range.end - range.start) * percent / 100 {
        let offset = offset_in(&mut random);
        fork.read(offset, &mut page)?;
        page[0] ^= 1;
        fork.write(offset, &page)?;
    }
    let of_image = |offset: u64, page: &mut Page| {
        ensure!(file.read_at(page, offset)? == page.len(), "the image ends at {offset}");
        Ok(())
    };
    let mut readers: [(&str, Read<'_>); 3] = [
        ("image", Box::new(of_image)),
        ("base", Box::new(|offset, page| Ok(opened.read(offset, page)?))),
        ("fork", Box::new(|offset, page| Ok(fork.read(offset, page)?))),
    ];
    for at in [0, 2] {
        warm(base.len_bytes / PAGE_BYTES, &mut readers[at].1)?;
    }
    let mut speeds = Speeds::new(readers.len());
    // Each reader reads other offsets, so that it does not profit from the file data that another
    // has just read. The offsets are the same in every run.
    let mut randoms = [1, 2, 3].map(Random::new);
    for at in 0..rounds as u64 * TURNS {
        speeds.turn(at, CHUNK, |which| {
            (0..CHUNK).try_for_each(|_| readers[which].1(offset_in(&mut randoms[which]), &mut page))
        })?;
    }
    for (which, (name, _)) in readers.iter().enumerate() {
        output.put(case, &format!("{name}_reads_per_s"), speeds.per_s(which), "1/s");
    }
    speeds.put_ratio(output, case, "base_over_image", 1, 0);
    speeds.put_ratio(output, case, "fork_over_image", 2, 0);
    Ok(())
}

/// Writes to a plain disk, to a fork of an empty disk and to one of a full disk: all slots in random
/// order, then as many again. All pools have a full disk, so that each has trained tables and
/// allocated memory.
pub(super) fn writes(output: &mut Output, codec: &str, data: &Data, pages: u64, rounds: usize) -> anyhow::Result<()> {
    const SHAPES: [&str; 3] = ["plain", "fork-of-empty", "fork-of-full"];
    const PASSES: [&str; 2] = ["first-write", "overwrite"];
    let case = format!("writes/{}/{codec}", data.name);
    let mut speeds = PASSES.map(|_| Speeds::new(SHAPES.len()));
    for round in 0..rounds as u64 {
        let made = SHAPES.iter().map(|shape| {
            let pool = pool(codec, false)?;
            let (full, empty) = (disk_of(&pool, data, pages)?, RamDisk::new(&pool, pages * PAGE_BYTES)?);
            let fork = match *shape {
                "plain" => None,
                "fork-of-empty" => Some(empty.fork()?),
                _ => Some(full.fork()?),
            };
            Ok((fork, empty, full))
        });
        let made = made.collect::<anyhow::Result<Vec<_>>>()?;
        let mut random = Random::new(round + 1);
        let first = random.permutation(pages);
        let again: Vec<u64> = (0..pages).map(|_| random.below(pages)).collect();
        for ((slots, speeds), seed) in [first, again].iter().zip(&mut speeds).zip(round * 2..) {
            for (at, slots) in (0..).zip(slots.chunks(CHUNK as usize)) {
                speeds.turn(at, slots.len() as u64, |which| {
                    let (fork, empty, _) = &made[which];
                    let disk = fork.as_ref().unwrap_or(empty);
                    slots.iter().try_for_each(|&slot| Ok(disk.write(slot * PAGE_BYTES, page_of(data, slot + seed))?))
                })?;
            }
        }
    }
    for (pass, speeds) in PASSES.iter().zip(&speeds) {
        for (which, shape) in SHAPES.iter().enumerate() {
            output.put(&case, &format!("{shape}_{pass}_mb_s"), speeds.per_s(which) * PAGE_SIZE as f64 / 1e6, "MB/s");
            if which > 0 {
                speeds.put_ratio(output, &case, &format!("{shape}_{pass}_over_plain"), which, 0);
            }
        }
    }
    Ok(())
}

/// Reads of a disk with many snapshots below it, and at the end of a chain of forks, compared with a
/// disk with a single snapshot. Half of the pages are written between the first snapshot and the last,
/// the same for every depth.
pub(super) fn depth(output: &mut Output, codec: &str, data: &Data, pages: u64, rounds: usize) -> anyhow::Result<()> {
    const DEPTHS: [u64; 4] = [0, 1, 100, 1000];
    /// The index of the depth with which the others are compared.
    const COMPARED: usize = 1;
    for shape in ["snapshots", "chain"] {
        let case = format!("depth/{shape}/{}/{codec}", data.name);
        let made = DEPTHS.iter().map(|&depth| {
            let pool = pool(codec, false)?;
            let mut disk = disk_of(&pool, data, pages)?;
            let (mut below, mut random) = (Vec::new(), Random::new(7));
            let (writes, parts) = (pages / 2, depth.max(1));
            for part in 0..parts {
                if depth > 0 {
                    let fork = disk.fork()?;
                    below.push(if shape == "chain" { mem::replace(&mut disk, fork) } else { fork });
                }
                for at in writes * part / parts..writes * (part + 1) / parts {
                    disk.write(random.below(pages) * PAGE_BYTES, page_of(data, at))?;
                }
            }
            Ok((pool, disk, below))
        });
        let made = made.collect::<anyhow::Result<Vec<_>>>()?;
        let mut speeds = Speeds::new(DEPTHS.len());
        let mut randoms: Vec<Random> = (1..=DEPTHS.len() as u64).map(Random::new).collect();
        let mut page = [0; PAGE_SIZE];
        for at in 0..rounds as u64 * TURNS {
            speeds.turn(at, CHUNK, |which| {
                let (disk, random) = (&made[which].1, &mut randoms[which]);
                (0..CHUNK).try_for_each(|_| Ok(disk.read(random.below(pages) * PAGE_BYTES, &mut page)?))
            })?;
        }
        for (which, (depth, (pool, disk, below))) in DEPTHS.iter().zip(made).enumerate() {
            output.put(&case, &format!("{depth}_reads_per_s"), speeds.per_s(which), "1/s");
            output.put(&case, &format!("{depth}_spent_bytes"), pool.stats().spent_bytes as f64, "bytes");
            if which != COMPARED {
                speeds.put_ratio(output, &case, &format!("{depth}_over_{}", DEPTHS[COMPARED]), which, COMPARED);
            }
            drop((disk, below));
            pool.check().map_err(anyhow::Error::msg)?;
        }
    }
    Ok(())
}

/// Cost of deduplication if all pages differ, and its gain if all are equal: unique pages are written,
/// overwritten with others, and written to a second disk, which is read.
pub(super) fn dedupe(output: &mut Output, codec: &str, data: &Data, pages: u64, rounds: usize) -> anyhow::Result<()> {
    const PASSES: [&str; 4] = ["write_different", "overwrite_different", "write_equal", "read_equal"];
    const WITHOUT: usize = 0;
    const WITH: usize = 1;
    let case = format!("dedupe/{}/{codec}", data.name);
    let mut speeds = PASSES.map(|_| Speeds::new(2));
    let mut spent = [[0; 2]; PASSES.len()];
    let mut page = [0; PAGE_SIZE];
    for round in 0..rounds as u64 {
        let made = [false, true].iter().map(|&dedupe| {
            let pool = pool(codec, dedupe)?;
            let disk = || RamDisk::new(&pool, pages * PAGE_BYTES);
            let disks = [disk()?, disk()?];
            Ok((pool, disks))
        });
        let made = made.collect::<anyhow::Result<Vec<_>>>()?;
        let mut random = Random::new(round + 1);
        for (pass, speeds) in speeds.iter_mut().enumerate() {
            for (at, slots) in (0..).zip(random.permutation(pages).chunks(CHUNK as usize)) {
                speeds.turn(at, slots.len() as u64, |which| {
                    let [first, second] = &made[which].1;
                    slots.iter().try_for_each(|&slot| {
                        let offset = slot * PAGE_BYTES;
                        match pass {
                            0 | 1 => first.write(offset, different(data, slot, pass as u64 + 1, &mut page))?,
                            2 => second.write(offset, different(data, slot, 2, &mut page))?,
                            _ => second.read(offset, &mut page)?,
                        }
                        Ok(())
                    })
                })?;
            }
            for (spent, (pool, _)) in spent[pass].iter_mut().zip(&made) {
                pool.compact();
                *spent = pool.stats().spent_bytes;
            }
        }
    }
    for ((pass, speeds), spent) in PASSES.iter().zip(&speeds).zip(spent) {
        output.put(&case, &format!("{pass}_mb_s"), speeds.per_s(WITH) * PAGE_SIZE as f64 / 1e6, "MB/s");
        speeds.put_ratio(output, &case, &format!("{pass}_over_without"), WITH, WITHOUT);
        let ratio = spent[WITH] as f64 / spent[WITHOUT] as f64;
        output.put(&case, &format!("{pass}_spent_over_without"), ratio, "x");
    }
    Ok(())
}

/// Makes a unique page that resembles the data's.
fn different<'a>(data: &Data, slot: u64, pass: u64, page: &'a mut Page) -> &'a Page {
    page.copy_from_slice(page_of(data, slot * 7 + pass));
    page[1000..1008].copy_from_slice(&(slot << 8 | pass).to_le_bytes());
    page
}
