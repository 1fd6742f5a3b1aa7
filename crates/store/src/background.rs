//! A pool's background thread and its queue of work.
//!
//! A dropped disk leaves tree parts and objects that must be freed. The thread that drops the disk
//! frees a small batch. The rest is queued here for the background thread, or for a writer that
//! finds no room. The thread also compacts memory ([`Chores`]).
//!
//! The thread starts with the first work and ends with the pool. A forked child process has the
//! pool but not the thread; the first notification there starts one.

use std::{
    mem, process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU32, AtomicUsize,
            Ordering::{AcqRel, Relaxed, Release},
        },
    },
    thread::{self, JoinHandle},
};

use crate::tree::Unused;

/// Dropped disks after which the allocator returns its free memory: each disk leaves about a
/// hundred bytes in small blocks.
const DROPPED_MANY: u32 = 1000;

/// The work of a pool's background thread.
pub(crate) trait Chores: Send + Sync + 'static {
    /// Does some of the work. Returns whether more work is waiting.
    fn turn(self: &Arc<Self>) -> bool;
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Background {
    /// Whether the thread has been notified since its last turn began.
    notified: AtomicBool,
    worker: Mutex<Option<Worker>>,
    /// The process that has started the thread.
    process: AtomicU32,
    /// Held by a thread that compacts in the background or frees what dropped disks left.
    turn: Mutex<()>,
    /// Parts and objects of dropped disks that must be freed.
    leftovers: Mutex<Vec<Unused>>,
    /// The number of these lists, including the one that is being freed.
    left: AtomicUsize,
    /// Disks dropped since the allocator last returned its free memory.
    dropped: AtomicU32,
}

/// The right to compact in the background and to free what dropped disks left. One thread at a time
/// has it.
pub(crate) struct Turn<'a> {
    _guard: MutexGuard<'a, ()>,
}

struct Worker {
    process: u32,
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
}

/// Whether a pool has work, and whether it ends.
#[derive(Default)]
struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    waiting: bool,
    ended: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    /// Notifies the thread that `pool` has work. If it cannot be started, only writers compact.
    pub(crate) fn notify(&self, pool: &Arc<impl Chores>) {
        // All threads read `notified` frequently, so its line is not written without need.
        if !self.notified.load(Relaxed) && !self.notified.swap(true, AcqRel) {
            self.wake(pool);
        }
    }

    /// Like [`notify`](Self::notify), but also works in a child process whose parent's thread was
    /// notified.
    pub(crate) fn notify_again(&self, pool: &Arc<impl Chores>) {
        if self.is_lost() {
            self.notified.store(false, Relaxed);
        }
        self.notify(pool);
    }

    /// Waits until no other thread has the turn, and takes it.
    pub(crate) fn pause(&self) -> Turn<'_> {
        Turn { _guard: lock(&self.turn) }
    }

    /// Takes the turn for the background thread. Work found later needs another notification.
    pub(crate) fn begin_turn(&self) -> Turn<'_> {
        self.notified.store(false, Release);
        self.pause()
    }

    /// Queues what a dropped disk left.
    pub(crate) fn leave(&self, unused: Unused) {
        self.left.fetch_add(1, Relaxed);
        lock(&self.leftovers).push(unused);
    }

    /// Returns whether anything that dropped disks left is not freed yet.
    pub(crate) fn has_leftovers(&self) -> bool {
        self.left.load(Relaxed) > 0
    }

    /// Calls `free_some` to free a batch of what one dropped disk left; it returns whether any of
    /// that is left. Returns whether anything of any disk is left.
    pub(crate) fn free_left(&self, _turn: &Turn<'_>, free_some: impl FnOnce(&mut Unused) -> bool) -> bool {
        let unused = lock(&self.leftovers).pop();
        if let Some(mut unused) = unused {
            if free_some(&mut unused) {
                lock(&self.leftovers).push(unused);
                return true;
            }
            self.left.fetch_sub(1, Relaxed);
        }
        self.has_leftovers()
    }

    /// Counts a dropped disk. Returns whether many were dropped since
    /// [`forget_many`](Self::forget_many) last returned true.
    pub(crate) fn count_dropped(&self) -> bool {
        self.dropped.fetch_add(1, Relaxed) + 1 >= DROPPED_MANY
    }

    /// Returns whether many disks were dropped, and counts from zero if so.
    pub(crate) fn forget_many(&self) -> bool {
        let many = self.dropped.load(Relaxed) >= DROPPED_MANY;
        if many {
            self.dropped.store(0, Relaxed);
        }
        many
    }

    /// Returns whether the thread exists only in the parent process.
    fn is_lost(&self) -> bool {
        let process = self.process.load(Relaxed);
        process != 0 && process != process::id()
    }

    fn wake(&self, pool: &Arc<impl Chores>) {
        let mut worker = lock(&self.worker);
        if self.is_lost() {
            // In a child, there is nothing to end or to release.
            mem::forget(worker.take());
        }
        if worker.is_none() {
            *worker = Worker::start(pool);
            self.process.store(worker.as_ref().map_or(0, |worker| worker.process), Relaxed);
        }
        if let Some(worker) = &*worker {
            worker.signal.change(|state| state.waiting = true);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let is_lost = self.is_lost();
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(worker) = worker else { return };
        if is_lost {
            mem::forget(worker);
            return;
        }
        worker.signal.change(|state| state.ended = true);
        // The thread itself may run this, if it held the pool's last reference.
        if worker.thread.thread().id() != thread::current().id() {
            // A panic of the thread has already been reported.
            let _ = worker.thread.join();
        }
    }
}

impl Worker {
    fn start(pool: &Arc<impl Chores>) -> Option<Self> {
        let signal = Arc::<Signal>::default();
        let (own, pool) = (Arc::clone(&signal), Arc::downgrade(pool));
        let run = move || {
            while own.wait() {
                // Between two turns, this thread holds no reference to the pool.
                while pool.upgrade().is_some_and(|pool| pool.turn()) {}
            }
        };
        let thread = thread::Builder::new().name("pagefold-compact".into()).spawn(run).ok()?;
        Some(Self { process: process::id(), signal, thread })
    }
}

impl Signal {
    fn change(&self, change: impl FnOnce(&mut SignalState)) {
        change(&mut lock(&self.state));
        self.changed.notify_one();
    }

    /// Waits for work. Returns false at the end of the pool.
    fn wait(&self) -> bool {
        let state = self.changed.wait_while(lock(&self.state), |state| !state.waiting && !state.ended);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.waiting = false;
        !state.ended
    }
}
