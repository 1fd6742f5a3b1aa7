//! A disk whose content is compressed in RAM.

use std::{
    fmt, io,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
};

use pagefold_store::{self as store, ChangedRun, Disk, DiskStats, PAGE_SIZE, Page, Pool, Status, StatusRun};

use crate::{
    BaseCache, BlockDevice, Change, Error, Extent, Read, Zeroes,
    below::{Below, Comparing},
};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// A disk's size is a multiple of this.
const SECTOR_BYTES: u64 = 512;

/// Slots in the first step of reporting changes; each further step has twice as many. So at most
/// twice as much is examined as is reported.
const FIRST_CHANGE_SLOTS: u64 = 64;

/// Why a disk cannot be created, or cannot have a size.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NewDiskError {
    /// The size is 0 or not a multiple of 512.
    #[error("invalid disk size {0}: must be a non-zero multiple of 512")]
    Size(u64),
    /// The pool cannot create or resize the disk.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A disk of `size_bytes` in a pool. Slot `n` holds the bytes from `4096 × n` on; the last slot may
/// extend beyond the disk's end, and the rest of its page is zeros. A slot that holds nothing reads
/// as the base or, without one or beyond its end, as zeros.
pub struct RamDisk {
    disk: Disk,
    below: Option<Arc<Below>>,
    /// Whether slots that hold nothing are unchanged since the disk was created.
    began_empty: bool,
    pool: Pool,
    size_bytes: AtomicU64,
    /// While the size changes, the larger of both sizes; otherwise 0.
    coming_bytes: AtomicU64,
    /// Held by the thread that changes the size.
    resizing: Mutex<()>,
    /// The disk of which this one is a snapshot.
    snapshot_of: Option<Weak<RamDisk>>,
}

/// The state of a RAM disk for other processes, without its store's disk.
pub(crate) struct Kept<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) below: Option<&'a Arc<Below>>,
    pub(crate) began_empty: bool,
    pub(crate) size_bytes: u64,
    /// The disk of which it is a snapshot.
    pub(crate) snapshot_of: Option<*const RamDisk>,
}

/// The source of a range of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Pages written to the disk, or to the disk that it was forked from.
    Own,
    /// The base below the disk, or zeros.
    Below,
}

/// The part of a request in one slot.
struct SlotPart {
    slot: u64,
    /// Offset in the page.
    at: usize,
    /// Range in the request.
    bytes: Range<usize>,
}

/// Returns the number of slots of a disk of `size_bytes`.
pub(crate) fn slots_of(size_bytes: u64) -> Result<u64, NewDiskError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(NewDiskError::Size(size_bytes));
    }
    Ok(size_bytes.div_ceil(PAGE_BYTES))
}

/// Splits a request of `len` bytes at `offset` into its slots' parts.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = SlotPart> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let offset = offset + done as u64;
        let at = (offset % PAGE_BYTES) as usize;
        let start = done;
        done = len.min(start + PAGE_SIZE - at);
        Some(SlotPart { slot: offset / PAGE_BYTES, at, bytes: start..done })
    })
}

impl fmt::Debug for RamDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamDisk")
            .field("disk", &self.disk)
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

impl RamDisk {
    /// Creates an empty disk in `pool`.
    ///
    /// # Errors
    /// See [`NewDiskError`].
    pub fn new(pool: &Pool, size_bytes: u64) -> Result<Self, NewDiskError> {
        let disk = pool.disk(slots_of(size_bytes)?)?;
        Ok(Self::of(disk, None, true, pool.clone(), size_bytes))
    }

    /// Creates a disk in `pool` with the content and size of `base`, which must not change while
    /// the disk or any fork of it exists. This disk and its forks share the digests of the base's
    /// pages, up to two bytes per page. So forks of one unmodified disk are better than several
    /// disks over the same base.
    ///
    /// # Errors
    /// See [`NewDiskError`].
    pub fn over(pool: &Pool, base: Arc<dyn BlockDevice>) -> Result<Self, NewDiskError> {
        Self::over_with(pool, base, None)
    }

    /// Like [`over`](Self::over), and keeps pages of the base in `cache`, the pool's, if reading one
    /// costs much more than decoding a page.
    ///
    /// # Errors
    /// See [`NewDiskError`].
    pub fn over_cached(pool: &Pool, base: Arc<dyn BlockDevice>, cache: &BaseCache) -> Result<Self, NewDiskError> {
        Self::over_with(pool, base, Some(cache))
    }

    fn over_with(pool: &Pool, base: Arc<dyn BlockDevice>, cache: Option<&BaseCache>) -> Result<Self, NewDiskError> {
        let size_bytes = base.size_bytes();
        let disk = pool.disk_over(slots_of(size_bytes)?)?;
        let below = Arc::new(Below::new(base, pool, cache));
        Ok(Self::of(disk, Some(below), true, pool.clone(), size_bytes))
    }

    fn of(disk: Disk, below: Option<Arc<Below>>, began_empty: bool, pool: Pool, size_bytes: u64) -> Self {
        let (size_bytes, coming_bytes) = (AtomicU64::new(size_bytes), AtomicU64::new(0));
        Self { disk, below, began_empty, pool, size_bytes, coming_bytes, resizing: Mutex::default(), snapshot_of: None }
    }

    /// Returns a disk with the content of this one at one instant, see [`Disk::fork`].
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn fork(&self) -> Result<Self, Error> {
        let _resizing = self.resizing();
        let disk = self.disk.fork()?;
        let began_empty = self.began_empty && disk.is_empty();
        Ok(Self::of(disk, self.below.clone(), began_empty, self.pool.clone(), self.size_bytes()))
    }

    /// Returns a read-only fork. As long as this disk exists, the fork's
    /// [changes](BlockDevice::changes) are those that this disk had at the instant of the fork.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn snapshot(self: &Arc<Self>) -> Result<Self, Error> {
        Ok(Self { snapshot_of: Some(Arc::downgrade(self)), ..self.fork()? })
    }

    /// Gives this disk the content that `other`, a disk of the same pool and over the same base,
    /// has at one instant, and its size. See [`Disk::become_as`].
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the disk is unchanged.
    pub fn become_as(&self, other: &Self) -> Result<(), Error> {
        let like = other.fork()?;
        let _resizing = self.resizing();
        let size_bytes = like.size_bytes();
        self.disk.become_as(like.disk)?;
        self.size_bytes.store(size_bytes, Release);
        Ok(())
    }

    /// Returns the base below the disk.
    pub fn base(&self) -> Option<&Arc<dyn BlockDevice>> {
        self.below.as_ref().map(|below| below.device())
    }

    /// Returns the parts of which the disk consists.
    pub(crate) fn kept(&self) -> Kept<'_> {
        Kept {
            disk: &self.disk,
            below: self.below.as_ref(),
            began_empty: self.began_empty,
            size_bytes: self.size_bytes(),
            snapshot_of: self.snapshot_of.as_ref().map(Weak::as_ptr),
        }
    }

    /// Returns the disk's state; while its size changes, with the larger of both sizes.
    pub(crate) fn kept_at_least(&self) -> Kept<'_> {
        let kept = self.kept();
        Kept { size_bytes: kept.size_bytes.max(self.coming_bytes.load(Acquire)), ..kept }
    }

    /// Calls `change`, which may give the disk this size. In the meantime,
    /// [`kept_disks`](crate::kept_disks) reports the larger of both sizes, beyond which nothing is
    /// stored. No other thread calls this simultaneously.
    pub fn may_become<T>(&self, size_bytes: u64, change: impl FnOnce() -> T) -> T {
        self.coming_bytes.store(size_bytes.max(self.size_bytes()), Release);
        let changed = change();
        self.coming_bytes.store(0, Release);
        changed
    }

    /// Creates a disk from a store's disk with content. `snapshot_of` is the disk of a snapshot.
    pub(crate) fn restored(
        disk: Disk,
        below: Option<Arc<Below>>,
        began_empty: bool,
        pool: Pool,
        size_bytes: u64,
        snapshot_of: Option<Weak<Self>>,
    ) -> Self {
        Self { snapshot_of, ..Self::of(disk, below, began_empty, pool, size_bytes) }
    }

    fn resizing(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the disk holds and the memory that it uses.
    pub fn stats(&self) -> DiskStats {
        self.disk.stats()
    }

    /// Sets the most memory that the disk may use of its pool; `u64::MAX` means no limit. See
    /// [`Disk::set_limit`].
    pub fn set_limit(&self, limit_bytes: u64) {
        self.disk.set_limit(limit_bytes);
    }

    /// Changes the disk's size. Content beyond a smaller size is lost; added space reads as zeros.
    ///
    /// # Errors
    /// The size is invalid, or there is no memory to cut the last page or to record what is
    /// removed. The disk then keeps its size, but may have lost content past the new end.
    pub fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        let slots =
            slots_of(size_bytes).map_err(|error| Error::Io(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let _resizing = self.resizing();
        let before = self.size_bytes();
        if size_bytes > before {
            self.clear_tail(before)?;
            self.disk.resize(slots)?;
            self.size_bytes.store(size_bytes, Release);
        } else {
            self.clear_tail(size_bytes)?;
            self.size_bytes.store(size_bytes, Release);
            self.disk.resize(slots).inspect_err(|_| self.size_bytes.store(before, Release))?;
        }
        Ok(())
    }

    /// Zeroes the part of the last page that is beyond the end of a disk of `size_bytes`.
    fn clear_tail(&self, size_bytes: u64) -> Result<(), Error> {
        let (slot, end) = (size_bytes / PAGE_BYTES, (size_bytes % PAGE_BYTES) as usize);
        if end > 0 {
            self.clear_in(slot, end..PAGE_SIZE)?;
        }
        Ok(())
    }

    /// Empties the disk: it reads as its base, or is one hole that reads as zeros.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the disk is unchanged.
    pub fn reset(&self) -> Result<(), Error> {
        if let Some(base) = self.base() {
            let slots = self.disk.slots();
            let like = self.pool.disk_over(slots.max(base.size_bytes().div_ceil(PAGE_BYTES)))?;
            // When the disk grows, content of the base beyond its old end stays hidden.
            like.resize(slots)?;
            return Ok(self.disk.become_as(like)?);
        }
        Ok(self.disk.discard(0..self.disk.slots())?)
    }

    /// Fills a part of a slot's page with zeros.
    fn clear_in(&self, slot: u64, part: Range<usize>) -> Result<(), Error> {
        match self.disk.status(slot)? {
            Status::Data => self.change(slot, |page| page[part.clone()].fill(0)),
            Status::Empty if self.below.is_some() => self.change(slot, |page| page[part.clone()].fill(0)),
            _ => Ok(()),
        }
    }

    /// Changes a slot's page.
    fn change(&self, slot: u64, mut change: impl FnMut(&mut [u8; PAGE_SIZE])) -> Result<(), Error> {
        let Some(below) = &self.below else { return Ok(self.disk.update(slot, change)?) };
        if !self.disk.update_held(slot, &mut change)? {
            let mut page = [0; PAGE_SIZE];
            below.read(slot * PAGE_BYTES, &mut page)?;
            self.disk.update_over(slot, &page, change)?;
        }
        Ok(())
    }

    /// Like [`change`](Self::change), without waiting for storage. Returns whether the page is changed.
    fn try_change(&self, slot: u64, mut change: impl FnMut(&mut [u8; PAGE_SIZE])) -> Result<bool, Error> {
        let Some(below) = &self.below else { return Ok(self.disk.update(slot, change).map(|()| true)?) };
        if !self.disk.update_held(slot, &mut change)? {
            let mut page = [0; PAGE_SIZE];
            if below.try_read(slot * PAGE_BYTES, &mut page)? < PAGE_SIZE {
                return Ok(false);
            }
            self.disk.update_over(slot, &page, change)?;
        }
        Ok(true)
    }

    /// Starts the comparison of a write's pages with the base's, if a page that equals the base's
    /// needs no memory.
    fn comparing(&self, len_bytes: usize) -> Option<Comparing<'_>> {
        let below = self.below.as_ref().filter(|_| self.began_empty);
        below.map(|below| below.compare(len_bytes / PAGE_SIZE))
    }

    /// Writes a page, which may equal the base's.
    fn write_page(&self, slot: u64, page: &Page, is_equal: bool) -> Result<(), Error> {
        if is_equal { self.disk.forget(slot) } else { self.disk.write(slot, page) }.map_err(Error::from)
    }

    /// Fills `buf`; `fill` reads what is below the disk, and returns how many bytes it filled. If
    /// it filled less than it was asked for, the rest is not read. Returns how many bytes of `buf`
    /// are filled.
    fn read_with(
        &self,
        offset: u64,
        buf: &mut [u8],
        fill: impl Fn(&Below, u64, &mut [u8]) -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        // The part of the request that is known to be read from below.
        let mut rest = 0..0;
        for part in parts(offset, buf.len()) {
            let is_held = self.read_part(&part, &mut buf[part.bytes.clone()])?;
            let Some(below) = &self.below else { continue };
            if !is_held {
                rest = if rest.is_empty() { part.bytes } else { rest.start..part.bytes.end };
            } else if !rest.is_empty() {
                let filled = fill(below, offset + rest.start as u64, &mut buf[rest.clone()])?;
                if filled < rest.len() {
                    return Ok(rest.start + filled);
                }
                rest = 0..0;
            }
        }
        match &self.below {
            Some(below) if !rest.is_empty() => {
                Ok(rest.start + fill(below, offset + rest.start as u64, &mut buf[rest])?)
            }
            _ => Ok(buf.len()),
        }
    }

    /// Fills the parts of `buf` that the disk holds. Adds the other parts to `missing`.
    fn read_own<'a>(&self, offset: u64, mut buf: &'a mut [u8], missing: &mut Vec<Read<'a>>) -> Result<(), Error> {
        let (mut at, end) = (offset, offset + buf.len() as u64);
        // Whether the last part was missing, so that the next missing part continues it.
        let mut begun: Option<(u64, usize)> = None;
        let mut done = 0;
        while at < end {
            let Some(part) = parts(at, (end - at) as usize).next() else { break };
            let len = part.bytes.len();
            let is_held = self.read_part(&part, &mut buf[done..done + len])?;
            match (is_held, begun) {
                (false, None) => begun = Some((at, done)),
                (true, Some((first, start))) => {
                    let (before, after) = std::mem::take(&mut buf).split_at_mut(done);
                    missing.push(Read::new(first, &mut before[start..]));
                    (buf, done, begun) = (after, 0, None);
                }
                _ => {}
            }
            at += len as u64;
            done += len;
        }
        if let Some((first, start)) = begun {
            missing.push(Read::new(first, &mut buf[start..]));
        }
        Ok(())
    }

    /// Fills a part of a request from the disk's own page. Returns false if the slot holds nothing;
    /// the content of the part is then unspecified.
    fn read_part(&self, part: &SlotPart, target: &mut [u8]) -> Result<bool, Error> {
        if let Ok(page) = <&mut [u8; PAGE_SIZE]>::try_from(&mut *target) {
            // If the slot holds nothing, the base fills the page or, without one, zeros.
            let is_over = self.below.is_some();
            return Ok(if is_over { self.disk.read_held(part.slot, page) } else { self.disk.read(part.slot, page) }?);
        }
        let mut page = [0; PAGE_SIZE];
        let is_held = self.disk.read(part.slot, &mut page)?;
        target.copy_from_slice(&page[part.at..part.at + target.len()]);
        Ok(is_held)
    }

    /// Reports the extents of a range that holds nothing. Returns whether `each` wants more.
    fn extents_below(&self, mut at: u64, end: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<bool, Error> {
        let mut more = true;
        if let Some(base) = self.base() {
            let base_end = end.min(base.size_bytes());
            if at < base_end {
                base.extents(at, base_end - at, &mut |extent| {
                    more = each(extent);
                    more
                })?;
                at = base_end;
            }
        }
        if more && at < end {
            more = each(Extent { len_bytes: end - at, hole: true, zero: true });
        }
        Ok(more)
    }

    /// Like [`extents`](BlockDevice::extents), and reports which extents are the disk's own. The
    /// range must not be empty and must be within the disk.
    pub fn layered_extents(
        &self,
        offset: u64,
        len_bytes: u64,
        each: &mut dyn FnMut(Extent, Layer) -> bool,
    ) -> Result<(), Error> {
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            let slot = at / PAGE_BYTES;
            let slots_left = (end - slot * PAGE_BYTES).div_ceil(PAGE_BYTES);
            let StatusRun { status, slots, .. } = self.disk.run(slot, slots_left)?;
            let stop = end.min((slot + slots) * PAGE_BYTES);
            let more = match status {
                Status::Empty => self.extents_below(at, stop, &mut |extent| each(extent, Layer::Below))?,
                _ => {
                    let (hole, zero) = (status == Status::Hole, status != Status::Data);
                    each(Extent { len_bytes: stop - at, hole, zero }, Layer::Own)
                }
            };
            if !more {
                return Ok(());
            }
            at = stop;
        }
        Ok(())
    }

    /// Makes a range read as zeros; `whole` clears the slots that are wholly within it.
    fn clear(
        &self,
        offset: u64,
        len_bytes: u64,
        whole: impl Fn(Range<u64>) -> Result<(), store::Error>,
    ) -> Result<(), Error> {
        let end = offset + len_bytes;
        // The bytes beyond the disk's end are zeros already, so a range that ends at the disk's end
        // includes the whole last page.
        let last = if end == self.size_bytes() { end.div_ceil(PAGE_BYTES) } else { end / PAGE_BYTES };
        let first = offset.div_ceil(PAGE_BYTES);
        if first > last {
            return self.clear_part(offset..end);
        }
        self.clear_part(offset..end.min(first * PAGE_BYTES))?;
        whole(first..last)?;
        self.clear_part((last * PAGE_BYTES).max(offset)..end)
    }

    /// Returns whether clearing a range may keep a part of a page of the base, which must then be
    /// read.
    fn clears_with_base(&self, offset: u64, len_bytes: u64) -> bool {
        let end = offset + len_bytes;
        let is_whole =
            offset.is_multiple_of(PAGE_BYTES) && (end.is_multiple_of(PAGE_BYTES) || end == self.size_bytes());
        self.below.is_some() && !is_whole
    }

    /// Fills a part of one page with zeros.
    fn clear_part(&self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        let slot = range.start / PAGE_BYTES;
        let start = slot * PAGE_BYTES;
        self.clear_in(slot, (range.start - start) as usize..(range.end - start) as usize)
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Full | store::Error::DiskFull => Self::NoSpace,
            store::Error::Corrupt { slot, what } => Self::Corrupt { page: slot, what },
            store::Error::NoSuchSlot { slot, slots } => Self::OutOfRange {
                offset: slot.saturating_mul(PAGE_BYTES),
                len_bytes: PAGE_BYTES,
                size_bytes: slots.saturating_mul(PAGE_BYTES),
            },
            store::Error::TooLarge { .. } => Self::Io(io::Error::new(io::ErrorKind::InvalidInput, error)),
            other => Self::Io(io::Error::other(other)),
        }
    }
}

impl BlockDevice for RamDisk {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Acquire)
    }

    fn read_only(&self) -> bool {
        self.snapshot_of.is_some()
    }

    fn may_block(&self) -> bool {
        self.base().is_some_and(|base| base.may_block())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.read_with(offset, buf, |below, offset, buf| below.read(offset, buf).map(|()| buf.len())).map(drop)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.read_with(offset, buf, Below::try_read)
    }

    fn read_together(&self, reads: &mut [Read<'_>]) {
        let Some(below) = &self.below else {
            for read in reads {
                read.result = self.read(read.offset, read.buf);
            }
            return;
        };
        let mut missing = Vec::with_capacity(reads.len());
        let mut results = Vec::with_capacity(reads.len());
        for Read { offset, buf, result } in reads {
            let at = missing.len();
            *result = self.read_own(*offset, buf, &mut missing);
            results.push((at..missing.len(), result));
        }
        below.read_together(&mut missing);
        let mut outcomes = missing.into_iter().map(|read| read.result);
        for (range, result) in results {
            let outcome = outcomes.by_ref().take(range.len()).fold(Ok(()), Result::and);
            if result.is_ok() {
                *result = outcome;
            }
        }
    }

    fn read_unit_bytes(&self) -> u64 {
        self.base().map_or(PAGE_BYTES, |base| base.read_unit_bytes())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        let mut comparing = self.comparing(buf.len());
        for part in parts(offset, buf.len()) {
            let source = &buf[part.bytes];
            if let Ok(page) = source.try_into() {
                let is_equal = comparing.as_mut().is_some_and(|comparing| comparing.is_equal(part.slot, page));
                self.write_page(part.slot, page, is_equal)?;
            } else {
                self.change(part.slot, |page| page[part.at..part.at + source.len()].copy_from_slice(source))?;
            }
        }
        Ok(())
    }

    fn try_write(&self, offset: u64, buf: &[u8]) -> Result<usize, Error> {
        let mut comparing = self.comparing(buf.len());
        for part in parts(offset, buf.len()) {
            let start = part.bytes.start;
            let source = &buf[part.bytes];
            if let Ok(page) = source.try_into() {
                let is_equal = comparing.as_mut().map(|comparing| comparing.try_is_equal(part.slot, page));
                match is_equal {
                    Some(None) => return Ok(start),
                    Some(Some(is_equal)) => self.write_page(part.slot, page, is_equal)?,
                    None => self.write_page(part.slot, page, false)?,
                }
            } else {
                let change = |page: &mut [u8; PAGE_SIZE]| page[part.at..part.at + source.len()].copy_from_slice(source);
                if !self.try_change(part.slot, change)? {
                    return Ok(start);
                }
            }
        }
        Ok(buf.len())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(()) // RAM is as durable as this disk gets
    }

    fn try_flush(&self) -> Result<bool, Error> {
        self.flush().map(|()| true)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.clear(offset, len_bytes, |slots| self.disk.discard(slots))
    }

    fn try_discard(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        if self.clears_with_base(offset, len_bytes) {
            return Ok(false);
        }
        self.discard(offset, len_bytes).map(|()| true)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        self.clear(offset, len_bytes, |mut slots| match zeroes {
            Zeroes::MayUnmap => self.disk.discard(slots),
            Zeroes::Allocated => slots.try_for_each(|slot| self.disk.write_zeroes(slot)),
        })
    }

    fn try_write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<bool, Error> {
        if self.clears_with_base(offset, len_bytes) {
            return Ok(false);
        }
        self.write_zeroes(offset, len_bytes, zeroes).map(|()| true)
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        self.layered_extents(offset, len_bytes, &mut |extent, _| each(extent))
    }

    fn knows_changes(&self) -> bool {
        true
    }

    fn changes(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Change) -> bool) -> Result<(), Error> {
        let end = offset + len_bytes;
        let kept_of = self.snapshot_of.as_ref().and_then(Weak::upgrade);
        let owner = kept_of.as_ref().map_or(&self.disk, |disk| &disk.disk);
        let (mut at, mut most_slots) = (offset, FIRST_CHANGE_SLOTS);
        while at < end {
            let slot = at / PAGE_BYTES;
            let slots_left = (end - slot * PAGE_BYTES).div_ceil(PAGE_BYTES);
            let ChangedRun { changed, slots, .. } = self.disk.changed_by(owner, slot, slots_left.min(most_slots))?;
            let stop = end.min((slot + slots) * PAGE_BYTES);
            if !each(Change { len_bytes: stop - at, changed }) {
                return Ok(());
            }
            at = stop;
            most_slots = most_slots.saturating_mul(2);
        }
        Ok(())
    }
}
