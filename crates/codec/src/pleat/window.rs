//! The bytes that matches reach: zeros, the dictionary, the page.
//!
//! ```text
//! 0                     PAGE_AT - dictionary        PAGE_AT          END      SIZE
//! | zeros               | dictionary                | page (4096)    | slack  |
//! ```
//!
//! Every position is taken modulo 65536 before it is used, and the array is longer than that by one wide access. So no
//! access needs a check, and the compiler sees that none does. The page's place never changes: an offset, which
//! [`MAX_OFFSET`](super::format::MAX_OFFSET) bounds, never reaches before the array's start.

use crate::{PAGE_SIZE, Page};

/// Where the page ends: 64 bytes below 65536, so that this position too fits 16 bits.
pub(super) const END: usize = (1 << 16) - 64;
/// Where the page starts.
pub(super) const PAGE_AT: usize = END - PAGE_SIZE;
/// Most bytes of a dictionary: its first byte can be reached from the page's last.
pub(super) const MAX_DICTIONARY: usize = super::format::MAX_OFFSET - PAGE_SIZE;

const SIZE: usize = (1 << 16) + 64;

/// A page and what lies before it.
#[derive(Clone)]
pub(super) struct Window {
    bytes: Box<[u8; SIZE]>,
}

impl Window {
    /// Heap bytes of a window.
    pub(super) const BYTES: usize = SIZE;

    /// A window with `dictionary`, of at most [`MAX_DICTIONARY`] bytes, before its page.
    pub(super) fn new(dictionary: &[u8]) -> Self {
        let bytes = vec![0; SIZE].into_boxed_slice();
        let mut bytes: Box<[u8; SIZE]> = bytes.try_into().unwrap_or_else(|_| unreachable!("made of SIZE bytes"));
        bytes[PAGE_AT - dictionary.len()..PAGE_AT].copy_from_slice(dictionary);
        Self { bytes }
    }

    /// The page.
    pub(super) fn page(&self) -> &Page {
        self.bytes[PAGE_AT..].first_chunk().unwrap_or_else(|| unreachable!("a page lies between PAGE_AT and END"))
    }

    /// Sets the page.
    pub(super) fn set_page(&mut self, page: &Page) {
        self.bytes[PAGE_AT..END].copy_from_slice(page);
    }

    /// The `N` bytes at `at`; `N` is at most 64.
    #[inline(always)]
    pub(super) fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        const { assert!(N <= 64) };
        let at = at & 0xffff;
        self.bytes[at..at + N].try_into().unwrap_or([0; N])
    }

    /// Sets the `N` bytes at `at`; `N` is at most 64.
    #[inline(always)]
    pub(super) fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        const { assert!(N <= 64) };
        let at = at & 0xffff;
        self.bytes[at..at + N].copy_from_slice(&bytes);
    }

    /// The 8 bytes at `at`, little-endian.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.get(at))
    }

    /// How many bytes from `a` to the page's end equal those from `b` on, at most up to the page's end.
    #[inline(always)]
    pub(super) fn common(&self, a: usize, b: usize) -> usize {
        let mut length = 0;
        while a + length < END {
            let difference = self.word(a + length) ^ self.word(b + length);
            if difference != 0 {
                length += difference.trailing_zeros() as usize / 8;
                break;
            }
            length += 8;
        }
        length.min(END - a)
    }
}
