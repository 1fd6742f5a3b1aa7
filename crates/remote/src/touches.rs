//! Which chunks of blobs are read, in the order of their first use.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::trace::{MOST_CHUNKS, MOST_TRACE_BYTES, Touch};

/// A start is over when it has read nothing new for this long: programs compute between reads.
const QUIET: Duration = Duration::from_secs(1);

/// A start is over after this time.
const LONGEST: Duration = Duration::from_secs(30);

/// Records the reads of one blob.
pub(crate) struct Touches {
    log: Arc<Log>,
    blob: u32,
}

/// The record that several blobs share.
#[derive(Default)]
pub(crate) struct Log(Mutex<State>);

#[derive(Default)]
struct State {
    touches: Vec<Touch>,
    seen: HashSet<Touch>,
    bytes: u64,
    /// Whether [`start`](Log::start) was called: from then on, reads count for the start's end.
    is_started: bool,
    /// Whether the trace was written.
    is_ended: bool,
    /// The first and the last touch since then.
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Log {
    /// Returns the recorder of reads for the blob with this number.
    pub(crate) fn of_blob(self: &Arc<Self>, blob: u32) -> Touches {
        Touches { log: Arc::clone(self), blob }
    }

    /// Begins the time until nothing new is read.
    pub(crate) fn start(&self) {
        self.lock().is_started = true;
    }

    pub(crate) fn is_started(&self) -> bool {
        self.lock().is_started
    }

    /// Returns whether the start is over.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.lock().is_over(now)
    }

    /// Takes the record and stops recording.
    pub(crate) fn end(&self) -> Vec<Touch> {
        let mut state = self.lock();
        (state.is_ended, state.seen) = (true, HashSet::new());
        mem::take(&mut state.touches)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Touches {
    /// Records that chunks are read. `bytes` returns the length of a chunk.
    pub(crate) fn add(&self, chunks: impl IntoIterator<Item = usize>, bytes: impl Fn(usize) -> u64) {
        let mut state = self.log.lock();
        let now = Instant::now();
        if state.is_ended || state.is_over(now) {
            return;
        }
        for chunk in chunks {
            let touch = Touch { blob: self.blob, chunk: chunk as u32 };
            if state.touches.len() == MOST_CHUNKS || state.bytes + bytes(chunk) > MOST_TRACE_BYTES {
                return;
            }
            if state.seen.insert(touch) {
                state.touches.push(touch);
                state.bytes += bytes(chunk);
            }
            if state.is_started {
                state.first.get_or_insert(now);
                state.last = Some(now);
            }
        }
    }

    /// Returns the number of the blob.
    pub(crate) fn number(&self) -> u32 {
        self.blob
    }
}

impl State {
    fn is_over(&self, now: Instant) -> bool {
        let since = |time: Option<Instant>| time.map_or(Duration::ZERO, |time| now.saturating_duration_since(time));
        since(self.first) > LONGEST || since(self.last) > QUIET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_over_when_it_is_quiet() {
        let log = Arc::<Log>::default();
        let touches = log.of_blob(0);
        touches.add([3, 1, 3], |_| 10);
        let later = |time: Duration| log.is_over(Instant::now() + time);
        assert!(!later(LONGEST * 2), "no client has come");
        log.start();
        assert!(!later(LONGEST * 2));
        touches.add([1, 4], |_| 10);
        assert!(!later(QUIET / 2) && later(QUIET * 2));
        let chunks: Vec<_> = log.end().iter().map(|touch| touch.chunk).collect();
        assert_eq!(chunks, [3, 1, 4]);
    }
}
