//! The pages that the store's benches write: from files, or from heaps of programs that the bench
//! starts.

use std::{ops::Deref, path::PathBuf};

use anyhow::ensure;
use pagefold_codec::{PAGE_SIZE, Page, same_filled};

use crate::{files, follow::follow_all, recipe::heaps};

/// Pages in one allocation that begins at a page boundary, as `O_DIRECT` requires.
pub struct Pages {
    bytes: Vec<u8>,
    start: usize,
    count: usize,
}

impl Pages {
    /// Makes `count` pages of zeros.
    pub fn new(count: usize) -> Self {
        let bytes = vec![0u8; (count + 1) * PAGE_SIZE];
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        Self { bytes, start, count }
    }

    /// Returns the pages.
    #[expect(clippy::should_implement_trait, reason = "it is not a conversion")]
    pub fn as_mut(&mut self) -> &mut [Page] {
        &mut self.bytes[self.start..].as_chunks_mut().0[..self.count]
    }
}

impl Deref for Pages {
    type Target = [Page];

    fn deref(&self) -> &[Page] {
        &self.bytes[self.start..].as_chunks().0[..self.count]
    }
}

/// Pages with the name that cases use for them.
pub struct Data {
    /// The name.
    pub name: String,
    /// The pages.
    pub pages: Pages,
}

/// Maximum pages read of a heap: 128 MiB.
const HEAP_PAGES: usize = 32768;

/// Returns the data of `paths`, each with 32 to `pages_max` pages that are not same-filled. Without
/// paths, starts programs and returns their heaps.
pub fn gather(paths: &[PathBuf], pages_max: usize) -> anyhow::Result<Vec<Data>> {
    let kinds = if paths.is_empty() { follow_all(heaps()?.iter(), HEAP_PAGES) } else { files::named(paths)? };
    ensure!(!kinds.is_empty(), "no heap to take pages from; name files with --data");
    kinds.into_iter().map(|(name, bytes)| select(name, bytes.as_chunks().0, pages_max)).collect()
}

/// Keeps pages that are not same-filled, spread evenly over all of them. Their number is a multiple
/// of 32, the largest request.
fn select(name: String, all: &[Page], pages_max: usize) -> anyhow::Result<Data> {
    let mixed: Vec<&Page> = all.iter().filter(|page| same_filled(page).is_none()).collect();
    let count = mixed.len().min(pages_max) / 32 * 32;
    ensure!(count > 0, "{name} has fewer than 32 pages that are not same-filled");
    let mut pages = Pages::new(count);
    for (at, page) in pages.as_mut().iter_mut().enumerate() {
        *page = *mixed[at * mixed.len() / count];
    }
    Ok(Data { name, pages })
}

/// Concatenates the pages of all kinds.
pub fn mixed(kinds: &[Data]) -> Data {
    let mut pages = Pages::new(kinds.iter().map(|data| data.pages.len()).sum());
    let all = kinds.iter().flat_map(|data| &*data.pages);
    pages.as_mut().iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    let names: Vec<&str> = kinds.iter().map(|data| &*data.name).collect();
    Data { name: names.join("+"), pages }
}

/// Returns a page of the data, which repeats.
pub fn page_of(data: &Data, number: u64) -> &Page {
    &data.pages[(number % data.pages.len() as u64) as usize]
}
