//! Chunks in memory.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The chunks that were read last stay in memory, up to this many bytes.
const RECENT_BYTES: usize = 16 << 20;

pub(crate) type Bytes = Arc<[u8]>;

/// The chunks that were used last.
#[derive(Default)]
pub(crate) struct Recent {
    chunks: HashMap<usize, (u64, Bytes)>,
    order: BTreeMap<u64, usize>,
    bytes: usize,
    turn: u64,
}

impl Recent {
    pub(crate) fn has(&self, chunk: usize) -> bool {
        self.chunks.contains_key(&chunk)
    }

    pub(crate) fn get(&mut self, chunk: usize) -> Option<Bytes> {
        let (turn, bytes) = self.chunks.get_mut(&chunk)?;
        self.order.remove(turn);
        self.turn += 1;
        *turn = self.turn;
        self.order.insert(self.turn, chunk);
        Some(Arc::clone(bytes))
    }

    pub(crate) fn add(&mut self, chunk: usize, bytes: Bytes) {
        self.turn += 1;
        self.bytes += bytes.len();
        self.order.insert(self.turn, chunk);
        if let Some((turn, before)) = self.chunks.insert(chunk, (self.turn, bytes)) {
            self.order.remove(&turn);
            self.bytes -= before.len();
        }
        while self.bytes > RECENT_BYTES {
            let Some((_, coldest)) = self.order.pop_first() else { break };
            self.bytes -= self.chunks.remove(&coldest).map_or(0, |(_, bytes)| bytes.len());
        }
    }
}
