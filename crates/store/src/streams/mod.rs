//! Compression streams: a codec's working state, lent to one thread at a time.
//!
//! A thread takes the stream of the CPU that it runs on. If that is taken (its holder was preempted
//! or migrated), it takes another free one; it waits only if every stream is taken. A thread that
//! migrates while it holds a stream keeps it: the pin says who holds a stream; the CPU only says
//! where to look first. There are several streams per CPU. A stream is created when it is first
//! taken; if the memory limit forbids that, an existing one is used. CPUs share streams until
//! threads contend for them: one thread that migrates from CPU to CPU creates one stream. A holder
//! may wait for an entry, whose holder needs no further stream, but never for another stream. So
//! streams are given back in bounded time. The crate `published` has the policies that were
//! compared for zram.
#![allow(unsafe_code)] // the working state belongs to the holder of its pin

mod training;

use std::{
    cell::UnsafeCell,
    iter,
    ops::RangeInclusive,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use pagefold_codec::{Codec, PAGE_SIZE, Page, Stream};

pub(crate) use self::training::{History, NUMBERS, Plan, Trained, Trainee, Training, prepare};
use crate::{
    cpus::Cpus,
    entry::{LayerId, Pin, Pins},
    limit::{Budget, Full, Purpose},
    sync::wait_for,
};

/// If this many threads find their CPU's stream taken within this many milliseconds, CPUs share one
/// more stream.
const CROWDED: u64 = 8;
const CROWDED_MS: u128 = 16;

/// With more threads than CPUs, holders are preempted. With one stream per CPU, other threads would
/// wait for them or take other CPUs' streams. With ten jobs on two CPUs, four streams have 1.1× the
/// throughput of two; eight gain nothing more.
const STREAMS_PER_CPU: usize = 4;

/// How often a thread that finds every stream taken yields before it sleeps: a preempted holder
/// finishes soon. If threads slept immediately, each return would need a wake-up call (13 % less
/// throughput with ten jobs on two CPUs).
const YIELDS_BEFORE_SLEEP: usize = 8;

/// The bounds of the number of objects that a stream keeps before it checks which are still read.
/// Within them, it is the number of streams to check, so each object costs about one check. Kept
/// objects cannot be moved and delay the emptying of their segments.
const RETIRED_BATCH: RangeInclusive<usize> = 8..=32;

/// With this many bytes of kept objects, a stream checks sooner. A large batch makes other threads
/// take new memory, and its free bytes would trigger compaction.
const RETIRED_BYTES: usize = 16 << 10;

/// The longest sleep of a waiter before it checks again.
const NAP: Duration = Duration::from_millis(1);

/// A codec's working state and the buffers around it.
pub(crate) struct Working {
    pub(crate) coder: Coder,
    /// A buffer for a page that is partly written.
    pub(crate) page: Box<Page>,
    /// The number of the entry after the one that was read last.
    pub(crate) next: u64,
    pub(crate) kept: Kept,
}

/// The compressor and decompressor.
pub(crate) struct Coder {
    pub(crate) stream: Box<dyn Stream>,
    /// The bytes that the codec produces or reads.
    pub(crate) object: Box<Page>,
    /// The stream's training state.
    pub(crate) trained: Trained,
}

/// Words that were swapped out of their entries, and whose objects may still be read.
pub(crate) struct Kept {
    words: Vec<u64>,
    /// Bytes of the objects added since the last check.
    bytes: usize,
}

/// The streams of a pool. `used_bytes` is the memory of the working states created so far.
pub(crate) struct Streams {
    codec: Arc<dyn Codec>,
    homes: Homes,
    crowd: CachePadded<Crowd>,
    pins: Pins<Desk>,
    retired_batch: usize,
    retired_capacity: usize,
    one_bytes: u64,
    used_bytes: AtomicU64,
}

/// The data of a pin's holder. It is on the pin's cache line, so a stream that was never taken uses
/// no other memory.
#[derive(Default)]
struct Desk {
    working: UnsafeCell<Option<Working>>,
}

const _: () = assert!(size_of::<Desk>() + size_of::<u64>() <= 128, "a stream that was never taken costs 128 bytes");

// SAFETY: only its holder accesses the data next to a pin, and a pin has one holder; a `Working`
// may move between threads. All other fields are `Sync`.
unsafe impl Sync for Streams {}

/// The streams that threads take first: CPU `n` has stream `n % active`.
struct Homes {
    cpus: Cpus,
    active: AtomicUsize,
    /// Streams with this number or a higher one have never been taken.
    end: AtomicUsize,
}

/// The contention for streams.
struct Crowd {
    since: Instant,
    /// The time of the last contention, in steps of [`CROWDED_MS`] milliseconds after `since`. The
    /// low byte counts the contentions in that step.
    met: AtomicU64,
    /// The threads that found every stream taken.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    returned: Condvar,
}

impl Homes {
    fn new() -> Self {
        Self { cpus: Cpus::new(), active: AtomicUsize::new(1), end: AtomicUsize::new(0) }
    }

    /// Returns the stream of the CPU that this thread runs on.
    #[inline]
    fn home(&self) -> usize {
        let (cpu, active) = (self.cpus.current(), self.active.load(Relaxed));
        if active == self.cpus.count() { cpu } else { cpu % active }
    }

    /// Returns the numbers of all `count` streams: `home` first, then those that are not a home,
    /// then other homes, then those not created yet.
    fn in_turn(&self, home: usize, count: usize) -> impl Iterator<Item = usize> {
        let end = self.end.load(Relaxed);
        let active = self.active.load(Relaxed).min(end);
        let more = end - active;
        let spare = (0..more).map(move |step| active + (home + step) % more);
        let others = (0..active).map(move |step| (home + step) % active);
        iter::once(home).chain(spare).chain(others).chain(end..count)
    }
}

impl Crowd {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            met: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            lock: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Counts that a thread found its CPU's stream taken. Returns whether there are too few home
    /// streams. Some counts may get lost.
    fn meet(&self) -> bool {
        let step = (self.since.elapsed().as_millis() / CROWDED_MS) as u64;
        let met = self.met.load(Relaxed);
        let count = if met >> 8 == step { (met & 0xff) + 1 } else { 1 };
        self.met.store((step << 8) | (count % CROWDED), Relaxed);
        count == CROWDED
    }
}

/// A stream that this thread holds; dropping it gives the stream back.
pub(crate) struct Taken<'a> {
    desk: &'a Desk,
    // Declared before `_return`, so that the pin is free when a waiter is notified.
    pin: Pin<'a>,
    _return: Return<'a>,
}

/// Notifies a waiter that a stream came back.
struct Return<'a>(&'a Crowd);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Taken<'a> {
    /// Returns the working state, and the pin that says what the thread reads.
    pub(crate) fn parts(&mut self) -> (&mut Working, &mut Pin<'a>) {
        // SAFETY: this thread holds the pin, and `&mut self` excludes another reference from here.
        let working = unsafe { &mut *self.desk.working.get() };
        let Some(working) = working else { unreachable!("`take` makes what it lends") };
        (working, &mut self.pin)
    }

    /// Returns the stream's number: threads on different CPUs mostly hold streams of different
    /// numbers.
    pub(crate) fn number(&self) -> usize {
        self.pin.number()
    }
}

impl Drop for Return<'_> {
    fn drop(&mut self) {
        // A thread that has just started to wait may miss this; it checks again after a nap.
        if self.0.waiting.load(Relaxed) > 0 {
            self.0.returned.notify_one();
        }
    }
}

impl Streams {
    /// Creates the set of streams of `codec`, all without working state.
    pub(crate) fn new(codec: Arc<dyn Codec>) -> Self {
        let homes = Homes::new();
        let count = homes.cpus.count() * STREAMS_PER_CPU;
        let retired_batch = count.clamp(*RETIRED_BATCH.start(), *RETIRED_BATCH.end());
        // A pin keeps at most one object, so this capacity is never exceeded.
        let retired_capacity = retired_batch + count;
        let own_bytes = (2 * PAGE_SIZE + retired_capacity * size_of::<u64>()) as u64;
        let one_bytes = codec.stream().map_or(0, |stream| stream.memory_bytes() as u64 + own_bytes);
        Self {
            codec,
            homes,
            crowd: CachePadded::new(Crowd::new()),
            pins: Pins::new(count),
            retired_batch,
            retired_capacity,
            one_bytes,
            used_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn codec(&self) -> &dyn Codec {
        &*self.codec
    }

    /// Returns the maximum number of streams.
    pub(crate) fn len(&self) -> usize {
        self.pins.len()
    }

    /// Returns the number of CPUs that threads may run on.
    pub(crate) fn cpus(&self) -> usize {
        self.homes.cpus.count()
    }

    /// Returns the bytes of the streams created so far.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Returns the bytes of the pins and of the CPU numbers, which exist from the start.
    pub(crate) fn base_bytes(&self) -> u64 {
        self.pins.bytes() + self.homes.cpus.bytes()
    }

    /// Takes a stream and pins what `word` names; the pin is valid once [`Pin::pin`] has found the
    /// entry unchanged.
    // Inlined up to the point where it would wait: returning a `Taken` through memory costs more
    // than the rest.
    #[inline(always)]
    pub(crate) fn take(&self, word: u64, budget: &Budget) -> Result<Taken<'_>, Full> {
        let pin = match self.pins.try_take(self.homes.home(), word) {
            Some(pin) => pin,
            None => self.take_any(word),
        };
        self.made(pin, word, budget)
    }

    /// Returns the stream of `pin`, creating its working state if necessary.
    #[inline(always)]
    fn made<'a>(&'a self, pin: Pin<'a>, word: u64, budget: &Budget) -> Result<Taken<'a>, Full> {
        let taken = self.taken(pin);
        let desk = taken.desk;
        // SAFETY: this thread holds the pin, and the reference ends here.
        if unsafe { (*desk.working.get()).is_some() } { Ok(taken) } else { self.take_new(taken, word, budget) }
    }

    #[inline(always)]
    fn taken<'a>(&'a self, pin: Pin<'a>) -> Taken<'a> {
        Taken { desk: self.pins.beside(pin.number()), pin, _return: Return(&self.crowd) }
    }

    /// Creates the working state of the stream that was taken or, without memory, takes another
    /// stream.
    #[cold]
    fn take_new<'a>(&'a self, taken: Taken<'a>, word: u64, budget: &Budget) -> Result<Taken<'a>, Full> {
        match self.make(budget) {
            Ok(made) => {
                // SAFETY: this thread holds the pin, and there is no other reference.
                unsafe { *taken.desk.working.get() = Some(made) };
                self.homes.end.fetch_max(taken.number() + 1, Relaxed);
                Ok(taken)
            }
            Err(Full) => {
                drop(taken);
                self.take_made(word)
            }
        }
    }

    /// Waits for a stream that exists: stored pages must be readable at the memory limit.
    #[cold]
    fn take_made<'a>(&'a self, word: u64) -> Result<Taken<'a>, Full> {
        let made = |number: usize| {
            let pin = self.pins.try_take(number, word)?;
            let taken = self.taken(pin);
            // SAFETY: this thread holds the pin, and the reference ends here.
            let is_made = unsafe { (*taken.desk.working.get()).is_some() };
            is_made.then_some(taken)
        };
        wait_for(|| {
            if self.used_bytes() == 0 {
                return Some(Err(Full));
            }
            (0..self.len()).find_map(made).map(Ok)
        })
    }

    /// Takes a free stream that is not the CPU's own, waiting for one if necessary.
    #[cold]
    fn take_any(&self, word: u64) -> Pin<'_> {
        let (homes, crowd) = (&self.homes, &self.crowd);
        let active = homes.active.load(Relaxed);
        if crowd.meet() && active < homes.cpus.count() {
            // If another thread was faster, its increment serves both.
            _ = homes.active.compare_exchange(active, active + 1, Relaxed, Relaxed);
        }
        let find = || homes.in_turn(homes.home(), self.len()).find_map(|number| self.pins.try_take(number, word));
        if let Some(pin) = find() {
            return pin;
        }
        for _ in 0..YIELDS_BEFORE_SLEEP {
            thread::yield_now();
            if let Some(pin) = find() {
                return pin;
            }
        }
        crowd.waiting.fetch_add(1, Relaxed);
        let mut guard = lock(&crowd.lock);
        let pin = loop {
            if let Some(pin) = find() {
                break pin;
            }
            guard = crowd.returned.wait_timeout(guard, NAP).unwrap_or_else(PoisonError::into_inner).0;
        };
        crowd.waiting.fetch_sub(1, Relaxed);
        pin
    }

    /// Takes stream `number`, waiting for its holder.
    fn take_number(&self, number: usize, word: u64) -> Pin<'_> {
        wait_for(|| self.pins.try_take(number, word))
    }

    /// Keeps the object of `word`, of `len_bytes`, which was swapped out of its entry, until no pin
    /// names it. When enough objects are kept, or immediately if `keep` is false, passes the words of
    /// those that no thread reads to `free`.
    pub(crate) fn retire(&self, kept: &mut Kept, word: u64, len_bytes: usize, keep: bool, free: impl FnMut(u64)) {
        kept.words.push(word);
        kept.bytes += len_bytes;
        if !keep || kept.words.len() >= self.retired_batch || kept.bytes >= RETIRED_BYTES {
            kept.bytes = 0;
            self.pins.release(&mut kept.words, free);
        }
    }

    /// Passes every kept word whose object no thread reads to `free`: those of `kept`, whose stream
    /// the caller holds, and those of the streams that no thread holds.
    #[cold]
    pub(crate) fn release_all(&self, kept: Option<&mut Kept>, mut free: impl FnMut(u64)) {
        if let Some(kept) = kept {
            self.pins.release(&mut kept.words, &mut free);
        }
        for number in 0..self.len() {
            let Some(_pin) = self.pins.try_take(number, 0) else { continue };
            // SAFETY: this thread holds the pin.
            if let Some(working) = unsafe { &mut *self.pins.beside(number).working.get() } {
                self.pins.release(&mut working.kept.words, &mut free);
            }
        }
    }

    /// Like [`release_all`](Self::release_all), but waits for the streams that are held. The caller
    /// holds none.
    #[cold]
    pub(crate) fn release_when_free(&self, mut free: impl FnMut(u64)) {
        self.visit(|working| self.pins.release(&mut working.kept.words, &mut free));
    }

    /// Passes every working state created so far to `change`, one after the other, as soon as
    /// no thread holds it: every thread that held a stream before the call has given it back at some
    /// time since.
    pub(crate) fn visit(&self, mut change: impl FnMut(&mut Working)) {
        for number in 0..self.len() {
            let _pin = self.take_number(number, 0);
            // SAFETY: this thread holds the pin.
            if let Some(working) = unsafe { &mut *self.pins.beside(number).working.get() } {
                change(working);
            }
        }
    }

    /// Waits until no thread reads an object of `words`, which were swapped out of their entries.
    /// Each wait takes at most a decode, unless a reader is preempted.
    pub(crate) fn wait_for_readers(&self, words: &[u64]) {
        wait_for(|| (!self.pins.name_any(words)).then_some(()));
    }

    /// Waits until no thread writes to a layer that is no longer a disk's topmost one. Each wait
    /// takes at most a page's change, unless a writer is preempted.
    pub(crate) fn wait_for_writers(&self, layer: LayerId) {
        wait_for(|| (!self.pins.write_to(layer)).then_some(()));
    }

    /// Returns the bytes of one stream; 0 if there was no memory for one.
    pub(crate) fn one_bytes(&self) -> u64 {
        self.one_bytes
    }

    /// Makes the budget reserve room for one stream per CPU; all but the first get at most 1/64 of
    /// the limit.
    pub(crate) fn promise(&self, budget: &Budget) {
        let more = (self.cpus() as u64 - 1).min(budget.limit() / 64 / self.one_bytes.max(1));
        budget.promise(((1 + more) * self.one_bytes).saturating_sub(self.used_bytes()));
    }

    /// Creates a working state, or fails immediately if there is no memory for it.
    fn make(&self, budget: &Budget) -> Result<Working, Full> {
        let bytes = self.one_bytes;
        budget.take_promised(bytes).or_else(|Full| budget.take_for(Purpose::Keep, bytes))?;
        let stream = self.codec.stream().map_err(|_| {
            budget.give(bytes);
            Full
        })?;
        self.used_bytes.fetch_add(bytes, Relaxed);
        Ok(Working {
            coder: Coder { stream, object: Box::new([0; PAGE_SIZE]), trained: Trained::default() },
            page: Box::new([0; PAGE_SIZE]),
            next: 0,
            kept: Kept { words: Vec::with_capacity(self.retired_capacity), bytes: 0 },
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pagefold_codec::Lz4;

    use super::*;
    use crate::cpus::fake;

    /// Creates the streams of a machine with `cpus` CPUs, four for each; this thread runs on CPU 0.
    fn streams(cpus: usize) -> Streams {
        fake::set_machine(0..cpus, cpus);
        fake::run_on(0);
        Streams::new(Arc::new(Lz4))
    }

    #[test]
    fn a_stream_has_one_holder_at_a_time() {
        let streams = streams(2);
        let budget = Budget::new(u64::MAX, 1);
        thread::scope(|scope| {
            // More threads than streams.
            for mark in 0..streams.len() + 6 {
                let (streams, budget) = (&streams, &budget);
                scope.spawn(move || {
                    fake::run_on(mark % 2);
                    for turn in 0..200 {
                        let mut taken = streams.take(0, budget).expect("no limit");
                        let (working, _) = taken.parts();
                        working.coder.object.fill(mark as u8);
                        if turn % 10 == 0 {
                            thread::yield_now();
                        }
                        assert!(working.coder.object.iter().all(|&byte| byte == mark as u8));
                    }
                });
            }
        });
        assert_eq!(budget.used(), streams.used_bytes());
    }

    #[test]
    fn streams_are_made_when_first_taken() {
        let streams = streams(1);
        let budget = Budget::new(u64::MAX, 1);
        assert_eq!(streams.used_bytes(), 0);
        drop(streams.take(0, &budget).expect("no limit"));
        let one = streams.used_bytes();
        assert!(one >= 2 * PAGE_SIZE as u64);
        let both = (streams.take(0, &budget).expect("no limit"), streams.take(0, &budget).expect("no limit"));
        assert_ne!(both.0.number(), both.1.number());
        assert_eq!(streams.used_bytes(), 2 * one);
        assert_eq!(budget.used(), 2 * one);
    }

    #[test]
    fn threads_that_meet_come_apart() {
        let streams = streams(4);
        let budget = Budget::new(u64::MAX, 1);
        let number_on = |cpu| {
            fake::run_on(cpu);
            streams.take(0, &budget).expect("no limit").number()
        };
        assert_eq!([0, 1, 2, 3].map(number_on), [0; 4]);
        let one = streams.used_bytes();
        fake::run_on(0);
        let first = streams.take(0, &budget).expect("no limit");
        // On a slow machine, this may take more than one step of the clock.
        let met = (1..1000).find(|_| {
            assert_eq!(number_on(1), 1, "another that is free");
            streams.homes.active.load(Relaxed) > 1
        });
        assert!(met >= Some(CROWDED as usize), "{met:?}");
        drop(first);
        assert_eq!([0, 1, 2, 3].map(number_on), [0, 1, 0, 1]);
        assert_eq!(streams.used_bytes(), 2 * one);
    }

    #[test]
    fn every_stream_has_its_turn() {
        for (active, end, home) in
            (1..5).flat_map(|active| (0..9).flat_map(move |end| (0..4).map(move |home| (active, end, home))))
        {
            let homes = Homes { active: AtomicUsize::new(active), end: AtomicUsize::new(end), ..Homes::new() };
            let mut turns: Vec<usize> = homes.in_turn(home, 16).collect();
            assert_eq!(turns[0], home);
            turns.sort_unstable();
            turns.dedup();
            assert_eq!(turns, Vec::from_iter(0..16), "{active} homes, {end} made, from {home}");
        }
    }

    #[test]
    fn who_finds_a_stream_taken_makes_none_while_another_is_free() {
        let streams = streams(4);
        let budget = Budget::new(u64::MAX, 1);
        fake::run_on(0);
        let take = || streams.take(0, &budget).expect("no limit");
        let held = [take(), take(), take()];
        assert_eq!(held.each_ref().map(|taken| taken.number()), [0, 1, 2]);
        let [zero, one, two] = held;
        drop(one);
        assert_eq!(take().number(), 1);
        drop((zero, two));
        assert_eq!(take().number(), 0);
    }

    #[test]
    fn at_the_limit_a_stream_that_is_there_has_to_do() {
        let streams = streams(1);
        let short = Budget::new(100, 1);
        assert!(streams.take(0, &short).is_err(), "none is there");
        let budget = Budget::new(u64::MAX, 1);
        let first = streams.take(0, &budget).expect("no limit");
        let number = first.number();
        thread::scope(|scope| {
            let second = scope.spawn(|| streams.take(0, &short).expect("the first one").number());
            thread::yield_now();
            drop(first);
            assert_eq!(second.join().expect("no panic"), number);
        });
    }

    #[test]
    fn long_objects_are_released_sooner() {
        let streams = streams(16);
        let mut writer = streams.take(0, &Budget::new(u64::MAX, 1)).expect("no limit");
        for (len_bytes, kept) in [(PAGE_SIZE, RETIRED_BYTES / PAGE_SIZE), (1, *RETIRED_BATCH.end())] {
            let mut freed = 0;
            for at in 1..=2 * kept {
                streams.retire(&mut writer.parts().0.kept, at as u64, len_bytes, true, |_| freed += 1);
                assert_eq!(freed, at / kept * kept, "after {at} objects of {len_bytes} bytes");
            }
        }
    }

    #[test]
    fn what_is_read_is_not_released() {
        let streams = streams(1);
        let budget = Budget::new(u64::MAX, 1);
        let reader = streams.take(77, &budget).expect("no limit");
        let mut writer = streams.take(0, &budget).expect("no limit");
        let mut freed = Vec::new();
        streams.retire(&mut writer.parts().0.kept, 77, 1, true, |word| freed.push(word));
        streams.retire(&mut writer.parts().0.kept, 78, 1, true, |word| freed.push(word));
        streams.release_all(Some(&mut writer.parts().0.kept), |word| freed.push(word));
        assert_eq!(freed, [78]);
        drop(reader);
        drop(writer);
        streams.release_all(None, |word| freed.push(word));
        assert_eq!(freed, [78, 77]);
    }
}
