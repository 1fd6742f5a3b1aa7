//! `pagefold-bench device`: compares the store in this process with the kernel's zram through
//! `O_DIRECT` and with the bare codec. All get the same pages, requests and threads, and take turns
//! pass by pass.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::ensure;
use pagefold_codec::{PAGE_SIZE, by_name};
use pagefold_kinds::{Data, Pages, gather};
use pagefold_report::{Output, Rounds};

use crate::{
    load::{Done, Random, Stored, Worker, pass},
    machine::cpus,
    product::Product,
    subjects::{Bare, Zram},
};

/// Options of `pagefold-bench device`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files whose pages are stored [default: heaps of programs that the bench starts]
    #[arg(long, num_args = 1..)]
    data: Vec<PathBuf>,
    /// MiB of the device; if there are fewer pages, they repeat
    #[arg(long, default_value = "32", value_parser = crate::count)]
    mib: usize,
    /// Number of threads; 0 means all CPUs
    #[arg(long, value_delimiter = ',', default_value = "1,2,0")]
    threads: Vec<usize>,
    /// KiB per request
    #[arg(long, value_delimiter = ',', default_value = "4,128")]
    request_kib: Vec<usize>,
    /// Number of rounds; each figure is from the fastest one
    #[arg(long, default_value = "5", value_parser = crate::count)]
    rounds: usize,
    /// Measure only the first writes, which fill an empty device
    #[arg(long)]
    first_writes: bool,
    /// Leave out the kernel's zram, which needs root and an unused /dev/zram0, whose contents are
    /// lost
    #[arg(long)]
    no_zram: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The order matters: the first pattern fills an empty device, whose memory comes from the system
/// page by page.
const PATTERNS: [Pattern; 5] = [
    Pattern { name: "first-write", writes: true, random: false, fills: true },
    Pattern { name: "seq-write", writes: true, random: false, fills: false },
    Pattern { name: "rand-write", writes: true, random: true, fills: false },
    Pattern { name: "seq-read", writes: false, random: false, fills: false },
    Pattern { name: "rand-read", writes: false, random: true, fills: false },
];

#[derive(Clone, Copy)]
struct Pattern {
    name: &'static str,
    writes: bool,
    random: bool,
    /// Whether it is the pass that fills an empty device.
    fills: bool,
}

/// Number of threads, pages per request, and slots per thread.
#[derive(Clone, Copy)]
struct Shape {
    threads: usize,
    request: usize,
    part: usize,
}

/// The names of subjects. `codec-` is the bare codec.
const SUBJECTS: [&str; 6] =
    ["pagefold-lz4", "pagefold-default", "codec-lz4", "codec-default", "zram-lz4", "zram-lzo-rle"];

fn make(subject: &str, Shape { threads, part, .. }: Shape) -> anyhow::Result<Box<dyn Stored>> {
    let slots = (part * threads) as u64;
    let codec = || if subject.ends_with("lz4") { Ok(by_name("lz4")?) } else { anyhow::Ok(Product::default_codec()) };
    Ok(match subject.split_once('-') {
        Some(("zram", algorithm)) => Box::new(Zram::new(algorithm, slots)?),
        Some(("codec", _)) => Box::new(Bare::new(&*codec()?, threads, part as u64)?),
        _ => Box::new(Product::new(slots, codec()?)?),
    })
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let cpus = cpus();
    let threads: BTreeSet<usize> = args.threads.iter().map(|&count| if count == 0 { cpus } else { count }).collect();
    let slots = args.mib << 8;
    let kinds = gather(&args.data, slots)?;
    let mut shapes = Vec::new();
    for &threads in &threads {
        for &kib in &args.request_kib {
            let request = kib / 4;
            ensure!(kib.is_multiple_of(4), "{kib} KiB are not whole pages");
            let fits = kinds.iter().all(|data| request > 0 && data.pages.len().min(slots / threads) >= request);
            ensure!(fits, "{kib} KiB is not a supported request size");
            shapes.push(Shape { threads, request, part: slots / threads / request * request });
        }
    }
    let mut output = Output::new("device", args.json, Rounds::Best);
    let mut bests = Bests::new();
    // The rounds of one case are far apart, so a disturbance that lasts seconds affects few of
    // them.
    for round in 0..args.rounds {
        for data in &kinds {
            for &shape in &shapes {
                measure(args, data, shape, round, &mut bests, &mut output)?;
            }
        }
    }
    scaling(&bests, &threads, &mut output);
    Ok(())
}

/// The fastest pass of a subject, pattern, request and data, by the number of threads.
type Bests = BTreeMap<(&'static str, String), BTreeMap<usize, f64>>;

/// Runs every pattern once on every subject. There is one zram disk, so each round of a subject
/// begins with a fresh device.
fn measure(
    args: &Args,
    data: &Data,
    shape: Shape,
    round: usize,
    bests: &mut Bests,
    output: &mut Output,
) -> anyhow::Result<()> {
    let Shape { threads, request, part } = shape;
    for subject in SUBJECTS.into_iter().filter(|subject| !(args.no_zram && subject.starts_with("zram"))) {
        let made = make(subject, shape)?;
        let patterns = if args.first_writes { &PATTERNS[..1] } else { &PATTERNS };
        for (number, &pattern) in patterns.iter().enumerate() {
            let salt = round * PATTERNS.len() + number;
            let count = (part / request) as u64;
            let order: Vec<u64> =
                if pattern.random { Random::new(salt as u64 + 1).permutation(count) } else { (0..count).collect() };
            let done = pass(&*made, threads, &|thread: usize, worker: &mut dyn Worker| {
                requests(&data.pages, ThreadPass { shape, thread, order: &order, salt }, pattern, worker)
            })?;
            let pattern_of = format!("{}/{}/{}k", data.name, pattern.name, request * 4);
            let metric = if pattern.writes { "write_mb_s" } else { "read_mb_s" };
            output.put_of(subject, &format!("{pattern_of}/{threads}"), metric, done.mb_s(), "MB/s");
            if !pattern.fills {
                let best = bests.entry((subject, pattern_of)).or_default().entry(threads).or_default();
                *best = best.max(done.mb_s());
            }
        }
        if round == 0 {
            let (compressed, spent) = made.bytes()?;
            let orig = (part * threads * PAGE_SIZE) as u64;
            for (metric, bytes) in [("orig_bytes", orig), ("compressed_bytes", compressed), ("spent_bytes", spent)] {
                output.put_of(subject, &data.name, metric, bytes as f64, "bytes");
            }
        }
    }
    Ok(())
}

/// Outputs the speed of many threads divided by that of the fewest, and by the factor of threads: 1
/// if threads do not hinder each other.
fn scaling(bests: &Bests, threads: &BTreeSet<usize>, output: &mut Output) {
    let Some(&first) = threads.first() else { return };
    for ((subject, pattern), speeds) in bests {
        for &count in threads.iter().skip(1) {
            let ratio = speeds[&count] / speeds[&first] * first as f64 / count as f64;
            output.put_of(subject, &format!("{pattern}/{count}"), "scaling_per_thread", ratio, "share");
        }
    }
}

/// One thread's part of a pass: its slots' requests in order.
struct ThreadPass<'a> {
    shape: Shape,
    thread: usize,
    order: &'a [u64],
    salt: usize,
}

/// Minimum duration of a pass, which repeats until then, since threads do not start and end at the
/// same moment. The pass that fills the device does not repeat.
const LEAST: Duration = Duration::from_millis(50);

/// Requests between two clock readings.
const LOOK: usize = 32;

/// Runs one thread's part. Each write puts different pages in its slots. Neighbouring pages go to
/// different threads, so that all threads have equal work. A read does not check the data.
fn requests(pages: &Pages, part: ThreadPass<'_>, pattern: Pattern, worker: &mut dyn Worker) -> anyhow::Result<Done> {
    let ThreadPass { shape: Shape { threads, request, .. }, thread, order, salt } = part;
    let mut buffer = Pages::new(request);
    let (start, least) = (Instant::now(), if pattern.fills { Duration::ZERO } else { LEAST });
    let mut count = 0;
    'pass: for turn in 0.. {
        for (at, &number) in order.iter().enumerate() {
            if turn > 0 && at.is_multiple_of(LOOK) && start.elapsed() >= least {
                break 'pass;
            }
            let number = number as usize;
            let slot = ((thread * order.len() + number) * request) as u64;
            if pattern.writes {
                let from = (number * threads + thread + (salt + turn) * 7) % (pages.len() / request) * request;
                worker.write(slot, &pages[from..from + request])?;
            } else {
                worker.read(slot, buffer.as_mut())?;
            }
            count += 1;
        }
    }
    Ok(Done::of(pattern.writes, (count * request) as u64))
}
