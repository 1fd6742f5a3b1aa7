//! `pagefold-bench nbd`: runs the same fio jobs on pagefold and on nbdkit's memory plugin, in turn.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};

use crate::{
    figure::{Figure, geometric_mean, median},
    server::{Server, fio_job, fio_number, pagefold, program},
};

/// Options of `pagefold-bench nbd`.
#[derive(clap::Args)]
#[command(after_help = "\
Every case runs on every subject in turn, for each round; a figure is the median of its rounds. \
Each disk is written full first, which does not count. fio's buffers are 60 % compressible and \
refilled for each write; the queue depth is 16.")]
pub(crate) struct Args {
    /// Seconds that each fio job runs
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Number of rounds
    #[arg(long, default_value = "3", value_parser = crate::count)]
    rounds: usize,
    /// Disk size in MiB
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pagefold: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

const QUEUE_DEPTH: &str = "16";
const SUBJECTS: [&str; 4] = ["pagefold-lz4", "pagefold-default", "nbdkit-malloc", "nbdkit-zstd"];

struct Case {
    pattern: &'static str,
    fio_rw: &'static str,
    block: &'static str,
    connections: usize,
}

impl Case {
    fn all() -> Vec<Self> {
        let patterns = [
            ("rand-read", "randread"),
            ("rand-write", "randwrite"),
            ("rand-mixed", "randrw"),
            ("seq-read", "read"),
            ("seq-write", "write"),
        ];
        let mut cases = Vec::new();
        for block in ["4k", "32k"] {
            for (pattern, fio_rw) in patterns {
                for connections in [1, 2] {
                    cases.push(Self { pattern, fio_rw, block, connections });
                }
            }
        }
        cases
    }

    fn name(&self) -> String {
        format!("fio-60/{}/{}/{}", self.pattern, self.block, self.connections)
    }

    /// Returns the sides of fio's report that the pattern fills, with the names of their metrics.
    fn sides(&self) -> &'static [[&'static str; 3]] {
        const READ: [&str; 3] = ["read", "read_mb_s", "read_p99_us"];
        const WRITE: [&str; 3] = ["write", "write_mb_s", "write_p99_us"];
        match self.fio_rw {
            "randread" | "read" => &[READ],
            "randrw" => &[READ, WRITE],
            _ => &[WRITE],
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let fio = program("fio")?;
    let nbdkit = program("nbdkit")?;
    let pagefold = pagefold(args.pagefold.as_deref())?;
    let size = format!("{}M", args.mib);
    let mut servers = Vec::new();
    for subject in SUBJECTS {
        let server = match subject {
            "pagefold-lz4" => Server::pagefold(&pagefold, &["--size", &size, "--codec", "lz4"])?,
            "pagefold-default" => Server::pagefold(&pagefold, &["--size", &size])?,
            "nbdkit-malloc" => Server::nbdkit(&nbdkit, &["memory", &format!("size={size}"), "allocator=malloc"])?,
            _ => Server::nbdkit(&nbdkit, &["memory", &format!("size={size}"), "allocator=zstd"])?,
        };
        let fill = Case { pattern: "fill", fio_rw: "write", block: "32k", connections: 1 };
        run_fio(&fio, &server, &fill, args.mib, None, 1)?;
        servers.push((subject, server));
    }
    let mut figures: BTreeMap<(String, &str, &str), Vec<f64>> = BTreeMap::new();
    let cases: Vec<Case> = Case::all().into_iter().filter(|case| case.name().contains(&args.only)).collect();
    ensure!(!cases.is_empty(), "no case has '{}' in its name", args.only);
    for round in 0..args.rounds {
        for case in &cases {
            for (subject, server) in &servers {
                let mut job = run_fio(&fio, server, case, args.mib, Some(args.seconds), round + 2)?;
                job.push(("rss_bytes", server.rss_bytes()?));
                for (metric, value) in job {
                    figures.entry((case.name(), subject, metric)).or_default().push(value);
                }
            }
        }
    }
    let figures: BTreeMap<_, _> = figures.into_iter().map(|(key, values)| (key, median(&values))).collect();
    if args.json {
        for ((case, subject, metric), &value) in &figures {
            let unit = match *metric {
                "rss_bytes" => "bytes",
                metric if metric.ends_with("_us") => "us",
                _ => "MB/s",
            };
            Figure { bench: "nbd", case, subject, metric, value, unit }.print_json();
        }
    }
    print_table(args.json, &cases, &figures);
    Ok(())
}

/// Prints speeds and ratios: to standard error if standard output is for JSON.
fn print_table(json: bool, cases: &[Case], figures: &BTreeMap<(String, &str, &str), f64>) {
    let line = |text: String| if json { eprintln!("{text}") } else { println!("{text}") };
    let get = |case: &Case, subject, metric| figures.get(&(case.name(), subject, metric)).copied().unwrap_or(f64::NAN);
    let speed = |case: &Case, subject| case.sides().iter().map(|&[_, speed, _]| get(case, subject, speed)).sum::<f64>();
    let p99 =
        |case: &Case, subject| case.sides().iter().map(|&[_, _, p99]| get(case, subject, p99)).fold(f64::MIN, f64::max);
    line(format!(
        "{:26} {:>9} {:>9} {:>9} {:>9}   lz4/malloc  lz4/zstd  p99 us lz4/malloc",
        "case (MB/s)", "pf-lz4", "pf-deflt", "nk-malloc", "nk-zstd"
    ));
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for case in cases {
        let [lz4, default, malloc, zstd] = SUBJECTS.map(|subject| speed(case, subject));
        ratios[0].push(lz4 / malloc);
        ratios[1].push(lz4 / zstd);
        line(format!(
            "{:26} {lz4:9.0} {default:9.0} {malloc:9.0} {zstd:9.0}   {:10.2}  {:8.1}  {:8.0} / {:.0}",
            case.name(),
            lz4 / malloc,
            lz4 / zstd,
            p99(case, "pagefold-lz4"),
            p99(case, "nbdkit-malloc")
        ));
    }
    line(format!(
        "{:26} {:>39}   {:10.2}  {:8.1}",
        "geometric mean",
        "",
        geometric_mean(&ratios[0]),
        geometric_mean(&ratios[1])
    ));
}

/// Runs the case and returns its metrics. fio takes places and data from the seed.
fn run_fio(
    fio: &Path,
    server: &Server,
    case: &Case,
    mib: u64,
    seconds: Option<u32>,
    seed: usize,
) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let output = server.folder().join("fio.json");
    let mut command = std::process::Command::new(fio);
    command
        .current_dir(server.folder())
        .args(["--name=job", "--ioengine=nbd", "--thread", "--group_reporting", "--output-format=json"])
        .args(["--buffer_compress_percentage=60", "--refill_buffers", &format!("--randseed={seed}")])
        .arg(format!("--iodepth={QUEUE_DEPTH}"))
        .arg(format!("--uri={}", server.uri("")))
        .arg(format!("--rw={}", case.fio_rw))
        .arg(format!("--bs={}", case.block))
        .arg(format!("--numjobs={}", case.connections))
        .arg(format!("--size={mib}M"))
        .arg(format!("--output={}", output.display()));
    if let Some(seconds) = seconds {
        command.args(["--time_based", &format!("--runtime={seconds}")]);
    }
    let result = command.output().context("cannot start fio")?;
    ensure!(result.status.success(), "fio failed: {}", String::from_utf8_lossy(&result.stderr));
    let job = fio_job(&output)?;
    let mut metrics = Vec::new();
    for &[side, speed, p99] in case.sides() {
        let side = &job[side];
        metrics.push((speed, fio_number(&side["bw_bytes"])? / 1e6));
        metrics.push((p99, fio_number(&side["clat_ns"]["percentile"]["99.000000"])? / 1e3));
    }
    Ok(metrics)
}
