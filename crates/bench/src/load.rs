//! The load generator of the store's benches: threads that send page requests to a device and
//! measure the time.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use pagefold_codec::Page;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::machine::allowed_cpus;

/// A device that pages are written to and read from.
pub(crate) trait Device: Sync {
    /// Returns the access for thread `number` of a pass.
    fn worker(&self, number: usize) -> anyhow::Result<Box<dyn Worker + '_>>;
}

/// A device that reports its compressed bytes, and all memory that it spends.
pub(crate) trait Stored: Device {
    fn bytes(&self) -> anyhow::Result<(u64, u64)>;
}

/// One thread's access to a device.
pub(crate) trait Worker {
    /// Writes `pages` to consecutive slots starting at `slot`.
    fn write(&mut self, slot: u64, pages: &[Page]) -> anyhow::Result<()>;

    /// Reads `pages` from consecutive slots starting at `slot`.
    fn read(&mut self, slot: u64, pages: &mut [Page]) -> anyhow::Result<()>;
}

/// A device in this process whose slots any thread reads and writes page by page.
pub(crate) trait Slots: Sync {
    fn write_slot(&self, slot: u64, page: &Page) -> anyhow::Result<()>;
    fn read_slot(&self, slot: u64, page: &mut Page) -> anyhow::Result<()>;
}

impl<S: Slots> Device for S {
    fn worker(&self, _: usize) -> anyhow::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(self))
    }
}

impl<S: Slots> Worker for &S {
    fn write(&mut self, slot: u64, pages: &[Page]) -> anyhow::Result<()> {
        (slot..).zip(pages).try_for_each(|(slot, page)| self.write_slot(slot, page))
    }

    fn read(&mut self, slot: u64, pages: &mut [Page]) -> anyhow::Result<()> {
        (slot..).zip(pages).try_for_each(|(slot, page)| self.read_slot(slot, page))
    }
}

/// The work of a thread in one pass: its number and its access. Returns the pages that it moved.
pub(crate) type Job<'a> = dyn Fn(usize, &mut dyn Worker) -> anyhow::Result<Done> + Sync + 'a;

/// Pages moved, and the time taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) read_pages: u64,
    pub(crate) written_pages: u64,
    pub(crate) time: Duration,
}

impl Done {
    /// Makes the result of a thread that only wrote or only read.
    pub(crate) fn of(wrote: bool, pages: u64) -> Self {
        let (read_pages, written_pages) = if wrote { (0, pages) } else { (pages, 0) };
        Self { read_pages, written_pages, ..Self::default() }
    }

    /// Returns the speed for `pages` in MB/s (10⁶ bytes per second).
    fn speed(self, pages: u64) -> f64 {
        (pages * 4096) as f64 / self.time.as_secs_f64() / 1e6
    }

    pub(crate) fn read_mb_s(self) -> f64 {
        self.speed(self.read_pages)
    }

    pub(crate) fn write_mb_s(self) -> f64 {
        self.speed(self.written_pages)
    }

    pub(crate) fn mb_s(self) -> f64 {
        self.speed(self.read_pages + self.written_pages)
    }

    /// Returns the faster of two passes.
    pub(crate) fn best(self, other: Self) -> Self {
        if self.time.is_zero() || other.mb_s() > self.mb_s() { other } else { self }
    }
}

/// Runs `job` on `threads` threads, and times it.
pub(crate) fn pass(device: &dyn Device, threads: usize, job: &Job<'_>) -> anyhow::Result<Done> {
    let (done, time) =
        together(threads, |number| device.worker(number), |number, mut worker| job(number, &mut *worker))?;
    Ok(Done {
        read_pages: done.iter().map(|done| done.read_pages).sum(),
        written_pages: done.iter().map(|done| done.written_pages).sum(),
        time,
    })
}

/// Runs `work` on `threads` threads, each with what it makes by `ready` before the common start.
/// Returns the results, and the time from that start to the end of the last thread. Threads that can be
/// spread evenly over the CPUs are pinned: otherwise, two threads of a short pass often share a CPU.
pub(crate) fn together<S, R: Send>(
    threads: usize,
    ready: impl Fn(usize) -> anyhow::Result<S> + Sync,
    work: impl Fn(usize, S) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<(Vec<R>, Duration)> {
    if threads == 1 {
        let own = ready(0)?;
        let start = Instant::now();
        let done = work(0, own)?;
        return Ok((vec![done], start.elapsed()));
    }
    let are_ready = AtomicUsize::new(0);
    let cpus = allowed_cpus()?;
    let run = |number: usize| {
        let mut moved = Ok(());
        if threads.is_multiple_of(cpus.len()) {
            let mut cpu = CpuSet::new();
            cpu.set(cpus[number % cpus.len()]);
            moved = sched_setaffinity(None, &cpu);
        }
        let own = ready(number);
        // No thread sleeps before the start: waking takes as long as a hundred reads. One that failed
        // does not block the others.
        are_ready.fetch_add(1, SeqCst);
        while are_ready.load(SeqCst) < threads {
            thread::yield_now();
        }
        moved?;
        let start = Instant::now();
        let done = work(number, own?)?;
        anyhow::Ok((start, Instant::now(), done))
    };
    let done: Vec<(Instant, Instant, R)> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || run(number))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<_>>| {
            thread.join().map_err(|_| anyhow!("a thread of the load panicked"))?
        };
        threads.into_iter().map(join).collect::<anyhow::Result<_>>()
    })?;
    let first = done.iter().map(|&(start, ..)| start).min();
    let last = done.iter().map(|&(_, end, _)| end).max();
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    Ok((done.into_iter().map(|(.., done)| done).collect(), time))
}

/// A small random number generator (Marsaglia's xorshift64*), the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns the numbers below `end`, shuffled.
    pub(crate) fn permutation(&mut self, end: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..end).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.below(at as u64 + 1) as usize);
        }
        numbers
    }
}
