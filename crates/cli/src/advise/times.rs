//! Measurement of times, independent of other work on the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of this thread.
pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Returns the 99th percentile of these times; `None` if there are none.
pub(super) fn p99(mut times_ns: Vec<u64>) -> Option<u64> {
    times_ns.sort_unstable();
    times_ns.get(times_ns.len() * 99 / 100).copied()
}

/// Formats a time for humans.
pub(super) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_hundred_may_take_longer() {
        assert_eq!(p99(Vec::new()), None);
        assert_eq!(p99(vec![7]), Some(7));
        assert_eq!(p99((0..100).rev().collect()), Some(99));
        assert_eq!(p99((0..1000).rev().collect()), Some(990));
    }

    #[test]
    fn waiting_takes_no_processor() {
        let before = processor_time();
        std::thread::sleep(Duration::from_millis(20));
        assert!(processor_time() - before < Duration::from_millis(20));
    }
}
