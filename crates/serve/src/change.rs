//! Requests that change a device. A request runs in pieces, possibly in parallel, and each piece
//! runs in steps.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use pagefold_disk::{self as disk, BlockDevice, Waits, Zeroes};
use pagefold_executor::Device;

use crate::{
    protocol::{Request, command, command_flag},
    request::{PAGE_BYTES, Refusal, flush_if_asked},
};

/// Bytes zeroed per step on a device that may run out of room.
const ZEROES_STEP_BYTES: u64 = 1 << 20;

/// A change that runs in pieces. The reply is due when all holders are done.
///
/// ```text
/// holders = pieces being written or waiting for room + 1 until the whole payload has been received
/// ```
pub(crate) struct Pieces {
    pub(crate) request: Request,
    holders: AtomicUsize,
    /// The first error; later ones are dropped.
    refusal: Mutex<Option<Refusal>>,
}

impl Pieces {
    /// Creates the value with one holder, the caller.
    pub(crate) fn new(request: Request) -> Arc<Self> {
        Arc::new(Self { request, holders: AtomicUsize::new(1), refusal: Mutex::new(None) })
    }

    /// Adds a holder.
    pub(crate) fn hold(self: &Arc<Self>) -> Arc<Self> {
        self.holders.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self)
    }

    pub(crate) fn fail(&self, refusal: Refusal) {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(refusal);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Removes a holder. For the last one, returns the result to reply with.
    pub(crate) fn done(&self, device: Option<&Device>) -> Option<Result<(), Refusal>> {
        if self.holders.fetch_sub(1, Ordering::AcqRel) != 1 {
            return None;
        }
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(refusal.map_or_else(|| flush_if_asked(&self.request, device), Err))
    }
}

/// Returns how many of `left_bytes` at `offset` to take if at most `most_bytes` are possible: all,
/// or up to a page boundary. Otherwise two threads could change one page.
pub(crate) fn to_page_end(offset: u64, left_bytes: u64, most_bytes: u64) -> usize {
    if left_bytes <= most_bytes {
        return left_bytes as usize;
    }
    most_bytes.saturating_sub((offset + most_bytes) % PAGE_BYTES) as usize
}

/// The result of an attempt.
pub(crate) enum Attempt {
    Done(Result<(), Refusal>),
    /// It stopped for lack of room; the next attempt resumes there.
    NoRoom(Arc<Waits>),
    /// It stopped where it would have to wait for storage; the next attempt resumes there.
    Blocks,
}

/// Whether an attempt may wait for storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Wait,
    DoNotWait,
}

/// A piece of a WRITE, or a whole TRIM or WRITE_ZEROES. On a device whose changes wait for room, a
/// retry does not repeat pages that are already written: another request may have changed them
/// since.
pub(crate) struct Change<B> {
    request: Request,
    offset: u64,
    /// Payload of a WRITE.
    payload: B,
    done_bytes: u64,
}

impl<B: AsRef<[u8]>> Change<B> {
    pub(crate) fn new(request: Request, offset: u64, payload: B) -> Self {
        Self { request, offset, payload, done_bytes: 0 }
    }

    /// Returns the same change with a copy of its payload in another buffer.
    pub(crate) fn with_payload<C: AsRef<[u8]>>(&self, payload: C) -> Change<C> {
        Change { request: self.request, offset: self.offset, payload, done_bytes: self.done_bytes }
    }

    /// Returns the request that it is a part of.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the payload of a WRITE.
    pub(crate) fn payload(&self) -> &[u8] {
        self.payload.as_ref()
    }

    /// Runs the rest of the change.
    pub(crate) fn attempt(&mut self, device: Option<&Device>, storage: Storage) -> Attempt {
        let Some(device) = device else { return Attempt::Done(Err(Refusal::removed())) };
        let len_bytes = match self.request.kind {
            command::WRITE => self.payload.as_ref().len() as u64,
            _ => self.request.len_bytes,
        };
        loop {
            let left_bytes = len_bytes - self.done_bytes;
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
            return match device.waits().filter(|_| matches!(error, disk::Error::NoSpace)) {
                Some(waits) => Attempt::NoRoom(Arc::clone(waits)),
                None => Attempt::Done(Err(Refusal::of(&error, &self.request))),
            };
        }
    }

    /// Returns the size of the next step: everything, unless the rest may have to wait for room.
    fn step_bytes(&self, at: u64, left_bytes: u64, device: &Device) -> u64 {
        let unit_bytes = match self.request.kind {
            command::WRITE => PAGE_BYTES,
            command::WRITE_ZEROES if self.keeps() => ZEROES_STEP_BYTES,
            _ => return left_bytes,
        };
        let to_end_bytes = unit_bytes - at % unit_bytes;
        if left_bytes <= to_end_bytes || device.waits().is_none() { left_bytes } else { to_end_bytes }
    }

    /// Returns how many bytes were changed: fewer than asked for only if the rest would have to wait
    /// for storage.
    fn step(&self, at: u64, step_bytes: u64, device: &Device, storage: Storage) -> Result<u64, disk::Error> {
        let all = |()| step_bytes;
        let all_or_none = |is_done| if is_done { step_bytes } else { 0 };
        let zeroes = if self.keeps() { Zeroes::Allocated } else { Zeroes::MayUnmap };
        match (self.request.kind, storage) {
            (command::WRITE, storage) => {
                let start = self.done_bytes as usize;
                let bytes = self.payload.as_ref().get(start..start + step_bytes as usize).unwrap_or_default();
                match storage {
                    Storage::Wait => device.write(at, bytes).map(all),
                    Storage::DoNotWait => device.try_write(at, bytes).map(|done| done as u64),
                }
            }
            (command::TRIM, Storage::Wait) => device.discard(at, step_bytes).map(all),
            (command::TRIM, Storage::DoNotWait) => device.try_discard(at, step_bytes).map(all_or_none),
            (_, Storage::Wait) => device.write_zeroes(at, step_bytes, zeroes).map(all),
            (_, Storage::DoNotWait) => device.try_write_zeroes(at, step_bytes, zeroes).map(all_or_none),
        }
    }

    fn keeps(&self) -> bool {
        self.request.flags & command_flag::NO_HOLE != 0
    }
}
