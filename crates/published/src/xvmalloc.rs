//! The first allocator of zram and zcache: two-level segregated fit within a page.
//!
//! Built from its announcement ("Staging: xvmalloc memory allocator", N. Gupta, 2010: 4 bytes of
//! metadata per object, a two-level bitmap over free lists by size, pages taken on demand) and the
//! paper that it cites for the search (M. Masmano et al., "TLSF: a New Dynamic Memory Allocator for
//! Real-Time Systems", ECRTS 2004).
//!
//! ```text
//! page   ┌──────┬────────┬────────┬──────┬────────┬────────────────────┐
//!        │ len  │ before │ object │ len  │ before │ next, prev of list │
//!        └──────┴────────┴────────┴──────┴────────┴────────────────────┘
//!        0      2        4        len
//!
//! header: 16 bits each for the block's length, whose lowest bit says that it is in use, and the
//! length of the block before it (0: none)
//! ```
//!
//! A block lies within one page. An object that does not fit in a page next to a header takes a
//! whole page. Nothing is ever moved. `pages = Σ blocks = live + free`, and no two free blocks are adjacent.

use std::ops::Range;
use std::sync::{Arc, atomic::Ordering::Relaxed};

use pagefold_codec::PAGE_SIZE;

use crate::{
    allocator::Allocator,
    memory::{Memory, Pages},
    spin::SpinMutex,
};

const HEADER: usize = 4;
const ALIGN: usize = 4;
/// The minimum bytes of a block after its header; a free block's links need 8.
const BODY_MIN: usize = 32;
const STEP: usize = 8;
const LISTS: usize = PAGE_SIZE / STEP + 1;
const NIL: u32 = u32::MAX;
const USED: usize = 1;

/// The allocator.
pub(crate) struct Xvmalloc {
    inner: SpinMutex<Inner>,
}

struct Inner {
    memory: Arc<Memory>,
    pages: Pages,
    /// `heads[n]` lists the free blocks of `8 × n` to `8 × n + 7` bytes by number: the offset in
    /// units of [`ALIGN`].
    heads: Box<[u32; LISTS]>,
    /// Bit `n`: `heads[n]` is not empty.
    listed: [u64; LISTS.div_ceil(64)],
    live_bytes: u64,
}

/// The content of a block's header.
#[derive(Clone, Copy, Debug)]
struct Header {
    len: usize,
    used: bool,
    /// The length of the block before it in the page.
    before: usize,
}

/// Returns the length of an object's block.
fn block_len(len_bytes: usize) -> usize {
    len_bytes.next_multiple_of(ALIGN).max(BODY_MIN) + HEADER
}

/// Returns whether an object gets a page of its own.
fn is_page(len_bytes: usize) -> bool {
    block_len(len_bytes) > PAGE_SIZE
}

impl Xvmalloc {
    pub(crate) fn new(pages: Pages) -> Self {
        let inner = Inner {
            memory: Arc::clone(pages.memory()),
            pages,
            heads: Box::new([NIL; LISTS]),
            listed: [0; LISTS.div_ceil(64)],
            live_bytes: 0,
        };
        Self { inner: SpinMutex::new(inner) }
    }
}

impl Inner {
    fn load(&self, offset: usize) -> u32 {
        self.memory.word(offset).load(Relaxed)
    }

    fn store(&self, offset: usize, value: u32) {
        self.memory.word(offset).store(value, Relaxed);
    }

    fn header(&self, at: usize) -> Header {
        let word = self.load(at) as usize;
        let len = word & 0xffff;
        Header { len: len & !USED, used: len & USED != 0, before: word >> 16 }
    }

    fn set_header(&self, at: usize, Header { len, used, before }: Header) {
        self.store(at, (len | usize::from(used) | before << 16) as u32);
    }

    /// Writes a block's header, and its length into the header of the block after it.
    fn put(&self, at: usize, block: Header) {
        self.set_header(at, block);
        let behind = at + block.len;
        if !behind.is_multiple_of(PAGE_SIZE) {
            self.set_header(behind, Header { before: block.len, ..self.header(behind) });
        }
    }

    /// Makes a block free and puts it at the front of its list.
    fn list(&mut self, at: usize, len: usize, before: usize) {
        self.put(at, Header { len, used: false, before });
        let (number, block) = (len / STEP, (at / ALIGN) as u32);
        let next = self.heads[number];
        self.store(at + HEADER, next);
        self.store(at + HEADER + 4, NIL);
        if next != NIL {
            self.store(next as usize * ALIGN + HEADER + 4, block);
        }
        self.heads[number] = block;
        self.listed[number / 64] |= 1 << (number % 64);
    }

    /// Removes a free block of `len` bytes from its list.
    fn unlist(&mut self, at: usize, len: usize) {
        let (next, prev) = (self.load(at + HEADER), self.load(at + HEADER + 4));
        if next != NIL {
            self.store(next as usize * ALIGN + HEADER + 4, prev);
        }
        if prev != NIL {
            self.store(prev as usize * ALIGN + HEADER, next);
            return;
        }
        let number = len / STEP;
        self.heads[number] = next;
        if next == NIL {
            self.listed[number / 64] &= !(1 << (number % 64));
        }
    }

    /// Returns the first block of the first list whose blocks all have at least `len` bytes.
    fn find(&self, len: usize) -> Option<usize> {
        let from = len.div_ceil(STEP);
        let masked =
            |word: usize| self.listed[word] & if word == from / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        let word = (from / 64..self.listed.len()).find(|&word| masked(word) != 0)?;
        let number = word * 64 + masked(word).trailing_zeros() as usize;
        Some(self.heads[number] as usize * ALIGN)
    }

    fn alloc(&mut self, len_bytes: usize) -> Option<usize> {
        if is_page(len_bytes) {
            let at = self.pages.take()?;
            self.live_bytes += PAGE_SIZE as u64;
            return Some(at);
        }
        let need = block_len(len_bytes);
        let (at, Header { len, before, .. }) = match self.find(need) {
            Some(at) => {
                let block = self.header(at);
                self.unlist(at, block.len);
                (at, block)
            }
            None => (self.pages.take()?, Header { len: PAGE_SIZE, used: false, before: 0 }),
        };
        let rest = len - need;
        let taken = if rest < BODY_MIN + HEADER { len } else { need };
        self.put(at, Header { len: taken, used: true, before });
        if taken < len {
            self.list(at + taken, rest, taken);
        }
        self.live_bytes += taken as u64;
        Some(at + HEADER)
    }

    fn free(&mut self, body: usize, len_bytes: usize) {
        if is_page(len_bytes) {
            self.live_bytes -= PAGE_SIZE as u64;
            self.pages.give(body);
            return;
        }
        let mut at = body - HEADER;
        let Header { mut len, mut before, .. } = self.header(at);
        self.live_bytes -= len as u64;
        let behind = at + len;
        if !behind.is_multiple_of(PAGE_SIZE) {
            let block = self.header(behind);
            if !block.used {
                self.unlist(behind, block.len);
                len += block.len;
            }
        }
        if before != 0 {
            let block = self.header(at - before);
            if !block.used {
                self.unlist(at - before, block.len);
                at -= block.len;
                len += block.len;
                before = block.before;
            }
        }
        if len == PAGE_SIZE {
            self.pages.give(at);
        } else {
            self.list(at, len, before);
        }
    }

    /// Returns the bytes of all free blocks.
    fn free_bytes(&self) -> Result<u64, String> {
        let mut free_bytes = 0;
        for (number, &head) in self.heads.iter().enumerate() {
            let (mut block, mut prev) = (head, NIL);
            while block != NIL {
                let at = block as usize * ALIGN;
                let Header { len, used, before } = self.header(at);
                if used || len / STEP != number || self.load(at + HEADER + 4) != prev {
                    return Err(format!("list {number}: block {at} of {len} bytes is listed wrongly"));
                }
                let behind = at + len;
                let free_behind = !behind.is_multiple_of(PAGE_SIZE) && !self.header(behind).used;
                if free_behind || before != 0 && !self.header(at - before).used {
                    return Err(format!("block {at} of {len} bytes touches a free one"));
                }
                free_bytes += len as u64;
                (prev, block) = (block, self.load(at + HEADER));
            }
        }
        Ok(free_bytes)
    }
}

impl Allocator for Xvmalloc {
    fn alloc(&self, len_bytes: usize) -> Option<u64> {
        self.inner.lock().alloc(len_bytes).map(|at| at as u64)
    }

    fn free(&self, at: u64, len_bytes: usize) {
        self.inner.lock().free(at as usize, len_bytes);
    }

    fn pieces(&self, at: u64, len_bytes: usize) -> [Range<usize>; 2] {
        let at = at as usize;
        [at..at + len_bytes, at..at]
    }

    fn spent_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.pages.held_bytes() + size_of_val(&*inner.heads) as u64
    }

    fn check(&self) -> Result<u64, String> {
        let inner = self.inner.lock();
        let (free_bytes, live_bytes, held_bytes) = (inner.free_bytes()?, inner.live_bytes, inner.pages.held_bytes());
        if free_bytes + live_bytes != held_bytes {
            return Err(format!("{free_bytes} bytes are listed and {live_bytes} live, of {held_bytes}"));
        }
        Ok(live_bytes)
    }
}
