//! pagefold's store for the benches: only this file uses the store's interface.

use std::{fs::File, sync::Arc};

use pagefold_codec::{Codec, Fold, Page};
use pagefold_store::{Disk, Error, Pool, PoolConfig};

use crate::load::{Slots, Stored};

/// Called at the start of a bench that reads the process's memory.
pub(crate) use pagefold_store::keep_no_large_blocks;

/// The name of the product's store in figures of memory, after its memory layout.
pub(crate) const MOSAIC: &str = "mosaic";

/// Size of an entry.
pub(crate) const ENTRY_BYTES: usize = size_of::<u64>();

/// A pool with one disk.
pub(crate) struct Product {
    pub(crate) disk: Disk,
    pub(crate) pool: Pool,
}

impl Product {
    /// Makes an empty disk of `slots` slots.
    pub(crate) fn new(slots: u64, codec: Arc<dyn Codec>) -> anyhow::Result<Self> {
        Self::with(slots, PoolConfig::default().codec(codec))
    }

    fn with(slots: u64, config: PoolConfig) -> anyhow::Result<Self> {
        let pool = Pool::new(config)?;
        Ok(Self { disk: pool.disk(slots)?, pool })
    }

    /// Makes an empty disk whose pool spends at most `limit_bytes`.
    pub(crate) fn limited(slots: u64, codec: Arc<dyn Codec>, limit_bytes: u64) -> anyhow::Result<Self> {
        Self::with(slots, PoolConfig::default().codec(codec).memory_limit(limit_bytes))
    }

    /// Makes a disk whose pool is in a file in memory.
    pub(crate) fn kept_in(slots: u64, codec: Arc<dyn Codec>, file: File) -> anyhow::Result<Self> {
        Self::with(slots, PoolConfig::default().codec(codec).kept_in(file))
    }

    /// Writes a page. Returns false if the limit leaves no room for it.
    pub(crate) fn write_or_refuse(&self, slot: u64, page: &Page) -> anyhow::Result<bool> {
        match self.disk.write(slot, page) {
            Ok(()) => Ok(true),
            Err(Error::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the default codec of a pool.
    pub(crate) fn default_codec() -> Arc<dyn Codec> {
        Arc::new(Fold)
    }

    pub(crate) fn discard(&self, slot: u64) -> anyhow::Result<()> {
        Ok(self.disk.discard(slot..slot + 1)?)
    }

    /// Checks the whole pool. No other thread may use it during that.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.pool.check().map_err(anyhow::Error::msg)
    }
}

impl Slots for Product {
    fn write_slot(&self, slot: u64, page: &Page) -> anyhow::Result<()> {
        Ok(self.disk.write(slot, page)?)
    }

    fn read_slot(&self, slot: u64, page: &mut Page) -> anyhow::Result<()> {
        Ok(self.disk.read(slot, page).map(drop)?)
    }
}

impl Stored for Product {
    fn bytes(&self) -> anyhow::Result<(u64, u64)> {
        let stats = self.pool.stats();
        Ok((stats.compr_data_size, stats.spent_bytes))
    }
}

/// A pool with any number of disks, whose slots are numbered consecutively: the first disk's, then
/// the second's, and so on.
pub(crate) struct ProductDisks {
    disks: Vec<Disk>,
    slots_each: u64,
    pub(crate) pool: Pool,
}

impl ProductDisks {
    /// Makes a pool without disks. Disks added later have `slots_each` slots.
    pub(crate) fn new(slots_each: u64, codec: Arc<dyn Codec>) -> anyhow::Result<Self> {
        Ok(Self { disks: Vec::new(), slots_each, pool: Pool::new(PoolConfig::default().codec(codec))? })
    }

    pub(crate) fn add(&mut self) -> anyhow::Result<()> {
        self.disks.push(self.pool.disk(self.slots_each)?);
        Ok(())
    }

    /// Drops the last disk.
    pub(crate) fn remove(&mut self) {
        self.disks.pop();
    }

    /// Drops all disks.
    pub(crate) fn clear(&mut self) {
        self.disks = Vec::new();
    }

    /// Returns the bytes of all disks' tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.disks.iter().map(|disk| disk.stats().table_bytes).sum()
    }

    /// Checks the whole pool. No other thread may use it during that.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.pool.check().map_err(anyhow::Error::msg)
    }

    fn at(&self, slot: u64) -> (&Disk, u64) {
        (&self.disks[(slot / self.slots_each) as usize], slot % self.slots_each)
    }
}

impl Slots for ProductDisks {
    fn write_slot(&self, slot: u64, page: &Page) -> anyhow::Result<()> {
        let (disk, slot) = self.at(slot);
        Ok(disk.write(slot, page)?)
    }

    fn read_slot(&self, slot: u64, page: &mut Page) -> anyhow::Result<()> {
        let (disk, slot) = self.at(slot);
        Ok(disk.read(slot, page).map(drop)?)
    }
}
