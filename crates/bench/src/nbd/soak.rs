//! `pagefold-bench soak`: verified requests at the memory limit while other disks are added and
//! removed, for any length of time.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use pagefold_codec::PAGE_SIZE;
use pagefold_kinds::{Content, Versions};
use pagefold_report::{Output, Rounds};

use super::{
    connection::Served,
    load::{self, Load, Shape, Times, read_through, write_pages},
};
use crate::{
    client::Nbd,
    load::Random,
    server::{Server, pagefold},
};

/// Options of `pagefold-bench soak`.
#[derive(clap::Args)]
#[command(after_help = "\
The bench writes half of a disk, and fills the other half with noise until it meets the memory \
limit. At the limit, four connections write and read random pages of the first half and compare \
every page that they read with what was accepted last. Other disks are added, written, compared and \
removed, one after another. It fails if a page is lost, if more than 1 % of the writes or 10 % of \
the disks are refused, if the limit is not met, or if the process takes more than BASE + 1.03 × the \
limit.")]
pub(crate) struct Args {
    /// Seconds to run
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Disk size in MiB
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    mib: u64,
    /// Memory limit in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    limit_mib: u64,
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pagefold: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The part of the limit that an added disk holds before compression.
const VISITOR_SHARE: u64 = 16;

/// The memory that the process may use beyond 1.03 times its limit: program, libraries, stacks.
const BASE_BYTES: f64 = 8.0 * 1024.0 * 1024.0;

/// Bytes of a write of noise.
const NOISE_BYTES: usize = 64 << 10;

/// Seconds of the requests between two looks at the memory.
const ROUND: Times = Times { warm: Duration::ZERO, measured: Duration::from_secs(1) };

const SHAPE: Shape = Shape { connections: 4, depth: 16 };

const DISK: &str = "soak";
const ROOM: &str = "room";

/// Disks that accepted all their pages, and disks that were refused room.
#[derive(Default)]
struct Visitors {
    written: u64,
    refused: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut output = Output::new("soak", args.json, Rounds::Once);
    let (size, limit) = (format!("{}M", args.mib), format!("{}M", args.limit_mib));
    let options = ["--name", DISK, "--size", &size, "--memory-limit", &limit];
    let server = Server::pagefold(&pagefold(args.pagefold.as_deref())?, &options)?;
    let socket = server.socket();
    let mut control = server.control()?;
    let (content, pages) = (Content::new(&[])?, args.mib << 7);
    let versions = Versions::new(pages);
    let served = Served { socket: &socket, export: DISK, content: &content, versions: &versions, may_refuse: true };
    let refused = write_pages(served, 0..pages)?;
    ensure!(refused == 0, "half of the disk does not fit the memory limit: choose a higher one");
    // The other disks have half of this one's room: overwriting needs some.
    let room = 2 * (args.limit_mib << 8) / VISITOR_SHARE;
    control.add(ROOM, room * PAGE_SIZE as u64)?;
    let of_room = Versions::new(room);
    let refused = write_pages(Served { export: ROOM, versions: &of_room, ..served }, 0..room)?;
    ensure!(refused == 0, "another disk does not fit the memory limit: choose a higher one");
    meet_limit(&socket, pages)?;
    control.remove(ROOM)?;

    let load = Load { pages: 1, writes: 60, span: 0..pages, hot: None };
    let most_bytes = (args.limit_mib << 20) as f64 * 1.03;
    let [mut rounds, mut accepted, mut refused, mut read] = [0; 4];
    let (mut worst_excess, mut last) = (f64::MIN, (0.0, 0.0));
    let (stop, deadline) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(args.seconds));
    let visitors = thread::scope(|scope| {
        let visitors = scope.spawn(|| visit(&server, &content, room / 2, &stop));
        let mut write = || {
            while Instant::now() < deadline && !visitors.is_finished() {
                rounds += 1;
                let measured = load::run(served, &load, SHAPE, rounds, ROUND)?;
                accepted += measured.writes.requests - measured.refused.min(measured.writes.requests);
                refused += measured.refused;
                read += measured.reads.requests;
                last = (server.rss_bytes()?, control.figure("spent_bytes")?);
                worst_excess = worst_excess.max(last.0 - most_bytes);
            }
            anyhow::Ok(())
        };
        let written = write();
        stop.store(true, Relaxed);
        let visitors = visitors.join().map_err(|_| anyhow!("the thread that changes disks panicked"))??;
        written.map(|()| visitors)
    })?;
    read_through(served, 0..pages)?;
    for (metric, value, unit) in [
        ("rounds", rounds as f64, "rounds"),
        ("writes_accepted_and_verified", accepted as f64, "writes"),
        ("writes_refused", refused as f64, "writes"),
        ("reads", read as f64, "reads"),
        ("disks_written_and_compared", visitors.written as f64, "disks"),
        ("disks_refused", visitors.refused as f64, "disks"),
        ("rss_bytes", last.0, "bytes"),
        ("spent_bytes", last.1, "bytes"),
        ("worst_rss_over_103_percent_of_limit", worst_excess, "bytes"),
        ("base_bytes", BASE_BYTES, "bytes"),
    ] {
        output.put_of("pagefold-default", "heap/randrw-verify/4k/4", metric, value, unit);
    }
    drop(output);
    ensure!(refused * 100 <= accepted, "{refused} writes were refused, {accepted} accepted");
    let Visitors { written, refused } = visitors;
    ensure!(refused * 10 <= written, "{refused} disks were refused their pages, {written} took them");
    ensure!(worst_excess <= BASE_BYTES, "the process took {worst_excess:.0} bytes more than 1.03 x its limit");
    Ok(())
}

/// Writes noise behind the first `pages` pages until a write is refused.
fn meet_limit(socket: &std::path::Path, pages: u64) -> anyhow::Result<()> {
    let (mut client, mut random) = (Nbd::connect(socket, DISK)?, Random::new(1));
    let (start, end) = (pages * PAGE_SIZE as u64, 2 * pages * PAGE_SIZE as u64);
    for at in (start..end).step_by(NOISE_BYTES) {
        let noise: Vec<u8> = (0..NOISE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        if client.write(at, &noise).is_err() {
            return Ok(());
        }
    }
    Err(anyhow!("the memory limit was not met: choose a lower one"))
}

/// Adds disks of `pages` pages, writes, compares and removes them, one after another.
fn visit(server: &Server, content: &Content, pages: u64, stop: &AtomicBool) -> anyhow::Result<Visitors> {
    let mut control = server.control()?;
    let (socket, mut visitors) = (server.socket(), Visitors::default());
    for generation in 1.. {
        if stop.load(Relaxed) {
            break;
        }
        let name = format!("visitor-{generation}");
        control.add(&name, pages * PAGE_SIZE as u64)?;
        // The pages of each disk have versions of their own.
        let versions = Versions::from(pages, generation * 1000);
        let served = Served { socket: &socket, export: &name, content, versions: &versions, may_refuse: true };
        if write_pages(served, 0..pages)? == 0 {
            read_through(served, 0..pages)?;
            visitors.written += 1;
        } else {
            visitors.refused += 1;
        }
        control.remove(&name)?;
    }
    Ok(visitors)
}
