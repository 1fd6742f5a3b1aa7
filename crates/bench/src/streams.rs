//! `pagefold-bench streams`: the stream policies under one to ten jobs, in the form of the table
//! with which per-CPU streams came to zram (May 2016, "zram: user per-cpu compression streams"; its
//! jobs are those of zram-perf-test).
//!
//! Every job covers the whole store, as fio's jobs cover the whole device: six successive passes
//! with sequential, random and mixed requests of 4 KiB. A mixed pass reads or writes each page at
//! random.
//!
//! Four columns are published policies, in the small store of `pagefold-published`: they differ
//! only in the policy. The fifth, `per-cpu`, is the product's store, which also differs in its
//! entries' lock, allocator, table and counters (docs/locks.md).

use std::fmt::Write as _;

use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_published::{Store, StoreConfig, StreamPolicy, strategy::BitSpin};

use crate::{
    figure::{Figure, geometric_mean},
    load::{Device, Done, Random, Worker, pass},
    perf::{Counts, Perf},
    product::Product,
};

/// Options of `pagefold-bench streams`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of concurrent jobs, one row of the tables for each
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5,6,7,8,9,10", value_parser = crate::count)]
    jobs: Vec<usize>,
    /// MiB of the store; each job covers all of it in each pass
    #[arg(long, default_value = "16", value_parser = crate::count)]
    mib: usize,
    /// Number of rounds; each figure is from the fastest one
    #[arg(long, default_value = "3", value_parser = crate::count)]
    rounds: usize,
    /// Name of the codec
    #[arg(long, default_value = CODEC)]
    codec: String,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The codec of the published table, which case names omit.
const CODEC: &str = "lz4";

impl Args {
    /// Returns the first word of cases: the buffer, and the codec if it is not [`CODEC`].
    fn data_name(&self, buffer: &str) -> String {
        if self.codec == CODEC { buffer.to_owned() } else { format!("{buffer}-{}", self.codec) }
    }
}

/// The policies by row; the last row is the product's store.
const POLICIES: [(&str, Option<StreamPolicy>); 5] = [
    ("single", Some(StreamPolicy::Single)),
    ("idle-4", Some(StreamPolicy::Idle(4))),
    ("idle-8", Some(StreamPolicy::Idle(8))),
    ("per-cpu-mutex", Some(StreamPolicy::PerCpu)),
    ("per-cpu", None),
];

const PATTERNS: [Pattern; 6] = [
    Pattern { name: "seq-write", reads: false, writes: true, random: false },
    Pattern { name: "rand-write", reads: false, writes: true, random: true },
    Pattern { name: "seq-read", reads: true, writes: false, random: false },
    Pattern { name: "rand-read", reads: true, writes: false, random: true },
    Pattern { name: "mixed-rand", reads: true, writes: true, random: true },
    Pattern { name: "mixed-seq", reads: true, writes: true, random: false },
];

/// The source's lines in their order, each with its pattern.
pub(crate) const LINES: [(&str, &str); 8] = [
    ("READ", "seq-read"),
    ("READ", "rand-read"),
    ("WRITE", "seq-write"),
    ("WRITE", "rand-write"),
    ("READ", "mixed-seq"),
    ("WRITE", "mixed-seq"),
    ("READ", "mixed-rand"),
    ("WRITE", "mixed-rand"),
];

#[derive(Clone, Copy)]
struct Pattern {
    name: &'static str,
    reads: bool,
    writes: bool,
    random: bool,
}

/// One policy's best passes, pattern by pattern, and the counts of its last round.
#[derive(Default)]
struct Column {
    passes: [Done; PATTERNS.len()],
    counts: Option<Counts>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let perf = Perf::new();
    if let Err(why) = &perf {
        eprintln!("no instructions, cycles and branch misses: this machine has no hardware counters ({why})");
    }
    if !args.json {
        println!(
            "per-cpu is the product's store, which differs from the others in more than the policy (docs/locks.md)\n"
        );
    }
    for (buffer, page) in [("pattern", pattern_page()), ("11-percent", eleven_percent_page())] {
        for &jobs in &args.jobs {
            let mut columns: [Column; POLICIES.len()] = Default::default();
            for _ in 0..args.rounds {
                for ((_, policy), column) in POLICIES.iter().zip(&mut columns) {
                    round(args, *policy, jobs, &page, perf.as_ref().ok(), column)?;
                }
            }
            if args.json {
                print_json(&args.data_name(buffer), jobs, &columns);
            } else {
                print_table(&args.data_name(buffer), jobs, &columns);
            }
        }
    }
    Ok(())
}

fn round(
    args: &Args,
    policy: Option<StreamPolicy>,
    jobs: usize,
    page: &Page,
    perf: Option<&Perf>,
    column: &mut Column,
) -> anyhow::Result<()> {
    let slots = (args.mib << 20) / PAGE_SIZE;
    let codec = by_name(&args.codec)?;
    let store: Box<dyn Device> = match policy {
        Some(streams) => {
            Box::new(Store::<BitSpin>::new(StoreConfig { codec, streams, ..StoreConfig::new(slots as u64) })?)
        }
        None => Box::new(Product::new(slots as u64, codec)?),
    };
    let counting = perf.map(Perf::start).transpose()?;
    for (pattern, best) in PATTERNS.into_iter().zip(&mut column.passes) {
        let done = pass(&*store, jobs, &|job: usize, worker: &mut dyn Worker| {
            requests(pattern, slots as u64, job, page, worker)
        })?;
        *best = best.best(done);
    }
    column.counts = counting.map(|counting| counting.stop()).transpose()?;
    Ok(())
}

/// Runs one job's requests of one pass: one per slot.
fn requests(pattern: Pattern, slots: u64, job: usize, page: &Page, worker: &mut dyn Worker) -> anyhow::Result<Done> {
    let mut random = Random::new(job as u64 + 1);
    let mut back = [[0; PAGE_SIZE]];
    let mut done = Done::default();
    for number in 0..slots {
        let slot = if pattern.random { random.below(slots) } else { number };
        if pattern.writes && (!pattern.reads || random.next() >> 63 == 0) {
            worker.write(slot, std::slice::from_ref(page))?;
            done.written_pages += 1;
        } else {
            worker.read(slot, &mut back)?;
            done.read_pages += 1;
        }
    }
    Ok(done)
}

/// Returns fio's `buffer_pattern=0xbadc0ffee`: a repetition of five bytes, so the page is not
/// same-filled.
fn pattern_page() -> Page {
    const PATTERN: [u8; 5] = [0x0b, 0xad, 0xc0, 0xff, 0xee];
    std::array::from_fn(|at| PATTERN[at % 5])
}

/// Returns fio's `buffer_compress_percentage=11`: 89 % of every 512 bytes are random and the rest
/// are zeros.
fn eleven_percent_page() -> Page {
    let mut random = Random::new(11);
    std::array::from_fn(|at| if at % 512 < 512 * 89 / 100 { random.next() as u8 } else { 0 })
}

fn speed(column: &Column, direction: &str, pattern: &str) -> f64 {
    let at = PATTERNS.iter().position(|one| one.name == pattern).unwrap_or(0);
    if direction == "READ" { column.passes[at].read_mb_s() } else { column.passes[at].write_mb_s() }
}

fn print_json(buffer: &str, jobs: usize, columns: &[Column]) {
    for ((subject, _), column) in POLICIES.iter().zip(columns) {
        let print = |case: &str, metric: &str, value: f64, unit: &str| {
            Figure { bench: "streams", case, subject, metric, value, unit }.print_json();
        };
        for (direction, pattern) in LINES {
            let metric = if direction == "READ" { "read_mb_s" } else { "write_mb_s" };
            print(&format!("{buffer}/{pattern}/4k/{jobs}"), metric, speed(column, direction, pattern), "MB/s");
        }
        if let Some(counts) = column.counts {
            for (metric, value) in counts.figures() {
                print(&format!("{buffer}/all/4k/{jobs}"), metric, value as f64, "count");
            }
        }
    }
}

fn print_table(buffer: &str, jobs: usize, columns: &[Column]) {
    let row = |head: &str, cells: &dyn Fn(&Column) -> String, tail: &str| {
        let mut line = format!("{head:<18}");
        for column in columns {
            let _ = write!(line, "{:>16}", cells(column));
        }
        println!("{}", format!("{line}    {tail}").trim_end());
    };
    let mut names = POLICIES.iter().map(|(name, _)| format!("{name:>16}")).collect::<String>();
    names.push_str(&format!("    ({buffer} buffer)"));
    println!("jobs{jobs:<14}{names}");
    for (direction, pattern) in LINES {
        row(&format!("{direction}:"), &|column| format!("{:.1}MB/s", speed(column, direction, pattern)), pattern);
    }
    let mean = |column: &Column| {
        let ratio = |(direction, pattern)| speed(column, direction, pattern) / speed(&columns[0], direction, pattern);
        geometric_mean(&LINES.map(ratio))
    };
    row("mean / single:", &|column| format!("{:.2}", mean(column)), "");
    if columns.iter().all(|column| column.counts.is_some()) {
        for at in 0..3 {
            let name = columns[0].counts.map_or("", |counts| counts.figures()[at].0);
            row(name, &|column| column.counts.map_or(0, |counts| counts.figures()[at].1).to_string(), "");
        }
    }
    println!();
}
