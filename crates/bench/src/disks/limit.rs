//! A pool at its memory limit, overwritten at random, compared with one filled half as much.

use std::{
    array,
    sync::Mutex,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::ensure;
use pagefold_codec::by_name;
use pagefold_kinds::Data;
use pagefold_report::{Latencies, Output, median};

use crate::{
    load::{Done, Random, Worker, pass},
    machine::{anonymous_bytes, cpu_time},
    product::Product,
};

/// The share of its limit that the full pool spends, unless a write is refused earlier.
const FULL: f64 = 0.99;

/// Duration of the writes in a round.
const ROUND: Duration = Duration::from_secs(2);

/// Writes between two checks of the clock, the spent bytes or the remaining slots.
const BATCH: u64 = 64;

/// Lower bound for a compressed page of this bench's data. A pool has one slot for each 64 bytes of
/// its limit.
const OBJECT_BYTES_LEAST: u64 = 64;

/// A pool with its first slots filled.
struct Filled {
    product: Product,
    slots: u64,
    /// Whether a write was refused while the pool was filled.
    refused: bool,
    fill_mb_s: f64,
    fill_latencies: Latencies,
}

/// Results of the rounds on one pool.
#[derive(Default)]
struct Rounds {
    mb_s: Vec<f64>,
    /// Microseconds of CPU time per write, including the background thread's.
    cpu_us: Vec<f64>,
    refused: u64,
    written: u64,
}

pub(super) fn run(
    output: &mut Output,
    codec: &str,
    data: &Data,
    limit_bytes: u64,
    threads: usize,
    rounds: usize,
) -> anyhow::Result<()> {
    let case = format!("limit/{}M/{}/{codec}/{threads}", limit_bytes >> 20, data.name);
    let fill = |share: f64| filled(codec, data, limit_bytes, (limit_bytes as f64 * share) as u64, threads);
    let half = fill(FULL / 2.0)?;
    ensure!(!half.refused, "a pool was full when half of its limit was spent");
    let resident_before = anonymous_bytes()?;
    let full = fill(FULL)?;
    let spent_filled = full.product.pool.stats().spent_bytes;

    let pools = [&half, &full];
    let mut of: [Rounds; 2] = array::from_fn(|_| Rounds::default());
    let mut latencies: [Latencies; 2] = array::from_fn(|_| Latencies::new());
    let mut resident_max = 0;
    for round in 0..rounds {
        for (which, pool) in pools.into_iter().enumerate() {
            let cpu_before = cpu_time();
            let (done, refused, times) = overwrite(pool, data, threads, round as u64 + 1)?;
            of[which].mb_s.push(done.write_mb_s());
            let cpu = cpu_time().saturating_sub(cpu_before);
            of[which].cpu_us.push(cpu.as_secs_f64() * 1e6 / done.written_pages as f64);
            of[which].written += done.written_pages;
            of[which].refused += refused;
            latencies[which].add(&times);
            if which == 1 {
                resident_max = resident_max.max(anonymous_bytes()?.saturating_sub(resident_before));
            }
        }
    }
    let stats = full.product.pool.stats();
    let limit = limit_bytes as f64;
    let [half_mb_s, full_mb_s] = [&of[0], &of[1]].map(|rounds| median(&rounds.mb_s));
    output.put(&case, "fill_mb_s", full.fill_mb_s, "MB/s");
    output.put(&case, "fill_p99_us", full.fill_latencies.at(0.99) / 1e3, "us");
    output.put(&case, "fill_max_us", full.fill_latencies.max_ns() / 1e3, "us");
    output.put(&case, "fill_refused", f64::from(full.refused), "writes");
    output.put(&case, "pages", full.slots as f64, "pages");
    output.put(&case, "spent_filled_share", spent_filled as f64 / limit, "x");
    output.put(&case, "half_mb_s", half_mb_s, "MB/s");
    output.put(&case, "full_mb_s", full_mb_s, "MB/s");
    output.put(&case, "full_over_half_speed", full_mb_s / half_mb_s, "x");
    output.put(&case, "half_cpu_us_a_write", median(&of[0].cpu_us), "us");
    output.put(&case, "full_cpu_us_a_write", median(&of[1].cpu_us), "us");
    for (name, times) in ["half", "full"].into_iter().zip(&latencies) {
        for (metric, ns) in [
            ("write_p50_us", times.at(0.5)),
            ("write_p999_us", times.at(0.999)),
            ("write_max_us", times.max_ns()),
            ("write_max_running_us", times.max_running_ns()),
        ] {
            output.put(&case, &format!("{name}_{metric}"), ns / 1e3, "us");
        }
    }
    output.put(&case, "half_write_p99_us", latencies[0].at(0.99) / 1e3, "us");
    output.put(&case, "full_write_p99_us", latencies[1].at(0.99) / 1e3, "us");
    output.put(&case, "full_written", of[1].written as f64, "writes");
    output.put(&case, "full_refused", of[1].refused as f64, "writes");
    output.put(&case, "spent_share", stats.spent_bytes as f64 / limit, "x");
    output.put(&case, "spent_max_share", stats.mem_used_max as f64 / limit, "x");
    output.put(&case, "compressed_share", stats.compr_data_size as f64 / limit, "x");
    output.put(&case, "resident_max_share", resident_max as f64 / limit, "x");
    for pool in pools {
        pool.product.check()?;
    }
    Ok(())
}

/// Makes a pool and writes random pages of `data` to its slots in order until it spends
/// `spent_bytes`.
fn filled(codec: &str, data: &Data, limit_bytes: u64, spent_bytes: u64, threads: usize) -> anyhow::Result<Filled> {
    let slots_most = limit_bytes / OBJECT_BYTES_LEAST;
    let product = Product::limited(slots_most, by_name(codec)?, limit_bytes)?;
    // Threads take batches of slots until one of them finds that the pool spends enough.
    let (next, end) = (AtomicU64::new(0), AtomicU64::new(slots_most / BATCH * BATCH));
    let refused = AtomicU64::new(0);
    let fill_latencies = Mutex::new(Latencies::new());
    let job = |number: usize, _: &mut dyn Worker| {
        let mut random = Random::new(number as u64 + 1);
        let mut times = Latencies::new();
        let mut written_pages = 0;
        loop {
            let first = next.fetch_add(BATCH, Relaxed);
            if first >= end.load(Relaxed) {
                break;
            }
            for slot in first..first + BATCH {
                let page = &data.pages[random.below(data.pages.len() as u64) as usize];
                if !times.time(|| product.write_or_refuse(slot, page))?? {
                    refused.fetch_add(1, Relaxed);
                    end.fetch_min(slot, Relaxed);
                    break;
                }
                written_pages += 1;
            }
            if product.pool.stats().spent_bytes >= spent_bytes {
                end.fetch_min(next.load(Relaxed), Relaxed);
            }
        }
        fill_latencies.lock().unwrap().add(&times);
        Ok(Done { written_pages, ..Done::default() })
    };
    let done = pass(&product, threads, &job)?;
    let slots = end.into_inner();
    ensure!(slots > BATCH, "the limit is too small for {BATCH} pages");
    Ok(Filled {
        product,
        slots,
        refused: refused.into_inner() > 0,
        fill_mb_s: done.write_mb_s(),
        fill_latencies: fill_latencies.into_inner().unwrap(),
    })
}

/// Overwrites random slots with random pages for [`ROUND`]. Returns what was written, how many
/// writes were refused, and the latencies.
fn overwrite(pool: &Filled, data: &Data, threads: usize, seed: u64) -> anyhow::Result<(Done, u64, Latencies)> {
    let Filled { product, slots, .. } = pool;
    let refused = AtomicU64::new(0);
    let all = Mutex::new(Latencies::new());
    let job = |number: usize, _: &mut dyn Worker| {
        let mut random = Random::new(seed * 1000 + number as u64);
        let mut times = Latencies::new();
        let mut written_pages = 0;
        let start = Instant::now();
        while start.elapsed() < ROUND {
            for _ in 0..BATCH {
                let page = &data.pages[random.below(data.pages.len() as u64) as usize];
                let slot = random.below(*slots);
                if times.time(|| product.write_or_refuse(slot, page))?? {
                    written_pages += 1;
                } else {
                    refused.fetch_add(1, Relaxed);
                }
            }
        }
        all.lock().unwrap().add(&times);
        Ok(Done { written_pages, ..Done::default() })
    };
    let done = pass(product, threads, &job)?;
    Ok((done, refused.into_inner(), all.into_inner().unwrap()))
}
