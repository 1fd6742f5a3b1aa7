//! Single pages out of a region, for the pools that build on pages.
#![allow(unsafe_code)] // reads and writes the region

use std::{io, sync::Arc};

use pagefold_codec::PAGE_SIZE;

use crate::{
    budget::{Budget, Full},
    region::Region,
};

/// Pages that are taken and given one by one. Offsets are those of bytes in the region.
///
/// Whoever holds it exclusively is alone with every page: a pool keeps it behind its lock.
#[derive(Debug)]
pub(crate) struct PageSource {
    region: Region,
    spare: Vec<u32>,
    fresh: u32,
    pages_max: u32,
    budget: Arc<Budget>,
    held_bytes: u64,
}

// Every access is by the holder of the pool's lock, in the form of `&self` that came from its guard; the region checks
// its bounds and is initialised, so that a wrong offset reads wrong bytes and no more.
impl PageSource {
    /// Pages for at most `objects` objects, each of which takes a new page at most.
    pub(crate) fn new(objects: u64, budget: Arc<Budget>) -> io::Result<Self> {
        let pages_max = u32::try_from(objects.saturating_add(64)).ok().filter(|&pages| pages < 1 << 30);
        let pages_max = pages_max.ok_or(io::ErrorKind::OutOfMemory)?;
        let region = Region::reserve(pages_max as usize * PAGE_SIZE)?;
        Ok(Self { region, spare: Vec::new(), fresh: 0, pages_max, budget, held_bytes: 0 })
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Takes a page and returns its offset.
    pub(crate) fn take(&mut self) -> Result<usize, Full> {
        self.budget.take(PAGE_SIZE as u64)?;
        let page = match self.spare.pop() {
            Some(page) => page,
            None if self.fresh < self.pages_max => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => {
                self.budget.give(PAGE_SIZE as u64);
                return Err(Full);
            }
        };
        self.held_bytes += PAGE_SIZE as u64;
        Ok(page as usize * PAGE_SIZE)
    }

    /// Gives the page at `offset` back.
    pub(crate) fn give(&mut self, offset: usize) {
        // SAFETY: see above `impl`; the pool has given up the page.
        unsafe { self.region.give_back(offset, PAGE_SIZE) };
        self.held_bytes -= PAGE_SIZE as u64;
        self.budget.give(PAGE_SIZE as u64);
        self.spare.push((offset / PAGE_SIZE) as u32);
    }

    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        // SAFETY: see above `impl`.
        out.copy_from_slice(unsafe { self.region.bytes(offset, out.len()) });
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: see above `impl`.
        unsafe { self.region.write(offset, bytes) };
    }

    pub(crate) fn load_u16(&self, offset: usize) -> u16 {
        // SAFETY: see above `impl`.
        u16::from_le_bytes(unsafe { self.region.load(offset) })
    }

    pub(crate) fn store_u16(&self, offset: usize, value: u16) {
        self.write(offset, &value.to_le_bytes());
    }

    pub(crate) fn load_u32(&self, offset: usize) -> u32 {
        // SAFETY: see above `impl`.
        u32::from_le_bytes(unsafe { self.region.load(offset) })
    }

    pub(crate) fn store_u32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }
}
