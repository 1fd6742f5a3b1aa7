//! A part of the heap with its own lock, address space and free blocks.
//!
//! ```text
//! alloc: the shortest free block that fits, cut to size
//!        else two pieces: the longest free block that is too short, whole, and the shortest that
//!        fits the rest
//!        else the front of the open segment's unused part; if that is too short, it becomes a free
//!        block and another segment is opened
//!        at the limit, the longest free block that is too short, and the rest in the open segment
//! move near the limit: the same, but before more memory is taken, an object that was in two pieces
//!        is split again between a hole and the open segment; one that is longer than the rest of
//!        the open segment is split at its end
//! free:  join the block with free neighbours; release the segment if nothing else is in it
//! ```
//!
//! Segments of 64 KiB are filled from the front. A segment's blocks cover it up to `top`; the
//! memory of its first `held` bytes is accounted for. No two free blocks are adjacent, and none
//! ends at the top of the open segment. The exception is a segment that is being emptied: its freed
//! blocks stay as they are and are not listed.
//!
//! For each segment `Σ blocks = top ≤ held` and `free = Σ free blocks`; for the shard `live = Σ top
//! − Σ free`.

use std::{collections::VecDeque, sync::Arc};

use pagefold_codec::PAGE_SIZE;

use super::{
    bins::Bins,
    block::{BLOCK_MIN, BlockKind, Blocks, NIL, SEGMENT},
    delayed::{DELAYED, Delayed},
    owners::Owner,
};
use crate::limit::{Budget, Full, Purpose};

/// Bytes accounted for in one step: at least a page, and a whole segment in a large shard with much
/// room below the limit, which saves updates of the shared counter and system calls. The unused
/// part of the open segment is at most 1/`HOLD_PART` of what the shard holds, and of the room.
const HOLD_LEAST: u32 = PAGE_SIZE as u32;
pub(super) const HOLD_PART: u64 = 128;

/// The least length of a first piece: `PIECE_MIN` bytes and 1/`PIECE_PART` of the object's block.
const PIECE_MIN: u32 = 64;
const PIECE_PART: u32 = 4;

/// With this many live bytes, a shard delays frees; a smaller shard fits in the cache. A delayed
/// block's header is prefetched when the block is queued, and its neighbours' headers when `LEAD`
/// others are ahead of it.
const DELAY_FROM: u64 = 1 << 20;
const LEAD: usize = 4;

/// If more frees than this are pending, an allocation for writing performs one while the lines of
/// the new object are fetched into the cache.
const WAITING: usize = DELAYED / 2;

/// Segments compared to choose the next one to empty.
const LOOKS: usize = 256;

/// The least number of segments by which the segment table grows.
const SEGMENTS_STEP: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentState {
    /// In the list of segments without memory.
    Spare { next: u32 },
    /// Being filled from the front; there is at most one.
    Open,
    /// Filled, with holes.
    Closed,
    /// Not used for allocation; its free blocks are not listed.
    Emptying,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    state: SegmentState,
    top: u32,
    held: u32,
    free: u32,
    /// Threads that fault in some of its memory, or are about to.
    fills: u32,
}

impl Segment {
    /// Returns the free bytes that emptying the segment would bring together.
    fn gain_of_emptying(&self) -> u32 {
        if self.state == SegmentState::Closed { self.free } else { 0 }
    }
}

/// The data behind a shard's lock.
#[derive(Debug)]
pub(super) struct Shard {
    bins: Bins,
    segments: Vec<Segment>,
    segments_max: u32,
    spare: u32,
    open: u32,
    pub(super) held_bytes: u64,
    pub(super) live_bytes: u64,
    pub(super) free_bytes: u64,
    /// Objects to free, the oldest first. They count as live.
    delayed: Delayed,
    /// Segments whose emptying is paused: first those paused midway, then those that wait for
    /// another attempt because some objects could not be moved.
    pub(super) paused: VecDeque<Emptying>,
    /// The segment at which the search for the next one to empty starts.
    next: usize,
    /// How often threads that allocate here have recently waited for each other.
    pub(super) crowd: u32,
    /// Memory that is accounted for, and that the thread that took it will fault in after it has
    /// released the lock.
    fresh: Option<Fresh>,
    budget: Arc<Budget>,
}

/// A range of pages to fault in.
#[derive(Debug)]
#[must_use]
pub(super) struct Fresh {
    at: u32,
    len: u32,
}

impl Fresh {
    /// Faults the pages in. The caller does not hold the shard's lock.
    pub(super) fn fill(&self, blocks: &Blocks) {
        blocks.make_present(self.at, self.len);
    }
}

/// A segment that is being emptied, the progress in it, and the number of completed passes.
#[derive(Debug)]
pub(super) struct Emptying {
    number: u32,
    pub(super) cursor: u32,
    pub(super) passes: u32,
    /// Bytes taken so far to move its objects, by all threads that took part.
    pub(super) taken: u64,
}

impl Emptying {
    /// Restarts at the segment's front.
    pub(super) fn again(self) -> Self {
        Self { cursor: 0, passes: 0, ..self }
    }
}

/// An allocation request.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) len_bytes: u32,
    pub(super) owner: Owner,
    /// Whether it is about to be written: its lines are prefetched as soon as its place is known.
    pub(super) writes: bool,
    /// The purpose for which memory is taken if no free block fits.
    pub(super) purpose: Purpose,
}

/// An object with a block in a segment that is being emptied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resident {
    pub(super) owner: Owner,
    /// The object's block, or that of its first piece.
    pub(super) at: u32,
}

fn segment_of(at: u32) -> u32 {
    at / SEGMENT
}

impl Shard {
    /// Creates an empty shard with address space for `segments_max` segments.
    pub(super) fn new(segments_max: u32, budget: Arc<Budget>) -> Result<Self, Full> {
        budget.take_for(Purpose::Keep, Self::base_bytes())?;
        let Some(bins) = Bins::new() else {
            budget.give(Self::base_bytes());
            return Err(Full);
        };
        Ok(Self {
            bins,
            segments: Vec::new(),
            segments_max,
            spare: NIL,
            open: NIL,
            held_bytes: 0,
            live_bytes: 0,
            free_bytes: 0,
            delayed: Delayed::default(),
            paused: VecDeque::new(),
            next: 0,
            crowd: 0,
            fresh: None,
            budget,
        })
    }

    fn base_bytes() -> u64 {
        Bins::BYTES + size_of::<Self>() as u64
    }

    /// Returns the bytes of everything but the objects' memory.
    pub(super) fn index_bytes(&self) -> u64 {
        Self::base_bytes() + (self.segments.capacity() * size_of::<Segment>()) as u64
    }

    /// Returns whether the address space for new segments is exhausted.
    pub(super) fn is_used_up(&self) -> bool {
        self.spare == NIL && self.segments.len() >= self.segments_max as usize
    }

    /// Allocates from the free blocks and returns the object's block.
    pub(super) fn fit(&mut self, blocks: &Blocks, wanted: Wanted) -> Option<u32> {
        let need = Blocks::whole_len(wanted.len_bytes);
        if let Some((at, len)) = self.bins.best_fit(blocks, need) {
            if wanted.writes {
                blocks.prefetch_all(at, need);
            }
            self.bins.remove(blocks, at, len);
            self.carve(blocks, at, len, need, BlockKind::Whole, wanted.owner);
            return Some(at);
        }
        self.alloc_in_two(blocks, wanted)
    }

    /// Frees one delayed object if many are pending.
    pub(super) fn free_one(&mut self, blocks: &Blocks) {
        if self.delayed.len() > WAITING
            && let Some(at) = self.delayed.pop()
        {
            self.free_after_others(blocks, at);
        }
    }

    /// Frees an object whose turn has come, and prefetches for a later one.
    fn free_after_others(&mut self, blocks: &Blocks, at: u32) {
        self.free(blocks, at);
        let Some(soon) = self.delayed.get(LEAD) else { return };
        blocks.prefetch(soon + blocks.len(soon));
        if blocks.kind(soon) == BlockKind::First {
            blocks.prefetch(blocks.link(soon));
        }
        if blocks.prev_free(soon) {
            blocks.prefetch(soon - blocks.len_before(soon));
        }
    }

    /// Allocates and returns the object's block.
    pub(super) fn alloc(&mut self, blocks: &Blocks, wanted: Wanted) -> Result<u32, Full> {
        match self.fit(blocks, wanted) {
            Some(at) => Ok(at),
            None => {
                let need = Blocks::whole_len(wanted.len_bytes);
                let at = self.extend(blocks, BlockKind::Whole, need, wanted.owner, wanted.purpose);
                let at = at.or_else(|Full| self.alloc_at_end(blocks, wanted))?;
                if wanted.writes {
                    blocks.prefetch_all(at, need);
                }
                Ok(at)
            }
        }
    }

    /// Allocates for an object that is moved near the limit; `in_two` says that it was in two
    /// pieces. Then its other piece leaves a hole elsewhere, and if no two holes fit, the object is
    /// split again, so that less memory is taken than freed.
    pub(super) fn alloc_moved(&mut self, blocks: &Blocks, wanted: Wanted, in_two: bool) -> Result<u32, Full> {
        if let Some(at) = self.fit(blocks, wanted) {
            return Ok(at);
        }
        if in_two && let Ok(at) = self.alloc_at_end(blocks, wanted) {
            return Ok(at);
        }
        let Wanted { len_bytes, owner, .. } = wanted;
        let need = Blocks::whole_len(len_bytes);
        let end = if self.open == NIL { 0 } else { SEGMENT - self.segments[self.open as usize].top };
        if end >= need || end < PIECE_MIN {
            return self.extend(blocks, BlockKind::Whole, need, owner, Purpose::Move);
        }
        // Nothing is left unused between two segments, so all free bytes of the emptied segments
        // come together.
        let rest_len = Blocks::second_len(len_bytes - Blocks::first_room(end));
        let first = self.extend(blocks, BlockKind::First, end, owner, Purpose::Move)?;
        let second = self
            .extend(blocks, BlockKind::Second, rest_len, owner, Purpose::Move)
            .inspect_err(|_| self.free_block(blocks, first))?;
        blocks.put_link(first, second);
        blocks.put_link(second, first);
        Ok(first)
    }

    /// Splits an object between the longest free block that is too short and the open segment.
    #[cold]
    fn alloc_at_end(&mut self, blocks: &Blocks, wanted: Wanted) -> Result<u32, Full> {
        let Wanted { len_bytes, owner, purpose, .. } = wanted;
        let need = Blocks::whole_len(len_bytes);
        let (first, first_len) = self.bins.longest_below(blocks, need, PIECE_MIN).ok_or(Full)?;
        self.bins.remove(blocks, first, first_len);
        let rest_len = Blocks::second_len(len_bytes - Blocks::first_room(first_len));
        let second = self
            .extend(blocks, BlockKind::Second, rest_len, owner, purpose)
            .inspect_err(|_| self.bins.insert(blocks, first, first_len))?;
        self.carve(blocks, first, first_len, first_len, BlockKind::First, owner);
        blocks.put_link(first, second);
        blocks.put_link(second, first);
        Ok(first)
    }

    fn alloc_in_two(&mut self, blocks: &Blocks, wanted: Wanted) -> Option<u32> {
        let Wanted { len_bytes, owner, writes, .. } = wanted;
        let need = Blocks::whole_len(len_bytes);
        let (first, first_len) = self.bins.longest_below(blocks, need, PIECE_MIN.max(need / PIECE_PART))?;
        self.bins.remove(blocks, first, first_len);
        let rest_len = Blocks::second_len(len_bytes - Blocks::first_room(first_len));
        let Some((second, second_len)) = self.bins.best_fit(blocks, rest_len) else {
            self.bins.insert(blocks, first, first_len);
            return None;
        };
        if writes {
            blocks.prefetch_all(first, first_len);
            blocks.prefetch_all(second, rest_len);
        }
        self.bins.remove(blocks, second, second_len);
        self.carve(blocks, first, first_len, first_len, BlockKind::First, owner);
        self.carve(blocks, second, second_len, rest_len, BlockKind::Second, owner);
        blocks.put_link(first, second);
        blocks.put_link(second, first);
        Some(first)
    }

    /// Turns the front of the free, unlisted block `at` of `len` bytes into a live block of `need`
    /// bytes or slightly more.
    fn carve(&mut self, blocks: &Blocks, at: u32, len: u32, need: u32, kind: BlockKind, owner: Owner) {
        let taken = if len - need < BLOCK_MIN { len } else { need };
        if taken < len {
            self.bins.insert(blocks, at + taken, len - taken);
        } else {
            self.mark_next(blocks, at + len, false);
        }
        let segment = &mut self.segments[segment_of(at) as usize];
        segment.free -= taken;
        self.free_bytes -= u64::from(taken);
        self.live_bytes += u64::from(taken);
        blocks.put_live(at, kind, taken, owner);
    }

    /// Records in the block at `at`, if there is one, whether the block before it is free.
    fn mark_next(&self, blocks: &Blocks, at: u32, free: bool) {
        let before = segment_of(at - 1);
        if at < before * SEGMENT + self.segments[before as usize].top {
            blocks.set_prev_free(at, free);
        }
    }

    /// Allocates `need` bytes that were never used.
    fn extend(
        &mut self,
        blocks: &Blocks,
        kind: BlockKind,
        need: u32,
        owner: Owner,
        purpose: Purpose,
    ) -> Result<u32, Full> {
        let is_open = self.open != NIL && SEGMENT - self.segments[self.open as usize].top >= need;
        let number = if is_open { self.open } else { self.unused_segment(blocks, purpose)? };
        let top = self.segments[number as usize].top;
        if let Err(full) = self.hold(number, top + need, purpose) {
            if top == 0 {
                self.release(blocks, number);
            }
            return Err(full);
        }
        // Only after success: the rest of the open segment may be the only memory left.
        if !is_open {
            self.close(blocks, purpose);
            self.open = number;
        }
        self.segments[number as usize].top = top + need;
        self.live_bytes += u64::from(need);
        let at = number * SEGMENT + top;
        blocks.put_live(at, kind, need, owner);
        Ok(at)
    }

    /// Accounts for the memory of the segment's first `end` bytes.
    fn hold(&mut self, number: u32, end: u32, purpose: Purpose) -> Result<(), Full> {
        let held = self.segments[number as usize].held;
        if end <= held {
            return Ok(());
        }
        for step in [self.hold_step(purpose), HOLD_LEAST] {
            let more = end.next_multiple_of(step) - held;
            if self.budget.take_for(purpose, more.into()).is_ok() {
                // A single page costs less if its first use faults it in.
                if more > HOLD_LEAST && purpose == Purpose::Store && self.fresh.is_none() {
                    self.segments[number as usize].fills += 1;
                    self.fresh = Some(Fresh { at: number * SEGMENT + held, len: more });
                }
                self.segments[number as usize].held += more;
                self.held_bytes += u64::from(more);
                return Ok(());
            }
        }
        Err(Full)
    }

    /// Returns memory for the caller to fault in, as soon as it has released the lock. Then it calls
    /// [`filled`](Self::filled).
    pub(super) fn take_fresh(&mut self) -> Option<Fresh> {
        self.fresh.take()
    }

    /// Records that memory was faulted in. Releases its segment if that has become empty since.
    pub(super) fn filled(&mut self, blocks: &Blocks, fresh: Fresh) {
        let number = segment_of(fresh.at);
        let segment = &mut self.segments[number as usize];
        segment.fills -= 1;
        if segment.fills == 0 && segment.top == 0 {
            self.release(blocks, number);
        }
    }

    /// Returns the bytes that are accounted for in one step: a power of two from a page to a segment.
    fn hold_step(&self, purpose: Purpose) -> u32 {
        // Moves take small steps, so that they give back at least almost as much as they take.
        if purpose != Purpose::Store {
            return HOLD_LEAST;
        }
        let most = self.held_bytes.min(self.budget.left()) / HOLD_PART;
        1 << most.clamp(HOLD_LEAST.into(), SEGMENT.into()).ilog2()
    }

    /// Turns the rest of the open segment, if there is one, into a free block.
    fn close(&mut self, blocks: &Blocks, purpose: Purpose) {
        let number = self.open;
        if number == NIL {
            return;
        }
        let top = self.segments[number as usize].top;
        self.open = NIL;
        self.segments[number as usize].state = SegmentState::Closed;
        // At the limit, only the part that is already held becomes a free block.
        if purpose == Purpose::Store {
            let _ = self.hold(number, SEGMENT, purpose);
        }
        let segment = &mut self.segments[number as usize];
        let rest = segment.held - top;
        if rest >= BLOCK_MIN {
            segment.top = segment.held;
            segment.free += rest;
            self.free_bytes += u64::from(rest);
            self.bins.insert(blocks, number * SEGMENT + top, rest);
        }
    }

    fn unused_segment(&mut self, blocks: &Blocks, purpose: Purpose) -> Result<u32, Full> {
        let fresh = Segment { state: SegmentState::Open, top: 0, held: 0, free: 0, fills: 0 };
        if self.spare != NIL {
            let number = self.spare;
            if let SegmentState::Spare { next } = self.segments[number as usize].state {
                self.spare = next;
            }
            self.segments[number as usize] = fresh;
            return Ok(number);
        }
        let number = self.segments.len();
        if number >= self.segments_max as usize || blocks.enable((number as u32 + 1) * SEGMENT).is_err() {
            return Err(Full);
        }
        if number == self.segments.capacity() {
            let step = SEGMENTS_STEP.max(number / 4).min(self.segments_max as usize - number);
            let step = if number == 0 { step.min(8) } else { step };
            let bytes = (step * size_of::<Segment>()) as u64;
            self.budget.take_for(purpose, bytes)?;
            if self.segments.try_reserve_exact(step).is_err() {
                self.budget.give(bytes);
                return Err(Full);
            }
        }
        self.segments.push(fresh);
        Ok(number as u32)
    }

    /// Releases a segment's memory. The segment has neither live nor listed blocks.
    fn release(&mut self, blocks: &Blocks, number: u32) {
        let Segment { state, held, free, fills, .. } = self.segments[number as usize];
        if fills > 0 {
            // Otherwise, a thread could fault in memory that was given back.
            self.free_bytes -= u64::from(free);
            let state = if state == SegmentState::Open { state } else { SegmentState::Closed };
            self.segments[number as usize] = Segment { state, top: 0, held, free: 0, fills };
            return;
        }
        if held > 0 {
            blocks.give_back(number * SEGMENT, held);
        }
        self.held_bytes -= u64::from(held);
        self.free_bytes -= u64::from(free);
        self.budget.give(held.into());
        if self.open == number {
            self.open = NIL;
        }
        self.segments[number as usize] =
            Segment { state: SegmentState::Spare { next: self.spare }, top: 0, held: 0, free: 0, fills: 0 };
        self.spare = number;
    }

    /// Frees an object, possibly later; [`free_delayed`](Self::free_delayed) frees the pending ones
    /// immediately.
    pub(super) fn free_soon(&mut self, blocks: &Blocks, at: u32) {
        if self.live_bytes < DELAY_FROM {
            self.free(blocks, at);
            return;
        }
        blocks.prefetch(at);
        if let Some(oldest) = self.delayed.push(at) {
            self.free_after_others(blocks, oldest);
        }
    }

    /// Frees all delayed objects.
    pub(super) fn free_delayed(&mut self, blocks: &Blocks) {
        while let Some(at) = self.delayed.pop() {
            self.free(blocks, at);
        }
    }

    /// Frees an object's blocks.
    pub(super) fn free(&mut self, blocks: &Blocks, at: u32) {
        if blocks.kind(at) == BlockKind::First {
            self.free_block(blocks, blocks.link(at));
        }
        self.free_block(blocks, at);
    }

    fn free_block(&mut self, blocks: &Blocks, at: u32) {
        let number = segment_of(at);
        let (mut start, mut len) = (at, blocks.len(at));
        let Segment { state, top, .. } = self.segments[number as usize];
        let top = number * SEGMENT + top;
        self.live_bytes -= u64::from(len);
        self.free_bytes += u64::from(len);
        self.segments[number as usize].free += len;
        if state == SegmentState::Emptying {
            blocks.put_dead(at, len);
            return;
        }
        if blocks.prev_free(at) {
            let before = blocks.len_before(at);
            start -= before;
            self.bins.remove(blocks, start, before);
            len += before;
        }
        let next = start + len;
        if next < top && blocks.kind(next) == BlockKind::Free {
            let after = blocks.len(next);
            self.bins.remove(blocks, next, after);
            len += after;
        }
        let segment = &mut self.segments[number as usize];
        if segment.free == segment.top {
            self.release(blocks, number);
        } else if start + len == top && number == self.open {
            segment.top -= len;
            segment.free -= len;
            self.free_bytes -= u64::from(len);
        } else {
            self.mark_next(blocks, start + len, true);
            self.bins.insert(blocks, start, len);
        }
    }

    /// Resumes a segment if one was paused midway or `stuck_max` are paused. Otherwise starts
    /// another, or if there is none, resumes a paused one.
    pub(super) fn resume_or_begin(&mut self, blocks: &Blocks, least: u32, stuck_max: usize) -> Option<Emptying> {
        let midway = self.paused.front().is_some_and(|emptying| emptying.cursor > 0);
        if midway || self.paused.len() >= stuck_max {
            return self.paused.pop_front();
        }
        self.begin_emptying(blocks, least).or_else(|| self.paused.pop_front())
    }

    /// Takes a closed segment with at least `least` free bytes out of use to empty it: the one with
    /// the most free bytes among the next [`LOOKS`], or else among the following ones.
    pub(super) fn begin_emptying(&mut self, blocks: &Blocks, least: u32) -> Option<Emptying> {
        let count = self.segments.len();
        let mut windows = (0..count.div_ceil(LOOKS)).map(|window| {
            let window = window * LOOKS..count.min((window + 1) * LOOKS);
            let numbers = window.map(|at| (self.next + at) % count);
            numbers.map(|number| (self.segments[number].gain_of_emptying(), number)).max().unwrap_or_default()
        });
        let (_, number) = windows.find(|&(gain, _)| gain >= least.max(1))?;
        self.next = (number + 1) % count;
        let number = number as u32;
        self.segments[number as usize].state = SegmentState::Emptying;
        self.each_block(blocks, number, |shard, at, len| {
            if blocks.kind(at) == BlockKind::Free {
                shard.bins.remove(blocks, at, len);
            }
        });
        Some(Emptying { number, cursor: 0, passes: 0, taken: 0 })
    }

    /// Finds the next live objects of a segment that is being emptied, and moves its cursor past
    /// them. Returns how many; 0 at the segment's end.
    pub(super) fn residents(&self, blocks: &Blocks, emptying: &mut Emptying, found: &mut [Resident]) -> usize {
        let start = emptying.number * SEGMENT;
        let top = self.segments[emptying.number as usize].top;
        let mut count = 0;
        while emptying.cursor < top && count < found.len() {
            let at = start + emptying.cursor;
            emptying.cursor += blocks.len(at);
            let first = match blocks.kind(at) {
                BlockKind::Free => continue,
                BlockKind::Second => blocks.link(at),
                BlockKind::Whole | BlockKind::First => at,
            };
            found[count] = Resident { owner: blocks.owner(at), at: first };
            count += 1;
        }
        count
    }

    /// Returns the bytes held by a segment that is being emptied.
    pub(super) fn held_by(&self, emptying: &Emptying) -> u32 {
        self.segments[emptying.number as usize].held
    }

    /// Returns whether a segment that is being emptied is empty.
    pub(super) fn is_empty(&self, emptying: &Emptying) -> bool {
        let segment = &self.segments[emptying.number as usize];
        segment.free == segment.top
    }

    /// Ends the emptying of a segment: releases its memory or, if something is left in it, returns
    /// it to use.
    pub(super) fn end_emptying(&mut self, blocks: &Blocks, emptying: Emptying) {
        let number = emptying.number;
        if self.is_empty(&emptying) {
            self.release(blocks, number);
            return;
        }
        self.segments[number as usize].state = SegmentState::Closed;
        let mut run = None;
        self.each_block(blocks, number, |shard, at, len| {
            if blocks.kind(at) == BlockKind::Free {
                run = run.map_or(Some((at, len)), |(start, before)| Some((start, before + len)));
                return;
            }
            blocks.set_prev_free(at, run.is_some());
            if let Some((start, len)) = run.take() {
                shard.bins.insert(blocks, start, len);
            }
        });
        if let Some((start, len)) = run {
            self.bins.insert(blocks, start, len);
        }
    }

    /// Completes pending work: frees all delayed objects and ends the emptying of all paused
    /// segments.
    pub(super) fn settle(&mut self, blocks: &Blocks) {
        self.free_delayed(blocks);
        while let Some(emptying) = self.paused.pop_front() {
            self.end_emptying(blocks, emptying);
        }
    }

    /// Calls `each` with every block of the segment; it may change the block that it gets.
    fn each_block(&mut self, blocks: &Blocks, number: u32, mut each: impl FnMut(&mut Self, u32, u32)) {
        let mut at = number * SEGMENT;
        let end = at + self.segments[number as usize].top;
        while at < end {
            let len = blocks.len(at);
            each(self, at, len);
            at += len;
        }
    }

    /// Checks all invariants, and returns the number of objects. No segment is being emptied.
    pub(super) fn check(&self, blocks: &Blocks) -> Result<u64, String> {
        let mut objects = 0;
        let mut listed = self.bins.listed(blocks)?;
        listed.sort_unstable();
        let (mut held, mut free, mut tops, mut found) = (0, 0, 0, Vec::new());
        for (number, segment) in self.segments.iter().enumerate() {
            let wrong = |what: &str| Err(format!("segment {number}: {what}: {segment:?}"));
            if segment.fills > 0 {
                return wrong("a thread is faulting in its memory");
            }
            if segment.top > segment.held || segment.held > SEGMENT || !segment.held.is_multiple_of(HOLD_LEAST) {
                return wrong("top and held");
            }
            if (segment.state == SegmentState::Open) != (self.open == number as u32)
                || segment.state == SegmentState::Emptying
            {
                return wrong("state");
            }
            let (start, mut at, mut prev_free, mut segment_free) = (number as u32 * SEGMENT, 0, false, 0);
            while at < segment.top {
                let (block, len) = (start + at, blocks.len(start + at));
                if len < BLOCK_MIN || at + len > segment.top {
                    return wrong(&format!("block {at} has {len} bytes"));
                }
                match blocks.kind(block) {
                    BlockKind::Free if prev_free || blocks.len_before(block + len) != len => {
                        return wrong(&format!("free block {at} of {len} bytes"));
                    }
                    BlockKind::Free => {
                        segment_free += len;
                        found.push((block, len));
                    }
                    _ if blocks.prev_free(block) != prev_free => return wrong(&format!("live block {at}")),
                    BlockKind::First | BlockKind::Second if blocks.link(blocks.link(block)) != block => {
                        return wrong(&format!("pieces {at}"));
                    }
                    _ => {}
                }
                prev_free = blocks.kind(block) == BlockKind::Free;
                objects += u64::from(matches!(blocks.kind(block), BlockKind::Whole | BlockKind::First));
                at += len;
            }
            if segment_free != segment.free || (segment.top != 0 && segment.free == segment.top) {
                return wrong(&format!("{segment_free} bytes are free"));
            }
            held += u64::from(segment.held);
            free += u64::from(segment.free);
            tops += u64::from(segment.top);
        }
        if found != listed {
            return Err(format!("{} free blocks are in segments, {} in lists", found.len(), listed.len()));
        }
        if (held, free, tops - free) != (self.held_bytes, self.free_bytes, self.live_bytes) {
            return Err(format!("held {held}, free {free}, live {}: the counts do not match: {self:?}", tops - free));
        }
        Ok(objects)
    }
}
