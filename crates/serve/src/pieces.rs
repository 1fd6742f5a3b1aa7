//! Requests that change a device, and run in pieces, possibly in parallel.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use pagefold_disk::Zeroes;
use pagefold_executor::{Change, Device};

use crate::{
    protocol::{Request, command, command_flag},
    request::{Arrived, PAGE_BYTES, Refusal, flush_if_asked},
};

/// A change that runs in pieces. The reply is due when all holders are done.
///
/// ```text
/// holders = pieces being written or waiting for room + 1 until the whole payload has been received
/// ```
pub(crate) struct Pieces {
    pub(crate) request: Arrived,
    holders: AtomicUsize,
    /// The first error; later ones are dropped.
    refusal: Mutex<Option<Refusal>>,
}

impl Pieces {
    /// Creates the value with one holder, the caller.
    pub(crate) fn new(request: Arrived) -> Arc<Self> {
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

    /// Returns the first error.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

/// Returns how many of `left_bytes` at `offset`, at most `most_bytes`, the next piece takes: all,
/// or up to a page boundary, so that no two threads change one page.
pub(crate) fn to_page_end(offset: u64, left_bytes: u64, most_bytes: u64) -> usize {
    if left_bytes <= most_bytes {
        return left_bytes as usize;
    }
    most_bytes.saturating_sub((offset + most_bytes) % PAGE_BYTES) as usize
}

/// Returns the whole change that a request asks for. `payload` is that of a WRITE.
pub(crate) fn whole_change<B: AsRef<[u8]> + Default>(request: &Request, payload: B) -> Change<B> {
    let Request { offset, len_bytes, .. } = *request;
    match request.kind {
        command::WRITE => Change::write(offset, payload),
        command::TRIM => Change::discard(offset, len_bytes),
        _ => {
            let keeps = request.flags & command_flag::NO_HOLE != 0;
            Change::write_zeroes(offset, len_bytes, if keeps { Zeroes::Allocated } else { Zeroes::MayUnmap })
        }
    }
}
