//! The speed of allocating and freeing objects: the same sequence of lengths in the product's
//! allocator, in the published ones, in mimalloc and in the system's allocator. A single thread is
//! timed by its CPU clock, so that other work on the machine does not count; several threads are
//! timed by the wall clock.
#![allow(unsafe_code)] // calls the peers' allocators

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::Barrier,
    thread,
    time::Duration,
};

use anyhow::Context;
use mimalloc::MiMalloc;
use pagefold_codec::{Codec, PAGE_SIZE};
use pagefold_kinds::Data;
use pagefold_published::{AllocatorKind, Heap, Object};
use pagefold_report::Output;
use pagefold_store::{Object as ProductObject, Objects};
use rustix::time::{ClockId, clock_gettime};

use crate::{load::Random, product::MOSAIC};

/// Frees and allocations of each thread per round.
const STEPS: usize = 300_000;
const ROUNDS: usize = 5;

/// An allocator under test.
trait Allocator: Sync {
    type Held: Send;
    fn name(&self) -> &'static str;
    /// Allocates `bytes.len()` bytes, and copies `bytes` there if `fill` is set.
    fn put(&self, bytes: &[u8], fill: bool) -> Option<Self::Held>;
    fn remove(&self, held: Self::Held);
}

impl Allocator for Objects {
    type Held = ProductObject;

    fn name(&self) -> &'static str {
        MOSAIC
    }

    fn put(&self, bytes: &[u8], fill: bool) -> Option<ProductObject> {
        if fill { Objects::put(self, bytes) } else { self.room(bytes.len()) }
    }

    fn remove(&self, object: ProductObject) {
        Objects::remove(self, object);
    }
}

struct Published(Heap, AllocatorKind);

impl Allocator for Published {
    type Held = Object;

    fn name(&self) -> &'static str {
        self.1.name()
    }

    fn put(&self, bytes: &[u8], fill: bool) -> Option<Object> {
        if fill { self.0.put(bytes) } else { self.0.room(bytes.len()) }
    }

    fn remove(&self, object: Object) {
        self.0.remove(object);
    }
}

struct Peer<A>(A, &'static str);

struct Held(*mut u8, Layout);

// SAFETY: the pointer is the only one to its allocation.
unsafe impl Send for Held {}

impl<A: GlobalAlloc + Sync> Allocator for Peer<A> {
    type Held = Held;

    fn name(&self) -> &'static str {
        self.1
    }

    fn put(&self, bytes: &[u8], fill: bool) -> Option<Held> {
        let layout = Layout::from_size_align(bytes.len().max(1), 1).ok()?;
        // SAFETY: the layout's size is not 0.
        let pointer = unsafe { self.0.alloc(layout) };
        if pointer.is_null() {
            return None;
        }
        if fill {
            // SAFETY: just allocated with at least this length.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer, bytes.len()) };
        }
        Some(Held(pointer, layout))
    }

    fn remove(&self, Held(pointer, layout): Held) {
        // SAFETY: from `alloc` of the same allocator with this layout, and taken by value.
        unsafe { self.0.dealloc(pointer, layout) };
    }
}

/// Measures the allocators and their peers with the lengths of `data`'s pages under `codec`.
pub(super) fn run(output: &mut Output, codec: &dyn Codec, data: &Data, threads: &[usize]) -> anyhow::Result<()> {
    let mut stream = codec.stream()?;
    let mut object = [0; PAGE_SIZE];
    let lens: Vec<usize> =
        data.pages.iter().map(|page| stream.compress(page, &mut object).unwrap_or(PAGE_SIZE)).collect();
    for &threads in threads {
        for fill in [false, true] {
            let case = format!("{}/{}/{}/{threads}", data.name, codec.name(), if fill { "fill" } else { "bare" });
            let mut best = [("", Duration::MAX); 5];
            let objects = (lens.len() * 2) as u64;
            let published = |kind| anyhow::Ok(Published(Heap::new(kind, objects)?, kind));
            for _ in 0..ROUNDS {
                let rounds = [
                    round(&Objects::new()?, &lens, threads, fill)?,
                    round(&published(AllocatorKind::Xvmalloc)?, &lens, threads, fill)?,
                    round(&published(AllocatorKind::Xcfmalloc)?, &lens, threads, fill)?,
                    round(&Peer(MiMalloc, "mimalloc"), &lens, threads, fill)?,
                    round(&Peer(System, "libc-malloc"), &lens, threads, fill)?,
                ];
                for (best, (name, time)) in best.iter_mut().zip(rounds) {
                    *best = (name, best.1.min(time));
                }
            }
            for (name, time) in best {
                let mops = (STEPS * threads) as f64 / time.as_secs_f64() / 1e6;
                output.put_of(name, &case, "alloc_free_mops", mops, "Mop/s");
            }
        }
    }
    Ok(())
}

/// Returns the time of the clock that times one of `threads` threads.
fn now(threads: usize) -> Duration {
    let clock = if threads == 1 { ClockId::ThreadCPUTime } else { ClockId::Monotonic };
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Fills an allocator, then replaces random objects with new ones. Returns the time of the
/// replacements.
fn round<A: Allocator>(
    allocator: &A,
    lens: &[usize],
    threads: usize,
    fill: bool,
) -> anyhow::Result<(&'static str, Duration)> {
    let barrier = Barrier::new(threads);
    let work = |number: usize| {
        let bytes = [0x55; PAGE_SIZE];
        let mut random = Random::new(number as u64 + 3);
        let own = lens.iter().skip(number).step_by(threads);
        let held: Option<Vec<_>> = own.map(|&len| allocator.put(&bytes[..len], true).map(Some)).collect();
        let mut held = held.context("out of memory")?;
        barrier.wait();
        let start = now(threads);
        for _ in 0..STEPS {
            let slot = random.below(held.len() as u64) as usize;
            let len = lens[random.below(lens.len() as u64) as usize];
            // As in the store: the new object exists before the old one is freed.
            let new = allocator.put(&bytes[..len], fill).context("out of memory")?;
            if let Some(old) = held[slot].replace(new) {
                allocator.remove(old);
            }
        }
        let time = now(threads).saturating_sub(start);
        barrier.wait();
        for object in held.into_iter().flatten() {
            allocator.remove(object);
        }
        anyhow::Ok(time)
    };
    let times: Vec<Duration> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
            .collect::<anyhow::Result<_>>()
    })?;
    Ok((allocator.name(), times.into_iter().max().unwrap_or_default()))
}
