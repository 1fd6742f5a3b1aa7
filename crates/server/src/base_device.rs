//! A base as clients use it.

use pagefold_disk::{BlockDevice, Error, Extent, Read, Zeroes};

use crate::backing::BaseDisk;

/// Reads go through the disk over the base, which has the pages that are kept compressed.
impl BlockDevice for BaseDisk {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn may_block(&self) -> bool {
        self.device.may_block()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.pristine.read(offset, buf)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.pristine.try_read(offset, buf)
    }

    fn read_together(&self, reads: &mut [Read<'_>]) {
        self.pristine.read_together(reads);
    }

    fn read_unit_bytes(&self) -> u64 {
        self.device.read_unit_bytes()
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn try_flush(&self) -> Result<bool, Error> {
        Ok(true)
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroes) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        self.device.extents(offset, len_bytes, each)
    }
}
