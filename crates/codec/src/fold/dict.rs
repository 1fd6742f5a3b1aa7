//! `fold-dict`: `fold` with data that a store's pages share: bytes before every page, tokens, and
//! palettes.

use std::sync::Arc;

use super::{
    BACK, Decoder, Encoder, FIXED, FRONT, Isa,
    shared::{FoldTables, REACH, Trained},
};
use crate::{Codec, CodecId, Corrupt, PAGE_SIZE, Page, Stream, StreamError, Tables};

/// The fast page codec with tables that a store trains.
#[derive(Clone, Debug, Default)]
pub struct FoldDict {
    tables: Arc<FoldTables>,
}

impl FoldDict {
    /// Returns the codec with these tables. It decodes only objects made with the same tables. The
    /// default has none, for a store that trains some later: its objects are those of
    /// [`Fold`](crate::Fold).
    pub fn with_tables(tables: Arc<FoldTables>) -> Self {
        Self { tables }
    }
}

impl Codec for FoldDict {
    fn id(&self) -> CodecId {
        CodecId::Fold
    }

    fn name(&self) -> String {
        "fold-dict".to_owned()
    }

    fn tables(&self) -> Option<Tables> {
        Some(Tables::Fold(Arc::clone(&self.tables)))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(FoldDictStream::new(Isa::of_this_cpu(), Arc::clone(&self.tables))))
    }
}

pub(super) struct FoldDictStream {
    pub(super) encoder: Box<Encoder>,
    decoder: Box<Decoder>,
    tables: Arc<FoldTables>,
    /// Zeros, the dictionary once loaded, a page after it, and the room around them that the
    /// encoder needs.
    window: Box<[u8]>,
    is_loaded: bool,
}

impl FoldDictStream {
    pub(super) fn new(isa: Isa, tables: Arc<FoldTables>) -> Self {
        Self {
            encoder: Encoder::new(isa),
            decoder: Decoder::new(isa, &FIXED),
            tables,
            window: vec![0; FRONT + REACH + PAGE_SIZE + BACK].into_boxed_slice(),
            is_loaded: false,
        }
    }

    #[inline]
    fn load(&mut self) {
        if !self.is_loaded {
            let trained = self.tables.trained();
            self.decoder.set_format(trained.map_or(&FIXED, |trained| &trained.format));
            if let Some((dictionary, _)) = trained.and_then(|trained| trained.dictionary.as_ref()) {
                let (zeros, rest) = self.window[FRONT..].split_at_mut(REACH - dictionary.bytes().len());
                zeros.fill(0);
                rest[..dictionary.bytes().len()].copy_from_slice(dictionary.bytes());
            }
            self.is_loaded = true;
        }
    }
}

impl Stream for FoldDictStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.load();
        match self.tables.trained() {
            Some(Trained { format, dictionary: Some((_, starts)), .. }) => {
                self.encoder.encode_with::<REACH>(format, starts, &mut self.window, page, out)
            }
            trained => {
                let format = trained.map_or(&FIXED, |trained| &trained.format);
                self.encoder.encode(format, &mut self.window[REACH..], page, out)
            }
        }
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.load();
        match self.tables.trained() {
            Some(Trained { format, dictionary: Some(_), .. }) => {
                self.decoder.decode_after::<REACH>(format, object, &mut self.window[FRONT..], page)
            }
            trained => self.decoder.decode(trained.map_or(&FIXED, |trained| &trained.format), object, page),
        }
    }

    fn set_tables(&mut self, tables: &Tables) {
        if let Tables::Fold(tables) = tables {
            self.tables = Arc::clone(tables);
            self.is_loaded = false;
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.encoder.memory_bytes() + self.decoder.memory_bytes() + self.window.len()
    }
}
