//! The pool that was proposed for zcache in its place: blocks that are cut in two over pages and named by descriptors.
//!
//! Built from its announcement ("staging: zcache: xcfmalloc support", S. Jennings, 2011): scatter-gather over pages, blocks
//! that could be relocated because descriptors name them, descriptors of 24 bytes of which 170 lie in a page, one lock for
//! the pool. Its table gives the rest: a page of zeros, stored in 29 bytes and zcache's header, took a block of 128 bytes,
//! so block lengths are multiples of 64; and text took 1.74 descriptors an object, so objects are cut in two at most.
//!
//! ```text
//! alloc: the shortest free block that is long enough, cut to size
//!        else the longest free block and, for the rest, the shortest that is long enough or the front of a new page
//! ```
//!
//! `held = pages × 4096 + descriptors' pages × 4096`. A page's blocks cover it, and no two free ones touch.
#![allow(unsafe_code)] // implements methods that trust their caller; has no unsafe block

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

/// Bytes of a unit of length.
const UNIT: usize = 64;
const PAGE_UNITS: usize = PAGE_SIZE / UNIT;
const NIL: u32 = u32::MAX;

/// A block: `units` from unit `start` of the page at `page` on.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    page: u32,
    start: u8,
    units: u8,
    used: bool,
    /// The blocks before and behind it in the page.
    before: u32,
    behind: u32,
    /// Of a used block: the object's other piece. Of a free one: the next in its list. Of none: the next unused descriptor.
    next: u32,
    /// Of a free block: the one before it in its list.
    prev: u32,
}

const DESCRIPTORS_A_PAGE: usize = PAGE_SIZE / size_of::<Descriptor>();
const _: () = assert!(DESCRIPTORS_A_PAGE == 170);

/// The pool.
#[derive(Debug)]
pub(crate) struct Xcfmalloc {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    pages: PageSource,
    descriptors: Vec<Box<[Descriptor]>>,
    unused: u32,
    /// `heads[n]` lists the free blocks of `n + 1` units.
    heads: [u32; PAGE_UNITS],
    /// Bit `n`: `heads[n]` is not empty.
    listed: u64,
    live_bytes: u64,
    budget: Arc<Budget>,
}

impl Xcfmalloc {
    /// A pool for at most `objects` objects at a time.
    pub(crate) fn new(objects: u64, budget: Arc<Budget>) -> io::Result<Self> {
        let pages = PageSource::new(objects, Arc::clone(&budget))?;
        let inner = Inner {
            pages,
            descriptors: Vec::new(),
            unused: NIL,
            heads: [NIL; PAGE_UNITS],
            listed: 0,
            live_bytes: 0,
            budget,
        };
        Ok(Self { inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn get(&self, number: u32) -> &Descriptor {
        &self.descriptors[number as usize / DESCRIPTORS_A_PAGE][number as usize % DESCRIPTORS_A_PAGE]
    }

    fn get_mut(&mut self, number: u32) -> &mut Descriptor {
        &mut self.descriptors[number as usize / DESCRIPTORS_A_PAGE][number as usize % DESCRIPTORS_A_PAGE]
    }

    /// Makes sure that there are `count` unused descriptors.
    fn reserve(&mut self, count: usize) -> Result<(), Full> {
        let (mut number, mut found) = (self.unused, 0);
        while number != NIL && found < count {
            (number, found) = (self.get(number).next, found + 1);
        }
        if found == count {
            return Ok(());
        }
        self.budget.take(PAGE_SIZE as u64)?;
        let first = (self.descriptors.len() * DESCRIPTORS_A_PAGE) as u32;
        let empty =
            Descriptor { page: 0, start: 0, units: 0, used: false, before: NIL, behind: NIL, next: NIL, prev: NIL };
        let mut page = vec![empty; DESCRIPTORS_A_PAGE].into_boxed_slice();
        for (next, descriptor) in (first + 1..).zip(&mut page) {
            descriptor.next = next;
        }
        if let Some(last) = page.last_mut() {
            last.next = self.unused;
        }
        self.descriptors.push(page);
        self.unused = first;
        Ok(())
    }

    /// Takes one of the descriptors that [`reserve`](Self::reserve) has seen to.
    fn describe(&mut self, block: Descriptor) -> u32 {
        let number = self.unused;
        self.unused = self.get(number).next;
        *self.get_mut(number) = block;
        number
    }

    fn forget(&mut self, number: u32) {
        let unused = self.unused;
        let descriptor = self.get_mut(number);
        (descriptor.units, descriptor.next) = (0, unused);
        self.unused = number;
    }

    fn list(&mut self, number: u32) {
        let list = self.get(number).units as usize - 1;
        let next = self.heads[list];
        let descriptor = self.get_mut(number);
        (descriptor.used, descriptor.next, descriptor.prev) = (false, next, NIL);
        if next != NIL {
            self.get_mut(next).prev = number;
        }
        self.heads[list] = number;
        self.listed |= 1 << list;
    }

    fn unlist(&mut self, number: u32) {
        let Descriptor { next, prev, units, .. } = *self.get(number);
        if next != NIL {
            self.get_mut(next).prev = prev;
        }
        if prev != NIL {
            self.get_mut(prev).next = next;
            return;
        }
        let list = units as usize - 1;
        self.heads[list] = next;
        if next == NIL {
            self.listed &= !(1 << list);
        }
    }

    /// Takes a free block of at least `units` out of its list.
    fn take_fit(&mut self, units: usize) -> Option<u32> {
        let lists = self.listed & (u64::MAX << (units - 1));
        let number = (lists != 0).then(|| self.heads[lists.trailing_zeros() as usize])?;
        self.unlist(number);
        Some(number)
    }

    /// Takes the longest free block, of which all are shorter than wanted, out of its list.
    fn take_longest(&mut self) -> Option<u32> {
        let number = (self.listed != 0).then(|| self.heads[self.listed.ilog2() as usize])?;
        self.unlist(number);
        Some(number)
    }

    fn new_page(&mut self) -> Result<u32, Full> {
        let page = (self.pages.take()? / PAGE_SIZE) as u32;
        let units = PAGE_UNITS as u8;
        let whole = Descriptor { page, start: 0, units, used: false, before: NIL, behind: NIL, next: NIL, prev: NIL };
        Ok(self.describe(whole))
    }

    /// Makes the front of a block that is in no list a used one of `units`.
    fn cut(&mut self, number: u32, units: usize) {
        let block = *self.get(number);
        let rest = block.units - units as u8;
        if rest > 0 {
            let (start, behind) = (block.start + units as u8, block.behind);
            let tail = self.describe(Descriptor { start, units: rest, before: number, behind, ..block });
            if behind != NIL {
                self.get_mut(behind).before = tail;
            }
            self.get_mut(number).behind = tail;
            self.list(tail);
        }
        let block = self.get_mut(number);
        (block.units, block.used, block.next) = (units as u8, true, NIL);
        self.live_bytes += (units * UNIT) as u64;
    }

    fn alloc(&mut self, len_bytes: usize) -> Result<u32, Full> {
        // A new page's, and that of what two cuts leave.
        self.reserve(3)?;
        let units = len_bytes.div_ceil(UNIT);
        if let Some(number) = self.take_fit(units) {
            self.cut(number, units);
            return Ok(number);
        }
        let Some(first) = self.take_longest() else {
            let number = self.new_page()?;
            self.cut(number, units);
            return Ok(number);
        };
        let first_units = self.get(first).units as usize;
        let rest = units - first_units;
        let second = match self.take_fit(rest) {
            Some(second) => second,
            None => match self.new_page() {
                Ok(second) => second,
                Err(full) => {
                    self.list(first);
                    return Err(full);
                }
            },
        };
        self.cut(first, first_units);
        self.cut(second, rest);
        self.get_mut(first).next = second;
        Ok(first)
    }

    fn free(&mut self, number: u32) {
        let second = self.get(number).next;
        self.free_block(number);
        if second != NIL {
            self.free_block(second);
        }
    }

    fn free_block(&mut self, number: u32) {
        let Descriptor { before, behind, units, .. } = *self.get(number);
        self.live_bytes -= (units as usize * UNIT) as u64;
        let mut start = number;
        if behind != NIL && !self.get(behind).used {
            self.unlist(behind);
            self.join(start, behind);
        }
        if before != NIL && !self.get(before).used {
            self.unlist(before);
            self.join(before, start);
            start = before;
        }
        let Descriptor { page, units, .. } = *self.get(start);
        if units as usize == PAGE_UNITS {
            self.pages.give(page as usize * PAGE_SIZE);
            self.forget(start);
        } else {
            self.list(start);
        }
    }

    /// Makes two blocks, of which the second lies behind the first, one.
    fn join(&mut self, first: u32, second: u32) {
        let Descriptor { units, behind, .. } = *self.get(second);
        if behind != NIL {
            self.get_mut(behind).before = first;
        }
        let joined = self.get_mut(first);
        joined.units += units;
        joined.behind = behind;
        self.forget(second);
    }

    /// Offset and length of an object's pieces; the second is empty if there is one.
    fn pieces(&self, number: u32, len_bytes: usize) -> [(usize, usize); 2] {
        let place = |block: &Descriptor| block.page as usize * PAGE_SIZE + block.start as usize * UNIT;
        let first = self.get(number);
        let front = len_bytes.min(first.units as usize * UNIT);
        let rest = if first.next == NIL { 0 } else { place(self.get(first.next)) };
        [(place(first), front), (rest, len_bytes - front)]
    }

    fn check(&self) -> Result<(), String> {
        let mut free_units = 0;
        for (list, &head) in self.heads.iter().enumerate() {
            let (mut number, mut prev) = (head, NIL);
            while number != NIL {
                let block = self.get(number);
                let neighbours = [block.before, block.behind];
                let free_beside = neighbours.iter().any(|&beside| beside != NIL && !self.get(beside).used);
                if block.used || block.units as usize != list + 1 || block.prev != prev || free_beside {
                    return Err(format!("list {list}: {block:?}"));
                }
                free_units += block.units as usize;
                (prev, number) = (number, block.next);
            }
        }
        let (free, held) = ((free_units * UNIT) as u64, self.pages.held_bytes());
        if free + self.live_bytes != held {
            return Err(format!("{free} bytes are listed and {} live, of {held}", self.live_bytes));
        }
        Ok(())
    }
}

impl Pool for Xcfmalloc {
    fn alloc(&self, len_bytes: usize, _owner: u64) -> Result<Location, Full> {
        self.lock().alloc(len_bytes).map(|number| Location::new(number.into()))
    }

    unsafe fn bytes(&self, _at: Location, _len_bytes: usize) -> Option<&[u8]> {
        None
    }

    unsafe fn read(&self, at: Location, out: &mut [u8]) {
        let inner = self.lock();
        let [front, rest] = inner.pieces(at.get() as u32, out.len());
        let (to_front, to_rest) = out.split_at_mut(front.1);
        inner.pages.read(front.0, to_front);
        inner.pages.read(rest.0, to_rest);
    }

    unsafe fn write(&self, at: Location, bytes: &[u8]) {
        let inner = self.lock();
        let [front, rest] = inner.pieces(at.get() as u32, bytes.len());
        let (to_front, to_rest) = bytes.split_at(front.1);
        inner.pages.write(front.0, to_front);
        inner.pages.write(rest.0, to_rest);
    }

    unsafe fn free(&self, at: Location, _len_bytes: usize) {
        self.lock().free(at.get() as u32);
    }

    fn account(&self) -> Account {
        let inner = self.lock();
        let (pages_bytes, live_bytes) = (inner.pages.held_bytes(), inner.live_bytes);
        let index_bytes = (inner.descriptors.len() * PAGE_SIZE) as u64;
        let free_bytes = pages_bytes - live_bytes;
        Account { held_bytes: pages_bytes + index_bytes, live_bytes, free_bytes, tail_bytes: 0, index_bytes }
    }

    fn check(&self) -> Result<(), String> {
        self.lock().check()
    }
}
