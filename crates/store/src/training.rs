//! Tables of the pool's own: sampled, trained in the background, numbered, and given up when no
//! object needs them.
//!
//! ```text
//! writer:   object ← compress with the tables of `current`; the entry says their number
//!           now and then: the entry's number → sample; the sample is full: start the trainer
//!           while a number is to be given up: rewrite some objects that have it
//! reader:   the entry's number → tables → decode
//!           no room while a training is under way: wait for its end, and try again
//! trainer:  free the numbers that no object has; read the pages of the sample
//!           tables ← train on the sample; not a fiftieth better than the current ones: sample more sparsely
//!           else: number ← a free one; current ← number; none is free any more: give the oldest up
//! ```
//!
//! A number is free again when (1) it is not the current one, (2) every stream has been given back
//! since, so that no writer still has it in mind, (3) no entry has it, (4) every stream has been
//! given back again, so that nobody still decodes an object that had it. While a stream is held
//! none of (2) and (4) can pass: so its holder may use what it looked up.
//!
//! Number 0 are the tables that the codec came with. They are kept: a new stream has them. The sum
//! of `objects` over the numbers is how many entries name compressed objects.

use std::{
    array, iter, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicI64, AtomicU8, AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    thread,
    time::Instant,
};

use crossbeam_utils::CachePadded;
use pagefold_codec::{Codec, PAGE_SIZE, Page, Stream, Tables, same_filled};

use crate::{
    budget::{Budget, Purpose},
    entry::Entry,
    leaves::Leaves,
    malloc,
    stats::Stats,
    sync::wait_for,
};

/// Tables that a pool has at most at a time, those that the codec came with included: 0.05 to 1.7
/// MiB each.
pub(crate) const NUMBERS: usize = 4;

/// No number: nothing is to be given up; the stream's tables are not known.
const NONE: u8 = u8::MAX;

/// Memory of a training for each page of its sample. Of 1024 pages its largest parts are 4 MiB of
/// pages, 10 MiB to choose a dictionary (which is then freed), 8 MiB of sequences and literals, and
/// what they are counted in.
const WORK_PAGE_BYTES: u64 = 28 << 10;

/// Entries that a writer looks at when a number is to be given up, and how many of them it
/// rewrites.
const HELP_LOOKS: u64 = 64;
const HELP_REWRITES: usize = 2;

/// When a pool samples and trains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Pages of a sample.
    pub(crate) sample_pages: usize,
    /// One page of so many written goes to the first sample.
    pub(crate) first_stride: u32,
    /// And so many to later ones; each sample from which nothing is learnt doubles it, up to
    /// `max_stride`.
    pub(crate) stride: u32,
    /// The most it becomes.
    pub(crate) max_stride: u32,
}

impl Plan {
    /// The first training after 16 MiB written, later ones after 256 MiB or more.
    pub(crate) const USUAL: Self = Self { sample_pages: 1024, first_stride: 4, stride: 64, max_stride: 1024 };
}

/// What a stream has to do with training. A new stream has the tables that its codec came with,
/// number 0.
#[derive(Debug, Default)]
pub(crate) struct Trained {
    /// The number of the tables that it is set to.
    number: u8,
    /// Pages to write until the next goes to the sample.
    until_sample: u32,
}

/// What a training needs of the pool that it is of.
pub(crate) trait Trainee: Send + Sync + 'static {
    /// The training; `None`: the pool's codec has nothing to train.
    fn training(&self) -> Option<&Training>;

    /// The pool's memory.
    fn budget(&self) -> &Budget;

    /// Fills `page` from an entry. False: it has none that can be read.
    fn read_entry(&self, entry: u64, page: &mut Page) -> bool;

    /// Passes every stream that was made so far to `change`, one after the other, as soon as nobody
    /// holds it: whoever held a stream before the call has given it back once after.
    fn visit_streams(&self, change: &mut dyn FnMut(&mut dyn Stream, &mut Trained));
}

/// The tables of a pool whose codec can be trained.
pub(crate) struct Training {
    plan: Plan,
    sets: Mutex<Sets>,
    sampling: Mutex<Sampling>,
    /// The number of the tables with which objects are made.
    current: AtomicU8,
    /// How many entries name an object of each number.
    objects: [CachePadded<AtomicI64>; NUMBERS],
    stride: AtomicU32,
    /// The number whose objects writers rewrite, or [`NONE`]; and the next slot to look at.
    leaving: AtomicU8,
    cursor: AtomicU64,
    /// Trainings that found better tables, and those that did not.
    trainings: AtomicU64,
    useless: AtomicU64,
    /// What the budget has given for tables and training.
    held_bytes: AtomicU64,
}

struct Sets {
    of: [Option<Tables>; NUMBERS],
    /// When the current ones were trained, if they were, and by how many thousandths they make
    /// pages smaller than those of number 0.
    trained: Option<(Instant, u64)>,
    /// The numbers of trained tables, the oldest first, the current one last.
    order: Vec<u8>,
}

struct Sampling {
    entries: Vec<u64>,
    /// The trainer has a sample; no other is collected meanwhile.
    busy: bool,
}

/// The trainer's, from a full sample to the end of its work however that ends.
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
    /// The training of a pool of `codec`; `None` if that has nothing to train.
    pub(crate) fn new(codec: &dyn Codec, plan: Plan) -> Option<Self> {
        let first = codec.tables()?;
        let mut of = [const { None }; NUMBERS];
        of[0] = Some(first);
        Some(Self {
            plan,
            sets: Mutex::new(Sets { of, trained: None, order: Vec::with_capacity(NUMBERS) }),
            sampling: Mutex::new(Sampling { entries: Vec::with_capacity(plan.sample_pages), busy: false }),
            current: AtomicU8::new(0),
            objects: array::from_fn(|_| CachePadded::default()),
            stride: AtomicU32::new(plan.first_stride),
            leaving: AtomicU8::new(NONE),
            cursor: AtomicU64::new(0),
            trainings: AtomicU64::new(0),
            useless: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
        })
    }

    /// The number of the tables with which objects are made now.
    pub(crate) fn current(&self) -> u8 {
        self.current.load(Acquire)
    }

    /// Puts the figures of tables and training into `stats`.
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

    /// The tables that there are.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn tables(&self) -> Vec<Tables> {
        lock(&self.sets).of.iter().flatten().cloned().collect()
    }

    /// Whether a training is under way.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.sampling).busy
    }

    /// Counts that `new` took the place of `old`. The caller holds a stream if `new` is an object.
    pub(crate) fn replaced(&self, old: Entry, new: Entry) {
        // Every writer's line: it stays as it is while a page replaces one of the same tables.
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

    /// Compares the counts with what the entries name. For tests, with no other thread in the
    /// store.
    pub(crate) fn check(&self, entries: impl Iterator<Item = Entry>) -> Result<(), String> {
        let counted: [i64; NUMBERS] = array::from_fn(|number| self.objects[number].load(Relaxed));
        let mut found = [0; NUMBERS];
        for entry in entries {
            if let Entry::Object { tables, .. } = entry {
                *found.get_mut(usize::from(tables)).ok_or("an object of a number beyond all")? += 1;
            }
        }
        let sets = lock(&self.sets);
        if found != counted {
            return Err(format!("tables have {found:?} objects, counted are {counted:?}"));
        }
        if let Some(number) = (0..NUMBERS).find(|&number| found[number] > 0 && sets.of[number].is_none()) {
            return Err(format!("the tables of {} objects are gone", found[number]));
        }
        Ok(())
    }

    /// Sets `stream` to the tables of `number`. False: there are none.
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

    /// Puts an entry in the sample; gives the sample when it is full.
    #[cold]
    fn collect(&self, entry: u64) -> Option<Vec<u64>> {
        // Whoever finds another thread here has an entry that is as good as the next.
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

    /// Offers an entry that is being written to the sample: one of every `stride` is taken. When
    /// the sample is full a thread begins to train.
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
        // Without a thread there is no training; the next sample tries again.
        if thread::Builder::new().name("training".to_owned()).spawn(work).is_err() {
            drop(Turn(self));
        }
    }

    /// Waits for the end of the training that is under way, whose memory is then free. False: there
    /// is none. The caller holds no stream and no entry.
    #[cold]
    pub(crate) fn wait_for_end(&self) -> bool {
        let is_busy = || lock(&self.sampling).busy;
        let was_busy = is_busy();
        wait_for(|| (!is_busy()).then_some(()));
        was_busy
    }

    /// The trainer's work with one sample.
    fn train(&self, entries: &[u64], pool: &dyn Trainee) {
        let budget = pool.budget();
        self.free_unused(pool);
        // What a disk near its limit has left is for its user.
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

    /// Tables that are better for `pages` than the current ones, if any are, and their gain over
    /// number 0.
    fn better(&self, pages: &[Page]) -> Option<(Tables, u64)> {
        let pages: Vec<&Page> = pages.iter().collect();
        let [first, current] = [0, self.current()].map(|number| lock(&self.sets).of[usize::from(number)].clone());
        let better = current?.train_beyond(&pages)?;
        let gain = first.map_or(0, |first| gain_permille(&first, &better, &pages));
        Some((better, gain))
    }

    /// Makes `tables` the current ones, if a number is free and the budget has room for them.
    fn install(&self, tables: Tables, gain: u64, budget: &Budget) {
        let bytes = tables.memory_bytes() as u64;
        let mut sets = lock(&self.sets);
        let free = sets.of.iter().position(Option::is_none);
        if let Some(number) = free
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

    /// Frees the numbers that no object has, as the module's comment says.
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
                // So that the stream does not keep them in memory.
                stream.set_tables(first);
                trained.number = 0;
            }
        });
        let mut sets = lock(&self.sets);
        for number in (0..NUMBERS).filter(|&number| unused[number]) {
            if let Some(tables) = sets.of[number].take() {
                self.give(pool.budget(), tables.memory_bytes() as u64);
                sets.order.retain(|&other| usize::from(other) != number);
                _ = self.leaving.compare_exchange(number as u8, NONE, AcqRel, Relaxed);
            }
        }
    }

    /// Entries whose objects are to be rewritten, so that the oldest number becomes free: few, and
    /// none most of the time.
    pub(crate) fn to_rewrite(&self, leaves: &Leaves) -> impl Iterator<Item = u64> {
        let leaving = self.leaving.load(Acquire);
        let (mut looks, end) = if leaving == NONE { (0, 0) } else { (HELP_LOOKS, leaves.end()) };
        let next = move || {
            while looks > 0 {
                looks -= 1;
                let number = self.cursor.fetch_add(1, Relaxed);
                if number >= end {
                    // What could not be rewritten is tried again when a number is needed.
                    _ = self.leaving.compare_exchange(leaving, NONE, AcqRel, Relaxed);
                    return None;
                }
                if matches!(leaves.entry(number), Some(Entry::Object { tables, .. }) if tables == leaving) {
                    return Some(number);
                }
            }
            None
        };
        iter::from_fn(next).take(HELP_REWRITES)
    }
}

/// The pages of `entries`, as far as these still hold any that needs an object.
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

/// By how many thousandths `tables` make pages smaller than `first` does, by those of the sample
/// that they were not trained on (see [`Tables::train_beyond`]).
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

/// Sets `stream` to the tables of `number`, if it is not yet. False: the store has none of that
/// number.
#[inline]
pub(crate) fn prepare(training: Option<&Training>, stream: &mut dyn Stream, trained: &mut Trained, number: u8) -> bool {
    if trained.number == number {
        return true;
    }
    let set = training.is_some_and(|training| training.set(stream, number));
    trained.number = if set { number } else { NONE };
    set
}
