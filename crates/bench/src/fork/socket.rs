//! Forks as a client sees them: from the request on the control socket to the first byte, and the server's memory.

use std::{os::unix::fs::FileExt, path::Path, thread, time::Duration};

use anyhow::ensure;
use pagefold_codec::PAGE_SIZE;

use super::{
    base::BaseFiles,
    client::{Control, Nbd},
    idle::{IDLE_BYTES, Times, warm},
};
use crate::{
    latency::Latencies,
    load::Random,
    server::Server,
    verdict::{Output, Target::AtMost},
};

/// The base's export.
pub(super) const BASE: &str = "base";

/// What may stay of the memory of forks that are gone.
const LEFT_SHARE: f64 = 0.02;

/// How long a server is left alone before its memory is looked at.
pub(super) const QUIET: Duration = Duration::from_secs(2);

/// A server of the packed base, whose cache is full.
pub(super) fn serve(pagefold: &Path, base: &BaseFiles) -> anyhow::Result<(Server, Control)> {
    let server = Server::pagefold(pagefold, &[&base.packed().to_string_lossy()])?;
    let control = Control::connect(&server.folder().join("control.sock"))?;
    let mut client = Nbd::connect(&server.socket(), BASE)?;
    warm(base.len_bytes / PAGE_SIZE as u64, |offset, page| client.read(offset, page))?;
    thread::sleep(QUIET);
    Ok((server, control))
}

pub(super) fn run(output: &mut Output, pagefold: &Path, base: &BaseFiles, forks: usize) -> anyhow::Result<()> {
    let case = format!("idle/socket/{forks}");
    let (server, mut control) = serve(pagefold, base)?;
    let (mut random, raw) = (Random::new(1), base.raw_file()?);
    let (mut page, mut expected) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let (mut times, mut commands) = (Times::new(forks), Latencies::new());
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
        ensure!(page == expected, "{name} has something else than its base at {offset}");
    }
    times.judge(output, &case);
    for (metric, share) in [("command_p50_us", 0.5), ("command_p99_us", 0.99)] {
        output.put(&case, metric, commands.at(share) / 1e3, "us");
    }
    thread::sleep(QUIET);
    let spent = control.figure("spent_bytes")? - spent_before;
    let resident = server.anonymous_bytes()? - resident_before;
    for (name, bytes) in [("spent", spent), ("resident", resident)] {
        let each = bytes / forks as f64;
        output.judge(&case, &format!("{name}_bytes_each"), each, "bytes", AtMost(IDLE_BYTES));
        output.put(&case, &format!("{name}_mib"), bytes / 1024.0 / 1024.0, "MiB");
    }
    for number in 0..forks {
        control.remove(&format!("fork-{number}"))?;
    }
    thread::sleep(QUIET);
    for (name, before, after) in [
        ("spent", spent_before, control.figure("spent_bytes")?),
        ("resident", resident_before, server.anonymous_bytes()?),
    ] {
        output.judge(&case, &format!("{name}_after_drop_over_before"), after / before, "x", AtMost(1.0 + LEFT_SHARE));
    }
    Ok(())
}
