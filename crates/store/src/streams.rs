//! Compression streams, one a CPU.
//!
//! A thread takes the stream of the CPU it runs on. If that one is taken (the thread that has it was moved or
//! preempted), it takes the next free one; only when every stream is taken does it wait. A stream is made when its CPU
//! first asks; where the memory limit forbids that, another CPU's has to do. Nothing blocks for long while it holds a stream: a holder may take an entry's lock, never the reverse.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crossbeam_utils::CachePadded;
use pagefold_codec::{Codec, PAGE_SIZE, Page, Stream};

use crate::budget::{Budget, Full};

/// A codec's working state and the buffer for the bytes it makes or is to read.
pub(crate) struct Working {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) object: Box<Page>,
    /// Room to assemble a page that is written in part.
    pub(crate) page: Box<Page>,
}

type Slot = Mutex<Option<Working>>;

/// The streams of a store.
pub(crate) struct Streams {
    codec: Arc<dyn Codec>,
    cpus: Box<[CachePadded<Slot>]>,
    used_bytes: AtomicU64,
}

/// A stream that this thread holds; there is one inside.
pub(crate) struct Taken<'a> {
    guard: MutexGuard<'a, Option<Working>>,
    /// The CPU whose stream it is.
    pub(crate) cpu: usize,
}

impl Taken<'_> {
    /// The working state.
    pub(crate) fn working(&mut self) -> Result<&mut Working, Full> {
        self.guard.as_mut().ok_or(Full)
    }
}

impl Streams {
    /// Streams of `codec`, none made yet, for `cpus` CPUs.
    pub(crate) fn new(codec: Arc<dyn Codec>, cpus: usize) -> Self {
        let cpus = (0..cpus.max(1)).map(|_| CachePadded::default()).collect();
        Self { codec, cpus, used_bytes: AtomicU64::new(0) }
    }

    pub(crate) fn codec(&self) -> &dyn Codec {
        &*self.codec
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Takes a stream, this CPU's if possible.
    pub(crate) fn take(&self, budget: &Budget) -> Result<Taken<'_>, Full> {
        let home = rustix::thread::sched_getcpu() % self.cpus.len();
        for step in 0..self.cpus.len() {
            let cpu = (home + step) % self.cpus.len();
            match self.cpus[cpu].try_lock() {
                Ok(guard) => return self.made(guard, cpu, budget),
                Err(TryLockError::Poisoned(poisoned)) => return self.made(poisoned.into_inner(), cpu, budget),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let guard = self.cpus[home].lock().unwrap_or_else(PoisonError::into_inner);
        self.made(guard, home, budget)
    }

    fn made<'a>(
        &'a self,
        mut guard: MutexGuard<'a, Option<Working>>,
        cpu: usize,
        budget: &Budget,
    ) -> Result<Taken<'a>, Full> {
        if guard.is_none() {
            match self.make(budget) {
                Ok(working) => *guard = Some(working),
                Err(Full) => {
                    drop(guard);
                    return self.take_made();
                }
            }
        }
        Ok(Taken { guard, cpu })
    }

    /// Waits for a stream that is there: what has been written must be readable at the memory limit.
    #[cold]
    fn take_made(&self) -> Result<Taken<'_>, Full> {
        for (cpu, slot) in self.cpus.iter().enumerate() {
            let guard = slot.lock().unwrap_or_else(PoisonError::into_inner);
            if guard.is_some() {
                return Ok(Taken { guard, cpu });
            }
        }
        Err(Full)
    }

    #[cold]
    fn make(&self, budget: &Budget) -> Result<Working, Full> {
        let stream = self.codec.stream().map_err(|_| Full)?;
        let bytes = (stream.memory_bytes() + 2 * PAGE_SIZE) as u64;
        budget.take(bytes)?;
        self.used_bytes.fetch_add(bytes, Relaxed);
        Ok(Working { stream, object: Box::new([0; PAGE_SIZE]), page: Box::new([0; PAGE_SIZE]) })
    }
}
