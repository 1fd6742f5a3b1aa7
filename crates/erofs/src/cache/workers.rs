//! Threads that decode ahead of readers, and the number of busy threads.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// The readahead threads of all images that share a cache: one fewer than there are processors,
/// because the reader uses one. They are started when they are first needed, and end when this is
/// dropped.
#[derive(Default)]
pub(crate) struct Workers {
    crew: OnceLock<Arc<Crew>>,
    /// The number of threads that are reading or decoding.
    busy: AtomicUsize,
}

struct Crew {
    queue: Mutex<Queue>,
    wake: Condvar,
    processors: usize,
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

    fn crew(&self) -> &Arc<Crew> {
        self.crew.get_or_init(|| {
            let processors = thread::available_parallelism().map_or(1, NonZero::get);
            let crew = Arc::new(Crew { queue: Mutex::default(), wake: Condvar::new(), processors });
            for _ in 1..processors {
                let crew = Arc::clone(&crew);
                // If a thread cannot be started, readers do its work.
                let _ = thread::Builder::new().name("pagefold-ahead".to_owned()).spawn(move || crew.work());
            }
            crew
        })
    }

    /// Returns the number of processors that the readers and these threads do not keep busy, at most
    /// one for each of these threads.
    pub(crate) fn idle_processors(&self) -> usize {
        let processors = self.crew().processors;
        processors.saturating_sub(self.busy.load(Ordering::Relaxed)).min(processors - 1)
    }

    /// Returns whether more threads are busy than there are processors.
    pub(crate) fn overloaded(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > self.crew().processors
    }

    /// Lets a thread run a job, which must keep what it uses.
    pub(crate) fn submit(&self, job: Job) {
        let crew = self.crew();
        crew.lock().jobs.push_back(job);
        crew.wake.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(crew) = self.crew.get() {
            crew.lock().ended = true;
            crew.wake.notify_all();
        }
    }
}

impl Crew {
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
        assert!(first.crew.get().is_none(), "nobody has needed them");
        let busy = [first.enter(), first.enter()];
        let [first_idle, second_idle] = [&first, &second].map(Workers::idle_processors);
        assert_eq!(first_idle, second_idle.saturating_sub(1), "their readers are not the same");
        drop(busy);
        let [first_crew, second_crew] = [&first, &second].map(|workers| Arc::downgrade(workers.crew()));
        drop(first);
        let start = Instant::now();
        while first_crew.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "a thread has not ended");
            thread::sleep(Duration::from_millis(1));
        }
        if second.crew().processors > 1 {
            let (sender, receiver) = mpsc::channel();
            second.submit(Box::new(move || sender.send(7).expect("a test")));
            assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(7));
        }
        assert!(second_crew.strong_count() > 0);
    }

    /// The last owner may be a job.
    #[test]
    fn a_job_may_own_the_threads_that_run_it() {
        let workers = Arc::new(Workers::default());
        let crew = Arc::downgrade(workers.crew());
        if workers.crew().processors == 1 {
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
