//! `pagefold-bench locks`: the entry-lock strategies under the two loads on which zram based its
//! choice (May 2014, "zram: remove global tb_lock with fine grain lock").
//!
//! The first load is iozone's `-t 4 -R -r 16K -s 200M` on a disk of 1 GiB: four threads, each with
//! its own 200 MiB, and eleven patterns. The second load contends for entries: four jobs that each
//! cover a whole 10 MiB disk in requests of 32 KiB, many times.
//!
//! Five columns are the locks compared there, in the small store of `pagefold-published`: they
//! differ only in the lock. The sixth, `hazard`, is the product's store, which also differs in its
//! allocator, streams, table and counters (docs/locks.md).

use std::{path::PathBuf, sync::Arc};

use anyhow::ensure;
use pagefold_codec::{Codec, PAGE_SIZE, by_name};
use pagefold_kinds::{Pages, gather};
use pagefold_published::{
    Store, StoreConfig,
    strategy::{BitSpin, Cas, EntryLock, RwLock, Spin, TableRwLock},
};
use pagefold_report::{Output, Rounds};

use crate::{
    load::{Device, Done, Random, Worker, pass},
    product::{self, Product},
};

/// Options of `pagefold-bench locks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files whose pages are written [default: heaps of programs that the bench starts]
    #[arg(long, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Number of threads
    #[arg(long, default_value = "4", value_parser = crate::count)]
    threads: usize,
    /// MiB per thread in the first load
    #[arg(long, default_value = "200", value_parser = crate::count)]
    mib: usize,
    /// KiB per request in the first load
    #[arg(long, default_value = "16", value_parser = crate::count)]
    record_kib: usize,
    /// Passes of each job over the disk in the second load (3000 in the source)
    #[arg(long, default_value = "20", value_parser = crate::count)]
    loops: usize,
    /// Number of rounds; each figure is from the fastest one
    #[arg(long, default_value = "3", value_parser = crate::count)]
    rounds: usize,
    /// Name of the codec
    #[arg(long, default_value = "lz4")]
    codec: String,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Pages of the contended disk, and of each of its requests.
const CONTENDED_PAGES: usize = (10 << 20) / PAGE_SIZE;
const CONTENDED_REQUEST: usize = (32 << 10) / PAGE_SIZE;

/// iozone's default stride, in records.
const STRIDE: u64 = 17;

#[derive(Clone, Copy)]
struct Pattern {
    name: &'static str,
    order: Order,
    mode: Mode,
}

#[derive(Clone, Copy)]
enum Order {
    Forward,
    Backward,
    Stride,
    Random,
}

#[derive(Clone, Copy)]
enum Mode {
    Read,
    Write,
    /// Even threads read, odd threads write.
    ByThread,
    /// Each request reads or writes at random.
    ByRequest,
}

const fn pattern(name: &'static str, order: Order, mode: Mode) -> Pattern {
    Pattern { name, order, mode }
}

const IOZONE: [Pattern; 11] = [
    pattern("initial-write", Order::Forward, Mode::Write),
    pattern("rewrite", Order::Forward, Mode::Write),
    pattern("read", Order::Forward, Mode::Read),
    pattern("re-read", Order::Forward, Mode::Read),
    pattern("reverse-read", Order::Backward, Mode::Read),
    pattern("stride-read", Order::Stride, Mode::Read),
    pattern("random-read", Order::Random, Mode::Read),
    pattern("mixed", Order::Random, Mode::ByThread),
    pattern("random-write", Order::Random, Mode::Write),
    pattern("pwrite", Order::Forward, Mode::Write),
    pattern("pread", Order::Forward, Mode::Read),
];

const CONTENDED: [Pattern; 4] = [
    pattern("contended-seq-write", Order::Forward, Mode::Write),
    pattern("contended-seq-read", Order::Forward, Mode::Read),
    pattern("contended-seq-rw", Order::Forward, Mode::ByRequest),
    pattern("contended-rand-rw", Order::Random, Mode::ByRequest),
];

/// Makes an empty store with the given number of slots.
type Make = fn(u64, Arc<dyn Codec>) -> anyhow::Result<Box<dyn Device>>;

/// A strategy behind a common interface.
struct Subject {
    name: &'static str,
    entry_bytes: usize,
    make: Make,
}

fn subject<L: EntryLock>() -> Subject {
    Subject {
        name: L::NAME,
        entry_bytes: L::ENTRY_BYTES,
        make: |slots, codec| Ok(Box::new(Store::<L>::new(StoreConfig { codec, ..StoreConfig::new(slots) })?)),
    }
}

/// Returns the product's store.
fn product() -> Subject {
    Subject {
        name: "hazard",
        entry_bytes: product::ENTRY_BYTES,
        make: |slots, codec| Ok(Box::new(Product::new(slots, codec)?)),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let record = args.record_kib * 1024 / PAGE_SIZE;
    ensure!(args.record_kib.is_multiple_of(4), "{} KiB are not whole pages", args.record_kib);
    let subjects = [
        subject::<TableRwLock>(),
        subject::<Cas>(),
        subject::<Spin>(),
        subject::<RwLock>(),
        subject::<BitSpin>(),
        product(),
    ];
    // Few pages, which stay in the CPU caches, so that entries dominate and not memory.
    let data = gather(&args.data, 1024)?;
    let patterns: Vec<Pattern> = IOZONE.into_iter().chain(CONTENDED).collect();
    let own = (args.mib << 20) / PAGE_SIZE / record * record;
    let mut output = Output::new("locks", args.json, Rounds::Best);
    for data in &data {
        for subject in &subjects {
            output.put_of(subject.name, &data.name, "bytes_per_entry", subject.entry_bytes as f64, "bytes");
        }
        for round in 0..args.rounds {
            let disks = |pages: usize| {
                let codec = by_name(&args.codec)?;
                let make = |subject: &Subject| (subject.make)(pages as u64, Arc::clone(&codec));
                subjects.iter().map(make).collect::<anyhow::Result<Vec<_>>>()
            };
            // Strategies take turns pattern by pattern. Each round starts with a different one.
            let mut in_turn = |devices: &[Box<dyn Device>], pattern: usize, range: &(dyn Fn(usize) -> Range + Sync)| {
                for turn in 0..subjects.len() {
                    let column = (round + turn) % subjects.len();
                    let done = pass(&*devices[column], args.threads, &|thread: usize, worker: &mut dyn Worker| {
                        requests(patterns[pattern], range(thread), thread, &data.pages, worker)
                    })?;
                    let (name, kib) = (patterns[pattern].name, range(0).request * PAGE_SIZE / 1024);
                    let case = format!("{}/{name}/{kib}k/{}", data.name, args.threads);
                    for (metric, value) in [("read_mb_s", done.read_mb_s()), ("write_mb_s", done.write_mb_s())] {
                        if value > 0.0 {
                            output.put_of(subjects[column].name, &case, metric, value, "MB/s");
                        }
                    }
                }
                anyhow::Ok(())
            };
            let devices = disks((1usize << 30).max(own * PAGE_SIZE * args.threads) / PAGE_SIZE)?;
            for pattern in 0..IOZONE.len() {
                let range = |thread| Range { first: (thread * own) as u64, pages: own, request: record, loops: 1 };
                in_turn(&devices, pattern, &range)?;
            }
            drop(devices);
            let devices = disks(CONTENDED_PAGES)?;
            for pattern in IOZONE.len()..patterns.len() {
                let range =
                    |_| Range { first: 0, pages: CONTENDED_PAGES, request: CONTENDED_REQUEST, loops: args.loops };
                in_turn(&devices, pattern, &range)?;
            }
        }
    }
    Ok(())
}

/// A thread's slots, the pages per request, and how often it covers the slots.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    pages: usize,
    request: usize,
    loops: usize,
}

fn requests(
    pattern: Pattern,
    range: Range,
    thread: usize,
    pages: &Pages,
    worker: &mut dyn Worker,
) -> anyhow::Result<Done> {
    let Range { first, pages: count, request, loops } = range;
    let mut random = Random::new(thread as u64 + 1);
    let mut buffer = Pages::new(request);
    let mut done = Done::default();
    let records = (count / request) as u64;
    for turn in 0..loops {
        for number in 0..records {
            let record = match pattern.order {
                Order::Forward => number,
                Order::Backward => records - 1 - number,
                Order::Stride => {
                    // Each record once: column by column through a matrix with rows of `STRIDE`.
                    let rows = records / STRIDE;
                    if number < rows * STRIDE { number % rows * STRIDE + number / rows } else { number }
                }
                Order::Random => random.below(records),
            };
            let writes = match pattern.mode {
                Mode::Read => false,
                Mode::Write => true,
                Mode::ByThread => thread % 2 == 1,
                Mode::ByRequest => random.next() >> 63 == 0,
            };
            let slot = first + record * request as u64;
            if writes {
                let groups = pages.len() / request;
                let from = (record as usize + turn + thread) % groups * request;
                worker.write(slot, &pages[from..from + request])?;
                done.written_pages += request as u64;
            } else {
                worker.read(slot, buffer.as_mut())?;
                done.read_pages += request as u64;
            }
        }
    }
    Ok(done)
}
