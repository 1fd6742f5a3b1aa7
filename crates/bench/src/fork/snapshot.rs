//! Snapshots and rollbacks: how long they take, and how long they stall a concurrent writer.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use pagefold_codec::PAGE_SIZE;
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_kinds::{Data, page_of};
use pagefold_report::{Latencies, Output};

use crate::{load::Random, machine::thread_cpu_time};

/// Longer writes are counted.
const BOUND_NS: u64 = 1_000_000;

/// Number of successive snapshots and of rollbacks, with a few writes between.
const MANY: usize = 1000;
const WRITES_BETWEEN: u64 = 16;

/// How long a thread writes while another acts.
const WRITING: Duration = Duration::from_secs(5);

/// The pause between two snapshots or rollbacks during concurrent writes.
const PAUSE: Duration = Duration::from_millis(1);

/// Snapshots kept during concurrent writes; older ones are dropped.
const KEPT: usize = 16;

pub(super) fn run(output: &mut Output, data: &Data, changed_bytes: u64, rounds: usize) -> anyhow::Result<()> {
    let pool = Pool::new(PoolConfig::default())?;
    let disk = RamDisk::new(&pool, changed_bytes)?;
    many(output, "snapshot/0-MiB", &disk, data)?;

    let case = format!("snapshot/{}-MiB", changed_bytes >> 20);
    let [mut snapshots, mut rollbacks, mut drops] = [(); 3].map(|()| Acts::new());
    for round in 0..rounds as u64 {
        let before = disk.fork()?;
        for slot in 0..changed_bytes / PAGE_SIZE as u64 {
            disk.write(slot * PAGE_SIZE as u64, page_of(data, slot * 7 + round))?;
        }
        let after = snapshots.time(|| disk.fork())??;
        rollbacks.time(|| disk.become_as(&before))??;
        if round + 1 == rounds as u64 {
            disk.become_as(&after)?;
        }
        drops.time(|| drop(after))?;
    }
    for (name, acts) in [("snapshot", &snapshots), ("rollback", &rollbacks)] {
        output.put(&case, &format!("{name}_max_us"), acts.times.max_ns() / 1e3, "us");
        output.put(&case, &format!("{name}_max_cpu_us"), acts.max_cpu_us, "us");
    }
    output.put(&case, "drop_max_us", drops.times.max_ns() / 1e3, "us");
    output.put(&case, "drop_max_cpu_us", drops.max_cpu_us, "us");
    many(output, &case, &disk, data)?;
    beside_a_writer(output, &case, &pool, disk, data)
}

/// Times of snapshots, rollbacks or drops, and the maximum CPU time of one, which excludes other
/// work on the machine.
struct Acts {
    times: Latencies,
    max_cpu_us: f64,
}

impl Acts {
    fn new() -> Self {
        Self { times: Latencies::new(), max_cpu_us: 0.0 }
    }

    fn time<T>(&mut self, act: impl FnOnce() -> T) -> anyhow::Result<T> {
        let start = thread_cpu_time();
        let done = self.times.time(act)?;
        self.max_cpu_us = self.max_cpu_us.max(thread_cpu_time().saturating_sub(start).as_secs_f64() * 1e6);
        Ok(done)
    }
}

/// Takes many snapshots and rollbacks of a disk with a few writes between.
fn many(output: &mut Output, case: &str, disk: &RamDisk, data: &Data) -> anyhow::Result<()> {
    let slots = disk.size_bytes() / PAGE_SIZE as u64;
    let (mut snapshots, mut rollbacks) = (Acts::new(), Acts::new());
    let mut random = Random::new(3);
    let mut kept = Vec::new();
    for _ in 0..MANY {
        for _ in 0..WRITES_BETWEEN {
            disk.write(random.below(slots) * PAGE_SIZE as u64, page_of(data, random.next()))?;
        }
        kept.push(snapshots.time(|| disk.fork())??);
    }
    for snapshot in kept.iter().rev() {
        rollbacks.time(|| disk.become_as(snapshot))??;
        for _ in 0..WRITES_BETWEEN {
            disk.write(random.below(slots) * PAGE_SIZE as u64, page_of(data, random.next()))?;
        }
    }
    for (name, Acts { times, max_cpu_us }) in [("snapshot", &snapshots), ("rollback", &rollbacks)] {
        output.put(case, &format!("{name}s_p50_us"), times.at(0.5) / 1e3, "us");
        output.put(case, &format!("{name}s_p99_us"), times.at(0.99) / 1e3, "us");
        output.put(case, &format!("{name}s_max_us"), times.max_ns() / 1e3, "us");
        output.put(case, &format!("{name}s_max_cpu_us"), *max_cpu_us, "us");
    }
    Ok(())
}

/// Measures the longest writes of one thread while another idles, takes snapshots, rolls back, and
/// drops a large fork.
fn beside_a_writer(output: &mut Output, case: &str, pool: &Pool, disk: RamDisk, data: &Data) -> anyhow::Result<()> {
    // The same pauses without work, so that only the work makes a difference.
    let quiet = stalls(&disk, data, &mut || Ok(()))?;
    let mut kept = VecDeque::new();
    let snapshots = stalls(&disk, data, &mut || {
        kept.push_back(disk.fork()?);
        if kept.len() > KEPT {
            kept.pop_front();
        }
        Ok(())
    })?;
    let rollbacks = stalls(&disk, data, &mut || Ok(disk.become_as(kept.back().ok_or_else(|| anyhow!("none"))?)?))?;
    drop(kept);
    let other = RamDisk::new(pool, disk.size_bytes())?;
    let mut large = Some(disk);
    let drops = stalls(&other, data, &mut || {
        drop(large.take());
        Ok(())
    })?;
    for (name, (times, acts)) in
        [("quiet", &quiet), ("snapshots", &snapshots), ("rollbacks", &rollbacks), ("drop", &drops)]
    {
        let case = format!("{case}/writer-beside-{name}");
        output.put(&case, "acts", *acts as f64, "times");
        output.put(&case, "write_p50_us", times.at(0.5) / 1e3, "us");
        output.put(&case, "write_p99_us", times.at(0.99) / 1e3, "us");
        output.put(&case, "write_p9999_us", times.at(0.9999) / 1e3, "us");
        output.put(&case, "write_max_us", times.max_ns() / 1e3, "us");
        output.put(&case, "writes_over_1_ms", times.longer_than(BOUND_NS) as f64, "writes");
        output.put(&case, "write_max_running_us", times.max_running_ns() / 1e3, "us");
    }
    Ok(())
}

/// Measures random writes for [`WRITING`] while this thread repeats `act`. Returns their times and
/// the number of repetitions.
fn stalls(
    disk: &RamDisk,
    data: &Data,
    act: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<(Latencies, u64)> {
    let slots = disk.size_bytes() / PAGE_SIZE as u64;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut times, mut random) = (Latencies::new(), Random::new(9));
            while !stop.load(Relaxed) {
                let (slot, page) = (random.below(slots), page_of(data, random.next()));
                times.time(|| disk.write(slot * PAGE_SIZE as u64, page))??;
            }
            anyhow::Ok(times)
        });
        let start = Instant::now();
        let mut acts = 0;
        let mut done = Ok(());
        while done.is_ok() && start.elapsed() < WRITING {
            done = act();
            acts += 1;
            thread::sleep(PAUSE);
        }
        stop.store(true, Relaxed);
        let times = writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        done?;
        ensure!(times.max_ns() > 0.0, "nothing was written");
        Ok((times, acts))
    })
}
