//! `pleat`, the dense page codec: matches, and prefix codes whose tables a store's pages share. The
//! format is in `docs/pleat.md`, the designs tried in `docs/log/pleat.md`.
//!
//! ```text
//! train:    sample pages -> dictionary, token codes, literal codes    (once per store)
//! compress: page -> sequences -> symbols and extra bits -> the cheapest token and literal set,
//!           or a literal code for this page -> bit streams
//! decode:   literals first, all together, on some machines during the first sequences; then all
//!           sequences, a token with its extra bits each; then two copies per sequence
//! ```

mod bits;
mod builds;
mod decode;
mod encode;
mod format;
mod huffman;
mod isa;
mod lanes;
mod literals;
mod own;
mod parse;
mod places;
mod sequences;
#[cfg(target_arch = "x86_64")]
mod sixteen;
mod tables;
#[cfg(test)]
mod tests;
mod train;
mod window;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::Arc;

pub use tables::PleatTables;
use window::Window;

use crate::{Codec, CodecId, Corrupt, Page, Stream, StreamError, Tables};

/// The dense page codec.
#[derive(Clone, Debug)]
pub struct Pleat {
    tables: Arc<PleatTables>,
}

impl Pleat {
    /// Returns the codec with the given tables; it decodes only objects made with the same tables.
    pub fn with_tables(tables: Arc<PleatTables>) -> Self {
        Self { tables }
    }

    /// Returns its tables.
    pub fn tables(&self) -> &Arc<PleatTables> {
        &self.tables
    }
}

impl Default for Pleat {
    /// Returns the codec with the built-in tables.
    fn default() -> Self {
        Self::with_tables(PleatTables::builtin())
    }
}

impl Codec for Pleat {
    fn id(&self) -> CodecId {
        CodecId::Pleat
    }

    fn name(&self) -> String {
        "pleat".to_owned()
    }

    fn tables(&self) -> Option<Tables> {
        Some(Tables::Pleat(Arc::clone(&self.tables)))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(PleatStream::new(Arc::clone(&self.tables), builds::Shims::best())))
    }
}

struct PleatStream {
    window: Window,
    encoder: Box<encode::Scratch>,
    decoder: Box<decode::Scratch>,
    tables: Arc<PleatTables>,
    shims: builds::Shims,
}

/// Returns a stream of each build that this CPU can run.
#[cfg(any(test, fuzzing))]
pub(crate) fn streams_of_every_build(tables: &Arc<PleatTables>) -> Vec<Box<dyn Stream>> {
    builds::Shims::every()
        .map(|shims| Box::new(PleatStream::new(Arc::clone(tables), shims)) as Box<dyn Stream>)
        .collect()
}

impl PleatStream {
    fn new(tables: Arc<PleatTables>, shims: builds::Shims) -> Self {
        Self {
            window: tables.window.clone(),
            encoder: Box::new(encode::Scratch::new()),
            decoder: Box::new(decode::Scratch::new()),
            tables,
            shims,
        }
    }
}

impl Stream for PleatStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.window.set_page(page);
        (self.shims.encode)(&self.tables, &self.window, &mut self.encoder, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        (self.shims.decode)(&self.tables, object, &mut self.window, &mut self.decoder, page)
    }

    fn set_tables(&mut self, tables: &Tables) {
        let Tables::Pleat(tables) = tables else { return };
        let before = self.tables.dictionary_bytes();
        self.window.set_dictionary(&tables.window, before.max(tables.dictionary_bytes()));
        self.tables = Arc::clone(tables);
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of::<encode::Scratch>() + size_of::<decode::Scratch>() + window::SIZE
    }
}
