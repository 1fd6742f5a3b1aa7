//! The content of disks: pages of the data that contain their number and version.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use pagefold_codec::PAGE_SIZE;

use super::{
    pages::{Data, Pages, gather, mixed},
    synthetic::{self, KINDS},
};

/// Bytes at the start of a page: its number and its version, each a little-endian word.
const HEADER_BYTES: usize = 16;

/// The seed and the number of generated pages: 64 MiB.
const SEED: u64 = 38;
const GENERATED_PAGES: usize = 16384;

/// Pages between the data of two versions of a page. A prime, so that versions meet again late.
const VERSION_STRIDE: u64 = 7919;

/// Pages to take data from.
pub struct Content {
    data: Data,
}

impl Content {
    /// Takes pages of `files`, or generates pages like those of an interpreter's heap.
    pub fn new(files: &[PathBuf]) -> anyhow::Result<Self> {
        if !files.is_empty() {
            let mut data = mixed(&gather(files, GENERATED_PAGES * 4)?);
            data.name = data.name.replace(".pages", "");
            return Ok(Self { data });
        }
        let heap = KINDS.iter().find(|(name, _)| *name == "heap").map(|&(_, make)| make);
        let made = heap.map_or_else(Vec::new, |make| synthetic::of_kind(make, SEED, GENERATED_PAGES));
        let mut pages = Pages::new(made.len());
        pages.as_mut().copy_from_slice(&made);
        Ok(Self { data: Data { name: "heap".to_owned(), pages } })
    }

    /// Returns the name of the data.
    pub fn name(&self) -> &str {
        &self.data.name
    }

    fn body(&self, number: u64, version: u32) -> &[u8] {
        let at = (number + u64::from(version) * VERSION_STRIDE) % self.data.pages.len() as u64;
        &self.data.pages[at as usize][HEADER_BYTES..]
    }

    /// Appends a page of a disk.
    pub fn append(&self, number: u64, version: u32, to: &mut Vec<u8>) {
        to.extend(header(number, version));
        to.extend_from_slice(self.body(number, version));
    }

    /// Whether `page` is this page of a disk. Compares all bytes only if `whole`.
    fn is(&self, number: u64, version: u32, page: &[u8], whole: bool) -> bool {
        page[..HEADER_BYTES] == header(number, version)
            && (!whole || page[HEADER_BYTES..] == *self.body(number, version))
    }
}

fn header(number: u64, version: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..].copy_from_slice(&u64::from(version).to_le_bytes());
    header
}

/// The version of each page of a disk: 0 as in the base, one more for each write. A page has a single
/// user at a time, the connection that has a request for it in flight.
pub struct Versions(Vec<AtomicU32>);

impl Versions {
    /// Begins with version 0.
    pub fn new(pages: u64) -> Self {
        Self::from(pages, 0)
    }

    /// Begins with a version of which nothing is written.
    pub fn from(pages: u64, version: u32) -> Self {
        Self((0..pages).map(|_| AtomicU32::new(version)).collect())
    }

    /// Undoes a write that was refused.
    pub fn refuse(&self, first: u64, count: u64) {
        (first..first + count).for_each(|number| {
            self.0[number as usize].fetch_sub(1, Relaxed);
        });
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.0.len() as u64
    }

    /// Appends the next version of `count` pages to `to`.
    pub fn write(&self, content: &Content, first: u64, count: u64, to: &mut Vec<u8>) {
        for number in first..first + count {
            let version = self.0[number as usize].fetch_add(1, Relaxed) + 1;
            content.append(number, version, to);
        }
    }

    /// Returns the number of the first page of `bytes` that is not what was written last.
    pub fn difference(&self, content: &Content, first: u64, bytes: &[u8], whole: bool) -> Option<u64> {
        (first..).zip(bytes.chunks(PAGE_SIZE)).find_map(|(number, page)| {
            let version = self.0[number as usize].load(Relaxed);
            (!content.is(number, version, page, whole)).then_some(number)
        })
    }
}

/// Whether a page is one of the `percent` that a fork changes: spread over the disk, the same for each
/// subject.
pub fn is_changed(number: u64, percent: u32) -> bool {
    synthetic::Random::new(number).next() % 100 < u64::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_a_stale_and_a_damaged_page_are_found() {
        let content = Content::new(&[]).unwrap();
        let versions = Versions::new(4);
        let mut old = Vec::new();
        versions.write(&content, 1, 2, &mut old);
        assert_eq!(versions.difference(&content, 1, &old, true), None);
        assert_eq!(versions.difference(&content, 2, &old, false), Some(2));
        let mut new = Vec::new();
        versions.write(&content, 2, 1, &mut new);
        assert_eq!(versions.difference(&content, 1, &old, false), Some(2));
        assert_eq!(versions.difference(&content, 2, &new, true), None);
        new[4095] ^= 1;
        assert_eq!(versions.difference(&content, 2, &new, false), None);
        assert_eq!(versions.difference(&content, 2, &new, true), Some(2));
        assert!(old[HEADER_BYTES..PAGE_SIZE] != new[HEADER_BYTES..]);
    }

    #[test]
    fn the_share_of_changed_pages_is_that_asked_for() {
        for percent in [0, 1, 50, 100] {
            let changed = (0..100_000).filter(|&number| is_changed(number, percent)).count();
            assert!(changed.abs_diff(percent as usize * 1000) < 600, "{percent}: {changed}");
        }
    }
}
