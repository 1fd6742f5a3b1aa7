//! `pagefold-bench soak`: verified writing at the memory limit, for as long as one likes.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    report::Figure,
    server::{Server, pagefold, program},
};

/// Options of `pagefold-bench soak`.
#[derive(clap::Args)]
#[command(after_help = "\
Four fio connections write and read their own quarters of a disk at random and verify each block (crc32c). The memory
limit is below what the disk would need, so that writes fail with ENOSPC all along; fio counts those and goes on. Fails if
a block is lost, or if the process takes more than BASE + 1.03 x what `stat` says is spent.")]
pub(crate) struct Args {
    /// Seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Disk size in MiB
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Memory limit in MiB
    #[arg(long, default_value_t = 192)]
    limit_mib: u64,
    /// The pagefold program; by default the one beside this program
    #[arg(long)]
    pagefold: Option<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

const CONNECTIONS: u64 = 4;

/// What the process takes beside its disks: program, libraries, threads' stacks and buffers of four connections.
const BASE_BYTES: f64 = 8.0 * 1024.0 * 1024.0;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let fio = program("fio")?;
    let pagefold = pagefold(args.pagefold.as_deref())?;
    let (size, limit) = (format!("{}M", args.mib), format!("{}M", args.limit_mib));
    let server = Server::pagefold(&pagefold, &["--size", &size, "--memory-limit", &limit])?;
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let (mut worst_excess, mut blocks, mut refused, mut rounds) = (f64::MIN, 0.0, 0.0, 0u64);
    let mut last = (0.0, 0.0);
    while Instant::now() < deadline {
        rounds += 1;
        let report = server.folder().join("fio.json");
        let mut child = Command::new(&fio)
            .current_dir(server.folder())
            .args(["--name=soak", "--ioengine=nbd", "--thread", "--group_reporting", "--output-format=json"])
            .args(["--rw=randrw", "--rwmixread=40", "--bs=4k", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"])
            .args(["--verify_backlog=4096", "--buffer_compress_percentage=60", "--refill_buffers"])
            .args(["--ignore_error=,ENOSPC", "--error_dump=0"])
            .arg(format!("--randseed={rounds}"))
            .arg(format!("--numjobs={CONNECTIONS}"))
            .arg(format!("--size={}M", args.mib / CONNECTIONS))
            .arg(format!("--offset_increment={}M", args.mib / CONNECTIONS))
            .arg(format!("--uri={}", server.uri("")))
            .arg(format!("--output={}", report.display()))
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start fio")?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            thread::sleep(Duration::from_millis(200));
            let (rss, spent) = (server.rss_bytes()?, spent_bytes(&pagefold, &server)?);
            worst_excess = worst_excess.max(rss - spent * 1.03);
            last = (rss, spent);
        };
        ensure!(status.success(), "fio failed in round {rounds}: {status}; see its messages above");
        let text = fs::read_to_string(&report).context("fio left no report")?;
        let fio: Value = serde_json::from_str(&text[text.find('{').unwrap_or(0)..]).context("fio's report")?;
        let job = &fio["jobs"][0];
        blocks += job["read"]["total_ios"].as_f64().context("fio's report lacks a figure")?;
        refused += job["total_err"].as_f64().unwrap_or(0.0);
    }
    let figures = [
        ("rounds", rounds as f64, "rounds"),
        ("blocks_read_and_verified", blocks, "blocks"),
        ("writes_refused", refused, "writes"),
        ("rss_bytes", last.0, "bytes"),
        ("spent_bytes", last.1, "bytes"),
        ("worst_rss_over_103_percent_of_spent", worst_excess, "bytes"),
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
    ensure!(worst_excess <= BASE_BYTES, "the process took {worst_excess:.0} bytes more than 1.03 x what is spent");
    ensure!(refused > 0.0, "the memory limit was never reached: choose a lower one");
    Ok(())
}

fn spent_bytes(pagefold: &PathBuf, server: &Server) -> anyhow::Result<f64> {
    let output = Command::new(pagefold).args(["stat", "--json", "--unix"]).arg(server.socket()).output()?;
    ensure!(output.status.success(), "stat failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.find(|line| line["metric"] == "spent_bytes").context("stat says nothing of spent_bytes")?;
    line["value"].as_f64().context("spent_bytes is no number")
}
