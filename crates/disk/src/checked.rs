//! A wrapper that validates every request.

use std::sync::Arc;

use crate::{BlockDevice, Change, Error, Extent, Read, Waits, Zeroes};

/// A device whose requests are validated: range, writability, emptiness.
///
/// A request of zero bytes within the device succeeds and does nothing.
#[derive(Debug)]
pub struct Checked<D> {
    device: D,
    read_only: bool,
}

impl<D: BlockDevice> Checked<D> {
    /// Wraps `device`.
    pub fn new(device: D) -> Self {
        let read_only = device.read_only();
        Self { device, read_only }
    }

    /// Wraps `device` and rejects changes even if the device supports them.
    pub fn read_only(device: D) -> Self {
        Self { device, read_only: true }
    }

    /// Returns the wrapped device.
    pub fn get_ref(&self) -> &D {
        &self.device
    }

    /// Checks the range, and returns whether it is not empty.
    #[inline]
    fn check(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        let size_bytes = self.device.size_bytes();
        match offset.checked_add(len_bytes) {
            Some(end) if end <= size_bytes => Ok(len_bytes != 0),
            _ => Err(Error::OutOfRange { offset, len_bytes, size_bytes }),
        }
    }

    #[inline]
    fn check_change(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        if self.read_only { Err(Error::ReadOnly) } else { self.check(offset, len_bytes) }
    }
}

impl<D: BlockDevice> BlockDevice for Checked<D> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn may_block(&self) -> bool {
        self.device.may_block()
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        self.device.waits()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if self.check(offset, buf.len() as u64)? { self.device.read(offset, buf) } else { Ok(()) }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        if self.check(offset, buf.len() as u64)? { self.device.try_read(offset, buf) } else { Ok(0) }
    }

    fn read_together(&self, reads: &mut [Read<'_>]) {
        let is_valid = |read: &Read<'_>| matches!(self.check(read.offset, read.buf.len() as u64), Ok(true));
        if reads.iter().all(is_valid) {
            return self.device.read_together(reads);
        }
        for read in reads {
            read.result = self.read(read.offset, read.buf);
        }
    }

    fn read_unit_bytes(&self) -> u64 {
        self.device.read_unit_bytes()
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        if self.check_change(offset, buf.len() as u64)? { self.device.write(offset, buf) } else { Ok(()) }
    }

    fn try_write(&self, offset: u64, buf: &[u8]) -> Result<usize, Error> {
        if self.check_change(offset, buf.len() as u64)? { self.device.try_write(offset, buf) } else { Ok(0) }
    }

    fn flush(&self) -> Result<(), Error> {
        self.device.flush()
    }

    fn try_flush(&self) -> Result<bool, Error> {
        self.device.try_flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        if self.check_change(offset, len_bytes)? { self.device.discard(offset, len_bytes) } else { Ok(()) }
    }

    fn try_discard(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        if self.check_change(offset, len_bytes)? { self.device.try_discard(offset, len_bytes) } else { Ok(true) }
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        if self.check_change(offset, len_bytes)? { self.device.write_zeroes(offset, len_bytes, zeroes) } else { Ok(()) }
    }

    fn try_write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<bool, Error> {
        if self.check_change(offset, len_bytes)? {
            self.device.try_write_zeroes(offset, len_bytes, zeroes)
        } else {
            Ok(true)
        }
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        if self.check(offset, len_bytes)? { self.device.extents(offset, len_bytes, each) } else { Ok(()) }
    }

    fn knows_changes(&self) -> bool {
        self.device.knows_changes()
    }

    fn changes(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Change) -> bool) -> Result<(), Error> {
        if self.check(offset, len_bytes)? { self.device.changes(offset, len_bytes, each) } else { Ok(()) }
    }
}
