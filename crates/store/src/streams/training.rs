//! A pool's own tables: sampled, trained in the background, numbered, and retired when no object
//! needs them.
//!
//! ```text
//! writer:   object ← compress with the tables of `current`; the entry has their number
//!           now and then: the entry's number → sample; if the sample is full, start the trainer
//!           while a number is being retired: rewrite some objects that have it
//! reader:   the entry's number → tables → decode
//!           no room while a training is in progress: wait for its end, then retry
//! trainer:  free the numbers that no object has; read the pages of the sample
//!           tables ← train on the sample
//!           if they are not 2 % better than the current ones: sample less often
//!           otherwise: number ← a free one; current ← number; if none is free any more: retire the
//!           oldest
//! ```
//!
//! A number is free again once (1) it is not the current one, (2) every stream has since been given
//! back, so that no writer is still about to use it, (3) no entry has it, and (4) every stream has
//! been given back again, so that no thread still decodes an object that had it. While a stream is
//! held, neither (2) nor (4) can become true, so its holder may use the tables that it has looked
//! up.
//!
//! Number 0 is the codec's initial tables, which are never freed, because new streams have them.
//! The sum of `objects` over the numbers is the number of entries that name compressed objects.

use std::{
    array, iter, mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicI64, AtomicU8, AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use pagefold_codec::{Codec, PAGE_SIZE, Page, Stream, Tables, same_filled};

use crate::{
    entry::Entry,
    limit::{Budget, Full, Purpose},
    memory::malloc,
    stats::Stats,
    sync::wait_for,
    tree::{KeptFile, PartStorage},
};

/// The maximum number of a pool's tables, including the codec's initial ones: 0.05 to 1.7 MiB each.
pub(crate) const NUMBERS: usize = 4;

/// No number: no tables are being retired, or the stream's tables are unknown.
const NONE: u8 = u8::MAX;

/// Memory of a training per page of its sample. For 1024 pages its largest parts are 4 MiB of
/// pages, 10 MiB to choose a dictionary (freed afterwards), 8 MiB of sequences and literals, and
/// the counters for these.
const WORK_PAGE_BYTES: u64 = 28 << 10;

/// Entries that a writer checks while a number is being retired, and how many of them it rewrites.
const HELP_LOOKS: u64 = 64;
const HELP_REWRITES: usize = 2;

/// The schedule of sampling and training.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Pages per sample.
    pub(crate) sample_pages: usize,
    /// One in this many written pages goes to the first sample.
    pub(crate) first_stride: u32,
    /// The same for later samples; each training without gain doubles it, up to `max_stride`.
    pub(crate) stride: u32,
    /// The maximum of the stride.
    pub(crate) max_stride: u32,
}

impl Plan {
    /// The first training after 16 MiB written, later ones after 256 MiB or more.
    pub(crate) const USUAL: Self = Self { sample_pages: 1024, first_stride: 4, stride: 64, max_stride: 1024 };
}

/// The training state of a stream. A new stream has the codec's initial tables, number 0.
#[derive(Debug, Default)]
pub(crate) struct Trained {
    /// The number of the tables that the stream uses.
    number: u8,
    /// Pages to write until the next goes to the sample.
    until_sample: u32,
}

/// The interface of a pool that a training needs.
pub(crate) trait Trainee: Send + Sync + 'static {
    /// Returns the training, or `None` if the pool's codec has nothing to train.
    fn training(&self) -> Option<&Training>;

    /// Returns the pool's budget.
    fn budget(&self) -> &Budget;

    /// Fills `page` from an entry. Returns false if it has no readable page.
    fn read_entry(&self, entry: u64, page: &mut Page) -> bool;

    /// Passes every stream created so far to `change`, one after the other, as soon as no thread holds
    /// it: every thread that held a stream before the call has given it back at some time since.
    fn visit_streams(&self, change: &mut dyn FnMut(&mut dyn Stream, &mut Trained));
}

/// The tables of a pool whose codec can be trained.
pub(crate) struct Training {
    plan: Plan,
    sets: Mutex<Sets>,
    sampling: Mutex<Sampling>,
    /// The number of the tables with which objects are compressed.
    current: AtomicU8,
    /// The number of entries that name an object of each number.
    objects: [CachePadded<AtomicI64>; NUMBERS],
    stride: AtomicU32,
    /// The number whose objects writers rewrite, or [`NONE`]; and the next entry to check.
    leaving: AtomicU8,
    cursor: AtomicU64,
    /// Trainings that found better tables, and those that did not.
    trainings: AtomicU64,
    useless: AtomicU64,
    /// Bytes taken from the budget for tables and training.
    held_bytes: AtomicU64,
    /// The tables' place in the pool's file.
    kept: OnceLock<Arc<KeptFile>>,
    /// Counts the tables stored in the file. The first are the codec's own.
    order: AtomicU64,
}

/// The results of a training, for a pool that takes over another one's tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct History {
    pub(crate) trainings: u64,
    pub(crate) useless: u64,
    pub(crate) gain_permille: u64,
    pub(crate) age_s: u64,
    pub(crate) stride: u32,
}

struct Sets {
    of: [Option<Tables>; NUMBERS],
    /// When the current tables were trained, if they were, and by how many thousandths more than the
    /// codec's initial tables they shrink pages.
    trained: Option<(Instant, u64)>,
    /// The numbers of trained tables, the oldest first, the current one last.
    order: Vec<u8>,
    /// Whether no tables are added or freed.
    is_kept: bool,
}

struct Sampling {
    entries: Vec<u64>,
    /// Whether the trainer has a sample; no other sample is collected while it works.
    busy: bool,
}

/// The time in which a trainer works: from a full sample until it ends, also by a panic.
struct Turn<'a>(&'a Training);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.sampling).busy = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Training {
    /// Creates the training of a pool of `codec`, or returns `None` if the codec has nothing to
    /// train.
    pub(crate) fn new(codec: &dyn Codec, plan: Plan) -> Option<Self> {
        let first = codec.tables()?;
        let mut of = [const { None }; NUMBERS];
        of[0] = Some(first);
        Some(Self {
            plan,
            sets: Mutex::new(Sets { of, trained: None, order: Vec::with_capacity(NUMBERS), is_kept: false }),
            sampling: Mutex::new(Sampling { entries: Vec::with_capacity(plan.sample_pages), busy: false }),
            current: AtomicU8::new(0),
            objects: array::from_fn(|_| CachePadded::default()),
            stride: AtomicU32::new(plan.first_stride),
            leaving: AtomicU8::new(NONE),
            cursor: AtomicU64::new(0),
            trainings: AtomicU64::new(0),
            useless: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            kept: OnceLock::new(),
            order: AtomicU64::new(1),
        })
    }

    /// Keeps tables in the pool's file from now on.
    pub(crate) fn keep_in(&self, kept: &Arc<KeptFile>) {
        // This method is called once.
        let _ = self.kept.set(Arc::clone(kept));
    }

    /// Keeps tables in the pool's file, if it has one. Returns false if that fails.
    fn keep_tables(&self, number: usize, tables: &Tables) -> bool {
        let Some(kept) = self.kept.get() else { return true };
        let order = self.order.fetch_add(1, Relaxed) + 1;
        kept.keep_tables(number as u8, order, &tables.to_bytes())
    }

    /// Returns the number of the tables with which objects are compressed now.
    pub(crate) fn current(&self) -> u8 {
        self.current.load(Acquire)
    }

    /// Stores the figures of tables and training in `stats`.
    pub(crate) fn count(&self, stats: &mut Stats) {
        let sets = lock(&self.sets);
        stats.codec_tables = 1 + sets.order.len() as u64;
        if let Some(tables) = &sets.of[usize::from(self.current())] {
            stats.tables_id = u64::from(tables.id());
            stats.tables_bytes = tables.memory_bytes() as u64;
        }
        if let Some((time, gain)) = sets.trained {
            stats.tables_age_s = time.elapsed().as_secs();
            stats.tables_gain_permille = gain;
        }
        drop(sets);
        stats.trainings = self.trainings.load(Relaxed);
        stats.trainings_useless = self.useless.load(Relaxed);
        stats.training_bytes = self.held_bytes.load(Relaxed);
    }

    /// Returns the results of the training.
    pub(crate) fn history(&self) -> History {
        let trained = lock(&self.sets).trained;
        let (age_s, gain_permille) = trained.map_or((0, 0), |(time, gain)| (time.elapsed().as_secs(), gain));
        let [trainings, useless] = [&self.trainings, &self.useless].map(|count| count.load(Relaxed));
        History { trainings, useless, gain_permille, age_s, stride: self.stride.load(Relaxed) }
    }

    /// Returns the existing tables with their numbers: number 0, then those that were trained, the
    /// oldest first.
    pub(crate) fn numbered(&self) -> Vec<(u8, Tables)> {
        let sets = lock(&self.sets);
        let numbers = iter::once(0).chain(sets.order.iter().copied());
        numbers.filter_map(|number| Some((number, sets.of[usize::from(number)].clone()?))).collect()
    }

    /// Sets whether the tables and their numbers are frozen: the reader of a stream in rounds has
    /// the tables from its start. Tables trained while they are frozen are lost.
    pub(crate) fn keep(&self, is_kept: bool) {
        lock(&self.sets).is_kept = is_kept;
    }

    /// Makes a new training continue where another one was, with its [`numbered`](Self::numbered)
    /// tables: the numbers are valid and all differ.
    ///
    /// # Errors
    /// The budget has no room for the tables.
    pub(crate) fn restore(&self, tables: &[(u8, Tables)], history: &History, budget: &Budget) -> Result<(), Full> {
        let mut sets = lock(&self.sets);
        for (number, tables) in tables.iter().filter(|&&(number, _)| number != 0) {
            let bytes = tables.memory_bytes() as u64;
            budget.take_for(Purpose::Move, bytes)?;
            self.held_bytes.fetch_add(bytes, Relaxed);
            if !self.keep_tables(usize::from(*number), tables) {
                return Err(Full);
            }
            sets.of[usize::from(*number)] = Some(tables.clone());
            sets.order.push(*number);
            self.current.store(*number, Release);
        }
        let time = Instant::now();
        let time = time.checked_sub(Duration::from_secs(history.age_s)).unwrap_or(time);
        sets.trained = (!sets.order.is_empty()).then_some((time, history.gain_permille));
        self.trainings.store(history.trainings, Relaxed);
        self.useless.store(history.useless, Relaxed);
        self.stride.store(history.stride.clamp(1, self.plan.max_stride), Relaxed);
        if sets.of.iter().all(Option::is_some) {
            self.leaving.store(sets.order[0], Release);
        }
        Ok(())
    }

    /// Returns the existing tables.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn tables(&self) -> Vec<Tables> {
        lock(&self.sets).of.iter().flatten().cloned().collect()
    }

    /// Returns whether a training is in progress.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.sampling).busy
    }

    /// Counts that `new` replaced `old`. The caller holds a stream if `new` is an object.
    pub(crate) fn replaced(&self, old: Entry, new: Entry) {
        // All writers share this cache line, so it is written only if the tables differ.
        if let (Entry::Object { tables: of_old, .. }, Entry::Object { tables: of_new, .. }) = (old, new)
            && of_old == of_new
        {
            return;
        }
        for (entry, by) in [(old, -1), (new, 1)] {
            if let Entry::Object { tables, .. } = entry
                && let Some(objects) = self.objects.get(usize::from(tables))
            {
                objects.fetch_add(by, Relaxed);
            }
        }
    }

    /// Compares the counts with what the entries name. For tests, with no other thread in the pool.
    pub(crate) fn check(&self, entries: impl Iterator<Item = Entry>) -> Result<(), String> {
        let counted: [i64; NUMBERS] = array::from_fn(|number| self.objects[number].load(Relaxed));
        let mut found = [0; NUMBERS];
        for entry in entries {
            if let Entry::Object { tables, .. } = entry {
                *found.get_mut(usize::from(tables)).ok_or("an object with an invalid table number")? += 1;
            }
        }
        let sets = lock(&self.sets);
        if found != counted {
            return Err(format!("objects per table: found {found:?}, counted {counted:?}"));
        }
        if let Some(number) = (0..NUMBERS).find(|&number| found[number] > 0 && sets.of[number].is_none()) {
            return Err(format!("{} objects use tables that the pool does not have", found[number]));
        }
        Ok(())
    }

    /// Sets `stream` to the tables of `number`. Returns false if there are none.
    #[cold]
    fn set(&self, stream: &mut dyn Stream, number: u8) -> bool {
        let sets = lock(&self.sets);
        let Some(Some(tables)) = sets.of.get(usize::from(number)) else { return false };
        stream.set_tables(tables);
        true
    }

    fn take(&self, budget: &Budget, bytes: u64) -> bool {
        let taken = budget.take_for(Purpose::Keep, bytes).is_ok();
        if taken {
            self.held_bytes.fetch_add(bytes, Relaxed);
        }
        taken
    }

    fn give(&self, budget: &Budget, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Relaxed);
        budget.give(bytes);
    }

    /// Adds an entry to the sample; returns the sample when it is full.
    #[cold]
    fn collect(&self, entry: u64) -> Option<Vec<u64>> {
        // A thread that finds the lock held skips its entry: the next one is as good.
        let mut sampling = self.sampling.try_lock().ok()?;
        if sampling.busy {
            return None;
        }
        sampling.entries.push(entry);
        if sampling.entries.len() < self.plan.sample_pages {
            return None;
        }
        sampling.busy = true;
        Some(mem::replace(&mut sampling.entries, Vec::with_capacity(self.plan.sample_pages)))
    }

    /// Offers an entry that is being written to the sample, which takes one in every `stride`. When
    /// the sample is full, starts a thread to train.
    #[inline]
    pub(crate) fn offer(&self, trained: &mut Trained, entry: u64, pool: &Arc<impl Trainee>) {
        if trained.until_sample > 0 {
            trained.until_sample -= 1;
            return;
        }
        trained.until_sample = self.stride.load(Relaxed).saturating_sub(1);
        let Some(sample) = self.collect(entry) else { return };
        let pool = Arc::clone(pool);
        let work = move || {
            let Some(training) = pool.training() else { return };
            let _turn = Turn(training);
            training.train(&sample, &*pool);
        };
        // If the thread cannot be started, there is no training; the next sample tries again.
        if thread::Builder::new().name("training".to_owned()).spawn(work).is_err() {
            drop(Turn(self));
        }
    }

    /// Waits for the end of the training in progress, which frees its memory. Returns false if
    /// there is none. The caller holds no stream and no entry.
    #[cold]
    pub(crate) fn wait_for_end(&self) -> bool {
        let is_busy = || lock(&self.sampling).busy;
        let was_busy = is_busy();
        wait_for(|| (!is_busy()).then_some(()));
        was_busy
    }

    /// Trains on one sample.
    fn train(&self, entries: &[u64], pool: &dyn Trainee) {
        let budget = pool.budget();
        if lock(&self.sets).is_kept {
            return;
        }
        self.free_unused(pool);
        // A pool near its limit leaves its last room to its user.
        let work_bytes = self.plan.sample_pages as u64 * WORK_PAGE_BYTES;
        if budget.limit().saturating_sub(budget.used()) < 2 * work_bytes || !self.take(budget, work_bytes) {
            return;
        }
        let better = self.better(&pages_of(entries, pool));
        malloc::give_back();
        self.give(budget, work_bytes);
        match better {
            Some((tables, gain)) => {
                self.stride.store(self.plan.stride, Relaxed);
                self.install(tables, gain, budget);
            }
            None => {
                self.useless.fetch_add(1, Relaxed);
                let stride = self.stride.load(Relaxed).max(self.plan.stride / 2);
                self.stride.store(stride.saturating_mul(2).min(self.plan.max_stride), Relaxed);
            }
        }
    }

    /// Returns tables that are better for `pages` than the current ones, if any, and their gain
    /// over number 0.
    fn better(&self, pages: &[Page]) -> Option<(Tables, u64)> {
        let pages: Vec<&Page> = pages.iter().collect();
        let [first, current] = [0, self.current()].map(|number| lock(&self.sets).of[usize::from(number)].clone());
        let better = current?.train_further(&pages)?;
        let gain = first.map_or(0, |first| gain_permille(&first, &better, &pages));
        Some((better, gain))
    }

    /// Makes `tables` the current ones, if a number is free and the budget has room for them.
    fn install(&self, tables: Tables, gain: u64, budget: &Budget) {
        let bytes = tables.memory_bytes() as u64;
        let mut sets = lock(&self.sets);
        let free = sets.of.iter().position(Option::is_none);
        if let Some(number) = free.filter(|&number| !sets.is_kept && self.keep_tables(number, &tables))
            && self.take(budget, bytes)
        {
            sets.of[number] = Some(tables);
            sets.order.push(number as u8);
            sets.trained = Some((Instant::now(), gain));
            self.current.store(number as u8, Release);
            self.trainings.fetch_add(1, Relaxed);
        }
        if sets.of.iter().all(Option::is_some) && self.leaving.load(Relaxed) == NONE {
            self.cursor.store(0, Relaxed);
            self.leaving.store(sets.order[0], Release);
        }
    }

    /// Frees the numbers that no object has, as the module documentation describes.
    fn free_unused(&self, pool: &dyn Trainee) {
        let current = self.current();
        pool.visit_streams(&mut |_, _| {});
        let unused =
            |number: usize| number != 0 && number != usize::from(current) && self.objects[number].load(Relaxed) == 0;
        let unused: [bool; NUMBERS] = array::from_fn(unused);
        let first = lock(&self.sets).of[0].clone();
        pool.visit_streams(&mut |stream, trained| {
            if unused.get(usize::from(trained.number)).copied().unwrap_or(false)
                && let Some(first) = &first
            {
                // Otherwise, the stream would keep them in memory.
                stream.set_tables(first);
                trained.number = 0;
            }
        });
        let mut sets = lock(&self.sets);
        if sets.is_kept {
            return;
        }
        for number in (0..NUMBERS).filter(|&number| unused[number]) {
            if let Some(tables) = sets.of[number].take() {
                self.give(pool.budget(), tables.memory_bytes() as u64);
                sets.order.retain(|&other| usize::from(other) != number);
                _ = self.leaving.compare_exchange(number as u8, NONE, AcqRel, Relaxed);
            }
        }
    }

    /// Returns a few entries, usually none, whose objects must be rewritten to free the oldest
    /// number.
    pub(crate) fn to_rewrite(&self, storage: &PartStorage) -> impl Iterator<Item = u64> {
        let leaving = self.leaving.load(Acquire);
        let (mut looks, end) = if leaving == NONE { (0, 0) } else { (HELP_LOOKS, storage.end()) };
        let next = move || {
            while looks > 0 {
                looks -= 1;
                let number = self.cursor.fetch_add(1, Relaxed);
                if number >= end {
                    // Objects that could not be rewritten are tried again when a number is needed.
                    _ = self.leaving.compare_exchange(leaving, NONE, AcqRel, Relaxed);
                    return None;
                }
                let entry = storage.used_word(number).map(|word| Entry::decode(word.load(Acquire)));
                if matches!(entry, Some(Entry::Object { tables, .. }) if tables == leaving) {
                    return Some(number);
                }
            }
            None
        };
        iter::from_fn(next).take(HELP_REWRITES)
    }
}

/// Returns the pages that `entries` still hold, without those that need no object.
fn pages_of(entries: &[u64], pool: &dyn Trainee) -> Vec<Page> {
    let mut pages = Vec::with_capacity(entries.len());
    for &entry in entries {
        let mut page = [0; PAGE_SIZE];
        if pool.read_entry(entry, &mut page) && same_filled(&page).is_none() {
            pages.push(page);
        }
    }
    pages
}

/// Returns by how many thousandths `tables` shrink pages more than `first`, measured on the pages
/// of the sample that they were not trained on (see [`Tables::train_further`]).
fn gain_permille(first: &Tables, tables: &Tables, sample: &[&Page]) -> u64 {
    let bytes = |tables: &Tables| {
        let mut stream = tables.codec().stream().ok()?;
        let mut object = [0; PAGE_SIZE];
        let judged = sample.iter().skip(7).step_by(8);
        Some(judged.map(|page| stream.compress(page, &mut object).unwrap_or(PAGE_SIZE) as u64).sum::<u64>())
    };
    match (bytes(first), bytes(tables)) {
        (Some(before @ 1..), Some(after)) => before.saturating_sub(after) * 1000 / before,
        _ => 0,
    }
}

/// Sets `stream` to the tables of `number`, if it does not use them yet. Returns false if the pool
/// has no such tables.
#[inline]
pub(crate) fn prepare(training: Option<&Training>, stream: &mut dyn Stream, trained: &mut Trained, number: u8) -> bool {
    if trained.number == number {
        return true;
    }
    let set = training.is_some_and(|training| training.set(stream, number));
    trained.number = if set { number } else { NONE };
    set
}
