//! The default pool: objects side by side to the byte, holes used again by best fit, objects cut in two where no hole
//! is long enough.
//!
//! ```text
//! pool     shards, each with a lock and up to 4 GiB of address space        location = shard × span + offset
//! shard    segments of 64 KiB, and its free blocks in bins by length        see `shard`, `bins`
//! segment  blocks without a gap: header, object, header, object, hole, …    see `block`
//! ```
//!
//! A thread allocates in the shard of its CPU and, before that one takes new memory, in the holes of others that have
//! many; objects are freed in the shard they lie in. Those of other CPUs' shards are handed over in a list that takes no
//! lock, and whoever locks the shard next frees them there: so the lines that describe a shard stay in one CPU's cache. A pool
//! starts with one shard and uses another for each [`SHARD_FILL`] bytes, up to one a CPU, so that a small one is not divided;
//! where threads are in each other's way, for each [`SHARD_LEAST`], and the first few sooner: objects of two threads that once
//! lie in one shard keep them in each other's way long after both have their own.
//!
//! Overwriting pages with others of the same kind needs no object moved: the holes have the lengths that are asked for.
//! When they do not, segments are emptied, those with the most free bytes first: their objects go to holes elsewhere.
//!
//! `held = live + free + tail + index`, and all of it is in the budget.
#![allow(unsafe_code)] // passes its callers' promises on to the blocks

mod bins;
mod block;
mod delayed;
mod mutex;
mod shard;

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

use crossbeam_utils::CachePadded;
use pagefold_codec::PAGE_SIZE;

use self::{
    block::{BLOCK_MIN, Blocks, Kind, NIL},
    mutex::{Guard, Mutex},
    shard::{Emptying, Resident, Shard, Wanted},
};
use crate::{
    budget::{Budget, Full},
    cpus::Cpus,
    pool::{Account, Goal, Location, Owners, Pool, Pressure},
    region::Region,
};

/// Bytes of a segment.
const SEGMENT: u32 = 64 << 10;

/// Bytes held in a shard from which on there is another.
const SHARD_FILL: u64 = 4 << 20;

/// The same on average over all shards where threads often wait for each other, and while there are few shards this much for
/// each of them. A wait counts as `WAIT`, each turn without takes one off, and at `CROWDED` there is another shard.
const SHARD_LEAST: u64 = 1 << 20;
const SHARD_STEP: u64 = 64 << 10;
const WAIT: u32 = 64;
const CROWDED: u32 = 16 * WAIT;

/// The most address space a shard has: offsets in it are 32 bits, of which the highest is not one.
const SPAN_MAX: u64 = 1 << 32;

/// A segment with fewer free bytes is not worth emptying to relieve a shard, and to make it as dense as possible.
const WORTH_RELIEF: u32 = SEGMENT / 32;
const WORTH_DENSEST: u32 = SEGMENT / 256;
/// To find room in a full store.
const WORTH_ROOM: u32 = SEGMENT / 1024;

/// Segments that are emptied at most to find room for an object in a full store.
const ROOM_TURNS: u32 = 32;

/// Objects that move together when a segment is emptied.
const BATCH: usize = 8;

/// Segments of a shard that are left for later because something in them is just being written or read, at most.
const STUCK_MAX: usize = 2;

/// Objects handed over to a shard from which on whoever hands over another frees them.
const HANDED_MAX: u32 = 16;

/// The pool.
#[derive(Debug)]
pub(crate) struct Mosaic {
    shards: Box<[OnceLock<Box<Part>>]>,
    cpus: Cpus,
    /// How many of them are allocated in.
    active: AtomicUsize,
    span_bits: u32,
    owners: u64,
    /// The highest pressure of its parts.
    pressure: AtomicU8,
    budget: Arc<Budget>,
}

/// Readers on all CPUs look at `blocks`, and at `roomy` whoever finds no hole in his own shard: not on lines that the shard's
/// CPU writes all the time.
#[derive(Debug)]
struct Part {
    blocks: CachePadded<Blocks>,
    shard: CachePadded<Mutex<Shard>>,
    /// Whether threads of other CPUs look here before they take new memory.
    roomy: CachePadded<AtomicBool>,
    /// The highest pressure that a `free` has met here since it was last relieved. Changes under the lock.
    pressure: AtomicU8,
    /// Whether a thread relieves it: two would be in each other's way.
    relieving: AtomicBool,
    handed: CachePadded<Handed>,
}

/// Objects to be freed, the last one handed over first: its block in the low half, how many they are in the high half. Each
/// names the next in a field of its block.
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

/// An object of `len_bytes` that moves from block `at` to block `new`.
#[derive(Clone, Copy, Debug, Default)]
struct Move {
    owner: u64,
    len_bytes: usize,
    at: u32,
    new: u32,
}

fn pressure(shard: &Shard) -> Pressure {
    let Shard { live_bytes, free_bytes, .. } = *shard;
    let segment = u64::from(SEGMENT);
    if free_bytes <= live_bytes / 24 + segment / 2 {
        Pressure::None
    } else if free_bytes <= live_bytes / 18 + segment {
        Pressure::Soft
    } else {
        Pressure::Hard
    }
}

fn is_roomy(shard: &Shard) -> bool {
    shard.free_bytes > shard.live_bytes / 48 + u64::from(SEGMENT) / 4
}

/// Bytes held in `active` shards from which on threads that wait for each other get another.
fn crowded_fill(active: u64) -> u64 {
    active * SHARD_LEAST.min(active * SHARD_STEP)
}

fn wants(shard: &Shard, goal: Goal) -> bool {
    let enough = match goal {
        Goal::Relief => shard.live_bytes / 30 + u64::from(SEGMENT) / 4,
        Goal::Densest => u64::from(SEGMENT) / 4,
    };
    shard.free_bytes > enough
}

impl Mosaic {
    /// A pool for at most `objects` objects at a time, whose owners are below `owners`.
    pub(crate) fn new(objects: u64, owners: u64, budget: Arc<Budget>) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        if owners > 1 << 32 {
            return Err(too_large());
        }
        // Every object raw, and a fifth of all bytes free.
        let object_max = PAGE_SIZE as u64 + 2 * u64::from(BLOCK_MIN);
        let worst =
            objects.checked_mul(object_max).and_then(|bytes| bytes.checked_add(bytes / 4)).ok_or_else(too_large)?;
        let cpus = Cpus::new();
        let useful = (cpus.count() as u64).min(worst.div_ceil(SHARD_LEAST)).max(1);
        let span = (worst / useful + 4 * u64::from(SEGMENT)).next_power_of_two().min(SPAN_MAX);
        let count = worst.div_ceil(span - u64::from(SEGMENT)).max(useful);
        if count > (1 << Location::BITS) / span {
            return Err(too_large());
        }
        // Where the first shard cannot be, every write would fail.
        drop(Region::reserve(span as usize)?);
        Ok(Self {
            shards: (0..count).map(|_| OnceLock::new()).collect(),
            cpus,
            active: AtomicUsize::new(1),
            span_bits: span.trailing_zeros(),
            owners,
            pressure: AtomicU8::new(Pressure::None as u8),
            budget,
        })
    }

    fn part(&self, number: usize) -> Result<&Part, Full> {
        if let Some(part) = self.shards[number].get() {
            return Ok(part);
        }
        let span = 1u64 << self.span_bits;
        // The last segment of a span of 4 GiB would end beyond 32 bits.
        let segments = span / u64::from(SEGMENT) - 1;
        let shard = Shard::new(segments as u32, Arc::clone(&self.budget))?;
        let region = Region::reserve(span as usize).map_err(|_| Full);
        let region = region.inspect_err(|_| self.budget.give(shard.index_bytes()))?;
        let part = Part {
            blocks: CachePadded::new(Blocks::new(region, self.owners)),
            shard: CachePadded::new(Mutex::new(shard)),
            roomy: CachePadded::new(AtomicBool::new(false)),
            pressure: AtomicU8::new(Pressure::None as u8),
            relieving: AtomicBool::new(false),
            handed: CachePadded::new(Handed::new()),
        };
        if let Err(part) = self.shards[number].set(Box::new(part)) {
            self.budget.give(part.shard.lock().index_bytes());
        }
        self.shards[number].get().map(|part| &**part).ok_or(Full)
    }

    /// Locks a shard and frees what was handed over to it.
    fn lock<'a>(&self, part: &'a Part) -> Guard<'a, Shard> {
        self.with_handed(part, part.shard.lock())
    }

    /// Locks the shard that this thread allocates in; where threads often wait for each other there, they come apart.
    fn lock_home<'a>(&self, part: &'a Part) -> Guard<'a, Shard> {
        if let Some(mut shard) = part.shard.try_lock() {
            shard.crowd = shard.crowd.saturating_sub(1);
            return self.with_handed(part, shard);
        }
        self.wait_home(part)
    }

    #[cold]
    fn wait_home<'a>(&self, part: &'a Part) -> Guard<'a, Shard> {
        let mut shard = self.lock(part);
        shard.crowd += WAIT;
        if shard.crowd < CROWDED {
            return shard;
        }
        shard.crowd = 0;
        drop(shard);
        let active = self.active.load(Relaxed);
        let held_bytes: u64 = self.parts().map(|(_, part)| part.shard.lock().held_bytes).sum();
        if active < self.shards.len() && held_bytes >= crowded_fill(active as u64) {
            // Whoever was faster has made one for both.
            _ = self.active.compare_exchange(active, active + 1, Relaxed, Relaxed);
        }
        self.lock(part)
    }

    fn with_handed<'a>(&self, part: &'a Part, mut shard: Guard<'a, Shard>) -> Guard<'a, Shard> {
        if !part.handed.is_empty() {
            self.free_handed(part, &mut shard);
        }
        shard
    }

    #[cold]
    fn free_handed(&self, part: &Part, shard: &mut Shard) {
        part.handed.take(&part.blocks, |at| shard.free_soon(&part.blocks, at));
        self.note(part, shard);
    }

    /// Tells others what frees have made of a shard.
    fn note(&self, part: &Part, shard: &Shard) {
        let pressure = pressure(shard) as u8;
        if is_roomy(shard) && !part.roomy.load(Relaxed) {
            part.roomy.store(true, Relaxed);
        }
        if pressure > part.pressure.load(Relaxed) {
            part.pressure.store(pressure, Relaxed);
            self.pressure.fetch_max(pressure, Release);
        }
    }

    /// Moves objects of the shards where many bytes are free and no other thread does.
    fn relieve(&self, owners: &dyn Owners, mut objects: usize) -> bool {
        let mut more = false;
        for (number, part) in self.parts() {
            if objects == 0 {
                more = true;
                break;
            }
            if part.pressure.load(Relaxed) == Pressure::None as u8 || part.relieving.swap(true, Acquire) {
                continue;
            }
            more |= self.compact_part(number, part, owners, Goal::Relief, &mut objects);
            let shard = self.lock(part);
            part.pressure.store(pressure(&shard) as u8, Relaxed);
            drop(shard);
            part.relieving.store(false, Release);
        }
        // A `free` raises its part's first.
        self.pressure.swap(Pressure::None as u8, Acquire);
        let highest = self.parts().map(|(_, part)| part.pressure.load(Relaxed)).max();
        self.pressure.fetch_max(highest.unwrap_or(0), Relaxed);
        more
    }

    /// The shard that this thread allocates in.
    fn home(&self) -> usize {
        match self.active.load(Relaxed) {
            1 => 0,
            active => self.cpus.current() % active,
        }
    }

    fn parts(&self) -> impl Iterator<Item = (usize, &Part)> {
        self.shards.iter().enumerate().filter_map(|(number, part)| Some((number, &**part.get()?)))
    }

    fn alloc_in(&self, number: usize, wanted: Wanted) -> Result<Location, Full> {
        let part = self.part(number)?;
        let mut shard = self.lock_home(part);
        let at = shard.alloc(&part.blocks, wanted)?;
        self.prepare(part, &mut shard, wanted);
        let held_bytes = shard.held_bytes;
        drop(shard);
        if held_bytes >= SHARD_FILL && self.active.load(Relaxed) < self.shards.len() {
            let useful = self.shards.len().min(1 + (held_bytes / SHARD_FILL) as usize);
            self.active.fetch_max(useful, Relaxed);
        }
        Ok(self.location(number, part, at))
    }

    /// Takes room among the free blocks of shard `home`, or else of those that have many.
    fn fit_in_active(&self, home: usize, active: usize, wanted: Wanted) -> Option<Location> {
        (0..active).map(|step| (home + step) % active).find_map(|number| {
            let part = self.shards[number].get()?;
            let mut shard = if number == home {
                self.lock_home(part)
            } else if part.roomy.load(Relaxed) {
                // Rather than wait there it takes new memory of its own: so threads come apart that began in one shard.
                self.with_handed(part, part.shard.try_lock()?)
            } else {
                return None;
            };
            let at = shard.fit(&part.blocks, wanted)?;
            self.prepare(part, &mut shard, wanted);
            let roomy = is_roomy(&shard);
            drop(shard);
            if !roomy && part.roomy.load(Relaxed) {
                part.roomy.store(false, Relaxed);
            }
            Some(self.location(number, part, at))
        })
    }

    /// Frees an object while the lines of a new one come into the cache, if that is about to be written.
    fn prepare(&self, part: &Part, shard: &mut Shard, wanted: Wanted) {
        if wanted.writes {
            shard.free_one(&part.blocks);
            self.note(part, shard);
        }
    }

    fn alloc_anywhere(&self, wanted: Wanted) -> Result<Location, Full> {
        let active = self.active.load(Relaxed);
        let home = self.home();
        if active > 1
            && let Some(at) = self.fit_in_active(home, active, wanted)
        {
            return Ok(at);
        }
        let own = self.alloc_in(home, wanted);
        if own.is_ok() {
            return own;
        }
        let others = (0..self.shards.len()).filter(|&number| number != home);
        others.map(|number| self.alloc_in(number, wanted)).find(Result::is_ok).unwrap_or(Err(Full))
    }

    fn take(&self, wanted: Wanted) -> Result<Location, Full> {
        if let Ok(at) = self.alloc_anywhere(wanted) {
            return Ok(at);
        }
        for (_, part) in self.parts() {
            self.lock(part).settle(&part.blocks);
        }
        self.alloc_anywhere(wanted)
    }

    fn location(&self, number: usize, part: &Part, at: u32) -> Location {
        Location::new(((number as u64) << self.span_bits) + u64::from(at + part.blocks.header_bytes()))
    }

    /// The part that a location is in, and the offset of the object's body there.
    fn find(&self, at: Location) -> (&Part, u32) {
        let number = (at.get() >> self.span_bits) as usize;
        let part = self.shards[number].get().unwrap_or_else(|| unreachable!("locations come from shards that are"));
        (part, (at.get() & ((1 << self.span_bits) - 1)) as u32)
    }

    /// Moves objects of one shard; see [`Pool::compact`].
    fn compact_part(&self, number: usize, part: &Part, owners: &dyn Owners, goal: Goal, objects: &mut usize) -> bool {
        let worth = match goal {
            Goal::Relief => WORTH_RELIEF,
            Goal::Densest => WORTH_DENSEST,
        };
        let mut found = [Resident::default(); BATCH];
        let mut stuck = 0;
        loop {
            let mut shard = self.lock(part);
            shard.free_delayed(&part.blocks);
            if !wants(&shard, goal) {
                shard.settle(&part.blocks);
                return false;
            }
            if *objects == 0 {
                return true;
            }
            let begun = shard.resume_or_begin(&part.blocks, worth, STUCK_MAX);
            drop(shard);
            let Some(mut emptying) = begun else { return false };
            loop {
                let batch = &mut found[..BATCH.min(*objects)];
                let count = self.lock(part).residents(&part.blocks, &mut emptying, batch);
                if count == 0 && *objects == 0 {
                    self.lock(part).paused.push_front(emptying);
                    return true;
                }
                if count == 0 && !self.retry(part, owners, &mut emptying) {
                    break;
                }
                if self.relocate(number, part, owners, false, &found[..count]).is_err() {
                    self.lock(part).end_emptying(&part.blocks, emptying);
                    return false;
                }
                *objects -= count;
            }
            let mut shard = self.lock(part);
            if shard.is_empty(&emptying) {
                shard.end_emptying(&part.blocks, emptying);
                stuck = 0;
                continue;
            }
            // Whoever writes or reads there needs the CPU more than this thread does.
            shard.paused.push_back(emptying.again());
            stuck += 1;
            if stuck > STUCK_MAX {
                return false;
            }
        }
    }

    /// Empties the segment with the most free bytes, though the pool may take no more for new objects: of shard `last` rather
    /// than of another, so that what was free in several comes to lie together. Gives the shard, if there is a segment and
    /// memory to move its objects to.
    fn empty_one(&self, owners: &dyn Owners, last: usize) -> Option<usize> {
        let most_free = |(number, part): (usize, &Part)| {
            let mut shard = self.lock(part);
            shard.free_delayed(&part.blocks);
            (shard.most_free() * (1 + u32::from(number == last)), number)
        };
        let (_, number) = self.parts().map(most_free).max()?;
        let part = self.shards[number].get()?;
        let mut emptying = self.lock(part).begin_emptying(&part.blocks, WORTH_ROOM)?;
        // One by one: each gives back what the next may need.
        let mut found = [Resident::default(); 1];
        let mut moved = Ok(());
        while moved.is_ok() {
            let count = self.lock(part).residents(&part.blocks, &mut emptying, &mut found);
            if count == 0 && !self.retry(part, owners, &mut emptying) {
                break;
            }
            moved = self.relocate(number, part, owners, true, &found[..count]);
        }
        self.lock(part).end_emptying(&part.blocks, emptying);
        moved.ok().map(|()| number)
    }

    /// At a segment's end: whether it is worth going through it once more for objects that were just being written.
    fn retry(&self, part: &Part, owners: &dyn Owners, emptying: &mut Emptying) -> bool {
        let mut shard = self.lock(part);
        shard.free_delayed(&part.blocks);
        if shard.is_empty(emptying) || emptying.passes == 2 {
            return false;
        }
        drop(shard);
        owners.settle();
        emptying.passes += 1;
        emptying.cursor = 0;
        true
    }

    /// Moves objects, at most [`BATCH`], to other room in their shard, as far as their owners' entries name them. They wait for
    /// readers together: the pins that say who reads are on lines that other CPUs write all the time.
    fn relocate(
        &self,
        number: usize,
        part: &Part,
        owners: &dyn Owners,
        makes_room: bool,
        residents: &[Resident],
    ) -> Result<(), Full> {
        let mut moves = [Move::default(); BATCH];
        let mut count = 0;
        for &Resident { owner, at } in residents {
            let from = self.location(number, part, at);
            if let Some((_, len_bytes)) = owners.object(owner).filter(|&(named, _)| named == from) {
                moves[count] = Move { owner, len_bytes, at, new: NIL };
                count += 1;
            }
        }
        let mut shard = self.lock(part);
        let mut enough = Ok(());
        for (number, Move { owner, len_bytes, at, new }) in moves[..count].iter_mut().enumerate() {
            let wanted = Wanted { len_bytes: *len_bytes as u32, owner: *owner, writes: true, makes_room };
            let room = if makes_room {
                let in_two = part.blocks.kind(*at) == Kind::First;
                shard.alloc_moved(&part.blocks, wanted, in_two)
            } else {
                shard.alloc(&part.blocks, wanted)
            };
            match room {
                Ok(room) => *new = room,
                Err(full) => {
                    (count, enough) = (number, Err(full));
                    break;
                }
            }
        }
        drop(shard);
        let header = part.blocks.header_bytes();
        let mut object = [0; PAGE_SIZE];
        let mut replaced = [0; BATCH];
        let mut moved = 0;
        for Move { owner, len_bytes, at, new } in &mut moves[..count] {
            let (from, to) = (self.location(number, part, *at), self.location(number, part, *new));
            let word = owners.repoint(*owner, from, to, *len_bytes, &mut || {
                let object = &mut object[..*len_bytes];
                // SAFETY: the entry names the old object, of this length, and is held; the new one is in no entry yet.
                unsafe {
                    part.blocks.read(*at + header, object);
                    part.blocks.write(*new + header, object);
                }
            });
            match word {
                Some(word) => {
                    replaced[moved] = word;
                    moved += 1;
                }
                // What was taken for it is given back in its place.
                None => *at = *new,
            }
        }
        owners.wait_for_readers(&replaced[..moved]);
        let mut shard = self.lock(part);
        for gone in &moves[..count] {
            shard.free(&part.blocks, gone.at);
        }
        enough
    }
}

impl Pool for Mosaic {
    fn alloc(&self, len_bytes: usize, owner: u64) -> Result<Location, Full> {
        self.take(Wanted { len_bytes: len_bytes as u32, owner, writes: false, makes_room: false })
    }

    fn alloc_to_write(&self, len_bytes: usize, owner: u64) -> Result<Location, Full> {
        self.take(Wanted { len_bytes: len_bytes as u32, owner, writes: true, makes_room: false })
    }

    fn make_room(&self, owners: &dyn Owners, len_bytes: usize, owner: u64) -> Result<Location, Full> {
        let each = |change: fn(&mut Shard, &Blocks)| {
            self.parts().for_each(|(_, part)| change(&mut self.lock(part), &part.blocks));
        };
        each(|shard, blocks| {
            shard.settle(blocks);
            shard.set_makes_room(true);
        });
        let wanted = Wanted { len_bytes: len_bytes as u32, owner, writes: true, makes_room: true };
        let mut at = self.alloc_anywhere(wanted);
        let mut last = self.home();
        for _ in 0..ROOM_TURNS {
            if at.is_ok() {
                break;
            }
            let Some(number) = self.empty_one(owners, last) else { break };
            last = number;
            at = self.alloc_anywhere(wanted);
        }
        each(|shard, _| shard.set_makes_room(false));
        at
    }

    fn prefetch(&self, at: Location, len_bytes: usize) {
        // Where it lies in two pieces, only its header says so, which would be waited for.
        let (part, body) = self.find(at);
        part.blocks.prefetch_all(body, len_bytes as u32);
    }

    unsafe fn bytes(&self, at: Location, len_bytes: usize) -> Option<&[u8]> {
        let (part, body) = self.find(at);
        // SAFETY: the caller's word.
        unsafe { part.blocks.bytes(body, len_bytes) }
    }

    unsafe fn read(&self, at: Location, out: &mut [u8]) {
        let (part, body) = self.find(at);
        // SAFETY: the caller's word.
        unsafe { part.blocks.read(body, out) };
    }

    unsafe fn write(&self, at: Location, bytes: &[u8]) {
        let (part, body) = self.find(at);
        // SAFETY: the caller's word.
        unsafe { part.blocks.write(body, bytes) };
    }

    unsafe fn free(&self, at: Location, _len_bytes: usize) {
        let (part, body) = self.find(at);
        let block = body - part.blocks.header_bytes();
        if at.get() >> self.span_bits != self.home() as u64 {
            if part.handed.push(&part.blocks, block) >= HANDED_MAX
                && let Some(mut shard) = part.shard.try_lock()
            {
                self.free_handed(part, &mut shard);
            }
            return;
        }
        let mut shard = self.lock_home(part);
        shard.free_soon(&part.blocks, block);
        self.note(part, &shard);
    }

    fn account(&self) -> Account {
        let mut sum =
            Account { index_bytes: size_of_val(&*self.shards) as u64 + self.cpus.bytes(), ..Account::default() };
        for (_, part) in self.parts() {
            let mut shard = self.lock(part);
            shard.free_delayed(&part.blocks);
            sum.live_bytes += shard.live_bytes;
            sum.free_bytes += shard.free_bytes;
            sum.tail_bytes += shard.held_bytes - shard.live_bytes - shard.free_bytes;
            sum.index_bytes += shard.index_bytes();
        }
        sum.held_bytes = sum.live_bytes + sum.free_bytes + sum.tail_bytes + sum.index_bytes;
        sum
    }

    fn pressure(&self) -> Pressure {
        match self.pressure.load(Relaxed) {
            0 => Pressure::None,
            1 => Pressure::Soft,
            _ => Pressure::Hard,
        }
    }

    fn compact(&self, owners: &dyn Owners, goal: Goal, mut objects: usize) -> bool {
        match goal {
            Goal::Relief => self.relieve(owners, objects),
            Goal::Densest => self
                .parts()
                .fold(false, |more, (number, part)| more | self.compact_part(number, part, owners, goal, &mut objects)),
        }
    }

    fn check(&self) -> Result<(), String> {
        for (number, part) in self.parts() {
            let mut shard = self.lock(part);
            shard.settle(&part.blocks);
            shard.check(&part.blocks).map_err(|what| format!("shard {number}: {what}"))?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::cpus::fake;

    #[test]
    fn one_thread_at_a_time_relieves_a_shard() {
        let pool = Mosaic::new(100_000, 100_000, Arc::new(Budget::new(u64::MAX))).expect("address space");
        let objects: Vec<_> = (0..1000).map(|owner| pool.alloc(1000, owner).expect("no limit")).collect();
        for (owner, &at) in objects.iter().enumerate().filter(|(owner, _)| owner % 2 == 0) {
            // SAFETY: each is freed once, and nobody uses it.
            unsafe { pool.free(at, 1000) };
            assert!(owner < 500 || pool.pressure() == Pressure::Hard);
        }
        let part = pool.part(0).expect("it is there");
        let relieve = || {
            // Nobody owns an object: each try to move one asks for its owner.
            let owners = Nobody::default();
            pool.compact(&owners, Goal::Relief, 100);
            owners.0.into_inner()
        };
        part.relieving.store(true, Relaxed);
        assert_eq!(relieve(), 0);
        assert_eq!(pool.pressure(), Pressure::Hard, "it is left to who relieves");
        part.relieving.store(false, Relaxed);
        assert!(relieve() > 0);
        assert!(!part.relieving.load(Relaxed));
        pool.check().expect("consistent");
    }

    /// Counts how often it was asked for an owner's object.
    #[derive(Default)]
    struct Nobody(AtomicU64);

    impl Owners for Nobody {
        fn object(&self, _: u64) -> Option<(Location, usize)> {
            self.0.fetch_add(1, Relaxed);
            None
        }

        fn repoint(&self, _: u64, _: Location, _: Location, _: usize, _: &mut dyn FnMut()) -> Option<u64> {
            None
        }

        fn wait_for_readers(&self, _: &[u64]) {}

        fn settle(&self) {}
    }

    #[test]
    fn threads_that_wait_for_each_other_come_apart() {
        fake::set_machine([0, 1], 2);
        let pool = Mosaic::new(100_000, 100_000, Arc::new(Budget::new(u64::MAX))).expect("address space");
        for owner in 0..1 + SHARD_STEP / 4000 {
            pool.alloc(4000, owner).expect("no limit");
        }
        let alloc = || {
            fake::run_on(1);
            pool.alloc(100, 0).expect("no limit").get() >> pool.span_bits
        };
        for _ in 0..1000 {
            assert_eq!(pool.active.load(Relaxed), 1);
            let held = pool.part(0).expect("it is there").shard.lock();
            thread::scope(|scope| {
                scope.spawn(alloc);
                thread::sleep(Duration::from_millis(2));
                drop(held);
            });
            if pool.active.load(Relaxed) == 2 {
                break;
            }
        }
        assert_eq!(thread::scope(|scope| scope.spawn(alloc).join().expect("no panic")), 1);
        pool.check().expect("consistent");
        assert!(pool.account().held_bytes < crowded_fill(2) && crowded_fill(16) == 16 * SHARD_LEAST);
    }
}
