//! pagefold's own store as the benches use it: the one file here that knows its interface.

use std::sync::Arc;

use pagefold_codec::{Codec, Page};
use pagefold_store::{Config, Objects, PoolKind, Store};

use crate::load::Slots;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = size_of::<u64>();

/// A store as it is by default.
pub(crate) struct Product(Store);

/// What it holds and spends, as its `Stats` has it.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) compr_data_size: u64,
    pub(crate) mem_used_total: u64,
    pub(crate) table_bytes: u64,
    pub(crate) stream_bytes: u64,
    pub(crate) training_bytes: u64,
    pub(crate) spent_bytes: u64,
    pub(crate) codec_tables: u64,
    pub(crate) trainings: u64,
    pub(crate) trainings_useless: u64,
}

impl Product {
    /// An empty store of `slots` slots.
    pub(crate) fn new(slots: u64, codec: Arc<dyn Codec>) -> anyhow::Result<Self> {
        Ok(Self(Store::new(Config { slots, codec, ..Config::default() })?))
    }

    /// One that does not train the codec's tables.
    pub(crate) fn untrained(slots: u64, codec: Arc<dyn Codec>) -> anyhow::Result<Self> {
        Ok(Self(Store::new(Config { slots, codec, train: false, ..Config::default() })?))
    }

    /// The codec of a store for which none was chosen.
    pub(crate) fn default_codec() -> Arc<dyn Codec> {
        Config::default().codec
    }

    pub(crate) fn discard(&self, slot: u64) -> anyhow::Result<()> {
        Ok(self.0.discard(slot)?)
    }

    /// Moves objects together until no more memory can be given back.
    pub(crate) fn compact(&self) {
        self.0.compact();
    }

    /// Looks the whole store over, with no other thread in it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.0.check().map_err(anyhow::Error::msg)
    }

    pub(crate) fn figures(&self) -> Figures {
        let stats = self.0.stats();
        Figures {
            compr_data_size: stats.compr_data_size,
            mem_used_total: stats.mem_used_total,
            table_bytes: stats.table_bytes,
            stream_bytes: stats.stream_bytes,
            training_bytes: stats.training_bytes,
            spent_bytes: stats.spent_bytes,
            codec_tables: stats.codec_tables,
            trainings: stats.trainings,
            trainings_useless: stats.trainings_useless,
        }
    }
}

impl Slots for Product {
    fn write_slot(&self, slot: u64, page: &Page) -> anyhow::Result<()> {
        Ok(self.0.write(slot, page)?)
    }

    fn read_slot(&self, slot: u64, page: &mut Page) -> anyhow::Result<()> {
        Ok(self.0.read(slot, page)?)
    }
}

/// The store's objects without the store around them.
pub(crate) struct ProductHeap(Objects);

/// An object of a [`ProductHeap`].
pub(crate) use pagefold_store::Object as ProductObject;

impl ProductHeap {
    /// An empty heap for `objects` objects at a time.
    pub(crate) fn new(objects: u64) -> anyhow::Result<Self> {
        Ok(Self(Objects::new(PoolKind::Mosaic, objects)?))
    }

    /// Makes an object of `len_bytes` whose bytes are unspecified.
    pub(crate) fn room(&self, len_bytes: usize) -> Option<ProductObject> {
        self.0.room(len_bytes)
    }

    /// Makes an object of `bytes`.
    pub(crate) fn put(&self, bytes: &[u8]) -> Option<ProductObject> {
        self.0.put(bytes)
    }

    pub(crate) fn remove(&self, object: ProductObject) {
        self.0.remove(object);
    }

    /// All memory that it holds.
    pub(crate) fn spent_bytes(&self) -> u64 {
        self.0.spent_bytes()
    }
}
