//! Work that begins when a chunk of an image is first missing from the cache.

use std::sync::{Mutex, PoisonError};

type Begin = Box<dyn FnOnce() + Send>;

/// Work that is only worth its cost if a chunk must be requested.
#[derive(Default)]
pub(crate) struct Missed(Mutex<Option<Begin>>);

impl Missed {
    /// Sets the work that begins with the next request.
    pub(crate) fn then(&self, begin: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(begin));
    }

    /// Begins the work, since a chunk is requested.
    pub(crate) fn note(&self) {
        let begin = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(begin) = begin {
            begin();
        }
    }
}
