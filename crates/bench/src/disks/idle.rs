//! Memory of disks that hold nothing or little, the time to make and drop one, and what stays once they are gone.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::verdict::{Output, Target::AtMost};
use crate::{
    load::{Random, Slots},
    machine::anonymous_bytes,
    pages::Data,
    product::{Product, ProductDisks},
    report::median,
};

/// Slots of a disk of 8 GiB.
const SLOTS: u64 = (8 << 30) / 4096;
const DISKS: usize = 10_000;

/// Disks whose time of making is the figure at the first and at the last.
const TIMED: usize = 200;

/// Disks with some pages each, scattered over them, as a fork has that wrote little.
const FORKS: usize = 100;
const FORK_PAGES: u64 = 1000;

/// What may stay of what disks took that are gone, and what the C library keeps of its own heap beside that:
/// [`keep_no_large_blocks`](crate::product::keep_no_large_blocks).
const LEFT_SHARE: f64 = 0.02;
const KEPT_BYTES: f64 = (4 << 20) as f64;

/// How long a pool is left alone before what it has not given back counts.
const QUIET: Duration = Duration::from_millis(500);

/// Memory beside what it was before: what the pool says, and what the process has.
#[derive(Clone, Copy)]
struct Memory {
    spent_bytes: u64,
    resident_bytes: u64,
}

impl Memory {
    fn of(pool: &ProductDisks) -> anyhow::Result<Self> {
        Ok(Self { spent_bytes: pool.spent_bytes(), resident_bytes: anonymous_bytes()? })
    }

    fn since(self, before: Self) -> [(&'static str, f64); 2] {
        [
            ("spent", self.spent_bytes as f64 - before.spent_bytes as f64),
            ("resident", self.resident_bytes as f64 - before.resident_bytes as f64),
        ]
    }
}

/// Disks that hold nothing.
pub(super) fn empty(output: &mut Output) -> anyhow::Result<()> {
    let mut pool = ProductDisks::new(SLOTS, Product::default_codec())?;
    let mut times = Vec::with_capacity(DISKS);
    let before = Memory::of(&pool)?;
    pool.add()?;
    for (name, bytes) in Memory::of(&pool)?.since(before) {
        output.judge("idle/1", &format!("{name}_bytes"), bytes, "bytes", AtMost(4096.0));
    }
    pool.remove();

    let case = format!("idle/{DISKS}");
    for _ in 0..DISKS {
        let start = Instant::now();
        pool.add()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let most = Memory::of(&pool)?;
    for (name, bytes) in most.since(before) {
        output.put(&case, &format!("{name}_bytes_each"), bytes / DISKS as f64, "bytes");
        output.judge(&case, &format!("{name}_mib"), bytes / 1024.0 / 1024.0, "MiB", AtMost(40.0));
    }
    for (metric, times) in [("make_first_us", &times[..TIMED]), ("make_last_us", &times[DISKS - TIMED..])] {
        output.judge(&case, metric, median(times), "us", AtMost(200.0));
    }
    output.put(&case, "make_max_us", times.iter().copied().fold(0.0, f64::max), "us");

    times.clear();
    for _ in 0..DISKS {
        let start = Instant::now();
        pool.remove();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    output.put(&case, "drop_us", median(&times), "us");
    left(output, &case, &mut pool, before, most)
}

/// Disks that came to little each: what their tables take, and whether all of it comes back.
pub(super) fn forks(output: &mut Output, data: &Data) -> anyhow::Result<()> {
    let mut pool = ProductDisks::new(SLOTS, Product::default_codec())?;
    let before = Memory::of(&pool)?;
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
    let most = Memory::of(&pool)?;
    for (name, bytes) in most.since(before) {
        output.put(&case, &format!("{name}_bytes_each"), bytes / FORKS as f64, "bytes");
    }
    let start = Instant::now();
    pool.clear();
    output.put(&case, "drop_us", start.elapsed().as_secs_f64() * 1e6 / FORKS as f64, "us");
    left(output, &format!("{case}/{FORKS}"), &mut pool, before, most)
}

/// What is not given back of all that disks took which are gone.
fn left(output: &mut Output, case: &str, pool: &mut ProductDisks, before: Memory, most: Memory) -> anyhow::Result<()> {
    pool.clear();
    pool.pool.compact();
    thread::sleep(QUIET);
    let after = Memory::of(pool)?;
    for ((name, left), (_, taken)) in after.since(before).into_iter().zip(most.since(before)) {
        output.put(case, &format!("{name}_left_bytes"), left, "bytes");
        let allowed = taken * LEFT_SHARE + if name == "resident" { KEPT_BYTES } else { 0.0 };
        output.judge(case, &format!("{name}_left_over_allowed"), left / allowed, "x", AtMost(1.0));
    }
    pool.check()
}
