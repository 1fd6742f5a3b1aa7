//! `pagefold-bench soak`: verified writes at the memory limit while other disks are added and
//! removed, for any length of time.

mod visitors;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    figure::Figure,
    server::{Server, fio_job, fio_number, pagefold, program},
};

use visitors::Visitors;

/// Options of `pagefold-bench soak`.
#[derive(clap::Args)]
#[command(after_help = "\
The bench writes half of a disk, adds and writes four other disks, and then fills the other half \
of the first disk with noise until it meets the memory limit. At the limit, four fio connections \
write and read random blocks of the first half, each in its own quarter, and verify every \
accepted block (crc32c). Meanwhile the bench reads back, compares and drops the other disks one \
by one, and replaces each with a new one. It fails if a block is lost, if more than 1 % of the \
writes or 10 % of the disks are refused, if the limit is not met, or if the process takes more \
than BASE + 1.03 × the limit.")]
pub(crate) struct Args {
    /// Seconds to run
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Disk size in MiB
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Memory limit in MiB
    #[arg(long, default_value_t = 256)]
    limit_mib: u64,
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pagefold: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

const CONNECTIONS: u64 = 4;

/// The disks that are added and removed hold 1/16 of the limit each, before compression.
const VISITORS_SHARE: u64 = 16;

/// What the process may use beyond its limit and 3 % of it: program, libraries, stacks.
const BASE_BYTES: f64 = 8.0 * 1024.0 * 1024.0;

/// How often the server's memory is read.
const LOOK: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let fio = program("fio")?;
    let pagefold = pagefold(args.pagefold.as_deref())?;
    let (size, limit) = (format!("{}M", args.mib), format!("{}M", args.limit_mib));
    let server = Server::pagefold(&pagefold, &["--size", &size, "--memory-limit", &limit])?;
    let half = args.mib / 2;
    let quarter = half / CONNECTIONS;
    let most_bytes = (args.limit_mib << 20) as f64 * 1.03;
    let fill = Job { rw: "write", offset_mib: 0, size_mib: half, jobs: 1, percent: 60, seed: 0 };
    let ballast = Job { offset_mib: half, percent: 0, ..fill };
    let mut totals = run_job(&fio, &server, &fill, &mut || Ok(()))?;
    ensure!(totals.refused == 0.0, "half of the disk does not fit the memory limit: choose a higher one");
    let mut visitors = Visitors::new(&server, &pagefold, (args.limit_mib << 20) / VISITORS_SHARE)?;
    ensure!(visitors.refused == 0, "four more disks do not fit the memory limit: choose a higher one");
    totals = run_job(&fio, &server, &ballast, &mut || Ok(()))?;
    ensure!(totals.refused > 0.0, "the memory limit was not met: choose a lower one");

    totals = Totals::default();
    let (mut worst_excess, mut last, mut rounds) = (f64::MIN, (0.0, 0.0), 0);
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            while !stop.load(Relaxed) {
                visitors.change()?;
            }
            visitors.compare_all()
        });
        let mut write = || {
            while Instant::now() < deadline && !changes.is_finished() {
                rounds += 1;
                let job = Job {
                    rw: "randrw",
                    offset_mib: 0,
                    size_mib: quarter,
                    jobs: CONNECTIONS,
                    percent: 60,
                    seed: rounds,
                };
                let round = run_job(&fio, &server, &job, &mut || {
                    let (rss, spent) = (server.rss_bytes()?, spent_bytes(&pagefold, &server)?);
                    worst_excess = worst_excess.max(rss - most_bytes);
                    last = (rss, spent);
                    Ok(())
                })?;
                totals.accepted += round.accepted;
                totals.refused += round.refused;
                totals.read += round.read;
            }
            anyhow::Ok(())
        };
        let written = write();
        stop.store(true, Relaxed);
        changes.join().map_err(|_| anyhow::anyhow!("the thread that changes disks panicked"))??;
        written
    })?;
    let (refused, accepted) = (totals.refused, totals.accepted);
    ensure!(refused * 100.0 <= accepted, "{refused} writes were refused, {accepted} accepted");
    let (copied, not_copied) = (visitors.written, visitors.refused);
    ensure!(not_copied * 10 <= copied, "{not_copied} disks were refused their pages, {copied} took them");
    let figures = [
        ("rounds", rounds as f64, "rounds"),
        ("writes_accepted_and_verified", totals.accepted, "writes"),
        ("writes_refused", totals.refused, "writes"),
        ("reads", totals.read, "reads"),
        ("disks_written_and_compared", copied as f64, "disks"),
        ("disks_refused", not_copied as f64, "disks"),
        ("rss_bytes", last.0, "bytes"),
        ("spent_bytes", last.1, "bytes"),
        ("worst_rss_over_103_percent_of_limit", worst_excess, "bytes"),
        ("base_bytes", BASE_BYTES, "bytes"),
    ];
    for (metric, value, unit) in figures {
        if args.json {
            let case = "fio-60/randrw-verify/4k/4";
            Figure { bench: "soak", case, subject: "pagefold-default", metric, value, unit }.print_json();
        } else {
            println!("{metric:40} {value:>16.0} {unit}");
        }
    }
    ensure!(worst_excess <= BASE_BYTES, "the process took {worst_excess:.0} bytes more than 1.03 x its limit");
    Ok(())
}

/// A fio job on the disk; every written block is verified.
struct Job {
    rw: &'static str,
    offset_mib: u64,
    /// Per connection; the connections' parts follow one another.
    size_mib: u64,
    jobs: u64,
    /// Percentage of a block that is compressible.
    percent: u64,
    seed: u64,
}

#[derive(Default)]
struct Totals {
    accepted: f64,
    refused: f64,
    read: f64,
}

/// Runs the job and calls `look` from time to time.
fn run_job(
    fio: &Path,
    server: &Server,
    job: &Job,
    look: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Totals> {
    let report = server.folder().join("fio.json");
    let mut child = Command::new(fio)
        .current_dir(server.folder())
        .args(["--name=soak", "--ioengine=nbd", "--thread", "--group_reporting", "--output-format=json"])
        .args(["--rwmixread=40", "--bs=4k", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--refill_buffers"])
        // Without a backlog, fio 3.33 expects the seeds of refused blocks.
        .args(["--verify_backlog=4096", "--ignore_error=,ENOSPC", "--error_dump=0"])
        .arg(format!("--rw={}", job.rw))
        .arg(format!("--buffer_compress_percentage={}", job.percent))
        .arg(format!("--randseed={}", job.seed))
        .arg(format!("--numjobs={}", job.jobs))
        .arg(format!("--offset={}M", job.offset_mib))
        .arg(format!("--size={}M", job.size_mib))
        .arg(format!("--offset_increment={}M", job.size_mib))
        .arg(format!("--uri={}", server.uri("")))
        .arg(format!("--output={}", report.display()))
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start fio")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(LOOK);
        look()?;
    };
    ensure!(status.success(), "fio failed: {status}; see its messages above");
    let job = fio_job(&report)?;
    let refused = fio_number(&job["total_err"])?;
    Ok(Totals {
        accepted: fio_number(&job["write"]["total_ios"])? - refused,
        refused,
        read: fio_number(&job["read"]["total_ios"])?,
    })
}

fn spent_bytes(pagefold: &Path, server: &Server) -> anyhow::Result<f64> {
    let output = Command::new(pagefold).args(["stat", "--json", "--dir"]).arg(server.folder()).output()?;
    ensure!(output.status.success(), "stat failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.find(|line| line["metric"] == "spent_bytes").context("stat does not report spent_bytes")?;
    line["value"].as_f64().context("spent_bytes is not a number")
}
