//! The bytes that matches can reach: zeros, the dictionary, the page.
//!
//! ```text
//!         0             PAGE_AT - dictionary        PAGE_AT          END
//! | lead  | zeros       | dictionary                | page (4096)    | slack  |
//! ```
//!
//! The page's place never changes, and an offset, at most
//! [`MAX_OFFSET`](super::format::MAX_OFFSET), never reaches before the lead, which is zeros: so a
//! match needs no check of its offset. The slack lets wide accesses pass the page's end. Positions,
//! including the page's end, fit in 16 bits.

use crate::{PAGE_SIZE, Page};

/// Position of the page's end: 64 bytes below 65536, so that it also fits in 16 bits.
pub(super) const END: usize = (1 << 16) - 64;
/// Position of the page's start.
pub(super) const PAGE_AT: usize = END - PAGE_SIZE;
/// Maximum bytes of a dictionary: all positions before the page.
pub(super) const MAX_DICTIONARY: usize = PAGE_AT;

/// Bytes before position 0 that offsets of the page's first bytes can reach, in whole cache lines.
const LEAD: usize = (super::format::MAX_OFFSET + 1 - PAGE_AT).next_multiple_of(64);
/// Size of a window in bytes.
pub(super) const SIZE: usize = LEAD + (1 << 16) + 64;

/// A page and the bytes before it.
#[derive(Clone)]
pub(super) struct Window {
    bytes: Box<[u8; SIZE]>,
}

impl Window {
    /// Creates a window with `dictionary`, at most [`MAX_DICTIONARY`] bytes, before its page.
    pub(super) fn new(dictionary: &[u8]) -> Self {
        let bytes = vec![0; SIZE].into_boxed_slice();
        let mut bytes: Box<[u8; SIZE]> = bytes.try_into().unwrap_or_else(|_| unreachable!("made of SIZE bytes"));
        bytes[LEAD + PAGE_AT - dictionary.len()..LEAD + PAGE_AT].copy_from_slice(dictionary);
        Self { bytes }
    }

    /// Returns the page.
    pub(super) fn page(&self) -> &Page {
        self.bytes[LEAD + PAGE_AT..]
            .first_chunk()
            .unwrap_or_else(|| unreachable!("a page lies between PAGE_AT and END"))
    }

    /// Sets the page.
    pub(super) fn set_page(&mut self, page: &Page) {
        self.bytes[LEAD + PAGE_AT..LEAD + END].copy_from_slice(page);
    }

    /// Copies the last `len` bytes before the page from `other`; the bytes before those must be
    /// equal in both.
    pub(super) fn set_dictionary(&mut self, other: &Self, len: usize) {
        let before = LEAD + PAGE_AT - len..LEAD + PAGE_AT;
        self.bytes[before.clone()].copy_from_slice(&other.bytes[before]);
    }

    /// Returns a pointer to position 0. From 64 KiB before the page's start to 128 bytes after its
    /// end can be read.
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(LEAD)
    }

    /// Returns a pointer to position 0. From 64 KiB before the page's start to 128 bytes after its
    /// end can be read and written.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr().wrapping_add(LEAD)
    }

    /// Returns the 8 bytes at `at`, little-endian.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.bytes[LEAD + at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}
