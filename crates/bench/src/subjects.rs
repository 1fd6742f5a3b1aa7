//! The subjects that the store is compared with: the published store, the kernel's zram, and a bare
//! codec.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, ensure};
use pagefold_codec::{Codec, PAGE_SIZE, Page, Stream};
use pagefold_published::{Store, strategy::EntryLock};
use rustix::fs::{FallocateFlags, OFlags};

use crate::load::{Device, Slots, Stored, Worker};

impl<L: EntryLock> Slots for Store<L> {
    fn write_slot(&self, slot: u64, page: &Page) -> anyhow::Result<()> {
        Ok(self.write(slot, page)?)
    }

    fn read_slot(&self, slot: u64, page: &mut Page) -> anyhow::Result<()> {
        Ok(self.read(slot, page)?)
    }
}

/// A codec and a page of room for each object: no table, no pool, no locks. Each thread has its own
/// slots.
pub(crate) struct Bare {
    parts: Vec<Mutex<BareStripe>>,
}

/// Bytes for an object. With a whole number of pages, all objects would share a few sets of the L1
/// cache.
const ROOM: usize = PAGE_SIZE + 64;

struct BareStripe {
    stream: Box<dyn Stream>,
    first_slot: u64,
    objects: Vec<[u8; ROOM]>,
    lens: Vec<usize>,
}

impl Bare {
    /// Makes slots for `threads` threads. Thread `n` uses `part_slots` slots from `n × part_slots`
    /// on.
    pub(crate) fn new(codec: &dyn Codec, threads: usize, part_slots: u64) -> anyhow::Result<Self> {
        let part = |number: usize| {
            anyhow::Ok(Mutex::new(BareStripe {
                stream: codec.stream()?,
                first_slot: number as u64 * part_slots,
                objects: vec![[0; ROOM]; part_slots as usize],
                lens: vec![0; part_slots as usize],
            }))
        };
        Ok(Self { parts: (0..threads).map(part).collect::<Result<_, _>>()? })
    }
}

impl Stored for Bare {
    fn bytes(&self) -> anyhow::Result<(u64, u64)> {
        let lens =
            |part: &Mutex<BareStripe>| part.lock().unwrap_or_else(PoisonError::into_inner).lens.iter().sum::<usize>();
        let bytes = self.parts.iter().map(lens).sum::<usize>() as u64;
        Ok((bytes, bytes))
    }
}

impl Device for Bare {
    fn worker(&self, number: usize) -> anyhow::Result<Box<dyn Worker + '_>> {
        let part = self.parts.get(number).context("more threads than parts")?;
        Ok(Box::new(part.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Worker for MutexGuard<'_, BareStripe> {
    fn write(&mut self, slot: u64, pages: &[Page]) -> anyhow::Result<()> {
        let BareStripe { stream, first_slot, objects, lens } = &mut **self;
        let first = (slot - *first_slot) as usize;
        for (page, (object, len)) in pages.iter().zip(objects[first..].iter_mut().zip(&mut lens[first..])) {
            *len = stream.compress(page, &mut object[..PAGE_SIZE - 1]).unwrap_or(PAGE_SIZE);
            if *len == PAGE_SIZE {
                object[..PAGE_SIZE].copy_from_slice(page);
            }
        }
        Ok(())
    }

    fn read(&mut self, slot: u64, pages: &mut [Page]) -> anyhow::Result<()> {
        let BareStripe { stream, first_slot, objects, lens } = &mut **self;
        let first = (slot - *first_slot) as usize;
        for (page, (object, &len)) in pages.iter_mut().zip(objects[first..].iter().zip(&lens[first..])) {
            if len == PAGE_SIZE {
                page.copy_from_slice(&object[..PAGE_SIZE]);
            } else {
                stream.decompress(&object[..len], page)?;
            }
        }
        Ok(())
    }
}

const ZRAM: &str = "/sys/block/zram0";

/// The kernel's compressed RAM disk, used with `O_DIRECT`. Dropping it resets the disk.
pub(crate) struct Zram {
    file: File,
}

impl Zram {
    pub(crate) const PATH: &str = "/dev/zram0";

    /// Sets up `/dev/zram0` with `algorithm` and room for `slots` pages. Its contents are lost.
    pub(crate) fn new(algorithm: &str, slots: u64) -> anyhow::Result<Self> {
        set("reset", "1").context("cannot reset zram0 (root only, and only while it is unused)")?;
        set("comp_algorithm", algorithm)?;
        set("disksize", &(slots * PAGE_SIZE as u64).to_string())?;
        let direct = OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(Self::PATH)?;
        Ok(Self { file })
    }

    /// Checks that the disk has no contents that [`new`](Self::new) would lose.
    pub(crate) fn check_unused() -> anyhow::Result<()> {
        let size = fs::read_to_string(format!("{ZRAM}/disksize")).context("this kernel has no zram0")?;
        ensure!(size.trim() == "0", "zram0 is set up: `zramctl --reset {}` discards its contents", Self::PATH);
        Ok(())
    }

    /// Discards the slot's page.
    pub(crate) fn discard(&self, slot: u64) -> anyhow::Result<()> {
        let page = PAGE_SIZE as u64;
        Ok(rustix::fs::fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            slot * page,
            page,
        )?)
    }

    /// Makes zsmalloc compact its objects.
    pub(crate) fn compact(&self) -> anyhow::Result<()> {
        set("compact", "1")
    }
}

fn set(attribute: &str, value: &str) -> anyhow::Result<()> {
    fs::write(format!("{ZRAM}/{attribute}"), value).with_context(|| format!("cannot set zram0's {attribute}"))
}

impl Drop for Zram {
    fn drop(&mut self) {
        // The disk stays in use until the file is closed.
        if let Ok(null) = File::open("/dev/null") {
            self.file = null;
        }
        let _ = set("reset", "1");
    }
}

impl Stored for Zram {
    /// Neither figure includes the kernel's table.
    fn bytes(&self) -> anyhow::Result<(u64, u64)> {
        let stat = fs::read_to_string(format!("{ZRAM}/mm_stat"))?;
        let figures: Vec<u64> = stat.split_whitespace().map_while(|figure| figure.parse().ok()).collect();
        ensure!(figures.len() >= 3, "mm_stat has no figures: {stat}");
        Ok((figures[1], figures[2]))
    }
}

impl Device for Zram {
    fn worker(&self, _: usize) -> anyhow::Result<Box<dyn Worker + '_>> {
        Ok(Box::new(&self.file))
    }
}

impl Worker for &File {
    fn write(&mut self, slot: u64, pages: &[Page]) -> anyhow::Result<()> {
        Ok(self.write_all_at(pages.as_flattened(), slot * PAGE_SIZE as u64)?)
    }

    fn read(&mut self, slot: u64, pages: &mut [Page]) -> anyhow::Result<()> {
        Ok(self.read_exact_at(pages.as_flattened_mut(), slot * PAGE_SIZE as u64)?)
    }
}
