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
use pagefold_kinds::{Content, Versions};
use pagefold_serve::protocol::{self, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command};

use crate::client::Nbd;

/// One in this many requests has all its bytes compared, the others the number and the version of each
/// page.
const WHOLE_SHARE: u64 = 16;

/// A server that sends nothing for this long has failed.
const SILENCE: Duration = Duration::from_secs(30);

/// The error of a write that finds no room (NBD_ENOSPC).
const NO_ROOM: [u8; 4] = 28_u32.to_be_bytes();

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

/// The requests that a connection has in flight.
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
    /// Whether writes of a page may find no room, and are then counted.
    pub(super) may_refuse: bool,
}

pub(super) struct Connection<'a> {
    stream: UnixStream,
    served: Served<'a>,
    places: Places,
    in_flight: usize,
    requests: u64,
    /// Writes that found no room.
    pub(super) refused: u64,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that have arrived.
    arrived: usize,
}

impl<'a> Connection<'a> {
    /// Connects to an export. Requests have at most `pages_max` pages.
    pub(super) fn new(served: Served<'a>, depth: usize, pages_max: u64) -> anyhow::Result<Self> {
        Self::over(Nbd::connect(served.socket, served.export)?.into_stream(), served, depth, pages_max)
    }

    /// Takes a socket whose handshake is done.
    fn over(stream: UnixStream, served: Served<'a>, depth: usize, pages_max: u64) -> anyhow::Result<Self> {
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let reply_bytes = SIMPLE_REPLY_BYTES + pages_max as usize * PAGE_SIZE;
        Ok(Self {
            stream,
            served,
            places: Places((0..depth).map(|_| None).collect()),
            in_flight: 0,
            requests: 0,
            refused: 0,
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
            let header = protocol::Request {
                flags: 0,
                kind,
                cookie: cookie as u64,
                offset,
                len_bytes: request.len_bytes() as u64,
            };
            self.output.extend(header.encode());
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
            if error == NO_ROOM && request.is_write && self.served.may_refuse {
                self.served.versions.refuse(request.first, request.pages);
                self.refused += 1;
            } else {
                ensure!(error == [0; 4], "{request:?} failed: error {error:?}");
            }
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

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, thread};

    use pagefold_serve::protocol::REQUEST_BYTES;

    use super::*;

    /// Pages of the disk, and requests of each test.
    const PAGES: u64 = 64;
    const REQUESTS: usize = 500;

    /// Answers requests as a disk does, two at a time in reverse order, and in pieces of 1000 bytes.
    /// Reads get `damage` to their data.
    fn serve(mut stream: UnixStream, content: &Content, damage: u8) {
        let mut disk: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut replies: Vec<Vec<u8>> = Vec::new();
        let mut header = [0; REQUEST_BYTES];
        while stream.read_exact(&mut header).is_ok() {
            let number = u64::from_be_bytes(header[16..24].try_into().unwrap()) / PAGE_SIZE as u64;
            let mut reply = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
            reply.extend([0; 4]);
            reply.extend(&header[8..16]);
            if header[7] == command::WRITE as u8 {
                let mut page = vec![0; PAGE_SIZE];
                stream.read_exact(&mut page).unwrap();
                disk.insert(number, page);
            } else {
                let page = disk.entry(number).or_insert_with(|| {
                    let mut page = Vec::new();
                    content.append(number, 0, &mut page);
                    page
                });
                reply.extend(&*page);
                *reply.last_mut().unwrap() ^= damage;
            }
            replies.push(reply);
            if replies.len() == 2 {
                let bytes: Vec<u8> = replies.drain(..).rev().flatten().collect();
                // The client may have found the damage.
                let _ = bytes.chunks(1000).try_for_each(|piece| stream.write_all(piece));
            }
        }
    }

    /// Runs requests, with an even number in flight, and returns how many were answered.
    fn run(damage: u8) -> anyhow::Result<usize> {
        let (content, versions) = (Content::new(&[])?, Versions::new(PAGES));
        let (client, server) = UnixStream::pair()?;
        thread::scope(|scope| {
            scope.spawn(|| serve(server, &content, damage));
            let served =
                Served { socket: Path::new(""), export: "", content: &content, versions: &versions, may_refuse: false };
            let mut connection = Connection::over(client, served, 4, 1)?;
            let (mut sent, mut done) = (0, 0);
            connection.drive(
                |places| {
                    sent += 1;
                    let first = (sent as u64..).map(|at| at * 7 % PAGES).find(|&first| !places.has(first))?;
                    let request = Request { first, pages: 1, is_write: sent % 3 == 0, counts: true };
                    (sent <= REQUESTS).then_some(request)
                },
                |_, sent, arrived| {
                    assert!(sent <= arrived);
                    done += 1;
                },
            )?;
            Ok(done)
        })
    }

    #[test]
    fn every_request_is_answered_in_any_order_and_in_pieces() {
        assert_eq!(run(0).unwrap(), REQUESTS);
    }

    #[test]
    fn wrong_data_end_the_run() {
        let error = run(1).unwrap_err().to_string();
        assert!(error.contains("is not what was written"), "{error}");
    }
}
