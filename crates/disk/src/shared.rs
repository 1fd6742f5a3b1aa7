//! A shared device is a device.

use std::sync::Arc;

use crate::{BlockDevice, Change, Error, Extent, Read, Waits, Zeroes};

impl<D: BlockDevice + ?Sized> BlockDevice for Arc<D> {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn read_only(&self) -> bool {
        (**self).read_only()
    }

    fn may_block(&self) -> bool {
        (**self).may_block()
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        (**self).waits()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        (**self).read(offset, buf)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        (**self).try_read(offset, buf)
    }

    fn read_together(&self, reads: &mut [Read<'_>]) {
        (**self).read_together(reads);
    }

    fn read_unit_bytes(&self) -> u64 {
        (**self).read_unit_bytes()
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        (**self).write(offset, buf)
    }

    fn try_write(&self, offset: u64, buf: &[u8]) -> Result<usize, Error> {
        (**self).try_write(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        (**self).flush()
    }

    fn try_flush(&self) -> Result<bool, Error> {
        (**self).try_flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        (**self).discard(offset, len_bytes)
    }

    fn try_discard(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        (**self).try_discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        (**self).write_zeroes(offset, len_bytes, zeroes)
    }

    fn try_write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<bool, Error> {
        (**self).try_write_zeroes(offset, len_bytes, zeroes)
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        (**self).extents(offset, len_bytes, each)
    }

    fn knows_changes(&self) -> bool {
        (**self).knows_changes()
    }

    fn changes(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Change) -> bool) -> Result<(), Error> {
        (**self).changes(offset, len_bytes, each)
    }
}
