//! Compaction: empties segments, those with the most free bytes first. Their objects go to holes
//! elsewhere in their shard; the emptied memory is free in one piece again, or is released.

use std::{
    cmp::Reverse,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::PAGE_SIZE;

use super::{
    Heap, PaddedShard,
    block::{BlockKind, Blocks, HEADER_BYTES, NIL, SEGMENT},
    owners::{Goal, Location, Owner, Owners, Pressure},
    shard::{Emptying, Resident, Shard, Wanted},
};
use crate::limit::{Full, Purpose};

/// The least free bytes of a segment that is worth emptying: to relieve a shard, and to make it as
/// dense as possible.
const WORTH_RELIEF: u32 = SEGMENT / 32;
const WORTH_DENSEST: u32 = SEGMENT / 256;
/// The same near the limit, for the compactor and for a writer without room.
const WORTH_LIMIT: u32 = SEGMENT / 64;
const WORTH_ROOM: u32 = SEGMENT / 512;

/// How many segments a writer without room empties, and how many times it checks again if none is
/// worth emptying: memory that other threads hold briefly may become free.
const ROOM_TURNS: u32 = 64;
const LEAST_TURNS: u32 = 4;

/// How long a writer without room waits for the threads that empty segments in all shards, and its
/// pause between two checks.
const OTHERS_WAIT: Duration = Duration::from_millis(100);
const OTHERS_PAUSE: Duration = Duration::from_micros(20);

/// Objects moved together when a segment is emptied.
const BATCH: usize = 8;

/// The maximum number of segments per shard that are paused because some of their objects are being
/// written or read.
const STUCK_MAX: usize = 2;

/// An object of `len_bytes` that moves from block `at` to block `new`.
#[derive(Clone, Copy, Debug, Default)]
struct Move {
    owner: Owner,
    len_bytes: usize,
    at: u32,
    new: u32,
}

/// Why no segment was emptied.
#[derive(Debug)]
pub(super) enum Busy {
    /// Other threads are emptying segments in every shard where that is worthwhile.
    Others,
    /// No segment is worth emptying.
    Nothing,
}

impl Heap {
    /// Returns how urgently the heap needs [`compact`](Self::compact).
    pub(crate) fn pressure(&self) -> Pressure {
        match self.pressure.load(Relaxed) {
            0 => Pressure::None,
            1 => Pressure::Soft,
            _ => Pressure::Hard,
        }
    }

    /// Moves up to about `objects` objects to empty segments and release their memory. Any number
    /// of threads may call it, while others use the heap. Returns whether more work is left for
    /// `goal`.
    pub(crate) fn compact(&self, owners: &dyn Owners, goal: Goal, mut objects: usize) -> bool {
        match goal {
            Goal::Relief => self.relieve(owners, objects),
            Goal::Densest => self.padded_shards().fold(false, |more, (number, padded)| {
                more | self.compact_part(number, padded, owners, goal, &mut objects)
            }),
        }
    }

    /// [`alloc_to_write`](Self::alloc_to_write) for a heap at its memory limit: empties segments
    /// until there is room. Once a writer has freed the bytes that its object needs, it allocates
    /// from the reserve for moving, so that other threads cannot take them first. It continues
    /// until it has given back what it took, so that the reserve does not shrink.
    #[cold]
    pub(crate) fn make_room(&self, owners: &dyn Owners, len_bytes: usize, owner: Owner) -> Result<Location, Full> {
        let wanted = Wanted { len_bytes: len_bytes as u32, owner, writes: true, purpose: Purpose::Store };
        let need = i64::from(Blocks::whole_len(wanted.len_bytes));
        let (mut gained, mut turn) = (0, 0);
        let mut waits_until = None;
        while turn < ROOM_TURNS {
            let purpose = if gained >= need { Purpose::Move } else { Purpose::Store };
            if gained >= 0
                && let Ok(at) = self.alloc_anywhere(Wanted { purpose, ..wanted })
            {
                return Ok(at);
            }
            match self.empty_one(owners) {
                Ok(bytes) => gained += bytes,
                // Other threads are emptying segments in every shard, and may have been preempted.
                Err(Busy::Others) => {
                    if Instant::now() > *waits_until.get_or_insert_with(|| Instant::now() + OTHERS_WAIT) {
                        break;
                    }
                    thread::sleep(OTHERS_PAUSE);
                    continue;
                }
                Err(Busy::Nothing) if turn >= LEAST_TURNS => break,
                Err(Busy::Nothing) => owners.settle(),
            }
            turn += 1;
        }
        self.alloc_anywhere(wanted)
    }

    /// Empties a segment of the shard with the most free bytes among those in which no other thread
    /// empties one. Returns by how many bytes the shard's memory shrank, which is negative if
    /// memory was taken to move objects and others could not be moved.
    pub(super) fn empty_one(&self, owners: &dyn Owners) -> Result<i64, Busy> {
        let mut parts: Vec<(u64, usize, &PaddedShard)> =
            self.padded_shards().map(|(number, padded)| (padded.free_bytes.load(Relaxed), number, padded)).collect();
        parts.sort_unstable_by_key(|&(free_bytes, number, _)| Reverse((free_bytes, number)));
        let mut busy = Busy::Nothing;
        for (_, number, padded) in parts {
            if padded.relieving.swap(true, Acquire) {
                busy = Busy::Others;
                continue;
            }
            let gained = self.empty_in(number, padded, owners);
            padded.relieving.store(false, Release);
            if let Some(bytes) = gained {
                return Ok(bytes);
            }
        }
        Err(busy)
    }

    fn empty_in(&self, number: usize, padded: &PaddedShard, owners: &dyn Owners) -> Option<i64> {
        let mut shard = self.lock_after_others(padded);
        shard.free_delayed(&padded.blocks);
        let mut emptying = shard.resume_or_begin(&padded.blocks, WORTH_ROOM, 1)?;
        let held = i64::from(shard.held_by(&emptying));
        drop(shard);
        let mut found = [Resident::default(); BATCH];
        let mut moved = Ok(());
        while moved.is_ok() {
            let count = self.lock_after_others(padded).residents(&padded.blocks, &mut emptying, &mut found);
            if count == 0 && !self.retry(padded, owners, &mut emptying) {
                break;
            }
            moved = self.relocate(number, padded, owners, &mut emptying, &found[..count]);
        }
        let mut shard = self.lock_after_others(padded);
        let given = if shard.is_empty(&emptying) { held } else { 0 };
        let gained = given - emptying.taken as i64;
        shard.end_emptying(&padded.blocks, emptying);
        self.note(padded, &shard);
        Some(gained)
    }

    /// Compacts the shards that are under pressure and that no other thread is compacting.
    fn relieve(&self, owners: &dyn Owners, mut objects: usize) -> bool {
        let mut more = false;
        for (number, padded) in self.padded_shards() {
            if objects == 0 {
                more = true;
                break;
            }
            if padded.pressure.load(Relaxed) == Pressure::None as u8 || padded.relieving.swap(true, Acquire) {
                continue;
            }
            more |= self.compact_part(number, padded, owners, Goal::Relief, &mut objects);
            let shard = self.lock_after_others(padded);
            padded.pressure.store(self.pressure_of(&shard) as u8, Relaxed);
            drop(shard);
            padded.relieving.store(false, Release);
        }
        // A `free` raises its shard's pressure before the heap's, so none is lost.
        self.pressure.swap(Pressure::None as u8, Acquire);
        let highest = self.padded_shards().map(|(_, padded)| padded.pressure.load(Relaxed)).max();
        self.pressure.fetch_max(highest.unwrap_or(0), Relaxed);
        more
    }

    fn wants(&self, shard: &Shard, goal: Goal) -> bool {
        let segment = u64::from(SEGMENT);
        match goal {
            Goal::Relief if shard.free_bytes > shard.live_bytes / 30 + segment / 4 => true,
            Goal::Relief => shard.free_bytes > segment / 4 && !self.budget.is_enough(),
            Goal::Densest => shard.free_bytes > segment / 4,
        }
    }

    /// Compacts one shard; see [`compact`](Self::compact).
    fn compact_part(
        &self,
        number: usize,
        padded: &PaddedShard,
        owners: &dyn Owners,
        goal: Goal,
        objects: &mut usize,
    ) -> bool {
        let worth = match goal {
            Goal::Relief if !self.budget.is_enough() => WORTH_LIMIT,
            Goal::Relief => WORTH_RELIEF,
            Goal::Densest => WORTH_DENSEST,
        };
        let mut found = [Resident::default(); BATCH];
        let mut stuck = 0;
        loop {
            let mut shard = self.lock_after_others(padded);
            shard.free_delayed(&padded.blocks);
            if !self.wants(&shard, goal) {
                shard.settle(&padded.blocks);
                return false;
            }
            if *objects == 0 {
                return true;
            }
            let begun = shard.resume_or_begin(&padded.blocks, worth, STUCK_MAX);
            drop(shard);
            let Some(mut emptying) = begun else { return false };
            loop {
                let batch = &mut found[..BATCH.min(*objects)];
                let count = self.lock_after_others(padded).residents(&padded.blocks, &mut emptying, batch);
                if count == 0 && *objects == 0 {
                    self.lock_after_others(padded).paused.push_front(emptying);
                    return true;
                }
                if count == 0 && !self.retry(padded, owners, &mut emptying) {
                    break;
                }
                if self.relocate(number, padded, owners, &mut emptying, &found[..count]).is_err() {
                    self.lock_after_others(padded).end_emptying(&padded.blocks, emptying);
                    return false;
                }
                *objects -= count;
            }
            let mut shard = self.lock_after_others(padded);
            if shard.is_empty(&emptying) {
                shard.end_emptying(&padded.blocks, emptying);
                stuck = 0;
                continue;
            }
            // The threads that write or read these objects need the CPU more urgently.
            shard.paused.push_back(emptying.again());
            stuck += 1;
            if stuck > STUCK_MAX {
                return false;
            }
        }
    }

    /// Decides at a segment's end whether another pass is worthwhile, for objects that were being
    /// written.
    fn retry(&self, padded: &PaddedShard, owners: &dyn Owners, emptying: &mut Emptying) -> bool {
        let mut shard = self.lock_after_others(padded);
        shard.free_delayed(&padded.blocks);
        if shard.is_empty(emptying) || emptying.passes == 2 {
            return false;
        }
        drop(shard);
        owners.settle();
        emptying.passes += 1;
        emptying.cursor = 0;
        true
    }

    /// Moves up to [`BATCH`] objects to other room in their shard, if their owners' entries name
    /// them. It waits once for the readers of all of them, because pins are on cache lines that
    /// other CPUs keep writing.
    fn relocate(
        &self,
        number: usize,
        padded: &PaddedShard,
        owners: &dyn Owners,
        emptying: &mut Emptying,
        residents: &[Resident],
    ) -> Result<(), Full> {
        let mut moves = [Move::default(); BATCH];
        let mut count = 0;
        for &Resident { owner, at } in residents {
            let from = self.location(number, at);
            if let Some(len_bytes) = owners.len_bytes(owner, from) {
                moves[count] = Move { owner, len_bytes, at, new: NIL };
                count += 1;
            }
        }
        let near = !self.budget.is_enough();
        let mut shard = self.lock_after_others(padded);
        let held_before = shard.held_bytes;
        let mut enough = Ok(());
        for (number, Move { owner, len_bytes, at, new }) in moves[..count].iter_mut().enumerate() {
            let wanted = Wanted { len_bytes: *len_bytes as u32, owner: *owner, writes: true, purpose: Purpose::Move };
            let room = if near {
                let in_two = padded.blocks.kind(*at) == BlockKind::First;
                shard.alloc_moved(&padded.blocks, wanted, in_two)
            } else {
                shard.alloc(&padded.blocks, wanted)
            };
            match room {
                Ok(room) => *new = room,
                Err(full) => {
                    (count, enough) = (number, Err(full));
                    break;
                }
            }
        }
        emptying.taken += shard.held_bytes - held_before;
        drop(shard);
        let mut object = [0; PAGE_SIZE];
        let mut replaced = [0; BATCH];
        let mut moved = 0;
        for Move { owner, len_bytes, at, new } in &mut moves[..count] {
            let (from, to) = (self.location(number, *at), self.location(number, *new));
            let word = owners.repoint(*owner, from, to, *len_bytes, &mut || {
                let object = &mut object[..*len_bytes];
                // SAFETY: the entry names the old object, of this length, and is held; the new one
                // is in no entry yet.
                unsafe {
                    padded.blocks.read(*at + HEADER_BYTES, object);
                    padded.blocks.write(*new + HEADER_BYTES, object);
                }
            });
            match word {
                Some(word) => {
                    replaced[moved] = word;
                    moved += 1;
                }
                // The new object is freed instead.
                None => *at = *new,
            }
        }
        owners.wait_for_readers(&replaced[..moved]);
        let mut shard = self.lock_after_others(padded);
        for gone in &moves[..count] {
            shard.free(&padded.blocks, gone.at);
        }
        enough
    }
}
