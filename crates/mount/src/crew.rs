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
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of answers with a thread to spare after which one more thread rests.
const SPARE: u32 = 16;
/// If a request leaves no thread waiting on the device, one time in this many checks for further
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
/// Invariant: `threads - resting - at_work - held` threads wait on the device. This is at least one,
/// unless all threads are busy, a request waits for at most two ticks, or the crew pauses.
pub(crate) struct Crew {
    threads: usize,
    state: Mutex<CrewState>,
    bell: Condvar,
    /// Wakes the thread that waits until all threads are held.
    still: Condvar,
}

struct CrewState {
    /// Threads that have answered a request. No thread rests until all are members, so that one of
    /// them waits on the device when it goes away, and wakes the others.
    known: usize,
    at_work: usize,
    resting: usize,
    /// Resting threads that were called to wait on the device.
    called: usize,
    /// The number of requests started.
    begun: u64,
    /// Answers since all active threads were last busy simultaneously, less [`SPARE`] for each
    /// thread that has gone to rest since.
    spare: u32,
    watch: Watch,
    /// A thread has ended, because the device is gone or because of a panic.
    ended: bool,
    /// Each thread is held once it has answered; resting threads go on resting.
    paused: bool,
    held: usize,
    /// The number of pauses begun so far.
    pauses: u64,
    /// Why the threads that wait on the device cannot be woken.
    failed: Option<io::Error>,
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
        self.0.still.notify_all();
    }
}

impl CrewState {
    /// Returns whether no thread waits on the device although some rest.
    fn lacks(&self, threads: usize) -> bool {
        self.resting > 0 && self.at_work + self.resting >= threads
    }

    /// Returns whether no thread waits on the device or is at work.
    fn is_still(&self, threads: usize) -> bool {
        self.held + self.resting >= threads
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
            paused: false,
            held: 0,
            pauses: 0,
            failed: None,
        };
        Arc::new(Self { threads, state: Mutex::new(state), bell: Condvar::new(), still: Condvar::new() })
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
        if state.paused {
            return self.hold(state);
        }
        let others = self.threads.saturating_sub(state.resting + state.at_work + 1);
        if state.known == self.threads && others > 0 && state.spare >= SPARE {
            state.spare -= SPARE;
            self.rest(state, waits);
        }
    }

    /// Begins a pause: each thread is held once it has answered. Returns the number of the pause.
    pub(crate) fn pause(&self) -> u64 {
        let mut state = self.lock();
        (state.paused, state.failed) = (true, None);
        state.pauses += 1;
        state.pauses
    }

    /// Returns whether threads still wait on the device or are at work, and this pause has not
    /// ended.
    pub(crate) fn awaits(&self, pause: u64) -> bool {
        let state = self.lock();
        state.paused && state.pauses == pause && !state.ended && !state.is_still(self.threads)
    }

    /// Makes [`wait_until_still`](Self::wait_until_still) fail with this error: threads cannot be
    /// held.
    pub(crate) fn fail(&self, pause: u64, error: io::Error) {
        let mut state = self.lock();
        if state.pauses == pause {
            state.failed = Some(error);
            self.still.notify_all();
        }
    }

    /// Waits until all threads are held or rest. Returns `false` if one has ended.
    ///
    /// # Errors
    /// Some are not held by `deadline`, or cannot be held.
    pub(crate) fn wait_until_still(&self, deadline: Instant) -> io::Result<bool> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return Ok(false);
            }
            if state.is_still(self.threads) {
                return Ok(true);
            }
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = self.still.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a pause.
    pub(crate) fn go_on(&self) {
        self.lock().paused = false;
        self.bell.notify_all();
    }

    /// Holds a thread that has answered.
    fn hold<'a>(&'a self, mut state: MutexGuard<'a, CrewState>) {
        state.held += 1;
        if state.is_still(self.threads) {
            self.still.notify_all();
        }
        while state.paused && !state.ended {
            state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.held -= 1;
    }

    fn rest<'a>(&'a self, mut state: MutexGuard<'a, CrewState>, waits: impl Fn() -> bool) {
        state.resting += 1;
        // The number of requests started when the watch last checked.
        let mut watch = None;
        while !state.ended {
            if state.paused {
                state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
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
                if waiting && state.begun == seen && !state.paused {
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
            // The first job waits for the second, the second for the third.
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

    /// Requests that arrive while threads are held are answered afterwards.
    #[test]
    fn all_are_held_in_a_pause() {
        let (crew, send, threads) = crew();
        let (answered, answers) = channel();
        let ask = |number: usize| {
            let answered = answered.clone();
            send(Box::new(move || answered.send(number).unwrap()));
        };
        for round in 0..20 {
            if round % 2 == 1 {
                ask_alone(&crew, &send);
            }
            let pause = crew.pause();
            // Each job wakes a thread, unless all threads are held in between.
            let (mut asked, mut seen) = (0, Vec::new());
            while crew.awaits(pause) {
                ask(asked);
                asked += 1;
                while seen.len() < asked && crew.awaits(pause) {
                    seen.extend(answers.try_iter());
                    thread::yield_now();
                }
            }
            assert!(crew.wait_until_still(Instant::now()).unwrap());
            seen.extend(answers.try_iter());
            ask(asked);
            asked += 1;
            assert!(answers.try_recv().is_err(), "a thread does not rest");
            crew.go_on();
            // Two threads may answer in another order than they were asked.
            seen.extend((seen.len()..asked).map(|_| answers.recv_timeout(PATIENCE).unwrap()));
            seen.sort_unstable();
            assert_eq!(seen, Vec::from_iter(0..asked));
        }
        let pause = crew.pause();
        crew.fail(pause - 1, io::ErrorKind::NotFound.into());
        crew.fail(pause, io::ErrorKind::NotConnected.into());
        let failed = crew.wait_until_still(Instant::now() + PATIENCE).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotConnected);
        let late = crew.wait_until_still(Instant::now()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        crew.go_on();
        drop(send);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
