//! Threads that run requests for transports.
//!
//! A transport's own thread runs what needs no waiting. It hands on two kinds of work:
//!
//! - A [`Task`] may wait for storage, or is a large piece of work. A thread that is free runs it; if
//!   all are busy, and no more may be started, the transport's thread runs it itself.
//! - A [`Batch`] is many small parts. The transport's thread takes part after part, and so do
//!   threads for which a CPU would otherwise be idle. If no other thread comes in time, the
//!   transport's thread has lost only the time to wake one.
//!
//! ```text
//! spare CPUs = CPUs - 2 × transports' threads that work - threads that help
//! ```
//!
//! A transport's thread counts as two busy CPUs, because a client on the same machine needs one
//! too. If only one such thread is working, it may have a helper on any machine with two CPUs.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use memmap2::MmapMut;

use crate::{
    aside::SetAside,
    memory::{Memory, Taken},
    scratch::{SCRATCH_BYTES, Scratch},
    thread::{THREAD_BYTES, spawn},
};

/// A thread ends after it has been idle for this time.
const IDLE: Duration = Duration::from_secs(1);

/// The same while a connection waits for memory to work.
const IDLE_IF_SHORT: Duration = Duration::from_millis(1);

/// If half of the CPUs are spare, a thread that has helped looks for more work for this time before
/// it sleeps. Waking a thread takes about as long.
const SPIN: Duration = Duration::from_micros(100);

/// With fewer CPUs than this, threads never spin.
const LEAST_SPINNING_CPUS: usize = 4;

/// Work that one thread runs.
pub trait Task: Send {
    /// Runs it, with the thread's buffers.
    fn run(self: Box<Self>, scratch: &mut Scratch);
}

/// Work in parts, which several threads take in turn.
pub trait Batch: Send + Sync {
    /// Takes parts and runs them until all are taken, with the thread's buffers.
    fn help(&self, scratch: &mut Scratch);

    /// Returns whether parts are left, and one more thread may take some.
    fn wants_help(&self) -> bool;
}

/// The threads of a server. They end when it is dropped, after what they are busy with.
pub struct Executor {
    shared: Arc<Shared>,
    /// The changes of all clients that wait for room.
    pub(crate) waiting: Arc<SetAside>,
}

struct Shared {
    memory: Arc<Memory>,
    most_threads: usize,
    cpus: usize,
    /// Transports' threads that work on requests.
    working: AtomicUsize,
    /// Threads that use a spare CPU, or are about to.
    helping: AtomicUsize,
    /// Length of the queue, for threads that spin.
    queued: AtomicUsize,
    /// Threads that spin.
    spinning: AtomicUsize,
    state: Mutex<State>,
    wake: Condvar,
}

/// `queue.len() + reserved ≤ free ≤ threads`, except that a new thread may take work before it is
/// counted as free; `free` is then briefly too small by one.
#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    /// Free threads that are kept for work which is not in the queue yet.
    reserved: usize,
    threads: usize,
    /// Threads that begin, spin or sleep.
    free: isize,
    ended: bool,
}

impl State {
    /// Returns whether a free thread is neither reserved nor about to take work from the queue.
    fn has_free(&self) -> bool {
        isize::try_from(self.queue.len() + self.reserved).is_ok_and(|needed| needed < self.free)
    }
}

/// Work for a thread.
struct Entry {
    work: Work,
    /// Set if the work uses a spare CPU.
    helping: Option<Helping>,
}

enum Work {
    Task(Box<dyn Task>),
    Batch(Arc<dyn Batch>),
}

/// Counts a thread that uses a spare CPU.
struct Helping(Arc<Shared>);

impl Drop for Helping {
    fn drop(&mut self) {
        self.0.helping.fetch_sub(1, Relaxed);
    }
}

/// Counts a transport's thread that works on requests.
pub struct Working(Arc<Shared>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Relaxed);
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("most_threads", &self.shared.most_threads).finish_non_exhaustive()
    }
}

impl Executor {
    /// Creates an executor of at most `most_threads`, which takes its memory from `memory`. Threads
    /// are started when they are needed.
    pub fn new(most_threads: usize, memory: Arc<Memory>) -> Self {
        let shared = Arc::new(Shared {
            memory,
            most_threads,
            cpus: thread::available_parallelism().map_or(1, usize::from),
            working: AtomicUsize::new(0),
            helping: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            spinning: AtomicUsize::new(0),
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        Self { shared, waiting: Arc::default() }
    }

    /// Returns the memory of its clients and its threads.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.shared.memory
    }

    /// Returns whether it has threads, busy or free.
    pub(crate) fn has_threads(&self) -> bool {
        self.shared.lock().threads > 0
    }

    /// Returns whether all threads are free.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.shared.lock();
        state.queue.is_empty() && usize::try_from(state.free) == Ok(state.threads)
    }

    /// Counts a transport's thread that works on requests, until the result is dropped.
    pub fn begin_work(&self) -> Working {
        self.shared.working.fetch_add(1, Relaxed);
        Working(Arc::clone(&self.shared))
    }

    /// Returns whether a CPU is spare.
    pub fn has_spare_cpu(&self) -> bool {
        self.shared.has_spare_cpu()
    }

    /// Returns whether there is a CPU for each working thread and another one for its client on
    /// this machine, so that a transport's thread may use its CPU while it waits for a request.
    pub fn may_poll(&self) -> bool {
        let Shared { cpus, working, helping, .. } = &*self.shared;
        2 * working.load(Relaxed) + helping.load(Relaxed) <= *cpus
    }

    /// Returns whether a thread is looking for work, so that handing some on is cheap and likely to
    /// help.
    pub fn is_alert(&self) -> bool {
        self.shared.spinning.load(Relaxed) > 0
    }

    /// Reserves a thread, which is started if none is free. Returns `None` if there is none.
    pub fn reserve(&self) -> Option<Reserved> {
        Shared::reserve(&self.shared, None)
    }

    /// Like `reserve`, but only if a CPU is spare: for work that is not worth handing on otherwise.
    pub fn reserve_spare(&self) -> Option<Reserved> {
        let helping = Shared::help(&self.shared)?;
        Shared::reserve(&self.shared, Some(helping))
    }
}

/// A reserved thread. Dropping this frees it for others.
pub struct Reserved {
    shared: Arc<Shared>,
    helping: Option<Helping>,
}

impl Reserved {
    /// Makes the thread run a task.
    pub fn run(mut self, task: Box<dyn Task>) {
        self.push(|helping| Entry { work: Work::Task(task), helping });
    }

    /// Makes the thread, and others for which a CPU is spare, help with a batch.
    pub fn share(mut self, batch: Arc<dyn Batch>) {
        self.push(|helping| Entry { work: Work::Batch(batch), helping });
    }

    fn push(&mut self, entry: impl FnOnce(Option<Helping>) -> Entry) {
        let entry = entry(self.helping.take());
        let mut state = self.shared.lock();
        state.queue.push_back(entry);
        self.shared.queued.store(state.queue.len(), Release);
        // Threads that spin need no call to wake them.
        if state.queue.len() > self.shared.spinning.load(Relaxed) {
            drop(state);
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shared.lock().reserved -= 1;
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare_cpus(&self) -> usize {
        let working = self.working.load(Relaxed);
        let spare = self.cpus.saturating_sub(2 * working);
        if working <= 1 { spare.max(self.cpus.min(2) - 1) } else { spare }
    }

    fn has_spare_cpu(&self) -> bool {
        self.helping.load(Relaxed) < self.spare_cpus()
    }

    fn may_spin(&self) -> bool {
        self.cpus >= LEAST_SPINNING_CPUS && self.spare_cpus() * 2 >= self.cpus
    }

    /// Takes a spare CPU.
    fn help(shared: &Arc<Self>) -> Option<Helping> {
        let spare = shared.spare_cpus();
        let more = |helping| (helping < spare).then_some(helping + 1);
        shared.helping.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Helping(Arc::clone(shared)))
    }

    /// Reserves a thread.
    fn reserve(shared: &Arc<Self>, helping: Option<Helping>) -> Option<Reserved> {
        let mut state = shared.lock();
        if !state.has_free() {
            if state.threads >= shared.most_threads || state.ended {
                return None;
            }
            state.threads += 1;
            drop(state);
            // No caller may rely on the thread before it exists.
            Self::start(Thread { shared: Arc::clone(shared), is_free: false })?;
            state = shared.lock();
            state.free += 1;
        }
        state.reserved += 1;
        drop(state);
        Some(Reserved { shared: Arc::clone(shared), helping })
    }

    /// Starts a thread that waits for work.
    fn start(thread: Thread) -> Option<()> {
        let taken = thread.shared.memory.lend(THREAD_BYTES + SCRATCH_BYTES as u64)?;
        let scratch = MmapMut::map_anon(SCRATCH_BYTES).ok()?;
        let scratch = Scratch::new(scratch, Arc::clone(&thread.shared.memory));
        spawn("worker", move || thread.work(scratch, taken)).ok()
    }

    fn pop(&self, state: &mut State) -> Option<Entry> {
        let entry = state.queue.pop_front()?;
        self.queued.store(state.queue.len(), Release);
        Some(entry)
    }
}

/// A thread, counted until it ends.
struct Thread {
    shared: Arc<Shared>,
    is_free: bool,
}

impl Thread {
    fn work(mut self, mut scratch: Scratch, taken: Taken) {
        // The starting thread has already counted this one.
        self.is_free = true;
        let mut helped = false;
        while let Some(Entry { work, helping }) = self.next(helped) {
            helped = helping.is_some();
            match work {
                Work::Task(task) => task.run(&mut scratch),
                Work::Batch(batch) => {
                    // Each helper asks for the next, so that the transport's thread wakes only one.
                    if batch.wants_help()
                        && let Some(next) = Shared::help(&self.shared)
                        && let Some(reserved) = Shared::reserve(&self.shared, Some(next))
                    {
                        reserved.share(Arc::clone(&batch));
                    }
                    batch.help(&mut scratch);
                }
            }
            scratch.done();
        }
        // The buffer is unmapped before its bytes are released.
        drop(scratch);
        drop(taken);
    }

    /// Waits for the next work; returns `None` when the thread must end. `helped` says that it has
    /// just used a spare CPU.
    fn next(&mut self, helped: bool) -> Option<Entry> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if !std::mem::replace(&mut self.is_free, true) {
            state.free += 1;
        }
        if helped && state.queue.is_empty() && shared.may_spin() {
            // Changed under the lock: a thread that adds work either finds this one or wakes
            // another.
            shared.spinning.fetch_add(1, Relaxed);
            drop(state);
            let start = Instant::now();
            while shared.queued.load(Acquire) == 0 && start.elapsed() < SPIN {
                std::hint::spin_loop();
            }
            state = shared.lock();
            shared.spinning.fetch_sub(1, Relaxed);
        }
        loop {
            if let Some(entry) = shared.pop(&mut state) {
                state.free -= 1;
                self.is_free = false;
                return Some(entry);
            }
            if state.ended {
                break;
            }
            let most = if shared.memory.is_short() { IDLE_IF_SHORT } else { IDLE };
            let (after, timeout) = shared.wake.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner);
            state = after;
            // A reserved thread does not end.
            if timeout.timed_out() && state.has_free() {
                break;
            }
        }
        // Under the lock, so that no caller counts on this thread any more.
        state.free -= 1;
        self.is_free = false;
        None
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.threads -= 1;
        state.free -= isize::from(self.is_free);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    };

    use super::*;

    fn executor(most_threads: usize, limit_bytes: u64) -> Executor {
        Executor::new(most_threads, Memory::new(limit_bytes, None))
    }

    /// A task that calls a function.
    struct Call<F>(F);

    impl<F: FnOnce(&mut Scratch) + Send> Task for Call<F> {
        fn run(self: Box<Self>, scratch: &mut Scratch) {
            self.0(scratch);
        }
    }

    fn wait_for(what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn every_task_runs_on_one_of_a_bounded_number_of_threads() {
        let executor = executor(3, u64::MAX);
        let (gate, done) = (Arc::new(Barrier::new(4)), Arc::new(AtomicUsize::new(0)));
        for round in 1..=20 {
            for _ in 0..3 {
                let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
                let task = Call(move |scratch: &mut Scratch| {
                    assert_eq!(scratch.len(), SCRATCH_BYTES);
                    gate.wait();
                    done.fetch_add(1, SeqCst);
                });
                executor.reserve().expect("a thread").run(Box::new(task));
            }
            assert!(executor.reserve().is_none(), "all are busy");
            gate.wait();
            wait_for("the tasks", || done.load(SeqCst) == 3 * round);
            wait_for("a free thread", || executor.reserve().is_some());
            wait_for("all threads", || executor.shared.lock().free == 3);
        }
        assert_eq!(executor.shared.lock().threads, 3, "threads are used again");
    }

    #[test]
    fn a_thread_that_is_reserved_and_not_used_is_free_again() {
        let executor = executor(1, u64::MAX);
        let reserved = executor.reserve().expect("a thread");
        assert!(executor.reserve().is_none());
        drop(reserved);
        assert!(executor.reserve().is_some());
    }

    #[test]
    fn without_memory_there_is_no_thread() {
        let executor = executor(4, THREAD_BYTES + SCRATCH_BYTES as u64);
        let first = executor.reserve().expect("memory for one");
        assert!(executor.reserve().is_none(), "no memory for two");
        drop(first);
        assert!(executor.reserve().is_some());
    }

    /// No caller may rely on a thread that another caller failed to start.
    #[test]
    fn a_thread_that_cannot_be_started_gets_no_work() {
        let executor = executor(4, THREAD_BYTES);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10_000).for_each(|_| assert!(executor.reserve().is_none())));
            }
        });
        let state = executor.shared.lock();
        assert_eq!((state.threads, state.free, state.reserved), (0, 0, 0));
    }

    #[test]
    fn a_task_that_panics_takes_only_its_own_thread() {
        let executor = executor(1, u64::MAX);
        executor.reserve().expect("a thread").run(Box::new(Call(|_: &mut Scratch| panic!("a task with a bug"))));
        wait_for("the thread's end", || executor.shared.lock().threads == 0);
        let (sender, receiver) = mpsc::channel();
        executor
            .reserve()
            .expect("a thread")
            .run(Box::new(Call(move |_: &mut Scratch| sender.send(7).expect("a test"))));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(7));
    }

    #[test]
    fn threads_end_when_they_are_idle_or_the_executor_is_dropped() {
        let idle = executor(2, u64::MAX);
        drop(idle.reserve().expect("a thread"));
        wait_for("the end of an idle thread", || idle.shared.lock().threads == 0);
        let dropped = executor(2, u64::MAX);
        drop(dropped.reserve().expect("a thread"));
        let shared = Arc::clone(&dropped.shared);
        drop(dropped);
        wait_for("the end of all threads", || shared.lock().threads == 0);
    }

    /// A batch whose parts each wait until all helpers that are expected have come.
    struct Parts {
        left: AtomicUsize,
        gate: Barrier,
        done: AtomicUsize,
        wants: AtomicBool,
    }

    impl Batch for Parts {
        fn help(&self, _: &mut Scratch) {
            while self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                self.gate.wait();
                self.done.fetch_add(1, SeqCst);
            }
        }

        fn wants_help(&self) -> bool {
            self.wants.load(SeqCst) && self.left.load(SeqCst) > 0
        }
    }

    /// Each helper calls the next one, until no CPU is spare.
    #[test]
    fn helpers_come_for_spare_cpus() {
        let executor = executor(256, u64::MAX);
        let working = executor.begin_work();
        let spare = executor.shared.spare_cpus();
        if spare == 0 {
            // One CPU.
            return assert!(executor.reserve_spare().is_none());
        }
        let parts = Arc::new(Parts {
            left: AtomicUsize::new(spare),
            gate: Barrier::new(spare),
            done: AtomicUsize::new(0),
            wants: AtomicBool::new(true),
        });
        executor.reserve_spare().expect("a thread").share(Arc::clone(&parts) as _);
        wait_for("the parts, which wait for all helpers", || parts.done.load(SeqCst) == spare);
        wait_for("the end of help", || executor.shared.helping.load(SeqCst) == 0);
        drop(working);
        let all: Vec<Working> = (0..executor.shared.cpus).map(|_| executor.begin_work()).collect();
        assert!(executor.reserve_spare().is_none(), "{} work", all.len());
    }
}
