//! Forks made through the library: time to the first byte, memory, and what remains after they are
//! dropped.

use std::{os::unix::fs::FileExt, time::Instant};

use anyhow::ensure;
use pagefold_codec::{PAGE_SIZE, Page};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_report::{Latencies, Output};

use super::base::BaseFiles;
use crate::{load::Random, memory::Memory};

/// Number of first and of last forks whose times are separate figures.
pub(super) const TIMED: usize = 100;

pub(super) fn run(output: &mut Output, base: &BaseFiles, forks: usize) -> anyhow::Result<()> {
    let case = format!("idle/library/{forks}");
    let pool = Pool::new(PoolConfig::default())?;
    let parent = RamDisk::over(&pool, base.open()?)?;
    let pages = base.len_bytes / PAGE_SIZE as u64;
    let (mut random, raw) = (Random::new(1), base.raw_file()?);
    let (mut page, mut expected) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    // The cache must be full before the forks are made.
    warm(pages, |offset, page| Ok(parent.read(offset, page)?))?;
    let mut times = Times::new(forks);
    let mut made = Vec::with_capacity(forks);
    let before = Memory::of(&pool)?;
    for _ in 0..forks {
        let offset = random.below(pages) * PAGE_SIZE as u64;
        let fork = times.time(|| {
            let fork = parent.fork()?;
            fork.read(offset, &mut page)?;
            anyhow::Ok(fork)
        })??;
        raw.read_exact_at(&mut expected, offset)?;
        ensure!(page == expected, "a fork differs from its base at {offset}");
        made.push(fork);
    }
    times.put(output, None, &case);
    for (name, bytes) in Memory::of(&pool)?.since(before) {
        let each = bytes / forks as f64;
        output.put(&case, &format!("{name}_bytes_each"), each, "bytes");
    }
    let start = Instant::now();
    drop(made);
    output.put(&case, "drop_us", start.elapsed().as_secs_f64() * 1e6 / forks as f64, "us");
    Memory::judge_after(output, &case, &pool, before)?;
    pool.check().map_err(anyhow::Error::msg)
}

/// Reads every page once, in random order, to fill the cache.
pub(super) fn warm(pages: u64, mut read: impl FnMut(u64, &mut Page) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut page = [0; PAGE_SIZE];
    Random::new(2).permutation(pages).iter().try_for_each(|slot| read(slot * PAGE_SIZE as u64, &mut page))
}

/// Times of successive forks: of all, of the first and of the last.
pub(super) struct Times {
    forks: usize,
    done: usize,
    first: Latencies,
    last: Latencies,
    all: Latencies,
}

impl Times {
    pub(super) fn new(forks: usize) -> Self {
        Self { forks, done: 0, first: Latencies::new(), last: Latencies::new(), all: Latencies::new() }
    }

    pub(super) fn time<T>(&mut self, fork: impl FnOnce() -> T) -> anyhow::Result<T> {
        let mut one = Latencies::new();
        let done = one.time(fork)?;
        if self.done < TIMED {
            self.first.add(&one);
        }
        if self.done + TIMED >= self.forks {
            self.last.add(&one);
        }
        self.all.add(&one);
        self.done += 1;
        Ok(done)
    }

    /// Returns all times, and those of the first and the last forks if no fork is in both groups.
    fn named(&self) -> impl Iterator<Item = (&'static str, &Latencies)> {
        let named = [("all", &self.all), ("first", &self.first), ("last", &self.last)];
        named.into_iter().take(if self.done < 2 * TIMED { 1 } else { 3 })
    }

    /// Outputs the times of a peer, or of pagefold.
    pub(super) fn put(&self, output: &mut Output, peer: Option<&str>, case: &str) {
        let subject = peer.unwrap_or("pagefold");
        for (name, times) in self.named() {
            for (metric, ns) in [("p50", times.at(0.5)), ("p99", times.at(0.99)), ("max", times.max_ns())] {
                output.put_of(subject, case, &format!("{name}_{metric}_us"), ns / 1e3, "us");
            }
        }
        if peer.is_none() && self.done >= 2 * TIMED {
            output.put(case, "last_p50_over_first", self.last.at(0.5) / self.first.at(0.5), "x");
        }
    }
}
