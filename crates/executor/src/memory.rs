//! The memory of connections: bounded in total, accounted for, and returned when a connection goes
//! idle.
//!
//! Each buffer is a separate mapping, so returned memory leaves the process. Blocks of the C
//! library's heap would stay in it.

use std::{
    fmt, io,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use memmap2::MmapMut;

/// Buffers that a connection keeps for its next requests: as many as it has pieces of large writes
/// in progress on a machine with many CPUs. Mapping a buffer costs more than filling it.
const KEPT_BUFFERS: usize = 32;
/// Granularity of mappings.
const PAGE_BYTES: usize = 4096;
/// Memory of an idle connection: its records and a short option that is being received. It has
/// neither a thread nor buffers.
pub const IDLE_BYTES: u64 = 4 << 10;
/// Additional memory of a connection while it works on requests: its two buffers of 8 KiB, and the
/// part of its thread's stack that is touched.
pub const WORK_BYTES: u64 = 32 << 10;

/// The purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// A connection's minimum, [`IDLE_BYTES`]. If it is refused, a connection that has not chosen an
    /// export yet is closed, or else the new client is refused.
    Connection,
    /// A connection that works on requests, [`WORK_BYTES`]. If it is refused, the connection's
    /// requests wait until others have done theirs.
    Work,
    /// Larger buffers and more threads. If it is refused, connections work with what they have: one
    /// request at a time, in small pieces. Peers that are slow keep loans for long, so an account
    /// should leave room for the other claims.
    Loan,
}

/// Accounts for a server's memory in addition to
/// the limit of [`Memory`]. Other parts of the process can share the
/// account.
pub trait Account: Send + Sync {
    /// Reserves `bytes` if there is room for them.
    fn take(&self, claim: Claim, bytes: u64) -> bool;

    /// Releases `bytes` that were reserved for the same claim.
    fn give(&self, claim: Claim, bytes: u64);
}

/// The memory that all connections of a server use.
///
/// ```text
/// lent_bytes = buffers + option data + what each thread of the executor takes ≤ limit_bytes
/// account    = lent_bytes + IDLE_BYTES for each connection + WORK_BYTES for each that works
/// ```
pub struct Memory {
    limit_bytes: u64,
    lent_bytes: AtomicU64,
    account: Option<Arc<dyn Account>>,
    /// Whether a connection waits for memory to work.
    short: AtomicBool,
    /// Called when memory is released while `short`.
    when_released: Mutex<Option<WhenReleased>>,
}

/// See [`Memory::when_released`].
type WhenReleased = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("lent_bytes", &self.lent_bytes).finish_non_exhaustive()
    }
}

impl Memory {
    /// Creates an account of at most `limit_bytes`, all of which `account` counts, too.
    pub fn new(limit_bytes: u64, account: Option<Arc<dyn Account>>) -> Arc<Self> {
        let (lent_bytes, short) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { limit_bytes, lent_bytes, account, short, when_released: Mutex::default() })
    }

    /// Calls `notify`, from now on, when memory is released while a connection waits for some. It
    /// replaces an earlier one.
    pub fn when_released(&self, notify: impl Fn() + Send + Sync + 'static) {
        *self.when_released.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(notify));
    }

    /// Lends `bytes`, if available, until the result is dropped.
    pub fn lend(self: &Arc<Self>, bytes: u64) -> Option<Taken> {
        let more = |lent: u64| lent.checked_add(bytes).filter(|&lent| lent <= self.limit_bytes);
        self.lent_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let taken = self.take(Claim::Loan, bytes);
        if taken.is_none() {
            self.lent_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Reserves the minimum of a connection.
    pub fn take_idle(self: &Arc<Self>) -> Option<Taken> {
        self.take(Claim::Connection, IDLE_BYTES)
    }

    /// Reserves additional memory for a connection as long as it exists, beyond that of a plain
    /// one.
    pub fn take_more_idle(self: &Arc<Self>, bytes: u64) -> Option<Taken> {
        self.take(Claim::Connection, bytes)
    }

    /// Reserves what a connection needs to work, and `more_bytes`.
    pub fn take_work(self: &Arc<Self>, more_bytes: u64) -> Option<Taken> {
        self.take(Claim::Work, WORK_BYTES + more_bytes)
    }

    fn take(self: &Arc<Self>, claim: Claim, bytes: u64) -> Option<Taken> {
        if self.account.as_ref().is_some_and(|account| !account.take(claim, bytes)) {
            return None;
        }
        Some(Taken { memory: Arc::clone(self), claim, bytes })
    }

    /// Sets whether a connection waits for memory to work.
    pub fn set_short(&self, short: bool) {
        self.short.store(short, Ordering::SeqCst);
    }

    /// Returns whether a connection waits for memory to work.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }
}

/// Memory that stays reserved until this is dropped.
#[derive(Debug)]
pub struct Taken {
    memory: Arc<Memory>,
    claim: Claim,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.claim == Claim::Loan {
            self.memory.lent_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        if let Some(account) = &self.memory.account {
            account.give(self.claim, self.bytes);
        }
        if self.memory.short.load(Ordering::SeqCst) {
            let notify = self.memory.when_released.lock().unwrap_or_else(PoisonError::into_inner).clone();
            notify.iter().for_each(|notify| notify());
        }
    }
}

/// A mapping. It is unmapped before its bytes are released.
#[derive(Debug)]
struct Buffer {
    map: MmapMut,
    _taken: Taken,
}

/// One connection's share of the server's memory, and the buffers that it keeps.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    limit_bytes: usize,
    /// Bytes mapped, whether kept or lent. At most `limit_bytes`.
    mapped_bytes: AtomicUsize,
    kept: Mutex<Vec<Buffer>>,
}

impl Share {
    /// Creates the share of a connection, at most `limit_bytes` of `memory`.
    pub fn new(memory: Arc<Memory>, limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { memory, limit_bytes, mapped_bytes: AtomicUsize::new(0), kept: Mutex::default() })
    }

    /// Lends a buffer of `len_bytes`; returns `None` if there is no memory for it now. The content
    /// is zeros or left over from earlier requests of the same connection.
    pub fn lend(self: &Arc<Self>, len_bytes: usize) -> Option<Lent> {
        let lent = |buffer| Lent { share: Arc::clone(self), buffer: Some(buffer), len_bytes };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Best fit, so that a small request does not hold a buffer that a large one needs.
        let found = (0..kept.len()).filter(|&at| kept[at].map.len() >= len_bytes).min_by_key(|&at| kept[at].map.len());
        if let Some(found) = found {
            return Some(lent(kept.swap_remove(found)));
        }
        // A kept buffer that is too small would only take up memory.
        let small = kept.pop();
        drop(kept);
        small.into_iter().for_each(|buffer| self.unmap(buffer));
        let mapped_bytes = len_bytes.checked_next_multiple_of(PAGE_BYTES)?;
        let more = |mapped: usize| mapped.checked_add(mapped_bytes).filter(|&mapped| mapped <= self.limit_bytes);
        self.mapped_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let buffer = self.memory.lend(mapped_bytes as u64).and_then(|taken| {
            let map = MmapMut::map_anon(mapped_bytes).ok()?;
            Some(Buffer { map, _taken: taken })
        });
        if buffer.is_none() {
            self.mapped_bytes.fetch_sub(mapped_bytes, Ordering::Relaxed);
        }
        buffer.map(lent)
    }

    fn unmap(&self, buffer: Buffer) {
        self.mapped_bytes.fetch_sub(buffer.map.len(), Ordering::Relaxed);
    }

    fn give_back(&self, buffer: Buffer) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_BUFFERS {
            return kept.push(buffer);
        }
        drop(kept);
        self.unmap(buffer);
    }

    /// Returns whether nothing is mapped, so that there is nothing to return.
    pub fn is_empty(&self) -> bool {
        self.mapped_bytes.load(Ordering::Relaxed) == 0
    }

    /// Unmaps the kept buffers.
    pub fn trim(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        kept.into_iter().for_each(|buffer| self.unmap(buffer));
    }
}

/// A borrowed buffer that returns to its connection when dropped.
#[derive(Debug)]
pub struct Lent {
    share: Arc<Share>,
    /// `Some` until the value is dropped; may be longer than requested.
    buffer: Option<Buffer>,
    len_bytes: usize,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().and_then(|buffer| buffer.map.get(..self.len_bytes)).unwrap_or_default()
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().and_then(|buffer| buffer.map.get_mut(..self.len_bytes)).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.share.give_back(buffer);
        }
    }
}

/// A permanent small buffer, replaced by a large one while the connection is busy.
#[derive(Debug)]
pub struct Growing {
    small: MmapMut,
    large: Option<Lent>,
}

impl Growing {
    /// Creates a small buffer of `small_bytes`.
    pub fn new(small_bytes: usize) -> io::Result<Self> {
        Ok(Self { small: MmapMut::map_anon(small_bytes)?, large: None })
    }

    /// Returns whether the buffer is the large one.
    pub fn is_large(&self) -> bool {
        self.large.is_some()
    }

    /// If it is small and memory allows, borrows a buffer of `len_bytes` and copies the range
    /// `keep` to its front. Returns whether the buffer grew.
    pub fn grow(&mut self, share: &Arc<Share>, len_bytes: usize, keep: Range<usize>) -> bool {
        if self.large.is_some() {
            return false;
        }
        let Some(mut large) = share.lend(len_bytes) else { return false };
        let (Some(from), Some(to)) = (self.small.get(keep.clone()), large.as_mut().get_mut(..keep.len())) else {
            return false;
        };
        to.copy_from_slice(from);
        self.large = Some(large);
        true
    }

    /// Returns the large buffer, and replaces it with another large one or, without memory, with
    /// the small one. Copies the range `keep` to the front of the new one. Returns `None`, and
    /// changes nothing, if the buffer is small or the range too long.
    pub fn replace(&mut self, share: &Arc<Share>, keep: Range<usize>) -> Option<Lent> {
        let old = self.large.as_ref()?;
        let from = old.as_ref().get(keep)?;
        let mut large = share.lend(old.as_ref().len());
        let to = large.as_mut().map_or(&mut self.small[..], |large| large.as_mut());
        to.get_mut(..from.len())?.copy_from_slice(from);
        std::mem::replace(&mut self.large, large)
    }

    /// Returns to the small buffer. The content is lost.
    pub fn shrink(&mut self) {
        self.large = None;
    }
}

impl AsRef<[u8]> for Growing {
    fn as_ref(&self) -> &[u8] {
        self.large.as_ref().map_or(&self.small[..], |large| large.as_ref())
    }
}

impl AsMut<[u8]> for Growing {
    fn as_mut(&mut self) -> &mut [u8] {
        self.large.as_mut().map_or(&mut self.small[..], |large| large.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 64 << 10;

    /// An account of `limit_bytes`.
    #[derive(Default)]
    struct Narrow {
        limit_bytes: u64,
        taken_bytes: AtomicU64,
    }

    impl Account for Narrow {
        fn take(&self, claim: Claim, bytes: u64) -> bool {
            let taken = self.taken_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if claim == Claim::Loan && taken > self.limit_bytes {
                self.give(claim, bytes);
                return false;
            }
            true
        }

        fn give(&self, _: Claim, bytes: u64) {
            self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn taken(memory: &Memory) -> u64 {
        memory.lent_bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn no_more_is_lent_than_the_server_the_connection_and_the_account_allow() {
        let account = Arc::new(Narrow { limit_bytes: 2 * PIECE as u64 + IDLE_BYTES, ..Narrow::default() });
        let cases =
            [(2 * PIECE, usize::MAX, None), (usize::MAX, 2 * PIECE + 1, None), (usize::MAX, usize::MAX, Some(()))];
        for (server_bytes, connection_bytes, with_account) in cases {
            let account: Option<Arc<dyn Account>> = with_account.map(|()| Arc::clone(&account) as _);
            let memory = Memory::new(server_bytes as u64, account);
            let _idle = memory.take_idle();
            let share = Share::new(Arc::clone(&memory), connection_bytes);
            let held = [(); 2].map(|()| share.lend(PIECE).expect("room"));
            assert!(share.lend(PIECE).is_none());
            assert_eq!(taken(&memory), 2 * PIECE as u64, "a refusal changes nothing");
            drop(held);
            assert!(share.lend(PIECE).is_some());
            drop(share);
            assert_eq!(taken(&memory), 0);
        }
        assert_eq!(account.taken_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_few_buffers_are_kept_until_the_connection_is_idle() {
        let memory = Memory::new(u64::MAX, None);
        let share = Share::new(Arc::clone(&memory), usize::MAX);
        let held: Vec<_> = (0..2 * KEPT_BUFFERS).map(|_| share.lend(PIECE).expect("room")).collect();
        drop(held);
        assert_eq!(taken(&memory), (KEPT_BUFFERS * PIECE) as u64);
        drop(share.lend(PIECE - 1));
        assert_eq!(taken(&memory), (KEPT_BUFFERS * PIECE) as u64, "what is kept is lent again");
        share.trim();
        assert!(share.is_empty());
        assert_eq!(taken(&memory), 0);
    }

    #[test]
    fn the_shortest_that_is_long_enough_is_lent() {
        let share = Share::new(Memory::new(u64::MAX, None), usize::MAX);
        drop([4, 1, 2].map(|pieces| share.lend(pieces * PIECE).expect("room")));
        let mapped = |lent: &Lent| lent.buffer.as_ref().map_or(0, |buffer| buffer.map.len());
        let lent = [1, PIECE + 1, PIECE + 1].map(|len_bytes| share.lend(len_bytes).expect("kept"));
        assert_eq!(lent.each_ref().map(mapped), [PIECE, 2 * PIECE, 4 * PIECE]);
    }

    #[test]
    fn kept_buffers_that_are_too_small_are_released() {
        let memory = Memory::new(2 * PIECE as u64, None);
        let share = Share::new(Arc::clone(&memory), usize::MAX);
        drop(share.lend(PIECE));
        assert!(share.lend(2 * PIECE).is_some());
    }

    #[test]
    fn a_buffer_grows_with_its_content_and_shrinks_without() {
        let memory = Memory::new(PIECE as u64, None);
        let share = Share::new(Arc::clone(&memory), usize::MAX);
        let mut buffer = Growing::new(PAGE_BYTES).expect("memory");
        buffer.as_mut()[10..14].copy_from_slice(b"kept");
        assert!(buffer.grow(&share, PIECE, 10..14));
        assert!(!buffer.grow(&share, PIECE, 0..0), "it is large already");
        assert_eq!((&buffer.as_ref()[..4], buffer.as_ref().len()), (&b"kept"[..], PIECE));
        buffer.shrink();
        share.trim();
        assert_eq!((buffer.as_ref().len(), taken(&memory)), (PAGE_BYTES, 0));
    }
}
