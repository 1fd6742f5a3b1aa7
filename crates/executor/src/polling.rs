//! How long a thread looks for the next request before it sleeps.
//!
//! Waking a thread takes longer than most answers. A client that waits for each answer sends its next
//! request within microseconds, so a thread that looks for it during that time need not be woken.

use std::time::Duration;

/// Shortest and longest time for which a thread looks before it sleeps. Being woken takes about as long
/// as the longest.
const LEAST: Duration = Duration::from_micros(4);
const MOST: Duration = Duration::from_micros(50);
/// If looking took longer than this, other threads have used the CPU.
const CROWDED: Duration = Duration::from_micros(200);
/// When others have used its CPU, the number of sleeps after which a thread may look again: the
/// first and the maximum. It doubles each time, unless the thread has looked often in between.
const LEAST_PAUSE: u32 = 64;
const MOST_PAUSE: u32 = 1 << 16;
const OFTEN: u32 = 4096;

/// How long to look for the next request before sleeping: twice as long if a request came soon after the
/// last sleep began, half as long if none did.
#[derive(Debug, Default)]
pub struct Polling {
    time: Duration,
    /// Sleeps that are not followed by looking.
    pause: u32,
    /// The value of `pause` when it was last set.
    last_pause: u32,
    /// How often the thread has looked since, with the CPU for itself.
    looks: u32,
}

impl Polling {
    /// Returns how long to look, zero for not at all.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Records how long a sleep lasted.
    pub fn slept(&mut self, time: Duration) {
        if self.pause > 0 {
            self.pause -= 1;
        } else if time <= MOST {
            self.time = (self.time * 2).clamp(LEAST, MOST);
        } else if self.time <= LEAST {
            self.time = Duration::ZERO;
        } else {
            self.time /= 2;
        }
    }

    /// Records how long looking lasted. A thread that sleeps gets a CPU sooner than one that yields
    /// its own.
    pub fn looked(&mut self, time: Duration) {
        if time < CROWDED {
            self.looks = self.looks.saturating_add(1);
            return;
        }
        let pause = if self.looks < OFTEN { self.last_pause * 2 } else { 0 };
        let pause = pause.clamp(LEAST_PAUSE, MOST_PAUSE);
        *self = Self { time: Duration::ZERO, pause, last_pause: pause, looks: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_looks_as_long_as_that_helps() {
        let mut polling = Polling::default();
        assert_eq!(polling.time(), Duration::ZERO);
        for time in [4, 8, 16, 32, 50, 50] {
            polling.slept(Duration::from_micros(20));
            assert_eq!(polling.time(), Duration::from_micros(time));
        }
        polling.looked(Duration::from_micros(50));
        for time in [25_000, 12_500, 6_250, 3_125, 0, 0] {
            polling.slept(Duration::from_millis(1));
            assert_eq!(polling.time(), Duration::from_nanos(time));
        }
        polling.slept(Duration::ZERO);
        for (looks, pause) in [(0, 64), (OFTEN - 1, 128), (0, 256), (OFTEN, 64), (1, 128)] {
            (0..looks).for_each(|_| polling.looked(Duration::ZERO));
            polling.looked(Duration::from_millis(3));
            for _ in 0..pause {
                assert_eq!(polling.time(), Duration::ZERO);
                polling.slept(Duration::ZERO);
            }
            polling.slept(Duration::ZERO);
            assert_eq!(polling.time(), LEAST);
        }
    }
}
