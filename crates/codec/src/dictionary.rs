//! Bytes that pages of one store have in common, given to an encoder and a decoder beforehand.

use std::sync::Arc;

use crate::{Codec, PAGE_SIZE, Page};

/// Sizes of dictionary that training tries. Matches in a dictionary cost a page more than matches in the page, and a large
/// one drives the page out of the first-level cache, so more is not always better.
const SIZES: [usize; 3] = [16 << 10, 60 << 10, 110 << 10];

/// A dictionary is worth its memory and time if pages become smaller at least by this share: one in 50.
const WORTH: usize = 50;

/// One sample page of this many is held out: dictionaries are made from the others and judged on these.
const HELD_OUT: usize = 8;

/// Fewer sample pages than this say nothing.
const SAMPLE_LEAST: usize = 64;

/// A dictionary. It belongs to a store: objects made with it can be decoded with it only.
#[derive(Debug, PartialEq, Eq)]
pub struct Dictionary {
    bytes: Vec<u8>,
    id: u32,
}

impl Dictionary {
    /// A dictionary of these bytes: what [`train`](Self::train) found, read back, or any bytes likely to be in pages.
    pub fn new(bytes: Vec<u8>) -> Self {
        let id = fnv1a(&bytes);
        Self { bytes, id }
    }

    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A number that tells dictionaries apart: FNV-1a of the content. Equal content has an equal id, so a dictionary that
    /// was kept beside its objects can be known again.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The dictionary with which the codec that `with` makes of it compresses pages like those of `sample` best; `None` if
    /// none helps.
    ///
    /// Candidates are those that libzstd trains (`ZDICT_trainFromBuffer`, which may return far less than asked for), and
    /// plain sample pages spread over the sample, both of several sizes. They are made from seven eighths of the sample and judged on the
    /// rest: it helps if they become at least a fiftieth smaller than with `plain`. Takes seconds; not for the hot path.
    pub fn train<P: Codec, C: Codec>(
        sample: &[&Page],
        plain: &P,
        with: impl Fn(Arc<Dictionary>) -> C,
    ) -> Option<Arc<Dictionary>> {
        if sample.len() < SAMPLE_LEAST {
            return None;
        }
        let (held_out, training): (Vec<_>, Vec<_>) =
            sample.iter().copied().enumerate().partition(|(index, _)| index % HELD_OUT == HELD_OUT - 1);
        let training: Vec<&Page> = training.into_iter().map(|(_, page)| page).collect();
        let bytes_of = |codec: &dyn Codec| {
            let mut stream = codec.stream().ok()?;
            let mut out = [0; PAGE_SIZE];
            Some(held_out.iter().map(|(_, page)| stream.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum::<usize>())
        };
        let (bytes, dictionary) = candidates(&training)
            .into_iter()
            .filter_map(|bytes| {
                let dictionary = Arc::new(Dictionary::new(bytes));
                Some((bytes_of(&with(dictionary.clone()))?, dictionary))
            })
            .min_by_key(|(bytes, _)| *bytes)?;
        let plain = bytes_of(plain)?;
        (bytes <= plain - plain / WORTH).then_some(dictionary)
    }
}

fn candidates(training: &[&Page]) -> Vec<Vec<u8>> {
    let all: Vec<u8> = training.iter().flat_map(|page| page.iter().copied()).collect();
    let sizes = vec![PAGE_SIZE; training.len()];
    let mut candidates = Vec::new();
    for size in SIZES {
        let mut trained = vec![0; size];
        if let Ok(len) = zstd_safe::train_from_buffer(trained.as_mut_slice(), &all, &sizes) {
            trained.truncate(len);
            candidates.push(trained);
        }
        let count = (size / PAGE_SIZE).min(training.len());
        let spread = (0..count).map(|index| training[index * training.len() / count]);
        candidates.push(spread.flat_map(|page| page.iter().copied()).collect());
    }
    candidates
}

/// FNV-1a, 32 bits (Fowler, Noll, Vo; IETF draft-eastlake-fnv).
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zstd;

    fn zstd() -> Zstd {
        Zstd::new(1).unwrap()
    }

    fn train(pages: &[Page]) -> Option<Arc<Dictionary>> {
        let sample: Vec<&Page> = pages.iter().collect();
        Dictionary::train(&sample, &zstd(), |dictionary| zstd().with_dictionary(dictionary))
    }

    /// Pages of noise, each with three of sixteen 512-byte pieces that they share.
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

    #[test]
    fn what_pages_share_is_found_and_makes_them_smaller() {
        let pages = alike();
        let dictionary = train(&pages).expect("pages share a third");
        let codec = zstd().with_dictionary(dictionary.clone());
        assert_eq!(codec.name(), "zstd-1-dict");
        let (mut out, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let mut stream = codec.stream().unwrap();
        let len = stream.compress(&pages[7], &mut out).unwrap();
        assert!(len < PAGE_SIZE * 3 / 4, "{len} bytes");
        // Another stream of the same codec decodes it; one without the dictionary does not.
        codec.stream().unwrap().decompress(&out[..len], &mut back).unwrap();
        assert_eq!(back, pages[7]);
        let without = zstd().stream().unwrap().decompress(&out[..len], &mut back);
        assert!(without.is_err() || back != pages[7]);
        assert_eq!(dictionary.id(), Dictionary::new(dictionary.bytes().to_vec()).id());
    }

    #[test]
    fn pages_that_share_nothing_get_no_dictionary() {
        let mut state = 5u64;
        let noise: Vec<Page> = (0..256)
            .map(|_| {
                std::array::from_fn(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
            })
            .collect();
        assert_eq!(train(&noise), None);
        assert_eq!(train(&[[1; PAGE_SIZE]; 3]), None, "three pages are no sample");
    }
}
