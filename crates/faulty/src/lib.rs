//! A base in memory that is slow, fails, stalls or returns short reads on a test's request, and a
//! storage for a base that does the same.
#![forbid(unsafe_code)]

mod storage;

use std::{
    borrow::Cow,
    io,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use pagefold_disk::{BlockDevice, Error, Extent, Zeroes};

pub use storage::{Asked, FaultyStorage};

const PAGE_BYTES: usize = 4096;

/// The content of a buffer's part that the base has not filled.
const GARBAGE: u8 = 0xaa;

/// A read-only device of bytes in memory. Its holes are its pages of zeros.
///
/// A read that fails has filled a part of its buffer with garbage.
#[derive(Debug)]
pub struct Faulty {
    bytes: Cow<'static, [u8]>,
    /// The length of ranges that reads share, if it is slow.
    unit_bytes: Option<u64>,
    is_short: AtomicBool,
    fails_each: AtomicU64,
    until_failure: AtomicU64,
    calls: AtomicU64,
    reads: AtomicU64,
    units: AtomicU64,
    failures: AtomicU64,
    stall: Mutex<Stall>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Stall {
    stalls: bool,
    waiting: usize,
}

impl Faulty {
    /// Creates a base that need not wait and does not fail yet.
    pub fn new(bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        Self {
            bytes: bytes.into(),
            unit_bytes: None,
            is_short: AtomicBool::new(false),
            fails_each: AtomicU64::new(0),
            until_failure: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            units: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            stall: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Makes it slow: it answers nothing without a wait. Reads within units of `unit_bytes` have
    /// something in common.
    #[must_use]
    pub fn slow(self, unit_bytes: u64) -> Self {
        Self { unit_bytes: Some(unit_bytes), ..self }
    }

    /// Sets whether a slow base answers an eighth of the reads that must not wait, and an eighth in
    /// part.
    pub fn set_short(&self, is_short: bool) {
        self.is_short.store(is_short, Relaxed);
    }

    /// Makes each `number`-th call fail, if it is a read that waits; 0 means none. Returns what was set
    /// before.
    pub fn fail_each(&self, number: u64) -> u64 {
        self.fails_each.swap(number, Relaxed)
    }

    /// Makes the `number`-th read from now on fail; 0 means none. Reads that must not wait do not count,
    /// if it is slow.
    pub fn fail_after(&self, number: u64) {
        self.until_failure.store(number, Relaxed);
    }

    /// With `true`, makes reads wait until this is called with `false`.
    pub fn set_stall(&self, stalls: bool) {
        self.stall().stalls = stalls;
        self.changed.notify_all();
    }

    /// Returns how many reads wait because of [`set_stall`](Self::set_stall).
    pub fn stalled(&self) -> usize {
        self.stall().waiting
    }

    /// Returns its content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns how many reads there were, without those that must not wait, if it is slow.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Returns the number of units of these reads if the base is slow, without those that failed.
    pub fn units(&self) -> u64 {
        self.units.load(Relaxed)
    }

    /// Returns how many reads have failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    fn stall(&self) -> MutexGuard<'_, Stall> {
        self.stall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_out_stall(&self) {
        let mut stall = self.stall();
        if stall.stalls {
            stall.waiting += 1;
            while stall.stalls {
                stall = self.changed.wait(stall).unwrap_or_else(PoisonError::into_inner);
            }
            stall.waiting -= 1;
        }
    }

    /// Returns whether this call, the only one with this number, fails.
    fn fails(&self, call: u64) -> bool {
        let each = self.fails_each.load(Relaxed);
        let until = self.until_failure.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        until == Ok(1) || each > 0 && call.is_multiple_of(each)
    }

    fn copy(&self, offset: u64, buf: &mut [u8]) {
        buf.copy_from_slice(&self.bytes[offset as usize..][..buf.len()]);
    }
}

impl BlockDevice for Faulty {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_only(&self) -> bool {
        true
    }

    fn may_block(&self) -> bool {
        self.unit_bytes.is_some()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let call = self.calls.fetch_add(1, Relaxed);
        self.reads.fetch_add(1, Relaxed);
        self.wait_out_stall();
        if self.fails(call) {
            self.failures.fetch_add(1, Relaxed);
            let part = buf.len() / 2;
            buf[..part].fill(GARBAGE);
            return Err(Error::Io(io::Error::other("the base is damaged")));
        }
        if let Some(unit_bytes) = self.unit_bytes {
            if call.is_multiple_of(3) {
                thread::yield_now();
            }
            let units = (offset + buf.len() as u64).div_ceil(unit_bytes) - offset / unit_bytes;
            self.units.fetch_add(units, Relaxed);
        }
        self.copy(offset, buf);
        Ok(())
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        if self.unit_bytes.is_none() {
            return self.read(offset, buf).map(|()| buf.len());
        }
        let call = self.calls.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let filled = match call % 8 {
            _ if !self.is_short.load(Relaxed) => 0,
            0 => buf.len(),
            1 => call as usize / 8 % (buf.len() + 1),
            _ => 0,
        };
        buf.fill(GARBAGE);
        self.copy(offset, &mut buf[..filled]);
        Ok(filled)
    }

    fn read_unit_bytes(&self) -> u64 {
        self.unit_bytes.unwrap_or(PAGE_BYTES as u64)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroes) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        let (mut at, end) = (offset as usize, (offset + len_bytes) as usize);
        while at < end {
            let next = (at / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES).min(end);
            // One comparison is one instrumented branch of a fuzz target.
            let zero = self.bytes[at..next] == [0; PAGE_BYTES][..next - at];
            if !each(Extent { len_bytes: (next - at) as u64, hole: zero, zero }) {
                return Ok(());
            }
            at = next;
        }
        Ok(())
    }
}
