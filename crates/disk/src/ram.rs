//! A disk whose contents live compressed in RAM.

use std::{fmt::Write, io, ops::Range, sync::Arc, time::Duration};

use pagefold_codec::{Codec, Fold};
use pagefold_store::{self as store, Config, PAGE_SIZE, Stats, Status, Store};

use crate::{BlockDevice, Compacted, Error, Extent, Zeroes};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// A disk's size is a multiple of this.
const SECTOR_BYTES: u64 = 512;

/// How a [`RamDisk`] is made.
#[derive(Clone, Debug)]
pub struct RamConfig {
    /// The disk's size, a multiple of 512, not 0.
    pub size_bytes: u64,
    /// What compresses the pages.
    pub codec: Arc<dyn Codec>,
    /// The most memory that the disk may take, everything counted; `u64::MAX` for no limit.
    pub memory_limit: u64,
}

impl Default for RamConfig {
    fn default() -> Self {
        Self { size_bytes: 0, codec: Arc::new(Fold), memory_limit: u64::MAX }
    }
}

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewError {
    /// The size is 0 or no multiple of 512.
    #[error("a disk of {0} bytes cannot be: the size must be a multiple of 512, and more than 0")]
    Size(u64),
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] store::NewError),
}

/// A [`Store`] as a disk of `size_bytes`. Slot `n` holds the bytes from `4096 × n` on; the last slot may reach past the
/// disk's end, and the rest of its page is zeros.
#[derive(Debug)]
pub struct RamDisk {
    store: Store,
    size_bytes: u64,
}

/// The part of a request that lies in one slot.
struct Part {
    slot: u64,
    /// Where in the page.
    at: usize,
    /// Which bytes of the request.
    bytes: Range<usize>,
}

/// Splits a request of `len` bytes at `offset` into its slots' parts.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let offset = offset + done as u64;
        let at = (offset % PAGE_BYTES) as usize;
        let start = done;
        done = len.min(start + PAGE_SIZE - at);
        Some(Part { slot: offset / PAGE_BYTES, at, bytes: start..done })
    })
}

impl RamDisk {
    /// An empty disk.
    pub fn new(config: RamConfig) -> Result<Self, NewError> {
        let RamConfig { size_bytes, codec, memory_limit } = config;
        if size_bytes == 0 || size_bytes % SECTOR_BYTES != 0 {
            return Err(NewError::Size(size_bytes));
        }
        let store =
            Store::new(Config { slots: size_bytes.div_ceil(PAGE_BYTES), codec, memory_limit, ..Config::default() })?;
        Ok(Self { store, size_bytes })
    }

    /// The store's figures.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Makes a range read as zeros: `whole` does it to a slot that lies wholly within.
    fn clear(&self, offset: u64, len_bytes: u64, whole: impl Fn(u64) -> Result<(), store::Error>) -> Result<(), Error> {
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            let slot = at / PAGE_BYTES;
            let page_start = slot * PAGE_BYTES;
            let stop = end.min(page_start + PAGE_BYTES);
            // The bytes past the disk's end are zeros already, so clearing all that is the disk's clears the page.
            let page_end = self.size_bytes.min(page_start + PAGE_BYTES);
            if at == page_start && stop == page_end {
                whole(slot)?;
            } else if self.store.status(slot)? == Status::Data {
                let range = (at - page_start) as usize..(stop - page_start) as usize;
                self.store.update(slot, |page| page[range.clone()].fill(0))?;
            }
            at = stop;
        }
        Ok(())
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Full => Self::NoSpace,
            store::Error::Corrupt { slot, what } => Self::Corrupt { page: slot, what },
            store::Error::NoSuchSlot { slot, slots } => Self::OutOfRange {
                offset: slot.saturating_mul(PAGE_BYTES),
                len_bytes: PAGE_BYTES,
                size_bytes: slots.saturating_mul(PAGE_BYTES),
            },
            other => Self::Io(io::Error::other(other)),
        }
    }
}

impl BlockDevice for RamDisk {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn may_block(&self) -> bool {
        self.store.is_slow()
    }

    fn description(&self) -> String {
        let mut text = format!("pagefold codec={}", self.store.codec_name());
        for (name, value) in self.store.stats().figures() {
            let _ = write!(text, " {name}={value}");
        }
        text
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        for part in parts(offset, buf.len()) {
            let target = &mut buf[part.bytes];
            if let Ok(page) = <&mut [u8; PAGE_SIZE]>::try_from(&mut *target) {
                self.store.read(part.slot, page)?;
            } else {
                let mut page = [0; PAGE_SIZE];
                self.store.read(part.slot, &mut page)?;
                target.copy_from_slice(&page[part.at..part.at + target.len()]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        for part in parts(offset, buf.len()) {
            let source = &buf[part.bytes];
            if let Ok(page) = source.try_into() {
                self.store.write(part.slot, page)?;
            } else {
                self.store.update(part.slot, |page| page[part.at..part.at + source.len()].copy_from_slice(source))?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(()) // RAM is as lasting as this disk gets
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.clear(offset, len_bytes, |slot| self.store.discard(slot))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        self.clear(offset, len_bytes, |slot| match zeroes {
            Zeroes::MayUnmap => self.store.discard(slot),
            Zeroes::Allocated => self.store.write_zeroes(slot),
        })
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        let end = offset + len_bytes;
        let mut at = offset;
        let mut pending: Option<Extent> = None;
        while at < end {
            let slot = at / PAGE_BYTES;
            let slots_left = (end - slot * PAGE_BYTES).div_ceil(PAGE_BYTES);
            let (count, status) = match self.store.empty_run(slot, slots_left) {
                0 => (1, self.store.status(slot)?),
                count => (count, Status::Empty),
            };
            let stop = end.min((slot + count) * PAGE_BYTES);
            let found = Extent { len_bytes: stop - at, hole: status == Status::Empty, zero: status != Status::Data };
            at = stop;
            pending = match pending {
                Some(last) if (last.hole, last.zero) == (found.hole, found.zero) => {
                    Some(Extent { len_bytes: last.len_bytes + found.len_bytes, ..last })
                }
                Some(last) => {
                    if !each(last) {
                        return Ok(());
                    }
                    Some(found)
                }
                None => Some(found),
            };
        }
        if let Some(last) = pending {
            each(last);
        }
        Ok(())
    }

    fn compact(&self, time: Duration) -> Option<Compacted> {
        let before_bytes = self.store.stats().spent_bytes;
        let more = self.store.compact_for(time);
        Some(Compacted { before_bytes, after_bytes: self.store.stats().spent_bytes, more })
    }
}
