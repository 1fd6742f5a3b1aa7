//! HTTP/1.1 requests. Redirects are followed here, so that credentials are never sent to another
//! host.

use std::{
    cell::Cell,
    io::{self, Cursor, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::{InvalidMessage, crypto::ring};
use ureq::{
    Agent, AsSendBody, Body, SendBody,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header},
    tls::{Certificate, RootCerts, TlsConfig},
};
use url::Url;

use crate::{
    error::Error,
    location::{is_loopback, shown},
    patience::Failure,
};

/// How long a server may take to accept a connection, and how long its name may take to look up.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// How long a server may take to respond, and between parts of a response.
const SILENCE: Duration = Duration::from_secs(20);

/// The same for a server that others can replace.
const HASTY_CONNECT_TIME: Duration = Duration::from_secs(3);
const HASTY_SILENCE: Duration = Duration::from_secs(5);

/// How long a server may take to respond after a request's body: a registry first compares a blob
/// with its sum.
const SILENCE_AFTER_BODY: Duration = Duration::from_secs(300);

/// How long sending a request's body may take between parts.
const SEND_SILENCE: Duration = Duration::from_secs(60);

const MOST_REDIRECTS: usize = 5;

/// The longest time for which a server may ask to wait.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// A body makes progress if this number of bytes arrives in time.
const PIECE_BYTES: usize = 64 << 10;

/// The minimum average rate of a body, in addition to the time limit for each piece.
const LEAST_RATE: u64 = 8 << 10;

/// The longest body that is read to its end only to keep the connection.
const MOST_UNUSED_BYTES: u64 = 64 << 10;

/// A client with its connections, which its clones share. Uses the proxies that the environment names,
/// except for this machine.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    local: Agent,
    times: Times,
}

/// How long a server may take.
#[derive(Clone, Copy)]
struct Times {
    connect: Duration,
    silence: Duration,
    /// When a request and its response must be complete.
    end: Option<Instant>,
}

/// A request's body, which is sent again if the request is repeated.
pub(crate) struct Outgoing<'a> {
    pub(crate) len_bytes: u64,
    pub(crate) open: &'a dyn Fn() -> Box<dyn Read + 'a>,
}

/// A response with any status.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) url: Url,
    /// Whether each server on the way was authenticated, or is this machine.
    pub(crate) is_authentic: bool,
    body: Body,
    /// How long sending the request's body took.
    moved: Duration,
}

impl Client {
    pub(crate) fn new() -> Self {
        // The system's certificates, or those that SSL_CERT_FILE and SSL_CERT_DIR name.
        let roots = rustls_native_certs::load_native_certs().certs;
        let roots: Vec<_> = roots.iter().map(|root| Certificate::from_der(root).to_owned()).collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .build();
        let config = || {
            Agent::config_builder()
                .tls_config(tls.clone())
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .user_agent(concat!("pagefold/", env!("CARGO_PKG_VERSION")))
                .accept_encoding("identity")
                .timeout_per_write(Some(SEND_SILENCE))
                .max_idle_connections_per_host(8)
        };
        let times = Times { connect: CONNECT_TIME, silence: SILENCE, end: None };
        Self { agent: config().build().into(), local: config().proxy(None).build().into(), times }
    }

    /// Returns the client for a server that others can replace, with shorter timeouts.
    pub(crate) fn hasty(&self) -> Self {
        let times = Times { connect: HASTY_CONNECT_TIME, silence: HASTY_SILENCE, ..self.times };
        Self { times, ..self.clone() }
    }

    /// Returns the client whose requests and responses end at `end` even if they make progress.
    pub(crate) fn until(&self, end: Instant) -> Self {
        Self { times: Times { end: Some(end), ..self.times }, ..self.clone() }
    }

    /// Sends one request. Follows redirects of GET and HEAD, without the `own` headers to other
    /// servers.
    pub(crate) fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        own: &[(HeaderName, HeaderValue)],
        body: Option<&Outgoing<'_>>,
    ) -> Result<Reply, Failure> {
        let mut target = url.clone();
        let mut is_authentic = true;
        for _ in 0..=MOST_REDIRECTS {
            is_authentic &= may_be_trusted(&target);
            let own = if same(url, &target) { own } else { &[] };
            let reply = self.send_once(method, &target, headers, own, body)?;
            let follows = reply.status.is_redirection() && matches!(*method, Method::GET | Method::HEAD);
            let Some(next) = reply.headers.get(header::LOCATION).filter(|_| follows) else {
                return Ok(Reply { is_authentic, ..reply });
            };
            let wrong = |what: &str| Failure::from(server(&target, what));
            let next = next.to_str().ok().and_then(|next| target.join(next).ok());
            let next = next.ok_or_else(|| wrong("redirects to an invalid URL"))?;
            match (target.scheme(), next.scheme()) {
                (_, "https") | ("http", "http") => {}
                ("https", "http") => return Err(wrong("redirects from https to http")),
                _ => return Err(wrong("redirects to another protocol")),
            }
            reply.finish();
            target = next;
        }
        Err(server(url, "redirects more than 5 times").into())
    }

    /// Returns a request that must be responded to in time.
    fn timed<S: AsSendBody>(&self, agent: &Agent, request: Request<S>, response: Duration) -> Request<S> {
        let left = |end: Instant| end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let config = agent.configure_request(request).timeout_resolve(Some(self.times.connect));
        let config = config.timeout_connect(Some(self.times.connect)).timeout_recv_response(Some(response));
        config.timeout_per_read(Some(self.times.silence)).timeout_global(self.times.end.map(left)).build()
    }

    fn send_once(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        own: &[(HeaderName, HeaderValue)],
        body: Option<&Outgoing<'_>>,
    ) -> Result<Reply, Failure> {
        let mut request = Request::builder().method(method.clone()).uri(url.as_str());
        for (name, value) in headers.iter().chain(own) {
            request = request.header(name, value);
        }
        let unusable = |error: ureq::http::Error| Failure::from(server(url, &error.to_string()));
        // A proxy could be another machine.
        let agent = if is_loopback(url) { &self.local } else { &self.agent };
        let moved = Cell::new(Duration::ZERO);
        let reply = match body {
            None => agent.run(self.timed(agent, request.body(()).map_err(unusable)?, self.times.silence)),
            Some(body) => {
                request = request.header(header::CONTENT_LENGTH, body.len_bytes);
                let mut bytes = Timed { body: (body.open)(), start: Instant::now(), moved: &moved };
                let request = request.body(SendBody::from_reader(&mut bytes)).map_err(unusable)?;
                agent.run(self.timed(agent, request, SILENCE_AFTER_BODY))
            }
        };
        let moved = moved.get();
        let reply = reply.map_err(|error| Failure { moved, ..failure(url, &error) })?;
        let (parts, body) = reply.into_parts();
        let is_authentic = may_be_trusted(url);
        Ok(Reply { status: parts.status, headers: parts.headers, url: url.clone(), is_authentic, body, moved })
    }
}

impl Reply {
    /// Returns a header's value, if it is text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the failure for a status.
    pub(crate) fn failure(&self, what: &str) -> Failure {
        let what = format!("{what}: {}", self.status);
        let passing = matches!(self.status.as_u16(), 408 | 425 | 429 | 500 | 502..=599);
        // Dates are rare and ignored: the usual pauses apply.
        let after = self.header(header::RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
        let after = after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT)).filter(|_| passing);
        Failure { error: server(&self.url, &what), passing, after, moved: self.moved }
    }

    /// Returns the length that the server announces.
    pub(crate) fn len_bytes(&self) -> Option<u64> {
        self.header(header::CONTENT_LENGTH)?.trim().parse().ok()
    }

    /// Reads a short body to its end, so that the connection is used again.
    pub(crate) fn finish(self) {
        if self.len_bytes().is_some_and(|len| len <= MOST_UNUSED_BYTES) {
            let mut body = self.into_body(Instant::now() + CONNECT_TIME).take(MOST_UNUSED_BYTES + 1);
            let _ = io::copy(&mut body, &mut io::sink());
        }
    }

    /// Reads the whole body, of at most `most_bytes`. Each piece may take as long as the time from
    /// now to `until`; a body below the minimum rate fails after that time.
    pub(crate) fn read_all(self, most_bytes: u64, until: Instant) -> Result<Vec<u8>, Failure> {
        let limit = until.saturating_duration_since(Instant::now());
        let url = self.url.clone();
        let mut bytes = Vec::new();
        let mut body = self.into_body(until);
        loop {
            let arrived = (&mut body).take(PIECE_BYTES as u64).read_to_end(&mut bytes);
            if arrived.map_err(|error| body.failure(&url, limit, &error))? == 0 {
                return Ok(bytes);
            }
            if bytes.len() as u64 > most_bytes {
                return Err(server(&url, &format!("the response exceeds {most_bytes} bytes")).into());
            }
            body.extend(limit);
        }
    }

    /// Returns the body, whose reads fail after `until`.
    pub(crate) fn into_body(self, until: Instant) -> TimedBody {
        let body = self.body.into_with_config().limit(u64::MAX).reader();
        TimedBody { body, until, pace: Pace { start: Instant::now(), bytes: 0 } }
    }
}

/// Returns a reader of bytes in memory.
pub(crate) fn memory_bytes(bytes: &[u8]) -> Box<dyn Read + '_> {
    Box::new(Cursor::new(bytes))
}

/// A body that must arrive in time, even if bytes arrive one by one.
pub(crate) struct TimedBody {
    body: ureq::BodyReader<'static>,
    until: Instant,
    pace: Pace,
}

/// How fast a body arrives.
struct Pace {
    start: Instant,
    bytes: u64,
}

impl Pace {
    /// Returns when the next piece, which may take `limit`, must have arrived for the minimum rate.
    fn latest(&self, limit: Duration) -> Instant {
        self.start + limit + Duration::from_secs((self.bytes + PIECE_BYTES as u64) / LEAST_RATE)
    }
}

impl TimedBody {
    /// Restarts the time after progress.
    pub(crate) fn extend(&mut self, limit: Duration) {
        self.until = (Instant::now() + limit).min(self.pace.latest(limit));
    }

    /// Returns why a read failed whose pieces may take `limit` each. A server that is too slow gets no
    /// further request, since it could be slow forever.
    pub(crate) fn failure(&self, url: &Url, limit: Duration, error: &io::Error) -> Failure {
        if Instant::now() < self.pace.latest(limit) {
            return interrupted(url, error);
        }
        server(url, &format!("the response arrives with less than {} KiB per second", LEAST_RATE >> 10)).into()
    }

    /// Fills `buf`. Each piece may take up to `limit`. Adds the time during which pieces arrived to
    /// `moved`.
    pub(crate) fn fill(&mut self, buf: &mut [u8], limit: Duration, moved: &mut Duration) -> io::Result<()> {
        for piece in buf.chunks_mut(PIECE_BYTES) {
            let start = Instant::now();
            self.extend(limit);
            self.read_exact(piece)?;
            *moved += start.elapsed();
        }
        Ok(())
    }
}

/// A request's body, whose sending is timed.
struct Timed<'a> {
    body: Box<dyn Read + 'a>,
    start: Instant,
    moved: &'a Cell<Duration>,
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.moved.set(self.start.elapsed());
        self.body.read(buf)
    }
}

impl Read for TimedBody {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the response takes too long"));
        }
        let len = self.body.read(buf)?;
        self.pace.bytes += len as u64;
        Ok(len)
    }
}

pub(crate) fn server(url: &Url, what: &str) -> Error {
    Error::Server { url: shown(url), what: what.to_owned() }
}

/// Returns the failure of a body that ends early.
fn interrupted(url: &Url, error: &io::Error) -> Failure {
    Failure::passing(server(url, &format!("the response was interrupted: {error}")))
}

/// Returns whether data from a URL is authentic: no other machine can change it on the way.
pub(crate) fn may_be_trusted(url: &Url) -> bool {
    url.scheme() == "https" || is_loopback(url)
}

/// Returns whether two URLs lead to the same server.
pub(crate) fn same(one: &Url, other: &Url) -> bool {
    one.origin() == other.origin()
}

fn failure(url: &Url, error: &ureq::Error) -> Failure {
    let failed = match error {
        ureq::Error::Io(error) if is_without_tls(error) => {
            server(url, "the server does not use TLS, as https:// requires")
        }
        error => server(url, &error.to_string()),
    };
    match error {
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => failed.into(),
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => Failure::passing(failed),
        _ => failed.into(),
    }
}

/// Returns whether a server answered with something other than TLS.
fn is_without_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body may stall for a while, but not stay slow.
    #[test]
    fn bodies_have_a_least_rate() {
        let limit = Duration::from_secs(60);
        let start = Instant::now();
        let slow_after = |rate: u64| {
            let is_slow = |second: &u64| {
                start + Duration::from_secs(*second) >= Pace { start, bytes: second * rate }.latest(limit)
            };
            (0..100_000).find(is_slow)
        };
        assert_eq!(slow_after(LEAST_RATE), None);
        assert_eq!(slow_after(LEAST_RATE / 2), Some(135));
        assert_eq!(slow_after(0), Some(68));
    }
}
