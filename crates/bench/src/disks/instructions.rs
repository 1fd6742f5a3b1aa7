//! `pagefold-bench store-instructions`: counts the instructions that a disk executes to write,
//! overwrite and read a page, inside and outside its codec, under callgrind, and compares them with
//! a committed table.

use std::{collections::BTreeMap, hint};

use anyhow::bail;
use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_kinds::synthetic;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{
    callgrind::{self, Args, CountTable},
    load::{Random, Slots},
    machine::allowed_cpus,
    product::Product,
};

/// Pages of each kind, and how often each one is stored.
const PAGES: usize = 16;
const TIMES: usize = 16;

/// A count above the table's by more than this share is a slowdown: 1 %. Counts of the same build
/// differ by less.
const TOLERANCE: f64 = 0.01;

const CODECS: [&str; 2] = ["fold", "lz4"];

/// A disk's operations, and the codec operation that each includes.
const OPERATIONS: [(&str, &str); 3] = [("write", "compress"), ("overwrite", "compress"), ("read", "decompress")];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let [operation, codec] = &args.work[..] {
        return work(operation, codec);
    }
    let table = CountTable {
        file: "bench/results/instructions-store.txt",
        title: "Instructions for a page on one disk, with the codec's and without (beside), mean over the synthetic kinds, by \
                pagefold-bench store-instructions.",
        tolerance: TOLERANCE,
    };
    table.run(args, counts)
}

fn counts() -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for codec in CODECS {
        for (operation, of_codec) in OPERATIONS {
            let (all, alone) = (counted(operation, codec)?, counted(of_codec, codec)?);
            counts.insert(format!("{codec:6} {operation:16}"), all);
            counts.insert(format!("{codec:6} {:16}", format!("{operation}-beside")), all.saturating_sub(alone));
        }
    }
    Ok(counts)
}

/// Counts only inside [`counted_part`].
fn counted(operation: &str, codec: &str) -> anyhow::Result<u64> {
    let count = callgrind::counted("*counted_part*", &["store-instructions", "--work", operation, codec])?;
    Ok(count / (synthetic::KINDS.len() * PAGES * TIMES) as u64)
}

fn work(operation: &str, codec: &str) -> anyhow::Result<()> {
    // With one CPU there is one stream, and the counts do not depend on where the thread runs.
    let mut cpu = CpuSet::new();
    cpu.set(allowed_cpus()?[0]);
    sched_setaffinity(None, &cpu)?;
    let kinds = synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, 1, PAGES));
    let pages: Vec<Page> = kinds.collect();
    let slots = (pages.len() * TIMES) as u64;
    let mut random = Random::new(3);
    let mut shuffled = || random.permutation(slots);
    let (first, second, third) = (shuffled(), shuffled(), shuffled());
    // The warm-up uses other slots: work done only for the first pages is not part of a page's
    // cost.
    let product = Product::untrained(2 * slots, by_name(codec)?)?;
    let write = |order: &[u64], base: u64| {
        order.iter().enumerate().try_for_each(|(at, slot)| product.write_slot(base + slot, &pages[at % pages.len()]))
    };
    let read = |order: &[u64]| {
        let mut page = [0; PAGE_SIZE];
        order.iter().try_for_each(|&slot| {
            product.read_slot(slot, &mut page)?;
            hint::black_box(&page);
            Ok(())
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
