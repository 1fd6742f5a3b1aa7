//! What opening an image reads, requested together with the index: opening then waits once for all of it.
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

use crate::{access::Access, blob::Blob, coming::ANNOUNCED, error::Result, http::Client, ranges::Ranges};

/// How long a request may take. If it takes longer, its bytes are not needed anymore.
const LONGEST: Duration = Duration::from_secs(10);

/// Requests for parts of a blob.
#[derive(Default)]
pub(crate) struct Early {
    /// Where each part starts, and the channel on which its bytes arrive.
    coming: Vec<(u64, mpsc::Receiver<Vec<u8>>)>,
}

impl Early {
    /// Requests parts of a blob; `ways` returns the ways to it. Failures are ignored: reads request
    /// the parts again.
    pub(crate) fn request(
        client: &Arc<Client>,
        ways: impl Fn() -> Result<Vec<Box<dyn Access>>>,
        parts: &[Range<u64>],
    ) -> Self {
        let begin = |part: &Range<u64>| {
            let (give, take) = mpsc::channel();
            let (ranges, range) = (Ranges::new(Arc::clone(client), ways().ok()?), part.clone());
            let work = move || {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                let body = ranges.open(range, Instant::now() + LONGEST);
                if body.and_then(|mut body| body.fill(&mut bytes, LONGEST)).is_ok() {
                    // Nothing waits for it if it is late.
                    let _ = give.send(bytes);
                }
            };
            thread::Builder::new().name("early".to_owned()).spawn(work).ok()?;
            Some((part.start, take))
        };
        Self { coming: parts.iter().filter_map(begin).collect() }
    }

    /// Gives the bytes that arrive in time to the blob.
    pub(crate) fn land(self, blob: &Blob) {
        let latest = Instant::now() + ANNOUNCED;
        for (start, coming) in self.coming {
            if let Ok(bytes) = coming.recv_timeout(latest.saturating_duration_since(Instant::now())) {
                blob.offer(start, &bytes);
            }
        }
    }
}
