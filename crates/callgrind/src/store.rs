//! Counts the instructions with which a disk writes, overwrites and reads a page: all of them, and
//! those outside of its codec.

use std::{collections::BTreeMap, hint};

use anyhow::{Context, bail};
use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_kinds::synthetic::{self, Random};
use pagefold_store::{Pool, PoolConfig};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{table::CountTable, valgrind};

pub(crate) const TABLE: CountTable = CountTable {
    name: "store",
    file: "bench/results/instructions-store.txt",
    title: "Instructions for a page on one disk, in all and outside the codec, mean over the synthetic kinds, by \
            pagefold-callgrind.",
    tolerance: TOLERANCE,
};

/// 1 %. Counts of the same build differ by less.
const TOLERANCE: f64 = 0.01;

/// Pages of each kind, and how often each one is stored.
const PAGES: usize = 16;
const TIMES: usize = 16;

const CODECS: [&str; 2] = ["fold", "lz4"];

/// A disk's operations, and the codec operation that each includes.
const OPERATIONS: [(&str, &str); 3] = [("write", "compress"), ("overwrite", "compress"), ("read", "decompress")];

pub(crate) fn counts() -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for codec in CODECS {
        for (operation, of_codec) in OPERATIONS {
            let (all, alone) = (counted(operation, codec)?, counted(of_codec, codec)?);
            counts.insert(format!("{codec:6} {operation:18}"), all);
            counts.insert(format!("{codec:6} {:18}", format!("{operation}-without")), all.saturating_sub(alone));
        }
    }
    Ok(counts)
}

/// callgrind counts only inside [`counted_part`].
fn counted(operation: &str, codec: &str) -> anyhow::Result<u64> {
    let count = valgrind::counted("*counted_part*", TABLE.name, operation, codec)?;
    Ok(count / (synthetic::KINDS.len() * PAGES * TIMES) as u64)
}

/// Restricts this thread, and those that it starts, to one CPU. There is one stream then, and the
/// counts do not depend on where the thread runs.
fn use_one_cpu() -> anyhow::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).context("no CPU to run on")?;
    let mut one = CpuSet::new();
    one.set(first);
    Ok(sched_setaffinity(None, &one)?)
}

pub(crate) fn work(operation: &str, codec: &str) -> anyhow::Result<()> {
    use_one_cpu()?;
    let kinds = synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, 1, PAGES));
    let pages: Vec<Page> = kinds.collect();
    let slots = (pages.len() * TIMES) as u64;
    let mut random = Random::new(3);
    let mut shuffled = || {
        let mut order: Vec<u64> = (0..slots).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at + 1)));
        order
    };
    let (first, second, third) = (shuffled(), shuffled(), shuffled());
    let pool = Pool::new(PoolConfig::default().codec(by_name(codec)?).train(false))?;
    // The warm-up uses other slots: work done only for the first pages is not part of a page's cost.
    let disk = pool.disk(2 * slots)?;
    let write = |order: &[u64], base: u64| -> anyhow::Result<()> {
        let mut pairs = order.iter().zip(pages.iter().cycle());
        Ok(pairs.try_for_each(|(slot, page)| disk.write(base + slot, page))?)
    };
    let read = |order: &[u64]| {
        let mut page = [0; PAGE_SIZE];
        order.iter().try_for_each(|&slot| {
            disk.read(slot, &mut page)?;
            hint::black_box(&page);
            anyhow::Ok(())
        })
    };
    write(&first[..pages.len()], slots)?;
    let in_order: Vec<u64> = (0..slots).collect();
    match operation {
        "write" => counted_part(|| write(&in_order, 0)),
        "overwrite" => {
            write(&in_order, 0)?;
            write(&first, 0)?;
            counted_part(|| write(&second, 0))
        }
        "read" => {
            write(&in_order, 0)?;
            read(&first)?;
            counted_part(|| read(&third))
        }
        "compress" | "decompress" => {
            let mut stream = by_name(codec)?.stream()?;
            let mut out = [0; PAGE_SIZE];
            let mut objects = Vec::new();
            for page in &pages {
                let len = stream.compress(page, &mut out).filter(|&len| len < PAGE_SIZE);
                objects.push(len.map(|len| out[..len].to_vec()));
            }
            let compress = operation == "compress";
            counted_part(|| {
                for _ in 0..TIMES {
                    for (page, object) in pages.iter().zip(&objects) {
                        if compress {
                            hint::black_box(stream.compress(page, &mut out));
                        } else if let Some(object) = object {
                            stream.decompress(object, &mut out)?;
                            hint::black_box(&out);
                        }
                    }
                }
                Ok(())
            })
        }
        _ => bail!("a disk's operation or its codec's, not {operation}"),
    }
}

#[inline(never)]
fn counted_part(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    work()
}
