//! A pool with one disk.

use std::ops::Deref;

use pagefold_store::{Disk, Error, Pool, PoolConfig, Stats};

pub(crate) struct One {
    pub(crate) disk: Disk,
    pub(crate) pool: Pool,
}

impl One {
    pub(crate) fn new(slots: u64, config: PoolConfig) -> Self {
        let pool = Pool::new(config).expect("a small pool");
        Self { disk: pool.disk(slots).expect("a disk"), pool }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.pool.stats()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.pool.check()
    }

    pub(crate) fn compact(&self) {
        self.pool.compact();
    }

    pub(crate) fn discard(&self, slot: u64) -> Result<(), Error> {
        self.disk.discard(slot..slot.saturating_add(1).max(slot))
    }
}

impl Deref for One {
    type Target = Disk;

    fn deref(&self) -> &Disk {
        &self.disk
    }
}
