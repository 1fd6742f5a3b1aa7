//! Counts the requests of clients to exports, and their bytes, errors and times.
//!
//! ```text
//! client of an export ── Activity: its own counters, which no other client changes
//! export ── the activities of its clients, and the sum of those of clients that have left
//! all exports ── Latencies: one histogram for each operation, and what removed exports have done
//! ```
//!
//! A request costs two atomic additions to cache lines that only its client uses. The clock is read
//! for one request in [`SAMPLED`]. Sums never become smaller: a client's counts are added to its
//! export's sum once they can no longer change.

use std::{
    array,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// One request in this many is timed. Counting a request takes 46 instructions on average, next to
/// 195 if every request were timed.
pub const SAMPLED: u64 = 16;

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Data.
    Read,
    /// To store data.
    Write,
    /// To free the memory of a range.
    Discard,
    /// To fill a range with zeros.
    WriteZeroes,
    /// To make earlier changes durable.
    Flush,
    /// Something else, such as where data are.
    Other,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Discard, Self::WriteZeroes, Self::Flush, Self::Other];

    /// Returns its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::WriteZeroes => "write_zeroes",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// The requests of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Requests that were received.
    pub requests: u64,
    /// Requests that have failed.
    pub errors: u64,
    /// Bytes of those that have succeeded.
    pub bytes: u64,
    /// Requests whose time was measured.
    pub timed: u64,
    /// The sum of these times, in nanoseconds.
    pub timed_ns: u64,
}

/// The requests, by the number of the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllDone([Done; Operation::ALL.len()]);

impl AllDone {
    /// Returns the counts of an operation.
    pub fn of(&self, operation: Operation) -> Done {
        self.0[operation as usize]
    }

    /// Adds what others have done.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            sum.requests += more.requests;
            sum.errors += more.errors;
            sum.bytes += more.bytes;
            sum.timed += more.timed;
            sum.timed_ns += more.timed_ns;
        }
    }
}

/// A request that was begun, for [`Activity::end`].
#[derive(Clone, Copy, Debug)]
pub struct Started {
    operation: Operation,
    len_bytes: u64,
    /// When the request began, if its time is measured.
    at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    timed: AtomicU64,
    timed_ns: AtomicU64,
}

/// Counts of one client's requests, which any number of threads may add to.
#[derive(Debug)]
#[repr(align(64))] // a cache line is not shared with another client
pub struct Activity {
    operations: [Counters; Operation::ALL.len()],
    /// `None` for an export that is in no set.
    latencies: Option<Arc<Latencies>>,
}

impl Activity {
    pub(crate) fn new(latencies: Option<Arc<Latencies>>) -> Self {
        Self { operations: array::from_fn(|_| Counters::default()), latencies }
    }

    /// To be called once for each request, when it has been received.
    #[inline]
    pub fn begin(&self, operation: Operation, len_bytes: u64) -> Started {
        let number = self.operations[operation as usize].requests.fetch_add(1, Relaxed);
        let at = number.is_multiple_of(SAMPLED).then(Instant::now);
        Started { operation, len_bytes, at }
    }

    /// To be called for a request that has begun already and whose start the transport has not
    /// recorded. Its time is not measured.
    pub fn again(operation: Operation, len_bytes: u64) -> Started {
        Started { operation, len_bytes, at: None }
    }

    /// To be called once its reply exists, even if it has failed.
    #[inline]
    pub fn end(&self, started: Started, is_ok: bool) {
        let Started { operation, len_bytes, at } = started;
        let counters = &self.operations[operation as usize];
        if is_ok {
            counters.bytes.fetch_add(len_bytes, Relaxed);
        } else {
            counters.errors.fetch_add(1, Relaxed);
        }
        if let Some(at) = at {
            self.time(operation, at.elapsed());
        }
    }

    /// Counts a request that was refused before it began.
    pub fn refuse(&self, operation: Operation) {
        self.operations[operation as usize].requests.fetch_add(1, Relaxed);
        self.end(Self::again(operation, 0), false);
    }

    #[cold]
    fn time(&self, operation: Operation, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let counters = &self.operations[operation as usize];
        counters.timed.fetch_add(1, Relaxed);
        counters.timed_ns.fetch_add(ns, Relaxed);
        if let Some(latencies) = &self.latencies {
            latencies.0[operation as usize].add(ns);
        }
    }

    fn done(&self) -> AllDone {
        AllDone(array::from_fn(|number| {
            let Counters { requests, errors, bytes, timed, timed_ns } = &self.operations[number];
            Done {
                requests: requests.load(Relaxed),
                errors: errors.load(Relaxed),
                bytes: bytes.load(Relaxed),
                timed: timed.load(Relaxed),
                timed_ns: timed_ns.load(Relaxed),
            }
        }))
    }
}

/// The activities of present clients, and the sums of those that are gone.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    /// Each client has a reference to its own as long as it can change it.
    current: Vec<Arc<Activity>>,
    /// `None` for exports that never had a client, as most.
    past: Option<Box<AllDone>>,
}

impl Activities {
    /// Adds a client's counts.
    pub(crate) fn begin(&mut self, latencies: Option<Arc<Latencies>>) -> Arc<Activity> {
        self.fold();
        let activity = Arc::new(Activity::new(latencies));
        self.current.push(Arc::clone(&activity));
        activity
    }

    /// Adds all counts of another.
    pub(crate) fn add(&mut self, other: Self) {
        self.fold();
        if let Some(past) = other.past {
            self.past.get_or_insert_default().add(&past);
        }
        self.current.extend(other.current);
    }

    /// Adds the counts of clients that are gone to the sum, and drops their records.
    fn fold(&mut self) {
        let past = &mut self.past;
        self.current.retain_mut(|activity| match Arc::get_mut(activity) {
            Some(left) => {
                past.get_or_insert_default().add(&left.done());
                false
            }
            None => true,
        });
    }

    /// Returns what all clients have done.
    pub(crate) fn done(&mut self) -> AllDone {
        self.fold();
        let mut sum = self.past.as_deref().copied().unwrap_or_default();
        self.current.iter().for_each(|activity| sum.add(&activity.done()));
        sum
    }
}

/// Buckets for each power of two, so that a bucket's bounds differ by at most a quarter.
const PARTS: u32 = 4;
/// Times below 2^10 ns are in the first bucket, and those from 2^35 ns (34 s) on in the last one.
const LEAST_EXPONENT: u32 = 10;
const EXPONENTS: u32 = 25;
const BUCKETS: usize = (EXPONENTS * PARTS) as usize + 2;

/// The times of measured requests: a histogram for each operation.
#[derive(Debug)]
pub struct Latencies([Histogram; Operation::ALL.len()]);

impl Default for Latencies {
    fn default() -> Self {
        Self(array::from_fn(|_| Histogram::default()))
    }
}

impl Latencies {
    /// Returns the times of an operation.
    pub fn of(&self, operation: Operation) -> Times {
        self.0[operation as usize].times()
    }
}

/// Times in buckets whose widths grow with the times.
#[derive(Debug)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    fn add(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    fn times(&self) -> Times {
        let mut count = 0;
        let buckets = self.buckets.iter().enumerate().map(|(number, bucket)| {
            count += bucket.load(Relaxed);
            (end_of(number), count)
        });
        let buckets = buckets.collect();
        Times { buckets, sum: Duration::from_nanos(self.sum_ns.load(Relaxed)) }
    }
}

/// A histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// Upper bounds (exclusive) in ascending order, and the number of times below each. The last
    /// bucket has no bound.
    pub buckets: Vec<(Option<Duration>, u64)>,
    /// The sum of all times.
    pub sum: Duration,
}

fn bucket_of(ns: u64) -> usize {
    let exponent = ns.max(1).ilog2();
    let Some(octave) = exponent.checked_sub(LEAST_EXPONENT) else { return 0 };
    let part = ns >> (exponent - PARTS.ilog2()) & u64::from(PARTS - 1);
    // The part is less than [`PARTS`].
    (1 + octave as usize * PARTS as usize + part as usize).min(BUCKETS - 1)
}

fn end_of(number: usize) -> Option<Duration> {
    if number + 1 == BUCKETS {
        return None;
    }
    let (octave, part) = (number as u32 / PARTS, number as u32 % PARTS);
    let start_ns = 1_u64 << (LEAST_EXPONENT + octave);
    Some(Duration::from_nanos(start_ns + start_ns / u64::from(PARTS) * u64::from(part)))
}

/// The sums of removed exports.
#[derive(Debug, Default)]
pub(crate) struct Removed(Mutex<Activities>);

impl Removed {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Activities> {
        // A panic cannot leave the sums half changed: they are plain additions.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    #[test]
    fn each_time_is_below_the_end_of_its_bucket_and_not_below_the_one_before() {
        let times = (0..64).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power - 1, power, power + power / 4, power + power / 2, power | (power - 1)]
        });
        for ns in times {
            let number = bucket_of(ns);
            let time = Duration::from_nanos(ns);
            assert!(end_of(number).is_none_or(|end| time < end), "{ns}");
            let start = number.checked_sub(1).and_then(end_of);
            assert!(start.is_none_or(|start| time >= start), "{ns}");
            assert!(number > 0 || ns < 1024, "{ns}");
        }
        let ends: Vec<_> = (0..BUCKETS - 1).filter_map(end_of).collect();
        assert_eq!(ends.len(), BUCKETS - 1);
        assert!(ends.is_sorted() && ends.windows(2).all(|pair| pair[1] <= pair[0] + pair[0] / 4));
        assert_eq!(ends.last(), Some(&Duration::from_nanos(1 << 35)));
    }

    #[test]
    fn requests_are_counted_and_sampled_ones_timed() {
        let latencies = Arc::new(Latencies::default());
        let mut activities = Activities::default();
        let activity = activities.begin(Some(Arc::clone(&latencies)));
        for number in 0..40 {
            let started = activity.begin(Operation::Read, 4096);
            activity.end(started, number % 10 != 0);
        }
        activity.refuse(Operation::Other);
        let done = activities.done();
        let Done { requests, errors, bytes, timed, .. } = done.of(Operation::Read);
        assert_eq!((requests, errors, bytes, timed), (40, 4, 36 * 4096, 3));
        assert_eq!((done.of(Operation::Other).requests, done.of(Operation::Other).errors), (1, 1));
        let times = latencies.of(Operation::Read);
        assert_eq!(times.buckets.last(), Some(&(None, 3)));
        assert_eq!(times.sum.as_nanos(), u128::from(done.of(Operation::Read).timed_ns));
        drop(activity);
        assert_eq!(activities.done(), done);
        assert!(activities.current.is_empty());
    }

    /// A sum that became smaller would look like a restart of the server.
    #[test]
    fn sums_never_become_smaller_while_clients_come_and_go() {
        let activities = Mutex::new(Activities::default());
        let has_ended = AtomicBool::new(false);
        let done = || activities.lock().expect("no panic").done().of(Operation::Write);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let activity = activities.lock().expect("no panic").begin(None);
                        (0..20).for_each(|_| activity.end(activity.begin(Operation::Write, 1), true));
                    }
                });
            }
            scope.spawn(|| {
                let mut last = 0;
                while !has_ended.load(Relaxed) {
                    let requests = done().requests;
                    assert!(requests >= last, "{requests} after {last}");
                    last = requests;
                    has_ended.store(requests == 2 * 300 * 20, Relaxed);
                    thread::yield_now();
                }
            });
        });
        assert_eq!((done().requests, done().bytes), (12_000, 12_000));
    }
}
