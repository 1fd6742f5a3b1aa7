//! A pool's objects without a store around them.
#![allow(unsafe_code)] // keeps the pool's promises by ownership

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::PAGE_SIZE;

use crate::{
    budget::Budget,
    pool::{Location, Pool, PoolKind},
};

/// Objects of 1 to 4096 bytes in a pool, which nothing moves. For measuring pools: a store does more with the same pool.
///
/// ```
/// use pagefold_store::{Objects, PoolKind};
///
/// let objects = Objects::new(PoolKind::Mosaic, 1000)?;
/// let object = objects.put(b"sixteen bytes...").expect("memory");
/// let mut back = [0; 16];
/// objects.get(&object, &mut back);
/// assert_eq!(&back, b"sixteen bytes...");
/// objects.remove(object);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Objects {
    pool: Box<dyn Pool>,
    number: u64,
}

/// An object of [`Objects`]. It is not given back when dropped.
#[derive(Debug)]
pub struct Object {
    at: Location,
    len_bytes: usize,
    objects: u64,
}

impl Objects {
    /// An empty pool with room for `objects` objects at a time.
    pub fn new(kind: PoolKind, objects: u64) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let pool = kind.make(objects, 1, Arc::new(Budget::new(u64::MAX)))?;
        Ok(Self { pool, number: MADE.fetch_add(1, Relaxed) })
    }

    /// Makes an object of `len_bytes` whose bytes are unspecified. `None`: there is no memory, or no object has this
    /// length.
    pub fn room(&self, len_bytes: usize) -> Option<Object> {
        let at = (1..=PAGE_SIZE).contains(&len_bytes).then(|| self.pool.alloc(len_bytes, 0).ok())??;
        Some(Object { at, len_bytes, objects: self.number })
    }

    /// Makes an object of `bytes`, as [`room`](Self::room) does.
    pub fn put(&self, bytes: &[u8]) -> Option<Object> {
        let object = self.room(bytes.len())?;
        // SAFETY: just allocated with this length; nobody else knows of it.
        unsafe { self.pool.write(object.at, bytes) };
        Some(object)
    }

    /// Copies the object's bytes to `out`.
    ///
    /// # Panics
    /// If the object is not one of these or `out` has another length.
    pub fn get(&self, object: &Object, out: &mut [u8]) {
        self.assert_own(object);
        assert_eq!(out.len(), object.len_bytes, "the object's length");
        // SAFETY: the object is this pool's and live, as `remove` takes it; nothing writes it after `put`.
        unsafe { self.pool.read(object.at, out) };
    }

    /// Gives the object's memory back.
    ///
    /// # Panics
    /// If the object is not one of these.
    pub fn remove(&self, object: Object) {
        self.assert_own(&object);
        // SAFETY: the object is this pool's, and there is no other like it.
        unsafe { self.pool.free(object.at, object.len_bytes) };
    }

    /// All memory that the pool holds.
    pub fn spent_bytes(&self) -> u64 {
        self.pool.account().held_bytes
    }

    fn assert_own(&self, object: &Object) {
        assert_eq!(object.objects, self.number, "an object of another pool");
    }
}
