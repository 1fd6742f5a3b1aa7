//! Controls how many threads wait for requests.
//!
//! The kernel wakes the thread that has slept longest on its device. If all threads slept there,
//! each request of a single reader would go to another thread with cold caches, and a polling
//! thread would compete with a sleeper that is woken needlessly for each request. So only as many
//! threads wait on the device as recently had simultaneous requests. The others rest here.
//!
//! ```text
//! all active threads are busy and a request waits:
//!     wake a resting thread
//! a thread was not needed for the last `SPARE` answers:
//!     the next thread that has answered rests
//! all active threads are busy and start nothing for a `TICK`:
//!     a resting thread on watch checks for requests itself
//! ```
//!
//! The last rule is for requests that take long, for example because of a disk or another machine,
//! or never finish: they must not block others.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number of answers with a thread to spare after which one more thread rests.
const SPARE: u32 = 16;
/// One in this many requests that leave no thread waiting on the device checks for further
/// requests.
const LOOK: u64 = 4;
/// If busy threads start no new request for this long, a resting thread checks for waiting
/// requests.
const TICK: Duration = Duration::from_millis(10);

thread_local! {
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
}

/// The threads that answer requests.
///
/// Invariant: `threads - resting - at_work` threads wait on the device. This is at least one,
/// unless all threads are busy or a request waits for at most two ticks.
pub(crate) struct Crew {
    threads: usize,
    state: Mutex<CrewState>,
    bell: Condvar,
}

struct CrewState {
    /// Threads that have answered a request. No thread rests until all are members: one of them
    /// then waits on the device when that goes away, and wakes the others.
    known: usize,
    at_work: usize,
    resting: usize,
    /// Resting threads that were called to wait on the device.
    called: usize,
    /// The number of requests started.
    begun: u64,
    /// Answers since all active threads were last busy simultaneously, minus those already charged for
    /// threads that went to rest.
    spare: u32,
    watch: Watch,
    /// A thread has ended, because the device is gone or because of a panic.
    ended: bool,
}

#[derive(PartialEq, Eq)]
enum Watch {
    Off,
    Wanted,
    Taken,
}

/// A thread's membership in a crew, until it ends.
struct Member(Arc<Crew>);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.bell.notify_all();
    }
}

impl CrewState {
    /// Returns whether no thread waits on the device although some rest.
    fn lacks(&self, threads: usize) -> bool {
        self.resting > 0 && self.at_work + self.resting >= threads
    }
}

impl Crew {
    pub(crate) fn new(threads: usize) -> Arc<Self> {
        let state = CrewState {
            known: 0,
            at_work: 0,
            resting: 0,
            called: 0,
            begun: 0,
            // One thread is enough until there is more to do.
            spare: SPARE * threads as u32,
            watch: Watch::Off,
            ended: false,
        };
        Arc::new(Self { threads, state: Mutex::new(state), bell: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, CrewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the thread has a request. `waits` checks for further requests.
    pub(crate) fn begin(self: &Arc<Self>, waits: impl Fn() -> bool) {
        let new = MEMBER.with_borrow_mut(|member| {
            let new = !member.as_ref().is_some_and(|member| Arc::ptr_eq(&member.0, self));
            new.then(|| member.replace(Member(Arc::clone(self))))
        });
        let mut state = self.lock();
        state.known += usize::from(new.is_some());
        state.begun += 1;
        state.at_work += 1;
        if state.at_work + state.resting >= self.threads {
            state.spare = 0;
        }
        if !state.lacks(self.threads) {
            return;
        }
        // The thread that was notified to watch may have been called for a request instead.
        let unwatched = state.watch != Watch::Taken;
        if unwatched {
            state.watch = Watch::Wanted;
        }
        let looks = state.begun.is_multiple_of(LOOK);
        drop(state);
        if looks && waits() {
            let mut state = self.lock();
            state.called = (state.called + 1).min(state.resting);
        } else if !unwatched {
            return;
        }
        self.bell.notify_one();
    }

    /// Records that the thread has answered. Returns when it should wait on the device again.
    pub(crate) fn end(&self, waits: impl Fn() -> bool) {
        let mut state = self.lock();
        state.at_work -= 1;
        state.spare = state.spare.saturating_add(1);
        let others = self.threads.saturating_sub(state.resting + state.at_work + 1);
        if state.known == self.threads && others > 0 && state.spare >= SPARE {
            state.spare -= SPARE;
            self.rest(state, waits);
        }
    }

    fn rest<'a>(&'a self, mut state: MutexGuard<'a, CrewState>, waits: impl Fn() -> bool) {
        state.resting += 1;
        // The number of requests started when the watch last checked.
        let mut watch = None;
        while !state.ended {
            if state.called > 0 {
                state.called -= 1;
                break;
            }
            if state.watch == Watch::Wanted {
                state.watch = Watch::Taken;
                watch = Some(state.begun);
            }
            let Some(seen) = watch else {
                state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (guard, woken) = self.bell.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if !woken.timed_out() {
                continue;
            }
            if state.begun != seen {
                watch = Some(state.begun);
            } else if !state.lacks(self.threads) {
                watch = None;
                state.watch = Watch::Off;
            } else {
                drop(state);
                let waiting = waits();
                state = self.lock();
                if waiting && state.begun == seen {
                    break;
                }
            }
        }
        if watch.is_some() {
            state.watch = Watch::Off;
        }
        state.resting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Barrier, OnceLock};
    use std::thread;

    use super::*;

    type Job = Box<dyn FnOnce() + Send>;

    const THREADS: usize = 3;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A substitute for the kernel's device, with jobs as requests.
    struct Device {
        jobs: Mutex<Receiver<Job>>,
        waiting: AtomicUsize,
    }

    impl Device {
        fn attend(&self) -> Option<Job> {
            let job = self.jobs.lock().unwrap().recv().ok()?;
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            Some(job)
        }
    }

    /// Starts the threads of a crew, which run until the sender is dropped.
    fn crew() -> (Arc<Crew>, impl Fn(Job), Vec<thread::JoinHandle<()>>) {
        let (crew, (send, jobs)) = (Crew::new(THREADS), channel());
        let device = Arc::new(Device { jobs: Mutex::new(jobs), waiting: AtomicUsize::new(0) });
        let threads = (0..THREADS).map(|_| {
            let (crew, device) = (Arc::clone(&crew), Arc::clone(&device));
            thread::spawn(move || {
                while let Some(job) = device.attend() {
                    let waits = || device.waiting.load(Ordering::SeqCst) > 0;
                    crew.begin(waits);
                    job();
                    crew.end(waits);
                }
            })
        });
        let threads = threads.collect();
        let send = move |job| {
            device.waiting.fetch_add(1, Ordering::SeqCst);
            send.send(job).unwrap();
        };
        (crew, send, threads)
    }

    /// Sends jobs one after another until all threads but one rest.
    fn ask_alone(crew: &Crew, send: impl Fn(Job)) {
        for _ in 0..1000 {
            let (done, answer): (Sender<()>, _) = channel();
            send(Box::new(move || done.send(()).unwrap()));
            answer.recv_timeout(PATIENCE).expect("an answer");
            if crew.lock().resting == THREADS - 1 {
                return;
            }
            thread::sleep(Duration::from_micros(100));
        }
        panic!("{} threads rest", crew.lock().resting);
    }

    #[test]
    fn as_many_attend_as_are_needed() {
        let (crew, send, threads) = crew();
        let all = Arc::new(Barrier::new(THREADS));
        for _ in 0..THREADS {
            let all = Arc::clone(&all);
            send(Box::new(move || {
                all.wait();
            }));
        }
        for _ in 0..5 {
            ask_alone(&crew, &send);
            // The first waits for the second, the second for the third.
            let done: Arc<[OnceLock<()>; THREADS]> = Arc::default();
            let (last, answer) = channel();
            for number in 0..THREADS {
                let (done, last) = (Arc::clone(&done), last.clone());
                send(Box::new(move || {
                    if let Some(next) = done.get(number + 1) {
                        next.wait();
                    }
                    done[number].set(()).unwrap();
                    last.send(()).unwrap();
                }));
            }
            for _ in 0..THREADS {
                answer.recv_timeout(PATIENCE).expect("a thread for each");
            }
        }
        ask_alone(&crew, &send);
        // The thread waiting on the device finds it gone, and the others are woken.
        drop(send);
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn none_rests_until_all_are_known() {
        let crew = Crew::new(2);
        for _ in 0..10 * SPARE {
            crew.begin(|| true);
            crew.end(|| true);
        }
        let state = crew.lock();
        assert_eq!((state.known, state.resting), (1, 0));
    }
}
