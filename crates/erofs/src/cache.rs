//! A bounded map that forgets what was not used lately, for any number of threads.
//!
//! A hit takes one lock and writes nothing else that other threads read: that a value was used is one bit, set once, and what goes is
//! found by a hand that goes round and clears the bits (the clock algorithm: Corbató, *A Paging Experiment with the Multics
//! System*, 1968).

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
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
/// Invariants of a shard: `bytes` is the sum of `cost` over its entries; `bytes <= limit`, unless one value alone is
/// larger than that; `places` has the place in `entries` of each entry's key, and nothing else.
pub(crate) struct Cache<K, V: ?Sized> {
    shards: Vec<CachePadded<Mutex<Shard<K, V>>>>,
    limit: usize,
    /// An image chooses its keys, but not how they are hashed.
    hasher: RandomState,
}

struct Shard<K, V: ?Sized> {
    entries: Vec<Entry<K, V>>,
    /// By key.
    places: HashMap<Hashed<K>, usize, BuildHasherDefault<Same>>,
    /// The entry that is looked at next when one must go.
    hand: usize,
    bytes: usize,
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
        let shard = || Shard { entries: Vec::new(), places: HashMap::default(), hand: 0, bytes: 0, hits: 0 };
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::new(Mutex::new(shard()))).collect(),
            limit: limit_bytes / SHARDS,
            hasher: RandomState::default(),
        }
    }

    fn hashed(&self, key: K) -> Hashed<K> {
        Hashed { key, hash: self.hasher.hash_one(key) }
    }

    fn shard(&self, key: &Hashed<K>) -> MutexGuard<'_, Shard<K, V>> {
        // The low bits are the map's.
        let number = (key.hash >> 48) as usize % SHARDS;
        // Nothing panics while the lock is held.
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
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
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).hits).sum()
    }

    /// The key whose value would be forgotten first for one of `cost` bytes at `key`; `None` if there is room.
    pub(crate) fn victim(&self, key: K, cost: usize) -> Option<K> {
        let mut shard = self.shard(&self.hashed(key));
        if shard.bytes + cost <= self.limit { None } else { shard.oldest().map(|place| shard.entries[place].key.key) }
    }

    /// The value of `key`. If it is not here it is made, and kept as one of `cost` bytes. An error is not kept: those who
    /// waited for the value try for themselves.
    pub(crate) fn get(&self, key: K, cost: usize, make: impl Fn() -> Result<Arc<V>>) -> Result<Arc<V>> {
        let key = self.hashed(key);
        let slot = {
            let mut shard = self.shard(&key);
            match shard.used(&key) {
                Some(slot) => match slot.get() {
                    Some(Some(value)) => return Ok(Arc::clone(value)),
                    _ => Arc::clone(slot),
                },
                None => shard.add(key, cost, self.limit),
            }
        };
        let mut error = None;
        let value = slot.get_or_init(|| make().map_err(|failed| error = Some(failed)).ok());
        match (value, error) {
            (Some(value), _) => Ok(Arc::clone(value)),
            (None, None) => make(),
            (None, Some(error)) => {
                self.shard(&key).forget(&key, &slot);
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

    /// Adds an empty slot for a key that is not here, in place of as many others as it takes.
    fn add(&mut self, key: Hashed<K>, cost: usize, limit: usize) -> Slot<V> {
        while self.bytes + cost > limit {
            let Some(place) = self.oldest() else { break };
            self.remove(place);
        }
        let slot = Slot::default();
        self.places.insert(key, self.entries.len());
        self.entries.push(Entry { key, slot: Arc::clone(&slot), cost, used: false });
        self.bytes += cost;
        slot
    }

    /// The entry that goes first, to which the hand moves. Used ones on its way are spared once.
    fn oldest(&mut self) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        loop {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let entry = &mut self.entries[self.hand];
            if !std::mem::take(&mut entry.used) {
                return Some(self.hand);
            }
            self.hand += 1;
        }
    }

    fn remove(&mut self, place: usize) {
        let gone = self.entries.swap_remove(place);
        self.places.remove(&gone.key);
        self.bytes -= gone.cost;
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.key, place);
        }
    }

    /// Removes a key if it still has this slot.
    fn forget(&mut self, key: &Hashed<K>, slot: &Slot<V>) {
        if let Some(&place) = self.places.get(key)
            && Arc::ptr_eq(&self.entries[place].slot, slot)
        {
            self.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Error;

    #[test]
    fn the_bound_holds_and_recent_values_stay() {
        let cache: Cache<u64, [u8]> = Cache::new(16 * 1000);
        let make = || Ok(Arc::from(vec![0; 100]));
        for round in 0..1000u64 {
            assert!(cache.find(round).is_none());
            let victim = cache.victim(round, 100);
            let value = cache.get(round, 100, make).unwrap();
            assert!(cache.find(round).is_some_and(|found| Arc::ptr_eq(&found, &value)));
            assert!(victim.is_none_or(|victim| cache.find(victim).is_none()));
            let bytes: usize = cache.shards.iter().map(|shard| shard.lock().unwrap().bytes).sum();
            assert!(bytes <= 16 * 1000);
        }
        for shard in &cache.shards {
            let shard = shard.lock().unwrap();
            assert_eq!(shard.bytes, shard.entries.len() * 100);
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
        // A shard may have got more of them than it has room for.
        let kept = (0..20).filter(|kept| cache.find(*kept).is_some()).count() as u64;
        assert!(kept >= 15, "{kept} of 20");
        assert_eq!(cache.hits(), hits + kept);
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
        assert_eq!(cache.shards.iter().map(|shard| shard.lock().unwrap().bytes).sum::<usize>(), 0);
        assert!(cache.find(1).is_none());
        assert!(cache.get(1, 100, || Ok(Arc::from(vec![0; 100]))).is_ok());
    }
}
