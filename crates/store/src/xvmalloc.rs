//! The pool that zram and zcache began with: two-level segregated fit within a page.
//!
//! Built from its announcement ("Staging: xvmalloc memory allocator", N. Gupta, 2010: 4 bytes of metadata an object, a
//! two-level bitmap over free lists by size, pages taken when needed) and the paper that it names for the search (M.
//! Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems", ECRTS 2004).
//!
//! ```text
//! page   ┌──────┬──────┬────────┬──────┬──────┬────────────────────┐   header: len, then the len of the block before
//!        │ len  │ prev │ object │ len  │ prev │ next, prev of list │   (0: none); the lowest bit of len: in use
//!        └──────┴──────┴────────┴──────┴──────┴────────────────────┘
//!        0      2      4        len
//! ```
//!
//! A block lies within its page. An object that would not fit in a page beside its header is a page. `held = pages × 4096
//! + index`. There is one lock, and nothing is ever moved.
#![allow(unsafe_code)] // reads and writes objects and headers in the region

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pagefold_codec::PAGE_SIZE;

use crate::{
    budget::{Budget, Full},
    pages::PageSource,
    pool::{Account, Location, Pool},
};

const HEADER: usize = 4;
const ALIGN: usize = 4;
/// The shortest body: what a free block's links need is 8.
const BODY_MIN: usize = 32;
const STEP: usize = 8;
const LISTS: usize = PAGE_SIZE / STEP + 1;
const NIL: u32 = u32::MAX;
const USED: u16 = 1;

/// The pool.
#[derive(Debug)]
pub(crate) struct Xvmalloc {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    pages: PageSource,
    /// Block numbers: offsets in units of [`ALIGN`].
    heads: Box<[u32; LISTS]>,
    words: [u64; LISTS.div_ceil(64)],
    live_bytes: u64,
}

/// The length of a block for an object.
fn block_len(len_bytes: usize) -> usize {
    len_bytes.next_multiple_of(ALIGN).max(BODY_MIN) + HEADER
}

/// Whether an object is a page of its own.
fn is_page(len_bytes: usize) -> bool {
    block_len(len_bytes) > PAGE_SIZE
}

impl Xvmalloc {
    /// A pool for at most `objects` objects at a time.
    pub(crate) fn new(objects: u64, budget: Arc<Budget>) -> io::Result<Self> {
        let pages = PageSource::new(objects, budget)?;
        let inner = Inner { pages, heads: Box::new([NIL; LISTS]), words: [0; LISTS.div_ceil(64)], live_bytes: 0 };
        Ok(Self { inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn len_and_used(&self, at: usize) -> (usize, bool) {
        let word = self.pages.load_u16(at);
        ((word & !USED) as usize, word & USED != 0)
    }

    fn before(&self, at: usize) -> usize {
        self.pages.load_u16(at + 2) as usize
    }

    /// Writes a block's header, and its length to the block behind it.
    fn put(&self, at: usize, len: usize, used: bool) {
        self.pages.store_u16(at, len as u16 | if used { USED } else { 0 });
        if !(at + len).is_multiple_of(PAGE_SIZE) {
            self.pages.store_u16(at + len + 2, len as u16);
        }
    }

    fn list(&mut self, at: usize, len: usize) {
        self.put(at, len, false);
        let (number, block) = (len / STEP, (at / ALIGN) as u32);
        let next = self.heads[number];
        self.pages.store_u32(at + HEADER, next);
        self.pages.store_u32(at + HEADER + 4, NIL);
        if next != NIL {
            self.pages.store_u32(next as usize * ALIGN + HEADER + 4, block);
        }
        self.heads[number] = block;
        self.words[number / 64] |= 1 << (number % 64);
    }

    fn unlist(&mut self, at: usize, len: usize) {
        let next = self.pages.load_u32(at + HEADER);
        let prev = self.pages.load_u32(at + HEADER + 4);
        if next != NIL {
            self.pages.store_u32(next as usize * ALIGN + HEADER + 4, prev);
        }
        if prev != NIL {
            self.pages.store_u32(prev as usize * ALIGN + HEADER, next);
            return;
        }
        let number = len / STEP;
        self.heads[number] = next;
        if next == NIL {
            self.words[number / 64] &= !(1 << (number % 64));
        }
    }

    /// The first block of the first list whose blocks all have `len` bytes.
    fn find(&self, len: usize) -> Option<usize> {
        let from = len.div_ceil(STEP);
        let masked = |word: usize| if word == from / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        let word = (from / 64..self.words.len()).find(|&word| self.words[word] & masked(word) != 0)?;
        let number = word * 64 + (self.words[word] & masked(word)).trailing_zeros() as usize;
        Some(self.heads[number] as usize * ALIGN)
    }

    fn alloc(&mut self, len_bytes: usize) -> Result<usize, Full> {
        if is_page(len_bytes) {
            let at = self.pages.take()?;
            self.live_bytes += PAGE_SIZE as u64;
            return Ok(at);
        }
        let need = block_len(len_bytes);
        let (at, len) = match self.find(need) {
            Some(at) => {
                let (len, _) = self.len_and_used(at);
                self.unlist(at, len);
                (at, len)
            }
            None => {
                let at = self.pages.take()?;
                self.pages.store_u16(at + 2, 0);
                (at, PAGE_SIZE)
            }
        };
        let rest = len - need;
        let taken = if rest < BODY_MIN + HEADER { len } else { need };
        self.put(at, taken, true);
        if taken < len {
            self.list(at + taken, rest);
        }
        self.live_bytes += taken as u64;
        Ok(at + HEADER)
    }

    fn free(&mut self, body: usize, len_bytes: usize) {
        if is_page(len_bytes) {
            self.live_bytes -= PAGE_SIZE as u64;
            self.pages.give(body);
            return;
        }
        let mut at = body - HEADER;
        let (mut len, _) = self.len_and_used(at);
        self.live_bytes -= len as u64;
        let next = at + len;
        if !next.is_multiple_of(PAGE_SIZE) && !self.len_and_used(next).1 {
            let (next_len, _) = self.len_and_used(next);
            self.unlist(next, next_len);
            len += next_len;
        }
        let before = self.before(at);
        if before != 0 && !self.len_and_used(at - before).1 {
            at -= before;
            self.unlist(at, before);
            len += before;
        }
        if len == PAGE_SIZE {
            self.pages.give(at);
        } else {
            self.list(at, len);
        }
    }

    fn listed(&self) -> Result<u64, String> {
        let mut free = 0;
        for (number, &head) in self.heads.iter().enumerate() {
            let (mut block, mut prev) = (head, NIL);
            while block != NIL {
                let at = block as usize * ALIGN;
                let (len, used) = self.len_and_used(at);
                if used || len / STEP != number || self.pages.load_u32(at + HEADER + 4) != prev {
                    return Err(format!("list {number}: block {at} of {len} bytes is listed wrongly"));
                }
                free += len as u64;
                (prev, block) = (block, self.pages.load_u32(at + HEADER));
            }
        }
        Ok(free)
    }
}

impl Pool for Xvmalloc {
    fn alloc(&self, len_bytes: usize, _owner: u64) -> Result<Location, Full> {
        self.lock().alloc(len_bytes).map(|at| Location::new(at as u64))
    }

    unsafe fn bytes(&self, _at: Location, _len_bytes: usize) -> Option<&[u8]> {
        None
    }

    unsafe fn read(&self, at: Location, out: &mut [u8]) {
        self.lock().pages.read(at.get() as usize, out);
    }

    unsafe fn write(&self, at: Location, bytes: &[u8]) {
        self.lock().pages.write(at.get() as usize, bytes);
    }

    unsafe fn free(&self, at: Location, len_bytes: usize) {
        self.lock().free(at.get() as usize, len_bytes);
    }

    fn account(&self) -> Account {
        let inner = self.lock();
        let (pages_bytes, live_bytes) = (inner.pages.held_bytes(), inner.live_bytes);
        let index_bytes = size_of_val(&*inner.heads) as u64;
        let free_bytes = pages_bytes - live_bytes;
        Account { held_bytes: pages_bytes + index_bytes, live_bytes, free_bytes, tail_bytes: 0, index_bytes }
    }

    fn check(&self) -> Result<(), String> {
        let inner = self.lock();
        let (free, live, held) = (inner.listed()?, inner.live_bytes, inner.pages.held_bytes());
        if free + live != held {
            return Err(format!("{free} bytes are listed and {live} live, of {held}"));
        }
        Ok(())
    }
}
