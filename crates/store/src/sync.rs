//! The primitives of the entry protocol: the standard library's, or loom's when a model is checked.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{thread, time::Duration};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::{yield_now as spin_loop, yield_now},
};

/// The number of checks after which a waiter yields the CPU between checks, and after which it
/// sleeps: without sleeps, a lower-priority thread on the same CPU would never finish.
const SPINS_BEFORE_YIELD: u32 = 64;
#[cfg_attr(loom, allow(dead_code))]
pub(crate) const SLEEPS_FROM: u32 = SPINS_BEFORE_YIELD + 256;
#[cfg(not(loom))]
const NAP: Duration = Duration::from_micros(50);

/// Calls `attempt` until another thread lets it succeed. Spins first, then yields the CPU between
/// calls, since the other thread may have been preempted, then sleeps briefly.
#[inline]
pub(crate) fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut looks = 0;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        looks = wait(looks);
    }
}

fn wait(looks: u32) -> u32 {
    match looks {
        0..SPINS_BEFORE_YIELD => spin_loop(),
        #[cfg(not(loom))]
        SLEEPS_FROM.. => thread::sleep(NAP),
        _ => yield_now(),
    }
    looks.saturating_add(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_waits_long_leaves_the_cpu() {
        let (end, mut looks) = (Instant::now() + Duration::from_millis(100), 0);
        wait_for(|| {
            looks += 1;
            (Instant::now() > end).then_some(())
        });
        assert!(looks < 5000, "{looks} looks in a tenth of a second");
    }
}
