//! A bounded amount of memory, mapped once, in huge pages if the system has them, and lent in
//! pieces.
//!
//! The first use of a page costs a fault and zeroing 4 KiB: 1.9 µs as measured, 1.1 µs if many are
//! faulted in together, and 0.65 µs as part of a huge page. So memory is populated a little ahead of
//! its first use. A returned piece is lent again as it is.
#![allow(unsafe_code)] // Parts of one mapping, lent to different owners; a prefetch hint.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use memmap2::{MmapMut, MmapOptions};

/// Pieces begin and end at multiples of this: a cache line.
const GRAIN: usize = 64;
/// The size of a huge page.
const HUGE_BYTES: usize = 2 << 20;
/// Bytes that are faulted in together where a piece is taken from memory that was not used yet.
const POPULATED_BYTES: usize = 64 << 10;
/// The first bytes are in small pages, so that a little-used arena stays small. The huge pages
/// follow.
const SMALL_BYTES: usize = HUGE_BYTES / 4;
/// The maximum number of lanes of an arena, and of extents per lane.
const MAX_LANES: usize = 16;
const EXTENTS: usize = 4;

/// The lane of the next thread that asks for a piece.
static NEXT_LANE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LANE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Memory that is lent in pieces. Clones share it.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<ArenaCore>,
}

/// A part of an [`Arena`], which is returned when it is dropped.
///
/// Invariant: the `len` bytes at `start` are in the mapping and in no other piece or free range.
pub struct Piece {
    start: NonNull<u8>,
    len: usize,
    home: Arc<Lane>,
}

// SAFETY: a piece owns its bytes, like a box.
unsafe impl Send for Piece {}
// SAFETY: as above; a shared piece only allows reads.
unsafe impl Sync for Piece {}

/// A thread takes pieces from its lane, and a lane takes extents from the rest of the mapping. If
/// two threads shared a huge page, each would zero one at the first fault, and the kernel would
/// discard one of the two.
///
/// Invariant: the free ranges of all lanes, the pieces lent and the bytes after `taken` make up the
/// mapping, without overlap.
struct ArenaCore {
    len: usize,
    /// Holds `None` if the system refused the mapping.
    memory: OnceLock<Option<Arc<Memory>>>,
    /// Bytes at the front that have been given to lanes.
    taken: AtomicUsize,
    /// Bytes that a lane takes in one step.
    extent: usize,
    lanes: Box<[Arc<Lane>]>,
}

/// On its own cache lines. A piece refers only to its lane, so that threads do not share reference
/// counts either.
#[repr(align(128))]
#[derive(Default)]
struct Lane {
    free: Mutex<Free>,
    /// Set when the lane gets its first extent.
    memory: OnceLock<Arc<Memory>>,
}

/// Free ranges. Invariants: no two are adjacent; `by_len` has the same ranges as `by_start`;
/// `populated` is in `rest` or at its end.
#[derive(Default)]
struct Free {
    /// The unused part of the last extent: start and length. A piece that fits in no other range is
    /// taken from its front.
    rest: (usize, usize),
    /// Lengths by start.
    by_start: BTreeMap<usize, usize>,
    /// Lengths and starts.
    by_len: BTreeSet<(usize, usize)>,
    /// The end of the bytes of the last extent that are faulted in.
    populated: usize,
}

/// The mapping. It is only accessed through pieces.
struct Memory {
    start: NonNull<u8>,
    mapping: MmapMut,
    /// Where `start` is in the mapping.
    before: usize,
}

// SAFETY: the pointer belongs to the mapping, which any thread may own.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` only allows copying the pointer.
unsafe impl Sync for Memory {}

impl Arena {
    /// Creates an arena of `len_bytes`. Memory is faulted in as pieces are used, from the front.
    pub fn new(len_bytes: usize) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with_lanes(len_bytes, threads.min(MAX_LANES))
    }

    /// Creates an arena of `len_bytes` whose pieces are packed as closely as possible, whichever
    /// threads take them: for a few long pieces.
    pub fn packed(len_bytes: usize) -> Self {
        Self::with_lanes(len_bytes, 1)
    }

    fn with_lanes(len_bytes: usize, lanes: usize) -> Self {
        let len = len_bytes / GRAIN * GRAIN;
        let (lanes, extent) = match len / (lanes * EXTENTS) / HUGE_BYTES * HUGE_BYTES {
            0 => (1, len),
            extent => (lanes, extent),
        };
        let shared = ArenaCore {
            len,
            memory: OnceLock::new(),
            taken: AtomicUsize::new(0),
            extent,
            lanes: (0..lanes).map(|_| Arc::default()).collect(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes a piece of `len` bytes, which are zeros or what an earlier user left. Returns `None`
    /// if there is no contiguous room for it.
    pub fn take(&self, len: usize) -> Option<Piece> {
        let shared = &self.shared;
        let grains = len.checked_next_multiple_of(GRAIN).filter(|_| len > 0)?;
        let memory = shared.memory.get_or_init(|| Memory::map(shared.len).map(Arc::new)).as_ref()?;
        let own = LANE.get().unwrap_or_else(|| NEXT_LANE.fetch_add(1, Ordering::Relaxed));
        LANE.set(Some(own));
        let count = shared.lanes.len();
        let (home, start) = (own..own + count).map(|lane| &shared.lanes[lane % count]).find_map(|lane| {
            let mut free = lane.lock();
            let start = free.take(grains).or_else(|| {
                let (start, len) = shared.extend(grains)?;
                lane.memory.get_or_init(|| Arc::clone(memory));
                free.extend(start, len);
                free.take(grains)
            })?;
            free.populate(memory, start + grains);
            Some((lane, start))
        })?;
        // SAFETY: `start` is in the mapping.
        let start = unsafe { memory.start.add(start) };
        Some(Piece { start, len, home: Arc::clone(home) })
    }
}

/// Prefetches all lines of `bytes` together: a plain copy waits for one line after the other.
pub fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(GRAIN) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint that accesses nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Free> {
        // Nothing panics while the lock is held.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArenaCore {
    /// Takes an extent of at least `least` bytes, or all that is left, if anything is. Returns
    /// start and length.
    fn extend(&self, least: usize) -> Option<(usize, usize)> {
        // The first extent includes the small pages, so that the others begin and end at huge
        // pages.
        let small = |taken| if taken == 0 { SMALL_BYTES } else { 0 };
        let end = |taken: usize| self.len.min(taken.saturating_add(least.max(self.extent + small(taken))));
        let more = |taken: usize| (taken < self.len).then(|| end(taken));
        let start = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some((start, end(start) - start))
    }
}

impl Memory {
    fn map(len: usize) -> Option<Self> {
        let huge = len > SMALL_BYTES;
        let mapped = if huge { len.checked_add(HUGE_BYTES)? } else { len };
        let mut mapping = MmapOptions::new().len(mapped).no_reserve_swap().map_anon().ok().filter(|_| len > 0)?;
        let before = if huge { (mapping.as_ptr().addr() + SMALL_BYTES).wrapping_neg() % HUGE_BYTES } else { 0 };
        #[cfg(target_os = "linux")]
        if huge {
            // The advice has no effect if the system has no huge pages.
            let _ = mapping.advise_range(memmap2::Advice::HugePage, before + SMALL_BYTES, len - SMALL_BYTES);
        }
        Some(Self { start: NonNull::from(&mut mapping[before..]).cast(), mapping, before })
    }

    /// Faults bytes in, if the system can do that on request.
    fn populate(&self, start: usize, len: usize) {
        #[cfg(target_os = "linux")]
        let _ = self.mapping.advise_range(memmap2::Advice::PopulateWrite, self.before + start, len);
    }
}

impl Free {
    fn insert(&mut self, start: usize, len: usize) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Takes `len` bytes from the first of the shortest ranges that fit, so that memory is used
    /// from the front.
    fn take(&mut self, len: usize) -> Option<usize> {
        let Some((range, start)) = self.by_len.range((len, 0)..).next().copied() else {
            let start = self.rest.0;
            self.rest = (start + len, self.rest.1.checked_sub(len)?);
            return Some(start);
        };
        self.remove(start, range);
        if range > len {
            self.insert(start + len, range - len);
        }
        Some(start)
    }

    /// Returns `len` bytes at `start`, and joins them with adjacent free ranges.
    fn give(&mut self, mut start: usize, mut len: usize) {
        if let Some((&after, &more)) = self.by_start.range(start..).next()
            && after == start + len
        {
            self.remove(after, more);
            len += more;
        }
        if let Some((&before, &more)) = self.by_start.range(..start).next_back()
            && before + more == start
        {
            self.remove(before, more);
            (start, len) = (before, more + len);
        }
        if start + len == self.rest.0 && self.rest.1 > 0 {
            self.rest = (start, len + self.rest.1);
        } else {
            self.insert(start, len);
        }
    }

    /// Faults in the bytes of the last extent up to `end`, which is in it or before it, and some that
    /// follow.
    fn populate(&mut self, memory: &Memory, end: usize) {
        let (rest, extent_end) = (self.rest.0, self.rest.0 + self.rest.1);
        if end == rest && end > self.populated {
            let from = self.populated;
            self.populated = extent_end.min(end + POPULATED_BYTES);
            memory.populate(from, self.populated - from);
        }
    }

    /// Adds an extent.
    fn extend(&mut self, start: usize, len: usize) {
        self.populated = start;
        let (old_start, old_len) = std::mem::replace(&mut self.rest, (start, len));
        if old_len > 0 {
            self.give(old_start, old_len);
        } else if let Some((&before, &more)) = self.by_start.range(..start).next_back()
            && before + more == start
        {
            self.remove(before, more);
            self.rest = (before, more + len);
        }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece owns these bytes, by its invariant; the mapping is initialised (with
        // zeros) and lives as long as `home`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and an exclusive reference to the piece is one to its bytes.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some(memory) = self.home.memory.get() else { return };
        let start = self.start.addr().get() - memory.start.addr().get();
        self.home.lock().give(start, self.len.next_multiple_of(GRAIN));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks the invariants of [`ArenaCore`] and [`Free`] for an arena whose lent pieces are
    /// `out`.
    fn check(arena: &Arena, out: &[Piece]) {
        let shared = &arena.shared;
        let Some(Some(memory)) = shared.memory.get() else { return assert!(out.is_empty()) };
        let taken = shared.taken.load(Ordering::Relaxed);
        let mut ranges = vec![(taken, shared.len - taken, None)];
        for lane in 0..shared.lanes.len() {
            let free = shared.lanes[lane].lock();
            let mut by_len: Vec<_> = free.by_start.iter().map(|(start, len)| (*len, *start)).collect();
            by_len.sort_unstable();
            assert!(free.by_len.iter().copied().eq(by_len));
            assert!((free.rest.0..=free.rest.0 + free.rest.1).contains(&free.populated));
            ranges.extend((free.rest.1 > 0).then_some((free.rest.0, free.rest.1, Some(lane))));
            ranges.extend(free.by_start.iter().map(|(start, len)| (*start, *len, Some(lane))));
        }
        let place = |piece: &Piece| piece.start.addr().get() - memory.start.addr().get();
        ranges.extend(out.iter().map(|piece| (place(piece), piece.len.next_multiple_of(GRAIN), None)));
        ranges.sort_unstable();
        let mut end = (0, None);
        for (start, len, lane) in ranges {
            assert!(start == end.0 && (lane.is_none() || lane != end.1));
            end = (start + len, lane);
        }
        assert_eq!(end.0, shared.len);
    }

    #[test]
    fn memory_is_populated_ahead_of_its_first_use() {
        let arena = Arena::with_lanes(32 * HUGE_BYTES, 1);
        let lane = &arena.shared.lanes[0];
        let (mut pieces, mut steps) = (Vec::new(), BTreeSet::new());
        for _ in 0..1000 {
            pieces.push(arena.take(10_000).expect("room"));
            let free = lane.lock();
            let ahead = free.populated - free.rest.0;
            assert!(ahead <= POPULATED_BYTES, "{ahead} bytes are populated too early");
            steps.insert(free.populated);
        }
        assert!(steps.len() <= 1000 * 10_048 / POPULATED_BYTES + 1, "{} steps", steps.len());
        // Used memory is not populated again.
        pieces.clear();
        let before = lane.lock().populated;
        let again = arena.take(10_000).expect("room");
        assert_eq!(lane.lock().populated, before);
        drop(again);
    }

    #[test]
    fn threads_have_huge_pages_of_their_own() {
        let arena = Arena::with_lanes(32 * HUGE_BYTES, 2);
        let take = || {
            let piece = arena.take(100_000).expect("room");
            (piece.start.addr().get() - arena.shared.memory.get().unwrap().as_ref().unwrap().start.addr().get(), piece)
        };
        let here: Vec<_> = (0..3).map(|_| take()).collect();
        let there = std::thread::scope(|scope| {
            let others: Vec<_> = (0..16).map(|_| scope.spawn(take)).collect();
            others.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        let extent = |(start, _): &(usize, Piece)| start.saturating_sub(SMALL_BYTES) / arena.shared.extent;
        assert!(here.iter().all(|piece| extent(piece) == 0));
        assert!(there.iter().any(|piece| extent(piece) == 1));
        // A thread whose lane has no room takes from another lane.
        let all = arena.take(29 * HUGE_BYTES);
        assert!(all.is_none());
        drop((here, there));
        // The small pages are part of the first extent, so the last one is shorter.
        let mut pieces: Vec<_> = (0..7).map(|_| arena.take(4 * HUGE_BYTES).expect("room")).collect();
        pieces.push(arena.take(4 * HUGE_BYTES - SMALL_BYTES).expect("room"));
        pieces.push(arena.take(SMALL_BYTES).expect("room"));
        check(&arena, &pieces);
    }

    #[test]
    fn pieces_are_apart_and_come_back() {
        let arena = Arena::new(10_000);
        assert!(arena.take(0).is_none() && arena.take(10_000).is_none() && arena.take(usize::MAX).is_none());
        let mut first = arena.take(100).expect("room");
        let mut second = arena.take(9_000).expect("room");
        assert!(arena.take(1_000).is_none());
        first.fill(1);
        second.fill(2);
        assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2));
        let place = first.as_ptr();
        drop(first);
        let third = arena.take(128).expect("room");
        assert_eq!((third.as_ptr(), third[0], third[127]), (place, 1, 0));
        drop((second, third));
        check(&arena, &[]);
        let all = arena.take(9_984).expect("room");
        drop(arena);
        assert_eq!(all[0], 1);
        assert!(Arena::new(0).take(1).is_none());
    }

    #[test]
    fn threads_do_not_meet() {
        let arena = Arena::new(1 << 16);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let arena = arena.clone();
                scope.spawn(move || {
                    for round in 0..if cfg!(miri) { 20 } else { 2_000 } {
                        let Some(mut piece) = arena.take(1 + round * 37 % 5_000) else { continue };
                        piece.fill(number);
                        assert!(piece.iter().all(|byte| *byte == number));
                    }
                });
            }
        });
        check(&arena, &[]);
    }

    proptest! {
        #[test]
        fn what_is_lent_and_free_is_all(steps in proptest::collection::vec((any::<bool>(), 1usize..3_000, any::<u8>()), 0..100)) {
            let arena = Arena::new(1 << 14);
            let mut out = Vec::new();
            for (take, len, number) in steps {
                if take {
                    if let Some(mut piece) = arena.take(len) {
                        piece.fill(out.len() as u8);
                        piece[0] = number;
                        out.push(piece);
                    }
                } else if !out.is_empty() {
                    out.swap_remove(usize::from(number) % out.len());
                }
                check(&arena, &out);
            }
            for piece in &out {
                prop_assert!(piece[1..].iter().all(|byte| *byte == piece[piece.len() - 1]));
            }
        }
    }
}
