//! The load of one connection: a thread that keeps a number of requests in flight and checks the
//! replies.
//!
//! ```text
//! repeat:
//!     fill all free places with requests; send them together
//!     receive what has arrived; free the places of all complete replies
//! ```

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use pagefold_codec::PAGE_SIZE;
use pagefold_serve::protocol::{SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command};

use super::content::{Content, Versions};
use crate::client::{Nbd, request_header};

/// One in this many requests has all its bytes compared, the others the number and the version of each
/// page.
const WHOLE_SHARE: u64 = 16;

/// A server that says nothing for this long has failed.
const SILENCE: Duration = Duration::from_secs(30);

/// Room to receive in: enough for 64 replies of a page.
const INPUT_BYTES: usize = 256 << 10;

/// A request for consecutive pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) first: u64,
    pub(super) pages: u64,
    pub(super) is_write: bool,
    /// Whether its latency counts.
    pub(super) counts: bool,
}

impl Request {
    fn len_bytes(&self) -> usize {
        self.pages as usize * PAGE_SIZE
    }
}

struct InFlight {
    request: Request,
    sent: Instant,
}

/// What a connection has in flight.
pub(super) struct Places(Vec<Option<InFlight>>);

impl Places {
    /// Whether a request that begins at this page is in flight.
    pub(super) fn has(&self, first: u64) -> bool {
        self.0.iter().flatten().any(|other| other.request.first == first)
    }
}

/// A disk as a client sees it.
#[derive(Clone, Copy)]
pub(super) struct Served<'a> {
    pub(super) socket: &'a Path,
    pub(super) export: &'a str,
    pub(super) content: &'a Content,
    pub(super) versions: &'a Versions,
}

pub(super) struct Connection<'a> {
    stream: UnixStream,
    served: Served<'a>,
    places: Places,
    in_flight: usize,
    requests: u64,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that have arrived.
    arrived: usize,
}

impl<'a> Connection<'a> {
    /// Connects to an export. Requests have at most `pages_max` pages.
    pub(super) fn new(served: Served<'a>, depth: usize, pages_max: u64) -> anyhow::Result<Self> {
        let stream = Nbd::connect(served.socket, served.export)?.into_stream();
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let reply_bytes = SIMPLE_REPLY_BYTES + pages_max as usize * PAGE_SIZE;
        Ok(Self {
            stream,
            served,
            places: Places((0..depth).map(|_| None).collect()),
            in_flight: 0,
            requests: 0,
            output: Vec::new(),
            input: vec![0; INPUT_BYTES.max(2 * reply_bytes)],
            arrived: 0,
        })
    }

    /// Sends the requests that `next` returns until it returns none, and waits for all replies.
    /// `done` gets each request with the times when it was sent and when its reply had arrived.
    pub(super) fn drive(
        &mut self,
        mut next: impl FnMut(&Places) -> Option<Request>,
        mut done: impl FnMut(&Request, Instant, Instant),
    ) -> anyhow::Result<()> {
        let mut more = true;
        loop {
            if more {
                more = self.send(&mut next)?;
            }
            if self.in_flight == 0 {
                return Ok(());
            }
            let len = self.stream.read(&mut self.input[self.arrived..]).context("no reply")?;
            ensure!(len > 0, "the server closed the connection with {} requests in flight", self.in_flight);
            self.arrived += len;
            self.take_replies(Instant::now(), &mut done)?;
        }
    }

    /// Fills the free places. Returns false if `next` has no more requests.
    fn send(&mut self, next: &mut impl FnMut(&Places) -> Option<Request>) -> anyhow::Result<bool> {
        let mut more = true;
        let composed = Instant::now();
        for cookie in 0..self.places.0.len() {
            if self.places.0[cookie].is_some() {
                continue;
            }
            let Some(request) = next(&self.places) else {
                more = false;
                break;
            };
            let kind = if request.is_write { command::WRITE } else { command::READ };
            let offset = request.first * PAGE_SIZE as u64;
            self.output.extend(request_header(kind, cookie as u64, offset, request.len_bytes() as u32));
            if request.is_write {
                self.served.versions.write(self.served.content, request.first, request.pages, &mut self.output);
            }
            self.places.0[cookie] = Some(InFlight { request, sent: composed });
            self.in_flight += 1;
        }
        if !self.output.is_empty() {
            let sent = Instant::now();
            self.places.0.iter_mut().flatten().filter(|other| other.sent == composed).for_each(|new| new.sent = sent);
            self.stream.write_all(&self.output).context("cannot send requests")?;
            self.output.clear();
        }
        Ok(more)
    }

    /// Takes the complete replies from the input.
    fn take_replies(
        &mut self,
        arrived: Instant,
        done: &mut impl FnMut(&Request, Instant, Instant),
    ) -> anyhow::Result<()> {
        let mut at = 0;
        while let Some(header) = self.input[at..self.arrived].first_chunk::<SIMPLE_REPLY_BYTES>() {
            let (magic, rest) = header.split_at(4);
            ensure!(magic == SIMPLE_REPLY_MAGIC.to_be_bytes(), "unexpected reply from the server");
            let (error, cookie) = rest.split_at(4);
            let cookie = cookie.try_into().map(u64::from_be_bytes)? as usize;
            let place = self.places.0.get_mut(cookie).context("a reply to no request")?;
            let Some(InFlight { request, sent }) = place else { bail!("a reply to no request") };
            ensure!(error == [0; 4], "{request:?} failed: error {error:?}");
            let len = if request.is_write { 0 } else { request.len_bytes() };
            let data = at + SIMPLE_REPLY_BYTES;
            if self.arrived - data < len {
                break;
            }
            let bytes = &self.input[data..data + len];
            let whole = self.requests.is_multiple_of(WHOLE_SHARE);
            if let Some(number) = self.served.versions.difference(self.served.content, request.first, bytes, whole) {
                bail!("page {number} of '{}' is not what was written to it", self.served.export);
            }
            done(request, *sent, arrived);
            *place = None;
            self.in_flight -= 1;
            self.requests += 1;
            at = data + len;
        }
        self.input.copy_within(at..self.arrived, 0);
        self.arrived -= at;
        Ok(())
    }
}
