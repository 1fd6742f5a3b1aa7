//! Ranges of an object on a server.

use std::{
    io::Read,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ureq::http::{HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    access::{Access, own_headers, request},
    error::Error,
    http::{Client, Reply, TimedBody, same, server},
    patience::Failure,
    rest::Turn,
};

/// How long a way to an object is skipped after its server lacked the object.
const LACK: Duration = Duration::from_secs(60);

/// Maximum time for each piece of a body if there is another way.
const MOST_PIECE_TIME: Duration = Duration::from_secs(10);

/// An object whose ranges are read.
pub(crate) struct Ranges {
    client: Arc<Client>,
    /// The client for all ways but the last one.
    hasty: Client,
    /// The ways to the object, in the order in which they are tried. Only a failure of the last one
    /// is reported.
    ways: Vec<Way>,
    /// The version that replies must have.
    version: Option<HeaderValue>,
}

/// A way to an object.
struct Way {
    access: Box<dyn Access>,
    /// Where redirects led: used without following them again, until the server there refuses.
    direct: Mutex<Option<Url>>,
    avoided: Mutex<Avoided>,
}

/// Whether a way is tried.
#[derive(Clone, Copy, Default)]
enum Avoided {
    #[default]
    No,
    Until(Instant),
    /// The way returned wrong bytes.
    ForGood,
}

/// The right to use a way. If failures of the way's server are recorded, it includes a turn there.
type Using = Option<Turn>;

impl Way {
    /// Returns the right to use the way, unless others are tried first.
    fn using(&self) -> Option<Using> {
        let now = Instant::now();
        match *self.avoided.lock().unwrap_or_else(PoisonError::into_inner) {
            Avoided::Until(until) if now < until => return None,
            Avoided::ForGood => return None,
            _ => {}
        }
        match self.access.rest() {
            Some(rest) => rest.turn(now).map(Some),
            None => Some(None),
        }
    }

    /// Notes a failure.
    fn avoid(&self, failure: &Failure, using: &mut Using) {
        let now = Instant::now();
        let avoided = match (&failure.error, using) {
            (Error::Sum { .. } | Error::Tree { .. }, _) => Avoided::ForGood,
            // The server's other objects may fail too.
            (_, Some(turn)) if failure.passing => return turn.failed(now),
            _ => Avoided::Until(now + LACK),
        };
        *self.avoided.lock().unwrap_or_else(PoisonError::into_inner) = avoided;
    }

    fn forget(&self) {
        *self.direct.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The reply to a request for a range.
struct Asked {
    reply: Reply,
    /// The object's size.
    total: u64,
    /// The number of the way.
    way: usize,
    using: Using,
}

/// The bytes of a range as they arrive.
pub(crate) struct RangeBody {
    body: TimedBody,
    url: Url,
    /// The number of the way on which they arrive.
    way: usize,
    using: Using,
    /// Maximum time for each piece.
    most_piece_time: Duration,
    /// The bytes of the range that are not read yet.
    left: u64,
    /// Whether the body ends where the range does, if the server says so.
    is_exact: bool,
}

impl Ranges {
    pub(crate) fn new(client: Arc<Client>, ways: Vec<Box<dyn Access>>) -> Self {
        let way = |access| Way { access, direct: Mutex::default(), avoided: Mutex::default() };
        Self { hasty: client.hasty(), client, ways: ways.into_iter().map(way).collect(), version: None }
    }

    fn last(&self) -> &Way {
        self.ways.last().expect("a way")
    }

    /// Returns the number of ways, which are tried in order.
    pub(crate) fn ways(&self) -> usize {
        self.ways.len()
    }

    /// Returns the object's URL.
    pub(crate) fn url(&self) -> Url {
        self.last().access.url(&Method::HEAD)
    }

    /// Asks for the object's size. Later replies must be of the same version, if the server names
    /// versions.
    pub(crate) fn pin(&mut self, until: Instant) -> Result<u64, Failure> {
        let Asked { reply, total, .. } = self.ask(0..1, until)?;
        self.version = reply.headers.get(header::ETAG).cloned();
        reply.finish();
        Ok(total)
    }

    /// Returns the pinned version, if the server names one.
    pub(crate) fn version(&self) -> Option<&HeaderValue> {
        self.version.as_ref()
    }

    /// Asks for a range. Its bytes are read from the result.
    pub(crate) fn open(&self, range: Range<u64>, until: Instant) -> Result<RangeBody, Failure> {
        let left = range.end - range.start;
        let Asked { reply, way, using, .. } = self.ask(range, until)?;
        let is_exact = reply.len_bytes() == Some(left);
        let most_piece_time = if way + 1 == self.ways.len() { Duration::MAX } else { MOST_PIECE_TIME };
        let (url, body) = (reply.url.clone(), reply.into_body(until));
        Ok(RangeBody { url, way, using, most_piece_time, body, left, is_exact })
    }

    /// Forgets where redirects led, after a wrong body from there.
    pub(crate) fn forget(&self, body: &RangeBody) {
        self.ways[body.way].forget();
    }

    /// Records that a body was wrong: forgets where redirects led, and tries other ways before this
    /// one. Returns the failure.
    ///
    /// # Errors
    /// The failure, if this was the last way.
    pub(crate) fn failed(&self, body: &mut RangeBody, failure: Failure) -> Result<Failure, Failure> {
        let way = &self.ways[body.way];
        way.forget();
        if body.way + 1 == self.ways.len() {
            return Err(failure);
        }
        way.avoid(&failure, &mut body.using);
        Ok(failure)
    }

    /// Asks for a range, which must not be empty.
    fn ask(&self, range: Range<u64>, until: Instant) -> Result<Asked, Failure> {
        let last = self.ways.len() - 1;
        for (number, way) in self.ways[..last].iter().enumerate() {
            let Some(mut using) = way.using() else { continue };
            match self.ask_on(way, &self.hasty, &range, until) {
                Ok((reply, total)) => return Ok(Asked { reply, total, way: number, using }),
                Err(failure) => way.avoid(&failure, &mut using),
            }
        }
        let (reply, total) = self.ask_on(self.last(), &self.client, &range, until)?;
        Ok(Asked { reply, total, way: last, using: None })
    }

    fn ask_on(&self, way: &Way, client: &Client, range: &Range<u64>, until: Instant) -> Result<(Reply, u64), Failure> {
        let value = format!("bytes={}-{}", range.start, range.end - 1);
        let headers = [(header::RANGE, HeaderValue::try_from(value).expect("digits"))];
        let direct = way.direct.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let access = &*way.access;
        let url = access.url(&Method::HEAD);
        let reply = match &direct {
            Some(direct) => {
                let own = match same(direct, &url) {
                    true => own_headers(access, access.authorization().as_ref()),
                    false => Vec::new(),
                };
                client.send(&Method::GET, direct, &headers, &own, None)
            }
            None => request(client, access, &Method::GET, &headers, None, until),
        };
        let checked = reply.and_then(|reply| self.checked(reply, range));
        match (checked, direct) {
            (Ok((reply, total)), None) => {
                if reply.url != access.url(&Method::GET) && !same(&reply.url, &url) {
                    *way.direct.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply.url.clone());
                }
                Ok((reply, total))
            }
            // The link may have expired: start again at the original URL.
            (Err(failure), Some(_)) => {
                way.forget();
                Err(Failure { passing: true, ..failure })
            }
            (result, _) => result,
        }
    }

    fn checked(&self, reply: Reply, range: &Range<u64>) -> Result<(Reply, u64), Failure> {
        match reply.status {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK => {
                let what = "the server sends the whole file instead of the range that was asked for";
                return Err(server(&reply.url, what).into());
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(server(&reply.url, &format!("the file ends before byte {}", range.end)).into());
            }
            _ => return Err(reply.failure("the server refuses")),
        }
        if self.version.is_some() && self.version.as_ref() != reply.headers.get(header::ETAG) {
            return Err(server(&reply.url, "the file was changed on the server").into());
        }
        let total = reply.header(header::CONTENT_RANGE).and_then(|text| parse_content_range(text, range));
        match total {
            Some(total) if total >= range.end => Ok((reply, total)),
            _ => Err(Failure::passing(server(&reply.url, "the server sends another range than was asked for"))),
        }
    }
}

/// Returns the size in `bytes FIRST-LAST/SIZE` if that is the expected range.
fn parse_content_range(text: &str, expected: &Range<u64>) -> Option<u64> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let found = first.trim().parse::<u64>().ok()?..last.trim().parse::<u64>().ok()?.checked_add(1)?;
    total.trim().parse().ok().filter(|_| found == *expected)
}

impl RangeBody {
    /// Returns where the bytes come from.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// Fills `buf` with the next bytes. Each piece of it may take as long as `limit`.
    pub(crate) fn fill(&mut self, buf: &mut [u8], limit: Duration) -> Result<(), Failure> {
        let (mut moved, limit) = (Duration::ZERO, limit.min(self.most_piece_time));
        let filled = self.body.fill(buf, limit, &mut moved);
        filled.map_err(|error| Failure { moved, ..self.body.failure(&self.url, limit, &error) })?;
        self.left = self.left.saturating_sub(buf.len() as u64);
        if self.left == 0 {
            self.using.iter_mut().for_each(Turn::succeeded);
            if self.is_exact {
                // Reading up to the end of the body frees the connection for the next request.
                let _ = self.body.read(&mut [0]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(parse_content_range("bytes 5-9/20", &(5..10)), Some(20));
        for other in
            ["bytes 5-9/*", "bytes 5-10/20", "5-9/20", "bytes */20", "bytes 5-/20", "bytes 5-18446744073709551615/9"]
        {
            assert_eq!(parse_content_range(other, &(5..10)), None, "{other}");
        }
    }
}
