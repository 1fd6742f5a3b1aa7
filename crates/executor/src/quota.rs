//! The bounds for all clients of one export together.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// The bounds for all clients of one export together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Maximum number of connections.
    pub connections: Option<usize>,
    /// Maximum rate of reads and writes. Each request counts as at least [`LEAST_COST_BYTES`], so this
    /// bounds the rate of requests too.
    pub bytes_per_second: Option<u64>,
}

/// The minimum bytes that a request counts against [`Quota::bytes_per_second`].
pub const LEAST_COST_BYTES: u64 = 4 << 10;

/// An idle export has saved up what its rate allows in this time.
const BURST: Duration = Duration::from_millis(100);

/// Interval between two checks whether a connection that waits for its turn ends, or its server
/// pauses.
const PAUSE: Duration = Duration::from_millis(10);

/// Gives each request the time at which it may begin: requests are spread so that their bytes follow
/// each other at the rate, and each waits at least as long as the brake demands.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// Whether there is a rate or a brake. Separate, so that connections without one share no cache
    /// line that changes.
    is_set: AtomicBool,
    state: Mutex<RateLimitState>,
}

#[derive(Debug, Default)]
struct RateLimitState {
    bytes_per_second: Option<u64>,
    /// When the bytes of all requests so far have been paid for at the rate; `None` if there were
    /// none.
    paid: Option<Instant>,
    /// How long each request waits.
    brake: Option<Duration>,
}

impl RateLimit {
    fn lock(&self) -> MutexGuard<'_, RateLimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the rate; `None` is no limit.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        self.change(|state| (state.bytes_per_second, state.paid) = (bytes_per_second, None));
    }

    /// Sets how long each read and write waits before it begins, whatever its length. It costs the
    /// other clients nothing, and a client no more than this for each request.
    pub fn brake(&self, wait: Option<Duration>) {
        self.change(|state| state.brake = wait);
    }

    fn change(&self, change: impl FnOnce(&mut RateLimitState)) {
        let mut state = self.lock();
        change(&mut state);
        self.is_set.store(state.bytes_per_second.is_some() || state.brake.is_some(), Relaxed);
    }

    /// Returns whether there is a rate or a brake.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Relaxed)
    }

    /// Returns when a request that reads or writes `len_bytes` may begin; `None` means now.
    pub fn begin(&self, len_bytes: u64) -> Option<Instant> {
        if self.is_set() { self.begin_at(len_bytes, Instant::now()) } else { None }
    }

    /// Waits until `start`, until neither rate nor brake is left, or until `ends` returns true.
    pub fn wait_until(&self, start: Instant, ends: &dyn Fn() -> bool) {
        while self.is_set() && !ends() {
            let left = start.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(PAUSE));
        }
    }

    fn begin_at(&self, len_bytes: u64, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let mut start = now;
        if let Some(rate) = state.bytes_per_second {
            let bytes = len_bytes.max(LEAST_COST_BYTES);
            let earliest = now.checked_sub(BURST).unwrap_or(now);
            start = state.paid.map_or(earliest, |paid| paid.max(earliest));
            state.paid = start.checked_add(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
        }
        let braked = state.brake.and_then(|brake| now.checked_add(brake));
        let start = start.max(braked.unwrap_or(start));
        (start > now).then_some(start)
    }
}

/// Returns whether an export with `own` connections may have one more, if `serving` of the server's
/// `limit` connections are in use, and its number of exports is `exports`. The last quarter is kept
/// for exports with less than an equal part, so that the clients of one export do not shut out
/// those of others.
pub fn has_part(own: usize, exports: usize, serving: usize, limit: usize) -> bool {
    serving < limit - limit / 4 || own < (limit / exports.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a function of the length of a request: the milliseconds until it may begin. All requests
    /// arrive at the same time.
    fn begins(limiter: &RateLimit) -> impl Fn(u64) -> u128 {
        let start = Instant::now() + Duration::from_secs(1);
        move |len_bytes| {
            let time = limiter.begin_at(len_bytes, start);
            time.map_or(0, |time| time.duration_since(start).as_millis())
        }
    }

    #[test]
    fn requests_follow_each_other_at_the_rate() {
        let limiter = RateLimit::default();
        let begin = begins(&limiter);
        assert_eq!(begin(1 << 30), 0, "no rate");
        limiter.set(Some(1 << 20));
        // The first 100 ms are free.
        assert_eq!([(); 3].map(|()| begin(1 << 20)), [0, 900, 1900]);
        assert_eq!(begin(512 << 10), 2900);
        assert_eq!(begin(0), 3400);
        assert_eq!(begin(1), 3403, "a small request counts as 4 KiB");
        limiter.set(None);
        assert!(!limiter.is_set() && begin(1 << 30) == 0);
    }

    #[test]
    fn a_brake_delays_each_request_and_leaves_the_rate() {
        let limiter = RateLimit::default();
        let begin = begins(&limiter);
        limiter.brake(Some(Duration::from_millis(8)));
        assert!(limiter.is_set());
        assert_eq!([(); 3].map(|()| begin(1 << 30)), [8; 3], "they do not wait for each other");
        limiter.set(Some(1 << 20));
        assert_eq!([(); 2].map(|()| begin(1 << 20)), [8, 900]);
        limiter.brake(None);
        assert_eq!(begin(0), 1900);
        limiter.set(None);
        assert!(!limiter.is_set());
    }

    /// However many clients one export has, others can connect.
    #[test]
    fn the_last_quarter_is_for_exports_with_less_than_their_part() {
        for (limit, exports) in [(128, 1), (128, 2), (128, 1000), (1, 1), (1, 5), (4, 2), (7, 3)] {
            let greedy = (0..limit).take_while(|&own| has_part(own, exports, own, limit)).count();
            if exports == 1 {
                assert_eq!(greedy, limit, "one export has all");
            } else if limit >= 4 {
                assert!(greedy < limit && greedy >= limit - limit / 4, "{greedy} of {limit}");
                assert!(has_part(0, exports, greedy, limit), "another export is shut out");
            }
        }
    }
}
