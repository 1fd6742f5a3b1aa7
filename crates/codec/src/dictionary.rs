//! Dictionaries: bytes that a store's pages have in common, which encoder and decoder know in
//! advance.

use crate::{PAGE_SIZE, Page, pieces};

/// Maximum size in bytes of a trained dictionary.
pub(crate) const LARGEST: usize = 110 << 10;

/// Dictionary sizes that training tries. A match in the dictionary costs more than a match in the
/// page, and a large dictionary evicts the page from the L1 cache, so larger is not always better.
pub(crate) const SIZES: [usize; 3] = [16 << 10, 60 << 10, LARGEST];

/// One in this many sample pages is held out: dictionaries are built from the others and judged on
/// these.
const HELD_OUT: usize = 8;

/// Fewer sample pages than this are not representative.
const SAMPLE_LEAST: usize = 64;

/// A dictionary. It belongs to a store: objects made with it can only be decoded with it.
#[derive(Debug, PartialEq, Eq)]
pub struct Dictionary {
    bytes: Vec<u8>,
    id: u32,
}

impl Dictionary {
    /// Creates a dictionary from these bytes: the saved result of a training, or any bytes that are
    /// likely to occur in pages.
    pub fn new(bytes: Vec<u8>) -> Self {
        let id = fnv1a(&bytes);
        Self { bytes, id }
    }

    /// Returns its content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns a number that distinguishes dictionaries: FNV-1a of the content. Equal contents have
    /// equal ids, so a dictionary that was saved next to its objects can be recognised.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// Splits `sample` into the pages that judge and the pages that dictionaries are built from.
/// Returns `None` if there are too few.
pub(crate) fn held_out<'a>(sample: &[&'a Page]) -> Option<(Vec<&'a Page>, Vec<&'a Page>)> {
    if sample.len() < SAMPLE_LEAST {
        return None;
    }
    let pages = |held_out: bool| {
        let is_held_out = |index: usize| index % HELD_OUT == HELD_OUT - 1;
        let pages = sample.iter().enumerate().filter(move |(index, _)| is_held_out(*index) == held_out);
        pages.map(|(_, page)| *page).collect()
    };
    Some((pages(true), pages(false)))
}

/// Returns candidate dictionaries of these `sizes` or shorter: the pieces that most pages have in
/// common, plain pages spread over `training` and, with the feature `zstd`, those that libzstd
/// trains (`ZDICT_trainFromBuffer`, which may return far less than requested).
pub(crate) fn candidates(training: &[&Page], sizes: &[usize]) -> Vec<Vec<u8>> {
    #[cfg(feature = "zstd")]
    let all: Vec<u8> = training.iter().flat_map(|page| page.iter().copied()).collect();
    let mut candidates = Vec::new();
    for &size in sizes {
        #[cfg(feature = "zstd")]
        candidates.extend(crate::zstd::train::trained_dictionary(&all, size));
        let count = (size / PAGE_SIZE).min(training.len());
        let spread = (0..count).map(|index| training[index * training.len() / count]);
        candidates.push(spread.flat_map(|page| page.iter().copied()).collect());
        candidates.push(pieces::select(training, size));
    }
    candidates
}

/// Returns whether reducing the same pages from `before` to `bytes` justifies new tables or a
/// longer dictionary: 2 % does.
pub(crate) fn worth_it(bytes: u64, before: u64) -> bool {
    bytes * 50 <= before * 49
}

/// FNV-1a, 32 bits (Fowler, Noll, Vo; IETF draft-eastlake-fnv).
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codec, Corrupt, Tables, by_name};

    /// The codecs with dictionaries, each with its name without one.
    const CODECS: &[(&str, &str)] = &[
        ("lz4-dict", "lz4"),
        #[cfg(feature = "zstd")]
        ("zstd-1-dict", "zstd-1"),
        #[cfg(feature = "zstd")]
        ("zstd--7-dict", "zstd--7"),
    ];
    /// Has tokens and palettes in addition to its dictionary. Pages of noise have no object.
    const FOLD: (&str, &str) = ("fold-dict", "fold");

    fn train(name: &str, pages: &[Page]) -> Option<Tables> {
        let sample: Vec<&Page> = pages.iter().collect();
        by_name(name).unwrap().tables().expect("a codec with dictionaries").train_further(&sample)
    }

    /// Pages of noise that each contain three of sixteen shared 512-byte pieces.
    fn alike() -> Vec<Page> {
        let mut state = 3u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let pieces: Vec<Vec<u8>> = (0..16).map(|_| (0..512).map(|_| byte()).collect()).collect();
        (0..512)
            .map(|_| {
                let mut page: Page = std::array::from_fn(|_| byte());
                for place in 0..3 {
                    page[place * 1024..][..512].copy_from_slice(&pieces[usize::from(byte()) % 16]);
                }
                page
            })
            .collect()
    }

    fn noise(pages: usize) -> Vec<Page> {
        let mut state = 5u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..pages).map(|_| std::array::from_fn(|_| byte())).collect()
    }

    fn compressed(codec: &dyn Codec, page: &Page) -> Vec<u8> {
        let mut out = [0; 2 * PAGE_SIZE];
        let len = codec.stream().unwrap().compress(page, &mut out).unwrap();
        out[..len].to_vec()
    }

    #[test]
    fn content_shared_by_pages_is_found_and_makes_them_smaller() {
        let pages = alike();
        for (name, plain) in CODECS.iter().copied().chain([FOLD]) {
            let tables = train(name, &pages).expect("pages share a third");
            let codec = tables.codec();
            assert_eq!(codec.name(), name);
            let object = compressed(&*codec, &pages[7]);
            assert!(object.len() < PAGE_SIZE * 3 / 4, "{name}: {} bytes", object.len());
            // Another stream of the same codec decodes it. A stream without the dictionary does
            // not.
            let mut back = [0; PAGE_SIZE];
            codec.stream().unwrap().decompress(&object, &mut back).unwrap();
            assert_eq!(back, pages[7]);
            let without = by_name(plain).unwrap().stream().unwrap().decompress(&object, &mut back);
            assert!(without.is_err() || back != pages[7], "{name}");
            let dictionary = tables.dictionary().expect("trained");
            let of_dictionary = Dictionary::new(dictionary.bytes().to_vec()).id();
            assert!(tables.id() == of_dictionary || name == "fold-dict", "{name}");
            // Training again on the same pages is not worth it.
            assert!(tables.train_further(&pages.iter().collect::<Vec<_>>()).is_none(), "{name}");
        }
    }

    #[test]
    fn pages_that_share_nothing_get_no_dictionary() {
        for (name, _) in CODECS.iter().copied().chain([FOLD]) {
            assert!(train(name, &noise(256)).is_none(), "{name}");
            assert!(train(name, &[[1; PAGE_SIZE]; 3]).is_none(), "{name}: three pages are no sample");
        }
        let pages = alike();
        assert!(train("lz4-dict", &pages[..SAMPLE_LEAST - 1]).is_none());
        assert!(train("lz4-dict", &pages[..SAMPLE_LEAST]).is_some());
    }

    /// One stream switches between tables, as a store's does, and encodes and decodes like a new
    /// stream of each.
    #[test]
    fn a_stream_is_set_to_other_dictionaries_and_to_none() {
        let (pages, noise) = (alike(), noise(4));
        for &(name, plain) in CODECS {
            let none = by_name(name).unwrap().tables().unwrap();
            let first = train(name, &pages[..256]).unwrap();
            let second = train(name, &pages[300..]).unwrap();
            assert_ne!(first.id(), second.id());
            let mut stream = none.codec().stream().unwrap();
            let before = stream.memory_bytes();
            let (mut out, mut back) = ([0; 2 * PAGE_SIZE], [0; PAGE_SIZE]);
            for round in 0..300 {
                let tables = [&none, &first, &second, &first, &none, &second][round * 7 / 5 % 6];
                stream.set_tables(tables);
                let page = if round % 9 == 0 { &noise[round % 4] } else { &pages[round] };
                let len = stream.compress(page, &mut out).unwrap();
                if round % 10 == 0 {
                    assert!(out[..len] == compressed(&*tables.codec(), page), "{name}, round {round}");
                }
                if tables.id() == 0 {
                    assert!(out[..len] == compressed(&*by_name(plain).unwrap(), page), "{name}, round {round}");
                }
                // An object that does not fit leaves a frame unfinished.
                let _: Option<usize> = stream.compress(page, &mut [0; 50]);
                let other = [&second, &none, &first][round % 3];
                if round % 4 == 0 {
                    stream.set_tables(other);
                    let _: Result<(), Corrupt> = stream.decompress(&out[..len], &mut back);
                    stream.set_tables(tables);
                }
                stream.decompress(&out[..len], &mut back).unwrap();
                assert!(back == *page, "{name}, round {round}");
                assert!(stream.memory_bytes() <= before, "{name}, round {round}");
            }
        }
    }

    #[test]
    fn tables_of_another_kind_change_nothing() {
        let mut page = alike()[0];
        page[PAGE_SIZE / 2..].fill(0);
        let names = &[
            "fold-dict",
            "lz4-dict",
            #[cfg(feature = "zstd")]
            "zstd-1-dict",
            "pleat",
        ];
        for &name in names {
            let codec = by_name(name).unwrap();
            let mut stream = codec.stream().unwrap();
            for &other in names {
                if other != name {
                    stream.set_tables(&by_name(other).unwrap().tables().unwrap());
                }
            }
            let mut out = [0; 2 * PAGE_SIZE];
            let len = stream.compress(&page, &mut out).unwrap();
            assert!(out[..len] == compressed(&*codec, &page), "{name}");
        }
    }

    #[test]
    fn a_fiftieth_is_worth_it() {
        assert!(worth_it(49_000, 50_000) && worth_it(0, 50_000));
        assert!(!worth_it(49_001, 50_000) && !worth_it(50_000, 50_000) && !worth_it(60_000, 50_000));
    }
}
