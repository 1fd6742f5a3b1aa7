//! Memory spent after filling, during churn and after discards.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::{PAGE_SIZE, by_name};
use pagefold_kinds::{Data, Pages};
use pagefold_report::{Latencies, Output};

use crate::{
    load::{Device, Random, Stored},
    machine::memory_bytes,
    product::{MOSAIC, Product},
    subjects::Zram,
};

/// How often every page is overwritten with pages of the other kind.
const OTHER_PASSES: usize = 3;

/// Reads that are timed while there are no writes.
const QUIET_READS: usize = 50_000;

/// How long the store stays idle after discards.
const IDLE: Duration = Duration::from_secs(1);

/// A device that can be emptied and compacted.
trait Holder: Stored {
    /// Writes between two readings of the bytes during churn.
    const LOOK_EVERY: usize;

    fn discard(&self, slot: u64) -> anyhow::Result<()>;
    fn compact(&self) -> anyhow::Result<()>;
}

impl Holder for Product {
    const LOOK_EVERY: usize = 16;

    fn discard(&self, slot: u64) -> anyhow::Result<()> {
        Product::discard(self, slot)
    }

    fn compact(&self) -> anyhow::Result<()> {
        self.pool.compact();
        Ok(())
    }
}

impl Holder for Zram {
    const LOOK_EVERY: usize = 1024;

    fn discard(&self, slot: u64) -> anyhow::Result<()> {
        Zram::discard(self, slot)
    }

    fn compact(&self) -> anyhow::Result<()> {
        Zram::compact(self)
    }
}

/// Measures the product's store, and zram if it supports the codec, on pages of two kinds.
pub(super) fn run(output: &mut Output, codec: &str, first: &Data, second: &Data, zram: bool) -> anyhow::Result<()> {
    let case = format!("{}-{}/{codec}", first.name, second.name);
    let slots = first.pages.len() as u64;
    let before = resident_bytes()?;
    let store = Product::new(slots, by_name(codec)?)?;
    measure(output, &case, MOSAIC, &store, first, second, Some(before))?;
    let stats = store.pool.stats();
    output.put_of(MOSAIC, &case, "stream_bytes", stats.stream_bytes as f64, "bytes");
    output.put_of(MOSAIC, &case, "table_bytes", stats.table_bytes as f64, "bytes");
    store.check()?;
    drop(store);
    if zram && codec == "lz4" {
        measure(output, &case, "zram-zsmalloc", &Zram::new(codec, slots)?, first, second, None)?;
    }
    Ok(())
}

fn measure<H: Holder>(
    output: &mut Output,
    case: &str,
    subject: &str,
    holder: &H,
    first: &Data,
    second: &Data,
    resident_before: Option<u64>,
) -> anyhow::Result<()> {
    let slots = first.pages.len();
    let mut put = |metric: &str, value: f64, unit: &str| output.put_of(subject, case, metric, value, unit);
    let ratio = || anyhow::Ok(holder.bytes().map(|(compressed, spent)| spent as f64 / compressed as f64)?);

    let mut writer = holder.worker(0)?;
    for (slot, page) in first.pages.iter().enumerate() {
        writer.write(slot as u64, std::slice::from_ref(page))?;
    }
    let (compressed, spent) = holder.bytes()?;
    put("orig_bytes", (slots * PAGE_SIZE) as f64, "bytes");
    put("compressed_bytes", compressed as f64, "bytes");
    put("spent_bytes", spent as f64, "bytes");
    put("spent_ratio", spent as f64 / compressed as f64, "x");
    if let Some(before) = resident_before {
        put("rss_bytes", resident_bytes()?.saturating_sub(before) as f64, "bytes");
    }
    let quiet = latencies(holder, slots as u64, &AtomicBool::new(false), QUIET_READS)?;
    put("read_p99_ns", quiet.at(0.99), "ns");
    put("read_max_ns", quiet.max_ns(), "ns");
    put("read_max_running_ns", quiet.max_running_ns(), "ns");

    let stop = AtomicBool::new(false);
    let (worst, time, read) = thread::scope(|scope| {
        let reader = scope.spawn(|| latencies(holder, slots as u64, &stop, usize::MAX));
        let churned = churn(holder, first, second, &mut |worst| put("spent_pass_ratio", worst, "x"));
        stop.store(true, Relaxed);
        let read = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        let (worst, time) = churned?;
        anyhow::Ok((worst, time, read))
    })?;
    put("spent_worst_ratio", worst, "x");
    put("read_p99_compacting_ns", read.at(0.99), "ns");
    put("read_max_compacting_ns", read.max_ns(), "ns");
    put("read_max_running_compacting_ns", read.max_running_ns(), "ns");
    put("churn_us_per_write", time.as_secs_f64() * 1e6 / ((OTHER_PASSES + 1) * slots) as f64, "us");
    put("spent_churned_ratio", ratio()?, "x");
    let start = Instant::now();
    holder.compact()?;
    put("compact_ms", start.elapsed().as_secs_f64() * 1e3, "ms");
    put("spent_after_churn_bytes", holder.bytes()?.1 as f64, "bytes");
    put("spent_after_churn_ratio", ratio()?, "x");

    let order = Random::new(90).permutation(slots as u64);
    for &slot in &order[..slots * 9 / 10] {
        holder.discard(slot)?;
    }
    put("spent_discarded_ratio", ratio()?, "x");
    thread::sleep(IDLE);
    put("spent_idle_ratio", ratio()?, "x");
    Ok(())
}

/// Overwrites every page in random order, three times with pages of the second kind and then with
/// the first. Returns the maximum memory spent per compressed byte, and the time.
fn churn<H: Holder>(
    holder: &H,
    first: &Data,
    second: &Data,
    pass: &mut dyn FnMut(f64),
) -> anyhow::Result<(f64, Duration)> {
    let (mut worst, mut time) = (0f64, Duration::ZERO);
    let mut writer = holder.worker(1)?;
    for number in 0..=OTHER_PASSES {
        let data = if number < OTHER_PASSES { second } else { first };
        let mut random = Random::new(number as u64 + 1);
        let order = random.permutation(first.pages.len() as u64);
        let mut worst_of_pass = 0f64;
        for slots in order.chunks(H::LOOK_EVERY) {
            let start = Instant::now();
            for &slot in slots {
                let page = &data.pages[random.below(data.pages.len() as u64) as usize];
                writer.write(slot, std::slice::from_ref(page))?;
            }
            time += start.elapsed();
            let (compressed, spent) = holder.bytes()?;
            worst_of_pass = worst_of_pass.max(spent as f64 / compressed as f64);
        }
        pass(worst_of_pass);
        worst = worst.max(worst_of_pass);
    }
    Ok((worst, time))
}

/// Times `count` reads of random slots, or fewer if `stop` is set.
fn latencies(device: &dyn Device, slots: u64, stop: &AtomicBool, count: usize) -> anyhow::Result<Latencies> {
    let (mut reader, mut page) = (device.worker(2)?, Pages::new(1));
    let (mut random, mut times) = (Random::new(7), Latencies::new());
    for _ in 0..count {
        if stop.load(Relaxed) {
            break;
        }
        let slot = random.below(slots);
        times.time(|| reader.read(slot, page.as_mut()))??;
    }
    Ok(times)
}

/// Returns this process's resident memory in bytes.
fn resident_bytes() -> anyhow::Result<u64> {
    memory_bytes("self", "VmRSS")
}
