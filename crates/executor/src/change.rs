//! Requests that change a device, which can be resumed.

use std::sync::Arc;

use pagefold_disk::{BlockDevice, Error, Waits, Zeroes};

use crate::{
    completion::Failed,
    export::Device,
    memory::{Lent, Share},
};

/// Page size of devices.
const PAGE_BYTES: u64 = 4096;

/// Bytes zeroed per step on a device that may run out of room.
const ZEROES_STEP_BYTES: u64 = 1 << 20;

/// The result of an attempt.
#[derive(Debug)]
pub enum Attempt {
    /// It is done, or failed permanently.
    Done(Result<(), Failed>),
    /// It stopped for lack of room; the next attempt resumes there.
    NoRoom(Arc<Waits>),
    /// It stopped where it would have to wait for storage; the next attempt resumes there.
    Blocks,
}

/// Whether an attempt may wait for storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It waits for as long as necessary.
    Wait,
    /// It stops instead.
    DoNotWait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Discard,
    WriteZeroes(Zeroes),
}

/// A change of a range of a device. On a device whose changes wait for room, a retry skips pages
/// that it has already changed, because another request may have changed them since.
#[derive(Debug)]
pub struct Change<B> {
    operation: Operation,
    offset: u64,
    len_bytes: u64,
    /// The data of a write.
    payload: B,
    done_bytes: u64,
}

/// The data of a write, or none.
#[derive(Debug, Default)]
pub struct Payload(Option<Lent>);

impl From<Lent> for Payload {
    fn from(lent: Lent) -> Self {
        Self(Some(lent))
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Lent::as_ref)
    }
}

impl<B: AsRef<[u8]>> Change<B> {
    /// Writes `payload` at `offset`.
    pub fn write(offset: u64, payload: B) -> Self {
        let len_bytes = payload.as_ref().len() as u64;
        Self { operation: Operation::Write, offset, len_bytes, payload, done_bytes: 0 }
    }

    /// Returns how many bytes of the range are still to be changed.
    pub fn left_bytes(&self) -> u64 {
        self.len_bytes - self.done_bytes
    }

    /// Runs the rest of the change. Without a device, the export was removed.
    pub fn attempt(&mut self, device: Option<&Device>, storage: Storage) -> Attempt {
        let Some(device) = device else { return Attempt::Done(Err(Failed::Removed)) };
        loop {
            let left_bytes = self.left_bytes();
            if left_bytes == 0 {
                return Attempt::Done(Ok(()));
            }
            let at = self.offset + self.done_bytes;
            let step_bytes = self.step_bytes(at, left_bytes, device);
            let error = match self.step(at, step_bytes, device, storage) {
                Ok(done_bytes) => {
                    self.done_bytes += done_bytes;
                    if done_bytes < step_bytes {
                        return Attempt::Blocks;
                    }
                    continue;
                }
                Err(error) => error,
            };
            return match device.waits().filter(|_| matches!(error, Error::NoSpace)) {
                Some(waits) => Attempt::NoRoom(Arc::clone(waits)),
                None => Attempt::Done(Err(Failed::Device(error))),
            };
        }
    }

    /// Returns the size of the next step: everything, unless the rest may have to wait for room.
    fn step_bytes(&self, at: u64, left_bytes: u64, device: &Device) -> u64 {
        let unit_bytes = match self.operation {
            Operation::Write => PAGE_BYTES,
            Operation::WriteZeroes(Zeroes::Allocated) => ZEROES_STEP_BYTES,
            Operation::WriteZeroes(Zeroes::MayUnmap) | Operation::Discard => return left_bytes,
        };
        let to_end_bytes = unit_bytes - at % unit_bytes;
        if left_bytes <= to_end_bytes || device.waits().is_none() { left_bytes } else { to_end_bytes }
    }

    /// Returns how many bytes were changed: fewer than asked for only if the rest would have to wait
    /// for storage.
    fn step(&self, at: u64, step_bytes: u64, device: &Device, storage: Storage) -> Result<u64, Error> {
        let all = |()| step_bytes;
        let all_or_none = |is_done| if is_done { step_bytes } else { 0 };
        match (self.operation, storage) {
            (Operation::Write, storage) => {
                let start = self.done_bytes as usize;
                let bytes = self.payload.as_ref().get(start..start + step_bytes as usize).unwrap_or_default();
                match storage {
                    Storage::Wait => device.write(at, bytes).map(all),
                    Storage::DoNotWait => device.try_write(at, bytes).map(|done| done as u64),
                }
            }
            (Operation::Discard, Storage::Wait) => device.discard(at, step_bytes).map(all),
            (Operation::Discard, Storage::DoNotWait) => device.try_discard(at, step_bytes).map(all_or_none),
            (Operation::WriteZeroes(zeroes), Storage::Wait) => device.write_zeroes(at, step_bytes, zeroes).map(all),
            (Operation::WriteZeroes(zeroes), Storage::DoNotWait) => {
                device.try_write_zeroes(at, step_bytes, zeroes).map(all_or_none)
            }
        }
    }
}

impl<B: Keep> Change<B> {
    /// Returns the same change with a payload of its own.
    ///
    /// # Errors
    /// There is no memory for one; returns the change as it was.
    pub fn keep(self, share: &Arc<Share>) -> Result<Change<Payload>, Self> {
        let Self { operation, offset, len_bytes, payload, done_bytes } = self;
        match payload.keep(share) {
            Ok(payload) => Ok(Change { operation, offset, len_bytes, payload, done_bytes }),
            Err(payload) => Err(Self { operation, offset, len_bytes, payload, done_bytes }),
        }
    }
}

/// The payload of a change, which may have to be kept while the change waits.
pub trait Keep: AsRef<[u8]> + Sized {
    /// Returns a payload that can be kept: this one, or a copy in memory lent by `share`.
    ///
    /// # Errors
    /// There is no memory for a copy; the payload comes back unchanged.
    fn keep(self, share: &Arc<Share>) -> Result<Payload, Self>;
}

impl Keep for Payload {
    fn keep(self, _: &Arc<Share>) -> Result<Payload, Self> {
        Ok(self)
    }
}

impl Keep for &[u8] {
    fn keep(self, share: &Arc<Share>) -> Result<Payload, Self> {
        if self.is_empty() {
            return Ok(Payload::default());
        }
        let mut lent = share.lend(self.len()).ok_or(self)?;
        lent.as_mut().copy_from_slice(self);
        Ok(lent.into())
    }
}

impl<B: Default> Change<B> {
    /// Frees the memory of a range, which then reads as zeros.
    pub fn discard(offset: u64, len_bytes: u64) -> Self {
        Self { operation: Operation::Discard, offset, len_bytes, payload: B::default(), done_bytes: 0 }
    }

    /// Makes a range read as zeros.
    pub fn write_zeroes(offset: u64, len_bytes: u64, zeroes: Zeroes) -> Self {
        let operation = Operation::WriteZeroes(zeroes);
        Self { operation, offset, len_bytes, payload: B::default(), done_bytes: 0 }
    }
}
