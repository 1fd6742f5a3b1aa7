//! The allocator that was proposed to replace xvmalloc in zcache: objects are split in two across
//! pages, and descriptors name the blocks.
//!
//! Built from its announcement ("staging: zcache: xcfmalloc support", S. Jennings, 2011):
//! scatter-gather over pages, blocks that could be relocated because descriptors name them,
//! descriptors of 24 bytes of which 170 fit in a page, one lock for the pool. Its table implies the
//! rest: a page of zeros, compressed to 29 bytes plus zcache's header, used a block of 128 bytes,
//! so block lengths are multiples of 64; and text used 1.74 descriptors per object, so objects are
//! split in two at most.
//!
//! ```text
//! alloc: the shortest free block that is long enough, cut to size
//!        else the longest free block and, for the rest, the shortest that is long enough or the
//!        front of a new page
//! ```
//!
//! `spent = (pages + pages of descriptors) × 4096`. A page's blocks cover it, and no two free ones
//! are adjacent.

use std::ops::Range;

use pagefold_codec::PAGE_SIZE;

use crate::{allocator::Allocator, memory::Pages, spin::SpinMutex};

/// The unit of block lengths, in bytes.
const UNIT: usize = 64;
const PAGE_UNITS: usize = PAGE_SIZE / UNIT;
const NIL: u32 = u32::MAX;

/// A block: `units` units, from unit `start` of page `page` on.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    page: u32,
    start: u8,
    units: u8,
    used: bool,
    /// The blocks before and after it in the page.
    before: u32,
    behind: u32,
    /// In a used block: the object's other piece. In a free one: the next in its list. In an unused
    /// descriptor: the next unused one.
    next: u32,
    /// In a free block: the previous one in its list.
    prev: u32,
}

const DESCRIPTORS_A_PAGE: usize = PAGE_SIZE / size_of::<Descriptor>();
const _: () = assert!(DESCRIPTORS_A_PAGE == 170);

/// The allocator.
pub(crate) struct Xcfmalloc {
    inner: SpinMutex<Inner>,
}

struct Inner {
    pages: Pages,
    descriptors: Vec<Box<[Descriptor]>>,
    unused: u32,
    /// `heads[n]` lists the free blocks of `n + 1` units.
    heads: [u32; PAGE_UNITS],
    /// Bit `n`: `heads[n]` is not empty.
    listed: u64,
    live_bytes: u64,
}

impl Xcfmalloc {
    pub(crate) fn new(pages: Pages) -> Self {
        let inner =
            Inner { pages, descriptors: Vec::new(), unused: NIL, heads: [NIL; PAGE_UNITS], listed: 0, live_bytes: 0 };
        Self { inner: SpinMutex::new(inner) }
    }
}

impl Inner {
    fn get(&self, number: u32) -> &Descriptor {
        &self.descriptors[number as usize / DESCRIPTORS_A_PAGE][number as usize % DESCRIPTORS_A_PAGE]
    }

    fn get_mut(&mut self, number: u32) -> &mut Descriptor {
        &mut self.descriptors[number as usize / DESCRIPTORS_A_PAGE][number as usize % DESCRIPTORS_A_PAGE]
    }

    /// Ensures that there are `count` unused descriptors.
    fn reserve(&mut self, count: usize) {
        let (mut number, mut found) = (self.unused, 0);
        while number != NIL && found < count {
            (number, found) = (self.get(number).next, found + 1);
        }
        if found == count {
            return;
        }
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
    }

    /// Takes one of the descriptors that [`reserve`](Self::reserve) has ensured.
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

    /// Removes a free block of at least `units` from its list and returns it.
    fn take_fit(&mut self, units: usize) -> Option<u32> {
        let lists = self.listed & (u64::MAX << (units - 1));
        let number = (lists != 0).then(|| self.heads[lists.trailing_zeros() as usize])?;
        self.unlist(number);
        Some(number)
    }

    /// Removes the longest free block from its list and returns it. For objects that no free block
    /// can hold.
    fn take_longest(&mut self) -> Option<u32> {
        let number = (self.listed != 0).then(|| self.heads[self.listed.ilog2() as usize])?;
        self.unlist(number);
        Some(number)
    }

    fn new_page(&mut self) -> Option<u32> {
        let page = (self.pages.take()? / PAGE_SIZE) as u32;
        let units = PAGE_UNITS as u8;
        let whole = Descriptor { page, start: 0, units, used: false, before: NIL, behind: NIL, next: NIL, prev: NIL };
        Some(self.describe(whole))
    }

    /// Turns the front of an unlisted block into a used block of `units`.
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

    fn alloc(&mut self, len_bytes: usize) -> Option<u32> {
        // A new page needs one, and each of two cuts at most one.
        self.reserve(3);
        let units = len_bytes.div_ceil(UNIT);
        if let Some(number) = self.take_fit(units) {
            self.cut(number, units);
            return Some(number);
        }
        let Some(first) = self.take_longest() else {
            let number = self.new_page()?;
            self.cut(number, units);
            return Some(number);
        };
        let first_units = self.get(first).units as usize;
        let rest = units - first_units;
        let Some(second) = self.take_fit(rest).or_else(|| self.new_page()) else {
            self.list(first);
            return None;
        };
        self.cut(first, first_units);
        self.cut(second, rest);
        self.get_mut(first).next = second;
        Some(first)
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

    /// Joins two blocks, of which the second directly follows the first.
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

    /// Returns where an object's pieces are; the second is empty if there is only one.
    fn pieces(&self, number: u32, len_bytes: usize) -> [Range<usize>; 2] {
        let start = |block: &Descriptor| block.page as usize * PAGE_SIZE + block.start as usize * UNIT;
        let block = self.get(number);
        let (front, front_bytes) = (start(block), len_bytes.min(block.units as usize * UNIT));
        let rest = if block.next == NIL { front } else { start(self.get(block.next)) };
        [front..front + front_bytes, rest..rest + len_bytes - front_bytes]
    }

    fn check(&self) -> Result<u64, String> {
        let mut free_units = 0;
        for (list, &head) in self.heads.iter().enumerate() {
            let (mut number, mut prev) = (head, NIL);
            while number != NIL {
                let block = self.get(number);
                let neighbours = [block.before, block.behind];
                let has_free_neighbour = neighbours.iter().any(|&other| other != NIL && !self.get(other).used);
                if block.used || block.units as usize != list + 1 || block.prev != prev || has_free_neighbour {
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
        Ok(self.live_bytes)
    }
}

impl Allocator for Xcfmalloc {
    fn alloc(&self, len_bytes: usize) -> Option<u64> {
        self.inner.lock().alloc(len_bytes).map(u64::from)
    }

    fn free(&self, at: u64, _len_bytes: usize) {
        self.inner.lock().free(at as u32);
    }

    fn pieces(&self, at: u64, len_bytes: usize) -> [Range<usize>; 2] {
        self.inner.lock().pieces(at as u32, len_bytes)
    }

    fn spent_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.pages.held_bytes() + (inner.descriptors.len() * PAGE_SIZE) as u64
    }

    fn check(&self) -> Result<u64, String> {
        self.inner.lock().check()
    }
}
