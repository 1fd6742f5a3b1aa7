//! The heap: objects side by side to the byte, holes used again by best fit, objects cut in two
//! where no hole is long enough.
//!
//! ```text
//! heap     shards, each with a lock and up to 4 GiB of address space        location = shard × span + offset
//! shard    segments of 64 KiB, and its free blocks in bins by length        see `shard`, `bins`
//! segment  blocks without a gap: header, object, header, object, hole, …    see `block`
//! ```
//!
//! A thread allocates in the shard of its CPU and, before that one takes new memory, in the holes
//! of others that have many; objects are freed in the shard they lie in. Those of other CPUs'
//! shards are handed over in a list that takes no lock, and whoever locks the shard next frees them
//! there: so the lines that describe a shard stay in one CPU's cache. A heap starts with one shard
//! and uses another for each [`SHARD_FILL`] bytes, up to one a CPU, so that a small one is not
//! divided; where threads are in each other's way, for each [`SHARD_LEAST`], and the first few
//! sooner: objects of two threads that once lie in one shard keep them in each other's way long
//! after both have their own.
//!
//! Overwriting pages with others of the same kind needs no object moved: the holes have the lengths
//! that are asked for. When they do not, segments are emptied, those with the most free bytes
//! first: their objects go to holes elsewhere.
//!
//! `held = live + free + tail + index`, and all of it is in the budget.
#![allow(unsafe_code)] // passes its callers' promises on to the blocks

mod bins;
mod block;
mod delayed;
mod emptying;
mod mutex;
mod owners;
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

pub(crate) use self::owners::{Account, Goal, Location, Owner, Owners, Pressure};
use self::{
    block::{BlockKind, Blocks, HEADER_BYTES, NIL, SEGMENT},
    mutex::{Guard, Mutex},
    shard::{Shard, Wanted},
};
use crate::{
    budget::{Budget, Full, Purpose},
    cpus::Cpus,
    memory,
    region::Region,
};
use crossbeam_utils::CachePadded;

/// Bytes held in a shard from which on there is another.
const SHARD_FILL: u64 = 4 << 20;

/// The same on average over all shards where threads often wait for each other, and while there are
/// few shards this much for each of them. A wait counts as `WAIT`, each turn without takes one off,
/// and at `CROWDED` there is another shard.
const SHARD_LEAST: u64 = 1 << 20;
const SHARD_STEP: u64 = 64 << 10;
const WAIT: u32 = 64;
const CROWDED: u32 = 16 * WAIT;

/// Address space of a shard: offsets in it are 32 bits, of which the highest is not one. Less where
/// the process may not have that much.
const SPAN_MAX: u64 = 1 << 32;
const SPAN_MIN: u64 = 16 << 20;

/// What a machine that does not tell its memory is taken to have.
const MEMORY_UNKNOWN: u64 = 1 << 40;

/// A change of what is free in a shard of which others are told.
const TELL_BYTES: u64 = SEGMENT as u64 / 16;

/// Objects handed over to a shard from which on whoever hands over another frees them.
const HANDED_MAX: u32 = 16;

/// Objects handed over from which on he waits for the shard to free them: its next holder frees all
/// there are, and others wait for that.
const HANDED_MOST: u32 = 4 * HANDED_MAX;

/// Memory for objects of 1 to 4096 bytes.
///
/// An object is *live* from the [`alloc`](Self::alloc) that gave its location to the
/// [`free`](Self::free) that took it back. Whoever holds the lock of the entry that names an
/// object, or has not yet put it in an entry, owns it.
#[derive(Debug)]
pub(crate) struct Heap {
    shards: Box<[OnceLock<Box<PaddedShard>>]>,
    cpus: Cpus,
    /// The shard of each CPU.
    homes: Box<[AtomicUsize]>,
    /// Shards from here on are nobody's yet: they take the place of those whose address space is
    /// used up.
    next: AtomicUsize,
    /// How many of `homes` are in use.
    active: AtomicUsize,
    span_bits: u32,
    /// The highest pressure of its shards.
    pressure: AtomicU8,
    budget: Arc<Budget>,
}

/// Readers on all CPUs look at `blocks`, and at `roomy` whoever finds no hole in his own shard: not
/// on lines that the shard's CPU writes all the time.
#[derive(Debug)]
struct PaddedShard {
    blocks: CachePadded<Blocks>,
    shard: CachePadded<Mutex<Shard>>,
    /// Whether threads of other CPUs look here before they take new memory.
    roomy: CachePadded<AtomicBool>,
    /// The highest pressure that a `free` has met here since it was last relieved. Changes under
    /// the lock.
    pressure: AtomicU8,
    /// Bytes that its objects leave of what it holds, as they were a moment ago.
    free_bytes: AtomicU64,
    /// Whether a thread relieves it: two would be in each other's way.
    relieving: AtomicBool,
    handed: CachePadded<Handed>,
}

/// Objects to be freed, the last one handed over first: its block in the low half, how many they
/// are in the high half. Each names the next in a field of its block.
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

    /// Adds the object at `at`, which is the caller's, and returns how many there are now.
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

    /// Takes them all and passes each to `free`.
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

/// Bytes held in `active` shards from which on threads that wait for each other get another.
fn crowded_fill(active: u64) -> u64 {
    active * SHARD_LEAST.min(active * SHARD_STEP)
}

impl Heap {
    /// An empty heap, with address space for as many objects as the machine's memory can hold.
    ///
    /// # Errors
    /// The process may not have [`SPAN_MIN`] of address space.
    pub(crate) fn new(budget: Arc<Budget>) -> io::Result<Self> {
        let mut span = SPAN_MAX;
        while let Err(error) = Region::reserve(span as usize) {
            span /= 2;
            if span < SPAN_MIN {
                return Err(error);
            }
        }
        let cpus = Cpus::new();
        let memory_bytes = memory::bytes().unwrap_or(MEMORY_UNKNOWN);
        let count =
            (memory_bytes.div_ceil(span - u64::from(SEGMENT)) + cpus.count() as u64).min((1 << Location::BITS) / span);
        Ok(Self {
            shards: (0..count).map(|_| OnceLock::new()).collect(),
            homes: (0..cpus.count()).map(AtomicUsize::new).collect(),
            next: AtomicUsize::new(cpus.count()),
            cpus,
            active: AtomicUsize::new(1),
            span_bits: span.trailing_zeros(),
            pressure: AtomicU8::new(Pressure::None as u8),
            budget,
        })
    }

    fn padded(&self, number: usize) -> Result<&PaddedShard, Full> {
        if let Some(padded) = self.shards[number].get() {
            return Ok(padded);
        }
        let span = 1u64 << self.span_bits;
        // The last segment of a span of 4 GiB would end beyond 32 bits.
        let segments = span / u64::from(SEGMENT) - 1;
        let shard = Shard::new(segments as u32, Arc::clone(&self.budget))?;
        let region = Region::reserve(span as usize).map_err(|_| Full);
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

    /// Locks a shard and frees what was handed over to it.
    fn lock<'a>(&self, padded: &'a PaddedShard) -> Guard<'a, Shard> {
        self.with_handed(padded, padded.shard.lock())
    }

    /// The same for who moves objects, which can wait.
    fn lock_after_others<'a>(&self, padded: &'a PaddedShard) -> Guard<'a, Shard> {
        self.with_handed(padded, padded.shard.lock_after_others())
    }

    /// Locks the shard that this thread allocates in; where threads often wait for each other
    /// there, they come apart.
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
            // Whoever was faster has made one for both.
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

    /// How much a shard wants to be compacted. Where little is left to take, it is as long as there
    /// is anything to gain.
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

    /// Tells others what frees and takes have made of a shard.
    fn note(&self, padded: &PaddedShard, shard: &Shard) {
        // The budget's line is every CPU's: it is told of what makes a difference.
        let (before, now) = (padded.free_bytes.load(Relaxed), shard.held_bytes - shard.live_bytes);
        if before.abs_diff(now) >= TELL_BYTES || now == 0 {
            padded.free_bytes.store(now, Relaxed);
            self.budget.tell_free(before, now);
        }
        let pressure = self.pressure_of(shard) as u8;
        if is_roomy(shard) && !padded.roomy.load(Relaxed) {
            padded.roomy.store(true, Relaxed);
        }
        if pressure > padded.pressure.load(Relaxed) {
            padded.pressure.store(pressure, Relaxed);
            self.pressure.fetch_max(pressure, Release);
        }
    }

    /// The place in `homes` of this thread's CPU.
    fn seat(&self) -> usize {
        match self.active.load(Relaxed) {
            1 => 0,
            active => self.cpus.current() % active,
        }
    }

    /// The shard that this thread allocates in.
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
        drop(shard);
        if held_bytes >= SHARD_FILL && self.active.load(Relaxed) < self.homes.len() {
            let useful = self.homes.len().min(1 + (held_bytes / SHARD_FILL) as usize);
            self.active.fetch_max(useful, Relaxed);
        }
        Ok(self.location(number, at))
    }

    /// Takes room among the free blocks of shard `home`, or else of those that have many.
    fn fit_in_known(&self, home: usize, known: usize, wanted: Wanted) -> Option<Location> {
        (0..known).map(|step| (home + step) % known).find_map(|number| {
            let padded = self.shards[number].get()?;
            let mut shard = if number == home {
                self.lock_home(padded)
            } else if padded.roomy.load(Relaxed) {
                // Rather than wait there it takes new memory of its own: so threads come apart that
                // began in one shard.
                self.with_handed(padded, padded.shard.try_lock()?)
            } else {
                return None;
            };
            let at = shard.fit(&padded.blocks, wanted)?;
            self.prepare(padded, &mut shard, wanted);
            let roomy = is_roomy(&shard);
            drop(shard);
            if !roomy && padded.roomy.load(Relaxed) {
                padded.roomy.store(false, Relaxed);
            }
            Some(self.location(number, at))
        })
    }

    /// Frees an object while the lines of a new one come into the cache, if that is about to be
    /// written.
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
            if (self.active.load(Relaxed) > 1 || home >= self.homes.len())
                && let Some(at) = self.fit_in_known(home, known.max(home + 1), wanted)
            {
                return Ok(at);
            }
            match self.alloc_in(home, wanted) {
                Err(Full) if self.is_used_up(home) && self.next.load(Relaxed) < self.shards.len() => {
                    let next = self.next.fetch_add(1, Relaxed).min(self.shards.len() - 1);
                    // Whoever was faster has moved both.
                    _ = self.homes[seat].compare_exchange(home, next, Relaxed, Relaxed);
                }
                Err(Full) => return self.alloc_in_roomiest(home, wanted).ok_or(Full),
                taken => return taken,
            }
        }
    }

    /// Whether a shard has no address space left to extend into.
    fn is_used_up(&self, number: usize) -> bool {
        self.shards[number].get().is_some_and(|padded| padded.shard.lock().is_used_up())
    }

    /// Takes room in the other shard where the most is free: this thread's own may have none, or
    /// not be there for want of memory.
    #[cold]
    fn alloc_in_roomiest(&self, home: usize, wanted: Wanted) -> Option<Location> {
        let others = self.padded_shards().filter(|&(number, _)| number != home);
        let (number, padded) = others.max_by_key(|(_, padded)| padded.free_bytes.load(Relaxed))?;
        let mut shard = self.lock(padded);
        let at = shard.alloc(&padded.blocks, wanted).ok()?;
        self.note(padded, &shard);
        Some(self.location(number, at))
    }

    fn location(&self, number: usize, at: u32) -> Location {
        Location::new(((number as u64) << self.span_bits) + u64::from(at + HEADER_BYTES))
    }

    /// The shard that a location is in, and the offset of the object's body there.
    fn find(&self, at: Location) -> (&PaddedShard, u32) {
        let number = (at.get() >> self.span_bits) as usize;
        let padded = self.shards[number].get().unwrap_or_else(|| unreachable!("locations come from shards that are"));
        (padded, (at.get() & ((1 << self.span_bits) - 1)) as u32)
    }

    /// Takes room for `len_bytes` (1 to 4096) whose bytes are unspecified. `owner` is the leaf with
    /// the entry that will name the object; [`compact`](Self::compact) asks there for it.
    pub(crate) fn alloc(&self, len_bytes: usize, owner: Owner) -> Result<Location, Full> {
        self.alloc_anywhere(Wanted { len_bytes: len_bytes as u32, owner, writes: false, purpose: Purpose::Store })
    }

    /// The same for a caller who is about to write the object: has its lines in the cache soon, and
    /// does meanwhile what was put off.
    pub(crate) fn alloc_to_write(&self, len_bytes: usize, owner: Owner) -> Result<Location, Full> {
        self.alloc_anywhere(Wanted { len_bytes: len_bytes as u32, owner, writes: true, purpose: Purpose::Store })
    }

    /// Has the lines of an object's first `len_bytes` in the cache soon, if one lies at `at`.
    pub(crate) fn prefetch(&self, at: Location, len_bytes: usize) {
        // Where it lies in two pieces, only its header says so, which would be waited for.
        let (padded, body) = self.find(at);
        padded.blocks.prefetch_all(body, len_bytes as u32);
    }

    /// The object's bytes where they lie, or `None` if they lie in two pieces.
    ///
    /// # Safety
    /// `at` came from `alloc(len_bytes, _)` of this heap, is live, and is neither written nor freed
    /// while the slice is.
    pub(crate) unsafe fn bytes(&self, at: Location, len_bytes: usize) -> Option<&[u8]> {
        let (padded, body) = self.find(at);
        // SAFETY: the caller's word.
        unsafe { padded.blocks.bytes(body, len_bytes) }
    }

    /// Copies the object's bytes to `out`.
    ///
    /// # Safety
    /// `at` came from `alloc(out.len(), _)` of this heap, is live, and is neither written nor freed
    /// meanwhile.
    pub(crate) unsafe fn read(&self, at: Location, out: &mut [u8]) {
        let (padded, body) = self.find(at);
        // SAFETY: the caller's word.
        unsafe { padded.blocks.read(body, out) };
    }

    /// Stores the object's bytes.
    ///
    /// # Safety
    /// `at` came from `alloc(bytes.len(), _)` of this heap, is live, and the caller alone uses it.
    pub(crate) unsafe fn write(&self, at: Location, bytes: &[u8]) {
        let (padded, body) = self.find(at);
        // SAFETY: the caller's word.
        unsafe { padded.blocks.write(body, bytes) };
    }

    /// Says that another leaf has the entry that names the object at `at`, which is live as long as
    /// its entry is held.
    pub(crate) fn set_owner(&self, at: Location, owner: Owner) {
        let (padded, body) = self.find(at);
        let _shard = self.lock(padded);
        let block = body - HEADER_BYTES;
        padded.blocks.set_owner(block, owner);
        if padded.blocks.kind(block) == BlockKind::First {
            padded.blocks.set_owner(padded.blocks.link(block), owner);
        }
    }

    /// Gives the object's room back.
    ///
    /// # Safety
    /// `at` came from an `alloc` of this heap, is live, and the caller alone uses it.
    pub(crate) unsafe fn free(&self, at: Location) {
        let (padded, body) = self.find(at);
        let block = body - HEADER_BYTES;
        if at.get() >> self.span_bits != self.home() as u64 {
            let count = padded.handed.push(&padded.blocks, block);
            if count >= HANDED_MOST {
                // Locking the shard frees them.
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

    /// What an empty heap takes.
    pub(crate) fn empty_bytes(&self) -> u64 {
        (size_of_val(&*self.shards) + size_of_val(&*self.homes)) as u64 + self.cpus.bytes()
    }

    /// What the heap's memory is used for.
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

    /// Looks the whole structure over and says what is inconsistent. For tests, with no other
    /// thread in the heap.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (number, padded) in self.padded_shards() {
            let mut shard = self.lock(padded);
            shard.settle(&padded.blocks);
            shard.check(&padded.blocks).map_err(|what| format!("shard {number}: {what}"))?;
        }
        Ok(())
    }
}
