//! Forks as a client sees them: from the request on the control socket to the first byte, and the
//! server's memory.

use std::{os::unix::fs::FileExt, path::Path, thread, time::Duration};

use anyhow::ensure;
use pagefold_codec::PAGE_SIZE;
use pagefold_report::{Latencies, Output};

use super::{
    args::Args,
    base::BaseFiles,
    idle::{Times, warm},
};
use crate::{
    client::{Control, Nbd},
    load::Random,
    server::Server,
};

/// The base's export.
pub(super) const BASE: &str = "base";

/// How long a server stays idle before its memory is read.
pub(super) const QUIET: Duration = Duration::from_secs(2);

/// Starts a server of the packed base and fills its cache.
pub(super) fn serve(pagefold: &Path, base: &BaseFiles, options: &[String]) -> anyhow::Result<(Server, Control)> {
    let image = base.packed().to_string_lossy().into_owned();
    let args: Vec<&str> = options.iter().chain([&image]).map(String::as_str).collect();
    let server = Server::pagefold(pagefold, &args)?;
    let control = server.control()?;
    let mut client = Nbd::connect(&server.socket(), BASE)?;
    warm(base.len_bytes / PAGE_SIZE as u64, |offset, page| client.read(offset, page))?;
    thread::sleep(QUIET);
    Ok((server, control))
}

/// Connections to the base before forks exist, for comparison with the forks' first reads.
const CONNECTIONS: usize = 1000;

pub(super) fn run(output: &mut Output, pagefold: &Path, base: &BaseFiles, args: &Args) -> anyhow::Result<()> {
    let forks = args.forks;
    let case = format!("idle/socket/{forks}");
    let (server, mut control) = serve(pagefold, base, &args.servers.serve)?;
    let (mut random, raw) = (Random::new(1), base.raw_file()?);
    let (mut page, mut expected) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let (mut times, mut commands) = (Times::new(forks), Latencies::new());
    let mut reads = Latencies::new();
    for _ in 0..CONNECTIONS {
        let offset = random.below(base.len_bytes / PAGE_SIZE as u64) * PAGE_SIZE as u64;
        reads.time(|| Nbd::connect(&server.socket(), BASE)?.read(offset, &mut page))??;
    }
    let resident_before = server.anonymous_bytes()?;
    let spent_before = control.figure("spent_bytes")?;
    for number in 0..forks {
        let offset = random.below(base.len_bytes / PAGE_SIZE as u64) * PAGE_SIZE as u64;
        let name = format!("fork-{number}");
        times.time(|| {
            commands.time(|| control.fork(BASE, &name))??;
            Nbd::connect(&server.socket(), &name)?.read(offset, &mut page)
        })??;
        raw.read_exact_at(&mut expected, offset)?;
        ensure!(page == expected, "{name} differs from its base at {offset}");
    }
    times.put(output, None, &case);
    // The command's part of the time, and the time of a connection and a read without a command.
    for (name, times) in [("command", &commands), ("without_command", &reads)] {
        output.put(&case, &format!("{name}_p50_us"), times.at(0.5) / 1e3, "us");
        output.put(&case, &format!("{name}_p99_us"), times.at(0.99) / 1e3, "us");
    }
    thread::sleep(QUIET);
    let spent = control.figure("spent_bytes")? - spent_before;
    let resident = server.anonymous_bytes()? - resident_before;
    for (name, bytes) in [("spent", spent), ("resident", resident)] {
        let each = bytes / forks as f64;
        output.put(&case, &format!("{name}_bytes_each"), each, "bytes");
        output.put(&case, &format!("{name}_mib"), bytes / 1024.0 / 1024.0, "MiB");
    }
    // Memory that the server had freed before the forks is resident already, so the larger counts.
    output.put(&case, "memory_bytes_each", spent.max(resident) / forks as f64, "bytes");
    for number in 0..forks {
        control.remove(&format!("fork-{number}"))?;
    }
    thread::sleep(QUIET);
    for (name, before, after) in [
        ("spent", spent_before, control.figure("spent_bytes")?),
        ("resident", resident_before, server.anonymous_bytes()?),
    ] {
        output.put(&case, &format!("{name}_after_drop_over_before"), after / before, "x");
    }
    Ok(())
}
