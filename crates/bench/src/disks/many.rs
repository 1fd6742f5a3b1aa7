//! A thousand disks written and read by several threads, compared with one disk of the same bytes.

use anyhow::ensure;
use pagefold_codec::{PAGE_SIZE, by_name};
use pagefold_kinds::Data;
use pagefold_report::Output;

use crate::{
    load::{Done, Random, Worker, pass},
    machine::{anonymous_bytes, cpu_time},
    product::ProductDisks,
};

const DISKS: u64 = 1000;

/// Pages of a disk: 1 MiB.
const SLOTS: u64 = 256;

/// Consecutive pages of the data that a thread writes or reads one after another.
const RUN_PAGES: u64 = 8;

/// The passes, in order.
const PASSES: [&str; 3] = ["fill", "overwrite", "read"];

/// Results for one shape of the pool: the fastest run and least CPU time of each pass, and the most
/// memory.
#[derive(Clone, Copy)]
struct Measured {
    passes: [Done; PASSES.len()],
    /// Microseconds of CPU time per page, including the background thread's.
    cpu_us: [f64; PASSES.len()],
    spent_bytes: u64,
    resident_bytes: u64,
}

pub(super) fn run(output: &mut Output, codec: &str, data: &Data, threads: usize, rounds: usize) -> anyhow::Result<()> {
    let case = format!("many/{DISKS}/{}/{codec}/{threads}", data.name);
    ensure!(DISKS * SLOTS / RUN_PAGES >= threads as u64, "more threads than there are pages");
    let shapes = [("one", 1), ("many", DISKS)];
    let mut measured =
        [Measured { passes: Default::default(), cpu_us: [f64::INFINITY; 3], spent_bytes: 0, resident_bytes: 0 }; 2];
    for round in 0..rounds {
        for turn in 0..2 {
            // The first shape of a round starts with more of the process's memory, so they
            // alternate.
            let which = (turn + round) % 2;
            one_round(&mut measured[which], codec, data, shapes[which].1, threads)?;
        }
    }
    for ((name, _), measured) in shapes.iter().zip(&measured) {
        for (at, pass) in PASSES.iter().enumerate() {
            output.put(&case, &format!("{name}_{pass}_mb_s"), measured.passes[at].mb_s(), "MB/s");
            output.put(&case, &format!("{name}_{pass}_cpu_us_a_page"), measured.cpu_us[at], "us");
        }
        output.put(&case, &format!("{name}_spent_bytes"), measured.spent_bytes as f64, "bytes");
        output.put(&case, &format!("{name}_resident_bytes"), measured.resident_bytes as f64, "bytes");
    }
    let [one, many] = measured;
    for (at, pass) in PASSES.iter().enumerate() {
        let ratio = many.passes[at].mb_s() / one.passes[at].mb_s();
        output.put(&case, &format!("{pass}_speed_over_one"), ratio, "x");
        output.put(&case, &format!("{pass}_cpu_over_one"), many.cpu_us[at] / one.cpu_us[at], "x");
    }
    let spent = many.spent_bytes as f64 / one.spent_bytes as f64;
    output.put(&case, "spent_over_one", spent, "x");
    let resident = many.resident_bytes as f64 / one.resident_bytes as f64;
    output.put(&case, "resident_over_one", resident, "x");
    Ok(())
}

fn one_round(measured: &mut Measured, codec: &str, data: &Data, disks: u64, threads: usize) -> anyhow::Result<()> {
    let resident_before = anonymous_bytes()?;
    let slots = DISKS * SLOTS;
    let mut pool = ProductDisks::new(slots / disks, by_name(codec)?)?;
    for _ in 0..disks {
        pool.add()?;
    }
    for (at, _) in PASSES.iter().enumerate() {
        let seed = (at * threads) as u64;
        let job = |number: usize, worker: &mut dyn Worker| {
            let mut random = Random::new(seed + number as u64 + 1);
            // A thread fills its own part disk by disk, and later accesses all disks.
            let runs = slots / RUN_PAGES / threads as u64;
            let first = number as u64 * runs;
            let mut pages = [[0; PAGE_SIZE]; RUN_PAGES as usize];
            for run in 0..runs {
                let from = random.below((data.pages.len() as u64) / RUN_PAGES) * RUN_PAGES;
                let from = &data.pages[from as usize..][..RUN_PAGES as usize];
                match at {
                    0 => worker.write((first + run) * RUN_PAGES, from)?,
                    1 => worker.write(random.below(slots / RUN_PAGES) * RUN_PAGES, from)?,
                    _ => worker.read(random.below(slots / RUN_PAGES) * RUN_PAGES, &mut pages)?,
                }
            }
            let moved = runs * RUN_PAGES;
            Ok(if at < 2 {
                Done { written_pages: moved, ..Done::default() }
            } else {
                Done { read_pages: moved, ..Done::default() }
            })
        };
        let cpu_before = cpu_time();
        let done = pass(&pool, threads, &job)?;
        let cpu = cpu_time().saturating_sub(cpu_before);
        let cpu_us = cpu.as_secs_f64() * 1e6 / (done.read_pages + done.written_pages) as f64;
        measured.cpu_us[at] = measured.cpu_us[at].min(cpu_us);
        measured.passes[at] = measured.passes[at].best(done);
    }
    measured.spent_bytes = measured.spent_bytes.max(pool.pool.stats().spent_bytes);
    measured.resident_bytes = measured.resident_bytes.max(anonymous_bytes()?.saturating_sub(resident_before));
    pool.check()
}
