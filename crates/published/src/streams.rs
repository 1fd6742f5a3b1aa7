//! zram's three ways to share compression streams among threads.
//!
//! | policy   | published as                                                        |
//! |----------|---------------------------------------------------------------------|
//! | `Single` | `zcomp`'s one stream behind a mutex (April 2014)                    |
//! | `Idle`   | a list of idle ones, at most `max_comp_streams` (April 2014)        |
//! | `PerCpu` | "zram: user per-cpu compression streams" (May 2016)                 |
//!
//! A stream is a codec's working state and a buffer for its output. Reads take one too, as zram's
//! have done since its codecs came from the kernel's crypto interface (July 2016); before that,
//! decoding needed none.
//!
//! In the kernel, a thread that holds its CPU's stream cannot be preempted. Here it can, so a mutex
//! guards each CPU's stream; a thread waits only if the holder was preempted.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, Thread},
};

use crossbeam_utils::CachePadded;
use pagefold_codec::{Codec, PAGE_SIZE, Page, Stream, StreamError};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

use crate::spin::SpinMutex;

/// The number of streams and how they are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPolicy {
    /// One stream behind a mutex.
    Single,
    /// A list of at most this many streams, or one for 0. A thread that finds none idle waits until
    /// one is given back.
    Idle(usize),
    /// One per CPU.
    PerCpu,
}

/// A codec's working state and its buffer.
pub(crate) struct Working {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) object: Box<Page>,
}

/// The streams of a store, each created when it is first needed.
pub(crate) struct Streams {
    codec: Arc<dyn Codec>,
    shelf: Shelf,
}

enum Shelf {
    /// CPU `n` has stream `n % count`; there is one stream, or one per CPU.
    Fixed(Box<[CachePadded<Mutex<Option<Working>>>]>),
    List {
        most: usize,
        list: SpinMutex<List>,
    },
}

/// `made = idle + those in use ≤ most`
#[derive(Default)]
struct List {
    idle: Vec<Working>,
    made: usize,
    /// Threads that sleep until a stream is given back.
    waiting: VecDeque<Thread>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    pub(crate) fn new(codec: Arc<dyn Codec>, policy: StreamPolicy) -> Self {
        let fixed = |count| Shelf::Fixed((0..count).map(|_| CachePadded::default()).collect());
        let shelf = match policy {
            StreamPolicy::Single => fixed(1),
            StreamPolicy::Idle(most) => Shelf::List { most: most.max(1), list: SpinMutex::default() },
            StreamPolicy::PerCpu => fixed(cpus()),
        };
        Self { codec, shelf }
    }

    /// Calls `work` with a stream that no other thread uses during the call, waiting for one if
    /// necessary.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Working) -> T) -> Result<T, StreamError> {
        match &self.shelf {
            Shelf::Fixed(streams) => {
                let number = if streams.len() == 1 { 0 } else { sched_getcpu() % streams.len() };
                let mut stream = lock(&streams[number]);
                let working = match &mut *stream {
                    Some(working) => working,
                    empty => empty.insert(self.make()?),
                };
                Ok(work(working))
            }
            Shelf::List { most, list } => {
                let mut working = self.take(*most, list)?;
                let result = work(&mut working);
                let mut list = list.lock();
                list.idle.push(working);
                let woken = list.waiting.pop_front();
                drop(list);
                if let Some(thread) = woken {
                    thread.unpark();
                }
                Ok(result)
            }
        }
    }

    /// Takes a stream from the list, or creates one if the limit allows it.
    fn take(&self, most: usize, shared: &SpinMutex<List>) -> Result<Working, StreamError> {
        let mut own: Option<Thread> = None;
        loop {
            let mut list = shared.lock();
            // A thread may return from sleep without having been woken; its old place in the queue
            // must not consume a wake-up meant for another thread.
            if let Some(own) = &own {
                list.waiting.retain(|other| other.id() != own.id());
            }
            if let Some(working) = list.idle.pop() {
                return Ok(working);
            }
            if list.made < most {
                list.made += 1;
                drop(list);
                return self.make().inspect_err(|_| shared.lock().made -= 1);
            }
            list.waiting.push_back(own.get_or_insert_with(thread::current).clone());
            drop(list);
            // Returns immediately if the thread was woken in between.
            thread::park();
        }
    }

    fn make(&self) -> Result<Working, StreamError> {
        Ok(Working { stream: self.codec.stream()?, object: Box::new([0; PAGE_SIZE]) })
    }

    /// Returns the bytes of the streams that exist and are not in use.
    pub(crate) fn bytes(&self) -> u64 {
        let one = |working: &Working| (working.stream.memory_bytes() + PAGE_SIZE) as u64;
        match &self.shelf {
            Shelf::Fixed(streams) => streams.iter().map(|stream| lock(stream).as_ref().map_or(0, one)).sum(),
            Shelf::List { list, .. } => list.lock().idle.iter().map(one).sum(),
        }
    }
}

/// Returns the highest number of a CPU that this thread may run on, plus one. Numbers in between
/// without a CPU cost a cache line each.
fn cpus() -> usize {
    sched_getaffinity(None).map_or(1, |set| (0..CpuSet::MAX_CPU).rfind(|&cpu| set.is_set(cpu)).unwrap_or(0) + 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
    };

    use pagefold_codec::Lz4;

    use super::*;

    const POLICIES: [StreamPolicy; 4] =
        [StreamPolicy::Single, StreamPolicy::Idle(0), StreamPolicy::Idle(3), StreamPolicy::PerCpu];

    fn most(policy: StreamPolicy) -> usize {
        match policy {
            StreamPolicy::Single => 1,
            StreamPolicy::Idle(most) => most.max(1),
            StreamPolicy::PerCpu => cpus(),
        }
    }

    #[test]
    fn every_policy_lends_a_stream_to_one_thread_at_a_time() {
        for policy in POLICIES {
            let streams = Streams::new(Arc::new(Lz4), policy);
            let (inside, most_inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|scope| {
                for mark in 0..most(policy) as u8 + 6 {
                    let (streams, inside, most_inside) = (&streams, &inside, &most_inside);
                    scope.spawn(move || {
                        for turn in 0..200 {
                            let work = |working: &mut Working| {
                                most_inside.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                                working.object.fill(mark);
                                if turn % 10 == 0 {
                                    thread::yield_now();
                                }
                                inside.fetch_sub(1, SeqCst);
                                working.object.iter().all(|&byte| byte == mark)
                            };
                            assert!(streams.with(work).expect("memory"), "{policy:?}");
                        }
                    });
                }
            });
            assert!(most_inside.into_inner() <= most(policy), "{policy:?}");
        }
    }

    #[test]
    fn streams_are_made_when_they_are_wanted() {
        for policy in POLICIES {
            let streams = Streams::new(Arc::new(Lz4), policy);
            assert_eq!(streams.bytes(), 0, "{policy:?}");
            streams.with(|_| ()).expect("memory");
            let one = streams.bytes();
            assert!(one >= PAGE_SIZE as u64, "{policy:?}");
            if most(policy) == 1 || policy == StreamPolicy::Idle(3) {
                (0..10).for_each(|_| streams.with(|_| ()).expect("memory"));
                assert_eq!(streams.bytes(), one, "{policy:?}");
            }
        }
    }
}
