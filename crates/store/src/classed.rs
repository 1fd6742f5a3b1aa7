//! A pool of size classes.
//!
//! Class `c` holds objects of up to `32 × (c + 1)` bytes. Its objects lie in runs of one to eight pages, as many as keep
//! the tail that no object fits in small. A run has 32 KiB of address space to itself, of which it uses its pages, so
//! an object's location, its offset in the region, tells its run.
//!
//! `used_bytes = Σ runs' pages × 4096`; a run's objects `= live + free`; a run with `live = 0` is given back to the
//! system unless it is the last of its class with room.
#![allow(unsafe_code)] // reads and writes objects in the region

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::PAGE_SIZE;

use crate::{
    budget::{Budget, Full},
    pool::{Location, Pool},
    region::Region,
};

const CLASS_STEP: usize = 32;
const CLASSES: usize = PAGE_SIZE / CLASS_STEP;
const RUN_PAGES_MAX: usize = 8;
const RUN_STRIDE: usize = RUN_PAGES_MAX * PAGE_SIZE;

/// A run's free objects, a bit each.
#[derive(Debug, Default)]
struct Run {
    free: [u64; 4],
    live: usize,
}

#[derive(Debug, Default)]
struct Class {
    runs: HashMap<usize, Run>,
    /// Runs with a free object, the one to fill next last.
    roomy: Vec<usize>,
}

#[derive(Debug, Default)]
struct Strides {
    /// Strides from here on were never used.
    fresh: usize,
    given_back: Vec<usize>,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Classed {
    region: Region,
    classes: Box<[Mutex<Class>]>,
    strides: Mutex<Strides>,
    strides_max: usize,
    used_bytes: AtomicU64,
    budget: Arc<Budget>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn class_of(len_bytes: usize) -> usize {
    (len_bytes - 1) / CLASS_STEP
}

fn object_bytes(class: usize) -> usize {
    (class + 1) * CLASS_STEP
}

/// The fewest pages that waste less than 1 %, or that waste least.
fn run_pages(class: usize) -> usize {
    let waste = |pages: usize| pages * PAGE_SIZE % object_bytes(class) * 1000 / (pages * PAGE_SIZE);
    let good = (1..=RUN_PAGES_MAX).find(|&pages| waste(pages) < 10);
    good.or_else(|| (1..=RUN_PAGES_MAX).min_by_key(|&pages| waste(pages))).unwrap_or(1)
}

fn run_objects(class: usize) -> usize {
    run_pages(class) * PAGE_SIZE / object_bytes(class)
}

impl Run {
    fn new(objects: usize) -> Self {
        let mut free = [0; 4];
        for (word, bits) in free.iter_mut().enumerate() {
            let count = objects.saturating_sub(word * 64).min(64);
            *bits = if count == 64 { u64::MAX } else { (1 << count) - 1 };
        }
        Self { free, live: 0 }
    }

    fn take(&mut self) -> Option<usize> {
        let word = self.free.iter().position(|&bits| bits != 0)?;
        let bit = self.free[word].trailing_zeros() as usize;
        self.free[word] &= self.free[word] - 1;
        self.live += 1;
        Some(word * 64 + bit)
    }

    fn give(&mut self, object: usize) {
        self.free[object / 64] |= 1 << (object % 64);
        self.live -= 1;
    }

    fn free_count(&self) -> usize {
        self.free.iter().map(|bits| bits.count_ones() as usize).sum()
    }
}

impl Classed {
    /// A pool for at most `objects` objects at a time.
    pub(crate) fn new(objects: u64, budget: Arc<Budget>) -> io::Result<Self> {
        // Each run in use but the roomiest of its class holds an object.
        let strides_max = usize::try_from(objects).ok().and_then(|objects| objects.checked_add(CLASSES));
        let len_bytes = strides_max.and_then(|strides| strides.checked_mul(RUN_STRIDE));
        let (Some(strides_max), Some(len_bytes)) = (strides_max, len_bytes) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        if len_bytes as u64 > 1 << Location::BITS {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Self {
            region: Region::reserve(len_bytes)?,
            classes: (0..CLASSES).map(|_| Mutex::default()).collect(),
            strides: Mutex::default(),
            strides_max,
            used_bytes: AtomicU64::new(0),
            budget,
        })
    }

    fn take_stride(&self, pages: usize) -> Result<usize, Full> {
        let bytes = (pages * PAGE_SIZE) as u64;
        self.budget.take(bytes)?;
        let mut strides = lock(&self.strides);
        let stride = match strides.given_back.pop() {
            Some(stride) => stride,
            None if strides.fresh < self.strides_max => {
                strides.fresh += 1;
                strides.fresh - 1
            }
            None => {
                self.budget.give(bytes);
                return Err(Full);
            }
        };
        self.used_bytes.fetch_add(bytes, Relaxed);
        Ok(stride)
    }

    fn give_stride(&self, stride: usize, pages: usize) {
        let bytes = pages * PAGE_SIZE;
        // SAFETY: the run has no live object, and it is out of its class, so nobody uses its pages.
        unsafe { self.region.give_back(stride * RUN_STRIDE, bytes) };
        self.used_bytes.fetch_sub(bytes as u64, Relaxed);
        self.budget.give(bytes as u64);
        lock(&self.strides).given_back.push(stride);
    }
}

impl Pool for Classed {
    fn alloc(&self, len_bytes: usize) -> Result<Location, Full> {
        let number = class_of(len_bytes);
        let mut class = lock(&self.classes[number]);
        let Class { runs, roomy } = &mut *class;
        let stride = match roomy.last() {
            Some(&stride) => stride,
            None => {
                let stride = self.take_stride(run_pages(number))?;
                runs.insert(stride, Run::new(run_objects(number)));
                roomy.push(stride);
                stride
            }
        };
        let run = runs.get_mut(&stride).ok_or(Full)?;
        let object = run.take().ok_or(Full)?;
        if run.live == run_objects(number) {
            roomy.pop();
        }
        Ok(Location::new((stride * RUN_STRIDE + object * object_bytes(number)) as u64))
    }

    unsafe fn bytes(&self, at: Location, len_bytes: usize) -> &[u8] {
        // SAFETY: the caller keeps writers of this object away, and objects do not overlap.
        unsafe { self.region.bytes(at.get() as usize, len_bytes) }
    }

    unsafe fn write(&self, at: Location, bytes: &[u8]) {
        // SAFETY: the caller alone uses this object, and objects do not overlap.
        unsafe { self.region.write(at.get() as usize, bytes) }
    }

    unsafe fn free(&self, at: Location, len_bytes: usize) {
        let number = class_of(len_bytes);
        let stride = at.get() as usize / RUN_STRIDE;
        let object = at.get() as usize % RUN_STRIDE / object_bytes(number);
        let mut class = lock(&self.classes[number]);
        let Class { runs, roomy } = &mut *class;
        let Some(run) = runs.get_mut(&stride) else { return };
        if run.live == run_objects(number) {
            roomy.push(stride);
        }
        run.give(object);
        if run.live == 0 && roomy.len() > 1 {
            runs.remove(&stride);
            roomy.retain(|&other| other != stride);
            self.give_stride(stride, run_pages(number));
        }
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    fn check(&self) -> Result<(), String> {
        let mut used = 0;
        for (number, class) in self.classes.iter().enumerate() {
            let class = lock(class);
            let objects = run_objects(number);
            for (stride, run) in &class.runs {
                used += (run_pages(number) * PAGE_SIZE) as u64;
                if run.live + run.free_count() != objects {
                    return Err(format!("class {number}, run {stride}: live + free is not {objects}: {run:?}"));
                }
                if (run.live < objects) != class.roomy.contains(stride) {
                    return Err(format!("class {number}, run {stride}: wrongly listed: {run:?}"));
                }
            }
        }
        if used != self.used_bytes() {
            return Err(format!("runs hold {used} bytes, the account says {}", self.used_bytes()));
        }
        Ok(())
    }
}
