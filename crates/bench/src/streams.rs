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

use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_published::{Store, StoreConfig, StreamPolicy, strategy::BitSpin};
use pagefold_report::{Output, Rounds};

use crate::{
    load::{Device, Done, Random, Worker, pass},
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

#[derive(Clone, Copy)]
struct Pattern {
    name: &'static str,
    reads: bool,
    writes: bool,
    random: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut output = Output::new("streams", args.json, Rounds::Best);
    for (buffer, page) in [("pattern", pattern_page()), ("11-percent", eleven_percent_page())] {
        for &jobs in &args.jobs {
            for _ in 0..args.rounds {
                for (subject, policy) in POLICIES {
                    round(args, (subject, policy), jobs, (&args.data_name(buffer), &page), &mut output)?;
                }
            }
        }
    }
    Ok(())
}

fn round(
    args: &Args,
    (subject, policy): (&str, Option<StreamPolicy>),
    jobs: usize,
    (buffer, page): (&str, &Page),
    output: &mut Output,
) -> anyhow::Result<()> {
    let slots = ((args.mib << 20) / PAGE_SIZE) as u64;
    let codec = by_name(&args.codec)?;
    let store: Box<dyn Device> = match policy {
        Some(streams) => Box::new(Store::<BitSpin>::new(StoreConfig { codec, streams, ..StoreConfig::new(slots) })?),
        None => Box::new(Product::new(slots, codec)?),
    };
    for pattern in PATTERNS {
        let work = |job: usize, worker: &mut dyn Worker| requests(pattern, slots, job, page, worker);
        let done = pass(&*store, jobs, &work)?;
        let case = format!("{buffer}/{}/4k/{jobs}", pattern.name);
        for (metric, value) in [("read_mb_s", done.read_mb_s()), ("write_mb_s", done.write_mb_s())] {
            if value > 0.0 {
                output.put_of(subject, &case, metric, value, "MB/s");
            }
        }
    }
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
