//! The heap: byte-granular objects side by side. Holes are reused by best fit, and objects are
//! split in two where no hole is long enough.
//!
//! ```text
//! heap     shards, each with a lock and up to 4 GiB of address space; location = shard × span +
//!          offset
//! shard    segments of 64 KiB, and its free blocks in bins by length; see `shard`, `bins`
//! segment  blocks without gaps: header, object, header, object, hole, …; see `block`
//! ```
//!
//! A thread allocates in its CPU's shard. Before that shard takes new memory, the thread tries the
//! holes of other shards that have many. Objects are freed in the shard that they are in. A thread
//! that frees an object of another CPU's shard pushes it on that shard's lock-free list, and the
//! next thread to lock the shard frees it: so a shard's metadata stays in one CPU's cache. A heap
//! starts with one shard, so that a small heap is not divided. It adds a shard for every
//! [`SHARD_FILL`] bytes, up to one per CPU. If threads contend, it adds one for every
//! [`SHARD_LEAST`] bytes, and the first few even earlier: two threads whose objects share a shard
//! contend long after each has its own shard.
//!
//! Overwriting pages with similar ones moves no objects, because the holes have suitable lengths.
//! Otherwise, compaction empties segments, those with the most free bytes first, and moves their
//! objects to holes elsewhere.
//!
//! `held = live + free + tail + index`, and all of it counts against the budget.
#![allow(unsafe_code)] // passes its callers' guarantees on to the blocks

mod bins;
mod block;
mod delayed;
mod emptying;
mod mutex;
mod objects;
mod owners;
mod salvage;
mod shard;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU8, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

pub use self::objects::{Object, Objects};
pub(crate) use self::owners::{Account, Goal, Location, Owner, Owners, Pressure};
pub(crate) use self::salvage::read_object;
use self::{
    block::{BlockKind, Blocks, HEADER_BYTES, NIL, SEGMENT},
    mutex::{Guard, Mutex},
    shard::{Shard, Wanted},
};
use crate::{
    cpus::Cpus,
    limit::{Budget, Full, Purpose, machine},
    memory::{MemoryFile, Region},
};
use crossbeam_utils::CachePadded;

/// Bytes held in a shard per active shard: each `SHARD_FILL` bytes activate another.
const SHARD_FILL: u64 = 4 << 20;

/// If threads often contend, the average bytes per active shard that activate another one:
/// `SHARD_LEAST`, or with few shards their number times `SHARD_STEP`. Each wait adds `WAIT` to a
/// shard's crowd count, each lock without a wait subtracts 1, and at `CROWDED` another shard may be
/// activated.
const SHARD_LEAST: u64 = 1 << 20;
const SHARD_STEP: u64 = 64 << 10;
const WAIT: u32 = 64;
const CROWDED: u32 = 16 * WAIT;

/// Address space of a shard, or less if the process may not reserve that much. Offsets have 32
/// bits, and the highest value is reserved.
const SPAN_MAX: u64 = 1 << 32;
const SPAN_MIN: u64 = 16 << 20;

/// Memory assumed for a machine that does not report its own.
const MEMORY_UNKNOWN: u64 = 1 << 40;

/// Smaller changes of a shard's free bytes are not published. With more room below the limit, this
/// grows up to a segment: to the room divided by `REPORT_PART`.
const REPORT_BYTES: u64 = SEGMENT as u64 / 16;
const REPORT_PART: u64 = 256;

/// With this many queued objects, a freeing thread tries to lock the shard and free them.
const HANDED_MAX: u32 = 16;

/// With this many queued objects, a freeing thread waits for the shard's lock and frees them:
/// otherwise the next holder must free them all while others wait.
const HANDED_MOST: u32 = 4 * HANDED_MAX;

/// Memory for objects of 1 to 4096 bytes.
///
/// An object is *live* from the [`alloc`](Self::alloc) that returned its location to the
/// [`free`](Self::free) that took it back. It is owned by the holder of its entry's lock or, before
/// it is in an entry, by the thread that allocated it.
#[derive(Debug)]
pub(crate) struct Heap {
    shards: Box<[OnceLock<Box<PaddedShard>>]>,
    cpus: Cpus,
    /// The shard of each CPU.
    homes: Box<[AtomicUsize]>,
    /// The first shard that is no CPU's home. Such shards replace shards whose address space is
    /// exhausted.
    next: AtomicUsize,
    /// How many of `homes` are in use.
    active: AtomicUsize,
    span_bits: u32,
    /// How many shards are roomy.
    roomy: CachePadded<AtomicUsize>,
    /// The highest pressure of any shard.
    pressure: AtomicU8,
    /// The file in memory that has the shards, and the offset of the first one.
    file: Option<(Arc<MemoryFile>, u64)>,
    budget: Arc<Budget>,
}

/// A shard, padded: readers on all CPUs access `blocks`, and threads without a hole in their own
/// shard read `roomy`, so both are off the lines that the shard's CPU keeps writing.
#[derive(Debug)]
struct PaddedShard {
    blocks: CachePadded<Blocks>,
    shard: CachePadded<Mutex<Shard>>,
    /// Whether threads of other CPUs try this shard before they take new memory.
    roomy: CachePadded<AtomicBool>,
    /// The highest pressure that a `free` has found here since the shard was last relieved. Changes
    /// under the lock.
    pressure: AtomicU8,
    /// Bytes held but not used by objects, as last published.
    free_bytes: AtomicU64,
    /// Whether a thread is compacting this shard. A second one would contend with it.
    relieving: AtomicBool,
    handed: CachePadded<Handed>,
}

/// A lock-free stack of objects to free: the low half is the block pushed last, the high half is
/// the count. Each block stores the next one.
#[derive(Debug)]
struct Handed(AtomicU64);

impl Handed {
    const NONE: u64 = NIL as u64;

    fn new() -> Self {
        Self(AtomicU64::new(Self::NONE))
    }

    fn is_empty(&self) -> bool {
        self.0.load(Relaxed) == Self::NONE
    }

    /// Pushes the object at `at`, which the caller owns, and returns the new count.
    fn push(&self, blocks: &Blocks, at: u32) -> u32 {
        let mut before = self.0.load(Relaxed);
        loop {
            blocks.put_handed(at, before as u32);
            let count = (before >> 32) as u32 + 1;
            let after = (u64::from(count) << 32) | u64::from(at);
            match self.0.compare_exchange_weak(before, after, Release, Relaxed) {
                Ok(_) => return count,
                Err(now) => before = now,
            }
        }
    }

    /// Takes all objects and passes each to `free`.
    fn take(&self, blocks: &Blocks, mut free: impl FnMut(u32)) {
        let mut at = self.0.swap(Self::NONE, Acquire) as u32;
        while at != NIL {
            let next = blocks.handed(at);
            free(at);
            at = next;
        }
    }
}

fn is_roomy(shard: &Shard) -> bool {
    shard.free_bytes > shard.live_bytes / 48 + u64::from(SEGMENT) / 4
}

/// Returns the bytes held in `active` shards at which contention activates another.
fn crowded_fill(active: u64) -> u64 {
    active * SHARD_LEAST.min(active * SHARD_STEP)
}

impl Heap {
    /// Creates an empty heap, with address space for as many objects as the machine's memory can
    /// hold. If the process's address space is limited, the shards of all CPUs get a quarter of it. They
    /// are in `file`, if there is one.
    ///
    /// # Errors
    /// The process cannot reserve [`SPAN_MIN`] of address space, or the file cannot be that long.
    pub(crate) fn new(budget: Arc<Budget>, file: Option<&Arc<MemoryFile>>) -> io::Result<Self> {
        let cpus = Cpus::new();
        let room = machine::address_space() / 4 / cpus.count();
        let mut span = (1 << (room | 1).ilog2()).clamp(SPAN_MIN, SPAN_MAX);
        while let Err(error) = Region::reserve(span as usize) {
            span /= 2;
            if span < SPAN_MIN {
                return Err(error);
            }
        }
        let memory_bytes = machine::bytes().unwrap_or(MEMORY_UNKNOWN);
        let count =
            (memory_bytes.div_ceil(span - u64::from(SEGMENT)) + cpus.count() as u64).min((1 << Location::BITS) / span);
        let file = file.map(|file| Ok::<_, io::Error>((Arc::clone(file), file.reserve(count * span)?))).transpose()?;
        Ok(Self {
            file,
            shards: (0..count).map(|_| OnceLock::new()).collect(),
            homes: (0..cpus.count()).map(AtomicUsize::new).collect(),
            next: AtomicUsize::new(cpus.count()),
            cpus,
            active: AtomicUsize::new(1),
            span_bits: span.trailing_zeros(),
            roomy: CachePadded::new(AtomicUsize::new(0)),
            pressure: AtomicU8::new(Pressure::None as u8),
            budget,
        })
    }

    fn padded(&self, number: usize) -> Result<&PaddedShard, Full> {
        if let Some(padded) = self.shards[number].get() {
            return Ok(padded);
        }
        let span = 1u64 << self.span_bits;
        // The last segment of a 4 GiB span would end beyond 32 bits.
        let segments = span / u64::from(SEGMENT) - 1;
        let shard = Shard::new(segments as u32, Arc::clone(&self.budget))?;
        let region = match &self.file {
            None => Region::reserve(span as usize),
            Some((file, at)) => Region::map(file, at + number as u64 * span, span as usize),
        };
        let region = region.map_err(|_| Full);
        let region = region.inspect_err(|_| self.budget.give(shard.index_bytes()))?;
        let padded = PaddedShard {
            blocks: CachePadded::new(Blocks::new(region)),
            shard: CachePadded::new(Mutex::new(shard)),
            roomy: CachePadded::new(AtomicBool::new(false)),
            pressure: AtomicU8::new(Pressure::None as u8),
            free_bytes: AtomicU64::new(0),
            relieving: AtomicBool::new(false),
            handed: CachePadded::new(Handed::new()),
        };
        if let Err(padded) = self.shards[number].set(Box::new(padded)) {
            self.budget.give(padded.shard.lock().index_bytes());
        }
        self.shards[number].get().map(|padded| &**padded).ok_or(Full)
    }

    /// Locks a shard and frees the objects queued for it.
    fn lock<'a>(&self, padded: &'a PaddedShard) -> Guard<'a, Shard> {
        self.with_handed(padded, padded.shard.lock())
    }

    /// Like `lock`, for a thread that moves objects: other threads take the lock first.
    fn lock_after_others<'a>(&self, padded: &'a PaddedShard) -> Guard<'a, Shard> {
        self.with_handed(padded, padded.shard.lock_after_others())
    }

    /// Locks the shard that this thread allocates in. If threads often contend there, activates
    /// another shard.
    fn lock_home<'a>(&self, padded: &'a PaddedShard) -> Guard<'a, Shard> {
        if let Some(mut shard) = padded.shard.try_lock() {
            shard.crowd = shard.crowd.saturating_sub(1);
            return self.with_handed(padded, shard);
        }
        self.wait_home(padded)
    }

    #[cold]
    fn wait_home<'a>(&self, padded: &'a PaddedShard) -> Guard<'a, Shard> {
        let mut shard = self.lock(padded);
        shard.crowd += WAIT;
        if shard.crowd < CROWDED {
            return shard;
        }
        shard.crowd = 0;
        drop(shard);
        let active = self.active.load(Relaxed);
        let held_bytes: u64 = self.padded_shards().map(|(_, padded)| padded.shard.lock().held_bytes).sum();
        if active < self.homes.len() && held_bytes >= crowded_fill(active as u64) {
            // If another thread was faster, its shard serves both.
            _ = self.active.compare_exchange(active, active + 1, Relaxed, Relaxed);
        }
        self.lock(padded)
    }

    fn with_handed<'a>(&self, padded: &'a PaddedShard, mut shard: Guard<'a, Shard>) -> Guard<'a, Shard> {
        if !padded.handed.is_empty() {
            self.free_handed(padded, &mut shard);
        }
        shard
    }

    #[cold]
    fn free_handed(&self, padded: &PaddedShard, shard: &mut Shard) {
        padded.handed.take(&padded.blocks, |at| shard.free_soon(&padded.blocks, at));
        self.note(padded, shard);
    }

    /// Returns how urgently a shard needs compaction. When little budget is left, any gain is
    /// worthwhile.
    fn pressure_of(&self, shard: &Shard) -> Pressure {
        let Shard { live_bytes, free_bytes, .. } = *shard;
        let segment = u64::from(SEGMENT);
        if free_bytes > live_bytes / 18 + segment {
            Pressure::Hard
        } else if free_bytes > live_bytes / 24 + segment / 2 || free_bytes > segment / 2 && self.budget.is_low() {
            Pressure::Soft
        } else {
            Pressure::None
        }
    }

    /// Publishes the effects of frees and allocations in a shard.
    fn note(&self, padded: &PaddedShard, shard: &Shard) {
        // All CPUs share the budget's cache line, so only significant changes are published.
        let (before, now) = (padded.free_bytes.load(Relaxed), shard.held_bytes - shard.live_bytes);
        if before.abs_diff(now) >= REPORT_BYTES && before.abs_diff(now) >= self.report_bytes() || now == 0 {
            self.publish_free(padded, shard);
        }
        let pressure = self.pressure_of(shard) as u8;
        if is_roomy(shard) && !padded.roomy.load(Relaxed) && !padded.roomy.swap(true, Relaxed) {
            self.roomy.fetch_add(1, Relaxed);
        }
        if pressure > padded.pressure.load(Relaxed) {
            padded.pressure.store(pressure, Relaxed);
            self.pressure.fetch_max(pressure, Release);
        }
    }

    fn publish_free(&self, padded: &PaddedShard, shard: &Shard) {
        let now = shard.held_bytes - shard.live_bytes;
        self.budget.report_free(padded.free_bytes.swap(now, Relaxed), now);
    }

    /// Frees all objects that wait to be freed, and publishes the exact number of free bytes of
    /// each shard.
    #[cold]
    pub(crate) fn publish_all_free(&self) {
        for (_, padded) in self.padded_shards() {
            let mut shard = self.lock(padded);
            shard.free_delayed(&padded.blocks);
            self.publish_free(padded, &shard);
        }
    }

    /// Returns the least change of a shard's free bytes that is published.
    fn report_bytes(&self) -> u64 {
        (self.budget.left() / REPORT_PART).clamp(REPORT_BYTES, SEGMENT.into())
    }

    /// Returns the index in `homes` of this thread's CPU.
    fn seat(&self) -> usize {
        match self.active.load(Relaxed) {
            1 => 0,
            active => self.cpus.current() % active,
        }
    }

    /// Returns the shard that this thread allocates in.
    fn home(&self) -> usize {
        self.homes[self.seat()].load(Relaxed)
    }

    fn padded_shards(&self) -> impl Iterator<Item = (usize, &PaddedShard)> {
        self.shards.iter().enumerate().filter_map(|(number, padded)| Some((number, &**padded.get()?)))
    }

    fn alloc_in(&self, number: usize, wanted: Wanted) -> Result<Location, Full> {
        let padded = self.padded(number)?;
        let mut shard = self.lock_home(padded);
        let at = shard.alloc(&padded.blocks, wanted)?;
        self.prepare(padded, &mut shard, wanted);
        let held_bytes = shard.held_bytes;
        self.release_and_fill(padded, shard);
        if held_bytes >= SHARD_FILL && self.active.load(Relaxed) < self.homes.len() {
            let useful = self.homes.len().min(1 + (held_bytes / SHARD_FILL) as usize);
            self.active.fetch_max(useful, Relaxed);
        }
        Ok(self.location(number, at))
    }

    /// Releases a shard's lock, and faults in memory that was taken under it.
    fn release_and_fill(&self, padded: &PaddedShard, mut shard: Guard<'_, Shard>) {
        let fresh = shard.take_fresh();
        drop(shard);
        if let Some(fresh) = fresh {
            fresh.fill(&padded.blocks);
            self.lock(padded).filled(&padded.blocks, fresh);
        }
    }

    /// Allocates from the free blocks of shard `home`, or else of roomy shards.
    fn fit_in_known(&self, home: usize, known: usize, wanted: Wanted) -> Option<Location> {
        (0..known).map(|step| (home + step) % known).find_map(|number| {
            let padded = self.shards[number].get()?;
            let mut shard = if number == home {
                self.lock_home(padded)
            } else if padded.roomy.load(Relaxed) {
                // The thread takes new memory in its own shard rather than wait, so threads that
                // began in one shard move apart.
                self.with_handed(padded, padded.shard.try_lock()?)
            } else {
                return None;
            };
            let at = shard.fit(&padded.blocks, wanted)?;
            self.prepare(padded, &mut shard, wanted);
            let roomy = is_roomy(&shard);
            drop(shard);
            if !roomy && padded.roomy.load(Relaxed) && padded.roomy.swap(false, Relaxed) {
                self.roomy.fetch_sub(1, Relaxed);
            }
            Some(self.location(number, at))
        })
    }

    /// If the new object is about to be written, frees a delayed object while the new one's lines
    /// are fetched into the cache.
    fn prepare(&self, padded: &PaddedShard, shard: &mut Shard, wanted: Wanted) {
        if wanted.writes {
            shard.free_one(&padded.blocks);
        }
        self.note(padded, shard);
    }

    fn alloc_anywhere(&self, wanted: Wanted) -> Result<Location, Full> {
        let seat = self.seat();
        let known = self.next.load(Relaxed).min(self.shards.len());
        loop {
            let home = self.homes[seat].load(Relaxed);
            if self.roomy.load(Relaxed) > 0
                && (self.active.load(Relaxed) > 1 || home >= self.homes.len())
                && let Some(at) = self.fit_in_known(home, known.max(home + 1), wanted)
            {
                return Ok(at);
            }
            match self.alloc_in(home, wanted) {
                Err(Full) if self.is_used_up(home) && self.next.load(Relaxed) < self.shards.len() => {
                    let next = self.next.fetch_add(1, Relaxed).min(self.shards.len() - 1);
                    // If another thread was faster, both use the shard that it chose.
                    _ = self.homes[seat].compare_exchange(home, next, Relaxed, Relaxed);
                }
                Err(Full) => return self.alloc_in_roomiest(home, wanted).ok_or(Full),
                taken => return taken,
            }
        }
    }

    /// Returns whether a shard has exhausted its address space.
    fn is_used_up(&self, number: usize) -> bool {
        self.shards[number].get().is_some_and(|padded| padded.shard.lock().is_used_up())
    }

    /// Allocates in the other shard with the most free bytes: this thread's own may have no room,
    /// or may not exist for lack of memory.
    #[cold]
    fn alloc_in_roomiest(&self, home: usize, wanted: Wanted) -> Option<Location> {
        let others = self.padded_shards().filter(|&(number, _)| number != home);
        let (number, padded) = others.max_by_key(|(_, padded)| padded.free_bytes.load(Relaxed))?;
        let mut shard = self.lock(padded);
        let at = shard.alloc(&padded.blocks, wanted).ok()?;
        self.note(padded, &shard);
        self.release_and_fill(padded, shard);
        Some(self.location(number, at))
    }

    fn location(&self, number: usize, at: u32) -> Location {
        Location::new(((number as u64) << self.span_bits) + u64::from(at + HEADER_BYTES))
    }

    /// Returns the shard of a location, and the offset of the object's body in it.
    fn find(&self, at: Location) -> (&PaddedShard, u32) {
        let number = (at.get() >> self.span_bits) as usize;
        let padded = self.shards[number].get().unwrap_or_else(|| unreachable!("a location is in an existing shard"));
        (padded, (at.get() & ((1 << self.span_bits) - 1)) as u32)
    }

    /// Allocates `len_bytes` (1 to 4096) with unspecified content. `owner` is the leaf whose entry
    /// will name the object; [`compact`](Self::compact) looks the object up there.
    pub(crate) fn alloc(&self, len_bytes: usize, owner: Owner) -> Result<Location, Full> {
        self.alloc_anywhere(Wanted { len_bytes: len_bytes as u32, owner, writes: false, purpose: Purpose::Store })
    }

    /// Like [`alloc`](Self::alloc), for a caller that is about to write the object: prefetches its
    /// lines, and frees a delayed object while they arrive.
    pub(crate) fn alloc_to_write(&self, len_bytes: usize, owner: Owner) -> Result<Location, Full> {
        self.alloc_anywhere(Wanted { len_bytes: len_bytes as u32, owner, writes: true, purpose: Purpose::Store })
    }

    /// Prefetches the first `len_bytes` of the object at `at`, if there is one.
    pub(crate) fn prefetch(&self, at: Location, len_bytes: usize) {
        // Only the header says whether the object is in two pieces, and reading it would wait for
        // memory.
        let (padded, body) = self.find(at);
        padded.blocks.prefetch_all(body, len_bytes as u32);
    }

    /// Returns the object's bytes in place, or `None` if they are in two pieces.
    ///
    /// # Safety
    /// `at` came from `alloc(len_bytes, _)` of this heap, is live, and is neither written nor freed
    /// while the slice exists.
    pub(crate) unsafe fn bytes(&self, at: Location, len_bytes: usize) -> Option<&[u8]> {
        let (padded, body) = self.find(at);
        // SAFETY: guaranteed by the caller.
        unsafe { padded.blocks.bytes(body, len_bytes) }
    }

    /// Copies the object's bytes to `out`.
    ///
    /// # Safety
    /// `at` came from `alloc(out.len(), _)` of this heap, is live, and is neither written nor freed
    /// during the call.
    pub(crate) unsafe fn read(&self, at: Location, out: &mut [u8]) {
        let (padded, body) = self.find(at);
        // SAFETY: guaranteed by the caller.
        unsafe { padded.blocks.read(body, out) };
    }

    /// Stores the object's bytes.
    ///
    /// # Safety
    /// `at` came from `alloc(bytes.len(), _)` of this heap, is live, and only the caller uses it.
    pub(crate) unsafe fn write(&self, at: Location, bytes: &[u8]) {
        let (padded, body) = self.find(at);
        // SAFETY: guaranteed by the caller.
        unsafe { padded.blocks.write(body, bytes) };
    }

    /// Records the leaf whose entry now names the object at `at`. The caller holds that entry, so
    /// the object is live.
    pub(crate) fn set_owner(&self, at: Location, owner: Owner) {
        let (padded, body) = self.find(at);
        let _shard = self.lock(padded);
        let block = body - HEADER_BYTES;
        padded.blocks.set_owner(block, owner);
        if padded.blocks.kind(block) == BlockKind::First {
            padded.blocks.set_owner(padded.blocks.link(block), owner);
        }
    }

    /// Frees the object.
    ///
    /// # Safety
    /// `at` came from an `alloc` of this heap, is live, and only the caller uses it.
    pub(crate) unsafe fn free(&self, at: Location) {
        let (padded, body) = self.find(at);
        let block = body - HEADER_BYTES;
        if at.get() >> self.span_bits != self.home() as u64 {
            let count = padded.handed.push(&padded.blocks, block);
            if count >= HANDED_MOST {
                // Locking the shard frees the queued objects.
                drop(self.lock_after_others(padded));
            } else if count >= HANDED_MAX
                && let Some(mut shard) = padded.shard.try_lock()
            {
                self.free_handed(padded, &mut shard);
            }
            return;
        }
        let mut shard = self.lock_home(padded);
        shard.free_soon(&padded.blocks, block);
        self.note(padded, &shard);
    }

    /// Returns where the shards begin in a file, how many there can be, and the bits of offsets in one.
    pub(crate) fn in_file(&self) -> [u64; 3] {
        let at = self.file.as_ref().map_or(0, |(_, at)| *at);
        [at, self.shards.len() as u64, self.span_bits.into()]
    }

    /// Returns the memory that an empty heap uses.
    pub(crate) fn empty_bytes(&self) -> u64 {
        (size_of_val(&*self.shards) + size_of_val(&*self.homes)) as u64 + self.cpus.bytes()
    }

    /// Returns the heap's memory by its use.
    pub(crate) fn account(&self) -> Account {
        let mut sum = Account { index_bytes: self.empty_bytes(), ..Account::default() };
        for (_, padded) in self.padded_shards() {
            let mut shard = self.lock(padded);
            shard.free_delayed(&padded.blocks);
            sum.live_bytes += shard.live_bytes;
            sum.free_bytes += shard.free_bytes;
            sum.tail_bytes += shard.held_bytes - shard.live_bytes - shard.free_bytes;
            sum.index_bytes += shard.index_bytes();
        }
        sum.held_bytes = sum.live_bytes + sum.free_bytes + sum.tail_bytes + sum.index_bytes;
        sum
    }

    /// Checks the whole structure and reports an inconsistency, or returns the number of objects.
    /// For tests, with no other thread in the heap.
    pub(crate) fn check(&self) -> Result<u64, String> {
        let check = |(number, padded): (usize, &PaddedShard)| {
            let mut shard = self.lock(padded);
            shard.settle(&padded.blocks);
            shard.check(&padded.blocks).map_err(|what| format!("shard {number}: {what}"))
        };
        self.padded_shards().map(check).sum()
    }
}
