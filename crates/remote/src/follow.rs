//! Following a trace: its chunks arrive with one response, in the order in which a start needs them.
//! Reads of chunks that are about to arrive wait for them; others do not wait for the trace.

use std::{
    collections::VecDeque,
    io::{self, Read},
    sync::{Arc, Weak, mpsc::Receiver},
    thread,
    time::{Duration, Instant},
};

use ureq::http::{Method, StatusCode};

use crate::{
    access::{Access, request},
    blob::{Blob, Claim},
    error::Result,
    http::{Client, TimedBody, server},
    patience::Failure,
    sum::Sum,
    trace::{MOST_TRACE_BYTES, Touch, Trace},
};

/// Reads wait for chunks of the trace up to this many bytes ahead.
const WINDOW_BYTES: u64 = 1 << 20;

/// Readahead skips up to this many bytes after those, because the trace will bring them.
const SOON_BYTES: u64 = 8 << 20;

/// If a window of the trace takes longer than this, reads without the trace are faster.
const LONGEST_WINDOW: Duration = Duration::from_secs(10);

/// How long the response may pause between two parts.
const SILENCE: Duration = Duration::from_secs(20);

/// The blobs of an image, by the sums of their indexes.
pub(crate) type Blobs = Vec<(Sum, Weak<Blob>)>;

/// Starts a thread that fetches the chunks of a trace; `find` returns the ways to the trace. The
/// thread receives the blobs once they are open, and calls `ended` if the trace need not be
/// followed again. Failures are ignored: reads fetch what the thread does not.
pub(crate) fn start(
    client: Arc<Client>,
    blobs: Receiver<Blobs>,
    find: impl FnOnce() -> Result<Vec<Box<dyn Access>>> + Send + 'static,
    ended: impl FnOnce() + Send + 'static,
) {
    let work = move || {
        if let Ok(ways) = find()
            && follow(&client, &ways, &blobs)
        {
            ended();
        }
    };
    let _ = thread::Builder::new().name("trace".to_owned()).spawn(work);
}

/// The result of following a trace on one of the ways to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The trace was followed to its end.
    Done,
    /// It is not a trace of this image.
    Wrong,
    /// This way failed; another one may work.
    Failed,
    /// The image is closed.
    Closed,
}

/// Fetches the chunks of a trace on the first of `ways` that has it. Returns whether the trace need
/// not be followed again: a missing one may be stored later. A mirror may return a wrong trace, so
/// a trace counts as wrong only if the last way, to the registry itself, returns it.
fn follow(client: &Client, ways: &[Box<dyn Access>], blobs: &Receiver<Blobs>) -> bool {
    let hasty = client.hasty();
    let mut open = None;
    for (access, number) in ways.iter().zip(1..) {
        let is_last = number == ways.len();
        let mut turn = None;
        if let Some(rest) = access.rest().filter(|_| !is_last) {
            turn = rest.turn(Instant::now());
            if turn.is_none() {
                continue;
            }
        }
        let (end, failure) = bring(if is_last { client } else { &hasty }, &**access, blobs, &mut open);
        match (&mut turn, failure) {
            (Some(turn), Some(failure)) if failure.passing => turn.failed(Instant::now()),
            (Some(turn), None) if end == End::Done => turn.succeeded(),
            _ => {}
        }
        match end {
            End::Done => return true,
            End::Closed => return false,
            End::Wrong if is_last => return true,
            End::Wrong | End::Failed => {}
        }
    }
    false
}

/// Fetches the chunks of the trace at one place. `open` holds the blobs once they are open.
fn bring(
    client: &Client,
    access: &dyn Access,
    blobs: &Receiver<Blobs>,
    open: &mut Option<Blobs>,
) -> (End, Option<Failure>) {
    let until = Instant::now() + SILENCE;
    let reply = match request(client, access, &Method::GET, &[], None, until) {
        Ok(reply) if reply.status == StatusCode::OK => reply,
        Ok(reply) => {
            let failure = reply.failure("no trace");
            reply.finish();
            return (End::Failed, Some(failure));
        }
        Err(failure) => return (End::Failed, Some(failure)),
    };
    let url = reply.url.clone();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => (End::Wrong, None),
        _ => (End::Failed, Some(Failure::passing(server(&url, &error.to_string())))),
    };
    let mut body = Body { body: reply.into_body(until) };
    let trace = match Trace::read(&mut body) {
        Ok(trace) => trace,
        Err(error) => return failed(error),
    };
    if open.is_none() {
        *open = blobs.recv().ok();
    }
    let Some(open) = open else { return (End::Closed, None) };
    let end = arrive(&trace, &mut body, open);
    open.iter().filter_map(|(_, blob)| blob.upgrade()).for_each(|blob| blob.end_trace());
    end.map_or_else(failed, |end| (end, None))
}

/// A body of which each part may take [`SILENCE`].
struct Body {
    body: TimedBody,
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.body.extend(SILENCE);
        self.body.read(buf)
    }
}

/// Stores the chunks as they arrive.
fn arrive(trace: &Trace, body: &mut dyn Read, blobs: &[(Sum, Weak<Blob>)]) -> io::Result<End> {
    let find = |sum: &Sum| blobs.iter().find(|(of, _)| of == sum).map(|(_, blob)| blob);
    let known: Option<Vec<_>> = trace.blobs.iter().map(find).collect();
    // The trace of another image.
    let Some(known) = known else { return Ok(End::Wrong) };
    for (number, blob) in known.iter().enumerate().filter_map(|(number, blob)| Some((number, blob.upgrade()?))) {
        let chunks = trace.touches.iter().filter(|touch| touch.blob as usize == number);
        blob.begin_trace(chunks.map(|touch| touch.chunk as usize));
    }
    let Some(open) = known.iter().map(|blob| blob.upgrade()).collect::<Option<Vec<_>>>() else {
        return Ok(End::Closed);
    };
    let touches = &trace.touches[..];
    let len_of = |touch: &Touch| open[touch.blob as usize].chunk_bytes(touch.chunk as usize);
    let claim = |touch: &Touch| open[touch.blob as usize].claim(touch.chunk as usize);
    let is_there = |touch: &&Touch| !open[touch.blob as usize].lacks(touch.chunk as usize);
    // The window: the chunks that reads wait for, in order, and their bytes.
    let (mut claims, mut window_bytes) = (VecDeque::<Option<Claim<'_>>>::new(), 0);
    let (mut total, mut checked_at, mut start) = (0, None, Instant::now());
    // Looks up once which chunks are in the cache.
    let mut there = 0;
    for (number, touch) in touches.iter().enumerate() {
        if checked_at.is_none_or(|at| total - at >= WINDOW_BYTES) {
            // Only this thread has the blob.
            if open.iter().any(|blob| Arc::strong_count(blob) == 1) {
                return Ok(End::Closed);
            }
            there = there.max(number);
            there += touches[there..].iter().take_while(is_there).count();
            if there == touches.len() {
                return Ok(End::Done);
            }
            let (soon, _) = first(&touches[number..], WINDOW_BYTES + SOON_BYTES, len_of).unwrap_or_default();
            open.iter().for_each(|blob| blob.announce(of_blobs(&touches[number..][..soon], &open, blob)));
            open.iter().for_each(|blob| blob.let_reads_go());
            (checked_at, start) = (Some(total), Instant::now());
        }
        for next in &touches[number + claims.len()..] {
            let Some(len) = len_of(next) else { return Ok(End::Wrong) };
            if !claims.is_empty() && window_bytes + len > WINDOW_BYTES {
                break;
            }
            claims.push_back(claim(next));
            window_bytes += len;
        }
        if start.elapsed() > LONGEST_WINDOW || open.iter().any(|blob| blob.gives_trace_up()) {
            return Ok(End::Failed);
        }
        let mut bytes = vec![0; len_of(touch).unwrap_or(0) as usize];
        window_bytes -= bytes.len() as u64;
        total += bytes.len() as u64;
        if total > MOST_TRACE_BYTES {
            return Ok(End::Done);
        }
        body.read_exact(&mut bytes)?;
        if claims.pop_front().flatten().is_some_and(|claim| !claim.land(bytes)) {
            return Ok(End::Wrong);
        }
    }
    Ok(End::Done)
}

/// Returns how many touches from the front have at most `most_bytes` together, but at least one,
/// and their bytes. Returns `None` if a chunk does not exist.
fn first(touches: &[Touch], most_bytes: u64, len_of: impl Fn(&Touch) -> Option<u64>) -> Option<(usize, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for touch in touches {
        let len = len_of(touch)?;
        if count > 0 && bytes + len > most_bytes {
            break;
        }
        (count, bytes) = (count + 1, bytes + len);
    }
    Some((count, bytes))
}

/// Returns the chunks of one blob among touches.
fn of_blobs<'a>(touches: &'a [Touch], open: &'a [Arc<Blob>], blob: &'a Arc<Blob>) -> impl Iterator<Item = usize> + 'a {
    let is_of = |touch: &&Touch| Arc::ptr_eq(&open[touch.blob as usize], blob);
    touches.iter().filter(is_of).map(|touch| touch.chunk as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{blob::Noted, index::Indexing};

    const CHUNK_BYTES: usize = 100_000;
    const CHUNKS: usize = 40;

    /// A body that checks, for each chunk, which of the later ones are about to arrive.
    struct Checked<'a>(&'a Blob, usize);

    impl Read for Checked<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let Self(blob, number) = self;
            assert_eq!(buf.len(), CHUNK_BYTES);
            for later in *number..CHUNKS {
                let is_announced = (later + 1 - *number) * CHUNK_BYTES <= WINDOW_BYTES as usize;
                assert_eq!(blob.claim(later).is_none(), is_announced, "chunk {later} before {number}");
            }
            buf.fill(*number as u8);
            *number += 1;
            Ok(buf.len())
        }
    }

    /// Reads of the next chunks wait for them, wherever the trace is.
    #[test]
    fn the_window_moves_with_each_chunk() {
        let mut indexing = Indexing::new();
        (0..CHUNKS).for_each(|number| indexing.add(&vec![number as u8; CHUNK_BYTES]));
        let blob =
            Blob::new("x".into(), Arc::new(indexing.finish()), None, None, true, Duration::ZERO, Noted::default());
        let sum = Sum::of(b"x");
        let touches = (0..CHUNKS as u32).map(|chunk| Touch { blob: 0, chunk }).collect();
        let trace = Trace { blobs: vec![sum], touches };
        let mut body = Checked(&blob, 0);
        let end = arrive(&trace, &mut body, &[(sum, Arc::downgrade(&blob))]).expect("no failure");
        assert_eq!((end, body.1), (End::Done, CHUNKS));
    }
}
