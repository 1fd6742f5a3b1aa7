//! LZ4 with a dictionary: blocks whose matches may begin in bytes that lie before the page (lz4's `LZ4_loadDict` and
//! `LZ4_decompress_safe_usingDict`; the block format is the same).
//!
//! ```text
//! window: the dictionary's end, then the page          table: the last place in the dictionary of each hash of 4 bytes
//! copy the table; then, as LZ4 is: look up 4 bytes, write literals and match, go on behind the match
//! ```

use std::{fmt, sync::Arc};

use lzzzz::lz4;

use crate::{Codec, CodecId, Corrupt, Dictionary, PAGE_SIZE, Page, Stream, StreamError};

/// Bytes of a dictionary that matches of a page can reach: positions of the window, and so offsets, fit 16 bits.
const REACH: usize = (1 << 16) - PAGE_SIZE;

const TABLE_BITS: u32 = 14;
type Table = [u16; 1 << TABLE_BITS];

/// The format's rules for a block's end: the last match begins 12 bytes before it or earlier, and the last 5 bytes are
/// literals.
const LAST_MATCH: usize = 12;
const LAST_LITERALS: usize = 5;

const LEAST: usize = 4;

/// The step to the next position grows by one with each so many bytes, as a power of two, in which nothing was found.
const SKIP_BITS: u32 = 6;

/// LZ4 with a dictionary.
#[derive(Clone)]
pub struct Lz4Dict {
    dictionary: Arc<Dictionary>,
    /// Where the dictionary's sequences are, in the window. It is found once, and copied for each page.
    table: Arc<Table>,
}

impl Lz4Dict {
    /// LZ4 with the last 60 KiB of `dictionary`. Its objects can be decoded with that dictionary only, and do not name it:
    /// whoever keeps them keeps the dictionary and its id.
    pub fn new(dictionary: Arc<Dictionary>) -> Self {
        let mut table = [0; 1 << TABLE_BITS];
        for (at, sequence) in reached(&dictionary).windows(LEAST).enumerate() {
            if let Some(sequence) = sequence.first_chunk() {
                table[hash(u32::from_le_bytes(*sequence))] = at as u16;
            }
        }
        Self { dictionary, table: Arc::new(table) }
    }
}

fn reached(dictionary: &Dictionary) -> &[u8] {
    let bytes = dictionary.bytes();
    &bytes[bytes.len().saturating_sub(REACH)..]
}

impl fmt::Debug for Lz4Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lz4Dict").field("dictionary", &self.dictionary.id()).finish_non_exhaustive()
    }
}

impl Codec for Lz4Dict {
    fn id(&self) -> CodecId {
        CodecId::Lz4
    }

    fn name(&self) -> String {
        "lz4-dict".to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        let mut window = reached(&self.dictionary).to_vec();
        let start = window.len();
        window.resize(start + PAGE_SIZE, 0);
        Ok(Box::new(Lz4DictStream {
            codec: self.clone(),
            window,
            start,
            table: Box::new([0; 1 << TABLE_BITS]),
            block: Vec::with_capacity(crate::lz4::compress_bound(PAGE_SIZE)),
        }))
    }
}

struct Lz4DictStream {
    codec: Lz4Dict,
    /// What matches can reach of the dictionary, then the page.
    window: Vec<u8>,
    /// Where the page begins in the window.
    start: usize,
    table: Box<Table>,
    block: Vec<u8>,
}

impl Stream for Lz4DictStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.window[self.start..].copy_from_slice(page);
        self.table.copy_from_slice(&*self.codec.table);
        self.block.clear();
        let window = &self.window[..];
        let (mut anchor, mut at) = (self.start, self.start.max(1));
        while at + LAST_MATCH <= window.len() {
            let sequence = load4(window, at)?;
            let from = usize::from(std::mem::replace(&mut self.table[hash(sequence)], at as u16));
            if load4(window, from) != Some(sequence) || from >= at {
                at += 1 + ((at - anchor) >> SKIP_BITS);
                continue;
            }
            let (new, old) = (&window[at..window.len() - LAST_LITERALS], &window[from..]);
            let len = new.iter().zip(old).take_while(|(new, old)| new == old).count();
            write(&mut self.block, &window[anchor..at], Some((at - from, len)));
            at += len;
            anchor = at;
            if self.block.len() > out.len() {
                return None;
            }
        }
        write(&mut self.block, &window[anchor..], None);
        out.get_mut(..self.block.len())?.copy_from_slice(&self.block);
        Some(self.block.len())
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match lz4::decompress_with_dict(object, page, reached(&self.codec.dictionary)) {
            Ok(PAGE_SIZE) => Ok(()),
            Ok(_) => Err(Corrupt { what: "lz4 block is shorter than a page" }),
            Err(_) => Err(Corrupt { what: "malformed lz4 block" }),
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.window.capacity() + size_of::<Table>() + self.block.capacity()
    }
}

fn hash(sequence: u32) -> usize {
    (sequence.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS)) as usize
}

#[inline(always)]
fn load4(window: &[u8], at: usize) -> Option<u32> {
    window.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes))
}

/// Writes a sequence: literals, and a match of offset and length but for the last.
#[inline(always)]
fn write(block: &mut Vec<u8>, literals: &[u8], repeat: Option<(usize, usize)>) {
    let code = repeat.map_or(0, |(_, len)| len - LEAST);
    block.push((literals.len().min(15) << 4 | code.min(15)) as u8);
    continued(block, literals.len());
    block.extend_from_slice(literals);
    if let Some((offset, _)) = repeat {
        block.extend_from_slice(&(offset as u16).to_le_bytes());
        continued(block, code);
    }
}

/// What of a length its 4 bits of the token do not hold.
#[inline(always)]
fn continued(block: &mut Vec<u8>, len: usize) {
    if let Some(mut rest) = len.checked_sub(15) {
        while rest >= 255 {
            block.push(255);
            rest -= 255;
        }
        block.push(rest as u8);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A page made of pieces of the dictionary and of other bytes.
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
            let codec = Lz4Dict::new(Arc::new(Dictionary::new(dictionary)));
            let mut out = [0; 2 * PAGE_SIZE];
            let len = codec.stream().unwrap().compress(&page, &mut out).unwrap();
            prop_assert!(len <= crate::lz4::compress_bound(PAGE_SIZE));
            let mut back = [0; PAGE_SIZE];
            codec.stream().unwrap().decompress(&out[..len], &mut back).unwrap();
            prop_assert_eq!(back, page);
            prop_assert_eq!(codec.stream().unwrap().compress(&page, &mut vec![0; len - 1]), None);
        }

        #[test]
        fn any_bytes_give_a_page_or_an_error(object in prop::collection::vec(any::<u8>(), 0..200)) {
            let codec = Lz4Dict::new(Arc::new(Dictionary::new(vec![7; 1000])));
            let _ = codec.stream().unwrap().decompress(&object, &mut [0; PAGE_SIZE]);
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
        let codec = Lz4Dict::new(Arc::new(Dictionary::new(dictionary.clone())));
        let len = codec.stream().unwrap().compress(page, &mut [0; PAGE_SIZE]).unwrap();
        assert!(len < 100, "{len} bytes");
    }
}
