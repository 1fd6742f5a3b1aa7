//! A device whose changes may wait for room.

use std::sync::Arc;

use crate::{BlockDevice, Change, Error, Extent, Read, Waits, Zeroes};

/// A device whose changes can wait for room. It wakes waiting requests when a part of it is
/// discarded, and when it is dropped. Other code that makes room must call
/// [`Room::signal`](crate::Room::signal).
#[derive(Debug)]
pub struct Patient<D> {
    device: D,
    /// Dropped after the device, so that its memory is freed first.
    signal: SignalOnDrop,
}

#[derive(Debug)]
struct SignalOnDrop(Arc<Waits>);

impl Drop for SignalOnDrop {
    fn drop(&mut self) {
        self.0.signal();
    }
}

impl<D: BlockDevice> Patient<D> {
    /// Makes changes of `device` that find no room wait for it with `waits`.
    pub fn new(device: D, waits: Arc<Waits>) -> Self {
        Self { device, signal: SignalOnDrop(waits) }
    }
}

impl<D: BlockDevice> BlockDevice for Patient<D> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_only(&self) -> bool {
        self.device.read_only()
    }

    fn may_block(&self) -> bool {
        self.device.may_block()
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        Some(&self.signal.0)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.device.read(offset, buf)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.device.try_read(offset, buf)
    }

    fn read_together(&self, reads: &mut [Read<'_>]) {
        self.device.read_together(reads);
    }

    fn read_unit_bytes(&self) -> u64 {
        self.device.read_unit_bytes()
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.device.write(offset, buf)
    }

    fn try_write(&self, offset: u64, buf: &[u8]) -> Result<usize, Error> {
        self.device.try_write(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        self.device.flush()
    }

    fn try_flush(&self) -> Result<bool, Error> {
        self.device.try_flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        let result = self.device.discard(offset, len_bytes);
        self.signal.0.signal();
        result
    }

    fn try_discard(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        let result = self.device.try_discard(offset, len_bytes);
        if !matches!(result, Ok(false)) {
            self.signal.0.signal();
        }
        result
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error> {
        let result = self.device.write_zeroes(offset, len_bytes, zeroes);
        if zeroes == Zeroes::MayUnmap {
            self.signal.0.signal();
        }
        result
    }

    fn try_write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<bool, Error> {
        let result = self.device.try_write_zeroes(offset, len_bytes, zeroes);
        if zeroes == Zeroes::MayUnmap && !matches!(result, Ok(false)) {
            self.signal.0.signal();
        }
        result
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        self.device.extents(offset, len_bytes, each)
    }

    fn knows_changes(&self) -> bool {
        self.device.knows_changes()
    }

    fn changes(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Change) -> bool) -> Result<(), Error> {
        self.device.changes(offset, len_bytes, each)
    }
}
