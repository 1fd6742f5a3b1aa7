//! A bounded map that forgets what was used least recently, for any number of threads.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::Result;

/// Parts with a lock each, so that readers of different keys seldom meet.
const SHARDS: usize = 16;

/// A value that may still be being made; `None` if that failed.
type Slot<V> = Arc<OnceLock<Option<Arc<V>>>>;

/// Values by key, within a bound on their bytes. A value is made once, by the first thread that asks for it, while others
/// that do wait.
///
/// Invariants of a shard: `bytes` is the sum of `cost` over its values; `bytes <= limit`, unless one value alone is
/// larger than that; every value's `stamp` is in `order`, whose other stamps are out of date.
pub(crate) struct Cache<K, V: ?Sized> {
    shards: Vec<Mutex<Shard<K, V>>>,
    limit: usize,
    hasher: RandomState,
}

struct Shard<K, V: ?Sized> {
    values: HashMap<K, Entry<V>>,
    /// Stamps and keys, oldest first. A use adds one; those it replaces stay until they reach the front.
    order: VecDeque<(u64, K)>,
    stamp: u64,
    bytes: usize,
}

struct Entry<V: ?Sized> {
    slot: Slot<V>,
    stamp: u64,
    cost: usize,
}

impl<K: Copy + Eq + Hash, V: ?Sized> Cache<K, V> {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let shard = || Shard { values: HashMap::new(), order: VecDeque::new(), stamp: 0, bytes: 0 };
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            limit: limit_bytes / SHARDS,
            hasher: RandomState::new(),
        }
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K, V>> {
        let number = self.hasher.hash_one(key) as usize % SHARDS;
        // A panic while the lock was held can at worst have left a stale stamp.
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `key`, if it is here.
    pub(crate) fn find(&self, key: K) -> Option<Arc<V>> {
        self.shard(&key).used(key)?.get()?.clone()
    }

    /// The value of `key`. If it is not here it is made, and kept as one of `cost` bytes. An error is not kept: those who
    /// waited for the value try for themselves.
    pub(crate) fn get(&self, key: K, cost: usize, make: impl Fn() -> Result<Arc<V>>) -> Result<Arc<V>> {
        let slot = self.shard(&key).slot(key, cost, self.limit);
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

impl<K: Copy + Eq + Hash, V: ?Sized> Shard<K, V> {
    /// The slot of a key, if it is here, as the one used last.
    fn used(&mut self, key: K) -> Option<Slot<V>> {
        let entry = self.values.get_mut(&key)?;
        self.stamp += 1;
        entry.stamp = self.stamp;
        let slot = Arc::clone(&entry.slot);
        self.order.push_back((self.stamp, key));
        self.tidy();
        Some(slot)
    }

    /// The slot of a key, made if it is not here, as the one used last.
    fn slot(&mut self, key: K, cost: usize, limit: usize) -> Slot<V> {
        if let Some(slot) = self.used(key) {
            return slot;
        }
        self.stamp += 1;
        self.order.push_back((self.stamp, key));
        let slot = Slot::default();
        self.values.insert(key, Entry { slot: Arc::clone(&slot), stamp: self.stamp, cost });
        self.bytes += cost;
        while self.bytes > limit && self.values.len() > 1 {
            let Some((stamp, key)) = self.order.pop_front() else { break };
            if self.values.get(&key).is_some_and(|entry| entry.stamp == stamp) {
                self.remove(&key);
            }
        }
        self.tidy();
        slot
    }

    fn remove(&mut self, key: &K) {
        if let Some(entry) = self.values.remove(key) {
            self.bytes -= entry.cost;
        }
    }

    /// Removes a key if it still has this slot.
    fn forget(&mut self, key: &K, slot: &Slot<V>) {
        if self.values.get(key).is_some_and(|entry| Arc::ptr_eq(&entry.slot, slot)) {
            self.remove(key);
        }
    }

    /// Drops out-of-date stamps when they are most of `order`, which keeps it linear in the values.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.values.len() + 64 {
            let values = &self.values;
            self.order.retain(|(stamp, key)| values.get(key).is_some_and(|entry| entry.stamp == *stamp));
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
            let value = cache.get(round, 100, make).unwrap();
            assert!(cache.find(round).is_some_and(|found| Arc::ptr_eq(&found, &value)));
            let bytes: usize = cache.shards.iter().map(|shard| shard.lock().unwrap().bytes).sum();
            assert!(bytes <= 16 * 1000);
        }
        for shard in &cache.shards {
            let shard = shard.lock().unwrap();
            assert_eq!(shard.bytes, shard.values.len() * 100);
            assert!(shard.order.len() <= 2 * shard.values.len() + 64);
        }
        assert!(cache.find(0).is_none());
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
