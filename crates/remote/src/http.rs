//! HTTP/1.1 requests, with redirects followed here: credentials never follow one to another host.

use std::{
    io::{self, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::crypto::ring;
use ureq::{
    Agent, Body, SendBody,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header},
    tls::{Certificate, RootCerts, TlsConfig},
};
use url::Url;

use crate::{error::Error, location::shown, patience::Failure};

const CONNECT_TIME: Duration = Duration::from_secs(10);

/// How long a server may take until it responds, and between parts of a response.
const SILENCE: Duration = Duration::from_secs(20);

/// How long sending a request's body may take between parts.
const SEND_SILENCE: Duration = Duration::from_secs(60);

const MOST_REDIRECTS: usize = 5;

/// The longest time for which a server may ask to wait.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// A client with its connections. Uses the proxies that the environment names.
pub(crate) struct Client {
    agent: Agent,
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
    body: Body,
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
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("pagefold/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(CONNECT_TIME))
            .timeout_connect(Some(CONNECT_TIME))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SEND_SILENCE))
            .max_idle_connections_per_host(8)
            .build();
        Self { agent: config.into() }
    }

    /// Sends one request. Follows redirects of GET and HEAD.
    pub(crate) fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        authorization: Option<&HeaderValue>,
        body: Option<&Outgoing<'_>>,
    ) -> Result<Reply, Failure> {
        let mut target = url.clone();
        for _ in 0..=MOST_REDIRECTS {
            let reply = self.send_once(method, &target, headers, authorization.filter(|_| same(url, &target)), body)?;
            let follows = reply.status.is_redirection() && matches!(*method, Method::GET | Method::HEAD);
            let Some(next) = reply.headers.get(header::LOCATION).filter(|_| follows) else { return Ok(reply) };
            let wrong = |what: &str| Failure::from(server(&target, what));
            let next = next.to_str().ok().and_then(|next| target.join(next).ok());
            let next = next.ok_or_else(|| wrong("redirects to an invalid URL"))?;
            match (target.scheme(), next.scheme()) {
                (_, "https") | ("http", "http") => {}
                ("https", "http") => return Err(wrong("redirects from https to http")),
                _ => return Err(wrong("redirects to another protocol")),
            }
            target = next;
        }
        Err(server(url, "redirects more than 5 times").into())
    }

    fn send_once(
        &self,
        method: &Method,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        authorization: Option<&HeaderValue>,
        body: Option<&Outgoing<'_>>,
    ) -> Result<Reply, Failure> {
        let mut request = Request::builder().method(method.clone()).uri(url.as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let unusable = |error: ureq::http::Error| Failure::from(server(url, &error.to_string()));
        let reply = match body {
            None => self.agent.run(request.body(()).map_err(unusable)?),
            Some(body) => {
                request = request.header(header::CONTENT_LENGTH, body.len_bytes);
                let mut bytes = (body.open)();
                self.agent.run(request.body(SendBody::from_reader(&mut *bytes)).map_err(unusable)?)
            }
        };
        let reply = reply.map_err(|error| failure(url, &error))?;
        let (parts, body) = reply.into_parts();
        Ok(Reply { status: parts.status, headers: parts.headers, url: url.clone(), body })
    }
}

impl Reply {
    /// Returns a header's value, if it is text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the failure that a status stands for.
    pub(crate) fn failure(&self, what: &str) -> Failure {
        let what = format!("{what}: {}", self.status);
        let passing = matches!(self.status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504);
        // A date is rare, and the usual pauses do as well.
        let after = self.header(header::RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
        let after = after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT)).filter(|_| passing);
        Failure { error: server(&self.url, &what), passing, after }
    }

    /// Reads the whole body, of at most `most_bytes`.
    pub(crate) fn read_all(self, most_bytes: u64, until: Instant) -> Result<Vec<u8>, Failure> {
        let url = self.url.clone();
        let mut bytes = Vec::new();
        let mut body = self.into_body(until).take(most_bytes + 1);
        body.read_to_end(&mut bytes).map_err(|error| interrupted(&url, &error))?;
        if bytes.len() as u64 > most_bytes {
            return Err(server(&url, &format!("the response exceeds {most_bytes} bytes")).into());
        }
        Ok(bytes)
    }

    /// Returns the body, whose reads fail after `until`.
    pub(crate) fn into_body(self, until: Instant) -> TimedBody {
        TimedBody { body: self.body.into_with_config().limit(u64::MAX).reader(), until }
    }
}

/// A body that must arrive in time, also if it arrives byte by byte.
pub(crate) struct TimedBody {
    body: ureq::BodyReader<'static>,
    until: Instant,
}

impl TimedBody {
    /// Restarts the time after progress.
    pub(crate) fn extend(&mut self, until: Instant) {
        self.until = until;
    }
}

impl Read for TimedBody {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the response takes too long"));
        }
        self.body.read(buf)
    }
}

pub(crate) fn server(url: &Url, what: &str) -> Error {
    Error::Server { url: shown(url), what: what.to_owned() }
}

/// Returns the failure of a body that ends early.
pub(crate) fn interrupted(url: &Url, error: &io::Error) -> Failure {
    Failure::passing(server(url, &format!("the response was interrupted: {error}")))
}

/// Returns whether two URLs lead to the same server.
pub(crate) fn same(one: &Url, other: &Url) -> bool {
    one.origin() == other.origin()
}

fn failure(url: &Url, error: &ureq::Error) -> Failure {
    let failed = server(url, &error.to_string());
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
