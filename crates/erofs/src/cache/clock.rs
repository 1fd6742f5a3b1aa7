//! A bounded, concurrent map that evicts values not used recently.
//!
//! A hit takes one of many locks and writes nothing else that other threads read. Use of a value
//! sets one bit, once. To evict, a hand sweeps over the values and clears the bits (the clock
//! algorithm: Corbató, *A Paging Experiment with the Multics System*, 1968). Each shard has its own
//! hand: a new value evicts from its own shard, or from the next one that has values. With a single
//! hand, all threads that evict would contend for the same shard.

use std::hash::{BuildHasher, Hash};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;
use foldhash::quality::RandomState;

use crate::error::Result;

/// The number of shards with a lock each, so that readers of different keys rarely contend.
const SHARDS: usize = 32;
/// The size of a shard's table when it gets its first entry.
const FIRST_PLACES: usize = 8;

/// A value that may still be under construction; `None` if that failed.
type Slot<V> = Arc<OnceLock<Option<V>>>;

/// A value that is or was in a cache.
///
/// Invariant: it was constructed successfully.
pub(crate) struct Kept<V> {
    slot: Slot<V>,
}

impl<V> Deref for Kept<V> {
    type Target = V;

    fn deref(&self) -> &V {
        match self.slot.get() {
            Some(Some(value)) => value,
            _ => unreachable!("a value that was made stays"),
        }
    }
}

/// Values by key, within a limit on their total cost in bytes. The first thread that asks for a
/// value constructs it, once; other threads that ask for it wait.
///
/// Invariants: `bytes` is the sum of `cost` over all entries, plus reservations for entries not yet
/// added. `bytes <= limit`, unless such reservations alone exceed it.
pub(crate) struct Cache<K, V> {
    shards: Vec<CachePadded<Mutex<Shard<K, V>>>>,
    limit: usize,
    bytes: CachePadded<AtomicUsize>,
    /// Whether `bytes` ever exceeded half of `limit`.
    filling: AtomicBool,
    /// Randomly seeded: an image controls its keys, but not their hashes.
    hasher: RandomState,
}

/// A hash table with inline entries, so that a hit touches one cache line. Each entry is in the
/// first free slot from that of its hash on (linear probing: Knuth, volume 3, section 6.4).
///
/// Invariants: `table` contains `count` entries and is at most three quarters full. Its length is a
/// power of two or 0. No slot between an entry's home slot and the entry is free.
struct Shard<K, V> {
    table: Vec<Option<Entry<K, V>>>,
    count: usize,
    /// The slot to examine next for an eviction.
    hand: usize,
    hits: u64,
}

struct Entry<K, V> {
    key: K,
    slot: Slot<V>,
    cost: usize,
    /// Whether it was used since the hand last passed.
    used: bool,
}

impl<K: Copy + Eq + Hash, V> Cache<K, V> {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let shard = || Shard { table: Vec::new(), count: 0, hand: 0, hits: 0 };
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::new(Mutex::new(shard()))).collect(),
            limit: limit_bytes,
            bytes: CachePadded::default(),
            filling: AtomicBool::new(false),
            hasher: RandomState::default(),
        }
    }

    fn hash(&self, key: K) -> u64 {
        self.hasher.hash_one(key)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V>> {
        self.lock(part(hash))
    }

    /// Locks the shard with a number modulo `SHARDS`. No thread holds two of these locks.
    fn lock(&self, number: usize) -> MutexGuard<'_, Shard<K, V>> {
        // Nothing panics while the lock is held.
        self.shards[number % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of `key` if it is cached.
    pub(crate) fn find(&self, key: K) -> Option<Kept<V>> {
        let hash = self.hash(key);
        let mut shard = self.shard(hash);
        let slot = Arc::clone(shard.used(key, hash)?);
        if !matches!(slot.get(), Some(Some(_))) {
            return None;
        }
        shard.hits += 1;
        Some(Kept { slot })
    }

    /// Returns the number of hits of [`find`](Self::find).
    pub(crate) fn hits(&self) -> u64 {
        (0..SHARDS).map(|number| self.lock(number).hits).sum()
    }

    /// Returns the total cost of all entries.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Returns whether the cache was ever more than half full.
    pub(crate) fn is_filling(&self) -> bool {
        self.filling.load(Relaxed)
    }

    /// Returns the key that would likely be evicted to add `key` at a cost of `cost` bytes; `None`
    /// if there is room.
    pub(crate) fn victim(&self, key: K, cost: usize) -> Option<K> {
        if self.bytes.load(Relaxed).saturating_add(cost) <= self.limit {
            return None;
        }
        self.with_oldest(self.hash(key), |shard, place| shard.table[place].as_ref().map(|entry| entry.key))?
    }

    /// Calls `act` with the next entry to evict for one with this hash. Returns `None` if there are
    /// no entries.
    fn with_oldest<T>(&self, hash: u64, act: impl Fn(&mut Shard<K, V>, usize) -> T) -> Option<T> {
        // After one round over all shards, entries that were used again are evicted too.
        (0..=2 * SHARDS).find_map(|tries| {
            let mut shard = self.lock(part(hash) + tries);
            let place = shard.oldest(tries <= SHARDS)?;
            Some(act(&mut shard, place))
        })
    }

    /// Reserves `cost` bytes for an entry with this hash. Evicts entries to make as much of
    /// that room as it can.
    fn reserve(&self, hash: u64, cost: usize) {
        let taken = |bytes: usize| bytes.checked_add(cost).filter(|sum| *sum <= self.limit);
        while self.bytes.fetch_update(Relaxed, Relaxed, taken).is_err() {
            // The value is dropped after the lock is released.
            match self.with_oldest(hash, |shard, place| shard.remove(place, &self.hasher)).flatten() {
                Some(gone) => drop(self.bytes.fetch_sub(gone.cost, Relaxed)),
                None => {
                    self.bytes.fetch_add(cost, Relaxed);
                    break;
                }
            }
        }
        if !self.is_filling() && self.bytes.load(Relaxed) > self.limit / 2 {
            self.filling.store(true, Relaxed);
        }
    }

    /// Adds a key that was not cached, evicting others as needed, and returns its slot.
    fn add(&self, key: K, hash: u64, cost: usize) -> Slot<V> {
        self.reserve(hash, cost);
        let mut shard = self.shard(hash);
        if let Some(slot) = shard.used(key, hash) {
            self.bytes.fetch_sub(cost, Relaxed);
            return Arc::clone(slot);
        }
        let slot = Slot::default();
        shard.add(Entry { key, slot: Arc::clone(&slot), cost, used: false }, &self.hasher);
        slot
    }

    /// Caches a value at a cost of `cost` bytes, unless `key` is cached or under construction. Does
    /// not wait for a thread that constructs it. Returns the value passed.
    pub(crate) fn put(&self, key: K, cost: usize, value: V) -> Kept<V> {
        let hash = self.hash(key);
        let slot: Slot<V> = Arc::new(OnceLock::from(Some(value)));
        self.reserve(hash, cost);
        let mut shard = self.shard(hash);
        if shard.used(key, hash).is_some() {
            self.bytes.fetch_sub(cost, Relaxed);
        } else {
            shard.add(Entry { key, slot: Arc::clone(&slot), cost, used: false }, &self.hasher);
        }
        Kept { slot }
    }

    /// Returns the value of `key`. On a miss, constructs it and caches it at a cost of `cost`
    /// bytes. Errors are not cached: threads that waited for the value retry on their own.
    pub(crate) fn get(&self, key: K, cost: usize, make: impl Fn() -> Result<V>) -> Result<Kept<V>> {
        let hash = self.hash(key);
        let found = self.shard(hash).used(key, hash).map(Arc::clone);
        let slot = match found {
            Some(slot) => slot,
            None => self.add(key, hash, cost),
        };
        let mut error = None;
        let made = slot.get_or_init(|| make().map_err(|failed| error = Some(failed)).ok()).is_some();
        match error {
            None if made => Ok(Kept { slot }),
            None => Ok(Kept { slot: Arc::new(OnceLock::from(Some(make()?))) }),
            Some(error) => {
                let gone = self.shard(hash).forget(key, hash, &slot, &self.hasher);
                self.bytes.fetch_sub(gone.map_or(0, |gone| gone.cost), Relaxed);
                Err(error)
            }
        }
    }
}

/// Returns the shard of a hash, modulo `SHARDS`. The table uses the low bits.
fn part(hash: u64) -> usize {
    (hash >> 48) as usize
}

impl<K: Copy + Eq + Hash, V> Shard<K, V> {
    /// Returns the slot of a key, or the free slot where it would go; `None` if there is no table.
    fn place(&self, key: K, hash: u64) -> Option<usize> {
        let last = self.table.len().checked_sub(1)?;
        let mut place = hash as usize & last;
        while self.table[place].as_ref().is_some_and(|entry| entry.key != key) {
            place = (place + 1) & last;
        }
        Some(place)
    }

    /// Returns the slot of a cached key and marks it as used.
    fn used(&mut self, key: K, hash: u64) -> Option<&Slot<V>> {
        let place = self.place(key, hash)?;
        let entry = self.table[place].as_mut()?;
        if !entry.used {
            entry.used = true;
        }
        Some(&entry.slot)
    }

    /// Adds an entry for a key that is not present.
    fn add(&mut self, entry: Entry<K, V>, hasher: &RandomState) {
        if (self.count + 1) * 4 > self.table.len() * 3 {
            let places = (self.table.len() * 2).max(FIRST_PLACES);
            let table = std::mem::replace(&mut self.table, std::iter::repeat_with(|| None).take(places).collect());
            for entry in table.into_iter().flatten() {
                self.put(entry, hasher);
            }
        }
        self.put(entry, hasher);
        self.count += 1;
    }

    fn put(&mut self, entry: Entry<K, V>, hasher: &RandomState) {
        if let Some(place) = self.place(entry.key, hasher.hash_one(entry.key)) {
            self.table[place] = Some(entry);
        }
    }

    /// Advances the hand to the next entry to evict and returns its slot. If `spare`, used entries
    /// on the way are skipped once. Returns `None` if the hand reaches the end.
    fn oldest(&mut self, spare: bool) -> Option<usize> {
        while let Some(place) = self.table.get_mut(self.hand) {
            if let Some(entry) = place
                && (!std::mem::take(&mut entry.used) || !spare)
            {
                return Some(self.hand);
            }
            self.hand += 1;
        }
        self.hand = 0;
        None
    }

    /// Removes the entry in a slot and moves later ones that would become unreachable.
    fn remove(&mut self, place: usize, hasher: &RandomState) -> Option<Entry<K, V>> {
        let gone = self.table[place].take()?;
        self.count -= 1;
        let last = self.table.len() - 1;
        let (mut free, mut next) = (place, (place + 1) & last);
        while let Some(entry) = &self.table[next] {
            let from = hasher.hash_one(entry.key) as usize & last;
            if next.wrapping_sub(from) & last >= next.wrapping_sub(free) & last {
                self.table.swap(free, next);
                free = next;
            }
            next = (next + 1) & last;
        }
        Some(gone)
    }

    /// Removes a key if it still refers to this slot.
    fn forget(&mut self, key: K, hash: u64, slot: &Slot<V>, hasher: &RandomState) -> Option<Entry<K, V>> {
        let place = self.place(key, hash)?;
        let same = self.table[place].as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.slot, slot));
        if same { self.remove(place, hasher) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::error::Error;

    #[test]
    fn the_bound_holds_and_recent_values_stay() {
        let cache: Cache<u64, Vec<u8>> = Cache::new(16 * 1000);
        let make = || Ok(vec![0; 100]);
        for round in 0..1000u64 {
            assert!(cache.find(round).is_none());
            let victim = cache.victim(round, 100);
            assert_eq!(victim.is_some(), round >= 160);
            assert!(
                victim.is_none_or(|victim| cache
                    .lock(part(cache.hash(victim)))
                    .used(victim, cache.hash(victim))
                    .is_some())
            );
            let value = cache.get(round, 100, make).unwrap();
            assert!(cache.find(round).is_some_and(|found| std::ptr::eq(&*found, &*value)));
            let entries: usize = (0..SHARDS).map(|number| cache.lock(number).count).sum();
            assert_eq!(cache.bytes.load(Relaxed), entries * 100);
            assert_eq!(entries as u64, (round + 1).min(160));
        }
        for number in 0..SHARDS {
            let shard = cache.lock(number);
            assert_eq!(shard.table.iter().flatten().count(), shard.count);
            let found = |entry: &Entry<u64, _>| shard.place(entry.key, cache.hash(entry.key));
            let places = shard.table.iter().enumerate();
            assert!(places.filter_map(|(place, entry)| Some((place, entry.as_ref()?))).all(|(place, entry)| found(
                entry
            ) == Some(
                place
            )));
        }
        assert!(cache.find(0).is_none());
    }

    #[test]
    fn used_values_stay_cached() {
        let cache: Cache<u64, Vec<u8>> = Cache::new(16 * 1000);
        let make = || Ok(vec![0; 100]);
        for round in 0..1000u64 {
            for kept in 0..20 {
                cache.get(kept, 100, make).unwrap();
            }
            cache.get(100 + round, 100, make).unwrap();
        }
        let hits = cache.hits();
        assert!((0..20).all(|kept| cache.find(kept).is_some()));
        assert_eq!(cache.hits(), hits + 20);
    }

    #[test]
    fn all_parts_share_one_bound() {
        let cache: Cache<u64, Vec<u8>> = Cache::new(16 * 1000);
        let make = || Ok(Vec::new());
        for key in 0..100 {
            cache.get(key, 100, make).unwrap();
        }
        // Six times a sixteenth of the limit.
        cache.get(100, 6000, make).unwrap();
        assert!((0..=100).all(|key| cache.find(key).is_some()));
        cache.get(101, 6000, make).unwrap();
        assert!(cache.find(101).is_some() && cache.bytes.load(Relaxed) <= 16 * 1000);
        cache.get(102, 1 << 20, make).unwrap();
        assert!((0..102).all(|key| cache.find(key).is_none()) && cache.find(102).is_some(), "one alone may be larger");
        cache.get(103, 100, make).unwrap();
        assert_eq!(cache.bytes.load(Relaxed), 100);
    }

    #[test]
    fn the_bound_holds_among_threads() {
        let cache: Cache<u64, Vec<u8>> = Cache::new(10_000);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let key = (round * (7 + thread)) % 301;
                        let value = cache.get(key, 100 + key as usize, || Ok(vec![key as u8])).unwrap();
                        assert_eq!(value[0], key as u8);
                        assert!(cache.bytes.load(Relaxed) <= 10_000);
                    }
                });
            }
        });
        let cost = |number| cache.lock(number).table.iter().flatten().map(|entry| entry.cost).sum::<usize>();
        assert_eq!(cache.bytes.load(Relaxed), (0..SHARDS).map(cost).sum());
    }

    #[test]
    fn a_value_that_many_threads_miss_is_constructed_once() {
        let cache: Cache<u64, Vec<u8>> = Cache::new(1 << 20);
        let (made, start) = (AtomicUsize::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let make = || {
                        made.fetch_add(1, Ordering::Relaxed);
                        // The other threads miss it in this time.
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok(vec![7; 100])
                    };
                    assert_eq!(cache.get(1, 100, make).unwrap()[99], 7);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn errors_are_not_kept() {
        let cache: Cache<u64, Vec<u8>> = Cache::new(1 << 20);
        assert!(cache.get(1, 100, || Error::corrupt("bad", 0)).is_err());
        assert_eq!(cache.bytes.load(Relaxed), 0);
        assert!(cache.find(1).is_none());
        assert!(cache.get(1, 100, || Ok(vec![0; 100])).is_ok());
    }
}
