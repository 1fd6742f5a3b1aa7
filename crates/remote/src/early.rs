//! Requests the ranges that opening an image reads together with the index, so that opening waits
//! only once.
//!
//! The manifest lists the ranges, and none of the bytes are trusted: they are compared with the
//! sums of the index once that has arrived. Bytes that are wrong, late or missing are requested
//! again when they are read.

use std::{
    ops::Range,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{
    access::Access,
    blob::Blob,
    cache::{Cache, Right},
    coming::ANNOUNCED,
    error::Result,
    http::Client,
    ranges::Ranges,
    sum::Sum,
};

/// How long a request may take. If it takes longer, its bytes are not needed anymore.
const LONGEST: Duration = Duration::from_secs(10);

/// Interval between two checks whether another process has requested the parts.
const PAUSE: Duration = Duration::from_millis(2);

/// Requests for parts of a blob.
pub(crate) enum Early {
    /// Requests of this process.
    Here {
        /// Where each part starts, and the channel on which its bytes arrive.
        coming: Vec<(u64, mpsc::Receiver<Vec<u8>>)>,
        /// Held so that other processes that share the cache do not request the parts too.
        _right: Option<Right>,
    },
    /// Another process that shares the cache requests the parts, and has this right until they are
    /// stored.
    Elsewhere(Right),
}

impl Early {
    /// Requests parts of the blob whose index has the sum `of`, unless another process that shares
    /// `cache` does. `ways` returns the ways to the blob. Failures are ignored: reads request the
    /// parts again.
    pub(crate) fn request(
        client: &Arc<Client>,
        ways: impl Fn() -> Result<Vec<Box<dyn Access>>>,
        parts: &[Range<u64>],
        cache: Option<&Cache>,
        of: Sum,
    ) -> Option<Self> {
        let right = match cache.and_then(|cache| cache.right_to_open(of)) {
            Some(right) if !right.try_take() => return Some(Self::Elsewhere(right)),
            right => right,
        };
        // Another process may have opened the image since this one looked for the index.
        if right.is_some() && cache.is_some_and(|cache| cache.index(of).is_some()) {
            return None;
        }
        let begin = |part: &Range<u64>| {
            let (give, take) = mpsc::channel();
            let (ranges, range) = (Ranges::new(Arc::clone(client), ways().ok()?), part.clone());
            let work = move || {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                let body = ranges.open(range, Instant::now() + LONGEST);
                if body.and_then(|mut body| body.fill(&mut bytes, LONGEST)).is_ok() {
                    // If the part is late, no thread waits for it any more.
                    let _ = give.send(bytes);
                }
            };
            thread::Builder::new().name("early".to_owned()).spawn(work).ok()?;
            Some((part.start, take))
        };
        Some(Self::Here { coming: parts.iter().filter_map(begin).collect(), _right: right })
    }
    /// Returns the requests of another process that has stored the index but not the parts yet.
    pub(crate) fn elsewhere(cache: Option<&Cache>, of: Sum) -> Option<Self> {
        let right = cache?.right_to_open(of)?;
        (!right.try_take()).then_some(Self::Elsewhere(right))
    }

    /// Gives the bytes that arrive in time to the blob, or waits until another process has stored
    /// them.
    pub(crate) fn land(self, blob: &Blob) {
        let latest = Instant::now() + ANNOUNCED;
        match self {
            Self::Here { coming, _right } => {
                for (start, coming) in coming {
                    if let Ok(bytes) = coming.recv_timeout(latest.saturating_duration_since(Instant::now())) {
                        blob.offer(start, &bytes);
                    }
                }
            }
            Self::Elsewhere(right) => {
                while !right.try_take() && Instant::now() < latest {
                    thread::sleep(PAUSE);
                }
            }
        }
    }
}
