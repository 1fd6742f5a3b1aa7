//! Properties of the pages and the memory of a disk that contains them. They are written to a disk
//! in a pool like that of `pagefold serve`.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher},
    io::ErrorKind,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, ensure};
use foldhash::quality::FixedState;
use pagefold_codec::{PAGE_SIZE, Page, same_filled};
use pagefold_disk::{BlockDevice, DiskStats, Pool, PoolConfig, PoolStats, RamDisk};

use super::{
    clock::Deadline,
    estimate::{Estimate, Limits},
    input::Input,
    stratum::{Batch, Batches, Stratum},
};

/// Compressed bytes to store to measure the overhead in memory. More would give the same result.
const KEPT_BYTES: u64 = 256 << 20;

/// Relative difference of a disk that is written by other threads in another order: in 95 % of the
/// cases, in either direction.
const METHOD_ERROR: f64 = 0.02;

/// Least and most memory that a pool takes for an object, as a multiple of its bytes, and for the entry of
/// a page, in bytes. A pool of 20,000 pages took 1.00 for objects of 4096 bytes, 1.10 for those of 52, and 9.3
/// bytes for an entry. Objects of 8 bytes took 2.2, but next to 4096 bytes, which each may have, that is nothing.
const OBJECT_OVERHEAD: [f64; 2] = [1.0, 1.25];
const ENTRY_BYTES: [f64; 2] = [4.0, 32.0];

/// Size of each thread's disk: more than it can write.
const DISK_BYTES: u64 = 1 << 40;

/// Pages that each thread keeps for measuring the codecs.
const SAMPLE_PAGES: usize = 4096;

/// The counts of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    stratum: usize,
    number: usize,
    /// Whether all units of the batch were read.
    is_whole: bool,
    pages: u64,
    zero: u64,
    same: u64,
    incompressible: u64,
    compressed_bytes: u64,
}

/// Properties of the pages.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) total: u64,
    /// Number of pages with data, of those scanned for zeros, and how many of them were
    /// read.
    pub(super) data: Estimate,
    pub(super) sampled: u64,
    /// Zero pages; the next fields are same-filled pages, duplicates of an earlier page, and pages
    /// stored uncompressed.
    pub(super) zero: Estimate,
    pub(super) same: Estimate,
    pub(super) duplicate: Duplicates,
    pub(super) incompressible: Estimate,
    /// Bytes of their objects.
    pub(super) compressed_bytes: Estimate,
    /// Total memory of a disk that contains them.
    pub(super) memory_bytes: Estimate,
    /// A sample of the pages that are not same-filled.
    pub(super) sample: Vec<Page>,
    /// Units that could not be read or had disappeared.
    pub(super) lost_units: u64,
    /// Bytes of the objects of each stratum, for the likely size of its data, and of each whole
    /// batch, by stratum and number.
    pub(super) of_strata: Vec<Estimate>,
    pub(super) of_batches: HashMap<(usize, usize), f64>,
}

impl Pages {
    /// Returns the figures of a disk with only these pages.
    #[cfg(test)]
    pub(super) fn of_sample(sample: Vec<Page>) -> Self {
        let total = sample.len() as u64;
        let [none, all] = [0.0, total as f64].map(Estimate::exact);
        Self {
            total,
            data: all,
            sampled: total,
            zero: none,
            same: none,
            duplicate: Duplicates::default(),
            incompressible: none,
            compressed_bytes: all.scaled(1000.0),
            memory_bytes: all.scaled(1000.0),
            sample,
            lost_units: 0,
            of_strata: Vec::new(),
            of_batches: HashMap::new(),
        }
    }

    /// Returns whether all data was read.
    pub(super) fn is_complete(&self) -> bool {
        self.data.is_exact() && self.sampled as f64 >= self.data.value
    }

    /// Returns the likely number of pages that a disk stores, and of those that need an object.
    pub(super) fn stored(&self) -> f64 {
        (self.total as f64 - self.zero.value).max(0.0)
    }

    pub(super) fn objects(&self) -> f64 {
        (self.stored() - self.same.value).max(0.0)
    }
}

/// Pages that equal an earlier one: the likely number and its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Duplicates {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

struct Work<'a> {
    input: &'a Input,
    batches: Mutex<Batches<'a>>,
    pool: &'a Pool,
    end: Deadline<'a>,
    /// The pool's figures when enough was stored.
    full: Mutex<Option<PoolStats>>,
}

#[derive(Default)]
struct Done {
    counted: Vec<Counted>,
    hashes: Vec<u64>,
    sample: Vec<Page>,
    /// Number of pages from which the sample was chosen.
    offered: u64,
    lost_units: u64,
}

/// Reads pages until `end`, or until `most_bytes` were read.
pub(super) fn look_at(input: &Input, most_bytes: u64, end: Deadline<'_>, threads: usize) -> anyhow::Result<Pages> {
    let pool = Pool::new(PoolConfig::default()).context("a pool of pages")?;
    let empty = pool.stats();
    let stream_bytes = stream_bytes()?;
    let batches = Mutex::new(Batches::new(&input.strata, most_bytes));
    let work = Work { input, batches, pool: &pool, end, full: Mutex::default() };
    let done: Vec<(Done, RamDisk)> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || work.run(number as u64))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<anyhow::Result<_>>()
    })?;
    let full = work.full.into_inner().unwrap_or_else(PoisonError::into_inner);
    let kept = full.unwrap_or_else(|| pool.stats());
    let disk_is_whole = full.is_none();
    let mut all = Done::default();
    for (done, _disk) in done {
        all.counted.extend(done.counted);
        all.hashes.extend(done.hashes);
        all.sample.extend(done.sample);
        all.lost_units += done.lost_units;
    }
    let total = input.sampled_pages();
    let read: u64 = all.counted.iter().map(|counted| counted.pages).sum();
    let sampled: u64 = all.counted.iter().map(|counted| counted.of(&input.strata)).sum();
    ensure!(
        read > 0 || all.lost_units == 0,
        "{}: none of it could be read: run this as root, or as its owner",
        input.name
    );
    let of_strata = |figure: &dyn Fn(&Counted) -> u64, limits: Limits| -> Vec<Estimate> {
        let strata = 0..input.strata.len();
        strata.map(|number| of_stratum(number, &input.strata, &all.counted, figure, limits)).collect()
    };
    let whole = |of_strata: &[Estimate], limits: Limits| -> Estimate {
        let strata = of_strata.iter().zip(&input.strata);
        strata.map(|(figure, stratum)| figure.of_estimated(data_pages(stratum), limits)).sum()
    };
    let count = |figure: &dyn Fn(&Counted) -> u64| whole(&of_strata(figure, Limits::COUNT), Limits::COUNT);
    let objects_limits = Limits { least: 0.0, most: PAGE_SIZE as f64 };
    let bytes_of_strata = of_strata(&|counted| counted.compressed_bytes, objects_limits);
    let compressed_bytes = whole(&bytes_of_strata, objects_limits);
    let data: Estimate = input.strata.iter().map(data_pages).sum();
    // The zeros of strata that were scanned are counted already.
    let zeros = of_strata(&|counted| counted.zero, Limits::COUNT).into_iter().zip(&input.strata);
    let zero = zeros.filter(|(_, stratum)| !stratum.is_scanned()).map(|(zeros, _)| zeros).sum::<Estimate>();
    let zero = zero + Estimate::exact(total as f64) + data.scaled(-1.0);
    let stored = Estimate::exact(total as f64) + zero.scaled(-1.0);
    let same = count(&|counted| counted.same);
    let is_complete = data.is_exact() && sampled as f64 >= data.value;
    let memory_bytes = if is_complete && disk_is_whole {
        Estimate::exact((kept.spent_bytes + empty.stream_bytes - kept.stream_bytes) as f64)
    } else {
        memory(&kept, &empty, compressed_bytes, stored)
    };
    // As many streams as CPUs write to the pool, which depends on its clients. Zeros need none.
    let least = if compressed_bytes.value > 0.0 { stream_bytes } else { 0.0 };
    let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
    let most = if is_complete && least == 0.0 { 0.0 } else { stream_bytes * processors };
    let memory_bytes = memory_bytes + Estimate::unknown(1.0, Limits { least, most });
    let batches = all.counted.iter().filter(|counted| counted.is_whole);
    Ok(Pages {
        total,
        data,
        sampled,
        zero,
        same,
        duplicate: duplicates(all.hashes, stored.value - same.value, stored.high() - same.low(), is_complete),
        incompressible: count(&|counted| counted.incompressible),
        compressed_bytes,
        memory_bytes: memory_bytes.within(METHOD_ERROR, 0.0),
        sample: all.sample,
        lost_units: all.lost_units,
        of_strata: bytes_of_strata,
        of_batches: batches
            .map(|counted| ((counted.stratum, counted.number), counted.compressed_bytes as f64))
            .collect(),
    })
}

/// Returns the pages of a stratum that may have data: those of its files, or those that are not zero
/// if it was scanned.
fn data_pages(stratum: &Stratum) -> Estimate {
    if stratum.is_scanned() {
        stratum.data_bytes().scaled(1.0 / PAGE_SIZE as f64)
    } else {
        Estimate::exact(stratum.pages as f64)
    }
}

/// Estimates a figure of a stratum from those of its batches, for the likely size of its data.
fn of_stratum(
    number: usize,
    strata: &[Stratum],
    counted: &[Counted],
    figure: &dyn Fn(&Counted) -> u64,
    limits: Limits,
) -> Estimate {
    let size = data_pages(&strata[number]);
    let counted = counted.iter().filter(|counted| counted.stratum == number && counted.of(strata) > 0);
    let measured: Vec<_> = counted.map(|counted| (counted.of(strata) as f64, figure(counted) as f64)).collect();
    Estimate::of_whole(size.value, &measured, limits)
}

/// Returns the memory of a compression stream.
fn stream_bytes() -> anyhow::Result<f64> {
    let pool = Pool::new(PoolConfig::default()).context("a pool of pages")?;
    let empty = pool.stats();
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(b"one page");
    write(&RamDisk::new(&pool, PAGE_SIZE as u64).context("a disk in the pool")?, 0, &page, 0)?;
    Ok((pool.stats().stream_bytes - empty.stream_bytes) as f64)
}

/// Estimates a pool's memory without streams for this many bytes of objects, from the figures of a pool
/// with others.
fn memory(kept: &PoolStats, empty: &PoolStats, compressed_bytes: Estimate, stored: Estimate) -> Estimate {
    // Without an object or an entry, its overhead is only known to be within these limits.
    let per = |of_all: Estimate, bytes: u64, before: u64, of: u64, [least, most]: [f64; 2]| match of {
        0 => of_all.scaled(f64::midpoint(least, most)).within((most - least) / (most + least), 0.0),
        _ => of_all.scaled(bytes.saturating_sub(before) as f64 / of as f64),
    };
    let pages = kept.orig_data_size / PAGE_SIZE as u64;
    let objects =
        per(compressed_bytes, kept.mem_used_total, empty.mem_used_total, kept.compr_data_size, OBJECT_OVERHEAD);
    let entries = per(stored, kept.table_bytes, empty.table_bytes, pages, ENTRY_BYTES);
    let fixed = empty.mem_used_total + empty.table_bytes + empty.stream_bytes + kept.training_bytes;
    objects + entries + Estimate::exact(fixed as f64)
}

impl Work<'_> {
    fn run(&self, thread: u64) -> anyhow::Result<(Done, RamDisk)> {
        let mut done = Done::default();
        let disk = RamDisk::new(self.pool, DISK_BYTES).context("a disk in the pool")?;
        let hashes = FixedState::with_seed(0);
        let (mut bytes, mut at) = (Vec::new(), 0);
        let mut random = Random::new(thread + 1);
        while !self.end.is_over() {
            let Some(batch) = self.next() else { break };
            let (from, before) = (at, disk.stats());
            let Batch { stratum, number, units } = batch;
            let mut counted = Counted { stratum, number, is_whole: true, ..Counted::default() };
            for (place, unit) in units.into_iter().enumerate() {
                // A batch may be many files on slow storage.
                if place > 0 && self.end.is_over() {
                    counted.is_whole = false;
                    break;
                }
                match self.input.read(unit, &mut bytes, self.end) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        counted.is_whole = false;
                        break;
                    }
                    Err(_) => {
                        done.lost_units += 1;
                        continue;
                    }
                }
                bytes.resize(bytes.len().next_multiple_of(PAGE_SIZE), 0);
                let mut data_from = 0;
                for (number, page) in bytes.as_chunks::<PAGE_SIZE>().0.iter().enumerate() {
                    counted.pages += 1;
                    match same_filled(page) {
                        Some(0) => {
                            counted.zero += 1;
                            // Clients discard zeros or use WRITE_ZEROES for them.
                            write(&disk, at, &bytes[data_from..number * PAGE_SIZE], data_from)?;
                            data_from = (number + 1) * PAGE_SIZE;
                        }
                        Some(_) => counted.same += 1,
                        None => done.take(page, &hashes, &mut random),
                    }
                }
                write(&disk, at, &bytes[data_from..], data_from)?;
                at += bytes.len() as u64;
            }
            counted.add(&before, &disk.stats());
            done.counted.push(counted);
            if self.is_full() {
                disk.discard(from, at - from).context("emptying a disk in the pool")?;
            }
        }
        Ok((done, disk))
    }

    fn next(&self) -> Option<Batch> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// Returns whether enough is stored. Takes the figures the first time that is so.
    fn is_full(&self) -> bool {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        if full.is_none() {
            *full = Some(self.pool.stats()).filter(|stats| stats.compr_data_size >= KEPT_BYTES);
        }
        full.is_some()
    }
}

/// Writes the part of a unit that begins at `from` within it.
fn write(disk: &RamDisk, unit_at: u64, part: &[u8], from: usize) -> anyhow::Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    disk.write(unit_at + from as u64, part).context("writing to a disk in the pool")
}

impl Counted {
    /// Returns the number of pages to which figures are scaled: those with data, if the stratum was
    /// scanned.
    fn of(&self, strata: &[Stratum]) -> u64 {
        self.pages - if strata[self.stratum].is_scanned() { self.zero } else { 0 }
    }

    /// Adds the increase in a disk's figures.
    fn add(&mut self, before: &DiskStats, after: &DiskStats) {
        self.incompressible += after.huge_pages.saturating_sub(before.huge_pages);
        self.compressed_bytes += after.compr_data_size.saturating_sub(before.compr_data_size);
    }
}

/// A pseudo-random generator good enough to choose pages (xorshift).
pub(super) struct Random(u64);

impl Random {
    /// `seed` is not 0.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number less than `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * u128::from(end)) >> 64) as u64
    }
}

impl Done {
    /// Records a page's hash, and by chance the page itself (reservoir sampling): each page has the
    /// same probability.
    fn take(&mut self, page: &Page, hashes: &FixedState, random: &mut Random) {
        let mut hasher = hashes.build_hasher();
        hasher.write(page);
        self.hashes.push(hasher.finish());
        self.offered += 1;
        if self.sample.len() < SAMPLE_PAGES {
            self.sample.push(*page);
            return;
        }
        if let Some(place) = self.sample.get_mut(random.below(self.offered) as usize) {
            *place = *page;
        }
    }
}

/// Estimates how many of `total` pages equal an earlier one, from the hashes of some of them.
///
/// If all pages were read, which `is_complete` says, duplicates are counted. Otherwise, a sample of a fraction `q` misses
/// most pairs: it contains both pages of a pair with a probability of `q²`. The number of distinct
/// contents is estimated according to M. Charikar et al., "Towards Estimation Error Guarantees for
/// Distinct Values" (PODS 2000): each content seen once counts as `√(1 ÷ q)`. Its bounds are 1 and
/// `1 ÷ q`, which gives the interval.
fn duplicates(mut hashes: Vec<u64>, total: f64, most: f64, is_complete: bool) -> Duplicates {
    let read = hashes.len() as f64;
    hashes.sort_unstable();
    let (mut once, mut different) = (0.0, 0.0);
    for equal in hashes.chunk_by(|a, b| a == b) {
        different += 1.0;
        once += if equal.len() == 1 { 1.0 } else { 0.0 };
    }
    if is_complete {
        let exact = read - different;
        return Duplicates { value: exact, low: exact, high: exact };
    }
    let total = total.max(read);
    if read == 0.0 {
        return Duplicates { value: 0.0, low: 0.0, high: most };
    }
    let factor = total / read;
    let with = |stand_for: f64| (total - (different - once) - once * stand_for).clamp(0.0, total);
    Duplicates { value: with(factor.sqrt()), low: with(factor), high: with(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the estimate from every `step`th page, where each content occurs `times` times.
    fn sampled(pages: u64, times: u64, step: usize) -> Duplicates {
        let order = (0..pages).map(|page| page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20);
        let mut order: Vec<_> = order.zip(0..pages).collect();
        order.sort_unstable();
        let hashes = order.iter().step_by(step).map(|(_, page)| page / times).collect();
        duplicates(hashes, pages as f64, pages as f64, step == 1)
    }

    #[test]
    fn all_pages_are_counted() {
        assert_eq!(sampled(10_000, 1, 1), Duplicates::default());
        let exact = Duplicates { value: 7500.0, low: 7500.0, high: 7500.0 };
        assert_eq!(sampled(10_000, 4, 1), exact);
        assert_eq!(duplicates(Vec::new(), 0.0, 0.0, true), Duplicates::default());
        let unknown = Duplicates { value: 0.0, low: 0.0, high: 9.0 };
        assert_eq!(duplicates(Vec::new(), 5.0, 9.0, false), unknown);
    }

    #[test]
    fn the_interval_holds_the_truth() {
        for (times, step) in [(1, 10), (1, 100), (2, 10), (2, 100), (10, 10), (1000, 50), (100_000, 10)] {
            let found = sampled(100_000, times, step);
            let truth = (100_000 - 100_000 / times) as f64;
            assert!(found.low <= truth && truth <= found.high, "{times} {step} {found:?}");
            assert!(found.low <= found.value && found.value <= found.high, "{found:?}");
        }
    }
}
