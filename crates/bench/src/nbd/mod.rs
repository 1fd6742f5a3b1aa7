//! `pagefold-bench nbd`: requests over NBD to RAM disks and to forks, and the same requests to the
//! servers that users have today.

mod cases;
mod connection;
mod decodes;
mod load;
pub(crate) mod soak;
mod subjects;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::ValueEnum;
use pagefold_kinds::Content;
use pagefold_report::{Output, Rounds};

use crate::{options::ServerOptions, server::pagefold};
use cases::{Case, Pattern};
use load::{Measured, Shape, Side, Times, read_through};
use subjects::{Disk, Setup, Subject};

/// Options of `pagefold-bench nbd`.
#[derive(clap::Args)]
#[command(after_help = "\
Disks hold pages that carry their number and version. Bases and RAM disks begin with the same pages, \
and copies change the same ones. Before the first round every disk is read twice as a whole. Each case \
runs on every subject in turn, for each round with another seed; a figure is the median of its rounds. \
A run begins with requests that do not count, and cached cases read their 32 MiB twice before it. \
Writes and mixes get a new copy of the base with 1 % changed. The client checks the number and the \
version of every page that it reads, and all bytes of one in 16 requests.

Cases: rand-read of 32 MiB (cached) or of the whole disk, with 1 % and 50 % of the pages changed; \
rand-write and rand-mixed (50 % writes) of the whole disk; writes of 32 KiB and 128 KiB on one \
connection; hot-read: 16 MiB, whose latencies count, with 0 % and 10 % of the requests elsewhere. \
Names end in CONNECTIONSxDEPTH. Memory is the resident memory of all processes of a server and its \
files in tmpfs; files of bases are in the page cache and do not count.")]
pub(crate) struct Args {
    /// Files whose pages the disks hold, such as one written by 'gather' [default: generated pages
    /// like those of heaps]
    #[arg(long, num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Size of each disk in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    mib: u64,
    /// Fewer shapes, rounds and seconds: within 10 minutes on 16 CPUs
    #[arg(long)]
    quick: bool,
    /// Measured seconds of each run [default: 1, with --quick 0.4]
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Seconds of each run before it is measured [default: 0.25, with --quick 0.1]
    #[arg(long, value_parser = seconds)]
    warm_up: Option<Duration>,
    /// Number of rounds [default: 3, with --quick 2]
    #[arg(long, value_parser = crate::count)]
    rounds: Option<usize>,
    /// Start no further round that would end later than this, and no case later than this, after the
    /// start [default: none, with --quick 540]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    limit: Option<Duration>,
    /// Connections and requests in flight on each [default: 1x1,1x16,4x16,8x16, with --quick without
    /// 4x16]
    #[arg(long, value_delimiter = ',', value_parser = shape)]
    shapes: Vec<Shape>,
    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Subject::value_variants().to_vec())]
    subjects: Vec<Subject>,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    #[command(flatten)]
    servers: ServerOptions,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn shape(text: &str) -> Result<Shape, String> {
    let parsed = text.split_once('x').and_then(|(connections, depth)| {
        let count = |text: &str| text.parse().ok().filter(|count| (1..=64).contains(count));
        Some(Shape { connections: count(connections)?, depth: count(depth)? })
    });
    parsed.ok_or_else(|| "expected CONNECTIONSxDEPTH, each from 1 to 64, such as 8x16".to_owned())
}

/// The limit of a quick run.
const QUICK_LIMIT: Duration = Duration::from_secs(540);

/// The plan of a run, from the options.
struct Plan {
    cases: Vec<Case>,
    subjects: Vec<Subject>,
    rounds: usize,
    times: Times,
    limit: Option<Duration>,
}

impl Plan {
    fn new(args: &Args, data: &str) -> anyhow::Result<Self> {
        let (rounds, warm, measured, connections): (_, _, _, &[usize]) =
            if args.quick { (2, 0.1, 0.4, &[1, 8]) } else { (3, 0.25, 1.0, &[1, 4, 8]) };
        let mut shapes = args.shapes.clone();
        if shapes.is_empty() {
            shapes.push(Shape { connections: 1, depth: 1 });
            shapes.extend(connections.iter().map(|&connections| Shape { connections, depth: 16 }));
        }
        let mut cases = Case::all(&shapes);
        cases.retain(|case| case.name(data).contains(&args.only));
        ensure!(!cases.is_empty(), "no case has '{}' in its name", args.only);
        let mut subjects = args.subjects.clone();
        subjects.retain(|&subject| cases.iter().any(|case| case.is_for(subject)));
        let seconds = |given: Option<Duration>, default| given.unwrap_or(Duration::from_secs_f64(default));
        Ok(Self {
            cases,
            subjects,
            rounds: args.rounds.unwrap_or(rounds),
            times: Times { warm: seconds(args.warm_up, warm), measured: seconds(args.seconds, measured) },
            limit: args.limit.or(args.quick.then_some(QUICK_LIMIT)),
        })
    }

    /// Returns the state in which a subject's disk is for a case: the percentage changed of a copy, and
    /// 0 for other disks, which have a single state.
    fn state(subject: Subject, changed: u32) -> u32 {
        if subject.is_copy() { changed } else { 0 }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let began = Instant::now();
    let content = Content::new(&args.data)?;
    let data = content.name().to_owned();
    let mut plan = Plan::new(args, &data)?;
    let ServerOptions { serve, scratch, tmpfs, json, .. } = &args.servers;
    let pagefold = pagefold(args.servers.pagefold.as_deref())?;
    let setup = Setup::new(pagefold, serve.clone(), content, args.mib, scratch, tmpfs)?;
    let mut output = Output::new("nbd", *json, Rounds::Median);
    let mut disks = BTreeMap::new();
    plan.subjects.retain(|&subject| match prepare(&setup, &plan.cases, subject, &mut disks, &mut output) {
        Ok(()) => true,
        Err(error) => {
            output.skip(&subject.name(), error);
            false
        }
    });
    ensure!(!plan.subjects.is_empty(), "there is nothing to measure");
    for version in plan.subjects.iter().filter_map(|subject| subject.version().ok().flatten()) {
        eprintln!("{version}");
    }
    let is_up = |needed: Duration| plan.limit.is_some_and(|limit| began.elapsed() + needed > limit);
    let mut longest = Duration::ZERO;
    // A subject that failed is left out of the rest, which may be hard to repeat.
    let mut failed: Vec<(Subject, anyhow::Error)> = Vec::new();
    'rounds: for round in 0..plan.rounds {
        let start = Instant::now();
        let mut without_misses = BTreeMap::new();
        for (number, case) in plan.cases.iter().enumerate() {
            let name = case.name(&data);
            // A further round is whole or left out. The first one is cut where its time ends.
            if is_up(if round > 0 && number == 0 { longest } else { Duration::ZERO }) {
                output.skip(&format!("round {} from {name} on", round + 1), "the time of the run is up");
                break 'rounds;
            }
            for &subject in plan.subjects.iter().filter(|&&subject| case.is_for(subject)) {
                if failed.iter().any(|(other, _)| *other == subject) {
                    continue;
                }
                let seed = (round * plan.cases.len() + number) as u64;
                let disk = &disks[&(subject, Plan::state(subject, case.changed))];
                let measured = match measure(&setup, &plan, case, subject, disk, seed) {
                    Ok(measured) => measured,
                    Err(error) => {
                        failed.push((subject, error.context(name.clone())));
                        continue;
                    }
                };
                let (mut all_mb_s, mut worst_us) = (0.0, f64::NAN);
                for ([speed, p99], [mb_s, us]) in case.metrics().iter().zip(sides(case, &measured, plan.times)) {
                    output.put_of(&subject.name(), &name, speed, mb_s, "MB/s");
                    output.put_of(&subject.name(), &name, p99, us, "us");
                    (all_mb_s, worst_us) = (all_mb_s + mb_s, us.max(worst_us));
                }
                output.put_of(&subject.name(), &name, "=all_mb_s", all_mb_s, "MB/s");
                output.put_of(&subject.name(), &name, "=worst_p99_us", worst_us, "us");
                if let Pattern::Hot { misses } = case.pattern {
                    let without = *without_misses.entry(subject).or_insert(worst_us);
                    if misses > 0 {
                        output.put_of(&subject.name(), &name, "hot_p99_over_no_misses", worst_us / without, "x");
                    }
                }
            }
        }
        longest = longest.max(start.elapsed());
    }
    for (subject, _) in &failed {
        plan.subjects.retain(|other| other != subject);
    }
    for &subject in plan.subjects.iter().filter(|subject| subject.is_fork()) {
        match decodes::per_region(&setup, subject)? {
            Some(count) => {
                output.put_of(&subject.name(), &format!("{data}/decodes/64k"), "decoded_clusters", count, "clusters");
            }
            None => output.skip(&subject.name(), "decoded clusters: the server does not count them"),
        }
    }
    drop(output);
    let failed: Vec<String> = failed.iter().map(|(subject, error)| format!("{}: {error:#}", subject.name())).collect();
    ensure!(failed.is_empty(), "failed and left out of the rest: {}", failed.join("; "));
    Ok(())
}

/// Makes the disks of a subject, one for each state, and reads them twice.
fn prepare(
    setup: &Setup,
    cases: &[Case],
    subject: Subject,
    disks: &mut BTreeMap<(Subject, u32), Disk>,
    output: &mut Output,
) -> anyhow::Result<()> {
    for case in cases.iter().filter(|case| case.is_for(subject)) {
        let state = Plan::state(subject, case.changed);
        if disks.contains_key(&(subject, state)) {
            continue;
        }
        let disk = Disk::new(setup, subject)?;
        disk.change(setup, state)?;
        for _ in 0..2 {
            disk.compare(setup)?;
        }
        disks.insert((subject, state), disk);
    }
    for case in cases.iter().filter(|case| matches!(case.pattern, Pattern::Read { is_cached: false })) {
        if let Some(disk) = disks.get(&(subject, Plan::state(subject, case.changed))) {
            let name = format!("{}/memory/changed-{}", setup.content.name(), case.changed);
            output.put_of(&subject.name(), &name, "rss_bytes", disk.memory_bytes(setup)?, "bytes");
        }
    }
    Ok(())
}

/// Runs a case on a subject.
fn measure(
    setup: &Setup,
    plan: &Plan,
    case: &Case,
    subject: Subject,
    disk: &Disk,
    seed: u64,
) -> anyhow::Result<Measured> {
    let load = case.load(setup.pages());
    if case.writes() && subject.is_copy() {
        let copy = disk.another(setup, subject, &format!("copy-{seed}"))?;
        copy.change(setup, case.changed)?;
        let measured = load::run(copy.served(setup), &load, case.shape, seed, plan.times)?;
        copy.remove(subject)?;
        return Ok(measured);
    }
    if let Some(span) = case.warmed(setup.pages()) {
        for _ in 0..2 {
            read_through(disk.served(setup), span.clone())?;
        }
    }
    load::run(disk.served(setup), &load, case.shape, seed, plan.times)
}

/// Returns the speed in MB/s and the 99th percentile in microseconds of each side that a case has.
fn sides(case: &Case, measured: &Measured, times: Times) -> Vec<[f64; 2]> {
    let of = |side: &Side| {
        let bytes = side.requests * case.block_kib * 1024;
        [bytes as f64 / times.measured.as_secs_f64() / 1e6, side.latencies.at(0.99) / 1e3]
    };
    match case.pattern {
        Pattern::Read { .. } | Pattern::Hot { .. } => vec![of(&measured.reads)],
        Pattern::Write => vec![of(&measured.writes)],
        Pattern::Mixed => vec![of(&measured.reads), of(&measured.writes)],
    }
}
