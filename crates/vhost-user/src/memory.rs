//! The guest's memory, which the frontend shares as files.

use std::{fs::File, io, ops::Deref, os::fd::OwnedFd, sync::Arc};

use rustix::fs::{FsWord, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use serde::{Deserialize, Serialize};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion};

use crate::truncated::Listed;

/// The magic number of a file system of huge pages (Linux, `include/uapi/linux/magic.h`).
const HUGETLBFS: FsWord = 0x9584_58f6;

/// The guest's memory as requests use it. Guests change it at any time, so bytes are copied before
/// they are checked.
#[derive(Debug)]
pub(crate) struct GuestMemory {
    /// Dropped before the mappings.
    listed: Vec<Arc<Listed>>,
    mapped: GuestMemoryMmap<()>,
}

impl GuestMemory {
    /// Returns whether a file was shortened, so that zeros have replaced its mapping.
    pub(crate) fn is_lost(&self) -> bool {
        self.listed.iter().any(|listed| listed.is_lost())
    }
}

impl Deref for GuestMemory {
    type Target = GuestMemoryMmap<()>;

    fn deref(&self) -> &Self::Target {
        &self.mapped
    }
}

/// Regions of memory that a frontend may share.
pub(crate) const MAX_REGIONS: usize = 256;
/// Memory that a frontend may share.
const MAX_MEMORY_BYTES: u64 = 16 << 40;

/// Why memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("memory at guest address {guest:#x} with {len_bytes} bytes goes beyond the end of the address space")]
    Overflow { guest: u64, len_bytes: u64 },
    #[error("the file of the memory at guest address {guest:#x} has {file_bytes} bytes, but {end} are needed")]
    ShortFile { guest: u64, file_bytes: u64, end: u64 },
    #[error("more than {MAX_REGIONS} regions of memory")]
    TooMany,
    #[error("more than {MAX_MEMORY_BYTES} bytes of memory")]
    TooLarge,
    #[error("two regions of memory overlap")]
    Overlap,
    #[error("no region of memory is at guest address {0:#x}")]
    Unknown(u64),
    #[error("memory at guest address {guest:#x} does not consist of whole huge pages, as its file does")]
    HugePages { guest: u64 },
    #[error("cannot map memory of the guest: {0}")]
    Map(#[source] io::Error),
}

/// A region as a frontend describes it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    /// Where the guest sees it.
    pub(crate) guest: u64,
    pub(crate) len_bytes: u64,
    /// Where the frontend sees it.
    pub(crate) user: u64,
    /// Where it begins in the file.
    pub(crate) offset: u64,
}

#[derive(Clone, Debug)]
struct Region {
    description: Description,
    /// `None` if the file cannot be shortened. Dropped before the mapping.
    listed: Option<Arc<Listed>>,
    mapped: Arc<GuestRegionMmap<()>>,
}

/// All regions that a frontend shares, sorted by the guest's addresses.
#[derive(Debug, Default)]
pub(crate) struct Regions(Vec<Region>);

impl Regions {
    /// Maps these regions instead of all others. After an error nothing has changed.
    pub(crate) fn replace(&mut self, regions: Vec<(Description, OwnedFd)>) -> Result<(), MemoryError> {
        let mut new = Self::default();
        for (description, file) in regions {
            new.add(description, file)?;
        }
        *self = new;
        Ok(())
    }

    /// Maps one more region.
    pub(crate) fn add(&mut self, description: Description, file: OwnedFd) -> Result<(), MemoryError> {
        let Description { guest, len_bytes, user, offset } = description;
        if self.0.len() >= MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let overflow = || MemoryError::Overflow { guest, len_bytes };
        let end = guest.checked_add(len_bytes).ok_or_else(overflow)?;
        user.checked_add(len_bytes).ok_or_else(overflow)?;
        let total: u64 = self.0.iter().map(|region| region.description.len_bytes).sum();
        if total.checked_add(len_bytes).is_none_or(|total| total > MAX_MEMORY_BYTES) {
            return Err(MemoryError::TooLarge);
        }
        let at = self.0.partition_point(|region| region.description.guest < guest);
        let before = at.checked_sub(1).and_then(|at| self.0.get(at)).map(|region| region.description);
        let overlaps_before = before.is_some_and(|before| before.guest + before.len_bytes > guest);
        if overlaps_before || self.0.get(at).is_some_and(|after| after.description.guest < end) {
            return Err(MemoryError::Overlap);
        }
        let region = map(description, file, offset.checked_add(len_bytes).ok_or_else(overflow)?)?;
        self.0.insert(at, region);
        Ok(())
    }

    /// Forgets the region at this guest address. Requests that use it keep it until they are done.
    pub(crate) fn remove(&mut self, guest: u64) -> Result<(), MemoryError> {
        let at = self.0.iter().position(|region| region.description.guest == guest);
        self.0.remove(at.ok_or(MemoryError::Unknown(guest))?);
        Ok(())
    }

    /// Returns the memory; `None` if there is none.
    pub(crate) fn memory(&self) -> Option<Arc<GuestMemory>> {
        let mapped = self.0.iter().map(|region| Arc::clone(&region.mapped)).collect();
        let listed = self.0.iter().filter_map(|region| region.listed.clone()).collect();
        let mapped = GuestMemoryMmap::from_arc_regions(mapped).ok()?;
        Some(Arc::new(GuestMemory { listed, mapped }))
    }

    /// Returns the regions and their files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (Description, &File)> {
        self.0.iter().filter_map(|region| Some((region.description, region.mapped.file_offset()?.file())))
    }

    /// Returns the guest's address for the frontend's address `user`.
    pub(crate) fn guest_address(&self, user: u64) -> Option<u64> {
        let offset_in = |region: &Region| {
            let Description { guest, len_bytes, user: start, .. } = region.description;
            user.checked_sub(start).filter(|offset| *offset < len_bytes).map(|offset| guest + offset)
        };
        self.0.iter().find_map(offset_in)
    }
}

/// Maps a region, whose file must have `end` bytes.
fn map(description: Description, file: OwnedFd, end: u64) -> Result<Region, MemoryError> {
    let Description { guest, len_bytes, offset, .. } = description;
    let failed = |error: io::Error| MemoryError::Map(error);
    let system = fstatfs(&file).map_err(|error| failed(error.into()))?;
    let page_bytes = u64::try_from(system.f_bsize).unwrap_or(1).max(1);
    let is_huge = system.f_type == HUGETLBFS;
    if is_huge && !(len_bytes.is_multiple_of(page_bytes) && offset.is_multiple_of(page_bytes)) {
        return Err(MemoryError::HugePages { guest });
    }
    // The first use of a huge page fails like that of a page beyond the file's end if there are none.
    let may_fail = !is_sealed(&file) || is_huge;
    let size = fstat(&file).map_err(|error| failed(error.into()))?.st_size;
    let file_bytes = u64::try_from(size).unwrap_or_default();
    if file_bytes < end {
        return Err(MemoryError::ShortFile { guest, file_bytes, end });
    }
    let len = usize::try_from(len_bytes).map_err(|_| MemoryError::TooLarge)?;
    let mapped = MmapRegion::from_file(FileOffset::new(File::from(file), offset), len);
    let mapped = mapped.map_err(|error| failed(io::Error::other(error)))?;
    let listed = if may_fail { Some(Arc::new(Listed::new(mapped.as_ptr(), len).map_err(failed)?)) } else { None };
    let mapped = GuestRegionMmap::new(mapped, GuestAddress(guest));
    let mapped = Arc::new(mapped.ok_or(MemoryError::Overflow { guest, len_bytes })?);
    Ok(Region { description, listed, mapped })
}

/// Seals a file, so that it never becomes shorter. Returns whether it is sealed.
pub(crate) fn is_sealed(file: &OwnedFd) -> bool {
    // Others may have sealed it, also against further seals.
    let _ = fcntl_add_seals(file, SealFlags::SHRINK);
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn file(len_bytes: u64) -> OwnedFd {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&file, len_bytes).expect("a length");
        file
    }

    fn at(guest: u64, len_bytes: u64) -> Description {
        Description { guest, len_bytes, user: guest.wrapping_add(1 << 40), offset: 0 }
    }

    #[test]
    fn regions_come_and_go_and_never_overlap() {
        let mut regions = Regions::default();
        assert!(regions.memory().is_none());
        for guest in [0x10_000, 0, 0x30_000] {
            regions.add(at(guest, 0x10_000), file(0x10_000)).expect("a region");
        }
        for (guest, len) in [(0, 0x1000), (0x8000, 0x1000), (0x20_000, 0x10_001), (0x2f_000, 0x2000), (0x38_000, 1)] {
            let added = regions.add(at(guest, len), file(0x20_000));
            assert!(matches!(added, Err(MemoryError::Overlap)), "{guest:#x}");
        }
        let addresses = [0x1_0000, 0x2_ffff, 0x3_ffff].map(|guest| regions.guest_address(guest + (1 << 40)));
        assert_eq!(addresses, [Some(0x1_0000), None, Some(0x3_ffff)]);
        assert_eq!(regions.guest_address(0), None);
        regions.remove(0x10_000).expect("it is there");
        assert!(matches!(regions.remove(0x10_000), Err(MemoryError::Unknown(0x10_000))));
        assert_eq!(regions.guest_address(0x1_0000 + (1 << 40)), None);
    }

    #[test]
    fn regions_that_cannot_be_mapped_are_refused() {
        let mut regions = Regions::default();
        let short = regions.add(at(0, 0x2000), file(0x1000));
        assert!(matches!(short, Err(MemoryError::ShortFile { file_bytes: 0x1000, end: 0x2000, .. })));
        let late = regions.add(Description { offset: 0x1000, ..at(0, 0x1000) }, file(0x1fff));
        assert!(matches!(late, Err(MemoryError::ShortFile { .. })));
        let long = regions.add(Description { user: 0, ..at(u64::MAX, 2) }, file(0x1000));
        assert!(matches!(long, Err(MemoryError::Overflow { .. })));
        let (large, beyond) = (at(0, MAX_MEMORY_BYTES + 1), Description { offset: u64::MAX, ..at(0, 1) });
        assert!(matches!(regions.add(large, file(1)), Err(MemoryError::TooLarge)));
        assert!(matches!(regions.add(beyond, file(1)), Err(MemoryError::Overflow { .. })));
        assert!(matches!(regions.add(at(0, 0), file(0x1000)), Err(MemoryError::Map(_))));
        assert!(matches!(regions.add(Description { offset: 1, ..at(0, 1) }, file(0x1000)), Err(MemoryError::Map(_))));
    }

    #[test]
    fn memory_that_can_be_sealed_never_shrinks() {
        let (memory, mut regions) = (file(0x1000), Regions::default());
        regions.add(at(0, 0x1000), memory.try_clone().expect("a copy")).expect("a region");
        assert!(ftruncate(&memory, 0).is_err());
    }
}
