//! A pool with one disk, for tests.

use std::{ops::Deref, sync::Arc, time::Duration};

use crate::{
    Disk, Error, ExportedDisk, ImportedPool, Pool, PoolConfig, Slot, Stats, entry::Entry, limit::Budget, streams::Plan,
};

pub(crate) struct One {
    disk: Disk,
    pool: Pool,
}

impl One {
    pub(crate) fn new(slots: u64, config: PoolConfig) -> Self {
        Self::with_plan(slots, config, Plan::USUAL)
    }

    pub(crate) fn with_plan(slots: u64, config: PoolConfig, plan: Plan) -> Self {
        let pool = Pool::with_plan(config, plan).expect("a small pool");
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

    pub(crate) fn compact_for(&self, time: Duration) -> bool {
        self.pool.compact_for(time)
    }

    pub(crate) fn discard(&self, slot: Slot) -> Result<(), Error> {
        self.disk.discard(slot..slot + 1)
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.pool.core().budget
    }

    pub(crate) fn is_training(&self) -> bool {
        self.pool.core().training.as_ref().is_some_and(|training| training.is_busy())
    }

    pub(crate) fn tables(&self) -> Vec<pagefold_codec::Tables> {
        self.pool.core().training.as_ref().map_or_else(Vec::new, |training| training.tables())
    }

    /// Returns a pool with the same content, made from a stream of this one.
    pub(crate) fn handed_over(&self, config: PoolConfig) -> Self {
        let mut stream = Vec::new();
        self.pool.export(&[ExportedDisk { disk: &self.disk, note: b"" }], &mut stream).expect("a stream");
        let ImportedPool { pool, mut disks } = Pool::import(config, &mut &stream[..]).expect("a pool");
        Self { disk: disks.remove(0).disk, pool }
    }

    /// Changes the slot's entry, as damaged memory would.
    pub(crate) fn change_entry(&self, slot: Slot, change: impl FnOnce(Entry) -> Entry) {
        self.disk.change_entry(slot, change);
    }
}

impl Deref for One {
    type Target = Disk;

    fn deref(&self) -> &Disk {
        &self.disk
    }
}
