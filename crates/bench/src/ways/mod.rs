//! `pagefold-bench ways`: ways to access a disk other than NBD on a socket of this machine,
//! compared with the servers that users have today.

mod case;
mod files;
pub(crate) mod mapped;
mod rings;
mod secure;
mod servers;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use pagefold_report::{Output, Rounds, median};

use crate::server::pagefold;

use case::{Case, Measured, Times};
use servers::{SUBJECTS, Setup, Subject};

/// Options of `pagefold-bench ways`.
#[derive(clap::Args)]
#[command(after_help = "\
Every disk holds the same pages, like those of heaps, and is written once before it is measured. \
fio sends the requests to files and devices (O_DIRECT; psync at depth 1, io_uring beyond); nbdcopy, a \
process for each client, those over NBD with TLS, which are in order and of the whole disk; a client of pagefold's own, on rust-vmm's frontend, those to vhost-user-blk, a queue for each client. \
As root, loop devices over a file in tmpfs and over a file of pagefold, \
and the kernel's zram if /dev/zram0 is not set up. \
Subjects take turns, for each round; a figure is the median of the rounds. The base is an image with \
LZ4 in the page cache.")]
pub(crate) struct Args {
    /// Size of each disk in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    mib: u64,
    /// Measured seconds of each run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds of each run before it is measured
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Number of rounds
    #[arg(long, default_value_t = 3, value_parser = crate::count)]
    rounds: usize,
    /// Only subjects and cases whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Directory with the TLS certificates of a server on this machine, under the names that qemu uses
    /// [default: those cases are skipped]
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pagefold: Option<PathBuf>,
    /// Directory in tmpfs for the files of peers
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: PathBuf,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

const MIB: f64 = (1 << 20) as f64;

/// Processes that map a base, and what each of them touches.
const PROCESSES: usize = 100;
const MAPPED_BYTES: u64 = 64 << 20;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let seconds = |value| Duration::try_from_secs_f64(value).context("not a number of seconds");
    let times = Times { warm: seconds(args.warm_up)?, measured: seconds(args.seconds)? };
    let setup = Setup::new(pagefold(args.pagefold.as_deref())?, args.mib, &args.tmpfs, args.tls_certificates.clone())?;
    let mut out = Output::new("ways", args.json, Rounds::Median);
    let is_wanted = |name: &str| name.contains(&args.only);

    let mut running = Vec::new();
    for (name, subject) in SUBJECTS.into_iter().filter(|(name, _)| is_wanted(name)) {
        match setup.start(subject) {
            Ok(disk) => running.push((name, disk)),
            Err(error) => out.skip(name, error),
        }
    }
    for round in 0..args.rounds {
        for case in Case::all() {
            for (name, disk) in &running {
                match disk.run(&setup, case, times, round as u64) {
                    Ok(Measured { rate, p99_us }) => {
                        out.put_of(name, &case.name(), "rate", rate, "requests/s");
                        out.put_of(name, &case.name(), "p99", p99_us, "us");
                    }
                    Err(error) => out.skip(&format!("{name}/{}", case.name()), error),
                }
            }
        }
    }
    drop(running);
    if is_wanted("file") {
        let done = first_byte(&setup, args.rounds, &mut out);
        done.unwrap_or_else(|error| out.skip("first-byte/file", error));
        let done = base(&setup, &mut out);
        done.unwrap_or_else(|error| out.skip("base/file", error));
    }
    Ok(())
}

/// Measures the time from the command to fork a disk to the first byte of the fork's file.
fn first_byte(setup: &Setup, rounds: usize, out: &mut Output) -> anyhow::Result<()> {
    let disk = setup.start(Subject::File)?;
    let mut control = disk.control()?;
    let mut times_ms = Vec::new();
    for number in 0..rounds * 20 {
        let name = format!("fork-{number}");
        let start = Instant::now();
        control.fork(servers::NAME, &name)?;
        files::read_page(&disk.folder().join(&name), 0)?;
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    out.put("first-byte/file", "time", median(&times_ms), "ms");
    Ok(())
}

/// Measures the file of a base: reads of pages that are in no cache, and reads in order.
fn base(setup: &Setup, out: &mut Output) -> anyhow::Result<()> {
    let served = setup.start_base()?;
    let touches = files::first_touches(&served.path)?;
    out.put("base/file", "first touch, p50", touches.at(0.5) / 1e3, "us");
    out.put("base/file", "first touch, p99", touches.at(0.99) / 1e3, "us");
    let gigabytes = files::in_order(&served.path, served.process())?;
    out.put("base/file", "in order, for each second of processor time", gigabytes, "GB");
    let mapped = mapped::measure(&served.path, PROCESSES, setup.size_bytes().min(MAPPED_BYTES) as usize)?;
    out.put("base/file", "page cache of 100 processes", mapped.shared_bytes / MIB, "MiB");
    out.put("base/file", "further memory of each of them", mapped.each_bytes / MIB, "MiB");
    Ok(())
}
