//! `pagefold-bench device`: compares the store in this process with the kernel's zram through
//! `O_DIRECT` and with the bare codec. All get the same pages, requests and threads, and take turns
//! pass by pass.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use pagefold_codec::{Codec, PAGE_SIZE, by_name};

use crate::{
    figure::Figure,
    load::{Device, Done, Random, Worker, pass},
    machine::cpus,
    pages::{Data, Pages, gather},
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

/// A kind of device to measure.
enum Subject {
    Store(Arc<dyn Codec>),
    Bare(Arc<dyn Codec>),
    Zram(&'static str),
}

enum Made {
    Store(Box<Product>),
    Bare(Bare),
    Zram(Zram),
}

/// The best passes by case and subject, and each subject's bytes.
#[derive(Default)]
struct PassTable {
    passes: BTreeMap<(String, &'static str), Done>,
    /// Per subject: bytes of its pages, compressed bytes, and all memory spent.
    bytes: BTreeMap<&'static str, (u64, u64, u64)>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let cpus = cpus();
    let mut threads: Vec<usize> = args.threads.iter().map(|&count| if count == 0 { cpus } else { count }).collect();
    threads.sort_unstable();
    threads.dedup();
    let subjects = subjects(args)?;
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
    let mut tables: Vec<PassTable> = kinds.iter().map(|_| PassTable::default()).collect();
    // The rounds of one case are far apart, so a disturbance that lasts seconds affects few of
    // them.
    for round in 0..args.rounds {
        for (data, table) in kinds.iter().zip(&mut tables) {
            for &shape in &shapes {
                measure(data, shape, round, (args.patterns(), &subjects), table)?;
            }
        }
    }
    for (data, table) in kinds.iter().zip(&tables) {
        table.report(args, data, &subjects, &shapes);
        table.ratios(args, &data.name, &threads);
    }
    Ok(())
}

fn subjects(args: &Args) -> anyhow::Result<Vec<(&'static str, Subject)>> {
    let (lz4, default) = (by_name("lz4")?, Product::default_codec());
    let mut subjects = vec![
        ("pagefold-lz4", Subject::Store(Arc::clone(&lz4))),
        ("pagefold-default", Subject::Store(Arc::clone(&default))),
        ("codec-lz4", Subject::Bare(lz4)),
        ("codec-default", Subject::Bare(default)),
    ];
    if !args.no_zram {
        subjects.push(("zram-lz4", Subject::Zram("lz4")));
        subjects.push(("zram-lzo-rle", Subject::Zram("lzo-rle")));
    }
    Ok(subjects)
}

fn case_of(data: &Data, pattern: Pattern, shape: Shape) -> String {
    format!("{}/{}/{}k/{}", data.name, pattern.name, shape.request * 4, shape.threads)
}

impl Args {
    fn patterns(&self) -> &'static [Pattern] {
        if self.first_writes { &PATTERNS[..1] } else { &PATTERNS }
    }
}

/// Runs every pattern once on every subject. There is one zram disk, so each round of a subject
/// begins with a fresh device.
fn measure(
    data: &Data,
    shape: Shape,
    round: usize,
    (patterns, subjects): (&[Pattern], &[(&'static str, Subject)]),
    table: &mut PassTable,
) -> anyhow::Result<()> {
    let Shape { threads, request, part } = shape;
    for (name, subject) in subjects {
        let made = make(subject, threads, (part * threads) as u64, part as u64)?;
        for (number, &pattern) in patterns.iter().enumerate() {
            let salt = round * PATTERNS.len() + number;
            let order: Vec<usize> = if pattern.random {
                Random::new(salt as u64 + 1)
                    .permutation((part / request) as u64)
                    .into_iter()
                    .map(|at| at as usize)
                    .collect()
            } else {
                (0..part / request).collect()
            };
            let done = pass(made.device(), threads, &|thread: usize, worker: &mut dyn Worker| {
                requests(&data.pages, ThreadPass { shape, thread, order: &order, salt }, pattern, worker)
            })?;
            let best = table.passes.entry((case_of(data, pattern, shape), *name)).or_default();
            *best = best.best(done);
        }
        if !table.bytes.contains_key(name) {
            let (compressed, spent) = made.bytes()?;
            table.bytes.insert(name, ((part * threads * PAGE_SIZE) as u64, compressed, spent));
        }
    }
    Ok(())
}

fn report(json: bool, case: &str, subject: &str, metric: &str, value: f64, unit: &str) {
    if json {
        Figure { bench: "device", case, subject, metric, value, unit }.print_json();
    } else {
        println!("{case:36} {subject:30} {metric:16} {value:12.2} {unit}");
    }
}

impl PassTable {
    fn report(&self, args: &Args, data: &Data, subjects: &[(&'static str, Subject)], shapes: &[Shape]) {
        let json = args.json;
        for (name, (orig, compressed, spent)) in &self.bytes {
            report(json, &data.name, name, "orig_bytes", *orig as f64, "bytes");
            report(json, &data.name, name, "compressed_bytes", *compressed as f64, "bytes");
            report(json, &data.name, name, "spent_bytes", *spent as f64, "bytes");
        }
        for &shape in shapes {
            for &pattern in args.patterns() {
                for (name, _) in subjects {
                    let case = case_of(data, pattern, shape);
                    let value = self.speed(&case, name).unwrap_or(0.0);
                    let metric = if pattern.writes { "write_mb_s" } else { "read_mb_s" };
                    report(json, &case, name, metric, value, "MB/s");
                }
            }
        }
    }

    fn speed(&self, case: &str, subject: &'static str) -> Option<f64> {
        let done = self.passes.get(&(case.to_owned(), subject))?;
        Some(done.read_mb_s() + done.write_mb_s())
    }

    /// Prints the ratios that have a target, for the first request size.
    fn ratios(&self, args: &Args, data: &str, threads: &[usize]) {
        let kib = args.request_kib.first().copied().unwrap_or(4);
        let case = |pattern: &str, threads: usize| format!("{data}/{pattern}/{kib}k/{threads}");
        let pairs: [(_, _, &[_]); 4] = [
            (
                "pagefold-lz4",
                "zram-lz4",
                &[("seq-write", 1.25), ("rand-write", 1.25), ("seq-read", 2.2), ("rand-read", 2.2)],
            ),
            ("pagefold-default", "zram-lz4", &[("seq-write", 1.5), ("rand-write", 1.5)]),
            ("pagefold-lz4", "codec-lz4", &EVERY.map(|pattern| (pattern, 0.9))),
            ("pagefold-default", "codec-default", &EVERY.map(|pattern| (pattern, 0.9))),
        ];
        let first = threads.first().copied().unwrap_or(1);
        for (ours, peer, patterns) in pairs {
            for &(pattern, target) in patterns {
                let case = case(pattern, first);
                if let (Some(our_speed), Some(peer_speed)) = (self.speed(&case, ours), self.speed(&case, peer)) {
                    target_line(args.json, &case, &format!("{ours}/{peer}"), our_speed / peer_speed, "≥", target);
                }
            }
        }
        for &threads in threads {
            for &kib in &args.request_kib {
                let case = format!("{data}/{}/{kib}k/{threads}", PATTERNS[0].name);
                for (ours, bare) in [("pagefold-lz4", "codec-lz4"), ("pagefold-default", "codec-default")] {
                    if let (Some(our_speed), Some(codec)) = (self.speed(&case, ours), self.speed(&case, bare)) {
                        target_line(args.json, &case, &format!("{ours}/{bare}"), our_speed / codec, "≥", 0.9);
                    }
                }
            }
        }
        if let (Some(ours), Some(peer)) = (self.bytes.get("pagefold-default"), self.bytes.get("zram-lz4")) {
            let ratio = ours.2 as f64 / peer.2 as f64;
            target_line(args.json, data, "pagefold-default/zram-lz4 spent_bytes", ratio, "≤", 0.80);
        }
        for &threads in threads.iter().filter(|&&threads| threads > first) {
            let target = 0.9 * threads as f64 / first as f64;
            for (ours, bare) in [("pagefold-lz4", "codec-lz4"), ("pagefold-default", "codec-default")] {
                for pattern in EVERY {
                    let at = case(pattern, threads);
                    let scaling =
                        |subject| Some(self.speed(&at, subject)? / self.speed(&case(pattern, first), subject)?);
                    let (Some(store), Some(codec)) = (scaling(ours), scaling(bare)) else { continue };
                    // The speedup that this machine gives threads that share nothing.
                    target_line(args.json, &at, &format!("{bare} {threads}/{first} threads"), codec, "≥", target);
                    target_line(args.json, &at, &format!("{ours} {threads}/{first} threads"), store, "≥", target);
                    let of = format!("{ours} {threads}/{first} threads, of {bare}'s");
                    target_line(args.json, &at, &of, store / codec, "≥", 0.9);
                }
            }
        }
    }
}

/// The patterns whose slots already hold pages. The first pattern's do not.
const EVERY: [&str; 4] = ["seq-write", "rand-write", "seq-read", "rand-read"];

fn target_line(json: bool, case: &str, subject: &str, ratio: f64, relation: &str, target: f64) {
    if json {
        report(true, case, subject, "ratio", ratio, "x");
    } else {
        println!("{case:36} {subject:44} {ratio:6.2}  (target {relation} {target:.2})");
    }
}

/// One thread's part of a pass: its slots' requests in order.
struct ThreadPass<'a> {
    shape: Shape,
    thread: usize,
    order: &'a [usize],
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
    let moved = (count * request) as u64;
    Ok(if pattern.writes {
        Done { written_pages: moved, ..Done::default() }
    } else {
        Done { read_pages: moved, ..Done::default() }
    })
}

fn make(subject: &Subject, threads: usize, slots: u64, part: u64) -> anyhow::Result<Made> {
    Ok(match subject {
        Subject::Store(codec) => Made::Store(Box::new(Product::new(slots, Arc::clone(codec))?)),
        Subject::Bare(codec) => Made::Bare(Bare::new(&**codec, threads, part)?),
        Subject::Zram(algorithm) => Made::Zram(Zram::new(algorithm, slots)?),
    })
}

impl Made {
    fn device(&self) -> &dyn Device {
        match self {
            Self::Store(store) => &**store,
            Self::Bare(bare) => bare,
            Self::Zram(zram) => zram,
        }
    }

    /// Returns the compressed bytes and all memory spent.
    fn bytes(&self) -> anyhow::Result<(u64, u64)> {
        Ok(match self {
            Self::Store(store) => {
                let figures = store.figures();
                (figures.compr_data_size, figures.spent_bytes)
            }
            Self::Bare(bare) => (bare.compressed_bytes(), bare.compressed_bytes()),
            Self::Zram(zram) => zram.bytes()?,
        })
    }
}
