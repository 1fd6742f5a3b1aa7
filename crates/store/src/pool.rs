//! A pool: one memory limit, one set of streams and tables and one heap for any number of disks.

use std::{
    fmt,
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use pagefold_codec::{Codec, Fold, PAGE_SIZE};
use pagefold_size::{show, written};

use crate::{
    background::Background,
    clean::{Clean, Reclaim},
    core::Core,
    disk::Disk,
    entry::Entry,
    equal::{Common, Equals, Seeds},
    error::Error,
    heap::Heap,
    limit::{Budget, Purpose, machine},
    memory::MemoryFile,
    stats::Stats,
    streams::{NUMBERS, Plan, Streams, Training},
    tree::{KeptFile, Layers, PartStorage, Shadows, Sums},
};

/// The maximum memory that heap and leaves take for the first page of the first disk.
const FIRST_PAGE_BYTES: u64 = 12 * PAGE_SIZE as u64;

/// Returns the least limit for a pool that uses `empty_bytes` when empty. Up to 1/16 each of the
/// limit is reserved for moving and swapping, and up to 1/64 each for overwriting and more streams.
fn needed_bytes(empty_bytes: u64, streams: &Streams) -> u64 {
    (empty_bytes + streams.one_bytes() + FIRST_PAGE_BYTES) * 64 / 54 + 1
}

/// The configuration of a pool. [`PoolConfig::default`] has no memory limit; each method changes
/// one option.
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolConfig {
    codec: Arc<dyn Codec>,
    train: bool,
    dedupe: bool,
    memory_limit: u64,
    /// The seeds of the pool whose hints to equal pages are taken over.
    seeds: Option<Seeds>,
    /// The file in memory that contains the pool.
    file: Option<Arc<File>>,
}

impl Default for PoolConfig {
    /// `fold`, no memory limit, equal pages stored separately.
    fn default() -> Self {
        Self { codec: Arc::new(Fold), train: true, dedupe: false, memory_limit: u64::MAX, seeds: None, file: None }
    }
}

impl PoolConfig {
    /// Sets the codec that compresses the pages; the default is `fold`.
    pub fn codec(mut self, codec: Arc<dyn Codec>) -> Self {
        self.codec = codec;
        self
    }

    /// Sets whether the codec's tables, if it has any, are trained on the pages written; the
    /// default is true.
    pub fn train(mut self, train: bool) -> Self {
        self.train = train;
        self
    }

    /// Sets whether equal pages, on any disks, are stored once; the default is false. A written
    /// page is compared with a page of the same hash. The index stores 33 bits of hash and an entry
    /// number per page, in up to 1/64 of the memory. A write is faster if an equal page is stored,
    /// so a client that may write to one disk can find out which pages are on others.
    pub fn dedupe(mut self, dedupe: bool) -> Self {
        self.dedupe = dedupe;
        self
    }

    /// Sets the seeds of the hashes of pages.
    pub(crate) fn seeds(mut self, seeds: Seeds) -> Self {
        self.seeds = Some(seeds);
        self
    }

    /// Returns the codec's name.
    pub(crate) fn codec_name(&self) -> String {
        self.codec.name()
    }

    /// Keeps the pool in `file`, an empty file in memory (`memfd_create`), instead of private memory. If the
    /// process is killed, [`Salvage`](crate::Salvage) finds its disks in another copy of the descriptor.
    /// Fresh memory takes longer to fault in, and freed memory to return. A child of the process does not
    /// get the pool.
    pub fn kept_in(mut self, file: File) -> Self {
        self.file = Some(Arc::new(file));
        self
    }

    /// Sets the most bytes of memory that the pool may use, everything included; the default,
    /// `u64::MAX`, means no limit.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }
}

/// Why a pool could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewPoolError {
    /// The process cannot reserve the address space that a pool needs (`ulimit -v`,
    /// `vm.overcommit_memory`).
    #[error("cannot reserve address space for the pool (see ulimit -v): {0}")]
    AddressSpace(#[source] io::Error),
    /// The limit is too small for a single page.
    #[error("memory limit of {} is too small: a single page needs {}", written(*limit), show(*needed))]
    LimitTooSmall {
        /// The requested limit.
        limit: u64,
        /// The least limit possible.
        needed: u64,
    },
    /// The system does not overcommit memory: it could end a process that uses memory of a file.
    #[error(
        "a pool cannot be kept in a file in memory where the system does not overcommit memory \
             (vm.overcommit_memory=2)"
    )]
    NotKept,
}

/// A pool of compressed pages, in which [disks](Disk) are created. Clones refer to the same pool,
/// which lives as long as one of them or one of its disks.
#[derive(Clone)]
pub struct Pool(Arc<Core>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("codec", &self.0.streams.codec()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool without disks.
    ///
    /// # Errors
    /// See [`NewPoolError`].
    pub fn new(config: PoolConfig) -> Result<Self, NewPoolError> {
        Self::with_plan(config, Plan::USUAL)
    }

    pub(crate) fn with_plan(config: PoolConfig, plan: Plan) -> Result<Self, NewPoolError> {
        let PoolConfig { codec, train, dedupe, memory_limit, seeds, file } = config;
        if file.is_some() && machine::is_charged_unused() {
            return Err(NewPoolError::NotKept);
        }
        let file = file.map(|file| Arc::new(MemoryFile::new(file)));
        let kept = file.as_ref().map(|file| KeptFile::new(Arc::clone(file), NUMBERS));
        let mut kept = kept.transpose().map_err(NewPoolError::AddressSpace)?;
        let seeds = seeds.unwrap_or_else(Seeds::random);
        let training = if train { Training::new(&*codec, plan) } else { None };
        let streams = Streams::new(codec);
        let budget = Arc::new(Budget::new(memory_limit, streams.cpus()));
        let heap = Heap::new(Arc::clone(&budget), file.as_ref()).map_err(NewPoolError::AddressSpace)?;
        let storage = PartStorage::new(file.as_deref()).map_err(NewPoolError::AddressSpace)?;
        let layers = Layers::new(streams.cpus()).map_err(NewPoolError::AddressSpace)?;
        let empty_bytes = streams.base_bytes() + heap.account().held_bytes;
        let needed = needed_bytes(empty_bytes, &streams);
        if memory_limit < needed || budget.take_for(Purpose::Move, empty_bytes).is_err() {
            return Err(NewPoolError::LimitTooSmall { limit: memory_limit, needed });
        }
        streams.promise(&budget);
        // The pool takes the first page of counters, so the first disk costs no more than later
        // ones.
        let first = layers.take(&budget).map_err(|_| NewPoolError::LimitTooSmall { limit: memory_limit, needed })?;
        let most = machine::bytes().map_or(memory_limit, |bytes| bytes.min(memory_limit));
        let equals = if dedupe { Some(Equals::new(most, seeds).map_err(NewPoolError::AddressSpace)?) } else { None };
        if let Some(kept) = &mut kept {
            let codec = streams.codec();
            if let Some(tables) = codec.tables() {
                kept.keep_tables(0, 1, &tables.to_bytes());
            }
            let began = kept.begin(&codec.name(), first, storage.in_file(), heap.in_file());
            began.map_err(NewPoolError::AddressSpace)?;
        }
        let kept = kept.map(Arc::new);
        if let (Some(training), Some(kept)) = (&training, &kept) {
            training.keep_in(kept);
        }
        Ok(Self(Arc::new(Core {
            kept,
            storage,
            layers,
            common: Common::new(first),
            clean: Clean::default(),
            equals,
            streams,
            heap,
            training,
            shadows: Shadows::default(),
            budget,
            outside_bytes: AtomicU64::new(0),
            background: Background::default(),
        })))
    }

    /// Replaces the note in the pool's [file](PoolConfig::kept_in) with `note`. At each moment, the
    /// file has either the old or the new one. Does nothing if the pool is in private memory.
    ///
    /// # Errors
    /// It has more than 255 MiB, or the system has no memory for it.
    pub fn keep_note(&self, note: &[u8]) -> io::Result<()> {
        self.0.kept.as_ref().map_or(Ok(()), |kept| kept.keep_note(note))
    }

    /// Returns the file in memory that contains the pool.
    pub fn file(&self) -> Option<&File> {
        self.0.kept.as_ref().map(|kept| kept.file())
    }

    /// Creates an empty disk of `slots` slots.
    ///
    /// # Errors
    /// - [`Error::Full`]: the limit leaves no room for the disk.
    /// - [`Error::TooLarge`].
    pub fn disk(&self, slots: u64) -> Result<Disk, Error> {
        self.0.reclaiming(|| Disk::new(Arc::clone(&self.0), slots, false))
    }

    /// Creates an empty disk of `slots` slots over something else, which its user reads where the
    /// disk holds nothing. A discarded slot holds a hole, which hides it.
    ///
    /// # Errors
    /// Those of [`disk`](Self::disk).
    pub fn disk_over(&self, slots: u64) -> Result<Disk, Error> {
        self.0.reclaiming(|| Disk::new(Arc::clone(&self.0), slots, true))
    }

    /// Creates an empty disk of `slots` slots for pages that its user can get elsewhere, and may
    /// discard at any time. [`Stats`] counts them apart; they never share objects. A write fails
    /// where that of another disk would first wait for room.
    ///
    /// # Errors
    /// Those of [`disk`](Self::disk).
    pub fn clean_disk(&self, slots: u64) -> Result<Disk, Error> {
        Disk::clean(Arc::clone(&self.0), slots)
    }

    /// Sets the user of clean disks, which is asked to discard pages when the pool has no room for
    /// something else. The pool does not keep it alive.
    pub fn set_reclaim(&self, user: &Arc<impl Reclaim + 'static>) {
        let user: Arc<dyn Reclaim> = Arc::clone(user) as _;
        self.0.clean.set_user(Arc::downgrade(&user));
    }

    /// Returns how many more bytes the limit allows to be stored.
    pub fn left_bytes(&self) -> u64 {
        self.0.budget.left()
    }

    /// Returns the memory limit; `u64::MAX` if there is none.
    pub fn memory_limit(&self) -> u64 {
        self.0.budget.limit()
    }

    /// Changes the memory limit while the pool is in use; `u64::MAX` means no limit. If more is in
    /// use than the new limit, writes that need memory fail until enough is discarded or compacted.
    ///
    /// # Errors
    /// [`NewPoolError::LimitTooSmall`]; the limit is unchanged.
    pub fn set_memory_limit(&self, limit: u64) -> Result<(), NewPoolError> {
        let Core { streams, heap, budget, .. } = &*self.0;
        let needed = needed_bytes(streams.base_bytes() + heap.empty_bytes(), streams);
        if limit < needed {
            return Err(NewPoolError::LimitTooSmall { limit, needed });
        }
        budget.set_limit(limit);
        streams.promise(budget);
        Ok(())
    }

    /// Counts bytes that the process uses outside the pool, such as connection buffers and caches,
    /// against the limit. If the limit does not allow that much more, returns false and counts
    /// nothing.
    pub fn take_outside(&self, bytes: u64) -> bool {
        let taken = self.0.reclaiming(|| self.0.budget.take_for(Purpose::Store, bytes)).is_ok();
        if taken {
            self.0.outside_bytes.fetch_add(bytes, Relaxed);
        }
        taken
    }

    /// Returns bytes that were counted this way.
    pub fn give_outside(&self, bytes: u64) {
        self.0.outside_bytes.fetch_sub(bytes, Relaxed);
        self.0.budget.give(bytes);
    }

    /// Counts bytes that the process uses outside the pool, without taking room from disks: the
    /// limit does not apply to them.
    pub fn take_exempt(&self, bytes: u64) {
        self.0.budget.take_exempt(bytes);
    }

    /// Returns bytes that were counted beyond the limit.
    pub fn give_exempt(&self, bytes: u64) {
        self.0.budget.give_exempt(bytes);
    }

    /// Returns the codec's name.
    pub fn codec_name(&self) -> String {
        self.0.streams.codec().name()
    }

    /// Returns whether the codec is slow, see [`Codec::is_slow`].
    pub fn is_slow(&self) -> bool {
        self.0.streams.codec().is_slow()
    }

    /// Returns the figures at some moment during the call.
    pub fn stats(&self) -> Stats {
        let Core {
            kept, layers, common, clean, equals, streams, heap, storage, training, budget, outside_bytes, ..
        } = &*self.0;
        let total = layers.total();
        // The objects of the pool's own entries were counted for the slots that share them, and
        // again here.
        let common = layers.sums(common.layer());
        let (clean, clean_table_bytes) = clean.sums(layers);
        let equals_bytes = equals.as_ref().map_or(0, Equals::held_bytes);
        let rows_bytes = kept.as_ref().map_or(0, |kept| kept.held_bytes());
        let mut stats = Stats {
            orig_data_size: total.pages.saturating_sub(common.pages + clean.pages) * PAGE_SIZE as u64,
            compr_data_size: total.compressed_bytes.saturating_sub(total.shared_bytes + clean.compressed_bytes),
            mem_used_total: heap.account().held_bytes,
            mem_limit: budget.limit(),
            mem_used_max: budget.max(),
            same_pages: total.same_pages.saturating_sub(clean.same_pages),
            huge_pages: total.huge_pages.saturating_sub(common.huge_pages + clean.huge_pages),
            shared_pages: total.shared_pages,
            shared_saved_bytes: total.shared_bytes.saturating_sub(common.compressed_bytes),
            table_bytes: storage.held_bytes() + layers.held_bytes() + equals_bytes + rows_bytes,
            stream_bytes: streams.used_bytes() + streams.base_bytes(),
            clean_pages: clean.pages,
            clean_bytes: clean.compressed_bytes + clean_table_bytes,
            outside_bytes: outside_bytes.load(Relaxed) + budget.exempt(),
            spent_bytes: budget.used() + budget.exempt(),
            ..Stats::default()
        };
        if let Some(training) = training {
            training.count(&mut stats);
        }
        stats
    }

    /// Compacts memory until no more can be freed. Other threads may use the pool during the call.
    pub fn compact(&self) {
        self.0.compact(None);
    }

    /// Like [`compact`](Self::compact), but stops after about `time`. Returns whether more work is
    /// left.
    pub fn compact_for(&self, time: Duration) -> bool {
        self.0.compact(Instant::now().checked_add(time))
    }

    /// Checks all invariants and reports an inconsistency. For tests, with no other thread in the
    /// pool.
    pub fn check(&self) -> Result<(), String> {
        let core = &self.0;
        let paused = core.pause();
        while core.free_left(&paused) {}
        core.streams.release_when_free(|word| core.free(Entry::decode(word)));
        let objects = core.heap.check()?;
        core.storage.check()?;
        let stats = self.stats();
        let parts =
            stats.mem_used_total + stats.table_bytes + stats.stream_bytes + stats.training_bytes + stats.outside_bytes;
        if parts != stats.spent_bytes {
            return Err(format!("the parts add up to {parts} bytes, the budget has {}", stats.spent_bytes));
        }
        let entries = || (0..core.storage.end()).filter_map(|number| core.storage.entry(number));
        let named = entries().filter(|entry| entry.object().is_some()).count() as u64;
        if objects != named {
            return Err(format!("the heap has {objects} objects, entries name {named}"));
        }
        if let Some(training) = &core.training {
            training.check(entries())?;
        }
        let (found, counted) = (Sums::of_entries(entries()), core.layers.total());
        if found != counted {
            return Err(format!("entries add up to {found:?}, the counters have {counted:?}"));
        }
        Ok(())
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }
}
