//! What begins when an image's chunks are missed first.

use std::sync::{Mutex, PoisonError};

type Begin = Box<dyn FnOnce() + Send>;

/// Work that is only worth it if a chunk must be requested.
#[derive(Default)]
pub(crate) struct Missed(Mutex<Option<Begin>>);

impl Missed {
    /// Sets what begins with the next request.
    pub(crate) fn then(&self, begin: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(begin));
    }

    /// Notes that a chunk is requested.
    pub(crate) fn note(&self) {
        let begin = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(begin) = begin {
            begin();
        }
    }
}
