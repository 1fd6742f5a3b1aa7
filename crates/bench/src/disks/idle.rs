//! Memory of disks that hold nothing or little, the time to make and drop one, and what remains
//! after they are dropped.

use std::time::Instant;

use pagefold_kinds::Data;
use pagefold_report::{Output, median};

use crate::{
    load::{Random, Slots},
    memory::Memory,
    product::{Product, ProductDisks},
};

/// Slots of a disk of 8 GiB.
const SLOTS: u64 = (8 << 30) / 4096;
const DISKS: usize = 10_000;

/// Number of disks at the beginning and at the end whose creation time is a figure.
const TIMED: usize = 200;

/// Disks with some scattered pages each, as in a fork that wrote little.
const FORKS: usize = 100;
const FORK_PAGES: u64 = 1000;

/// Measures empty disks.
pub(super) fn empty(output: &mut Output) -> anyhow::Result<()> {
    let mut pool = ProductDisks::new(SLOTS, Product::default_codec())?;
    let mut times = Vec::with_capacity(DISKS);
    let before = Memory::of(&pool.pool)?;
    pool.add()?;
    for (name, bytes) in Memory::of(&pool.pool)?.since(before) {
        output.put("idle/1", &format!("{name}_bytes"), bytes, "bytes");
    }
    pool.remove();

    let case = format!("idle/{DISKS}");
    for _ in 0..DISKS {
        let start = Instant::now();
        pool.add()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let most = Memory::of(&pool.pool)?;
    for (name, bytes) in most.since(before) {
        output.put(&case, &format!("{name}_bytes_each"), bytes / DISKS as f64, "bytes");
        output.put(&case, &format!("{name}_mib"), bytes / 1024.0 / 1024.0, "MiB");
    }
    for (metric, times) in [("make_first_us", &times[..TIMED]), ("make_last_us", &times[DISKS - TIMED..])] {
        output.put(&case, metric, median(times), "us");
    }
    output.put(&case, "make_max_us", times.iter().copied().fold(0.0, f64::max), "us");

    times.clear();
    for _ in 0..DISKS {
        let start = Instant::now();
        pool.remove();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    output.put(&case, "drop_us", median(&times), "us");
    pool.clear();
    most.judge_left(output, &case, &pool.pool, before)?;
    pool.check()
}

/// Measures disks with few pages: the memory of their tables, and whether all of it is returned.
pub(super) fn forks(output: &mut Output, data: &Data) -> anyhow::Result<()> {
    let mut pool = ProductDisks::new(SLOTS, Product::default_codec())?;
    let before = Memory::of(&pool.pool)?;
    let mut random = Random::new(11);
    for disk in 0..FORKS as u64 {
        pool.add()?;
        for _ in 0..FORK_PAGES {
            let page = &data.pages[random.below(data.pages.len() as u64) as usize];
            pool.write_slot(disk * SLOTS + random.below(SLOTS), page)?;
        }
    }
    let case = format!("fork/{FORK_PAGES}-pages");
    output.put(&case, "table_bytes", pool.table_bytes() as f64 / FORKS as f64, "bytes");
    let compressed = pool.pool.stats().compr_data_size;
    output.put(&case, "compressed_bytes", compressed as f64 / FORKS as f64, "bytes");
    let most = Memory::of(&pool.pool)?;
    for (name, bytes) in most.since(before) {
        output.put(&case, &format!("{name}_bytes_each"), bytes / FORKS as f64, "bytes");
    }
    let start = Instant::now();
    pool.clear();
    output.put(&case, "drop_us", start.elapsed().as_secs_f64() * 1e6 / FORKS as f64, "us");
    most.judge_left(output, &format!("{case}/{FORKS}"), &pool.pool, before)?;
    pool.check()
}
