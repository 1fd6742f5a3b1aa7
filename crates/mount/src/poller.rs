//! Polls for the next request.
//!
//! A sequential reader issues its next request within microseconds of a reply. To wake a thread
//! that sleeps by then, often on an idle processor, takes longer than most answers. So one thread
//! polls for a moment after its answer, more often the more such polls succeed.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::sched_yield;

use crate::crew::Crew;

/// How long to poll for the next request.
const MOMENT: Duration = Duration::from_micros(50);
/// The maximum credit, so that only recent polls count.
const MOST_CREDIT: u32 = 16;
/// Without credit, one in this many answers is followed by a poll.
const SELDOM: u32 = 64;
/// The number of answers for which polling stays off after requests kept all processors busy.
const CROWD: u32 = 64;

/// Polls for requests of a mount.
pub struct Poller {
    /// The device of the mount.
    device: OnceLock<OwnedFd>,
    processors: usize,
    crew: Arc<Crew>,
    /// The number of requests being answered.
    at_work: AtomicUsize,
    /// Remaining answers during which polling stays off.
    crowd: AtomicU32,
    /// Whether a thread is polling.
    taken: AtomicBool,
    /// Grows with each poll that found a request, and shrinks with each that did not.
    credit: AtomicU32,
    answers: AtomicU32,
}

impl Poller {
    /// Creates a poller for a mount with `threads` threads.
    pub(crate) fn new(processors: usize, threads: usize) -> Self {
        Self {
            device: OnceLock::new(),
            processors,
            crew: Crew::new(threads),
            at_work: AtomicUsize::new(0),
            crowd: AtomicU32::new(0),
            taken: AtomicBool::new(false),
            credit: AtomicU32::new(0),
            answers: AtomicU32::new(0),
        }
    }

    /// Sets the device that requests come from.
    pub(crate) fn watch(&self, device: OwnedFd) {
        let _ = self.device.set(device);
    }

    /// Calls `answer` for a request, then returns when there is another or after a moment. Returns
    /// immediately if polling rarely succeeded recently or another thread polls.
    pub fn answer(&self, answer: impl FnOnce()) {
        self.crew.begin(|| self.waits());
        // A reader and the thread that answers it run alternately, so each request occupies one
        // processor.
        let all = self.at_work.fetch_add(1, Ordering::Relaxed) + 1;
        answer();
        self.at_work.fetch_sub(1, Ordering::Relaxed);
        if all >= self.processors {
            self.crowd.store(CROWD, Ordering::Relaxed);
        }
        self.crew.end(|| self.waits());
        self.linger();
    }

    /// Returns the threads that call [`answer`](Self::answer).
    pub(crate) fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> Option<&OwnedFd> {
        self.device.get()
    }

    /// Returns whether a request waits or the device is gone.
    fn waits(&self) -> bool {
        let look = |device| poll(&mut [PollFd::new(device, PollFlags::IN)], Some(&Timespec::default()));
        self.device.get().is_some_and(|device| look(device) != Ok(0))
    }

    fn linger(&self) {
        if self.device.get().is_none() {
            return;
        }
        let crowd = self.crowd.load(Ordering::Relaxed);
        if crowd > 0 {
            return self.crowd.store(crowd - 1, Ordering::Relaxed);
        }
        let credit = self.credit.load(Ordering::Relaxed);
        if credit == 0 && !self.answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(SELDOM) {
            return;
        }
        if self.taken.swap(true, Ordering::Acquire) {
            return;
        }
        let start = Instant::now();
        let met = loop {
            if self.waits() {
                break true;
            }
            if start.elapsed() >= MOMENT {
                break false;
            }
            sched_yield();
        };
        // A failed poll costs as much as four successful ones save.
        let credit = if met { (credit + 1).min(MOST_CREDIT) } else { credit.saturating_sub(4) };
        self.credit.store(credit, Ordering::Relaxed);
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn waits_are_tried_while_they_help() {
        let poller = Poller::new(2, 2);
        let mut answered = 0;
        poller.answer(|| answered += 1);
        let (mut kernel, device) = UnixStream::pair().expect("a pair of sockets");
        poller.watch(device.into());
        kernel.write_all(b"request").expect("room");
        for _ in 0..SELDOM * MOST_CREDIT {
            poller.answer(|| answered += 1);
        }
        assert_eq!(answered, 1 + SELDOM * MOST_CREDIT);
        assert_eq!(poller.credit.load(Ordering::Relaxed), MOST_CREDIT);

        let (_kernel, idle) = UnixStream::pair().expect("a pair of sockets");
        let poller = Poller { device: OnceLock::from(OwnedFd::from(idle)), ..poller };
        for _ in 0..MOST_CREDIT {
            poller.answer(|| ());
        }
        assert_eq!(poller.credit.load(Ordering::Relaxed), 0);
        let start = Instant::now();
        for _ in 0..SELDOM / 2 {
            poller.answer(|| ());
        }
        // At most one poll.
        assert!(poller.answers.load(Ordering::Relaxed) > SELDOM / 4 && start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn simultaneous_requests_get_the_processors() {
        let poller = Poller::new(2, 2);
        let (mut kernel, device) = UnixStream::pair().expect("a pair of sockets");
        poller.watch(device.into());
        kernel.write_all(b"request").expect("room");
        poller.answer(|| poller.answer(|| ()));
        assert_eq!((poller.credit.load(Ordering::Relaxed), poller.crowd.load(Ordering::Relaxed)), (0, CROWD - 2));
        for _ in 1..CROWD {
            poller.answer(|| ());
        }
        assert_eq!((poller.credit.load(Ordering::Relaxed), poller.crowd.load(Ordering::Relaxed)), (1, 0));
        let alone = Poller::new(1, 2);
        alone.answer(|| ());
        assert_eq!(alone.crowd.load(Ordering::Relaxed), CROWD);
    }
}
