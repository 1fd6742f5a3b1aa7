//! Traces: the chunks of an image that a start reads, in the order of their first use, with their
//! bytes. A later start on another machine gets all of them with one request.
//!
//! ```text
//! 0   magic "pgftrac1"      little-endian
//! 8   number of blobs       four bytes
//! 12  number of chunks      four bytes
//! 16  blobs                 32 bytes each: the SHA-256 sum of the blob's index
//! …   chunks                8 bytes each: number of the blob, number of the chunk in its index
//! …   the bytes of these chunks, in the same order
//! ```
//!
//! Nothing in it is trusted: bytes are compared with the sums of the image's own index.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Read, Write},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{blob::Blob, error::Error, sum::Sum};

/// What the name of a file's trace ends with.
pub const TRACE_SUFFIX: &str = ".trace";

const MAGIC: [u8; 8] = *b"pgftrac1";
const START_BYTES: usize = 16;

/// An image and its devices.
const MOST_BLOBS: usize = 65;

/// The most chunks of a trace.
const MOST_CHUNKS: usize = 64 << 10;

/// The most bytes of a trace's chunks.
pub(crate) const MOST_TRACE_BYTES: u64 = 256 << 20;

/// A start is over when it reads nothing new for so long: programs compute between reads.
const QUIET: Duration = Duration::from_secs(1);

/// A start is over after this time.
const LONGEST: Duration = Duration::from_secs(30);

/// Which chunks are used, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The sums of the blobs' indexes.
    pub(crate) blobs: Vec<Sum>,
    pub(crate) touches: Vec<Touch>,
}

/// The first use of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Touch {
    /// The number of the blob in the trace.
    pub(crate) blob: u32,
    pub(crate) chunk: u32,
}

impl Trace {
    /// Reads the part before the bytes of the chunks.
    ///
    /// # Errors
    /// What is wrong with it, or why it cannot be read.
    pub(crate) fn read(from: &mut dyn Read) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut start = [0; START_BYTES];
        from.read_exact(&mut start)?;
        let number = |at: usize| u32::from_le_bytes(start[at..at + 4].try_into().expect("four bytes")) as usize;
        let (blobs, chunks) = (number(8), number(12));
        if start[..8] != MAGIC {
            return Err(wrong("not a trace"));
        }
        if blobs > MOST_BLOBS || chunks > MOST_CHUNKS {
            return Err(wrong("the trace has too many chunks"));
        }
        let mut sums = vec![0; blobs * 32];
        from.read_exact(&mut sums)?;
        let sums: Vec<_> = sums.as_chunks::<32>().0.iter().map(|sum| Sum(*sum)).collect();
        if sums.iter().collect::<HashSet<_>>().len() < blobs {
            return Err(wrong("invalid trace: a blob twice"));
        }
        let mut entries = vec![0; chunks * 8];
        from.read_exact(&mut entries)?;
        let mut seen = HashSet::with_capacity(chunks);
        let mut touches = Vec::with_capacity(chunks);
        for entry in entries.as_chunks::<8>().0 {
            let entry = u64::from_le_bytes(*entry);
            let touch = Touch { blob: entry as u32, chunk: (entry >> 32) as u32 };
            if touch.blob as usize >= blobs || !seen.insert(touch) {
                return Err(wrong("invalid trace: a chunk twice, or of no blob"));
            }
            touches.push(touch);
        }
        Ok(Self { blobs: sums, touches })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.blobs.len() as u32).to_le_bytes());
        bytes.extend((self.touches.len() as u32).to_le_bytes());
        self.blobs.iter().for_each(|sum| bytes.extend(sum.0));
        for touch in &self.touches {
            bytes.extend((u64::from(touch.blob) | u64::from(touch.chunk) << 32).to_le_bytes());
        }
        bytes
    }
}

/// Notes which chunks of images are read first. Give it to [`Options`](crate::Options), and
/// [write](Self::write) what it noted.
#[derive(Default)]
pub struct Recorder {
    log: Arc<Log>,
    blobs: Mutex<Vec<(Sum, Option<Arc<Blob>>)>>,
}

/// How a blob notes what is read of it.
pub(crate) struct Touches {
    log: Arc<Log>,
    blob: u32,
}

#[derive(Default)]
struct Log(Mutex<State>);

#[derive(Default)]
struct State {
    touches: Vec<Touch>,
    seen: HashSet<Touch>,
    bytes: u64,
    /// Whether what is read now is part of what ends.
    is_started: bool,
    /// Whether the trace was written.
    is_ended: bool,
    /// The first and the last touch since then.
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Touches {
    /// Notes that chunks are read. `bytes` returns the length of one.
    pub(crate) fn add(&self, chunks: impl IntoIterator<Item = usize>, bytes: impl Fn(usize) -> u64) {
        let mut state = lock(&self.log.0);
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
}

impl State {
    /// Takes what was noted. Nothing more is.
    fn end(&mut self) -> Vec<Touch> {
        (self.is_ended, self.seen) = (true, HashSet::new());
        mem::take(&mut self.touches)
    }

    fn is_over(&self, now: Instant) -> bool {
        let since = |time: Option<Instant>| time.map_or(Duration::ZERO, |time| now.saturating_duration_since(time));
        since(self.first) > LONGEST || since(self.last) > QUIET
    }
}

impl Recorder {
    /// Returns how the next blob, which has this index, notes what is read of it. `None` if that is not
    /// part of the trace.
    pub(crate) fn begin(&self, index: Sum) -> Option<Touches> {
        if lock(&self.log.0).is_started {
            return None;
        }
        let mut blobs = lock(&self.blobs);
        blobs.push((index, None));
        Some(Touches { log: Arc::clone(&self.log), blob: blobs.len() as u32 - 1 })
    }

    pub(crate) fn add(&self, touches: u32, blob: &Arc<Blob>) {
        if let Some((_, place)) = lock(&self.blobs).get_mut(touches as usize) {
            *place = Some(Arc::clone(blob));
        }
    }

    /// From now on, the time counts until nothing new is read: clients may come. What is opened later is
    /// not part of the trace.
    pub fn start(&self) {
        lock(&self.log.0).is_started = true;
    }

    /// Returns whether something was read, and then nothing new for a second; or whether that has
    /// lasted for 30 seconds.
    pub fn is_over(&self) -> bool {
        lock(&self.log.0).is_over(Instant::now())
    }

    /// Ends the recording, and writes the trace. Returns the number of chunks and their bytes.
    ///
    /// # Errors
    /// A chunk cannot be read anymore, or `to` fails.
    pub fn write(&self, to: &mut dyn Write) -> io::Result<(usize, u64)> {
        let touches = lock(&self.log.0).end();
        let (blobs, touches) = used(mem::take(&mut *lock(&self.blobs)), &touches);
        let trace = Trace { blobs: blobs.iter().map(|(sum, _)| *sum).collect(), touches };
        if trace.blobs.len() > MOST_BLOBS {
            return Err(io::Error::other("a trace is of one image with its devices"));
        }
        to.write_all(&trace.encode())?;
        let mut bytes = 0;
        for part in trace.touches.chunks(64) {
            let mut read = HashMap::new();
            for (number, (_, blob)) in blobs.iter().enumerate() {
                let chunks = part.iter().filter(|touch| touch.blob as usize == number);
                let mut chunks: Vec<_> = chunks.map(|touch| touch.chunk as usize).collect();
                chunks.sort_unstable();
                let Some(blob) = blob.as_ref().filter(|_| !chunks.is_empty()) else { continue };
                for (chunk, content) in blob.read_chunks(chunks).map_err(io::Error::from)? {
                    read.insert(Touch { blob: number as u32, chunk: chunk as u32 }, content);
                }
            }
            for touch in part {
                let content = read.get(touch).ok_or_else(|| Error::Offline("a chunk of the trace".to_owned()))?;
                to.write_all(content)?;
                bytes += content.len() as u64;
            }
        }
        Ok((trace.touches.len(), bytes))
    }
}

/// Returns the blobs that were touched, each once, and the touches with the numbers that these have.
fn used<B>(blobs: Vec<(Sum, B)>, touches: &[Touch]) -> (Vec<(Sum, B)>, Vec<Touch>) {
    let sums: Vec<_> = blobs.iter().map(|(sum, _)| *sum).collect();
    let touched: HashSet<_> = touches.iter().map(|touch| sums[touch.blob as usize]).collect();
    let mut numbers = HashMap::new();
    let mut used = Vec::new();
    for (sum, blob) in blobs {
        if touched.contains(&sum) && !numbers.contains_key(&sum) {
            numbers.insert(sum, used.len() as u32);
            used.push((sum, blob));
        }
    }
    let mut seen = HashSet::new();
    let renumbered = touches.iter().map(|touch| Touch { blob: numbers[&sums[touch.blob as usize]], ..*touch });
    let renumbered = renumbered.filter(|touch| seen.insert(*touch)).collect();
    (used, renumbered)
}

impl Touches {
    pub(crate) fn number(&self) -> u32 {
        self.blob
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace(chunks: impl IntoIterator<Item = u32>) -> Trace {
        let touches = chunks.into_iter().map(|chunk| Touch { blob: chunk % 2, chunk }).collect();
        Trace { blobs: vec![Sum::of(b"a"), Sum::of(b"b")], touches }
    }

    proptest! {
        #[test]
        fn reads_what_it_encodes(chunks in proptest::collection::hash_set(any::<u32>(), 0..50)) {
            let trace = trace(chunks);
            prop_assert_eq!(Trace::read(&mut &trace.encode()[..]).expect("a trace"), trace);
        }

        /// Changed bytes give an error, or a trace without a chunk twice.
        #[test]
        fn hostile_bytes(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
                         cut in proptest::option::of(any::<prop::sample::Index>())) {
            let mut bytes = trace(0..20).encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len() + 1)));
            if let Ok(trace) = Trace::read(&mut &bytes[..]) {
                let once: HashSet<_> = trace.touches.iter().collect();
                prop_assert!(once.len() == trace.touches.len() && trace.blobs.len() <= MOST_BLOBS);
                prop_assert!(trace.touches.iter().all(|touch| (touch.blob as usize) < trace.blobs.len()));
            }
        }
    }

    #[test]
    fn only_what_is_touched_is_written() {
        let sums = [b"a", b"b", b"a", b"c"].map(|of| Sum::of(of));
        let touches = [(3, 5), (2, 1), (0, 2), (0, 1), (3, 1)].map(|(blob, chunk)| Touch { blob, chunk });
        let (blobs, touches) = used(sums.into_iter().zip(0..).collect(), &touches);
        assert_eq!(blobs, [(sums[0], 0), (sums[3], 3)]);
        let touches: Vec<_> = touches.iter().map(|touch| (touch.blob, touch.chunk)).collect();
        assert_eq!(touches, [(1, 5), (0, 1), (0, 2), (1, 1)]);
        let twice = Trace { blobs: vec![sums[0], sums[2]], touches: Vec::new() };
        Trace::read(&mut &twice.encode()[..]).expect_err("a blob twice");
    }

    #[test]
    fn a_start_is_over_when_it_is_quiet() {
        let recorder = Recorder::default();
        let touches = recorder.begin(Sum::of(b"a")).expect("in time");
        touches.add([3, 1, 3], |_| 10);
        let later = |time: Duration| lock(&recorder.log.0).is_over(Instant::now() + time);
        assert!(!later(LONGEST * 2), "no client has come");
        recorder.start();
        assert!(!later(LONGEST * 2));
        assert!(recorder.begin(Sum::of(b"b")).is_none());
        touches.add([1, 4], |_| 10);
        assert!(!later(QUIET / 2) && later(QUIET * 2));
        let chunks: Vec<_> = lock(&recorder.log.0).touches.iter().map(|touch| touch.chunk).collect();
        assert_eq!(chunks, [3, 1, 4]);
    }
}
