//! The load generator of the store's benches: threads that send page requests to a device and the
//! time they take.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use pagefold_codec::Page;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::machine::allowed_cpus;

/// Something that pages are written to and read from.
pub(crate) trait Device: Sync {
    /// The access of thread `number` of a pass.
    fn worker(&self, number: usize) -> anyhow::Result<Box<dyn Worker + '_>>;
}

/// One thread's access to a device.
pub(crate) trait Worker {
    /// Writes `pages` to the slots from `slot` on.
    fn write(&mut self, slot: u64, pages: &[Page]) -> anyhow::Result<()>;

    /// Fills `pages` from the slots from `slot` on.
    fn read(&mut self, slot: u64, pages: &mut [Page]) -> anyhow::Result<()>;
}

/// A device in this process, whose slots any thread writes and reads page by page.
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

/// What one thread does in one pass.
pub(crate) trait Job: Sync {
    /// Runs thread `number`'s part and returns the pages it has read and written.
    fn run(&self, number: usize, worker: &mut dyn Worker) -> anyhow::Result<Done>;
}

impl<F: Fn(usize, &mut dyn Worker) -> anyhow::Result<Done> + Sync> Job for F {
    fn run(&self, number: usize, worker: &mut dyn Worker) -> anyhow::Result<Done> {
        self(number, worker)
    }
}

/// Pages that were moved, and in what time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) read_pages: u64,
    pub(crate) written_pages: u64,
    pub(crate) time: Duration,
}

impl Done {
    /// MB (10⁶ bytes) of `pages` a second.
    fn speed(self, pages: u64) -> f64 {
        (pages * 4096) as f64 / self.time.as_secs_f64() / 1e6
    }

    pub(crate) fn read_mb_s(self) -> f64 {
        self.speed(self.read_pages)
    }

    pub(crate) fn write_mb_s(self) -> f64 {
        self.speed(self.written_pages)
    }

    /// The faster of two passes.
    pub(crate) fn best(self, other: Self) -> Self {
        let faster = |done: Self| done.speed(done.read_pages + done.written_pages);
        if self.time.is_zero() || faster(other) > faster(self) { other } else { self }
    }
}

/// Runs `job` on `threads` threads at once, from a common start to the end of the last. Threads
/// that can be shared out evenly over the CPUs are, and stay there: left alone, two threads of a
/// short pass often share a CPU.
pub(crate) fn pass(device: &dyn Device, threads: usize, job: &dyn Job) -> anyhow::Result<Done> {
    if threads == 1 {
        let mut worker = device.worker(0)?;
        let start = Instant::now();
        let done = job.run(0, &mut *worker)?;
        return Ok(Done { time: start.elapsed(), ..done });
    }
    let ready = AtomicUsize::new(0);
    let cpus = allowed_cpus()?;
    let run = |number: usize| {
        let mut moved = Ok(());
        if threads.is_multiple_of(cpus.len()) {
            let mut cpu = CpuSet::new();
            cpu.set(cpus[number % cpus.len()]);
            moved = sched_setaffinity(None, &cpu);
        }
        let worker = device.worker(number);
        // Nobody sleeps until the start: waking up takes as long as a hundred reads.
        ready.fetch_add(1, SeqCst);
        while ready.load(SeqCst) < threads {
            thread::yield_now();
        }
        moved?;
        let start = Instant::now();
        let done = job.run(number, &mut *worker?)?;
        anyhow::Ok((start, Instant::now(), done))
    };
    let done: Vec<(Instant, Instant, Done)> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || run(number))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread of the load panicked"))?)
            .collect::<anyhow::Result<_>>()
    })?;
    let first = done.iter().map(|&(start, ..)| start).min();
    let last = done.iter().map(|&(_, end, _)| end).max();
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    Ok(Done {
        read_pages: done.iter().map(|(.., done)| done.read_pages).sum(),
        written_pages: done.iter().map(|(.., done)| done.written_pages).sum(),
        time,
    })
}

/// A small generator of random numbers (Marsaglia's xorshift64*), the same in every run.
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

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// The numbers from 0 to `end`, shuffled.
    pub(crate) fn permutation(&mut self, end: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..end).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.below(at as u64 + 1) as usize);
        }
        numbers
    }
}
