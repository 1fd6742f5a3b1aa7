//! An image in a blob, whose chunks are fetched when they are first read.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_storage::ReadAt;

use crate::{
    cache::Chunks,
    coming::{ANNOUNCED, Coming},
    cut::READ_TOGETHER_BYTES,
    error::{Error, Result},
    index::Index,
    location::shown,
    missed::Missed,
    patience::{Failure, Patience},
    ranges::{RangeBody, Ranges},
    recent::{Bytes, Recent},
    touches::Touches,
};

/// The longest range of one request.
const MOST_RANGE_BYTES: u64 = 4 << 20;

/// The longest range of a request for chunks that no reader waits for: requests of readers go
/// between two of these.
const MOST_AHEAD_BYTES: u64 = 512 << 10;

/// The most requests for one blob at a time.
const MOST_REQUESTS: usize = 8;

/// Maximum number of concurrent requests for chunks that no reader waits for.
const MOST_AHEAD: usize = 6;

/// Approximate maximum of the bytes of a read's chunks that are in memory together.
const MOST_TOGETHER_BYTES: u64 = 16 << 20;

/// If a chunk differs from its sum this many times in a row, the server's file counts as another
/// one.
const MOST_WRONG_SUMS: u32 = 3;

/// An image in a blob on a server. Reads fetch missing chunks. Each chunk, also one from the cache,
/// is compared with its sum before its first byte is used.
pub struct Blob {
    name: String,
    index: Arc<Index>,
    /// `None`: requests are not allowed.
    ranges: Option<Ranges>,
    chunks: Option<Chunks>,
    /// Whether chunks are compared with their sums.
    is_verified: bool,
    /// How long failures are waited out.
    limit: Duration,
    noted: Noted,
    /// The chunks that a trace announces.
    coming: Mutex<Coming>,
    recent: Mutex<Recent>,
    flights: Mutex<HashMap<usize, Arc<Flight>>>,
    gate: Gate,
    requests: AtomicU64,
    fetched_bytes: AtomicU64,
}

/// Counts of what was fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Requests for ranges, with their repetitions.
    pub requests: u64,
    /// Bytes of chunks that arrived.
    pub bytes: u64,
}

/// The observers of a blob's use.
#[derive(Default)]
pub(crate) struct Noted {
    /// The recorder of reads.
    pub(crate) touches: Option<Touches>,
    /// The ranges that are requested with the index: traces leave them out.
    pub(crate) opening: Vec<Range<u64>>,
    /// Work that begins with the first request.
    pub(crate) missed: Arc<Missed>,
}

/// Whether a reader waits for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Now,
    Ahead,
}

impl Blob {
    pub(crate) fn new(
        name: String,
        index: Arc<Index>,
        ranges: Option<Ranges>,
        chunks: Option<Chunks>,
        is_verified: bool,
        limit: Duration,
        noted: Noted,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            index,
            ranges,
            chunks,
            is_verified,
            limit,
            noted,
            coming: Mutex::default(),
            recent: Mutex::default(),
            flights: Mutex::default(),
            gate: Gate::default(),
            requests: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
        })
    }

    /// Returns the image's index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the counts since the blob was opened.
    pub fn fetched(&self) -> Fetched {
        Fetched { requests: self.requests.load(Relaxed), bytes: self.fetched_bytes.load(Relaxed) }
    }

    /// Returns the bytes of the image whose chunks the cache holds.
    pub fn held_bytes(&self) -> u64 {
        let marked = self.chunks.as_ref().map_or_else(Vec::new, |chunks| chunks.marked(0..self.index.len()));
        let held = marked.into_iter().enumerate().filter(|(_, is_held)| *is_held);
        held.map(|(chunk, _)| self.index.range(chunk)).map(|range| range.end - range.start).sum()
    }

    /// Fetches all chunks that the cache lacks; readers' requests go first. Calls `progress` with
    /// the bytes of the image that the cache has.
    ///
    /// # Errors
    /// As for a read.
    pub fn fetch_all(&self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        self.each_batch(0..self.index.size_bytes(), &mut |batch| {
            self.load(batch.clone(), Need::Ahead)?;
            progress(self.index.range(batch.end - 1).end);
            Ok(())
        })
    }

    /// Calls `take` with all chunks in order; readers' requests go first.
    pub(crate) fn each_chunk(&self, take: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.each_batch(0..self.index.size_bytes(), &mut |batch| {
            let mut chunks = self.load(batch, Need::Ahead)?;
            chunks.sort_unstable_by_key(|(chunk, _)| *chunk);
            chunks.iter().try_for_each(|(_, bytes)| take(bytes))
        })
    }

    /// Returns these chunks; readers' requests go first.
    pub(crate) fn read_chunks(&self, chunks: Vec<usize>) -> Result<Vec<(usize, Bytes)>> {
        self.load(chunks, Need::Ahead)
    }

    /// Returns the length of a chunk, if there is such a chunk.
    pub(crate) fn chunk_bytes(&self, chunk: usize) -> Option<u64> {
        let range = (chunk < self.index.len()).then(|| self.index.range(chunk))?;
        Some(range.end - range.start)
    }

    /// Returns whether a chunk exists and is missing.
    pub(crate) fn lacks(&self, chunk: usize) -> bool {
        chunk < self.index.len() && !self.has(chunk)
    }

    fn has(&self, chunk: usize) -> bool {
        let is_stored = || self.chunks.as_ref().is_some_and(|chunks| chunks.marked(chunk..chunk + 1) == [true]);
        lock(&self.recent).has(chunk) || is_stored()
    }

    /// Begins to follow a trace with these chunks, in place of what an earlier one announced.
    pub(crate) fn begin_trace(&self, chunks: impl IntoIterator<Item = usize>) {
        *lock(&self.coming) = Coming::of(chunks);
    }

    /// Ends the trace.
    pub(crate) fn end_trace(&self) {
        self.begin_trace([]);
    }

    /// Announces chunks that will arrive soon: readahead skips them, but reads do not wait for
    /// them.
    pub(crate) fn announce(&self, chunks: impl IntoIterator<Item = usize>) {
        lock(&self.coming).announce(chunks, Instant::now());
    }

    /// Returns whether announced chunks were late too often.
    pub(crate) fn gives_trace_up(&self) -> bool {
        lock(&self.coming).is_hopeless()
    }

    /// Waits while reads wait for a request of theirs to begin.
    pub(crate) fn let_reads_go(&self) {
        drop(self.gate.enter(Need::Ahead));
    }

    /// Announces that an existing chunk is about to arrive, so that reads of it wait for a moment.
    /// Returns `None` if it is in the cache or being fetched.
    pub(crate) fn claim(&self, chunk: usize) -> Option<Claim<'_>> {
        let landing = match lock(&self.flights).entry(chunk) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(vacant) => {
                let flight = Arc::new(Flight { is_announced: true, ..Flight::default() });
                Landing { blob: self, chunk, flight: Arc::clone(vacant.insert(flight)) }
            }
        };
        // The chunk is not locked: it may take long to arrive, and other processes would wait for
        // it.
        let is_fetched = self.chunks.as_ref().is_some_and(|chunks| chunks.is_locked(chunk));
        (!is_fetched && !self.has(chunk)).then_some(Claim { landing })
    }

    /// Takes bytes of the blob, from `start` on, that one request returned: stores the whole chunks
    /// in them whose sums are right.
    pub(crate) fn offer(&self, start: u64, bytes: &[u8]) {
        self.requests.fetch_add(1, Relaxed);
        for chunk in self.index.around(start..start.saturating_add(bytes.len() as u64)) {
            let range = self.index.range(chunk);
            let part =
                range.start.checked_sub(start).and_then(|from| bytes.get(from as usize..(range.end - start) as usize));
            if let Some(part) = part.filter(|_| self.index.stored(chunk) == range)
                && let Some(claim) = self.claim(chunk)
            {
                claim.land(part.to_vec());
            }
        }
    }

    /// Calls `each` with the chunks around a range, in batches that fit in memory.
    fn each_batch<E>(&self, range: Range<u64>, each: &mut dyn FnMut(Range<usize>) -> Result<(), E>) -> Result<(), E> {
        let chunks = self.index.around(range);
        let mut start = chunks.start;
        while start < chunks.end {
            let room = self.index.range(start).start + MOST_TOGETHER_BYTES;
            let mut end = start + 1;
            while end < chunks.end && self.index.range(end).end <= room {
                end += 1;
            }
            each(start..end)?;
            start = end;
        }
        Ok(())
    }

    /// Splits off a batch: the first chunks, as many as may be in memory together.
    fn split_batch<'a>(&self, wanted: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        let mut bytes = 0;
        let fits = |chunk: &&usize| {
            let range = self.index.range(**chunk);
            bytes += range.end - range.start;
            bytes <= MOST_TOGETHER_BYTES
        };
        wanted.split_at(wanted.iter().take_while(fits).count())
    }

    /// Returns all of these chunks, or an error.
    fn load(&self, chunks: impl IntoIterator<Item = usize>, need: Need) -> Result<Vec<(usize, Bytes)>> {
        let (mut there, failed) = self.try_load(chunks, need)?;
        if !failed.is_empty() {
            // Other threads requested more, or gave up: their failure may not concern these chunks.
            let (more, failed) = self.try_load(failed.into_iter().map(|(chunk, _)| chunk), need)?;
            if let Some((_, what)) = failed.first() {
                return Err(self.failed(what));
            }
            there.extend(more);
        }
        Ok(there)
    }

    /// Returns chunks, and those that others failed to fetch.
    #[expect(clippy::type_complexity)]
    fn try_load(
        &self,
        chunks: impl IntoIterator<Item = usize>,
        need: Need,
    ) -> Result<(Vec<(usize, Bytes)>, Vec<(usize, String)>)> {
        let (mut there, mut mine, mut others) = (Vec::new(), Vec::new(), Vec::new());
        // All chunks have one deadline.
        let latest = Instant::now() + ANNOUNCED;
        let is_late = lock(&self.coming).is_late();
        {
            let mut flights = lock(&self.flights);
            let mut recent = lock(&self.recent);
            for chunk in chunks {
                if let Some(bytes) = recent.get(chunk) {
                    there.push((chunk, bytes));
                    continue;
                }
                match flights.get(&chunk) {
                    Some(flight) if !(is_late && flight.is_announced) => others.push((chunk, Arc::clone(flight))),
                    _ => {
                        let flight = Arc::default();
                        flights.insert(chunk, Arc::clone(&flight));
                        mine.push(Landing { blob: self, chunk, flight });
                    }
                }
            }
        }
        let mut missing = Vec::new();
        for mut landing in mine {
            match self.chunks.as_ref().and_then(|chunks| chunks.read(landing.chunk)) {
                Some(bytes) => there.push((landing.chunk, landing.land(bytes.into()))),
                None => missing.push(landing),
            }
        }
        there.extend(self.fetch_missing(missing, need)?);
        let mut failed = Vec::new();
        for (chunk, flight) in others {
            match flight.wait(latest) {
                Some(Ok(bytes)) => there.push((chunk, bytes)),
                Some(Err(what)) => failed.push((chunk, what)),
                None => {
                    lock(&self.coming).missed();
                    self.leave(chunk, &flight);
                    failed.push((chunk, "it did not arrive in time".to_owned()));
                }
            }
        }
        Ok((there, failed))
    }

    /// Fetches chunks, in ranges and several ranges at a time.
    fn fetch_missing(&self, missing: Vec<Landing<'_>>, need: Need) -> Result<Vec<(usize, Bytes)>> {
        let most_bytes = if need == Need::Now { MOST_RANGE_BYTES } else { MOST_AHEAD_BYTES };
        let mut runs: Vec<Vec<Landing<'_>>> = Vec::new();
        for landing in missing {
            let fits = runs.last().is_some_and(|run| {
                let (first, last) = (run[0].chunk, run[run.len() - 1].chunk);
                let stored = self.index.stored(landing.chunk);
                landing.chunk == last + 1
                    && self.index.stored(last).end == stored.start
                    && stored.end - self.index.stored(first).start <= most_bytes
            });
            match runs.last_mut().filter(|_| fits) {
                Some(run) => run.push(landing),
                None => runs.push(vec![landing]),
            }
        }
        // More threads than requests would only wait. If none can be started, this one fetches
        // everything.
        let helpers = runs.len().min(MOST_REQUESTS).saturating_sub(1);
        let runs = Mutex::new(runs.into_iter());
        let work = || {
            let mut fetched = Vec::new();
            loop {
                let run = lock(&runs).next();
                let Some(run) = run else { return Ok(fetched) };
                match self.fetch_run(run, need) {
                    Ok(chunks) => fetched.extend(chunks),
                    Err(error) => {
                        lock(&runs).by_ref().for_each(drop);
                        return Err(error);
                    }
                }
            }
        };
        thread::scope(|scope| {
            let spawn = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let helpers: Vec<_> = (0..helpers).map_while(spawn).collect();
            let mut fetched = work();
            for helper in helpers {
                let more = helper.join().unwrap_or_else(|_| Err(self.failed("a thread failed")));
                match (&mut fetched, more) {
                    (Ok(fetched), Ok(more)) => fetched.extend(more),
                    (Ok(_), Err(error)) => fetched = Err(error),
                    (Err(_), _) => {}
                }
            }
            fetched
        })
    }

    /// Fetches adjacent chunks.
    fn fetch_run(&self, mut run: Vec<Landing<'_>>, need: Need) -> Result<Vec<(usize, Bytes)>> {
        let result = self.try_fetch_run(&mut run, need);
        if let Err(error) = &result {
            let what = error.to_string();
            run.iter().for_each(|landing| landing.fail(&what));
        }
        result
    }

    fn try_fetch_run(&self, run: &mut [Landing<'_>], need: Need) -> Result<Vec<(usize, Bytes)>> {
        let ranges = self.ranges.as_ref().ok_or_else(|| Error::Offline(self.name.clone()))?;
        let chunks = run[0].chunk..run[0].chunk + run.len();
        let mut patience = Patience::new(self.limit);
        let _lock = self.chunks.as_ref().and_then(|cached| cached.lock(chunks.clone(), patience.until()));
        // Another process may have fetched some of them before this one got the lock.
        let marked = self.chunks.as_ref().map(|cached| cached.marked(chunks.clone())).unwrap_or_default();
        let mut fetched = Vec::with_capacity(run.len());
        let mut wrong_sums = 0;
        let mut next = 0;
        while next < run.len() {
            if marked.get(next) == Some(&true)
                && let Some(bytes) = self.chunks.as_ref().and_then(|cached| cached.read(chunks.start + next))
            {
                fetched.push((run[next].chunk, run[next].land(bytes.into())));
                next += 1;
                continue;
            }
            let len = marked[marked.len().min(next + 1)..].iter().position(|marked| *marked);
            let end = len.map_or(run.len(), |len| next + 1 + len);
            let before = fetched.len();
            self.noted.missed.note();
            let permit = self.gate.enter(need);
            let result = self.stream(ranges, &mut run[next..end], &mut patience, &mut fetched);
            drop(permit);
            let arrived = fetched.len() - before;
            next += arrived;
            if let Err(failure) = result {
                wrong_sums = if arrived > 0 { 0 } else { wrong_sums };
                wrong_sums += u32::from(matches!(failure.error, Error::Sum { .. }));
                patience.wait(Failure { passing: failure.passing && wrong_sums < MOST_WRONG_SUMS, ..failure })?;
            }
        }
        Ok(fetched)
    }

    /// Requests adjacent chunks, once from each way. Adds those with right sums to `fetched`.
    fn stream(
        &self,
        ranges: &Ranges,
        run: &mut [Landing<'_>],
        patience: &mut Patience,
        fetched: &mut Vec<(usize, Bytes)>,
    ) -> Result<(), Failure> {
        let (before, end) = (fetched.len(), self.index.stored(run[run.len() - 1].chunk).end);
        let mut tries = ranges.ways();
        loop {
            let left = &mut run[fetched.len() - before..];
            self.requests.fetch_add(1, Relaxed);
            let mut body = ranges.open(self.index.stored(left[0].chunk).start..end, patience.until())?;
            let Err(failure) = self.receive(&mut body, left, patience, fetched) else { return Ok(()) };
            tries -= 1;
            match ranges.failed(&mut body, failure) {
                // A way may be tried again after a while, as long as patience lasts.
                Ok(failure) if tries == 0 => return Err(Failure { passing: true, ..failure }),
                Ok(_) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads adjacent chunks from a body.
    fn receive(
        &self,
        body: &mut RangeBody,
        run: &mut [Landing<'_>],
        patience: &mut Patience,
        fetched: &mut Vec<(usize, Bytes)>,
    ) -> Result<(), Failure> {
        for landing in run {
            let stored = self.index.stored(landing.chunk);
            let mut bytes = vec![0; (stored.end - stored.start) as usize];
            body.fill(&mut bytes, patience.limit())?;
            self.fetched_bytes.fetch_add(bytes.len() as u64, Relaxed);
            if self.is_verified && !self.index.is_right(landing.chunk, &bytes) {
                let what = format!("the part of {} bytes at byte {}", bytes.len(), stored.start);
                return Err(Failure::passing(Error::Sum { url: shown(body.url()), what }));
            }
            if let Some(chunks) = &self.chunks {
                chunks.write(landing.chunk, &bytes);
            }
            fetched.push((landing.chunk, landing.land(bytes.into())));
            patience.restart();
        }
        Ok(())
    }

    /// Fetches chunks, in order, that may be read soon. Skips those that a trace brings or
    /// excludes.
    fn fetch_chunks(&self, mut wanted: Vec<usize>, need: Need) {
        {
            let (coming, now) = (lock(&self.coming), Instant::now());
            // The reader has reached the first of these chunks or is before it.
            let is_known =
                wanted.first().is_some_and(|first| (first.saturating_sub(1)..=*first).any(|at| coming.knows(at)));
            wanted.retain(|chunk| !coming.has(*chunk, now) && (!is_known || coming.knows(*chunk)));
        }
        let mut wanted = &wanted[..];
        while !wanted.is_empty() {
            let (batch, rest) = self.split_batch(wanted);
            // An error is ignored here: reads of these chunks report it if it persists.
            let _ = self.load(batch.iter().copied(), need);
            wanted = rest;
        }
    }

    fn touch(&self, chunks: impl IntoIterator<Item = usize>) {
        if let Some(touches) = &self.noted.touches {
            let is_opening = |chunk: &usize| {
                let range = self.index.range(*chunk);
                self.noted.opening.iter().any(|part| part.start <= range.start && range.end <= part.end)
            };
            let chunks = chunks.into_iter().filter(|chunk| !is_opening(chunk));
            touches.add(chunks, |chunk| self.chunk_bytes(chunk).unwrap_or(0));
        }
    }

    /// Removes a flight, so that other threads can fetch its chunk.
    fn leave(&self, chunk: usize, flight: &Arc<Flight>) {
        if let Entry::Occupied(entry) = lock(&self.flights).entry(chunk)
            && Arc::ptr_eq(entry.get(), flight)
        {
            entry.remove();
        }
    }

    fn failed(&self, what: &str) -> Error {
        Error::Server { url: self.name.clone(), what: what.to_owned() }
    }
}

impl ReadAt for Blob {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.index.size_bytes())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_all_at(&mut [(offset, buf)])
    }

    fn unit_bytes(&self) -> u64 {
        READ_TOGETHER_BYTES
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let end = offset.saturating_add(buf.len() as u64).min(self.index.size_bytes());
        let mut filled = 0;
        for chunk in self.index.around(offset.min(end)..end) {
            let Some(bytes) = lock(&self.recent).get(chunk) else { break };
            self.touch([chunk]);
            filled += copy(&bytes, self.index.range(chunk).start, &mut buf[filled..], offset + filled as u64);
        }
        filled
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        let size_bytes = self.index.size_bytes();
        let mut wanted = Vec::new();
        for (offset, buf) in &*parts {
            let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= size_bytes);
            let end = end.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            wanted.extend(self.index.around(*offset..end));
        }
        self.touch(wanted.iter().copied());
        wanted.sort_unstable();
        wanted.dedup();
        let mut wanted = &wanted[..];
        while !wanted.is_empty() {
            let (batch, rest) = self.split_batch(wanted);
            for (chunk, bytes) in self.load(batch.iter().copied(), Need::Now)? {
                let range = self.index.range(chunk);
                for (offset, buf) in &mut *parts {
                    let skipped = range.start.saturating_sub(*offset).min(buf.len() as u64) as usize;
                    copy(&bytes, range.start, &mut buf[skipped..], *offset + skipped as u64);
                }
            }
            wanted = rest;
        }
        Ok(())
    }

    fn fetch(&self, ranges: &[Range<u64>]) {
        let end = |range: &Range<u64>| range.start.min(self.index.size_bytes())..range.end.min(self.index.size_bytes());
        let mut wanted: Vec<_> = ranges.iter().flat_map(|range| self.index.around(end(range))).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.fetch_chunks(wanted, Need::Now);
    }
}

/// Copies the common part of `bytes`, which are at `start`, and `buf`, which begins at `offset`.
/// Returns its length.
fn copy(bytes: &[u8], start: u64, buf: &mut [u8], offset: u64) -> usize {
    let Some(from) = offset.checked_sub(start).and_then(|skipped| bytes.get(usize::try_from(skipped).ok()?..)) else {
        return 0;
    };
    let len = from.len().min(buf.len());
    buf[..len].copy_from_slice(&from[..len]);
    len
}

/// A chunk that is being fetched, for which other threads wait.
#[derive(Default)]
struct Flight {
    state: Mutex<Option<Result<Bytes, String>>>,
    landed: Condvar,
    /// Whether the chunk is only announced: reads wait for it only for a while.
    is_announced: bool,
}

impl Flight {
    fn set(&self, result: Result<Bytes, String>) {
        lock(&self.state).get_or_insert(result);
        self.landed.notify_all();
    }

    fn fail(&self, what: &str) {
        self.set(Err(what.to_owned()));
    }

    /// Returns `None` if the chunk was only announced and does not arrive until `latest`.
    fn wait(&self, latest: Instant) -> Option<Result<Bytes, String>> {
        let mut state = lock(&self.state);
        loop {
            let left = latest.saturating_duration_since(Instant::now());
            match &*state {
                Some(result) => return Some(result.clone()),
                None if !self.is_announced => {
                    state = self.landed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                None if left.is_zero() => return None,
                None => state = self.landed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            }
        }
    }
}

/// The right to fetch a chunk. Ends the flight, also if the thread fails.
struct Landing<'a> {
    blob: &'a Blob,
    chunk: usize,
    flight: Arc<Flight>,
}

impl Landing<'_> {
    fn land(&mut self, bytes: Bytes) -> Bytes {
        lock(&self.blob.recent).add(self.chunk, Arc::clone(&bytes));
        self.flight.set(Ok(Arc::clone(&bytes)));
        bytes
    }

    /// Ends the flight without its chunk. It is removed first, so that threads that waited can try
    /// again.
    fn fail(&self, what: &str) {
        self.blob.leave(self.chunk, &self.flight);
        self.flight.fail(what);
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.fail("the request was given up");
    }
}

/// A chunk that is about to arrive. Gives it up on drop.
pub(crate) struct Claim<'a> {
    landing: Landing<'a>,
}

impl Claim<'_> {
    /// Takes the chunk's bytes. Returns whether their sum is right.
    pub(crate) fn land(mut self, bytes: Vec<u8>) -> bool {
        let Landing { blob, chunk, .. } = self.landing;
        blob.fetched_bytes.fetch_add(bytes.len() as u64, Relaxed);
        let is_right = blob.index.is_right(chunk, &bytes);
        if is_right {
            if let Some(chunks) = &blob.chunks {
                chunks.write(chunk, &bytes);
            }
            self.landing.land(bytes.into());
            lock(&blob.coming).arrived(Instant::now());
        }
        is_right
    }
}

/// Limits concurrent requests. Those that a reader waits for go first.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    left: Condvar,
}

#[derive(Default)]
struct GateState {
    inside: usize,
    ahead: usize,
    waiting_now: usize,
}

struct Permit<'a>(&'a Gate, Need);

impl Gate {
    fn enter(&self, need: Need) -> Permit<'_> {
        let mut state = lock(&self.state);
        match need {
            Need::Now => {
                state.waiting_now += 1;
                while state.inside >= MOST_REQUESTS {
                    state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.waiting_now -= 1;
            }
            Need::Ahead => {
                while state.ahead >= MOST_AHEAD || state.inside >= MOST_REQUESTS || state.waiting_now > 0 {
                    state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.ahead += 1;
            }
        }
        state.inside += 1;
        drop(state);
        // When the last waiting reader has begun, other requests may begin.
        self.left.notify_all();
        Permit(self, need)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.inside -= 1;
        state.ahead -= usize::from(self.1 == Need::Ahead);
        drop(state);
        self.0.left.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Indexing;

    /// A reader whose wait for a chunk failed fetches it again, and does not find the failure a
    /// second time.
    #[test]
    fn a_flight_that_failed_is_not_found_again() {
        let mut indexing = Indexing::new();
        indexing.add(b"bytes");
        let index = Arc::new(indexing.finish());
        let blob = Blob::new("x".into(), index, None, None, true, Duration::ZERO, Noted::default());
        for time in 0..200 {
            let flight = Arc::default();
            lock(&blob.flights).insert(0, Arc::clone(&flight));
            let landing = Landing { blob: &blob, chunk: 0, flight: Arc::clone(&flight) };
            thread::scope(|scope| {
                scope.spawn(|| {
                    flight.wait(Instant::now()).expect("not announced").expect_err("no bytes");
                    assert!(lock(&blob.flights).is_empty());
                });
                // Both ways to fail.
                if time % 2 == 0 {
                    landing.fail("it is not there");
                }
                drop(landing);
            });
        }
    }
}
