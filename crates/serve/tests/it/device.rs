//! Devices for tests.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pagefold_disk::{BlockDevice, Error, Extent, Zeroes};

/// A vector, with counters for tests and ways to make it fail.
#[derive(Default)]
pub(crate) struct Ram {
    pub(crate) bytes: Mutex<Vec<u8>>,
    /// Requests at offset 0 wait for this gate.
    pub(crate) gate: Gate,
    pub(crate) may_block: bool,
    /// Whether reads at all offsets wait for the gate.
    pub(crate) gates_all: bool,
    /// Offset and length of each write.
    pub(crate) writes: Mutex<Vec<(u64, usize)>>,
    pub(crate) flushes: AtomicUsize,
    /// Writes fail with NoSpace.
    pub(crate) full: AtomicBool,
    /// Reads fail as corrupt from this offset on, unless it is 0.
    pub(crate) corrupt_from: AtomicUsize,
    /// Current number of running reads, and its maximum.
    pub(crate) reads: AtomicUsize,
    pub(crate) most_reads: AtomicUsize,
    /// Number of reads that have begun.
    pub(crate) total_reads: AtomicUsize,
    pub(crate) slow_read: Duration,
    pub(crate) slow_write: Duration,
    /// The maximum number of writes that ran at the same time.
    pub(crate) most_writes: AtomicUsize,
    pub(crate) running_writes: AtomicUsize,
    /// Alternates extents of data and holes, each of `stripe_pages` pages, or one page if that is
    /// 0.
    pub(crate) striped: bool,
    pub(crate) stripe_pages: u64,
    pub(crate) last_zeroes_keep: AtomicBool,
    pub(crate) panics: bool,
}

/// Open unless closed.
#[derive(Default)]
pub(crate) struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.changed.notify_all();
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            closed = self.changed.wait(closed).unwrap();
        }
        drop(closed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ram {
    pub(crate) fn new(size_bytes: usize) -> Self {
        Self { bytes: Mutex::new(vec![0; size_bytes]), ..Self::default() }
    }

    pub(crate) fn shared(size_bytes: usize) -> Arc<Self> {
        Arc::new(Self::new(size_bytes))
    }

    /// Creates a device whose requests at offset 0 wait for the gate, which is closed.
    pub(crate) fn gated(size_bytes: usize) -> Arc<Self> {
        let ram = Self { may_block: true, ..Self::new(size_bytes) };
        ram.gate.close();
        Arc::new(ram)
    }
}

impl BlockDevice for Ram {
    fn size_bytes(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn may_block(&self) -> bool {
        self.may_block
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        assert!(!self.panics, "a device with a bug");
        let running = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
        self.total_reads.fetch_add(1, Ordering::SeqCst);
        self.most_reads.fetch_max(running, Ordering::SeqCst);
        if offset == 0 || self.gates_all {
            self.gate.pass();
        }
        std::thread::sleep(self.slow_read);
        let corrupt_from = self.corrupt_from.load(Ordering::SeqCst);
        let result = if corrupt_from != 0 && offset as usize + buf.len() > corrupt_from {
            Err(Error::Corrupt { page: offset / 4096, what: "a test" })
        } else {
            buf.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..buf.len()]);
            Ok(())
        };
        self.reads.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.writes.lock().unwrap().push((offset, buf.len()));
        let running = self.running_writes.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_writes.fetch_max(running, Ordering::SeqCst);
        std::thread::sleep(self.slow_write);
        self.running_writes.fetch_sub(1, Ordering::SeqCst);
        if offset == 0 {
            self.gate.pass();
        }
        if self.full.load(Ordering::SeqCst) {
            return Err(Error::NoSpace);
        }
        self.bytes.lock().unwrap()[offset as usize..][..buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.bytes.lock().unwrap()[offset as usize..][..len_bytes as usize].fill(0);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        self.last_zeroes_keep.store(zeroes == Zeroes::Allocated, Ordering::SeqCst);
        self.discard(offset, len_bytes)
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        if !self.striped {
            // Two adjacent extents with the same status: the server merges them.
            let first = len_bytes.div_ceil(2);
            let extent = |len_bytes| Extent { len_bytes, hole: false, zero: false };
            if each(extent(first)) && len_bytes > first {
                each(extent(len_bytes - first));
            }
            return Ok(());
        }
        let (mut at, end) = (offset, offset + len_bytes);
        while at != end {
            let stripe_bytes = self.stripe_pages.max(1) * 4096;
            let next = ((at / stripe_bytes + 1) * stripe_bytes).min(end);
            let hole = at / stripe_bytes % 2 == 1;
            if !each(Extent { len_bytes: next - at, hole, zero: hole }) {
                break;
            }
            at = next;
        }
        Ok(())
    }
}
