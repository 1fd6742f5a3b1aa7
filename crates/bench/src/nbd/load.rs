//! Loads for a disk: random requests of several connections for some time, and passes over the whole
//! disk.

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use pagefold_report::Latencies;

use super::connection::{Connection, Request, Served};
use crate::load::Random;

/// Requests in flight and their pages in a pass over a disk: 128 KiB.
const PASS_DEPTH: usize = 16;
const PASS_PAGES: u64 = 32;

/// Connections, and requests that each has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) connections: usize,
    pub(super) depth: usize,
}

/// Random requests.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Pages of a request, whose place is a multiple of them.
    pub(super) pages: u64,
    /// Percentage of writes.
    pub(super) writes: u64,
    /// The pages that requests go to.
    pub(super) span: Range<u64>,
    /// Requests for few pages, of which some miss.
    pub(super) hot: Option<Hot>,
}

/// The part of a load whose latencies count.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    pub(super) span: Range<u64>,
    /// Percentage of requests that go to the load's span instead.
    pub(super) misses: u64,
}

/// How long a load runs: first without being measured, then measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) warm: Duration,
    pub(super) measured: Duration,
}

/// What was measured of one direction.
pub(super) struct Side {
    /// Replies that arrived in the measured time.
    pub(super) requests: u64,
    pub(super) latencies: Latencies,
}

impl Side {
    fn new() -> Self {
        Self { requests: 0, latencies: Latencies::new() }
    }
}

/// What was measured: reads, and writes.
pub(super) struct Measured {
    pub(super) reads: Side,
    pub(super) writes: Side,
    /// Writes that found no room.
    pub(super) refused: u64,
}

/// Runs a load. Each connection has its share of the blocks, so that every read has one right answer.
pub(super) fn run(served: Served<'_>, load: &Load, shape: Shape, seed: u64, times: Times) -> anyhow::Result<Measured> {
    let mut connections = (0..shape.connections)
        .map(|_| Connection::new(served, shape.depth, load.pages))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let start = Instant::now();
    let (begin, end) = (start + times.warm, start + times.warm + times.measured);
    thread::scope(|scope| {
        let threads: Vec<_> = connections
            .iter_mut()
            .enumerate()
            .map(|(number, connection)| {
                let mut random = Random::new(seed * 1000 + number as u64 + 1);
                scope.spawn(move || {
                    let mut measured = Measured { reads: Side::new(), writes: Side::new(), refused: 0 };
                    connection.drive(
                        |places| {
                            (Instant::now() < end).then(|| {
                                loop {
                                    let request = load.request(&mut random, number as u64, shape.connections as u64);
                                    if !places.has(request.first) {
                                        break request;
                                    }
                                }
                            })
                        },
                        |request, sent, arrived| {
                            if arrived < begin {
                                return;
                            }
                            let side = if request.is_write { &mut measured.writes } else { &mut measured.reads };
                            side.requests += u64::from(arrived < end);
                            // A request that outlasts the run is the longest.
                            if request.counts {
                                side.latencies.record(arrived - sent);
                            }
                        },
                    )?;
                    anyhow::Ok(Measured { refused: connection.refused, ..measured })
                })
            })
            .collect();
        let mut all = Measured { reads: Side::new(), writes: Side::new(), refused: 0 };
        for thread in threads {
            let one = thread.join().map_err(|_| anyhow!("a thread of the load panicked"))??;
            all.refused += one.refused;
            for (all, one) in [(&mut all.reads, &one.reads), (&mut all.writes, &one.writes)] {
                all.requests += one.requests;
                all.latencies.add(&one.latencies);
            }
        }
        Ok(all)
    })
}

impl Load {
    /// Returns a random request of connection `number` of `connections`.
    fn request(&self, random: &mut Random, number: u64, connections: u64) -> Request {
        let is_hot = self.hot.as_ref().filter(|hot| random.below(100) >= hot.misses);
        let span = is_hot.map_or(&self.span, |hot| &hot.span);
        let first_block = span.start / self.pages;
        let blocks = (span.end - span.start) / self.pages / connections;
        let block = first_block + random.below(blocks) * connections + number;
        Request {
            first: block * self.pages,
            pages: self.pages,
            is_write: self.writes > 0 && random.below(100) < self.writes,
            counts: self.hot.is_none() || is_hot.is_some(),
        }
    }
}

/// Reads every page of `span` in order, and compares it.
pub(super) fn read_through(served: Served<'_>, span: Range<u64>) -> anyhow::Result<()> {
    pass(served, false, &mut blocks(span)).map(drop)
}

/// Writes every page in order.
pub(super) fn write_through(served: Served<'_>) -> anyhow::Result<()> {
    pass(served, true, &mut blocks(0..served.versions.pages())).map(drop)
}

/// Writes some pages, one a request. Returns how many found no room.
pub(super) fn write_pages(served: Served<'_>, numbers: impl Iterator<Item = u64>) -> anyhow::Result<u64> {
    pass(served, true, &mut numbers.map(|number| (number, 1)))
}

/// Returns the first page and the number of pages of each part of `span`.
fn blocks(span: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let end = span.end;
    span.step_by(PASS_PAGES as usize).map(move |first| (first, PASS_PAGES.min(end - first)))
}

fn pass(served: Served<'_>, is_write: bool, blocks: &mut dyn Iterator<Item = (u64, u64)>) -> anyhow::Result<u64> {
    let mut connection = Connection::new(served, PASS_DEPTH, PASS_PAGES)?;
    let next = |_: &_| blocks.next().map(|(first, pages)| Request { first, pages, is_write, counts: false });
    connection.drive(next, |_, _, _| ())?;
    Ok(connection.refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_in_their_span_and_with_their_connection() {
        let load = Load { pages: 8, writes: 50, span: 64..1024, hot: Some(Hot { span: 512..576, misses: 10 }) };
        let mut random = Random::new(1);
        let requests: Vec<Request> = (0..10_000).map(|_| load.request(&mut random, 1, 4)).collect();
        assert!(requests.iter().all(|request| (64..1024).contains(&request.first) && request.first / 8 % 4 == 1));
        let hot = requests.iter().filter(|request| request.counts);
        assert!(hot.clone().all(|request| (512..576).contains(&request.first)));
        assert!((8800..9200).contains(&hot.count()));
        let writes = requests.iter().filter(|request| request.is_write).count();
        assert!((4800..5200).contains(&writes), "{writes}");
    }

    #[test]
    fn a_pass_covers_its_span() {
        assert_eq!(blocks(10..75).collect::<Vec<_>>(), [(10, 32), (42, 32), (74, 1)]);
    }
}
