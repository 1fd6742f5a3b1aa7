//! Servers that share a cache, each with forks that read the same data: how often each part is
//! fetched, and from where.

use std::{collections::HashMap, ops::Range, path::Path, thread};

use anyhow::{Context, ensure};
use pagefold_report::Output;
use tempfile::TempDir;

use super::{proxy::Passed, setting::Setting, subjects::Subject, touched};
use crate::{client::Nbd, load::Random};

/// Number of reads of each fork if a guest's reads are not known.
const READS: usize = 300;

/// Bytes of such a read.
const READ_BYTES: u64 = 16 << 10;

pub(super) fn run(setting: &Setting<'_>, out: &mut Output) -> anyhow::Result<()> {
    let Setting { args, away, disk, reads, scratch, .. } = *setting;
    let cache = TempDir::new_in(scratch)?;
    let reads = match reads {
        [] => some_reads(std::fs::metadata(&disk.raw)?.len()),
        reads => reads.to_vec(),
    };
    let names: Vec<_> = (0..args.forks).map(|fork| format!("job-{fork}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    away.passed();
    let start = std::time::Instant::now();
    let serve = || away.own(Subject::Registry, cache.path(), &names);
    thread::scope(|scope| {
        let servers: Vec<_> = (0..args.servers)
            .map(|_| {
                scope.spawn(|| {
                    let served = serve()?;
                    let socket = served.server().socket();
                    thread::scope(|scope| {
                        let forks: Vec<_> =
                            names.iter().map(|fork| scope.spawn(|| read(&socket, fork, &reads))).collect();
                        forks.into_iter().try_for_each(|fork| joined(fork.join()))
                    })
                })
            })
            .collect();
        servers.into_iter().try_for_each(|server| joined(server.join()))
    })?;
    let case = format!("fleet/{}x{}", args.servers, args.forks);
    out.put(&case, "time", start.elapsed().as_secs_f64(), "s");
    let passed = away.passed();
    out.put(&case, "requests", passed.len() as f64, "");
    let (bytes, once) = chunk_bytes(&passed);
    ensure!(once > 0, "no chunk was fetched");
    out.put(&case, "fetched_bytes", bytes as f64, "bytes");
    out.put(&case, "fetched_over_fetched_once", bytes as f64 / once as f64, "x");
    Ok(())
}

fn joined<T>(result: thread::Result<anyhow::Result<T>>) -> anyhow::Result<T> {
    result.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread failed")))
}

fn some_reads(size_bytes: u64) -> Vec<Range<u64>> {
    let mut random = Random::new(40);
    let at = |_| random.below((size_bytes / READ_BYTES).max(1)) * READ_BYTES;
    (0..READS).map(at).map(|at| at..(at + READ_BYTES).min(size_bytes)).collect()
}

fn read(socket: &Path, fork: &str, reads: &[Range<u64>]) -> anyhow::Result<()> {
    let mut client = Nbd::connect(socket, fork)?;
    let mut buf = Vec::new();
    for read in reads {
        buf.resize((read.end - read.start) as usize, 0);
        client.read(read.start, &mut buf).with_context(|| format!("{fork}: byte {}", read.start))?;
    }
    Ok(())
}

/// Returns the bytes of all fetched ranges of blobs, and the bytes if each range were fetched once.
/// The last range, if it is fetched several times, is the index, which each server reads; it does
/// not count.
fn chunk_bytes(passed: &[Passed]) -> (u64, u64) {
    let mut counts = HashMap::<_, u64>::new();
    let ranges = || passed.iter().filter_map(|one| Some((&one.path, one.range.clone()?)));
    for (path, range) in ranges() {
        *counts.entry((path, range.start)).or_default() += 1;
    }
    let last = ranges().map(|(path, range)| (range.end, path)).max();
    let is_index =
        |path: &String, range: &Range<u64>| last == Some((range.end, path)) && counts[&(path, range.start)] > 1;
    let chunks: Vec<_> = ranges().filter(|(path, range)| !is_index(path, range)).map(|(_, range)| range).collect();
    (chunks.iter().map(|range| range.end - range.start).sum(), touched::union_bytes(chunks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fetched_twice_counts_twice() {
        let passed = |range: Range<u64>| Passed { path: String::new(), range: Some(range), sent_bytes: 0, bytes: 0 };
        let index = || passed(100..120);
        assert_eq!(chunk_bytes(&[index(), passed(0..10), index(), passed(10..30), passed(5..10)]), (35, 30));
    }
}
