//! The process's readahead threads, and the number of busy threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// The readahead threads: one fewer than there are processors, because the reader uses one.
pub(crate) struct Workers {
    jobs: Mutex<VecDeque<Job>>,
    wake: Condvar,
    processors: usize,
}

static WORKERS: OnceLock<Workers> = OnceLock::new();
/// The number of threads that are reading or decoding.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// A busy thread, until dropped.
pub(crate) struct Busy(());

impl Busy {
    pub(crate) fn enter() -> Self {
        BUSY.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Returns the process's workers. Starts them on the first call.
    pub(crate) fn get() -> &'static Self {
        let mut first = false;
        let workers = WORKERS.get_or_init(|| {
            first = true;
            let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            Self { jobs: Mutex::default(), wake: Condvar::new(), processors }
        });
        if first {
            for _ in 1..workers.processors {
                // If a thread cannot be started, readers do its work.
                let _ = std::thread::Builder::new().name("pagefold-ahead".to_owned()).spawn(|| workers.work());
            }
        }
        workers
    }

    /// Returns the number of processors that this process does not keep busy.
    pub(crate) fn idle_processors(&self) -> usize {
        self.processors.saturating_sub(BUSY.load(Ordering::Relaxed))
    }

    /// Returns whether more threads are busy than there are processors.
    pub(crate) fn overloaded(&self) -> bool {
        BUSY.load(Ordering::Relaxed) > self.processors
    }

    pub(crate) fn submit(&self, job: Job) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
        self.wake.notify_one();
    }

    fn work(&self) {
        loop {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            let job = loop {
                match jobs.pop_front() {
                    Some(job) => break job,
                    None => jobs = self.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(jobs);
            job();
        }
    }
}
