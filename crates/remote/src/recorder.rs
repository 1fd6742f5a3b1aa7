//! Records a trace: what a start reads from an image.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Write},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{
    blob::Blob,
    error::Error,
    sum::Sum,
    touches::{Log, Touches},
    trace::{MOST_BLOBS, Touch, Trace},
};

/// Records which chunks of images are read, and in which order. Set it in
/// [`Options`](crate::Options), and [write](Self::write) the trace at the end.
#[derive(Default)]
pub struct Recorder {
    log: Arc<Log>,
    blobs: Mutex<Vec<(Sum, Option<Arc<Blob>>)>>,
}

impl Recorder {
    /// Returns the recorder of reads for the next blob, whose index has this sum. Returns `None` if
    /// the blob is not part of the trace.
    pub(crate) fn begin(&self, index: Sum) -> Option<Touches> {
        if self.log.is_started() {
            return None;
        }
        let mut blobs = lock(&self.blobs);
        blobs.push((index, None));
        Some(self.log.of_blob(blobs.len() as u32 - 1))
    }

    pub(crate) fn add(&self, touches: u32, blob: &Arc<Blob>) {
        if let Some((_, place)) = lock(&self.blobs).get_mut(touches as usize) {
            *place = Some(Arc::clone(blob));
        }
    }

    /// Records that clients may connect from now on: the wait until nothing new is read begins.
    /// Images opened later are not part of the trace.
    pub fn start(&self) {
        self.log.start();
    }

    /// Returns whether something was read and then nothing new for a second, or whether the start
    /// has taken 30 seconds.
    pub fn is_over(&self) -> bool {
        self.log.is_over(Instant::now())
    }

    /// Ends the recording, and writes the trace. Returns the number of chunks and their bytes.
    ///
    /// # Errors
    /// A chunk cannot be read anymore, or `to` fails.
    pub fn write(&self, to: &mut dyn Write) -> io::Result<(usize, u64)> {
        let touches = self.log.end();
        let (blobs, touches) = used(mem::take(&mut *lock(&self.blobs)), &touches);
        let trace = Trace { blobs: blobs.iter().map(|(sum, _)| *sum).collect(), touches };
        if trace.blobs.len() > MOST_BLOBS {
            return Err(io::Error::other("a trace covers a single image and its devices"));
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_opened_after_the_start_is_not_noted() {
        let recorder = Recorder::default();
        assert!(recorder.begin(Sum::of(b"a")).is_some());
        recorder.start();
        assert!(recorder.begin(Sum::of(b"b")).is_none());
    }
}
