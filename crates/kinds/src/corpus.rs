//! One kind of data, split into pages to train on and pages to measure.

use pagefold_codec::{PAGE_SIZE, Page, same_filled};

/// Maximum number of sample pages per kind for training tables: 16 MiB.
const SAMPLE_PAGES: usize = 4096;
/// Default number of pages measured per kind: 8 MiB.
pub const MEASURED_PAGES: usize = 2048;

/// Pages in a block. Even blocks train, odd blocks are measured.
const BLOCK_PAGES: usize = 64;

/// One kind of data. `sample` and `pages` are disjoint.
pub struct Corpus<'a> {
    /// Its name.
    pub name: String,
    /// The pages that tables and dictionaries are trained on.
    pub sample: Vec<&'a Page>,
    /// The pages that are measured. None is same-filled.
    pub pages: Vec<&'a Page>,
    /// Same-filled pages in the odd blocks.
    pub same_pages: usize,
}

impl<'a> Corpus<'a> {
    /// Splits `bytes` into a sample and at most `pages_max` pages, spread evenly.
    pub fn split(name: &str, bytes: &'a [u8], pages_max: usize) -> Self {
        let (all, _) = bytes.as_chunks::<PAGE_SIZE>();
        let block = (all.len() / 8).clamp(1, BLOCK_PAGES);
        let (mut sample, mut pages, mut same_pages) = (Vec::new(), Vec::new(), 0);
        for (index, page) in all.iter().enumerate() {
            let measured = (index / block) % 2 == 1;
            if same_filled(page).is_some() {
                same_pages += usize::from(measured);
            } else if measured {
                pages.push(page);
            } else {
                sample.push(page);
            }
        }
        Self {
            name: name.to_owned(),
            sample: spread(&sample, SAMPLE_PAGES),
            pages: spread(&pages, pages_max),
            same_pages,
        }
    }
}

/// Returns at most `most` of `pages`, evenly spaced.
fn spread<'a>(pages: &[&'a Page], most: usize) -> Vec<&'a Page> {
    let take = pages.len().min(most);
    (0..take).map(|index| pages[index * pages.len() / take]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_and_measured_pages_are_disjoint() {
        let bytes: Vec<u8> =
            (0..1000u32).flat_map(|page| (0..1024u32).flat_map(move |at| (page * 1024 + at).to_le_bytes())).collect();
        let corpus = Corpus::split("numbers", &bytes, 300);
        assert_eq!((corpus.sample.len(), corpus.pages.len(), corpus.same_pages), (512, 300, 0));
        assert!(corpus.sample.iter().all(|page| !corpus.pages.contains(page)));
    }

    #[test]
    fn same_filled_pages_are_counted_apart() {
        let zeros = vec![0; 1024 * PAGE_SIZE];
        let corpus = Corpus::split("zeros", &zeros, 300);
        assert_eq!((corpus.sample.len(), corpus.pages.len(), corpus.same_pages), (0, 0, 512));
    }
}
