//! Threads that decode and fetch ahead of readers, and the number of busy threads.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that fetch from sources that are far. They wait nearly all the time.
const FETCHERS: usize = 4;

/// The readahead threads of all images that share a cache. Some fetch. Others decode. Their number
/// is one less than that of processors, because the reader uses one. They are started when they are
/// first needed, and end when this is dropped. Readers do the work of those that cannot be started.
#[derive(Default)]
pub(crate) struct Workers {
    decoders: OnceLock<(Crew, usize)>,
    fetchers: OnceLock<Crew>,
    /// The number of threads that are reading or decoding.
    busy: AtomicUsize,
}

/// Threads that take jobs from a queue until this is dropped.
struct Crew {
    line: Arc<Line>,
    /// How many there are.
    threads: usize,
}

#[derive(Default)]
struct Line {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    ended: bool,
}

/// A busy thread, until dropped.
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Counts the calling thread as busy.
    pub(crate) fn enter(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(&self.busy)
    }

    /// Returns the threads that decode, and the number of processors.
    fn decoders(&self) -> &(Crew, usize) {
        self.decoders.get_or_init(|| {
            let processors = thread::available_parallelism().map_or(1, NonZero::get);
            (Crew::start("pagefold-ahead", processors - 1), processors)
        })
    }

    /// Returns the number of processors that the readers and these threads do not keep busy, at most
    /// one for each of these threads.
    pub(crate) fn idle_processors(&self) -> usize {
        let (crew, processors) = self.decoders();
        processors.saturating_sub(self.busy.load(Ordering::Relaxed)).min(crew.threads)
    }

    /// Returns whether more threads are busy than there are processors.
    pub(crate) fn overloaded(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > self.decoders().1
    }

    /// Hands a job to a thread. It must own everything that it uses.
    pub(crate) fn submit(&self, job: Job) {
        self.decoders().0.submit(job);
    }

    /// Like `submit`, for a job that fetches, and may be dropped.
    pub(crate) fn submit_fetch(&self, job: Job) {
        self.fetchers.get_or_init(|| Crew::start("pagefold-fetch", FETCHERS)).submit(job);
    }
}

impl Crew {
    fn start(name: &str, threads: usize) -> Self {
        let line = Arc::new(Line::default());
        let start = |line: Arc<Line>| thread::Builder::new().name(name.to_owned()).spawn(move || line.work());
        let threads = (0..threads).filter(|_| start(Arc::clone(&line)).is_ok()).count();
        Self { line, threads }
    }

    fn submit(&self, job: Job) {
        if self.threads > 0 {
            self.line.lock().jobs.push_back(job);
            self.line.wake.notify_one();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.line.lock().ended = true;
        self.line.wake.notify_all();
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut queue = self.lock();
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.ended => return,
                    None => queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn threads_end_with_their_owner_and_no_other() {
        let [first, second] = [(); 2].map(|()| Workers::default());
        assert!(first.decoders.get().is_none(), "no reader has needed them");
        let busy = [first.enter(), first.enter()];
        let [first_idle, second_idle] = [&first, &second].map(Workers::idle_processors);
        assert_eq!(first_idle, second_idle.saturating_sub(1), "their readers are not the same");
        drop(busy);
        let [first_line, second_line] = [&first, &second].map(|workers| Arc::downgrade(&workers.decoders().0.line));
        drop(first);
        let start = Instant::now();
        while first_line.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "a thread has not ended");
            thread::sleep(Duration::from_millis(1));
        }
        if second.decoders().0.threads > 0 {
            let (sender, receiver) = mpsc::channel();
            second.submit(Box::new(move || sender.send(7).expect("a test")));
            assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(7));
        }
        assert!(second_line.strong_count() > 0);
    }

    /// The last owner may be a job.
    #[test]
    fn a_job_may_own_the_threads_that_run_it() {
        let workers = Arc::new(Workers::default());
        let crew = Arc::downgrade(&workers.decoders().0.line);
        if workers.decoders().0.threads == 0 {
            return;
        }
        let (own, (sender, receiver)) = (Arc::clone(&workers), mpsc::channel::<()>());
        workers.submit(Box::new(move || {
            let _ = receiver.recv();
            drop(own);
        }));
        drop(workers);
        drop(sender);
        let start = Instant::now();
        while crew.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "a thread has not ended");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
