//! A storage that counts reads, and fails, changes or returns short reads on a test's request.

use std::{
    collections::HashSet,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use pagefold_storage::{ReadAt, Storage};

/// A storage elsewhere that fetches aligned units, and keeps each: only the first read of a unit is
/// a wait. The content is in `below`.
pub struct FaultyStorage {
    below: Arc<dyn ReadAt>,
    unit_bytes: u64,
    identity: String,
    /// The end of what it has; reads beyond fail.
    end: AtomicU64,
    is_changed: AtomicBool,
    fails_each: AtomicU64,
    latency: Duration,
    calls: AtomicU64,
    bytes: AtomicU64,
    fetched: Mutex<Fetched>,
}

#[derive(Debug, Default)]
struct Fetched {
    units: HashSet<u64>,
    waits: u64,
    ranges: u64,
}

/// The reads that a storage received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Calls that read.
    pub calls: u64,
    /// Bytes that they read.
    pub bytes: u64,
    /// Calls that had to fetch: what follows one after the other costs the latency of each.
    pub waits: u64,
    /// Contiguous ranges of units that were fetched.
    pub ranges: u64,
    /// Units that are there.
    pub units: u64,
}

impl FaultyStorage {
    /// Creates a storage of `below` that does not fail yet.
    ///
    /// # Panics
    /// The length of `below` is not known.
    pub fn new(below: Arc<dyn ReadAt>, unit_bytes: u64) -> Self {
        let end = below.len_bytes().expect("a length");
        Self {
            below,
            unit_bytes,
            identity: format!("test:{end}"),
            end: AtomicU64::new(end),
            is_changed: AtomicBool::new(false),
            fails_each: AtomicU64::new(0),
            latency: Duration::ZERO,
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            fetched: Mutex::default(),
        }
    }

    /// Makes each fetch take at least this long. Others who need what is being fetched wait for it.
    #[must_use]
    pub fn slow(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    /// Makes every `number`-th call that has to fetch fail. 0 means that none fails.
    pub fn fail_each(&self, number: u64) {
        self.fails_each.store(number, Relaxed);
    }

    /// Cuts off what is beyond `end`, but still reports the same length.
    pub fn cut(&self, end: u64) {
        self.end.store(end, Relaxed);
    }

    /// Makes it say that it has changed.
    pub fn change(&self) {
        self.is_changed.store(true, Relaxed);
    }

    /// Returns the reads since the last call, with all units that were ever fetched.
    pub fn take_asked(&self) -> Asked {
        let mut fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = Asked {
            calls: self.calls.swap(0, Relaxed),
            bytes: self.bytes.swap(0, Relaxed),
            waits: fetched.waits,
            ranges: fetched.ranges,
            units: fetched.units.len() as u64,
        };
        (fetched.waits, fetched.ranges) = (0, 0);
        asked
    }

    /// Fetches the units of parts together.
    fn fetch(&self, parts: &mut dyn Iterator<Item = (u64, usize)>) -> io::Result<()> {
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        let mut fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = Vec::new();
        for (offset, len) in parts {
            let end = offset.checked_add(len as u64).filter(|end| *end <= self.end.load(Relaxed));
            let Some(end) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            self.bytes.fetch_add(len as u64, Relaxed);
            new.extend(
                (offset / self.unit_bytes..end.div_ceil(self.unit_bytes)).filter(|unit| !fetched.units.contains(unit)),
            );
        }
        if new.is_empty() {
            return Ok(());
        }
        let each = self.fails_each.load(Relaxed);
        if each > 0 && call.is_multiple_of(each) {
            return Err(io::Error::other("the storage is out of reach"));
        }
        new.sort_unstable();
        new.dedup();
        // Under the lock: others then find what was fetched.
        thread::sleep(self.latency);
        fetched.waits += 1;
        fetched.ranges += new.chunk_by(|before, after| before + 1 == *after).count() as u64;
        fetched.units.extend(new);
        Ok(())
    }
}

impl ReadAt for FaultyStorage {
    fn len_bytes(&self) -> io::Result<u64> {
        self.below.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.fetch(&mut std::iter::once((offset, buf.len())))?;
        self.below.read_exact_at(buf, offset)
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.fetch(&mut parts.iter().map(|(offset, buf)| (*offset, buf.len())))?;
        parts.iter_mut().try_for_each(|(offset, buf)| self.below.read_exact_at(buf, *offset))
    }

    fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }
}

impl Storage for FaultyStorage {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn is_changed(&self) -> bool {
        self.is_changed.load(Relaxed)
    }
}
