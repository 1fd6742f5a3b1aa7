//! LZ4 with a dictionary: blocks whose matches may begin in bytes before the page (lz4's
//! `LZ4_loadDict` and `LZ4_decompress_safe_usingDict`; the block format is the same).
//!
//! ```text
//! window: | dictionary, at most 60 KiB | page |
//!                    <--- offset --- match
//! ```
//!
//! The page is encoded and decoded in this window as plain LZ4 would be.

use std::sync::Arc;

use crate::{
    Codec, CodecId, Corrupt, Lz4Tables, PAGE_SIZE, Page, Stream, StreamError, Tables,
    lz4::{
        Lz4Stream, SHORT, decode,
        encode::encode_after,
        format::Plain,
        table::{AfterDictionary, DictionaryPositions, Positions},
    },
    lz4_tables::REACH,
};

/// LZ4 with a dictionary.
#[derive(Clone, Debug, Default)]
pub struct Lz4Dict {
    tables: Arc<Lz4Tables>,
}

impl Lz4Dict {
    /// Returns the codec with the tables' dictionary. It decodes only objects made with the same
    /// dictionary. The default has no dictionary, for a store that trains one later: its objects
    /// are plain LZ4.
    pub fn with_tables(tables: Arc<Lz4Tables>) -> Self {
        Self { tables }
    }
}

impl Codec for Lz4Dict {
    fn id(&self) -> CodecId {
        CodecId::Lz4
    }

    fn name(&self) -> String {
        "lz4-dict".to_owned()
    }

    fn tables(&self) -> Option<Tables> {
        Some(Tables::Lz4(Arc::clone(&self.tables)))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(Lz4DictStream {
            plain: Lz4Stream { positions: Positions::new() },
            tables: Arc::clone(&self.tables),
            window: vec![0; REACH + PAGE_SIZE].into_boxed_slice(),
            is_loaded: false,
        }))
    }
}

struct Lz4DictStream {
    plain: Lz4Stream,
    tables: Arc<Lz4Tables>,
    /// The dictionary, once loaded, followed by a page.
    window: Box<[u8]>,
    is_loaded: bool,
}

impl Lz4DictStream {
    /// Returns the window, loading the dictionary into it if needed. Returns `None` without a
    /// dictionary.
    #[inline(always)]
    fn load(&mut self) -> Option<(&mut [u8], usize, &DictionaryPositions, &mut Positions)> {
        let (dictionary, positions) = self.tables.loaded.as_ref()?;
        let dictionary = dictionary.bytes();
        let window = &mut self.window[..dictionary.len() + PAGE_SIZE];
        if !self.is_loaded {
            window[..dictionary.len()].copy_from_slice(dictionary);
            self.is_loaded = true;
        }
        Some((window, dictionary.len(), positions, &mut self.plain.positions))
    }
}

impl Stream for Lz4DictStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        let Some((window, dictionary_len, dictionary, positions)) = self.load() else {
            return self.plain.compress(page, out);
        };
        window[dictionary_len..].copy_from_slice(page);
        let mut table = AfterDictionary { page: positions, dictionary, dictionary_len };
        encode_after::<Plain, _>(&mut table, window, dictionary_len, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let Some((window, dictionary_len, ..)) = self.load() else { return self.plain.decompress(object, page) };
        if decode::after(object, window, dictionary_len)? < PAGE_SIZE {
            return Err(SHORT);
        }
        page.copy_from_slice(&window[dictionary_len..]);
        Ok(())
    }

    fn set_tables(&mut self, tables: &Tables) {
        if let Tables::Lz4(tables) = tables {
            self.tables = Arc::clone(tables);
            self.is_loaded = false;
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + Positions::BYTES + self.window.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Dictionary;

    fn codec(dictionary: Vec<u8>) -> Lz4Dict {
        Lz4Dict::with_tables(Arc::new(Lz4Tables::new(Dictionary::new(dictionary))))
    }

    /// A page that mixes pieces of the dictionary with other bytes.
    fn page(dictionary: &[u8], pieces: &[(usize, usize, u8)]) -> Page {
        let bytes: Vec<u8> = pieces
            .iter()
            .cycle()
            .flat_map(|&(from, len, other)| {
                let from = from % dictionary.len().max(1);
                let piece = dictionary[from..].iter().copied().take(len);
                piece.chain((0..other % 23).map(move |at| at.wrapping_mul(other)).chain([other]))
            })
            .take(PAGE_SIZE)
            .collect();
        *bytes.first_chunk().expect("a page")
    }

    proptest! {
        #[test]
        fn round_trip(
            dictionary in prop::collection::vec(any::<u8>(), 0..3000),
            repeat in 1usize..60,
            pieces in prop::collection::vec((any::<usize>(), 0usize..300, any::<u8>()), 1..50),
        ) {
            let dictionary = dictionary.repeat(repeat);
            let page = page(&dictionary, &pieces);
            let codec = codec(dictionary);
            let mut out = [0; 2 * PAGE_SIZE];
            let len = codec.stream().unwrap().compress(&page, &mut out).unwrap();
            prop_assert!(len <= crate::lz4::compress_bound(PAGE_SIZE));
            let mut back = [0; PAGE_SIZE];
            codec.stream().unwrap().decompress(&out[..len], &mut back).unwrap();
            prop_assert_eq!(back, page);
            // liblz4 reads it too.
            let dictionary = codec.tables.dictionary().unwrap().bytes();
            back.fill(0);
            prop_assert_eq!(lzzzz::lz4::decompress_with_dict(&out[..len], &mut back, dictionary), Ok(PAGE_SIZE));
            prop_assert_eq!(back, page);
            prop_assert_eq!(codec.stream().unwrap().compress(&page, &mut vec![0; len - 1]), None);
        }

        /// Decodes liblz4's blocks, and decodes any bytes as liblz4 does.
        #[test]
        fn blocks_are_decoded_as_by_liblz4(
            dictionary in prop::collection::vec(any::<u8>(), 1..3000),
            repeat in 1usize..60,
            pieces in prop::collection::vec((any::<usize>(), 0usize..300, any::<u8>()), 1..50),
            edits in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        ) {
            let dictionary = dictionary.repeat(repeat);
            let page = page(&dictionary, &pieces);
            let codec = codec(dictionary);
            let dictionary = codec.tables.dictionary().unwrap().bytes();
            let mut compressor = lzzzz::lz4::Compressor::with_dict(dictionary).unwrap();
            let mut object = Vec::new();
            compressor.next_to_vec(&page, &mut object, 1).unwrap();
            let mut stream = codec.stream().unwrap();
            let mut back = [0; PAGE_SIZE];
            stream.decompress(&object, &mut back).unwrap();
            prop_assert_eq!(back, page);
            for (at, byte) in edits {
                let at = at % object.len();
                object[at] = byte;
            }
            let mut theirs = [0; PAGE_SIZE];
            let ours = stream.decompress(&object, &mut back);
            if lzzzz::lz4::decompress_with_dict(&object, &mut theirs, dictionary) == Ok(PAGE_SIZE) && ours.is_ok() {
                prop_assert_eq!(back, theirs);
            }
        }

        #[test]
        fn any_bytes_give_a_page_or_an_error(object in prop::collection::vec(any::<u8>(), 0..200)) {
            let codec = codec(vec![7; 1000]);
            let _ = codec.stream().unwrap().decompress(&object, &mut [0; PAGE_SIZE]);
        }
    }

    #[test]
    fn a_block_that_is_a_byte_short_of_a_page_is_refused() {
        let mut stream = codec(vec![7; 1000]).stream().unwrap();
        for (len, is_page) in [(PAGE_SIZE - 1, false), (PAGE_SIZE, true), (PAGE_SIZE + 1, false)] {
            let mut object = vec![0; 1 << 14];
            let length = crate::Lz4Encoder::new().compress(&vec![9; len], &mut object).unwrap();
            assert_eq!(stream.decompress(&object[..length], &mut [0; PAGE_SIZE]).is_ok(), is_page);
        }
    }

    #[test]
    fn a_page_of_the_dictionary_is_a_few_bytes() {
        let mut state = 9u64;
        let dictionary: Vec<u8> = (0..REACH + 5000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let page: &Page = dictionary[9000..].first_chunk().unwrap();
        let codec = codec(dictionary.clone());
        let len = codec.stream().unwrap().compress(page, &mut [0; PAGE_SIZE]).unwrap();
        assert!(len < 100, "{len} bytes");
    }
}
