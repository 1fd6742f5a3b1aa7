//! Numbers for parts of equal size, several per page: which numbers are free, and which pages have
//! memory.
//!
//! A page whose parts are all free has no memory. Numbers on pages with memory are given out first,
//! so that a slab stays small; all numbers stay below the maximum that was in use simultaneously,
//! rounded up to a page.
//!
//! `held_bytes = pages with a part in use × 4096 + capacity × extra_bytes`, all of it counted in
//! the budget.

use std::{io, sync::PoisonError};

use pagefold_codec::PAGE_SIZE;

use crate::{
    limit::{Budget, Full, Purpose},
    sync::{Mutex, MutexGuard},
};

/// No page.
const NIL: u32 = u32::MAX;

/// The least number of pages by which the capacity grows.
const STEP: usize = 32;

#[derive(Debug)]
pub(crate) struct Slab {
    /// Parts per page, at most 32.
    per_page: u32,
    pages_max: usize,
    /// Bytes that each page of the capacity costs: metadata here, and metadata of the slab's owner.
    extra_bytes: u64,
    state: Mutex<SlabState>,
}

/// Every page with a free part is in one list: `spare` if none of its parts is in use, otherwise
/// `roomy`. A page may stay in `roomy` after the last of its parts has become free.
#[derive(Debug)]
struct SlabState {
    pages: Vec<Page>,
    roomy: u32,
    spare: u32,
    /// Pages with a part in use.
    held: u64,
}

#[derive(Debug)]
struct Page {
    /// A bit for each free part.
    free: u32,
    next: u32,
}

impl Slab {
    /// Creates a slab of at most `parts_max` parts of `part_bytes`. The owner keeps
    /// `metadata_bytes` of metadata for each part.
    pub(crate) fn new(parts_max: usize, part_bytes: usize, metadata_bytes: usize) -> Self {
        let per_page = (PAGE_SIZE / part_bytes).min(parts_max).clamp(1, 32);
        Self {
            per_page: per_page as u32,
            pages_max: parts_max / per_page,
            extra_bytes: (size_of::<Page>() + per_page * metadata_bytes) as u64,
            state: Mutex::new(SlabState { pages: Vec::new(), roomy: NIL, spare: NIL, held: 0 }),
        }
    }

    fn all_free(&self) -> u32 {
        u32::MAX >> (32 - self.per_page)
    }

    fn lock(&self) -> MutexGuard<'_, SlabState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free number. If there will be more numbers than ever before, calls `enable` with
    /// their maximum, to prepare the owner's memory. `enable` must not use the slab.
    pub(crate) fn take(
        &self,
        purpose: Purpose,
        budget: &Budget,
        enable: impl FnOnce(usize) -> io::Result<()>,
    ) -> Result<u32, Full> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let page = loop {
            let page = state.roomy;
            if page == NIL {
                break self.take_page(state, purpose, budget, enable)?;
            }
            let Page { free, next } = &mut state.pages[page as usize];
            if *free != self.all_free() {
                break page;
            }
            state.roomy = *next;
            *next = state.spare;
            state.spare = page;
        };
        let Page { free, next } = &mut state.pages[page as usize];
        let part = free.trailing_zeros();
        *free &= !(1 << part);
        if *free == 0 {
            state.roomy = *next;
        }
        Ok(page * self.per_page + part)
    }

    /// Takes memory for a page and puts the page at the front of the roomy ones.
    fn take_page(
        &self,
        state: &mut SlabState,
        purpose: Purpose,
        budget: &Budget,
        enable: impl FnOnce(usize) -> io::Result<()>,
    ) -> Result<u32, Full> {
        let number = state.pages.len();
        if state.spare == NIL {
            if number >= self.pages_max {
                return Err(Full);
            }
            if number == state.pages.capacity() {
                let step = STEP.max(number / 4).min(self.pages_max - number);
                let bytes = step as u64 * self.extra_bytes;
                budget.take_for(purpose, bytes)?;
                let parts = (number + step) * self.per_page as usize;
                if state.pages.try_reserve_exact(step).is_err() || enable(parts).is_err() {
                    state.pages.shrink_to_fit();
                    budget.give(bytes);
                    return Err(Full);
                }
            }
        }
        budget.take_for(purpose, PAGE_SIZE as u64)?;
        let page = if state.spare == NIL {
            state.pages.push(Page { free: self.all_free(), next: NIL });
            number as u32
        } else {
            let page = state.spare;
            state.spare = state.pages[page as usize].next;
            page
        };
        state.pages[page as usize].next = state.roomy;
        state.roomy = page;
        state.held += 1;
        Ok(page)
    }

    /// Frees a number. If no part of its page is in use any more, calls `give_back` with the number
    /// of the page's first part and the parts per page, to release their memory. `give_back` must
    /// not use the slab.
    pub(crate) fn give(&self, number: u32, budget: &Budget, give_back: impl FnOnce(usize, usize)) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let index = number / self.per_page;
        let page = &mut state.pages[index as usize];
        if page.free == 0 {
            page.next = state.roomy;
            state.roomy = index;
        }
        page.free |= 1 << (number % self.per_page);
        if page.free == self.all_free() {
            state.held -= 1;
            budget.give(PAGE_SIZE as u64);
            give_back((index * self.per_page) as usize, self.per_page as usize);
        }
    }

    /// Returns all memory that the slab accounts for.
    pub(crate) fn held_bytes(&self) -> u64 {
        let state = self.lock();
        state.held * PAGE_SIZE as u64 + state.pages.capacity() as u64 * self.extra_bytes
    }

    /// Returns a number that, like all higher ones, has never been given out.
    pub(crate) fn end(&self) -> u32 {
        self.lock().pages.len() as u32 * self.per_page
    }

    /// Returns whether the number is in use.
    pub(crate) fn is_taken(&self, number: u32) -> bool {
        let state = self.lock();
        state
            .pages
            .get((number / self.per_page) as usize)
            .is_some_and(|page| page.free >> (number % self.per_page) & 1 == 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_have_one_owner(ops in prop::collection::vec(any::<u8>(), 0..600), part_bytes in 128usize..1500) {
            let slab = Slab::new(10_000, part_bytes, 4);
            let budget = Budget::new(u64::MAX, 1);
            let mut taken: Vec<u32> = Vec::new();
            let mut most = 0;
            for op in ops {
                if op < 140 || taken.is_empty() {
                    let number = slab.take(Purpose::Keep, &budget, |_| Ok(())).expect("no limit");
                    prop_assert!(!taken.contains(&number));
                    taken.push(number);
                } else {
                    let number = taken.swap_remove(usize::from(op) % taken.len());
                    let page = number / slab.per_page;
                    let alone = !taken.iter().any(|other| other / slab.per_page == page);
                    let mut given = None;
                    slab.give(number, &budget, |first, count| given = Some((first, count)));
                    prop_assert_eq!(given.is_some(), alone);
                    prop_assert!(given.is_none_or(|(first, count)| (first..first + count).contains(&(number as usize))));
                }
                most = most.max(taken.len());
                let pages = taken.iter().map(|number| number / slab.per_page).collect::<std::collections::BTreeSet<_>>();
                prop_assert_eq!(slab.lock().held, pages.len() as u64);
                prop_assert_eq!(slab.held_bytes(), budget.used());
                prop_assert!(taken.iter().all(|&number| slab.is_taken(number) && number < slab.end()));
            }
            for number in taken {
                slab.give(number, &budget, |_, _| {});
            }
            prop_assert_eq!(slab.lock().held, 0);
        }
    }

    #[test]
    fn numbers_have_an_upper_bound() {
        let slab = Slab::new(16, 512, 0);
        let budget = Budget::new(u64::MAX, 1);
        let taken: Vec<u32> =
            (0..16).map(|_| slab.take(Purpose::Keep, &budget, |_| Ok(())).expect("sixteen")).collect();
        assert_eq!(slab.take(Purpose::Keep, &budget, |_| Ok(())), Err(Full));
        slab.give(taken[3], &budget, |_, _| {});
        assert_eq!(slab.take(Purpose::Keep, &budget, |_| Ok(())), Ok(taken[3]));
    }
}
