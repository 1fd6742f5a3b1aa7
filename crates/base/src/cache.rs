//! The cache that all bases share.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use pagefold_erofs::ClusterCache;

/// A cache of decoded content, shared by all bases that are opened with it. Its memory exists as
/// long as a base needs it.
pub struct Cache {
    lease: Box<dyn Fn() -> Option<Lease> + Send + Sync>,
    leased: Mutex<Weak<Leased>>,
}

/// Memory that its owner lends to a cache.
pub struct Lease {
    /// The maximum size of the cache, except for a single extent of up to 12 MiB.
    pub limit_bytes: usize,
    /// Dropped when the memory is free again.
    pub held: Box<dyn Any + Send + Sync>,
}

/// A cache in borrowed memory. Fields are dropped in order.
pub(crate) struct Leased {
    pub(crate) clusters: ClusterCache,
    _held: Box<dyn Any + Send + Sync>,
}

impl Cache {
    /// Creates a cache of at most `limit_bytes`, except for a single extent of up to 12 MiB.
    pub fn new(limit_bytes: usize) -> Self {
        Self::leased(move || Some(Lease { limit_bytes, held: Box::new(()) }))
    }

    /// Creates a cache in memory of `lease`. The cache borrows it when a first base needs it, and
    /// returns it when no base does. If `lease` returns `None`, there is no memory, and no base
    /// that needs a cache can be opened.
    pub fn leased(lease: impl Fn() -> Option<Lease> + Send + Sync + 'static) -> Self {
        Self { lease: Box::new(lease), leased: Mutex::default() }
    }

    /// Returns the most memory that the cache uses: 0 while no base needs it.
    pub fn limit_bytes(&self) -> usize {
        self.current().map_or(0, |leased| leased.clusters.limit_bytes())
    }

    /// Returns the bytes of decoded content in the cache.
    pub fn kept_bytes(&self) -> usize {
        self.current().map_or(0, |leased| leased.clusters.kept_bytes())
    }

    fn current(&self) -> Option<Arc<Leased>> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Returns a guard that a base which needs the cache holds as long as it lives.
    pub(crate) fn join(&self) -> Option<Arc<Leased>> {
        let mut current = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        current.upgrade().or_else(|| {
            let Lease { limit_bytes, held } = (self.lease)()?;
            let leased = Arc::new(Leased { clusters: ClusterCache::new(limit_bytes), _held: held });
            *current = Arc::downgrade(&leased);
            Some(leased)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_lent_as_long_as_it_is_needed() {
        let held = Arc::new(());
        let lent = Arc::clone(&held);
        let cache = Cache::leased(move || {
            let room = Arc::strong_count(&lent) < 4;
            room.then(|| Lease { limit_bytes: 1 << 20, held: Box::new(Arc::clone(&lent)) })
        });
        assert_eq!((cache.limit_bytes(), Arc::strong_count(&held)), (0, 2));
        let first = cache.join().expect("memory");
        let second = cache.join().expect("memory");
        assert_eq!((cache.limit_bytes(), Arc::strong_count(&held)), (1 << 20, 3));
        drop(first);
        assert_eq!(Arc::strong_count(&held), 3);
        drop(second);
        assert_eq!((cache.limit_bytes(), Arc::strong_count(&held)), (0, 2));
        let others = [held.clone(), held.clone()];
        assert!(cache.join().is_none());
        drop(others);
        assert!(cache.join().is_some());
    }
}
