//! `pagefold-bench remote`: disks in a registry, in a bucket and on a web server that are far away,
//! read by guests, compared with other ways to do that.

mod args;
mod deltas;
mod disk;
mod fleet;
mod guest;
mod proxy;
mod setting;
mod stores;
mod subjects;
mod touched;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pagefold_remote::Sum;
use tempfile::TempDir;

pub(crate) use self::args::Args;
use self::{
    disk::{Disk, Packing},
    guest::Guest,
    proxy::{Distance, Passed},
    setting::Setting,
    stores::Store,
    subjects::{Away, Subject, qcow2_path},
};
use pagefold_report::{Output, Rounds, median};

use crate::{machine, server::pagefold};

/// What was measured of one start.
struct Start {
    seconds: f64,
    requests: f64,
    bytes: f64,
}

impl Start {
    fn of(start: Instant, passed: &[Passed]) -> Self {
        Self {
            seconds: start.elapsed().as_secs_f64(),
            requests: passed.len() as f64,
            bytes: passed.iter().map(|one| one.bytes as f64).sum(),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.megabits > 0.0, "--megabits must be more than 0");
    let distance = Distance { delay: Duration::from_millis(args.delay_ms), bytes_a_second: args.megabits * 1e6 / 8.0 };
    let program = pagefold(args.pagefold.as_deref())?;
    let mut out = Output::new("remote", args.json, Rounds::Once);
    let scratch = TempDir::new_in(&args.scratch).with_context(|| args.scratch.display().to_string())?;
    let registry = match Store::registry(scratch.path()) {
        Ok(registry) => registry,
        Err(error) => {
            out.skip("remote", error);
            return Ok(());
        }
    };
    let s3 = match Store::s3(args.moto.as_deref(), scratch.path()) {
        Ok(s3) => Some(s3),
        Err(error) => {
            out.skip(Subject::S3.name(), error);
            None
        }
    };
    let stores = (&registry, s3.as_ref());

    let packing = Packing { pagefold: &program, codec: &args.codec, folder: scratch.path() };
    let disk = Disk::with_python(args.data.as_deref(), args.mib, &packing)?;
    if let Err(error) = disk.qcow2(&qcow2_path(scratch.path(), "python")) {
        out.skip(Subject::QemuHttp.name(), error);
    }
    put_sizes(&mut out, "python", &disk)?;
    let away = Away::new(&program, scratch.path(), "python", &disk, stores, distance)?;
    let can_guest = guest::is_possible().map_err(|error| out.skip("first-output", error)).is_ok();
    let reads = match can_guest {
        true => guest::reads(&disk.raw, Guest::python).context("what Python reads")?,
        false => Vec::new(),
    };
    let setting =
        Setting { args, away: &away, disk: &disk, reads: &reads, pagefold: &program, scratch: scratch.path() };
    if can_guest {
        if args.has_case("first-output") {
            record(args, "first-output", &away, Guest::python, &mut out);
            first_output(&setting, &mut out)?;
        }
        if args.has_case("metadata") {
            let files = Disk::with_files(args.files, &packing)?;
            put_sizes(&mut out, "files", &files)?;
            if let Err(error) = files.qcow2(&qcow2_path(scratch.path(), "files")) {
                out.skip("metadata/qemu-http", error);
            }
            let away = Away::new(&program, scratch.path(), "files", &files, stores, distance)?;
            record(args, "metadata", &away, |guest| guest.scan().map(drop), &mut out);
            metadata(&Setting { away: &away, disk: &files, ..setting }, &mut out)?;
        }
    }
    if args.has_case("fleet") {
        fleet::run(&setting, &mut out)?;
    }
    if args.has_case("push") || args.has_case("chain") {
        deltas::run(&setting, &mut out)?;
    }
    if args.has_case("sums") {
        sums(&setting, &mut out)?;
    }
    Ok(())
}

/// Stores a trace, if a subject needs it.
fn record(args: &Args, case: &str, away: &Away<'_>, work: impl FnOnce(&Guest) -> anyhow::Result<()>, out: &mut Output) {
    if args.subjects().any(|subject| subject == Subject::Traced) {
        match away.record(work) {
            Ok(bytes) => out.put(case, "trace_bytes", bytes as f64, "bytes"),
            Err(error) => out.skip(&format!("{case}/{}", Subject::Traced.name()), error),
        }
    }
}

fn put_sizes(out: &mut Output, name: &str, disk: &Disk) -> anyhow::Result<()> {
    out.put(name, "disk_bytes", std::fs::metadata(&disk.raw)?.len() as f64, "bytes");
    out.put(name, "packed_bytes", std::fs::metadata(&disk.packed)?.len() as f64, "bytes");
    Ok(())
}

/// Measures the time from the start of a server to the first output of Python in a guest, on a host
/// with an empty cache, and on one that has read the same before.
fn first_output(setting: &Setting<'_>, out: &mut Output) -> anyhow::Result<()> {
    let Setting { args, away, disk, reads, scratch, .. } = *setting;
    let touched = touched::bytes(&disk.packed, reads)? as f64;
    out.put("first-output", "touched_bytes", touched, "bytes");
    out.put("first-output", "reads", reads.len() as f64, "");
    for subject in args.subjects() {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let cache = TempDir::new_in(scratch)?;
            let run = || {
                away.passed();
                let start = Instant::now();
                let served = away.serve(subject, cache.path())?;
                let guest = Guest::start(&served.uri())?;
                guest.python()?;
                anyhow::Ok(Start::of(start, &away.passed()))
            };
            match run() {
                Ok(start) => cold.push(start),
                Err(error) => {
                    out.skip(&format!("first-output/{}", subject.name()), error);
                    break;
                }
            }
            if subject.is_own() {
                warm.push(run()?);
            }
        }
        if cold.is_empty() {
            continue;
        }
        put(out, subject, "first-output/cold", &cold);
        if matches!(subject, Subject::Registry | Subject::Traced) {
            let bytes = middle(&cold, |start| start.bytes);
            out.put(&subject.case("first-output/cold"), "time", middle(&cold, |start| start.seconds), "s");
            out.put(&subject.case("first-output/cold"), "fetched_over_touched", bytes / touched, "x");
        }
        if subject == Subject::Traced {
            let requests = middle(&cold, |start| start.requests);
            out.put(&subject.case("first-output/cold"), "requests", requests, "");
        }
        if subject.is_own() {
            put(out, subject, "first-output/warm", &warm);
            let requests = middle(&warm, |start| start.requests);
            out.put(&subject.case("first-output/warm"), "requests", requests, "");
        }
    }
    Ok(())
}

/// Measures a scan of all names and their metadata, on a host with an empty cache, and again by a
/// new guest on the same host.
fn metadata(setting: &Setting<'_>, out: &mut Output) -> anyhow::Result<()> {
    let Setting { args, away, scratch, .. } = *setting;
    for subject in args.subjects() {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let cache = TempDir::new_in(scratch)?;
            let mut run = || {
                away.passed();
                let mut start = Instant::now();
                let served = away.serve(subject, cache.path())?;
                for starts in [&mut cold, &mut warm] {
                    let guest = Guest::start(&served.uri())?;
                    let found = guest.scan()?;
                    ensure!(found >= args.files, "the guest finds {found} files");
                    starts.push(Start::of(start, &away.passed()));
                    drop(guest);
                    start = Instant::now();
                }
                anyhow::Ok(())
            };
            if let Err(error) = run() {
                out.skip(&format!("metadata/{}", subject.name()), error);
                break;
            }
        }
        if warm.is_empty() {
            continue;
        }
        put(out, subject, "metadata/cold", &cold);
        put(out, subject, "metadata/warm", &warm);
        let ratio = middle(&cold, |start| start.seconds) / middle(&warm, |start| start.seconds);
        if matches!(subject, Subject::Registry | Subject::Traced) {
            out.put(&subject.case("metadata"), "cold_over_warm", ratio, "x");
        } else {
            out.put_of(subject.name(), "metadata", "cold_over_warm", ratio, "x");
        }
    }
    Ok(())
}

/// Measures the share of checksums in the CPU time of a cold read of everything.
fn sums(setting: &Setting<'_>, out: &mut Output) -> anyhow::Result<()> {
    let Setting { away, disk, scratch, .. } = *setting;
    let cache = TempDir::new_in(scratch)?;
    // Without the requests of earlier cases.
    away.passed();
    let mut fetch = away.fetch(cache.path()).stdout(std::process::Stdio::null()).spawn()?;
    let start = Instant::now();
    let id = fetch.id();
    let mut processor = 0.0;
    let status = loop {
        // The time can still be read between the process's exit and the wait for it.
        processor = machine::cpu_seconds(id).unwrap_or(processor);
        match fetch.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.success(), "pagefold fetch failed: {status}");
    let bytes = std::fs::metadata(&disk.packed)?.len() as f64;
    let sums = bytes / bytes_a_second();
    out.put("sums", "time", seconds, "s");
    out.put("sums", "share_of_time", sums / seconds, "");
    out.put("sums", "share_of_processor_time", sums / processor, "");
    let passed: u64 = away.passed().iter().map(|one| one.bytes).sum();
    out.put("sums", "fetched_over_image", passed as f64 / bytes, "x");
    Ok(())
}

/// Returns how many bytes of chunks one thread checksums in a second.
fn bytes_a_second() -> f64 {
    let chunk = vec![7; 64 << 10];
    let start = Instant::now();
    let mut bytes = 0.0;
    while start.elapsed() < Duration::from_millis(200) {
        std::hint::black_box(Sum::of(std::hint::black_box(&chunk)));
        bytes += chunk.len() as f64;
    }
    bytes / start.elapsed().as_secs_f64()
}

fn middle(starts: &[Start], of: fn(&Start) -> f64) -> f64 {
    median(&starts.iter().map(of).collect::<Vec<_>>())
}

fn put(out: &mut Output, subject: Subject, case: &str, starts: &[Start]) {
    for (metric, of, unit) in [
        ("time", (|start| start.seconds) as fn(&Start) -> f64, "s"),
        ("requests", |start| start.requests, ""),
        ("fetched_bytes", |start| start.bytes, "bytes"),
    ] {
        out.put_of(subject.name(), case, metric, middle(starts, of), unit);
    }
}
