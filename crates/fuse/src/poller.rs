//! Waiting awake for the next request.
//!
//! Who reads one page after another asks again some microseconds after an answer. A thread that
//! sleeps by then must be woken, on a processor that has gone to sleep too, which takes longer than
//! most answers. So one thread stays up for a moment after its answer. How often that is in vain
//! decides how often it is tried.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::sched_yield;

use crate::crew::Crew;

/// How long the next request is waited for.
const MOMENT: Duration = Duration::from_micros(50);
/// Of how many tries the outcomes count.
const MOST_CREDIT: u32 = 16;
/// Without credit one of so many answers is followed by a try.
const SELDOM: u32 = 64;
/// Answers after which a crowd of requests is forgotten.
const CROWD: u32 = 64;

/// Waits for requests of a mount.
pub(crate) struct Poller {
    /// The device of the mount.
    device: OnceLock<OwnedFd>,
    processors: usize,
    crew: Arc<Crew>,
    /// Requests that are being answered.
    at_work: AtomicUsize,
    /// Answers for which a crowd is still remembered.
    crowd: AtomicU32,
    /// A thread is waiting.
    taken: AtomicBool,
    /// Grows by a wait that met a request, and shrinks by one in vain.
    credit: AtomicU32,
    answers: AtomicU32,
}

impl Poller {
    /// For a mount that `threads` answer.
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

    /// Says where requests come from.
    pub(crate) fn watch(&self, device: OwnedFd) {
        let _ = self.device.set(device);
    }

    /// Answers a request by `answer`, and then returns when there is another, or after a moment; at
    /// once if that has been in vain lately, or somebody else waits.
    pub(crate) fn answer(&self, answer: impl FnOnce()) {
        self.crew.begin(|| self.waits());
        // Who asks has a processor while this thread has none, and the other way round.
        let all = self.at_work.fetch_add(1, Ordering::Relaxed) + 1;
        answer();
        self.at_work.fetch_sub(1, Ordering::Relaxed);
        if all >= self.processors {
            self.crowd.store(CROWD, Ordering::Relaxed);
        }
        self.crew.end(|| self.waits());
        self.linger();
    }

    /// Whether a request waits, or the device is gone.
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
        // One in vain costs what four may win.
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
    fn waits_are_tried_as_far_as_they_help() {
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
        // One try at most.
        assert!(poller.answers.load(Ordering::Relaxed) > SELDOM / 4 && start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn who_asks_at_once_with_others_gets_the_processors() {
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
