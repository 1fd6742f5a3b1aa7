//! Following a trace: its chunks arrive with one response, in the order in which a start needs them.
//! Reads of chunks that are about to arrive wait for them; others do not wait for the trace.

use std::{
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
    http::{Client, TimedBody},
    sum::Sum,
    trace::{MOST_TRACE_BYTES, Touch, Trace},
};

/// Reads wait for chunks of the trace up to this many bytes ahead.
const WINDOW_BYTES: u64 = 1 << 20;

/// What arrives after that, up to this many bytes, is not fetched ahead besides.
const SOON_BYTES: u64 = 8 << 20;

/// A trace that takes longer for a window is slower than reads without it.
const LONGEST_WINDOW: Duration = Duration::from_secs(10);

/// How long the response may take between its parts.
const SILENCE: Duration = Duration::from_secs(20);

/// The blobs of an image, by the sums of their indexes.
pub(crate) type Blobs = Vec<(Sum, Weak<Blob>)>;

/// Starts a thread that fetches along the trace that `find` returns the ways to. If the trace need not be
/// followed again, the thread calls `ended`. It gets the blobs when they are open. It is only an aid: what
/// fails is left to the reads.
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

/// Fetches along a trace. Returns whether it need not be followed again. One that does not exist may be
/// stored later.
fn follow(client: &Client, ways: &[Box<dyn Access>], blobs: &Receiver<Blobs>) -> bool {
    let until = Instant::now() + SILENCE;
    let ask = |access: &dyn Access| {
        let reply = request(client, access, &Method::GET, &[], None, until).ok()?;
        if reply.status != StatusCode::OK {
            reply.finish();
            return None;
        }
        Some(reply)
    };
    let Some(reply) = ways.iter().find_map(|way| ask(&**way)) else { return false };
    let mut body = Body { body: reply.into_body(until) };
    let trace = match Trace::read(&mut body) {
        Ok(trace) => trace,
        Err(error) => return error.kind() == io::ErrorKind::InvalidData,
    };
    let Ok(blobs) = blobs.recv() else { return false };
    let arrived = arrive(&trace, &mut body, &blobs);
    blobs.iter().filter_map(|(_, blob)| blob.upgrade()).for_each(|blob| blob.announce([]));
    arrived.unwrap_or(false)
}

/// A body each part of which may take as long as a server may be silent.
struct Body {
    body: TimedBody,
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.body.extend(SILENCE);
        self.body.read(buf)
    }
}

/// Takes the chunks as they arrive. Returns whether that is worth no repetition.
fn arrive(trace: &Trace, body: &mut dyn Read, blobs: &[(Sum, Weak<Blob>)]) -> io::Result<bool> {
    let find = |sum: &Sum| blobs.iter().find(|(of, _)| of == sum).map(|(_, blob)| blob);
    let known: Option<Vec<_>> = trace.blobs.iter().map(find).collect();
    // That of another image.
    let Some(known) = known else { return Ok(true) };
    let mut total = 0;
    let mut touches = &trace.touches[..];
    // Which of them are there is looked up once.
    let mut there = 0;
    while !touches.is_empty() {
        let Some(open) = known.iter().map(|blob| blob.upgrade()).collect::<Option<Vec<_>>>() else { return Ok(false) };
        let len_of = |touch: &Touch| open[touch.blob as usize].chunk_bytes(touch.chunk as usize);
        let Some((count, window_bytes)) = first(touches, WINDOW_BYTES, len_of) else { return Ok(true) };
        total += window_bytes;
        let is_there = |touch: &&Touch| !open[touch.blob as usize].lacks(touch.chunk as usize);
        there += touches[there..].iter().take_while(is_there).count();
        if total > MOST_TRACE_BYTES || there == touches.len() {
            return Ok(true);
        }
        let (window, rest) = touches.split_at(count);
        let (soon, _) = first(rest, SOON_BYTES, len_of).unwrap_or_default();
        open.iter().for_each(|blob| blob.announce(of_blobs(&rest[..soon], &open, blob)));
        open.iter().for_each(|blob| blob.let_reads_go());
        let claim = |touch: &Touch| open[touch.blob as usize].claim(touch.chunk as usize);
        let claims: Vec<Option<Claim<'_>>> = window.iter().map(claim).collect();
        let start = Instant::now();
        for (touch, claim) in window.iter().zip(claims) {
            if start.elapsed() > LONGEST_WINDOW || open.iter().any(|blob| blob.gives_trace_up()) {
                return Ok(false);
            }
            let mut bytes = vec![0; len_of(touch).unwrap_or(0) as usize];
            body.read_exact(&mut bytes)?;
            if claim.is_some_and(|claim| !claim.land(bytes)) {
                return Ok(true);
            }
        }
        touches = rest;
        there = there.saturating_sub(count);
    }
    Ok(true)
}

/// Returns how many of the first touches have at most this many bytes together, at least one of them, and
/// their bytes. `None` if a chunk does not exist.
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
