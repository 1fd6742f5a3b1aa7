//! A bounded map that forgets what was used least recently, for any number of threads.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;

/// Parts with a lock each, so that readers of different keys seldom meet.
const SHARDS: usize = 16;

/// Values by key, within a bound on their bytes.
///
/// Invariants of a shard: `bytes` is the sum of `cost` over its values; `bytes <= limit`, unless one value alone is
/// larger than that; every value's `stamp` is in `order`, whose other stamps are out of date.
pub(crate) struct Cache<K, V: ?Sized> {
    shards: Vec<Mutex<Shard<K, V>>>,
    limit: usize,
    hasher: RandomState,
    cost: fn(&V) -> usize,
}

struct Shard<K, V: ?Sized> {
    values: HashMap<K, (Arc<V>, u64)>,
    /// Stamps and keys, oldest first. A use adds one; those it replaces stay until they reach the front.
    order: VecDeque<(u64, K)>,
    stamp: u64,
    bytes: usize,
}

impl<K: Copy + Eq + Hash, V: ?Sized> Cache<K, V> {
    pub(crate) fn new(limit_bytes: usize, cost: fn(&V) -> usize) -> Self {
        let shard = || Shard { values: HashMap::new(), order: VecDeque::new(), stamp: 0, bytes: 0 };
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            limit: limit_bytes / SHARDS,
            hasher: RandomState::new(),
            cost,
        }
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K, V>> {
        let number = self.hasher.hash_one(key) as usize % SHARDS;
        // A panic while the lock was held can at worst have left a stale stamp.
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `key`, if it is here.
    pub(crate) fn find(&self, key: K) -> Option<Arc<V>> {
        let mut shard = self.shard(&key);
        shard.stamp += 1;
        let stamp = shard.stamp;
        let (value, last) = shard.values.get_mut(&key)?;
        *last = stamp;
        let value = Arc::clone(value);
        shard.order.push_back((stamp, key));
        shard.tidy();
        Some(value)
    }

    /// Keeps `value`, in place of what `key` had.
    pub(crate) fn insert(&self, key: K, value: Arc<V>) {
        let cost = (self.cost)(&value);
        let mut shard = self.shard(&key);
        shard.stamp += 1;
        let stamp = shard.stamp;
        if let Some((old, _)) = shard.values.insert(key, (value, stamp)) {
            shard.bytes -= (self.cost)(&old);
        }
        shard.bytes += cost;
        shard.order.push_back((stamp, key));
        while shard.bytes > self.limit && shard.values.len() > 1 {
            let Some((stamp, key)) = shard.order.pop_front() else { break };
            if shard.values.get(&key).is_some_and(|(_, last)| *last == stamp)
                && let Some((old, _)) = shard.values.remove(&key)
            {
                shard.bytes -= (self.cost)(&old);
            }
        }
        shard.tidy();
    }

    /// The value of `key`, made if it is not here. Two threads that miss together both make it.
    pub(crate) fn get(&self, key: K, make: impl FnOnce() -> Result<Arc<V>>) -> Result<Arc<V>> {
        if let Some(value) = self.find(key) {
            return Ok(value);
        }
        let value = make()?;
        self.insert(key, Arc::clone(&value));
        Ok(value)
    }
}

impl<K: Copy + Eq + Hash, V: ?Sized> Shard<K, V> {
    /// Drops out-of-date stamps when they are most of `order`, which keeps it linear in the values.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.values.len() + 64 {
            let values = &self.values;
            self.order.retain(|(stamp, key)| values.get(key).is_some_and(|(_, last)| last == stamp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_recent_values_stay() {
        let cache: Cache<u64, [u8]> = Cache::new(16 * 1000, |value| value.len());
        for round in 0..1000u64 {
            cache.insert(round, Arc::from(vec![0; 100]));
            cache.insert(round, Arc::from(vec![1; 100]));
            assert!(cache.find(round).is_some());
            let bytes: usize = cache.shards.iter().map(|shard| shard.lock().unwrap().bytes).sum();
            assert!(bytes <= 16 * 1000);
        }
        for shard in &cache.shards {
            let shard = shard.lock().unwrap();
            assert_eq!(shard.bytes, shard.values.values().map(|(value, _)| value.len()).sum::<usize>());
            assert!(shard.order.len() <= 2 * shard.values.len() + 64);
        }
        assert!(cache.find(0).is_none());
    }
}
