//! A bounded map that forgets what was not used lately, for any number of threads.
//!
//! A hit takes one lock of sixteen and writes nothing else that other threads read: that a value was used is one bit, set once, and what goes is
//! found by a hand that goes round all values and clears the bits (the clock algorithm: Corbató, *A Paging Experiment with the Multics
//! System*, 1968).

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;
use foldhash::quality::RandomState;

use crate::error::Result;

/// Parts with a lock each, so that readers of different keys seldom meet.
const SHARDS: usize = 16;

/// A value that may still be being made; `None` if that failed.
type Slot<V> = Arc<OnceLock<Option<Arc<V>>>>;

/// Values by key, within a bound on their bytes. A value is made once, by the first thread that asks for it, while others
/// that do wait.
///
/// Invariants: `bytes` is the sum of `cost` over all entries, and of what has room and is no entry yet; `bytes <= limit`, unless values that have no
/// entry yet are larger than that. `places` of a shard has the place in `entries` of each entry's key, and nothing else.
pub(crate) struct Cache<K, V: ?Sized> {
    shards: Vec<CachePadded<Mutex<Shard<K, V>>>>,
    limit: usize,
    bytes: CachePadded<AtomicUsize>,
    /// The shard, modulo their number, that the hand of the clock goes through.
    turn: AtomicUsize,
    /// An image chooses its keys, but not how they are hashed.
    hasher: RandomState,
}

struct Shard<K, V: ?Sized> {
    entries: Vec<Entry<K, V>>,
    /// By key.
    places: HashMap<Hashed<K>, usize, BuildHasherDefault<Same>>,
    /// The entry that is looked at next when one of the shard must go.
    hand: usize,
    hits: u64,
}

struct Entry<K, V: ?Sized> {
    key: Hashed<K>,
    slot: Slot<V>,
    cost: usize,
    /// Whether it was asked for since the hand passed.
    used: bool,
}

/// A key with its hash, which is made once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hashed<K> {
    key: K,
    hash: u64,
}

impl<K> Hash for Hashed<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Hands on the hash of a [`Hashed`].
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl<K: Copy + Eq + Hash, V: ?Sized> Cache<K, V> {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let shard = || Shard { entries: Vec::new(), places: HashMap::default(), hand: 0, hits: 0 };
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::new(Mutex::new(shard()))).collect(),
            limit: limit_bytes,
            bytes: CachePadded::default(),
            turn: AtomicUsize::new(0),
            hasher: RandomState::default(),
        }
    }

    fn hashed(&self, key: K) -> Hashed<K> {
        Hashed { key, hash: self.hasher.hash_one(key) }
    }

    fn shard(&self, key: &Hashed<K>) -> MutexGuard<'_, Shard<K, V>> {
        // The low bits are the map's.
        self.lock((key.hash >> 48) as usize)
    }

    /// The shard of a number, modulo theirs. Nobody locks two.
    fn lock(&self, number: usize) -> MutexGuard<'_, Shard<K, V>> {
        // Nothing panics while the lock is held.
        self.shards[number % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `key`, if it is here.
    pub(crate) fn find(&self, key: K) -> Option<Arc<V>> {
        let key = self.hashed(key);
        let mut shard = self.shard(&key);
        let value = shard.used(&key)?.get()?.clone()?;
        shard.hits += 1;
        Some(value)
    }

    /// How often [`find`](Self::find) found what it was asked for.
    pub(crate) fn hits(&self) -> u64 {
        (0..SHARDS).map(|number| self.lock(number).hits).sum()
    }

    /// The key whose value would be forgotten first for one of `cost` bytes; `None` if there is room.
    pub(crate) fn victim(&self, cost: usize) -> Option<K> {
        if self.bytes.load(Relaxed).saturating_add(cost) <= self.limit {
            return None;
        }
        self.with_oldest(|shard, place| shard.entries[place].key.key)
    }

    /// Does something with the entry that goes first, to which the hand moves. `None`: there is no entry.
    fn with_oldest<T>(&self, act: impl FnOnce(&mut Shard<K, V>, usize) -> T) -> Option<T> {
        for tries in 0..=2 * SHARDS {
            let turn = self.turn.load(Relaxed);
            let mut shard = self.lock(turn);
            // What was used again since the hand came by goes all the same.
            match shard.oldest(tries <= SHARDS) {
                Some(place) => return Some(act(&mut shard, place)),
                None => drop(self.turn.compare_exchange(turn, turn.wrapping_add(1), Relaxed, Relaxed)),
            }
        }
        None
    }

    /// Makes room for `cost` bytes, as far as that can be done, and takes it.
    fn reserve(&self, cost: usize) {
        let taken = |bytes: usize| bytes.checked_add(cost).filter(|sum| *sum <= self.limit);
        while self.bytes.fetch_update(Relaxed, Relaxed, taken).is_err() {
            match self.with_oldest(Shard::remove) {
                Some(gone) => drop(self.bytes.fetch_sub(gone.cost, Relaxed)),
                None => {
                    self.bytes.fetch_add(cost, Relaxed);
                    break;
                }
            }
        }
    }

    /// The slot of a key that was not here, in place of as many others as it takes.
    fn add(&self, key: Hashed<K>, cost: usize) -> Slot<V> {
        self.reserve(cost);
        let mut shard = self.shard(&key);
        if let Some(slot) = shard.used(&key) {
            self.bytes.fetch_sub(cost, Relaxed);
            return Arc::clone(slot);
        }
        shard.add(key, cost)
    }

    /// The value of `key`. If it is not here it is made, and kept as one of `cost` bytes. An error is not kept: those who
    /// waited for the value try for themselves.
    pub(crate) fn get(&self, key: K, cost: usize, make: impl Fn() -> Result<Arc<V>>) -> Result<Arc<V>> {
        let key = self.hashed(key);
        let found = self.shard(&key).used(&key).map(Arc::clone);
        let slot = match found {
            Some(slot) => slot,
            None => self.add(key, cost),
        };
        if let Some(Some(value)) = slot.get() {
            return Ok(Arc::clone(value));
        }
        let mut error = None;
        let value = slot.get_or_init(|| make().map_err(|failed| error = Some(failed)).ok());
        match (value, error) {
            (Some(value), _) => Ok(Arc::clone(value)),
            (None, None) => make(),
            (None, Some(error)) => {
                let gone = self.shard(&key).forget(&key, &slot);
                self.bytes.fetch_sub(gone.map_or(0, |gone| gone.cost), Relaxed);
                Err(error)
            }
        }
    }
}

impl<K: Copy + Eq, V: ?Sized> Shard<K, V> {
    /// The slot of a key, if it is here, as one that was used.
    fn used(&mut self, key: &Hashed<K>) -> Option<&Slot<V>> {
        let entry = &mut self.entries[*self.places.get(key)?];
        if !entry.used {
            entry.used = true;
        }
        Some(&entry.slot)
    }

    /// Adds an empty slot for a key that is not here.
    fn add(&mut self, key: Hashed<K>, cost: usize) -> Slot<V> {
        let slot = Slot::default();
        self.places.insert(key, self.entries.len());
        self.entries.push(Entry { key, slot: Arc::clone(&slot), cost, used: false });
        slot
    }

    /// The entry that goes first, to which the hand moves. Used ones on its way are spared once, if any are. `None`: the hand came to the
    /// end.
    fn oldest(&mut self, spare: bool) -> Option<usize> {
        while let Some(entry) = self.entries.get_mut(self.hand) {
            if !std::mem::take(&mut entry.used) || !spare {
                return Some(self.hand);
            }
            self.hand += 1;
        }
        self.hand = 0;
        None
    }

    fn remove(&mut self, place: usize) -> Entry<K, V> {
        let gone = self.entries.swap_remove(place);
        self.places.remove(&gone.key);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.key, place);
        }
        gone
    }

    /// Removes a key if it still has this slot.
    fn forget(&mut self, key: &Hashed<K>, slot: &Slot<V>) -> Option<Entry<K, V>> {
        let place = *self.places.get(key)?;
        Arc::ptr_eq(&self.entries[place].slot, slot).then(|| self.remove(place))
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
        let cache: Cache<u64, [u8]> = Cache::new(16 * 1000);
        let make = || Ok(Arc::from(vec![0; 100]));
        for round in 0..1000u64 {
            assert!(cache.find(round).is_none());
            let victim = cache.victim(100);
            let value = cache.get(round, 100, make).unwrap();
            assert!(cache.find(round).is_some_and(|found| Arc::ptr_eq(&found, &value)));
            assert!(victim.is_none_or(|victim| cache.find(victim).is_none()));
            let entries: usize = (0..SHARDS).map(|number| cache.lock(number).entries.len()).sum();
            assert_eq!(cache.bytes.load(Relaxed), entries * 100);
            assert_eq!(entries as u64, (round + 1).min(160));
        }
        for number in 0..SHARDS {
            let shard = cache.lock(number);
            assert_eq!(shard.places.len(), shard.entries.len());
            assert!(shard.entries.iter().enumerate().all(|(place, entry)| shard.places[&entry.key] == place));
        }
        assert!(cache.find(0).is_none());
    }

    #[test]
    fn what_is_used_stays() {
        let cache: Cache<u64, [u8]> = Cache::new(16 * 1000);
        let make = || Ok(Arc::from(vec![0; 100]));
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
        let cache: Cache<u64, [u8]> = Cache::new(16 * 1000);
        let make = || Ok(Arc::from(Vec::new()));
        for key in 0..100 {
            cache.get(key, 100, make).unwrap();
        }
        // Six times what a sixteenth of the bound is.
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
        let cache: Cache<u64, [u8]> = Cache::new(10_000);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let key = (round * (7 + thread)) % 301;
                        let value = cache.get(key, 100 + key as usize, || Ok(Arc::from(vec![key as u8]))).unwrap();
                        assert_eq!(value[0], key as u8);
                        assert!(cache.bytes.load(Relaxed) <= 10_000);
                    }
                });
            }
        });
        let cost = |number| cache.lock(number).entries.iter().map(|entry| entry.cost).sum::<usize>();
        assert_eq!(cache.bytes.load(Relaxed), (0..SHARDS).map(cost).sum());
    }

    #[test]
    fn what_many_miss_is_made_once() {
        let cache: Cache<u64, [u8]> = Cache::new(1 << 20);
        let (made, start) = (AtomicUsize::new(0), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let make = || {
                        made.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok(Arc::from(vec![7; 100]))
                    };
                    assert_eq!(cache.get(1, 100, make).unwrap()[99], 7);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn errors_are_not_kept() {
        let cache: Cache<u64, [u8]> = Cache::new(1 << 20);
        assert!(cache.get(1, 100, || Error::corrupt("bad", 0)).is_err());
        assert_eq!(cache.bytes.load(Relaxed), 0);
        assert!(cache.find(1).is_none());
        assert!(cache.get(1, 100, || Ok(Arc::from(vec![0; 100]))).is_ok());
    }
}
